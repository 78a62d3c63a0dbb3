"""Small PyTorch models for tests, in each form that they are served in. Imports torch, which takes seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

_TYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}


class AddSub(torch.nn.Module):
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1. Writes to its argument, as models may."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: N803 - the tensors' names
        difference = INPUT0 - INPUT1
        return INPUT0.add_(INPUT1), difference


class Identity(torch.nn.Module):
    """OUTPUT0 = INPUT0, the very same tensor."""

    def forward(self, INPUT0: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensor's name
        return INPUT0


class RowSum(torch.nn.Module):
    """OUTPUT0 [batch, 1] = the sum of each row of INPUT0, of any length."""

    def forward(self, INPUT0: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensor's name
        return INPUT0.sum(1, keepdim=True)


class Picks(torch.nn.Module):
    """OUTPUT0 = the elements of INPUT0 that INDEX names, along the last dimension; fails for others."""

    def forward(self, INPUT0: torch.Tensor, INDEX: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensors' names
        return INPUT0.gather(1, INDEX)


class Zeros(torch.nn.Module):
    """OUTPUT0 = as many zeros as INPUT0 says."""

    def forward(self, INPUT0: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensor's name
        return torch.zeros([int(INPUT0.item())])


class Scaled(torch.nn.Module):
    """A dict: scaled = x * factor, a plain number, and twice = 2 * x."""

    def forward(self, x: torch.Tensor, factor: int = 1) -> dict[str, torch.Tensor]:
        return {"scaled": x * factor, "twice": x * 2}


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Named(torch.nn.Module):
    """A named tuple: first = x, second = -x."""

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x, -x)


class Counter(torch.nn.Module):
    """The number of calls so far, which it keeps, and its weight, which it gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += x.sum() * 0 + 1
        return self.calls, self.weight


class Linear(torch.nn.Module):
    """OUTPUT0 = INPUT0 @ ones(4, 4) / 3, which no half type holds exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 4), 1 / 3))

    def forward(self, INPUT0: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the tensor's name
        return INPUT0 @ self.weight


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "add_sub": AddSub,
    "identity": Identity,
    "vector": Identity,
    "row_sum": RowSum,
    "picks": Picks,
    "huge": Zeros,
    "scaled": Scaled,
    "named": Named,
    "counter": Counter,
    "linear": Linear,
}


def write_torchscript(file: Path, model: str) -> None:
    """Save a model of MODELS as TorchScript."""
    torch.jit.save(torch.jit.script(MODELS[model]().eval()), str(file))


def write_exported(file: Path, model: str, datatype: str = "FP32") -> None:
    """Save a model of MODELS as an exported program, with a free batch dimension."""
    torch.export.save(_exported(model, datatype), str(file))


def write_compiled(file: Path, model: str) -> None:
    """Compile a model of MODELS into an AOTInductor package; takes a C++ compiler and up to a minute."""
    options = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    torch._inductor.aoti_compile_and_package(_exported(model), package_path=str(file), inductor_configs=options)


def _exported(model: str, datatype: str = "FP32") -> torch.export.ExportedProgram:
    free = torch.export.Dim.AUTO
    example = torch.ones(2, 4).to(_TYPES[datatype])
    if model == "vector":
        return torch.export.export(Identity(), (torch.ones(3, dtype=_TYPES[datatype]),))
    if model == "add_sub":
        return torch.export.export(AddSub(), (example, example.clone()), dynamic_shapes=({0: free}, {0: free}))
    if model == "picks":
        arguments = (example, torch.zeros(2, 4, dtype=torch.int64))
        return torch.export.export(Picks(), arguments, dynamic_shapes=({0: free}, {0: free}))
    dims = {0: free, 1: free} if model == "row_sum" else {0: free}
    return torch.export.export(MODELS[model]().eval(), (example,), dynamic_shapes=(dims,))


class VoiceActivity(torch.nn.Module):
    """The voice activity detector of silero-vad for 16 kHz, by the names of its weights.

    x [batch, samples] with 64 samples of context, state [2, batch, 128] -> probability [batch, 1], next state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = torch.nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = torch.nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = torch.nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = torch.nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = torch.nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = torch.nn.LSTMCell(128, 128)
        self.final_conv = torch.nn.Conv1d(128, 1, 1)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.nn.functional.pad(x.unsqueeze(1), (0, 64), mode="reflect")
        real, imaginary = self.stft_conv(padded).split(129, 1)
        features = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = layer(features).relu()
        hidden, cell = self.lstm_cell(features.squeeze(-1), (state[0], state[1]))
        scores = self.final_conv(hidden.unsqueeze(-1).relu()).sigmoid()
        return scores.squeeze(1).mean(1, keepdim=True), torch.stack([hidden, cell])
