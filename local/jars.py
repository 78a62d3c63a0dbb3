"""The jars of Kafka: of KAFKA_HOME, or resolved once by Maven from pom.xml into the user's cache.

Must not know how Kafka is run. A cached directory is either whole or absent: it is filled beside its place, its
manifest is written last, and a rename publishes it. Processes that need it at the same time wait for one another on a
file lock.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from local.errors import JarsError
from local.java import ensure_maven

POM = Path(__file__).with_name("pom.xml")
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class KafkaJars:
    """Kafka's class path, and where derived files such as a class-data archive may be kept (None: nowhere)."""

    jars: tuple[Path, ...]
    archives: Path | None

    @property
    def classpath(self) -> str:
        """Jar by jar, sorted: a class-data archive holds for exactly this text, so a wildcard would not do."""
        return os.pathsep.join(str(jar) for jar in self.jars)


def cache_dir() -> Path:
    """The user's cache directory of tidegate: TIDEGATE_CACHE_DIR, else the platform's own place for caches."""
    if given := os.environ.get("TIDEGATE_CACHE_DIR"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tidegate"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def kafka_version(pom: Path = POM) -> str:
    """The version of Kafka that the pom pins."""
    found = ElementTree.parse(pom).findtext(".//{*}properties/{*}kafka.version")
    if not found:
        raise JarsError(f"{pom} has no property kafka.version; restore the file")
    return found


def kafka_jars(fetch: Callable[[Path], None] | None = None) -> KafkaJars:
    """The jars to run Kafka with: those of KAFKA_HOME, else the cached ones, else fetched now (43 MB, seconds).

    Args:
        fetch: puts the jars into an empty directory; by default Maven does, from local/pom.xml.

    Raises:
        JarsError: KAFKA_HOME holds no Kafka, or the fetch failed.
        MavenNotFoundError: the jars are not cached and there is no Maven.
    """
    if home := os.environ.get("KAFKA_HOME"):
        return _jars_of_home(Path(home))
    # Two checkouts with different poms never share a directory, so neither can break the other's.
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    directory = cache_dir() / "kafka" / f"{kafka_version()}-{digest}"
    archives = directory.with_name(f"{directory.name}-archives")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f"{directory.name}.lock")):
        if not _is_whole(directory):
            _publish(directory, fetch or _fetch_by_maven)
            # An archive is bound to the jars' times of change; the old one would be refused, silently, for ever.
            shutil.rmtree(archives, ignore_errors=True)
    return KafkaJars(tuple(sorted(directory.glob("*.jar"))), archives)


def _jars_of_home(home: Path) -> KafkaJars:
    jars = tuple(sorted((home / "libs").glob("*.jar")))
    if not any(jar.name.startswith("kafka_2.") for jar in jars):
        raise JarsError(
            f"KAFKA_HOME is {home}, but {home / 'libs'} holds no kafka_2.*.jar; "
            "point it at an unpacked Kafka 4, or unset it"
        )
    return KafkaJars(jars, archives=None)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file; the kernel releases it with the process, however that ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sizes(directory: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in sorted(directory.glob("*.jar"))}


def _is_whole(directory: Path) -> bool:
    try:
        manifest: object = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return manifest == _sizes(directory)


def _publish(directory: Path, fetch: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as holder:
        partial = Path(holder) / "jars"
        partial.mkdir()
        fetch(partial)
        sizes = _sizes(partial)
        if not sizes:
            raise JarsError(f"no jar was put into {partial}; remove {directory.parent} and try again")
        (partial / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        if directory.exists():
            # Aside by rename: a broker that runs from the damaged directory keeps the files that it has open.
            directory.rename(Path(holder) / "damaged")
        partial.rename(directory)


def _fetch_by_maven(target: Path) -> None:
    maven = ensure_maven()
    print(f"tidegate: fetching Kafka {kafka_version()} with Maven, once, into {target.parent.parent}", file=sys.stderr)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    command = [str(maven), "--batch-mode", "--quiet", "--file", str(POM), *goal]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last_lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise JarsError(
            f"Maven ended with {done.returncode}:\n{last_lines}\nCheck that Maven reaches its repository "
            f"(settings.xml: mirrors, proxies), then run again; or point KAFKA_HOME at an unpacked Kafka 4"
        )
