import zipfile
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.backends.torch_signature import (
    Argument,
    Signature,
    bind_inputs,
    bind_outputs,
    check_agrees,
    compiled_for,
    format_of,
    least_rows,
    pick,
    result_specs,
)
from workers.model_config import ModelConfig, ModelConfigError

_XY = Signature((Argument("x"), Argument("y")), result_specs((), 2))
_DICT = Signature((Argument("x"),), result_specs(("a", "b"), 2), results_have_names=True)


def config(inputs: str, outputs: str = "", *, max_batch_size: int = 8, datatype: str = "FP32") -> ModelConfig:
    return ModelConfig(
        "m",
        "pytorch",
        max_batch_size=max_batch_size,
        inputs=tuple(TensorSpec(name, datatype, (2,)) for name in inputs.split()),
        outputs=tuple(TensorSpec(name, datatype, (2,)) for name in outputs.split()),
    )


def archive(path: Path, *names: str, content: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"any name/{name}", content)
    return path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("data.pkl", "constants.pkl", "code/m.py"), "torchscript"),
        (("models/model.json", "archive_format"), "exported"),
        (("serialized_exported_program.json",), "exported"),
        (("data/aotinductor/model/a.so", "archive_format"), "compiled"),
    ],
)
def test_the_kind_of_file_is_told_by_what_is_in_the_archive(
    names: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    assert format_of(archive(tmp_path / "model.pt2", *names)) == expected


def test_pickled_weights_and_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for file in (archive(tmp_path / "model.pt", "data.pkl", "version"), tmp_path / "text"):
        with pytest.raises(InferenceError) as caught:
            format_of(file)
        assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
        assert "torch.export.save" in caught.value.remedy


def test_a_compiled_package_says_its_device(tmp_path: Path) -> None:
    name = "data/aotinductor/model/a.wrapper_metadata.json"
    assert compiled_for(archive(tmp_path / "a", name, content='{"AOTI_DEVICE_KEY": "cuda"}')) == "cuda"
    with pytest.raises(InferenceError, match="for which device"):
        compiled_for(archive(tmp_path / "b", "data/aotinductor/model/a.so"))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("x y", [0, 1]),
        ("y x", [1, 0]),
        ("INPUT__1 INPUT__0", [1, 0]),
        ("a__0 b__1", [0, 1]),
        ("audio rate", [0, 1]),
    ],
)
def test_inputs_go_by_argument_name_by_index_or_by_order(inputs: str, expected: list[int]) -> None:
    assert list(bind_inputs(config(inputs), _XY).values()) == expected


@pytest.mark.parametrize("inputs", ["x z", "a__0 b__0", "a__0 b__2", "a b c"])
def test_inputs_that_cannot_be_told_are_refused(inputs: str) -> None:
    with pytest.raises(ModelConfigError, match="x, y") as caught:
        bind_inputs(config(inputs), _XY)
    assert caught.value.field == "input.name"


def test_a_number_for_the_whole_batch_needs_a_model_without_batch_dimension() -> None:
    signature = Signature((Argument("x"), Argument("rate", scalar="int")))
    assert bind_inputs(config("x rate", max_batch_size=0), signature) == {"x": 0, "rate": 1}
    with pytest.raises(ModelConfigError, match="rate"):
        bind_inputs(config("x rate"), signature)


def test_outputs_go_by_key_by_index_or_by_order() -> None:
    assert bind_outputs(config("x", "b a"), _DICT) == {"b": "b", "a": "a"}
    assert bind_outputs(config("x", "OUTPUT__1 OUTPUT__0"), _XY) == {"OUTPUT__1": 1, "OUTPUT__0": 0}
    assert bind_outputs(config("x", "first"), _XY) == {"first": 0}
    assert bind_outputs(config("x", "p q r"), Signature(())) == {"p": 0, "q": 1, "r": 2}  # how many is not known


@pytest.mark.parametrize(("outputs", "signature"), [("a c", _DICT), ("p q r", _XY), ("OUTPUT__2", _XY)])
def test_outputs_that_the_file_does_not_have_are_refused(outputs: str, signature: Signature) -> None:
    with pytest.raises(ModelConfigError):
        bind_outputs(config("x", outputs), signature)


def test_what_the_file_tells_must_agree_and_what_it_does_not_tell_is_taken() -> None:
    known = Signature((Argument("x", datatype="FP32", shape=(-1, 2)),), (TensorSpec("OUTPUT__0", "FP32", (-1, 3)),))
    fits = ModelConfig(
        "m",
        "pytorch",
        max_batch_size=8,
        inputs=(TensorSpec("in", "FP32", (2,)),),
        outputs=(TensorSpec("out", "FP32", (3,)),),
    )
    check_agrees(fits, known, {"in": 0}, {"out": 0})
    check_agrees(config("in", "out", datatype="INT8"), Signature((Argument("x"),)), {"in": 0}, {"out": 0})
    wide = msgspec.structs.replace(fits, outputs=(TensorSpec("out", "FP32", (4,)),))
    for other in (config("in", "out", datatype="INT8"), wide):
        with pytest.raises(ModelConfigError):
            check_agrees(other, known, {"in": 0}, {"out": 0})


def test_an_argument_without_input_is_refused_unless_it_has_a_default() -> None:
    with pytest.raises(ModelConfigError, match="'y'"):
        check_agrees(config("x"), _XY, {"x": 0}, {})
    optional = Signature((Argument("x"), Argument("y", is_optional=True)))
    check_agrees(config("x"), optional, {"x": 0}, {})


def test_a_number_takes_any_of_its_datatypes_and_no_other() -> None:
    signature = Signature((Argument("k", scalar="int"),))
    check_agrees(config("k", datatype="INT8", max_batch_size=0), signature, {"k": 0}, {})
    with pytest.raises(ModelConfigError, match="INT64"):
        check_agrees(config("k", datatype="FP32", max_batch_size=0), signature, {"k": 0}, {})


def test_the_description_has_what_is_known() -> None:
    signature = Signature((Argument("x", is_optional=True), Argument("k", scalar="float")), result_specs((), 1))
    description = signature.description()
    assert description.inputs == (TensorSpec("x", "", (), True), TensorSpec("k", "FP64", ()))
    assert description.outputs == (TensorSpec("OUTPUT__0", "", ()),)
    assert not description.is_batchable


def test_results_are_picked_from_a_tensor_a_sequence_a_dict_or_a_named_tuple() -> None:
    pair = namedtuple("pair", "a b")
    assert pick("m", "t", {"a": 0}, ("a",)) == ["t"]
    assert pick("m", ("t", "u"), {"a": 0, "b": 1}, ("b", "a")) == ["u", "t"]
    assert pick("m", ["t", "u"], {"a": 1}, ("a",)) == ["u"]
    assert pick("m", {"a": "t", "b": "u"}, {"a": 0, "b": 1}, ("b",)) == ["u"]
    assert pick("m", pair(a="t", b="u"), {"b": 0}, ("b",)) == ["u"]
    assert pick("m", pair(a="t", b="u"), {"p": 0, "q": 1}, ("q",)) == ["u"]


@pytest.mark.parametrize(
    ("result", "has"), [(("t",), "1 of them"), ({"x": "t"}, "but x"), ((None, None), "2 of them"), (None, "1 of them")]
)
def test_a_result_that_is_not_there_is_said_with_what_there_is(result: object, has: str) -> None:
    with pytest.raises(InferenceError, match=has) as caught:
        pick("m", result, {"a": 0, "b": 1}, ("b",))
    assert caught.value.code is ErrorCode.MODEL_FAILED


def test_too_few_rows_are_told_apart_from_other_sizes() -> None:
    assert least_rows("failed: input_handles[1]: dim value is too small at 0, expected it to be >= 2, but got: 1") == 2
    assert least_rows("input_handles[0]: dim value is too small at 1, expected it to be >= 2, but got: 1") == 0
