"""Job ids: what is encoded comes back, and nothing else does."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.job_id import Job, decode_job_id, encode_job_id, signing_key
from schemas.errors import ErrorCode, InferenceError

KEY = signing_key("a secret of the installation")

jobs = st.builds(
    Job,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", fullmatch=True),
    epoch=st.integers(0, 2**32 - 1),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    created_ms=st.integers(0, 2**63 - 1),
    kept=st.booleans(),
)


def refused(text: str, *, key: bytes = KEY, tenant: str = "") -> bool:
    try:
        decode_job_id(text, key=key, tenant=tenant)
    except InferenceError as error:
        return error.code is ErrorCode.JOB_NOT_FOUND
    return False


@given(jobs)
def test_an_id_gives_its_job_back_and_needs_no_escaping_in_a_url(job: Job) -> None:
    text = encode_job_id(job, key=KEY)
    assert decode_job_id(text, key=KEY) == job
    assert text.replace("-", "").replace("_", "").isalnum()
    assert text.isascii()


@given(jobs)
def test_an_id_of_another_installation_is_not_found(job: Job) -> None:
    assert refused(encode_job_id(job, key=signing_key("a secret of another installation")))


@given(jobs, st.data())
def test_an_id_with_any_character_changed_is_not_found(job: Job, data: st.DataObject) -> None:
    text = encode_job_id(job, key=KEY)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_+/=é ").filter(lambda char: char != text[at]))
    assert refused(text[:at] + other + text[at + 1 :])


@given(st.one_of(st.text(max_size=500), st.binary(max_size=80).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_garbage_is_not_found_and_never_another_exception(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize("text", ["", "A", "AQ", "AQ==", "A" * 100_000])
def test_text_of_odd_lengths_is_not_found(text: str) -> None:
    assert refused(text)


def test_a_secret_of_any_length_makes_a_key() -> None:
    assert len(signing_key("x" * 1000)) == 32
    assert signing_key("a") != signing_key("b")


tenants = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(jobs, tenants, tenants)
def test_an_id_is_its_tenants_and_nobody_elses(job: Job, tenant: str, other: str) -> None:
    text = encode_job_id(job, key=KEY, tenant=tenant)
    assert decode_job_id(text, key=KEY, tenant=tenant) == job
    assert refused(text)
    if other != tenant:
        assert refused(text, tenant=other)
    assert refused(encode_job_id(job, key=KEY), tenant=tenant)


def test_no_tenant_can_be_made_to_look_like_another_with_other_fields() -> None:
    """What is signed begins with the tenant's length: no part of a name can move from one to the other."""
    job = Job("m", 1, 2, 3, 4)
    longer = Job("am", 1, 2, 3, 4)
    assert encode_job_id(job, key=KEY, tenant="a")[:15] != encode_job_id(longer, key=KEY)[:15]
    assert refused(encode_job_id(job, key=KEY, tenant="ab"), tenant="a")
