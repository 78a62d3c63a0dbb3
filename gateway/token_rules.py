"""TokenRules: what a JSON web token must say, and what one that holds says. Pure; imports no library of tokens.

Most gateways take none, and that library is some 10 MB of memory.
"""

from __future__ import annotations

import msgspec

from gateway.caller import Caller

# Families by the key's type. No HS*: its key would have to be secret, and a key set is public. Never none.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}


class TokenRules(msgspec.Struct, frozen=True):
    """What a token must say. An empty `tenant_claim`: tokens have no tenants. Claims: a name, or a path with dots."""

    issuer: str
    audience: str
    algorithms: frozenset[str]
    tenant_claim: str
    scope_claim: str
    leeway_s: float


class VerifiedToken(msgspec.Struct, frozen=True):
    """Who sent it, and until when the token holds, in Unix seconds."""

    caller: Caller
    expires_s: float
