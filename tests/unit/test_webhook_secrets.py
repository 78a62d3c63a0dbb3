"""Signatures of webhooks, judged by the standard's own library."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from gateway.settings_webhooks import WebhookSettings
from gateway.webhook_secrets import WebhookSecrets, parse_secrets, parse_tenant_secrets


def secret(fill: int, size_bytes: int = 32) -> str:
    return "whsec_" + base64.b64encode(bytes([fill]) * size_bytes).decode()


OLD, NEW, TENANTS = secret(1), secret(2), secret(3)


@given(st.text(), st.from_regex(r"[A-Za-z0-9_-]{1,120}", fullmatch=True))
def test_the_standards_library_verifies_what_is_signed(text: str, webhook_id: str) -> None:
    body = text.encode(errors="replace")
    secrets = WebhookSecrets(parse_secrets(OLD), {})
    headers = secrets.headers("", webhook_id, body, now_s=int(time.time()))
    Webhook(OLD).verify(body, headers, json_parse=False)
    for changed in (body + b" ", b"x" + body):
        with pytest.raises(WebhookVerificationError):
            Webhook(OLD).verify(changed, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(body, headers | {"webhook-id": webhook_id + "x"}, json_parse=False)


def test_while_secrets_change_either_verifies() -> None:
    headers = WebhookSecrets(parse_secrets(f"{NEW} {OLD}"), {}).headers("", "id", b"{}", now_s=int(time.time()))
    assert len(headers["webhook-signature"].split(" ")) == 2
    for each in (OLD, NEW):
        Webhook(each).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(TENANTS).verify(b"{}", headers)


def test_a_tenant_with_its_own_secret_has_only_that() -> None:
    secrets = WebhookSecrets(parse_secrets(OLD), parse_tenant_secrets(f'{{"acme": "{TENANTS}"}}'))
    now_s = int(time.time())
    Webhook(TENANTS).verify(b"{}", secrets.headers("acme", "id", b"{}", now_s=now_s))
    Webhook(OLD).verify(b"{}", secrets.headers("other", "id", b"{}", now_s=now_s))
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(b"{}", secrets.headers("acme", "id", b"{}", now_s=now_s))


def test_a_tenant_may_be_the_only_one_with_webhooks() -> None:
    secrets = WebhookSecrets((), parse_tenant_secrets(f'{{"acme": "{TENANTS}"}}'))
    assert secrets.enabled("acme")
    assert not secrets.enabled("other")
    assert parse_tenant_secrets(" ") == {}


@pytest.mark.parametrize(
    "text",
    [
        "s3cr3t-s3cr3t-s3cr3t-s3cr3t-s3cr3t",
        secret(1, 23),
        secret(1, 65),
        "whsec_",
        "whsec_s3cr3t!s3cr3t",
        OLD + "s3cr3t",
    ],
)
def test_a_secret_that_is_refused_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="a secret") as refused:
        parse_secrets(text)
    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


@pytest.mark.parametrize("text", ["{", "[]", '{"acme": 5}', '{"acme": ""}', '{"acme": "s3cr3t"}', "s3cr3t"])
def test_tenants_secrets_that_are_refused_are_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        parse_tenant_secrets(text)
    assert "s3cr3t" not in str(refused.value)


def test_settings_show_no_secret() -> None:
    settings = WebhookSettings.model_validate(
        {"webhook_secrets": OLD, "webhook_tenant_secrets": f'{{"acme": "{TENANTS}"}}'}
    )
    shown = repr(settings) + str(settings.model_dump())
    assert OLD not in shown
    assert TENANTS not in shown


@pytest.mark.parametrize(
    "faulty",
    [
        {"webhook_secrets": "whsec_short"},
        {"webhook_tenant_secrets": "x"},
        {"webhook_allow_networks": "10.0.0.1/8"},
        {"webhook_retry_s": "5 later"},
        {"webhook_retry_s": "-1"},
        {"webhook_timeout_s": 0},
    ],
)
def test_settings_that_cannot_be_used_are_refused(faulty: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(faulty))):
        WebhookSettings.model_validate(faulty)
