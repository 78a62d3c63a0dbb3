"""Faulty configurations, of the kinds that Triton refuses to load, and some that only tidegate can have."""

import pytest

from schemas.errors import ErrorCode
from workers.config_pbtxt import examine_config, read_config
from workers.model_config import ModelConfigError

INPUT = 'name: "x" data_type: TYPE_FP32 dims: [ 4 ]'
BATCHED = "max_batch_size: 8 dynamic_batching"
DELAY = "timeout_action: DELAY default_timeout_microseconds: 5"
ORDERED = "dynamic_batching.preserve_ordering"
LEVEL = "dynamic_batching.default_priority_level"
POLICY = "dynamic_batching.priority_queue_policy"
GPU_ACCELERATOR = "optimization.execution_accelerators.gpu_execution_accelerator.name"
CPU_ACCELERATOR = "optimization.execution_accelerators.cpu_execution_accelerator.name"


def faults(text: str, *, backend: str = "onnxruntime") -> list[tuple[str, str]]:
    """Field and value of every fault; each is told in full, and the first is what reading raises."""
    text = f'backend: "{backend}"\n{text}' if backend else text
    reading = examine_config(text, model="m")
    for fault in reading.faults:
        assert fault.code is ErrorCode.MODEL_LOAD_FAILED
        assert "'m'" in fault.message
        assert fault.field
        assert fault.remedy
    if reading.faults:
        with pytest.raises(ModelConfigError) as caught:
            read_config(text, model="m")
        assert caught.value.detail() == reading.faults[0].detail()
    return [(fault.field, fault.value) for fault in reading.faults]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('name: "other"', "name", "other"),
        ("max_batch_size: -1", "max_batch_size", "-1"),
        ('runtime: "../evil.so"', "runtime", "../evil.so"),
        ('runtime: ".."', "runtime", ".."),
        ("version_policy { specific {} }", "version_policy.specific.versions", ""),
        ("version_policy { specific { versions: [ 0, 2 ] } }", "version_policy.specific.versions", "[0, 2]"),
        ("version_policy { specific { versions: -1 } }", "version_policy.specific.versions", "[-1]"),
        ('default_model_filename: "../x"', "default_model_filename", "../x"),
        ('default_model_filename: "a/../../x"', "default_model_filename", "a/../../x"),
        ('default_model_filename: "/etc/passwd"', "default_model_filename", "/etc/passwd"),
        ('default_model_filename: "."', "default_model_filename", "."),
        ('default_model_filename: "a/"', "default_model_filename", "a/"),
        ('metric_tags { key: "a-b" value: "c" }', "metric_tags", "a-b"),
        ('metric_tags { key: "model" value: "c" }', "metric_tags", "model"),
        ('metric_tags { key: "__a" value: "c" }', "metric_tags", "__a"),
        (
            "model_metrics { metric_control { histogram_options { buckets: 1 } } }",
            "model_metrics.metric_control.metric_identifier.family",
            "",
        ),
        (
            "model_metrics { metric_control { "
            'metric_identifier { family: "a" } histogram_options { buckets: [2, 1] } } }',
            "model_metrics.metric_control.histogram_options.buckets",
            "[2.0, 1.0]",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "a" } } }',
            "model_metrics.metric_control.histogram_options.buckets",
            "",
        ),
    ],
)
def test_model_fault(text: str, field: str, value: str) -> None:
    assert faults(text) == [(field, value)]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('backend: "fortran"', "backend", "fortran"),
        ('platform: "fortran_f77"', "platform", "fortran_f77"),
        ('platform: "ensemble"', "platform", "ensemble"),
        ('platform: "tensorrt_plan" backend: "onnxruntime"', "platform", "tensorrt_plan"),
        ("", "backend", ""),
    ],
)
def test_backend_fault(text: str, field: str, value: str) -> None:
    assert faults(text, backend="") == [(field, value)]


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("data_type: TYPE_FP32 dims: 1", "0.name", ""),
        ('name: "x" dims: 1', "x.data_type", ""),
        ('name: "x" data_type: TYPE_INVALID dims: 1', "x.data_type", ""),
        ('name: "x" data_type: 32 dims: 1', "x.data_type", "32"),
        ('name: "x" data_type: TYPE_FP32', "x.dims", ""),
        ('name: "x" data_type: TYPE_FP32 dims: [ 4, 0 ]', "x.dims", "[4, 0]"),
        ('name: "x" data_type: TYPE_FP32 dims: -2', "x.dims", "[-2]"),
        (f"{INPUT} reshape {{ shape: [] }}", "x.reshape", "[]"),
        (f"{INPUT} reshape {{ shape: [ 2, 3 ] }}", "x.reshape", "[2, 3]"),
        (f"{INPUT} reshape {{ shape: [ -1 ] }}", "x.reshape", "[-1]"),
        (f"{INPUT} reshape {{ shape: [ 4, 0 ] }}", "x.reshape", "[4, 0]"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4 ] }', "x.reshape", "[4]"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4, -1, 2 ] }', "x.reshape", "[4, -1, 2]"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }', "x.reshape", "[4, -1]"),
        ('name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1 ] }', "x.reshape", "[-1]"),
    ],
)
def test_tensor_fault(kind: str, text: str, field: str, value: str) -> None:
    assert faults(f"{kind} {{ {text} }}") == [(f"{kind}.{field}", value)]


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("[ 1 ]", "[]"), ("[ 4 ]", "[ 2, 2 ]"), ("[ -1 ]", "[ -1, 1 ]"), ("[ 6, -1, 4 ]", "[ 2, 3, -1, 2, 2 ]")],
)
def test_reshape_of_as_many_elements_is_fine(dims: str, shape: str) -> None:
    tensor = f'{{ name: "x" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {shape} }} }}'
    assert faults(f"max_batch_size: 2 input {tensor} output {tensor}") == []


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (f"input {{ {INPUT} }} input {{ {INPUT} }}", "input.x.name", "x"),
        (f"input {{ {INPUT} format: FORMAT_NHWC }}", "input.x.format", "FORMAT_NHWC"),
        (f"input {{ {INPUT} format: 9 }}", "input.x.format", "9"),
        (f'output {{ {INPUT} label_filename: "../labels" }}', "output.x.label_filename", "../labels"),
    ],
)
def test_fault_of_inputs_or_outputs_alone(text: str, field: str, value: str) -> None:
    assert faults(text) == [(field, value)]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("preferred_batch_size: [ 2, 9 ]", "dynamic_batching.preferred_batch_size", "9"),
        ("preferred_batch_size: 0", "dynamic_batching.preferred_batch_size", "0"),
        ("preferred_batch_size: -4", "dynamic_batching.preferred_batch_size", "-4"),
        ("priority_levels: 2", LEVEL, "0"),
        ("priority_levels: 2 default_priority_level: 3", LEVEL, "3"),
        ("priority_levels: 18446744073709551614 default_priority_level: 18446744073709551615", LEVEL, str(2**64 - 1)),
        ("priority_queue_policy { key: 1 value {} }", POLICY, "1"),
        ("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }", POLICY, "3"),
        ("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value {} }", POLICY, "0"),
        ("preserve_ordering: true priority_levels: 2 default_priority_level: 1", ORDERED, "true"),
        (f"preserve_ordering: true default_queue_policy {{ {DELAY} }}", ORDERED, "true"),
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 1 value {{ {DELAY} }} }}",
            ORDERED,
            "true",
        ),
        ("default_queue_policy { timeout_action: 7 }", "dynamic_batching.default_queue_policy.timeout_action", "7"),
    ],
)
def test_batching_fault(text: str, field: str, value: str) -> None:
    assert faults(f"{BATCHED} {{ {text} }}") == [(field, value)]


@pytest.mark.parametrize(
    "text",
    [
        "preserve_ordering: true priority_levels: 1 default_priority_level: 1",
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
        "preserve_ordering: true default_queue_policy { default_timeout_microseconds: 5 }",
        f"default_queue_policy {{ {DELAY} }}",
        "priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 2 value {} }",
        "preferred_batch_size: [ 8, 1 ]",
        "max_queue_delay_microseconds: 18446744073709551615",
    ],
)
def test_batching_at_the_edge_of_a_fault_is_fine(text: str) -> None:
    assert faults(f"{BATCHED} {{ {text} }}") == []


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("count: -2", "instance_group.count", "-2"),
        ("kind: KIND_CPU gpus: 0", "instance_group.gpus", "[0]"),
        ("kind: KIND_MODEL gpus: [ 0, 1 ]", "instance_group.gpus", "[0, 1]"),
        ("kind: KIND_GPU gpus: [ 0, -1 ]", "instance_group.gpus", "[0, -1]"),
        ("gpus: -1", "instance_group.gpus", "[-1]"),
        ("kind: 7", "instance_group.kind", "7"),
        ("passive: true", "instance_group.passive", "true"),
    ],
)
def test_instance_group_fault(text: str, field: str, value: str) -> None:
    assert faults(f"instance_group {{ {text} }}") == [(field, value)]


@pytest.mark.parametrize("filename", ["net.txt", "a/net.py", "1.py", "a.b.py"])
def test_python_model_file_is_a_module(filename: str) -> None:
    text = f'default_model_filename: "{filename}"'
    assert faults(text, backend="python") == [("default_model_filename", filename)]
    assert faults('default_model_filename: "net.py"', backend="python") == []


def test_tensorrt_has_no_instances_on_the_cpu() -> None:
    text = "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU } ]"
    assert faults(text, backend="tensorrt") == [("instance_group.kind", "KIND_CPU")]
    assert faults(text, backend="pytorch") == []


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("sequence_batching {}", "sequence_batching", ""),
        (
            'sequence_batching { control_input { name: "START" control { kind: CONTROL_SEQUENCE_START } } }',
            "sequence_batching",
            'control_input { name: "START" control { } }',
        ),
        (
            'sequence_batching { control_input { name: "A" } control_input { name: "A" } }',
            "sequence_batching",
            'control_input { name: "A" } control_input { name: "A" }',
        ),
        ("ensemble_scheduling {}", "ensemble_scheduling", ""),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled", "True"),
        ('batch_input { target_name: "n" }', "batch_input", '[target_name: "n" ]'),
        ('batch_output { target_name: "n" }', "batch_output", '[target_name: "n" ]'),
        (f"input {{ {INPUT} allow_ragged_batch: true }}", "input.allow_ragged_batch", "True"),
        (f"input {{ {INPUT} is_shape_tensor: true }}", "input.is_shape_tensor", "True"),
        (f"output {{ {INPUT} is_shape_tensor: true }}", "output.is_shape_tensor", "True"),
        (f"output {{ {INPUT} is_non_linear_format_io: true }}", "output.is_non_linear_format_io", "True"),
        ('model_operations { op_library_filename: "a.so" }', "model_operations", 'op_library_filename: "a.so"'),
        (
            'model_repository_agents { agents { name: "checksum" } }',
            "model_repository_agents",
            'agents { name: "checksum" }',
        ),
    ],
)
def test_what_would_give_wrong_answers_is_refused(text: str, field: str, value: str) -> None:
    assert faults(text) == [(field, value)]


def test_a_refused_field_is_told_once() -> None:
    other = INPUT.replace('"x"', '"w"')
    text = f"input {{ {INPUT} allow_ragged_batch: true }} input {{ {other} allow_ragged_batch: true }}"
    assert len(faults(text)) == 1


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 zero_data: true } }", "0.name", ""),
        ("name: 'a' batch_size: 9 %s", "a.batch_size", "9"),
        ("name: 'a' inputs { key: 'x' value { dims: 4 zero_data: true } }", "a.inputs.x.data_type", ""),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: -1 zero_data: true } }",
            "a.inputs.x.dims",
            "[-1]",
        ),
        ("name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 } }", "a.inputs.x", ""),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 input_data_file: '' } }",
            "a.inputs.x",
            "",
        ),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 input_data_file: '../raw' } }",
            "a.inputs.x.input_data_file",
            "../raw",
        ),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_INT8 dims: 4 zero_data: true } }",
            "a.inputs.x.data_type",
            "INT8",
        ),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 5 zero_data: true } }",
            "a.inputs.x.dims",
            "[5]",
        ),
        (
            "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true } }",
            "a.inputs.x.dims",
            "[1, 4]",
        ),
        ("name: 'a' %s inputs { key: 'q' value { data_type: TYPE_FP32 dims: 4 zero_data: true } }", "a.inputs", "q"),
        ("name: 'a'", "a.inputs", "[]"),
    ],
)
def test_warm_up_fault(text: str, field: str, value: str) -> None:
    whole = "inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 zero_data: true } }"
    sample = text.replace("%s", whole)
    model = f"max_batch_size: 8 input {{ {INPUT} }} output {{ {INPUT} }}"
    assert faults(f"{model} model_warmup {{ {sample} }}") == [(f"model_warmup.{field}", value)]


def test_warm_up_of_a_model_without_a_batch_dimension_has_one_row() -> None:
    sample = "name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 zero_data: true } }"
    assert faults(f"input {{ {INPUT} }} model_warmup {{ {sample} batch_size: 1 }}") == []
    assert faults(f"input {{ {INPUT} }} model_warmup {{ {sample} batch_size: 2 }}") == [
        ("model_warmup.a.batch_size", "2")
    ]
    assert ("model_warmup.a.name", "a") in faults(f"model_warmup {{ {sample} }} model_warmup {{ {sample} }}")


def test_accelerators_that_onnx_runtime_does_not_know_are_faults() -> None:
    def accelerated(text: str) -> list[tuple[str, str]]:
        return faults(f"optimization {{ execution_accelerators {{ {text} }} }}")

    gpu, cpu = "gpu_execution_accelerator", "cpu_execution_accelerator"
    assert accelerated(f'{gpu} {{ name: "tensorrt" }} {gpu} {{ name: "cuda" }} {cpu} {{ name: "openvino" }}') == []
    assert accelerated(f'{gpu} {{ name: "openvino" }}') == [(GPU_ACCELERATOR, "openvino")]
    assert accelerated(f'{cpu} {{ name: "tensorrt" }}') == [(CPU_ACCELERATOR, "tensorrt")]
    assert accelerated(f'{gpu} {{ name: "cuda" }} {gpu} {{ name: "cuda" }}') == [(GPU_ACCELERATOR, "cuda")]


def test_all_faults_of_all_kinds_come_in_one_reading() -> None:
    text = f"""
        name: "other" max_batch_size: -1
        input {{ {INPUT} reshape {{ shape: 5 }} }}
        dynamic_batching {{ priority_levels: 1 preferred_batch_size: 3 }}
        instance_group {{ count: -1 gpus: -1 }}
        batch_output {{}}
        parameters {{ key: "execution_timeout_ms" value {{ string_value: "soon" }} }}
    """
    assert [field for field, _ in faults(text)] == [
        "name",
        "max_batch_size",
        "input.x.reshape",
        LEVEL,
        "instance_group.count",
        "instance_group.gpus",
        "parameters.execution_timeout_ms",
        "batch_output",
        "dynamic_batching.preferred_batch_size",
    ]
