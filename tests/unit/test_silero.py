"""One real model in its forms: the voice activity detector that PyPI's silero-vad ships as ONNX and TorchScript.

Each hears the same 3 s in chunks of 512 samples, behind the last 64 of the chunk before, and hands its state on.
"""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.model import TensorSpec
from workers.backend import Array, open_backend
from workers.model_config import ModelConfig

pytest.importorskip("torch", reason="PyTorch is not installed")
_DATA = resources.files("silero_vad.data") if pytest.importorskip("silero_vad") else None
_RATE_HZ, _CHUNK, _CONTEXT = 16_000, 512, 64
_TOLERANCE = 1e-5


def speech() -> Array:
    """Something like speech between silences: a voice through moving formants, four syllables a second, and noise."""
    random = np.random.default_rng(7)
    time_s = np.arange(3 * _RATE_HZ) / _RATE_HZ
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * time_s)
    phase = 2 * np.pi * np.cumsum(pitch) / _RATE_HZ
    voice = np.zeros_like(time_s)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        formants = ((700 + 250 * np.sin(5 * time_s), 120.0), (1200 + 500 * np.cos(3 * time_s), 160.0), (2600.0, 220.0))
        gain = sum(np.exp(-(((frequency - center) / (2 * width)) ** 2)) for center, width in formants)
        voice += gain * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * 4 * time_s), 0, None) ** 0.5
    is_spoken = (time_s > 0.6) & (time_s < 2.3)
    signal = 0.2 * voice * syllables * is_spoken + 0.002 * random.standard_normal(time_s.size)
    return signal.astype(np.float32)


def chunks() -> Iterator[tuple[Array, Array]]:
    """Each chunk without and with its context, as [1, samples]."""
    audio = np.concatenate([np.zeros(_CONTEXT, np.float32), speech()])
    for start in range(0, audio.size - _CONTEXT - _CHUNK + 1, _CHUNK):
        with_context = audio[None, start : start + _CONTEXT + _CHUNK]
        yield with_context[:, _CONTEXT:], with_context


def served(directory: Path, backend_name: str, inputs: str, outputs: str) -> list[float]:
    """Probabilities from a model that takes audio and state, and gives a probability and the next state."""
    audio, state, *rate = inputs.split()
    probability, next_state = outputs.split()
    specs = [TensorSpec(audio, "FP32", (-1, -1)), TensorSpec(state, "FP32", (2, -1, 128))]
    specs += [TensorSpec(name, "INT64", ()) for name in rate]
    gives = (TensorSpec(probability, "FP32", (-1, 1)), TensorSpec(next_state, "FP32", (-1, -1, -1)))
    backend = open_backend(backend_name)
    backend.load(directory, ModelConfig("silero", backend_name, inputs=tuple(specs), outputs=gives))
    held = np.zeros((2, 1, 128), np.float32)
    found = []
    for _, chunk in chunks():
        batch = {audio: chunk, state: held} | {name: np.array(_RATE_HZ) for name in rate}
        given = backend.infer(batch, ())
        held = given[next_state]
        found.append(float(given[probability][0, 0]))
    backend.unload()
    return found


def place(tmp_path: Path, shipped: str, filename: str) -> Path:
    assert _DATA is not None
    (tmp_path / filename).write_bytes((_DATA / shipped).read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def by_onnx(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    directory = place(tmp_path_factory.mktemp("onnx"), "silero_vad.onnx", "model.onnx")
    return served(directory, "onnxruntime", "input state sr", "output stateN")


def inner() -> Any:
    """Of the shipped TorchScript, the part for 16 kHz, which takes its state."""
    import torch

    assert _DATA is not None
    return torch.jit.load(str(_DATA / "silero_vad.jit"))._model


def eager() -> Any:
    """The model as plain PyTorch, with the weights of the shipped TorchScript: those in safetensors are others."""
    from tests.torch_models import VoiceActivity

    model = VoiceActivity().eval()
    model.load_state_dict(dict(zip(model.state_dict(), inner().state_dict().values(), strict=True)))
    return model


def test_the_signal_is_heard_as_speech_where_there_is_some(by_onnx: list[float]) -> None:
    assert max(by_onnx[:15]) < 0.5 < max(by_onnx[20:70])


def test_onnx_torchscript_and_eager_agree_with_state_handed_on(by_onnx: list[float], tmp_path: Path) -> None:
    import torch

    torch.jit.save(inner(), str(tmp_path / "model.pt"))
    by_torchscript = served(tmp_path, "pytorch", "x state", "out stateN")
    model, held, by_eager = eager(), torch.zeros(2, 1, 128), []
    with torch.inference_mode():
        for _, chunk in chunks():
            probability, held = model(torch.from_numpy(chunk.copy()), held)
            by_eager.append(float(probability))
    np.testing.assert_allclose(by_torchscript, by_onnx, rtol=0, atol=_TOLERANCE)
    np.testing.assert_allclose(by_eager, by_onnx, rtol=0, atol=_TOLERANCE)


def test_an_exported_program_of_the_eager_model_agrees(by_onnx: list[float], tmp_path: Path) -> None:
    import torch

    example = (torch.zeros(2, _CONTEXT + _CHUNK), torch.zeros(2, 2, 128))
    free = torch.export.Dim.AUTO
    program = torch.export.export(eager(), example, dynamic_shapes=({0: free}, {1: free}))
    torch.export.save(program, str(tmp_path / "model.pt2"))
    np.testing.assert_allclose(served(tmp_path, "pytorch", "x state", "out stateN"), by_onnx, rtol=0, atol=_TOLERANCE)


def test_the_shipped_torchscript_keeps_the_state_of_its_instance(by_onnx: list[float], tmp_path: Path) -> None:
    place(tmp_path, "silero_vad.jit", "model.pt")
    config = ModelConfig(
        "silero",
        "pytorch",
        inputs=(TensorSpec("x", "FP32", (-1, -1)), TensorSpec("sr", "INT64", ())),
        outputs=(TensorSpec("probability", "FP32", (-1, 1)),),
    )
    found: list[list[float]] = []
    for _ in range(2):  # a second instance begins anew
        backend = open_backend("pytorch")
        backend.load(tmp_path, config)
        batches = [{"x": chunk, "sr": np.array(_RATE_HZ)} for chunk, _ in chunks()]
        found.append([float(backend.infer(batch, ())["probability"][0, 0]) for batch in batches])
    assert found[0] == found[1]
    np.testing.assert_allclose(found[0], by_onnx, rtol=0, atol=_TOLERANCE)
