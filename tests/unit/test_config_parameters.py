"""Padding and the other settings of tidegate among a configuration's parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.model import TensorSpec
from workers.config_parameters import padding, parameter_faults
from workers.config_pbtxt import examine_config, read_config
from workers.model_config import ModelConfigError, ModelDescription, Padding

TENSORS = """max_batch_size: 8
input [
  { name: "ids" data_type: TYPE_INT64 dims: -1 },
  { name: "types" data_type: TYPE_UINT8 dims: [ 2, -1 ] },
  { name: "wave" data_type: TYPE_FP32 dims: -1 },
  { name: "mask" data_type: TYPE_INT64 dims: -1 },
  { name: "length" data_type: TYPE_INT32 dims: 1 },
  { name: "text" data_type: TYPE_STRING dims: -1 },
  { name: "fixed" data_type: TYPE_FP32 dims: 4 }
]
output [ { name: "tags" data_type: TYPE_FP32 dims: [ -1, 9 ] }, { name: "score" data_type: TYPE_FP32 dims: 1 } ]
"""
GIVEN = {"padding_buckets": "16,32,64", "padding_inputs": "ids, types"}


def text(parameters: dict[str, str], tensors: str = TENSORS) -> str:
    settings = "\n".join(
        f"parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}" for key, value in parameters.items()
    )
    return f'backend: "onnxruntime" {tensors} {settings}'


def faults(parameters: dict[str, str], tensors: str = TENSORS) -> list[tuple[str, str]]:
    found = examine_config(text(parameters, tensors), model="m").faults
    assert all(fault.remedy for fault in found)
    return [(fault.field.removeprefix("parameters."), fault.value) for fault in found]


def test_padding_is_read_and_what_it_fills_in_becomes_optional() -> None:
    parameters = {
        **GIVEN,
        "padding_value": "1",
        "padding_mask_input": "mask",
        "padding_length_input": "length",
        "padding_outputs": "tags",
    }
    config = read_config(text(parameters), model="m")
    assert config.padding == Padding((16, 32, 64), ("ids", "types"), 1.0, "mask", "length", ("tags",))
    assert {spec.name for spec in config.inputs if spec.optional} == {"mask", "length"}
    assert read_config(text(GIVEN), model="m").padding == Padding((16, 32, 64), ("ids", "types"))


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"padding_buckets": "16,16"}, "padding_buckets", "16,16"),
        ({"padding_buckets": "32,16"}, "padding_buckets", "32,16"),
        ({"padding_buckets": "0,16"}, "padding_buckets", "0,16"),
        ({"padding_buckets": "-1"}, "padding_buckets", "-1"),
        ({"padding_buckets": "16,,32"}, "padding_buckets", "16,,32"),
        ({"padding_buckets": "1.5"}, "padding_buckets", "1.5"),
        ({"padding_buckets": " "}, "padding_buckets", " "),
        ({"padding_buckets": "9" * 30}, "padding_buckets", "9" * 30),
        ({"padding_inputs": ""}, "padding_inputs", ""),
        ({"padding_inputs": "ids,"}, "padding_inputs", "ids,"),
        ({"padding_inputs": "ids,ids"}, "padding_inputs", "ids,ids"),
        ({"padding_inputs": "nothing"}, "padding_inputs", "nothing"),
        ({"padding_inputs": "fixed"}, "padding_inputs", "fixed"),
        ({"padding_inputs": "text"}, "padding_inputs", "text"),
        ({"padding_value": "zero"}, "padding_value", "zero"),
        ({"padding_value": "inf"}, "padding_value", "inf"),
        ({"padding_inputs": "ids", "padding_value": "0.5"}, "padding_value", "0.5"),
        ({"padding_inputs": "types", "padding_value": "-1"}, "padding_value", "-1"),
        ({"padding_inputs": "types", "padding_value": "256"}, "padding_value", "256"),
        ({"padding_inputs": "ids", "padding_value": str(2**63)}, "padding_value", "9.22337e+18"),
        ({"padding_mask_input": "nothing"}, "padding_mask_input", "nothing"),
        ({"padding_mask_input": "fixed"}, "padding_mask_input", "fixed"),
        ({"padding_mask_input": "ids"}, "padding_mask_input", "ids"),
        ({"padding_length_input": "nothing"}, "padding_length_input", "nothing"),
        ({"padding_length_input": "wave"}, "padding_length_input", "wave"),
        ({"padding_outputs": "ids"}, "padding_outputs", "ids"),
        ({"padding_outputs": "score"}, "padding_outputs", "score"),
        ({"padding_outputs": "tags,tags"}, "padding_outputs", "tags,tags"),
        ({"execution_timeout_ms": "soon"}, "execution_timeout_ms", "soon"),
        ({"execution_timeout_ms": "-1"}, "execution_timeout_ms", "-1"),
        ({"execution_timeout_ms": ""}, "execution_timeout_ms", ""),
        ({"intra_op_thread_count": "0"}, "intra_op_thread_count", "0"),
    ],
)
def test_faulty_setting_names_field_and_value(change: dict[str, str], field: str, value: str) -> None:
    assert faults(GIVEN | change) == [(field, value)]


def test_values_at_the_edge_of_a_fault_are_fine() -> None:
    for change in (
        {"padding_inputs": "types", "padding_value": "255"},
        {"padding_inputs": "wave", "padding_value": "-0.5"},
        {"padding_inputs": "ids", "padding_value": "-1"},
        {"execution_timeout_ms": "0"},
        {"intra_op_thread_count": "1"},
        {"threads": "anything, of a backend"},
    ):
        assert faults(GIVEN | change) == []


def test_settings_of_padding_without_its_buckets_are_refused() -> None:
    for name in ("padding_inputs", "padding_value", "padding_mask_input", "padding_length_input", "padding_outputs"):
        found = faults({name: "ids"})
        assert ("padding_buckets", "") in found
    assert ("padding_inputs", "") in faults({"padding_buckets": "16"})


def test_padding_of_a_model_that_is_not_batched_is_refused() -> None:
    assert faults(GIVEN, TENSORS.replace("max_batch_size: 8", "")) == [("padding_buckets", "")]


def test_one_input_cannot_be_mask_and_length() -> None:
    tensors = TENSORS.replace("input [", 'input [ { name: "both" data_type: TYPE_INT32 dims: -1 },')
    found = faults(GIVEN | {"padding_mask_input": "both", "padding_length_input": "both"}, tensors)
    assert ("padding_mask_input", "both") in found


def test_padding_is_checked_against_tensors_that_the_model_file_tells() -> None:
    config = read_config(text(GIVEN | {"padding_mask_input": "mask"}, "max_batch_size: 8"), model="m")
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)
    ids, types, mask = (TensorSpec(name, "INT64", (-1, -1)) for name in ("ids", "types", "mask"))
    completed = config.completed(ModelDescription(inputs=(ids, types, mask), outputs=outputs))
    assert [spec.optional for spec in completed.inputs] == [False, False, True]
    with pytest.raises(ModelConfigError, match="padding_mask_input 'mask'"):
        config.completed(ModelDescription(inputs=(ids, types), outputs=outputs))


@pytest.mark.parametrize("name", ["model:Model", "a.b_c.d1:Model", "é:É"])
def test_python_class_is_named_by_module_and_class(name: str) -> None:
    assert list(parameter_faults({"class": name}, backend="python")) == []


@pytest.mark.parametrize(
    "name", ["Model", "model:", ":Model", "../model:Model", "a/b:C", "a..b:C", "a:B.c", "1a:B", ""]
)
def test_python_class_of_another_form_is_refused(name: str) -> None:
    assert [fault.field for fault in parameter_faults({"class": name}, backend="python")] == ["parameters.class"]
    assert list(parameter_faults({"class": name}, backend="device")) == []


@given(
    st.dictionaries(
        st.sampled_from([*GIVEN, "padding_value", "padding_mask_input", "execution_timeout_ms", "class"]),
        st.text(alphabet="0123456789,.-+ex²_ \tids", max_size=8),
    )
)
def test_any_settings_give_faults_or_padding_with_ascending_buckets(parameters: dict[str, str]) -> None:
    found = list(parameter_faults(parameters, backend="python"))
    read = padding(parameters)
    if read is None:
        assert found or not any(name.startswith("padding") for name in parameters)
    else:
        assert list(read.buckets) == sorted(set(read.buckets))
        assert read.buckets[0] > 0
        assert read.inputs
