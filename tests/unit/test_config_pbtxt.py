import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.errors import ErrorCode
from schemas.model import TensorSpec
from schemas.tensor import ITEM_BYTES
from workers.config_pbtxt import examine_config, read_config
from workers.model_config import (
    Accelerator,
    InstanceGroup,
    ModelConfig,
    ModelConfigError,
    Padding,
    QueuePolicy,
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
    text = """
# a comment
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] } },
  { name: "mask" data_type: TYPE_INT64 dims: -1 },
  { name: "image" data_type: TYPE_UINT8 format: FORMAT_NCHW dims: [ 3, 8, 8 ] optional: true }
]
output [
  { name: "y" data_type: TYPE_STRING dims: 1 reshape { shape: [] } label_filename: "labels.txt" },
  { name: "z" data_type: TYPE_FP32 dims: [ -1, 2 ] }
]
dynamic_batching: {
  preferred_batch_size: [ 8, 4 ]
  max_queue_delay_microseconds: 2500
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 7 allow_timeout_override: true max_queue_size: 4294967295 }
  priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 18446744073709551615 } }
}
instance_group [ { count: 2 kind: KIND_CPU }, { name: "more" kind: KIND_GPU gpus: [ 1, 0 ] } ]
instance_group { count: 9 passive: true }
parameters: { key: "threads" value: { string_value: "1" } }
parameters [
  { key: "execution_timeout_ms" value { string_value: "1500" } },
  { key: "padding_buckets" value { string_value: "16, 32" } },
  { key: "padding_inputs" value { string_value: "x" } },
  { key: "padding_value" value { string_value: "-0.5" } },
  { key: "padding_mask_input" value { string_value: "mask" } },
  { key: "padding_outputs" value { string_value: "z" } }
]
default_model_filename: "net.onnx"
version_policy: { specific { versions: [ 1, 3 ] } }
metric_tags { key: "team" value: "speech" }
optimization {
  graph { level: -1 }
  execution_accelerators {
    gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } }
    cpu_execution_accelerator { name: "openvino" }
  }
}
"""
    with capture_logs() as logs:
        config = read(text)
    parameters = {
        "threads": "1",
        "execution_timeout_ms": "1500",
        "padding_buckets": "16, 32",
        "padding_inputs": "x",
        "padding_value": "-0.5",
        "padding_mask_input": "mask",
        "padding_outputs": "z",
    }
    assert config == ModelConfig(
        name="m",
        backend="onnxruntime",
        max_batch_size=16,
        inputs=(
            TensorSpec("x", "FP32", (-1, 4)),
            TensorSpec("mask", "INT64", (-1,), optional=True),
            TensorSpec("image", "UINT8", (3, 8, 8), optional=True),
        ),
        outputs=(TensorSpec("y", "BYTES", (1,)), TensorSpec("z", "FP32", (-1, 2))),
        dynamic_batching=True,
        preferred_batch_sizes=(4, 8),
        max_queue_delay_us=2500,
        instance_groups=(InstanceGroup("cpu", 2), InstanceGroup("gpu", 1, (1, 0))),
        parameters=parameters,
        default_model_filename="net.onnx",
        version_policy=VersionPolicy("specific", versions=(1, 3)),
        input_reshapes={"x": (-1, 2, 2)},
        output_reshapes={"y": ()},
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy("reject", 7, allow_timeout_override=True, max_queue_size=2**32 - 1),
        queue_policies={3: QueuePolicy("delay", 2**64 - 1)},
        metric_tags={"team": "speech"},
        gpu_accelerators=(Accelerator("tensorrt", {"precision_mode": "FP16"}),),
        cpu_accelerators=(Accelerator("openvino"),),
        graph_level=-1,
        padding=Padding(buckets=(16, 32), inputs=("x",), value=-0.5, mask_input="mask", outputs=("z",)),
        execution_timeout_ms=1500,
        labels={"y": "labels.txt"},
    )
    assert logs == []


def test_what_is_left_out_has_tritons_defaults() -> None:
    config = read("dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }")
    assert config.preserve_ordering
    assert (config.priority_levels, config.default_priority_level) == (0, 0)
    assert read("dynamic_batching { default_priority_level: 3 }").default_priority_level == 0
    assert config.default_queue_policy == QueuePolicy("delay", 0, allow_timeout_override=False, max_queue_size=0)
    assert config.instance_groups == (InstanceGroup("auto", 1, ()),)
    assert (config.padding, config.execution_timeout_ms) == (None, 0)


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("{}", InstanceGroup("auto", 1)),
        ("{ count: 3 }", InstanceGroup("auto", 3)),
        ("{ kind: KIND_AUTO gpus: 2 }", InstanceGroup("auto", 1, (2,))),
        ("{ kind: KIND_CPU }", InstanceGroup("cpu", 1)),
        ("{ kind: KIND_GPU count: 2 }", InstanceGroup("gpu", 2)),
    ],
)
def test_instance_group_is_read(text: str, group: InstanceGroup) -> None:
    assert read(f"instance_group {text}").instance_groups == (group,)
    assert ignored_fields(f"instance_group {text}") == []


def test_instances_that_the_model_would_place_are_placed_as_auto_with_a_warning() -> None:
    text = "instance_group { kind: KIND_MODEL count: 2 }"
    assert read(text).instance_groups == (InstanceGroup("auto", 2),)
    assert ignored_fields(text) == ["instance_group.kind: KIND_MODEL"]


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


def test_version_policy_takes_the_extremes() -> None:
    assert read("version_policy {}").version_policy == VersionPolicy()
    assert read("version_policy { latest {} }").version_policy == VersionPolicy()
    assert read("version_policy { latest { num_versions: 4294967295 } }").version_policy.choose([2, 1]) == (1, 2)
    assert read("version_policy { latest { num_versions: 0 } }").version_policy.choose([2, 1]) == (2,)


WARM_UPS = """model_warmup [ {
    name: "zeros" batch_size: 4
    inputs { key: "x" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
  }, {
    name: "real" count: 3
    inputs [
      { key: "x" value { data_type: TYPE_INT32 dims: 8 random_data: true } },
      { key: "t" value { data_type: TYPE_STRING dims: 1 random_data: true } },
      { key: "s" value { data_type: TYPE_STRING dims: 1 input_data_file: "raw" } }
    ]
  } ]"""


def test_warm_ups_are_read_and_random_text_is_empty_text() -> None:
    assert ignored_fields(WARM_UPS) == []
    zeros, real = read(WARM_UPS).warm_ups
    assert zeros == WarmUp("zeros", rows=4, count=1, inputs=(WarmUpInput("x", "INT32", (8,), "zero"),))
    assert (real.rows, real.count) == (0, 3)
    assert real.inputs == (
        WarmUpInput("s", "BYTES", (1,), "file", "raw"),
        WarmUpInput("t", "BYTES", (1,), "zero"),
        WarmUpInput("x", "INT32", (8,), "random"),
    )


def test_warm_ups_have_the_rows_of_a_batch_once_its_size_is_known() -> None:
    assert [sample.rows for sample in read(f"max_batch_size: 4 {WARM_UPS}").warm_ups] == [4, 1]
    alone = 'model_warmup { name: "a" batch_size: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    assert read(alone).warm_ups[0].rows == 0


@pytest.mark.parametrize(
    ("platform", "backend"),
    [("onnxruntime_onnx", "onnxruntime"), ("pytorch_libtorch", "pytorch"), ("tensorrt_plan", "tensorrt")],
)
def test_backend_is_taken_from_the_legacy_platform(platform: str, backend: str) -> None:
    assert read("", backend=f'platform: "{platform}"').backend == backend
    assert read("", backend=f'platform: "{platform}" backend: "{backend}"').backend == backend
    assert read("", backend=f'platform: "{backend}"').backend == backend


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        (["labels.txt", "model.onnx"], "onnxruntime"),
        (["model.pt"], "pytorch"),
        (["model.pt2", "model.pt"], "pytorch"),
        (["model.plan"], "tensorrt"),
        (["model.py", "weights.bin"], "python"),
        (["model.onnx", "convert.py"], "onnxruntime"),
    ],
)
def test_backend_is_taken_from_the_model_files_name(files: list[str], backend: str) -> None:
    assert read_config("", model="m", files=files).backend == backend


def test_backend_is_taken_from_the_default_model_filename_first() -> None:
    config = read_config('default_model_filename: "net.onnx"', model="m", files=["a.pt", "net.onnx"])
    assert config.backend == "onnxruntime"


@pytest.mark.parametrize("files", [["model.onnx", "model.pt"], ["net.py"], []])
def test_backend_that_does_not_follow_from_the_files_is_to_be_given(files: list[str]) -> None:
    with pytest.raises(ModelConfigError, match="backend of model 'm' is missing"):
        read_config("", model="m", files=files)


def test_unknown_backend_lists_the_known_ones() -> None:
    error = refused("", backend='backend: "fortran"')
    assert (error.field, error.value) == ("backend", "fortran")
    assert "device, onnxruntime, python, pytorch, tensorrt" in error.remedy
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


def test_fields_without_effect_are_each_warned_of_by_name() -> None:
    assert ignored_fields(
        """
        max_batch_size: 8
        dynamic_batching { default_priority_level: 1 }
        instance_group [ { kind: KIND_GPU host_policy: "a" profile: "1" }, { kind: KIND_GPU profile: "2" } ]
        optimization {
          graph { level: 1 } priority: PRIORITY_MAX cuda { graphs: true } input_pinned_memory { enable: true }
        }
        response_cache { enable: true }
        cc_model_filenames { key: "7.5" value: "b" }
        runtime: "libtriton_onnxruntime.so"
        """
    ) == [
        "cc_model_filenames",
        "dynamic_batching.default_priority_level",
        "instance_group.host_policy",
        "instance_group.profile",
        "optimization.cuda",
        "optimization.input_pinned_memory",
        "optimization.priority",
        "response_cache",
        "runtime",
    ]


def test_what_only_onnx_runtime_can_do_is_warned_of_elsewhere() -> None:
    text = """optimization {
      graph { level: 1 }
      execution_accelerators { gpu_execution_accelerator { name: "gpu_io" parameters { key: "a" value: "b" } } }
    }"""
    with capture_logs() as logs:
        read(text, backend='backend: "pytorch"')
    assert [log["field"] for log in logs] == ["optimization.execution_accelerators", "optimization.graph"]


def test_features_that_are_switched_off_are_not_warned_of() -> None:
    text = "response_cache { enable: false } model_transaction_policy { decoupled: false } model_operations {}"
    assert ignored_fields(text + " optimization { input_pinned_memory { enable: false } cuda {} }") == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("max_batch_sise: 4", "2:1"),
        ("\n  max_batch_size: four", "3:19"),
        ("max_batch_size: 99999999999", "2:17"),
        ('input { name: "x" data_type: TYPE_FLOAT dims: 1 }', "2:30"),
        ("max_batch_size: 1 max_batch_size: 2", "2:35"),
        ("dynamic_batching {} sequence_batching {}", "2:21"),
    ],
)
def test_text_that_is_no_configuration_is_told_by_line_and_column(text: str, at: str) -> None:
    error = refused(text)
    line, column = at.split(":")
    assert at in error.message
    assert error.value == f"line {line}, column {column}"


_WORDS = """
name input output dims data_type max_batch_size dynamic_batching parameters model_warmup instance_group count key value
reshape shape priority_levels padding_buckets padding_inputs batch_size inputs preferred_batch_size "x" "16,8"
version_policy all latest true TYPE_FP32 -1 0 3 1e99 "m" '\\377' "\\x [ ] { } < > : , #
"""
_PIECES = st.sampled_from([*_WORDS.split(), "\n", "\u2028", "\x00"])


def test_faults_are_told_all_at_once_and_the_first_is_raised() -> None:
    text = f'name: "other" backend: "fortran" max_batch_size: -1 response_cache {{ enable: true }} {TENSORS}'
    reading = examine_config(text, model="m")
    assert [fault.field for fault in reading.faults] == ["name", "backend", "max_batch_size"]
    assert reading.ignored == ("response_cache",)
    assert reading.config is not None
    assert refused(text, backend="").message == reading.faults[0].message
    assert examine_config("max_batch_sise: 1", model="m").config is None


@given(st.lists(_PIECES, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_gives_a_configuration_or_the_one_error(text: str) -> None:
    try:
        config = read_config(text, model="m", files=["model.onnx"])
    except ModelConfigError:
        return
    assert config.name == "m"
