"""The table of decisions against the official schema, and against the documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from workers.config_fields import FIELDS, ignored_fields, refused_faults, set_fields

DOCUMENT = Path(__file__).parents[2] / "docs" / "model-config.md"
_ROW = re.compile(r"\| `([a-z_.]+)` \| (implemented|refused|ignored) \| (.+) \|")


def schema_paths(descriptor: Any, prefix: str = "") -> Iterator[str]:
    """The path of every field of the schema that holds values, through lists, maps and messages."""
    for field in descriptor.fields:
        path = prefix + field.name
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            message = message.fields_by_name["value"].message_type
        if message is None or not message.fields:
            yield path
        else:
            yield from schema_paths(message, path + ".")


def deciding(path: str) -> list[str]:
    parts = path.split(".")
    return [prefix for prefix in (".".join(parts[: count + 1]) for count in range(len(parts))) if prefix in FIELDS]


PATHS = sorted(schema_paths(model_config_pb2.ModelConfig.DESCRIPTOR))


def test_the_whole_schema_is_walked() -> None:
    assert len(PATHS) > 120
    assert "sequence_batching.control_input.control.kind" in PATHS
    assert "optimization.cuda.graph_spec.graph_lower_bound.input.dim" in PATHS
    assert "version_policy.all" in PATHS


@pytest.mark.parametrize("path", PATHS)
def test_each_field_of_the_schema_has_one_decision(path: str) -> None:
    assert len(deciding(path)) == 1


@pytest.mark.parametrize("path", FIELDS)
def test_each_decision_is_about_a_field_of_the_schema(path: str) -> None:
    assert any(name == path or name.startswith(path + ".") for name in PATHS)


def test_the_document_lists_what_the_table_says() -> None:
    rows = [match.groups() for line in DOCUMENT.read_text().splitlines() if (match := _ROW.fullmatch(line))]
    assert rows == [(path, field.decision, field.note) for path, field in FIELDS.items()]


def test_the_document_tells_the_settings_of_tidegate() -> None:
    from workers.config_parameters import SETTINGS

    documented = re.findall(r"^\| `([a-z_]+)` \|[^|]+\|[^|]+\|$", DOCUMENT.read_text(), re.MULTILINE)
    assert set(SETTINGS) == set(documented) - set(FIELDS)


def full(descriptor: Any, *, choice: int) -> Any:
    """A message with every field set to something; of fields that exclude each other, the one in place `choice`."""
    message = descriptor._concrete_class()
    for field in descriptor.fields:
        if field.containing_oneof is not None:
            rivals = field.containing_oneof.fields
            if rivals[choice % len(rivals)].name != field.name:
                continue
        _fill(message, field, choice)
    return message


def _fill(message: Any, field: Any, choice: int) -> None:
    target = getattr(message, field.name)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value, key = inner.fields_by_name["value"], inner.fields_by_name["key"]
        place = "1" if key.cpp_type == key.CPPTYPE_STRING else 1
        if value.message_type is None:
            target[place] = "1"
        else:
            target[place].CopyFrom(full(value.message_type, choice=choice))
    elif inner is not None:
        (target.add() if hasattr(target, "add") else target).CopyFrom(full(inner, choice=choice))
        if not hasattr(target, "add"):
            target.SetInParent()
    else:
        scalar = {field.CPPTYPE_STRING: "1", field.CPPTYPE_BOOL: True, field.CPPTYPE_FLOAT: 1.0}
        number = len(field.enum_type.values) - 1 if field.enum_type else 1
        value = scalar.get(field.cpp_type, {field.CPPTYPE_DOUBLE: 1.0}.get(field.cpp_type, number))
        if hasattr(target, "append"):
            target.append(value)
        else:
            setattr(message, field.name, value)


FULL = [full(model_config_pb2.ModelConfig.DESCRIPTOR, choice=choice) for choice in range(3)]


def test_a_message_with_every_field_set_reaches_every_decision() -> None:
    reached = {path for message in FULL for path, _ in set_fields(message)}
    assert reached == set(FIELDS)


@pytest.mark.parametrize("message", FULL)
def test_what_is_refused_or_ignored_is_told_and_nothing_else(message: Any) -> None:
    given = {path for path, _ in set_fields(message)}
    by_decision = {
        decision: {path for path in given if FIELDS[path].decision == decision} for decision in ("refused", "ignored")
    }
    assert {fault.field for fault in refused_faults(message)} == by_decision["refused"]
    also = {"instance_group.kind: KIND_MODEL"}
    assert set(ignored_fields(message, backend="onnxruntime")) == by_decision["ignored"] | also


def test_a_field_that_the_table_does_not_know_is_told_to_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FIELDS, "metric_tags")
    monkeypatch.delitem(FIELDS, "input.format")
    text = 'metric_tags { key: "a" value: "b" } input { format: FORMAT_NCHW }'
    message = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert ignored_fields(message, backend="onnxruntime") == ["input.format", "metric_tags"]
