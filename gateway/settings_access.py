"""AccessSettings: who may use the gateway, as an operator says it. Knows no key and no token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings

from gateway.access import Access
from gateway.token_rules import ALGORITHMS, TokenRules

_ALGORITHMS = frozenset(name for names in ALGORITHMS.values() for name in names)


class AccessSettings(BaseSettings):
    """Who may use the gateway. Nothing set: everyone may do everything."""

    api_keys_file: Annotated[
        Path | None,
        Field(
            description="JSON file of API keys' hashes, as `python -m gateway make-key` prints them; read again when "
            "it changes. Callers send Authorization: Bearer tgk_... or x-api-key."
        ),
    ] = None
    jwt_jwks: Annotated[
        str,
        Field(description="Key set (JWKS) that signs JSON web tokens: a URL or a file; empty: no tokens."),
    ] = ""
    jwt_issuer: Annotated[str, Field(description="The issuer (iss) that a token must have; needed with jwt_jwks.")] = ""
    jwt_audience: Annotated[
        str, Field(description="The audience (aud) that a token must be for; needed with jwt_jwks.")
    ] = ""
    jwt_algorithms: Annotated[
        list[str],
        Field(
            description="Algorithms that tokens may be signed with, as a JSON list; only such with a public key: "
            "RS*, PS*, ES*, EdDSA."
        ),
    ] = ["RS256", "ES256", "EdDSA"]
    jwt_tenant_claim: Annotated[
        str, Field(description="Claim that names the tenant, dots for nested ones; empty: tokens have no tenants.")
    ] = "tenant"
    jwt_scope_claim: Annotated[
        str,
        Field(description="Claim with the scopes (operation:model), text with spaces or a list; dots for nested ones."),
    ] = "scope"
    jwt_leeway_s: Annotated[
        float, Field(ge=0, le=600, description="Seconds by which the clocks of issuer and gateway may differ.")
    ] = 10.0
    jwt_refresh_s: Annotated[
        float,
        Field(
            ge=0.1, description="Seconds between fetches of the key set, at least; a token with an unknown key asks."
        ),
    ] = 10.0
    open_paths: Annotated[
        list[str],
        Field(description="Paths that need no key, as a JSON list; one that ends in / stands for all below it."),
    ] = ["/v2/health/", "/metrics", "/docs", "/openapi.json", "/errors", "/errors/", "/status", "/status.js"]

    @field_validator("jwt_algorithms")
    @classmethod
    def _public(cls, algorithms: list[str]) -> list[str]:
        if bad := [name for name in algorithms if name not in _ALGORITHMS]:
            raise ValueError(f"{', '.join(bad)} cannot be allowed; use some of {', '.join(sorted(_ALGORITHMS))}")
        return algorithms

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.jwt_jwks and not (self.jwt_issuer and self.jwt_audience and self.jwt_algorithms):
            raise ValueError(
                "jwt_jwks needs jwt_issuer, jwt_audience and jwt_algorithms too: without them any token would do"
            )
        return self

    def access(self) -> Access:
        """The access that these settings describe; not yet started."""
        if not self.jwt_jwks:
            return Access(keys_file=self.api_keys_file)
        from gateway.key_set import KeySet  # here: see gateway/token_rules.py

        rules = TokenRules(
            self.jwt_issuer,
            self.jwt_audience,
            frozenset(self.jwt_algorithms),
            self.jwt_tenant_claim,
            self.jwt_scope_claim,
            self.jwt_leeway_s,
        )
        keys = KeySet(self.jwt_jwks, refresh_s=self.jwt_refresh_s)
        return Access(keys_file=self.api_keys_file, key_set=keys, rules=rules)
