"""The configuration that is told: Triton's message in JSON, whole, with what the worker has completed."""

from __future__ import annotations

import json

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from schemas.model import TensorSpec
from workers.config_pbtxt import read_config
from workers.model_description import ModelDescription
from workers.served_config import config_told

_TEXT = """
backend: "device" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [-1, 2, 2] } }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: 1 label_filename: "classes.txt" }
version_policy { specific { versions: [1, 2] } }
dynamic_batching {
  max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1
  priority_queue_policy { key: 1 value { default_timeout_microseconds: 5000000000 } }
}
parameters { key: "a" value { string_value: "b" } }
model_warmup {
  name: "s" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [1, 4] zero_data: true } }
}
"""


def test_a_written_configuration_is_told_field_by_field_with_numbers_as_numbers() -> None:
    told = config_told(_TEXT, read_config(_TEXT, model="m"))
    assert (told["name"], told["backend"], told["max_batch_size"]) == ("m", "device", 8)
    assert told["input"][0]["dims"] == [-1, 4]
    assert told["input"][0]["reshape"] == {"shape": [-1, 2, 2]}
    assert told["output"][0]["label_filename"] == "classes.txt"
    assert told["version_policy"] == {"specific": {"versions": [1, 2]}}
    assert told["dynamic_batching"]["priority_queue_policy"]["1"]["default_timeout_microseconds"] == 5_000_000_000
    assert told["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert told["parameters"] == {"a": {"string_value": "b"}}
    assert told["model_warmup"][0]["inputs"]["INPUT0"]["dims"] == [1, 4]
    assert told["default_model_filename"] == ""  # defaults are told as well


def test_it_reads_back_as_the_message_that_is_served() -> None:
    told = config_told(_TEXT, read_config(_TEXT, model="m"))
    message = json_format.Parse(json.dumps(told), model_config_pb2.ModelConfig())
    assert list(message.input[0].dims) == [-1, 4]
    assert message.dynamic_batching.priority_queue_policy[1].default_timeout_microseconds == 5_000_000_000


def test_what_was_completed_from_the_model_file_is_in_it() -> None:
    description = ModelDescription(
        inputs=(TensorSpec("IN", "FP32", (-1, 4)),), outputs=(TensorSpec("OUT", "BYTES", (-1, 2)),)
    )
    config = read_config("", model="m", files=["model.onnx"]).completed(description)
    told = config_told(None, config)
    assert (told["backend"], told["max_batch_size"]) == ("onnxruntime", config.max_batch_size)
    assert [(field["name"], field["data_type"]) for field in told["input"]] == [("IN", "TYPE_FP32")]
    assert [(field["name"], field["data_type"]) for field in told["output"]] == [("OUT", "TYPE_STRING")]
    assert told["version_policy"] == {"latest": {"num_versions": 1}}
    assert told["instance_group"][0]["kind"] == "KIND_AUTO"
    assert ("dynamic_batching" in told) == config.dynamic_batching
