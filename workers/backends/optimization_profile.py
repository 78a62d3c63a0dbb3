"""Optimization profile: the shapes that TensorRT prepares a model for, smallest, best and largest. Pure.

It is what the parameters profile_min_shapes, profile_opt_shapes and profile_max_shapes of the configuration say, in
trtexec's form "input:1x3x224x224,mask:1x128". Without them it follows from the configuration: batches of 1 to
max_batch_size rows, best at the largest, as far as no other dimension is free. Must not know any ML library.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from workers.model_config import ModelConfig, ModelConfigError

PROFILE_PARAMETERS = ("profile_min_shapes", "profile_opt_shapes", "profile_max_shapes")
Shape = tuple[int, ...]


class ShapeRange(msgspec.Struct, frozen=True):
    """The shapes of one input, any batch dimension included."""

    min: Shape
    opt: Shape
    max: Shape


def optimization_profile(config: ModelConfig) -> dict[str, ShapeRange]:
    """The shapes by input. Raises ModelConfigError for text that cannot be read and for a free dimension without one.

    The model of a configuration without batch dimension and free dimensions has exactly one shape, and gets it.
    """
    given = [_parse(config, parameter) for parameter in PROFILE_PARAMETERS]
    profile = {}
    for spec in config.inputs:
        shape = config.input_reshapes.get(spec.name, spec.shape)
        shapes = [by_input.get(spec.name) for by_input in given]
        if all(shapes):
            least, best, most = (shape for shape in shapes if shape)
            if not len(least) == len(best) == len(most) or any(
                not low <= middle <= high for low, middle, high in zip(least, best, most, strict=True)
            ):
                raise _error(
                    config, PROFILE_PARAMETERS[0], shapes, f"do not ascend from min to max for input {spec.name!r}"
                )
            profile[spec.name] = ShapeRange(least, best, most)
        elif any(dim < 0 for dim in shape):
            raise _error(
                config, PROFILE_PARAMETERS[0], "", f"do not all name input {spec.name!r}, which has free dimensions"
            )
        elif config.max_batch_size:
            most = (config.max_batch_size, *shape)
            profile[spec.name] = ShapeRange((1, *shape), most, most)
        else:
            profile[spec.name] = ShapeRange(shape, shape, shape)
    return profile


def trtexec_text(shapes: Mapping[str, Shape]) -> str:
    """Shapes by input in the form in which they are configured."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def _parse(config: ModelConfig, parameter: str) -> dict[str, Shape]:
    text = config.parameters.get(parameter, "")
    shapes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, dims = part.rpartition(":")  # a name may have colons in it, a shape has none
        sizes = dims.split("x")
        if not name or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise _error(config, parameter, part, "have an entry that is no input and its shape")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def _error(config: ModelConfig, parameter: str, value: object, what: str) -> ModelConfigError:
    return ModelConfigError(
        f"the shapes that model {config.name!r} is to be prepared for {what}",
        field=f"parameters.{parameter}",
        value=value,
        remedy=f'give {", ".join(PROFILE_PARAMETERS)} as "input:1x3x224x224,other:1x8", with the batch dimension',
    )
