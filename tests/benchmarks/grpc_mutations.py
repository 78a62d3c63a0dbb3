"""Damaged gRPC requests: ModelInferRequests that are well-formed, nearly so, or not at all. Pure; knows no server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import Message

from gateway.grpc_messages.inference_pb2 import ModelInferRequest
from tests.benchmarks.damage import cut, flip, grow

_TEXTS = (
    "",
    "x",
    "INPUT0",
    "OUTPUT0",
    "identity",
    "FP32",
    "BYTES",
    "BF16",
    "\x00",
    "../..",
    "é" * 50,
    "y" * 5000,
    "9" * 30,
)
_PARAMETERS = (
    "timeout", "priority", "deadline_ms", "execution_timeout_ms", "classification", "binary_data_output", "headers",
    "sequence_id", "shared_memory_region", "binary_data_size", "triton_enable_empty_final_response", "", "p" * 500,
)  # fmt: skip
_NUMBERS = (
    0,
    1,
    -1,
    2,
    16,
    64,
    65,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
)
_FLOATS = (0.0, -0.0, 1.5, 1e308, float("inf"), float("-inf"), float("nan"))
_RAW_BYTES = (0, 1, 3, 4, 63, 64, 65, 128, 4096)


def damaged_messages(seed: int, model: str) -> Iterator[bytes]:
    """For ever: messages for ModelInfer with this model, made up from this seed, most of them wrong in some way.

    The model takes INPUT0 and gives OUTPUT0, rows of 16 FP32. The same seed gives the same messages.
    """
    rng = random.Random(seed)
    while True:
        message = _well_formed(rng, model)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
            _damage(rng, message)
        body = message.SerializeToString()
        for _ in range(rng.choice((0, 0, 0, 1, 3))):
            body = rng.choice(_BODY_DAMAGES)(rng, body)
        yield body


def _well_formed(rng: random.Random, model: str) -> ModelInferRequest:
    rows = rng.choice((1, 1, 2, 8))
    message = ModelInferRequest(model_name=model, id=rng.choice(("", "mine")))
    tensor = message.inputs.add(name="INPUT0", datatype="FP32", shape=[rows, 16])
    if rng.random() < 0.6:
        message.raw_input_contents.append(rng.randbytes(64 * rows))
    else:
        tensor.contents.fp32_contents.extend([rng.uniform(-5, 5) for _ in range(16 * rows)])
    if rng.random() < 0.3:
        message.outputs.add(name="OUTPUT0")
    return message


def _damage(rng: random.Random, message: ModelInferRequest) -> None:
    """Change one field, anywhere: set it, clear it, repeat it, or put something where nothing belongs."""
    place: Any = message  # the stubs of fields differ from version to version
    while rng.random() < 0.6:
        inside = [each for _, value in place.ListFields() for each in _messages_in(value)]
        if not inside:
            break
        place = rng.choice(inside)
    field = rng.choice(place.DESCRIPTOR.fields)
    if rng.random() < 0.2:
        place.ClearField(field.name)
        return
    value = getattr(place, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _set_parameter(rng, value[rng.choice(_PARAMETERS)])
    elif field.message_type is not None:
        target = value.add() if field.is_repeated else value
        target.SetInParent()
    elif field.is_repeated:
        made = [_scalar(rng, field) for _ in range(rng.choice((1, 1, 2, 50)))]
        value.extend([each for each in made if each is not None])
    elif (scalar := _scalar(rng, field)) is not None:
        setattr(place, field.name, scalar)


def _messages_in(value: Any) -> list[Any]:
    if isinstance(value, Message):
        return [value]
    if hasattr(value, "values"):
        return list(value.values())
    return [each for each in value if isinstance(each, Message)] if hasattr(value, "extend") else []


def _set_parameter(rng: random.Random, parameter: Any) -> None:
    field = rng.choice(parameter.DESCRIPTOR.fields)
    if (scalar := _scalar(rng, field)) is not None:
        setattr(parameter, field.name, scalar)


def _scalar(rng: random.Random, field: Any) -> Any:
    """A value of the field's type, None when the one drawn does not fit."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return rng.randbytes(rng.choice(_RAW_BYTES))
        return rng.choice(_TEXTS)
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice(_FLOATS)
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    unsigned = kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    fitting = range(1 << bits) if unsigned else range(-(1 << bits - 1), 1 << bits - 1)
    number = rng.choice(_NUMBERS)
    return number if number in fitting else None


def _repeat(rng: random.Random, body: bytes) -> bytes:
    """Two messages in a row are one: what is repeated is there twice, the rest is what the second says."""
    return body + body[: rng.choice((len(body), rng.randrange(len(body) + 1)))]


def _nest(rng: random.Random, body: bytes) -> bytes:
    """A field of no number that we know, groups in groups: decoders give up at some depth."""
    return body + b"\x7b" * rng.choice((1, 99, 101, 10_000))


_BODY_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, flip, cut, grow, _repeat, _nest)
