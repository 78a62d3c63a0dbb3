"""Our description of the gRPC protocol, against the one that its own client brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as their_config
from tritonclient.grpc import service_pb2 as their_service

from gateway.grpc_messages import inference_pb2, model_config_pb2
from gateway.grpc_messages.__main__ import generate

OURS = (inference_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)
THEIRS = {
    name: message
    for file in (their_service.DESCRIPTOR, their_config.DESCRIPTOR)
    for name, message in file.message_types_by_name.items()
}


def fields_of(message: Any) -> dict[str, tuple[Any, ...]]:
    """All that decides what is on the wire and in JSON, of a message and those inside it."""
    found = {
        f"{message.full_name}.{field.name}": (
            field.number,
            field.type,
            field.is_repeated,
            field.is_required,
            field.is_packed,
            field.has_presence,
            field.json_name,
            field.default_value if field.type is not FieldDescriptor.TYPE_MESSAGE else None,
            field.containing_oneof and field.containing_oneof.full_name,
            field.message_type and field.message_type.full_name,
            field.message_type and field.message_type.GetOptions().map_entry,
            field.enum_type and field.enum_type.full_name,
        )
        for field in message.fields
    }
    for enum in message.enum_types:
        found |= values_of(enum)
    for nested in message.nested_types:
        found |= fields_of(nested)
    return found


def values_of(enum: EnumDescriptor) -> dict[str, tuple[Any, ...]]:
    return {f"{enum.full_name}.{value.name}": (value.number,) for value in enum.values}


@pytest.mark.parametrize(
    "name", [name for file in OURS for name in file.message_types_by_name], ids=lambda name: str(name)
)
def test_a_message_is_the_protocols(name: str) -> None:
    ours = next(file.message_types_by_name[name] for file in OURS if name in file.message_types_by_name)
    assert fields_of(ours) == fields_of(THEIRS[name])


def test_enumerations_are_the_protocols() -> None:
    (ours,) = model_config_pb2.DESCRIPTOR.enum_types_by_name.values()
    assert values_of(ours) == values_of(their_config.DESCRIPTOR.enum_types_by_name[ours.name])


def test_the_service_has_the_protocols_calls() -> None:
    def calls(file: Any) -> dict[str, tuple[str, str, bool, bool]]:
        return {
            call.name: (
                call.input_type.full_name,
                call.output_type.full_name,
                call.client_streaming,
                call.server_streaming,
            )
            for call in file.services_by_name["GRPCInferenceService"].methods
        }

    ours, theirs = calls(inference_pb2.DESCRIPTOR), calls(their_service.DESCRIPTOR)
    assert ours.items() <= theirs.items()
    assert {name.removesuffix("Status").removesuffix("Register") for name in theirs.keys() - ours.keys()} <= {
        "SystemSharedMemory",
        "SystemSharedMemoryUnregister",
        "SystemSharedMemoryUn",
        "CudaSharedMemory",
        "CudaSharedMemoryUnregister",
        "CudaSharedMemoryUn",
        "TraceSetting",
        "LogSettings",
    }


def test_what_is_checked_in_is_what_the_descriptions_make(tmp_path: Path) -> None:
    assert generate(tmp_path) == 0
    made = sorted((tmp_path / "gateway" / "grpc_messages").iterdir())
    assert len(made) == 4
    for file in made:
        assert file.read_text() == (Path("gateway/grpc_messages") / file.name).read_text(), file.name


def test_our_messages_and_a_clients_live_in_one_process_in_either_order() -> None:
    ours, theirs = "import gateway.grpc_messages.inference_pb2", "import tritonclient.grpc.service_pb2"
    for first, second in ((ours, theirs), (theirs, ours)):
        subprocess.run([sys.executable, "-c", f"{first}; {second}"], check=True)
