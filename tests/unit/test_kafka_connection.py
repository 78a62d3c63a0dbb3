"""KafkaConnection: what fits together, what both sides' settings call it, and that secrets are not in its text."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import gateway.settings_kafka
import workers.settings_kafka
from schemas.errors import InferenceError
from schemas.kafka_connection import KafkaConnection


def test_gateway_and_workers_have_the_same_settings() -> None:
    ours, theirs = (side.settings_kafka.KafkaAccessSettings for side in (gateway, workers))
    assert ours.model_json_schema() == theirs.model_json_schema()
    given: dict[str, Any] = {
        "kafka_security_protocol": "SASL_SSL",
        "kafka_username": "u",
        "kafka_password": "secret",
        "kafka_sasl_mechanism": "SCRAM-SHA-256",
    }
    one, two = ours(**given).kafka_connection(), theirs(**given).kafka_connection()
    assert one == two
    assert "secret" not in repr(ours(**given)) + repr(one) + str(one)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"protocol": "TLS"}, "kafka_security_protocol"),
        ({"ca": "ca.pem"}, "kafka_security_protocol"),
        ({"protocol": "SASL_PLAINTEXT", "username": "u", "password": "p", "ca": "x"}, "kafka_security_protocol"),
        ({"protocol": "SSL", "key": "k"}, "kafka_certificate"),
        ({"username": "u", "password": "p"}, "kafka_security_protocol"),
        ({"protocol": "SASL_SSL"}, "kafka_username"),
        ({"protocol": "SASL_SSL", "username": "u"}, "kafka_username"),
        ({"protocol": "SASL_SSL", "username": "u", "password": "p", "mechanism": "GSSAPI"}, "kafka_sasl_mechanism"),
        ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"}, "kafka_token_file"),
    ],
)
def test_what_does_not_fit_together_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InferenceError) as caught:
        KafkaConnection(bootstrap="k:1", **given)
    assert caught.value.field == field
    assert f"TIDEGATE_{field.upper()}" in caught.value.remedy


def test_settings_say_so_without_the_password() -> None:
    with pytest.raises(ValidationError) as caught:
        gateway.settings_kafka.KafkaAccessSettings(kafka_password="a-long-secret")  # type: ignore[arg-type]  # as text
    assert "a-long-secret" not in str(caught.value.errors(include_input=False))


def test_options_are_the_clients() -> None:
    assert KafkaConnection(bootstrap="k:1").options() == {
        "bootstrap_servers": "k:1",
        "security_protocol": "PLAINTEXT",
    }
    plain = KafkaConnection(bootstrap="k:1", protocol="SASL_PLAINTEXT", username="u", password="p").options()
    assert (plain["sasl_mechanism"], plain["sasl_plain_username"], plain["sasl_plain_password"]) == ("PLAIN", "u", "p")
    context = KafkaConnection(bootstrap="k:1", protocol="SSL", check_hostname=False).options()["ssl_context"]
    assert not context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize("setting", ["ca", "certificate"])
def test_a_file_that_is_not_there_is_named(setting: str) -> None:
    connection = KafkaConnection(bootstrap="k:1", protocol="SSL", **{setting: "/none.pem"})  # type: ignore[arg-type]  # text both
    with pytest.raises(InferenceError, match=r"/none\.pem"):
        connection.options()


def test_a_token_is_read_each_time(tmp_path: Any) -> None:
    file = tmp_path / "token"
    connection = KafkaConnection(bootstrap="k:1", protocol="SASL_SSL", mechanism="OAUTHBEARER", token_file=str(file))
    with pytest.raises(InferenceError, match="cannot be read"):
        connection.token()
    for text in ("one\n", "two"):
        file.write_text(text)
        assert connection.token() == text.strip()
    file.write_text("")
    with pytest.raises(InferenceError, match="empty"):
        connection.token()
