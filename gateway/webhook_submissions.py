"""WebhookSubmissions: whether a request may have a webhook, said when it is submitted, not when it is too late."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.webhook_secrets import WebhookSecrets
from gateway.webhook_url import WebhookRules
from schemas.errors import invalid
from schemas.record import WEBHOOK_HEADER

_HEADER = WEBHOOK_HEADER.encode()


class WebhookSubmissions:
    """Accepts webhooks. The same rules hold at each attempt, for plain producers write theirs past this."""

    def __init__(self, *, rules: WebhookRules, secrets: WebhookSecrets) -> None:
        self._rules = rules
        self._secrets = secrets

    def of(self, sent: Mapping[bytes, bytes], *, detached: bool, tenant: str) -> str:
        """The webhook that a request's headers ask for; empty when they ask for none. Raises as `accept` does."""
        text = sent.get(_HEADER)
        return "" if text is None else self.accept(text, detached=detached, tenant=tenant)

    def accept(self, text: bytes, *, detached: bool, tenant: str) -> str:
        """The webhook of a request, as its envelope carries it. Raises InferenceError(INVALID_REQUEST)."""
        if not detached:
            raise invalid(
                "a synchronous request has no webhook: its answer comes with the response",
                field=WEBHOOK_HEADER,
                remedy="submit with the header Prefer: respond-async, without wait, or leave the webhook out",
            )
        if not self._secrets.enabled(tenant):
            raise invalid(
                "this installation has no secret to sign webhooks with, so it sends none",
                field=WEBHOOK_HEADER,
                remedy="ask its operator to set TIDEGATE_WEBHOOK_SECRETS, or ask for the job's state instead",
            )
        url = text.decode("latin-1").strip()
        self._rules.check(url)
        return url
