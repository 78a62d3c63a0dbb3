"""The jars' cache and the search for Java: whole or absent, fetched once, and errors that name the remedy."""

import json
import threading
from pathlib import Path

import pytest

from local import java
from local.errors import JarsError, JavaNotFoundError, JavaTooOldError, MavenNotFoundError
from local.jars import kafka_jars


class _Fetch:
    """Stands in for Maven: writes two jars and counts its calls."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls = 0
        self._fails = fails

    def __call__(self, target: Path) -> None:
        self.calls += 1
        (target / "b.jar").write_bytes(b"bb")
        if self._fails:
            raise JarsError("the network is gone")
        (target / "a.jar").write_bytes(b"a")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKA_HOME", raising=False)


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without Java, Maven and apt-get; the directory returned is its only member."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_JVM_ROOT", tmp_path / "no-jvm")
    return tmp_path / "bin"


def _fake_java(directory: Path, version: str) -> None:
    script = directory / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    script.chmod(0o755)


def test_jars_are_fetched_once() -> None:
    fetch = _Fetch()
    first = kafka_jars(fetch)
    assert kafka_jars(fetch) == first
    assert [jar.name for jar in first.jars] == ["a.jar", "b.jar"]
    assert fetch.calls == 1


def test_damaged_jars_are_fetched_again() -> None:
    fetch = _Fetch()
    damaged = kafka_jars(fetch).jars[0]
    damaged.write_bytes(b"")
    assert kafka_jars(fetch).jars[0].read_bytes() == b"a"
    assert fetch.calls == 2


def test_failed_fetch_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    with pytest.raises(JarsError, match="network"):
        kafka_jars(_Fetch(fails=True))
    assert not list((tmp_path / "cache").rglob("*.jar"))
    fetch = _Fetch()
    assert len(kafka_jars(fetch).jars) == 2
    assert fetch.calls == 1


def test_manifest_lists_every_jar_with_its_size() -> None:
    directory = kafka_jars(_Fetch()).jars[0].parent
    assert json.loads((directory / "manifest.json").read_text()) == {"a.jar": 1, "b.jar": 2}


def test_one_of_many_at_the_same_time_fetches() -> None:
    fetch, start = _Fetch(), threading.Barrier(4)
    counts: list[int] = []

    def resolve() -> None:
        start.wait()
        counts.append(len(kafka_jars(fetch).jars))

    threads = [threading.Thread(target=resolve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2, 2, 2, 2]
    assert fetch.calls == 1


def test_kafka_home_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = _Fetch()
    (tmp_path / "home" / "libs").mkdir(parents=True)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "home"))
    with pytest.raises(JarsError, match="KAFKA_HOME"):
        kafka_jars(fetch)
    (tmp_path / "home" / "libs" / "kafka_2.13-4.2.1.jar").touch()
    assert [jar.name for jar in kafka_jars(fetch).jars] == ["kafka_2.13-4.2.1.jar"]
    assert fetch.calls == 0


@pytest.mark.usefixtures("no_tools")
def test_missing_maven_names_the_command() -> None:
    with pytest.raises(MavenNotFoundError, match="apt-get install maven"):
        kafka_jars()


@pytest.mark.usefixtures("no_tools")
def test_missing_java_names_the_command() -> None:
    with pytest.raises(JavaNotFoundError, match="apt-get install openjdk-17-jre-headless"):
        java.ensure_java()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16)])
def test_old_java_is_named_with_its_version(no_tools: Path, version: str, major: int) -> None:
    _fake_java(no_tools, version)
    with pytest.raises(JavaTooOldError, match=f"is Java {major}, Kafka needs 17"):
        java.ensure_java()


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25-ea", 25)])
def test_new_enough_java_is_found(no_tools: Path, version: str, major: int) -> None:
    _fake_java(no_tools, version)
    found = java.ensure_java()
    assert (found.path, found.major) == (no_tools / "java", major)


def test_older_java_home_does_not_hide_a_usable_one(
    no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old" / "bin").mkdir(parents=True)
    _fake_java(tmp_path / "old" / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    _fake_java(no_tools, "21.0.1")
    assert java.ensure_java().major == 21


def test_missing_java_is_installed_by_apt_when_root(
    no_tools: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for apt-get, which puts a Java on PATH: what is asked of it, and that it is said before."""
    _fake_java(no_tools, "17.0.1")
    (no_tools / "java").rename(no_tools / "java-in-package")
    apt = no_tools / "apt-get"
    unpack = f"/bin/mv {no_tools}/java-in-package {no_tools}/java"
    apt.write_text(f'#!/bin/sh\necho "apt: $*"\ncase "$*" in *jre-headless*) {unpack} ;; esac\n')
    cache = no_tools / "apt-cache"
    cache.write_text("#!/bin/sh\nexit 1\n")
    for script in (apt, cache):
        script.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert java.ensure_java().major == 17
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.index("running apt-get update") < output.err.index("apt: install -q -y")
    assert "default-jre-headless" in output.err
