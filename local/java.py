"""Java and Maven: found, or installed where that is possible without asking anyone.

Must not know what they are used for. Installing means apt-get on Debian or Ubuntu, as root, said on stderr before it
is done; everywhere else the error names the command to run.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.errors import JavaNotFoundError, JavaTooOldError, MavenNotFoundError

MIN_JAVA = 17
"""The oldest Java that runs a Kafka 4 broker."""

_JVM_ROOT = Path("/usr/lib/jvm")
_JAVA_REMEDY = (
    "install one: apt-get install openjdk-17-jre-headless | dnf install java-17-openjdk-headless | "
    "brew install openjdk@17"
)
_MAVEN_REMEDY = "install it: apt-get install maven | dnf install maven | brew install maven"


@dataclass(frozen=True)
class Java:
    """A Java launcher: its path, its feature version (17, 21, ...) and its full version text."""

    path: Path
    major: int
    version: str


def ensure_java() -> Java:
    """Find Java >= 17 (JAVA_HOME, then PATH, then /usr/lib/jvm), or install it as root on Debian or Ubuntu.

    Blocks: about 50 ms when found, minutes when installed.

    Raises:
        JavaNotFoundError: there is none, and it cannot be installed from here.
        JavaTooOldError: the newest one is older than 17, and a newer cannot be installed from here.
    """
    found = list(_javas())
    usable = next((java for java in found if java.major >= MIN_JAVA), None)
    if usable is not None:
        return usable
    if _can_install():
        _install(_java_package())
        usable = next((java for java in _javas() if java.major >= MIN_JAVA), None)
        if usable is not None:
            return usable
    if found:
        newest = max(found, key=lambda java: java.major)
        raise JavaTooOldError(
            f"{newest.path} is Java {newest.major}, Kafka needs {MIN_JAVA} or newer; {_JAVA_REMEDY}, "
            "or point JAVA_HOME at it"
        )
    raise JavaNotFoundError(f"Java {MIN_JAVA} or newer was not found; {_JAVA_REMEDY}, or point JAVA_HOME at it")


def ensure_maven() -> Path:
    """Find `mvn` on PATH, or install it as root on Debian or Ubuntu. Blocks: minutes when installed.

    Raises:
        MavenNotFoundError: there is none, and it cannot be installed from here.
    """
    found = shutil.which("mvn")
    if found is None and _can_install():
        _install("maven")
        found = shutil.which("mvn")
    if found is None:
        raise MavenNotFoundError(
            f"Maven, which fetches Kafka's jars once, was not found; {_MAVEN_REMEDY}, "
            "or point KAFKA_HOME at an unpacked Kafka"
        )
    return Path(found)


def _javas() -> Iterator[Java]:
    """Every Java of this machine that answers, the preferred ones first."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    candidates += sorted(_JVM_ROOT.glob("*/bin/java"))
    for path in candidates:
        java = _probe(path)
        if java is not None:
            yield java


def _probe(path: Path) -> Java | None:
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        # Not there, or a stub such as macOS's /usr/bin/java that only says where to get one.
        return None
    version = answer.stderr.strip()
    number = re.search(r'version "(?:1\.)?(\d+)', version)
    return Java(path, int(number.group(1)), version) if number else None


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _java_package() -> str:
    """Java 17 by name where the distribution has it: Ubuntu 22.04's default is still 11; newer Debians have no 17."""
    known = subprocess.run(["apt-cache", "show", "openjdk-17-jre-headless"], capture_output=True, check=False)
    return "openjdk-17-jre-headless" if known.returncode == 0 else "default-jre-headless"


def _install(package: str) -> None:
    """Install one package; a failure is left to the caller, who looks again and says what is missing."""
    print(f"tidegate: {package} is missing: running apt-get update and apt-get install {package}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", package]):
        # apt-get talks on stdout, which belongs to the program that asked for Java.
        subprocess.run(["apt-get", *arguments], env=environment, stdout=2, check=False)
