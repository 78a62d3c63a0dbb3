"""The built wheel, not the source tree: it holds the four packages, and nothing that could collide with others."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"schemas", "store", "gateway", "workers", "tidegate"}
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [*_PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(directory)]
    subprocess.run([*command, str(ROOT)], check=True)
    (built,) = directory.glob("*.whl")
    return built


def test_wheel_holds_the_shipped_packages_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.split("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == PACKAGES
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "gateway/status_page.js" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_each_package_comes_from_exactly_one_distribution(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    subprocess.run([*_PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    # The wheel's directory first, then all libraries that it is installed beside: none of them has one of its names.
    script = "import importlib.metadata, json; print(json.dumps(dict(importlib.metadata.packages_distributions())))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert {package: found.get(package) for package in PACKAGES} == {package: ["tidegate"] for package in PACKAGES}
