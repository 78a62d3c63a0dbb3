"""Caller: a scope covers its operation and its models, and nothing beside them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.caller import OPERATIONS, Caller

names = st.text("abcxyz0-_.", min_size=1, max_size=6)


@given(st.sampled_from(OPERATIONS), st.sampled_from(OPERATIONS), names, names)
def test_a_scope_covers_its_operation_and_its_models_only(has: str, wants: str, model: str, other: str) -> None:
    exact = Caller(scopes=(f"{has}:{model}",))
    assert exact.may(wants, other) == (has == wants and model == other)
    assert exact.may_some(wants) == (has == wants)
    assert not exact.may(wants) or model == "*"  # one model is not the whole installation
    pattern = Caller(scopes=(f"{has}:{model}*",))
    assert pattern.may(wants, model + other) == (has == wants)
    everything = Caller(scopes=("*:*",))
    assert everything.may(wants, other)
    assert everything.may(wants)
    assert not Caller(scopes=()).may_some(wants)
