"""WebhookSecrets: signs webhooks as https://www.standardwebhooks.com wants, with every secret of a tenant. Pure.

A secret is never shown: neither by repr nor in what is raised about it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

import msgspec

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64  # what the standard recommends


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """The keys of secrets that are separated by spaces or commas. Raises ValueError, which shows none of them."""
    return tuple(_key(part) for part in text.replace(",", " ").split())


def parse_tenant_secrets(text: str) -> dict[str, tuple[bytes, ...]]:
    """The keys by tenant, of a JSON object; of nothing, none. Raises ValueError, which shows no secret."""
    if not text.strip():
        return {}
    try:
        by_tenant = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise ValueError("it is no JSON object of secrets by tenant") from None  # the cause may quote what it read
    keys = {tenant: parse_secrets(secrets) for tenant, secrets in by_tenant.items()}
    if empty := [tenant for tenant, secrets in keys.items() if not secrets]:
        raise ValueError(f"tenant {empty[0]!r} has no secret")
    return keys


class WebhookSecrets:
    """The keys of an installation, and of the tenants that have their own."""

    def __init__(self, common: Sequence[bytes], by_tenant: Mapping[str, Sequence[bytes]]) -> None:
        self._common = tuple(common)
        self._by_tenant = dict(by_tenant)

    def enabled(self, tenant: str) -> bool:
        """Whether there is anything to sign this tenant's webhooks with."""
        return bool(self._of(tenant))

    def headers(self, tenant: str, webhook_id: str, body: bytes, *, now_s: int) -> dict[str, str]:
        """The three headers of a webhook; one signature of each secret, so that receivers may hold any of them."""
        signed = b"%b.%d.%b" % (webhook_id.encode(), now_s, body)
        signatures = (hmac.digest(key, signed, hashlib.sha256) for key in self._of(tenant))
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": " ".join(f"v1,{base64.b64encode(each).decode()}" for each in signatures),
        }

    def _of(self, tenant: str) -> tuple[bytes, ...]:
        return tuple(self._by_tenant.get(tenant, self._common))


def _key(secret: str) -> bytes:
    try:
        if not secret.startswith(_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"a secret is not {_PREFIX} and base64") from None  # the cause may quote it
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(f"a secret has {len(key)} bytes, of {_MIN_BYTES} to {_MAX_BYTES}")
    return key
