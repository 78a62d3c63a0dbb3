"""WebTokens: callers from JSON web tokens, given the keys that sign them. Pure: the clock is the library's only.

Knows no HTTP and not where keys come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from jwt.types import Options

from gateway.api_keys import check_tenant
from gateway.caller import Caller
from gateway.token_rules import ALGORITHMS, TokenRules, VerifiedToken
from schemas.errors import ErrorCode, InferenceError

_REQUIRED: Options = {"require": ["exp", "iss", "aud"], "verify_signature": True}
_MAX_TOKEN_BYTES = 16 * 1024


def key_id(token: bytes) -> str:
    """Which key signed the token, by what it says itself; empty where it does not. Raises InferenceError."""
    if len(token) > _MAX_TOKEN_BYTES:
        raise _refused(f"the token has more than {_MAX_TOKEN_BYTES} bytes")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError as cause:
        raise _refused("it is neither an API key nor a JSON web token") from cause
    kid = header.get("kid", "")
    return kid if isinstance(kid, str) else ""


def verify(token: bytes, key: jwt.PyJWK, rules: TokenRules) -> VerifiedToken:
    """The caller of a token signed with `key`. Raises InferenceError(UNAUTHENTICATED) saying what is wrong."""
    algorithms = _algorithms(key, rules.algorithms)
    if not algorithms:
        raise _refused("the key that signed the token is of a kind that is not allowed")
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=algorithms,
            issuer=rules.issuer,
            audience=rules.audience,
            leeway=rules.leeway_s,
            options=_REQUIRED,
        )
    except (jwt.PyJWTError, TypeError, ValueError) as cause:
        raise _refused(f"the token does not hold: {cause}") from cause
    try:
        expires_s = float(claims["exp"]) + rules.leeway_s
    except (TypeError, ValueError, OverflowError) as cause:
        raise _refused("the token's exp is no time") from cause
    return VerifiedToken(Caller(_tenant(claims, rules), _name(claims), _scopes(claims, rules)), expires_s)


def _algorithms(key: jwt.PyJWK, allowed: frozenset[str]) -> Sequence[str]:
    data: Mapping[str, Any] = key._jwk_data  # the library has no other way to tell the type that was written
    family = ALGORITHMS.get(str(data.get("kty")), ())
    named = data.get("alg")
    return [name for name in family if name in allowed and named in (None, name)]


def _tenant(claims: Mapping[str, Any], rules: TokenRules) -> str:
    if not rules.tenant_claim:
        return ""
    tenant = _claim(claims, rules.tenant_claim)
    if not isinstance(tenant, str) or not tenant:
        raise _refused(f"the token's claim {rules.tenant_claim!r} names no tenant")
    try:
        return check_tenant(tenant)
    except InferenceError as cause:
        raise _refused("the tenant that the token names is not usable") from cause


def _scopes(claims: Mapping[str, Any], rules: TokenRules) -> tuple[str, ...]:
    scopes = _claim(claims, rules.scope_claim)
    if isinstance(scopes, str):
        scopes = scopes.split()
    if not isinstance(scopes, list):
        return ()
    # Tokens carry scopes of other services too; what is not operation:model could never match as one means it.
    return tuple(scope for scope in scopes if isinstance(scope, str) and ":" in scope)


def _name(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    return subject[:200] if isinstance(subject, str) and subject.isprintable() and subject else "token"


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _refused(what: str) -> InferenceError:
    return InferenceError(
        ErrorCode.UNAUTHENTICATED,
        what,
        field="authorization",
        remedy="send a token of the right issuer and audience that has not expired, or an API key",
    )
