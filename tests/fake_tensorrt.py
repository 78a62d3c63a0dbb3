"""Stands in for TensorRT and CUDA's runtime where there is no GPU: an engine that adds, and memory that is counted.

It has the surface that workers/backends/tensorrt.py uses, and is strict where the real ones are: addresses must be
those of live memory, shapes must be within the profile, copies within what was allocated. It cannot show that the real
ones behave so; tests marked `gpu` do.
"""

import ctypes
import json
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

Shape = tuple[int, ...]


class CudaError(IntEnum):
    cudaSuccess = 0  # noqa: N815 - CUDA's names, here and below
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815


class Runtime:
    """CUDA's runtime: each function gives an error and a result. `limit_bytes` is what one allocation may take."""

    cudaStreamNonBlocking = 1  # noqa: N815
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="in", cudaMemcpyDeviceToHost="out")  # noqa: N815

    def __init__(self, devices: int = 1, limit_bytes: int = 1 << 20) -> None:
        self.live: dict[int, Any] = {}
        self.streams: set[int] = set()
        self._devices = devices
        self._limit_bytes = limit_bytes

    def cudaGetDeviceCount(self) -> tuple[CudaError, int]:  # noqa: N802
        return (CudaError.cudaSuccess if self._devices else CudaError.cudaErrorNoDevice), self._devices

    def cudaSetDevice(self, device: int) -> tuple[CudaError]:  # noqa: N802
        assert 0 <= device < self._devices
        return (CudaError.cudaSuccess,)

    def cudaMalloc(self, size_bytes: int) -> tuple[CudaError, int]:  # noqa: N802
        if size_bytes > self._limit_bytes:
            return CudaError.cudaErrorMemoryAllocation, 0
        memory = (ctypes.c_uint8 * size_bytes)()
        self.live[ctypes.addressof(memory)] = memory
        return CudaError.cudaSuccess, ctypes.addressof(memory)

    cudaMallocHost = cudaMalloc  # noqa: N815

    def cudaFree(self, address: int) -> tuple[CudaError]:  # noqa: N802
        del self.live[address]
        return (CudaError.cudaSuccess,)

    cudaFreeHost = cudaFree  # noqa: N815

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[CudaError, int]:  # noqa: N802
        self.streams.add(len(self.streams) + 1)
        return CudaError.cudaSuccess, len(self.streams)

    def cudaStreamDestroy(self, stream: int) -> tuple[CudaError]:  # noqa: N802
        self.streams.remove(stream)
        return (CudaError.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[CudaError]:  # noqa: N802
        assert stream in self.streams
        return (CudaError.cudaSuccess,)

    def cudaMemcpyAsync(self, to: int, source: int, size_bytes: int, kind: str, stream: int) -> tuple[CudaError]:  # noqa: N802
        assert stream in self.streams
        assert kind in ("in", "out")
        assert all(size_bytes <= ctypes.sizeof(self.live[address]) for address in (to, source))
        ctypes.memmove(to, source, size_bytes)
        return (CudaError.cudaSuccess,)


class DataType(Enum):
    FLOAT = "f"
    BF16 = "b"


class ILogger:
    Severity = Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO")

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class Context:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        least, _, most = self._engine.profile[name]
        is_within = len(shape) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        )
        if is_within:
            self._shapes[name] = shape
        else:
            self._engine.log.log(ILogger.Severity.ERROR, f"{name}: {shape} is not within {least}..{most}")
        return is_within

    def get_tensor_shape(self, name: str) -> Shape:
        return self._shapes["INPUT0"]

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address in self._engine.runtime.live
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert stream_handle in self._engine.runtime.streams
        arrays = {name: self._array(name) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
        if np.isnan(arrays["INPUT0"]).any():
            self._engine.log.log(ILogger.Severity.ERROR, "a kernel failed")
            return False
        arrays["OUTPUT0"][...] = arrays["INPUT0"] + arrays["INPUT1"]
        arrays["OUTPUT1"][...] = arrays["INPUT0"] - arrays["INPUT1"]
        return True

    def _array(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = self.get_tensor_shape(name)
        memory = self._engine.runtime.live[self._addresses[name]]
        return np.frombuffer(memory, np.float32, int(np.prod(shape))).reshape(shape)


class Engine:
    """Made of a plan, JSON with the profile."""

    num_io_tensors = 4

    def __init__(self, plan: dict[str, Any], runtime: Runtime, log: Any) -> None:
        self.profile = {name: tuple(map(tuple, shapes)) for name, shapes in plan["profile"].items()}
        self.runtime, self.log = runtime, log

    def create_execution_context(self) -> Context:
        return Context(self)

    def get_tensor_name(self, index: int) -> str:
        return ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.FLOAT

    def get_tensor_shape(self, name: str) -> Shape:
        return -1, 4

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name.startswith("INPUT") else "output"

    def get_tensor_location(self, name: str) -> str:
        return "device"

    def get_tensor_format(self, name: str) -> str:
        return "linear"


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[Shape, Shape, Shape]] = {}

    def set_shape(self, name: str, least: Shape, best: Shape, most: Shape) -> None:
        self.shapes[name] = (least, best, most)


class BuilderConfig:
    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.limits: dict[str, int] = {}

    def set_memory_pool_limit(self, pool: str, size_bytes: int) -> None:
        self.limits[pool] = size_bytes

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class TensorRt:
    """The module: what it makes knows the runtime. `builds` counts engines that were built, not loaded."""

    __version__ = "11.4.0"
    ILogger, TensorIOMode = ILogger, SimpleNamespace(INPUT="input", OUTPUT="output")
    TensorLocation, TensorFormat = SimpleNamespace(DEVICE="device"), SimpleNamespace(LINEAR="linear")
    MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.builds: list[BuilderConfig] = []

    def Runtime(self, log: Any) -> Any:  # noqa: N802 - TensorRT's names, here and below
        def deserialize(plan: bytes) -> Engine | None:
            try:
                return Engine(json.loads(plan), self.runtime, log)
            except ValueError:
                log.log(ILogger.Severity.ERROR, "magic tag does not match")
                return None

        return SimpleNamespace(deserialize_cuda_engine=deserialize)

    def Builder(self, log: Any) -> Any:  # noqa: N802
        def build(network: Any, config: BuilderConfig) -> bytes:
            assert network.is_parsed
            self.builds.append(config)
            return json.dumps({"profile": config.profiles[0].shapes}).encode()

        return SimpleNamespace(
            create_network=lambda flags: SimpleNamespace(is_parsed=False, flags=flags),
            create_builder_config=BuilderConfig,
            create_optimization_profile=Profile,
            build_serialized_network=build,
        )

    def OnnxParser(self, network: Any, log: Any) -> Any:  # noqa: N802
        def parse(file: str) -> bool:
            with open(file, "rb") as stream:
                network.is_parsed = stream.read(1) != b"!"
            return bool(network.is_parsed)

        return SimpleNamespace(parse_from_file=parse, num_errors=1, get_error=lambda index: "no ONNX")
