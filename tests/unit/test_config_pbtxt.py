import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.errors import ErrorCode
from schemas.model import TensorSpec
from schemas.tensor import ITEM_BYTES
from workers.config_pbtxt import read_config
from workers.model_config import (
    InstanceGroup,
    ModelConfig,
    ModelConfigError,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
)

TENSORS = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def read(text: str, *, backend: str = 'backend: "onnxruntime"') -> ModelConfig:
    return read_config(f"{backend}\n{text}", model="m")


def refused(text: str, *, backend: str = 'backend: "onnxruntime"') -> ModelConfigError:
    with pytest.raises(ModelConfigError) as caught:
        read(text, backend=backend)
    error = caught.value
    assert error.code is ErrorCode.MODEL_LOAD_FAILED
    assert "'m'" in error.message
    assert error.remedy
    return error


def ignored_fields(text: str) -> list[str]:
    with capture_logs() as logs:
        read(text)
    assert all(log["log_level"] == "warning" and log["model"] == "m" for log in logs)
    return [log["field"] for log in logs]


def test_all_that_is_implemented_is_read_and_nothing_is_warned_of() -> None:
    text = f"""
# a comment
name: "m"
max_batch_size: 16
{TENSORS}
dynamic_batching: {{
  preferred_batch_size: [ 8, 4 ]
  max_queue_delay_microseconds: 2500
}}
instance_group [ {{ count: 2 kind: KIND_CPU }}, {{ name: "more" }} ]
parameters: {{ key: "threads" value: {{ string_value: "1" }} }}
parameters [ {{ key: "mode" value {{ string_value: "fast" }} }} ]
default_model_filename: "net.onnx"
version_policy: {{ specific {{ versions: [ 1, 3 ] }} }}
"""
    with capture_logs() as logs:
        config = read(text)
    assert config == ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=16,
        inputs=(TensorSpec("x", "FP32", (-1, 4)),),
        outputs=(TensorSpec("y", "BYTES", (1,)),),
        dynamic_batching=True,
        preferred_batch_sizes=(4, 8),
        max_queue_delay_us=2500,
        instance_groups=(InstanceGroup("cpu", 2), InstanceGroup("cpu", 1)),
        parameters={"threads": "1", "mode": "fast"},
        default_model_filename="net.onnx",
        version_policy=VersionPolicy("specific", versions=(1, 3)),
    )
    assert logs == []


@pytest.mark.parametrize("datatype", sorted(ITEM_BYTES))
def test_each_datatype_of_the_wire_is_read(datatype: str) -> None:
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    config = read(f'input {{ name: "x" data_type: {name} dims: 1 }} output {{ name: "y" data_type: {name} dims: 1 }}')
    assert (config.inputs[0].datatype, config.outputs[0].datatype) == (datatype, datatype)


def test_optional_input_is_optional() -> None:
    config = read('input { name: "x" data_type: TYPE_FP32 dims: 1 optional: true }')
    assert config.inputs[0].optional


@pytest.mark.parametrize(
    ("text", "policy", "served"),
    [
        ("", VersionPolicy(), (12,)),
        ("version_policy { latest { num_versions: 2 } }", VersionPolicy("latest", count=2), (3, 12)),
        ("version_policy { all {} }", VersionPolicy("all"), (1, 3, 12)),
        (
            "version_policy { specific { versions: [12, 1, 9] } }",
            VersionPolicy("specific", versions=(12, 1, 9)),
            (1, 12),
        ),
    ],
)
def test_version_policy_chooses_in_ascending_order(text: str, policy: VersionPolicy, served: tuple[int, ...]) -> None:
    assert read(text).version_policy == policy
    assert policy.choose([12, 1, 3]) == served


def test_warm_up_is_parsed_and_warned_of_once() -> None:
    text = """model_warmup [ {
        name: "zeros" batch_size: 4
        inputs { key: "x" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
      }, {
        name: "real" count: 3
        inputs { key: "s" value { data_type: TYPE_STRING dims: 1 input_data_file: "raw" } }
      } ]"""
    assert ignored_fields(text) == ["model_warmup"]
    assert read(text).warm_ups == (
        WarmUp("zeros", rows=4, count=1, inputs=(WarmUpInput("x", "INT32", (8,), "zero"),)),
        WarmUp("real", rows=0, count=3, inputs=(WarmUpInput("s", "BYTES", (1,), "file", "raw"),)),
    )


def test_backend_is_taken_from_the_legacy_platform() -> None:
    assert read("", backend='platform: "onnxruntime_onnx"').backend == "onnxruntime"
    assert refused("", backend='platform: "pytorch_libtorch"').value == "pytorch"
    assert refused("", backend='platform: "tensorrt_plan"').value == "tensorrt"


def test_backend_is_taken_from_the_model_files_suffix() -> None:
    assert read_config("", model="m", files=["labels.txt", "model.onnx"]).backend == "onnxruntime"
    assert (
        read_config('default_model_filename: "net.onnx"', model="m", files=["a.pt", "net.onnx"]).backend
        == "onnxruntime"
    )
    with pytest.raises(ModelConfigError, match="pytorch"):
        read_config("", model="m", files=["model.pt"])
    with pytest.raises(ModelConfigError, match="no backend"):
        read_config("", model="m", files=["model.onnx", "model.pt"])


def test_unknown_backend_lists_the_known_ones() -> None:
    error = refused("", backend='backend: "fortran"')
    assert (error.field, error.value) == ("backend", "fortran")
    assert "device, onnxruntime" in error.remedy
    assert refused("", backend='platform: "fortran_f77"').field == "platform"


def test_onnx_without_scheduler_is_batched_with_no_delay() -> None:
    config = read("max_batch_size: 8")
    assert (config.dynamic_batching, config.max_queue_delay_us) == (True, 0)
    assert not read("max_batch_size: 1").dynamic_batching
    assert not read("").dynamic_batching


def test_other_backend_without_scheduler_runs_each_request_alone() -> None:
    assert not read("max_batch_size: 8", backend='backend: "device"').dynamic_batching
    assert read("max_batch_size: 8 dynamic_batching {}", backend='backend: "device"').dynamic_batching


def test_model_without_batch_dimension_is_never_batched() -> None:
    assert not read(f"dynamic_batching {{ max_queue_delay_microseconds: 5 }} {TENSORS}").dynamic_batching


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('name: "other"', "name", "other"),
        ("max_batch_size: -1", "max_batch_size", "-1"),
        ("instance_group { count: -2 }", "instance_group.count", "-2"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: [2, 8] }",
            "dynamic_batching.preferred_batch_size",
            "8",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic_batching.preferred_batch_size",
            "[0]",
        ),
        (TENSORS + "dynamic_batching { preferred_batch_size: 1 }", "dynamic_batching.preferred_batch_size", "1"),
        ('input { name: "x" dims: 1 }', "input.x.data_type", ""),
        ('input { name: "x" data_type: 32 dims: 1 }', "input.x.data_type", "32"),
        ('output { name: "y" data_type: TYPE_FP32 }', "output.y.dims", ""),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 4, 0 ] }', "input.x.dims", "[4, 0]"),
        ('input { name: "x" data_type: TYPE_FP32 dims: -2 }', "input.x.dims", "[-2]"),
        ("input { data_type: TYPE_FP32 dims: 1 }", "input.0.name", ""),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 } ' * 2, "input.x.name", "x"),
    ],
)
def test_faulty_configuration_names_field_and_value(text: str, field: str, value: str) -> None:
    error = refused(text)
    assert (error.field, error.value) == (field, value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sequence_batching {}", "sequence_batching"),
        ("ensemble_scheduling { step { model_name: 'a' } }", "ensemble_scheduling"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ('batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" }', "batch_input"),
        ('batch_output { target_name: "n" }', "batch_output"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }', "input.allow_ragged_batch"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }', "input.reshape"),
        ('output { name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: [ 1, 1 ] } }', "output.reshape"),
    ],
)
def test_what_would_give_wrong_answers_is_refused(text: str, field: str) -> None:
    assert refused(text).field == field


def test_ensemble_platform_is_refused() -> None:
    assert refused("", backend='platform: "ensemble"').field == "platform"


def test_fields_that_are_not_implemented_are_each_warned_of_by_name() -> None:
    assert ignored_fields(
        """
        max_batch_size: 8
        dynamic_batching {
          priority_levels: 2 default_priority_level: 1 preserve_ordering: true
          default_queue_policy { max_queue_size: 3 default_timeout_microseconds: 18446744073709551615 }
        }
        instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] }, { kind: KIND_GPU } ]
        optimization { graph { level: 1 } cuda { graphs: true } }
        response_cache { enable: true }
        metric_tags { key: "a" value: "b" }
        """
    ) == [
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy",
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.priority_levels",
        "instance_group.gpus",
        "instance_group.kind",
        "metric_tags",
        "optimization",
        "response_cache",
    ]


def test_features_that_are_switched_off_are_not_warned_of() -> None:
    assert ignored_fields("response_cache { enable: false } model_transaction_policy { decoupled: false }") == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("max_batch_sise: 4", "2:1"),
        ("\n  max_batch_size: four", "3:19"),
        ("max_batch_size: 99999999999", "2:17"),
        ('input { name: "x" data_type: TYPE_FLOAT dims: 1 }', "2:30"),
        ("max_batch_size: 1 max_batch_size: 2", "2:35"),
    ],
)
def test_text_that_is_no_configuration_is_told_by_line_and_column(text: str, at: str) -> None:
    error = refused(text)
    line, column = at.split(":")
    assert at in error.message
    assert error.value == f"line {line}, column {column}"


_WORDS = """
name input output dims data_type max_batch_size dynamic_batching parameters model_warmup instance_group count key value
version_policy all latest true TYPE_FP32 -1 0 3 1e99 "m" '\\377' "\\x [ ] { } < > : , #
"""
_PIECES = st.sampled_from([*_WORDS.split(), "\n", "\u2028", "\x00"])


@given(st.lists(_PIECES, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_gives_a_configuration_or_the_one_error(text: str) -> None:
    try:
        config = read_config(text, model="m", files=["model.onnx"])
    except ModelConfigError:
        return
    assert config.name == "m"
