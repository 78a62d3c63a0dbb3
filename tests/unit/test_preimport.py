"""A backend's library, imported ahead of its model."""

import threading

import pytest

from workers.backend import preimport
from workers.backends import onnxruntime
from workers.model_config import ModelConfigError


def test_the_library_is_imported_in_another_thread_and_its_absence_is_left_to_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    is_there = threading.Event()

    def library() -> None:
        threads.append(threading.current_thread())
        is_there.set()
        raise ModuleNotFoundError

    monkeypatch.setattr(onnxruntime, "_library", library, raising=False)
    preimport("onnxruntime")
    assert is_there.wait(10)
    threads[0].join()
    assert threads[0] is not threading.current_thread()


def test_a_backend_without_a_library_is_fine_and_an_unknown_one_is_not() -> None:
    preimport("device")
    with pytest.raises(ModelConfigError):
        preimport("none such")
