"""Requests made up by schemathesis from an OpenAPI document, such as it allows and such as it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

_PATIENCE_S = 60.0

Judge = Callable[[str, str, requests.Response | None, str], None]


def send_cases(base_url: str, *, known: Mapping[str, str], cases: int, seed_: int, judge: Judge) -> None:
    """About so many requests in all, shared out to the document's operations.

    `known`: path parameters that exist; half of the requests of an operation that has them are for those.
    `judge(method, path template, answer, request)` is told of each; no answer: None.
    """
    document = schemathesis.openapi.from_url(f"{base_url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations() if isinstance(result, Ok)]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each = max(1, cases // (2 * len(operations) * len(modes)))
    with requests.Session() as session:
        for operation in operations:
            names = {name: value for name, value in known.items() if f"{{{name}}}" in operation.path}
            for mode in modes:
                for given_ in ({}, names):
                    strategy = operation.as_strategy(generation_mode=mode, path_parameters=given_ or None)
                    _send(operation, strategy, each, seed_, session, judge)


def _send(operation: Any, strategy: Any, cases: int, seed_: int, session: requests.Session, judge: Judge) -> None:
    @seed(seed_)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def send_one(case: Any) -> None:
        try:
            answer = case.call(session=session, timeout=_PATIENCE_S)
        except requests.RequestException as error:
            judge(operation.method, operation.path, None, repr(error))
            return
        judge(operation.method, operation.path, answer, f"{answer.request.url} {answer.request.body!r:.300}")

    with contextlib.suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
        send_one()
