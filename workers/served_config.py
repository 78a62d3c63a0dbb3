"""The configuration that is served, as Triton's message goes into JSON: what was written, with what was completed.

Field names are those of Triton's schema; numbers are numbers, also those of 64 bits; fields that have their default are
told too. Must not know Kafka, repositories or what a backend does with it. The schema (which
brings grpc along) is imported by the first call. Messages are Any: protobuf publishes no types.
"""

from __future__ import annotations

from typing import Any

from workers.model_config import ModelConfig

_KINDS = {"auto": 0, "gpu": 1, "cpu": 2}  # ModelInstanceGroup.Kind


def config_told(text: str | None, config: ModelConfig) -> dict[str, Any]:
    """The message of config.pbtxt `text` (None: there is none) as `config` was completed from it."""
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    message = text_format.Parse(text or "", model_config_pb2.ModelConfig())
    _complete(message, config)
    told: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _make_numbers(told, message.DESCRIPTOR)
    return told


def _complete(message: Any, config: ModelConfig) -> None:
    """Put in what the text leaves out and the worker has decided."""
    message.name = config.name
    message.backend = config.backend
    message.max_batch_size = config.max_batch_size
    for fields, specs in ((message.input, config.inputs), (message.output, config.outputs)):
        if not fields:
            for spec in specs:
                fields.add(name=spec.name, data_type=_datatype(message, spec.datatype), dims=spec.shape)
    optional = {spec.name for spec in config.inputs if spec.optional}
    for field in message.input:
        field.optional = field.name in optional
    if config.dynamic_batching and not message.HasField("dynamic_batching"):
        message.dynamic_batching.SetInParent()
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = config.version_policy.count
    if not message.instance_group:
        for group in config.instance_groups:
            message.instance_group.add(kind=_KINDS[group.kind], count=group.count, gpus=group.gpus)


def _datatype(message: Any, datatype: str) -> int:
    """The number of a v2 datatype in the schema's enum."""
    values = message.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    return int(values.values_by_name[f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"].number)


def _make_numbers(told: dict[str, Any], descriptor: Any) -> None:
    """Turn what protobuf writes as text, since it may not fit a JavaScript number, back into numbers."""
    for name, value in told.items():
        field = descriptor.fields_by_name[name]
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            entry = kind.fields_by_name["value"]
            if entry.message_type is not None:
                for item in value.values():
                    _make_numbers(item, entry.message_type)
        elif kind is not None:
            for item in value if isinstance(value, list) else [value]:
                _make_numbers(item, kind)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            told[name] = [int(item) for item in value] if isinstance(value, list) else int(value)
