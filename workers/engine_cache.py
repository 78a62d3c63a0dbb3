"""Engine cache: what a GPU library compiled for one model on one kind of GPU, kept for the next start.

A compiled engine runs only where it was compiled: the directory's name holds everything that it depends on, so that a
new driver or model finds an empty directory and not a wrong engine. Must not know any ML library, nor what is in an
engine. The directory is for this user only: an engine is code.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from workers.devices import Gpu

_READ_BYTES = 1 << 20
_KEY_CHARS = 32  # of a SHA-256 in hex: 128 bits


class EngineKey(msgspec.Struct, frozen=True):
    """All that an engine depends on. `runtime` names the libraries that compile and run it, with their versions."""

    gpu: Gpu
    runtime: str
    model_digest: str
    flags: Mapping[str, str]

    def digest(self) -> str:
        """A name for it: equal for equal keys, in whatever order the flags were given."""
        flags = sorted(self.flags.items())
        text = msgspec.json.encode((self.gpu, self.runtime, self.model_digest, flags))
        return hashlib.sha256(text).hexdigest()[:_KEY_CHARS]


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 of the files' names and bytes; the order in which they are given does not matter."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_READ_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def engine_directory(key: EngineKey, root: Path | None = None) -> Path:
    """The directory of one key, made if need be; `root` None is TIDEGATE_ENGINE_CACHE, or else ~/.cache/tidegate."""
    root = root or Path(os.environ.get("TIDEGATE_ENGINE_CACHE") or Path.home() / ".cache" / "tidegate" / "engines")
    directory = root / key.digest()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def cached_engine(file: Path, build: Callable[[], bytes]) -> bytes:
    """The bytes of an engine's file; where there is none, `build` makes them, once among all threads and processes.

    A file appears whole or not at all. Raises what `build` raises, and OSError; then the next one tries again.
    """
    with _locked(file):
        if file.is_file():
            return file.read_bytes()
        engine = build()
        part = file.with_name(f"{file.name}.part")
        with part.open("wb") as stream:
            stream.write(engine)
            stream.flush()
            os.fsync(stream.fileno())
        part.rename(file)
        return engine


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    # The lock is the open file's, so that threads exclude each other as processes do; it ends with the process.
    with file.with_name(f"{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
