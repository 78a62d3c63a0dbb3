"""Raw body: a request that is one tensor's bytes and nothing else, as the protocol's binary extension allows.

The header Inference-Header-Content-Length is 0 then. Knows no HTTP.
"""

from __future__ import annotations

from schemas.errors import InferenceError, invalid
from schemas.model import ModelMetadata, TensorSpec
from schemas.request import InferenceRequest
from schemas.tensor import ITEM_BYTES, Tensor, pack_bytes_elements

_PARAMETERS = {"binary_data_output": True}


def raw_request(body: bytes, metadata: ModelMetadata) -> InferenceRequest:
    """The request: the model's one input with the body as its bytes, one row; every output raw.

    One dimension may be variable, its size follows from the body's. BYTES: the whole body is the one element.
    Raises InferenceError(INVALID_REQUEST) where the model has no such input, or the body no such size.
    """
    required = [spec for spec in metadata.inputs if not spec.optional]
    if len(required) != 1:
        names = [spec.name for spec in required]
        raise _unfit(metadata, f"it has {len(required)} inputs", names)
    spec = required[0]
    batch = (1,) if metadata.max_batch_size else ()
    if spec.datatype == "BYTES":
        if any(dim not in (1, -1) for dim in spec.shape):
            raise _unfit(metadata, f"its input takes {list(spec.shape)} elements", spec.shape)
        shape = (*batch, *(1 for _ in spec.shape))
        tensor = Tensor(spec.name, spec.datatype, shape, pack_bytes_elements([body]))
    else:
        tensor = Tensor(spec.name, spec.datatype, (*batch, *_shape(body, spec, metadata)), body)
    return InferenceRequest((tensor,), (), "", _PARAMETERS)


def _shape(body: bytes, spec: TensorSpec, metadata: ModelMetadata) -> tuple[int, ...]:
    variable = [index for index, dim in enumerate(spec.shape) if dim == -1]
    if len(variable) > 1:
        raise _unfit(metadata, f"its input's shape {list(spec.shape)} has more than one variable dimension", spec.shape)
    fixed_bytes = ITEM_BYTES[spec.datatype]
    for dim in spec.shape:
        fixed_bytes *= 1 if dim == -1 else dim
    count, rest = divmod(len(body), fixed_bytes) if fixed_bytes else (0, len(body))
    if rest or (not variable and count != (1 if fixed_bytes else 0)):
        raise invalid(
            f"the body has {len(body)} bytes, input {spec.name!r} of {spec.datatype} {list(spec.shape)} takes "
            f"{'a multiple of ' if variable else ''}{fixed_bytes}",
            field="body",
            value=len(body),
            remedy="send the elements of one row, little-endian and row-major, and nothing else",
        )
    return tuple(count if dim == -1 else dim for dim in spec.shape)


def _unfit(metadata: ModelMetadata, why: str, value: object) -> InferenceError:
    return invalid(
        f"model {metadata.name!r} takes no raw body: {why}",
        field="inference-header-content-length",
        value=value,
        remedy="send a JSON part that names the inputs, and its length in the header",
    )
