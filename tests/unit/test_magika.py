import gzip
import io
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import magika
import numpy as np
import pytest

from local.magika import (
    INPUT_NAME,
    MAX_BATCH_SIZE,
    MAX_QUEUE_DELAY_US,
    MODEL_NAME,
    OUTPUT_NAME,
    features,
    labels,
    lay_out_repository,
    model_path,
    top_label,
)
from workers.backend import Array, Backend, describe_model, open_backend
from workers.config_pbtxt import read_config

ROOT = Path(__file__).parents[2]
UNDEFINED = "undefined"  # what the package says when it does not ask the model


@pytest.fixture(scope="module")
def package() -> Any:
    return magika.Magika()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    model = lay_out_repository(tmp_path_factory.mktemp("models"))
    config = read_config((model / "config.pbtxt").read_text(), model=MODEL_NAME)
    opened = open_backend(config.backend)
    opened.load(model / "1", config)
    return opened


def repository_files() -> list[bytes]:
    folders = ["schemas", "store", "gateway", "workers", "local", "tests", "docs", "deploy", ".ci"]
    paths = [
        path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if "__pycache__" not in path.parts
    ]
    paths += [ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / ".gitignore", model_path()]
    return [path.read_bytes() for path in paths if path.is_file()]


def generated_files() -> list[bytes]:
    random_bytes = random.Random(7).randbytes
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.txt", "text " * 100)
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    row = "id,name,price\n" + "".join(f"{number},item {number},{number * 1.5}\n" for number in range(400))
    return [
        zipped.getvalue(),
        tarred.getvalue(),
        gzip.compress(random_bytes(5000), mtime=0),
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + random_bytes(3000),
        b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n" * 30,
        json.dumps({"rows": list(range(2000))}).encode(),
        b"<!DOCTYPE html><html><head><title>x</title></head><body><p>hello</p></body></html>",
        row.encode(),
        b"#include <stdio.h>\nint main(void) { return 0; }\n" * 5,
        random_bytes(8),
        random_bytes(1024),
        random_bytes(4096),
        random_bytes(4097),
        random_bytes(100_000),
        b" \t\r\n\x0b\x0c" * 300 + b"import os\nprint(os.name)\n" + b"\n" * 5000,  # the tail block is white space only
        b"x" * 2000 + b" " * 3000,
        b"SELECT a, b FROM t WHERE a > 1;" + b"\n" * 1100,
        b"\x1c\x1d\x85\xa0" + b"def f(x):\n    return x\n" * 40,  # white space in Unicode, but not in bytes
        b"12345678",
        b"\n  short\n" + b" " * 8000,
        b" 1234567 ",
    ]


def small_files() -> list[bytes]:
    return [b"", b"1234567", b" " * 100, b" \n" * 20 + b"short\n", b" " * 5000 + b"print('far from the start')" * 9]


def test_label_and_score_are_those_of_the_package(package: Any, backend: Backend) -> None:
    contents = repository_files() + generated_files()
    compared = 0
    for content in contents:
        prediction = package.identify_bytes(content).prediction
        row = features(content)
        assert (row is None) == (prediction.dl.label == UNDEFINED), content[:40]
        if row is None:
            continue
        scores = backend.infer({INPUT_NAME: row[np.newaxis]}, (OUTPUT_NAME,))[OUTPUT_NAME]
        label, score = top_label(scores[0])
        assert label == prediction.dl.label, content[:40]
        assert score == pytest.approx(prediction.score, abs=1e-4)
        compared += 1
    assert compared >= 50


def test_neighbours_in_a_batch_do_not_change_a_row(backend: Backend) -> None:
    rows = np.stack([row for content in generated_files() if (row := features(content)) is not None])

    def scores(batch: Array) -> Array:
        return backend.infer({INPUT_NAME: batch}, (OUTPUT_NAME,))[OUTPUT_NAME]

    together = scores(rows)
    np.testing.assert_allclose(scores(rows[:4]), together[:4], atol=1e-5)
    np.testing.assert_allclose(scores(rows[::-1])[::-1], together, atol=1e-5)
    # A batch of one runs through another kernel, whose rounding this model amplifies: seen up to 0.007.
    alone = np.concatenate([scores(row[np.newaxis]) for row in rows])
    np.testing.assert_allclose(alone, together, atol=0.02)
    assert [top_label(row)[0] for row in alone] == [top_label(row)[0] for row in together]


@pytest.mark.parametrize("content", small_files())
def test_files_that_are_too_small_have_no_features(package: Any, content: bytes) -> None:
    assert features(content) is None
    assert package.identify_bytes(content).prediction.dl.label == UNDEFINED


def test_features_are_head_and_tail_with_padding_between() -> None:
    row = features(b"  head of 15 b  ")
    assert row is not None
    assert row.dtype == np.int32
    assert row.shape == (2048,)
    assert bytes(row[:14].tolist()) == b"head of 15 b  "
    assert set(row[14:-14].tolist()) == {256}
    assert bytes(row[-14:].tolist()) == b"  head of 15 b"


def test_the_repository_says_what_the_model_file_has(tmp_path: Path) -> None:
    model = lay_out_repository(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "magika/1/model.onnx",
        "magika/config.pbtxt",
    ]
    config = read_config((model / "config.pbtxt").read_text(), model="magika")
    description = describe_model("onnxruntime", model / "1")
    config.check_agrees(description)
    assert config.max_batch_size == MAX_BATCH_SIZE == 32
    assert (config.dynamic_batching, config.max_queue_delay_us) == (True, MAX_QUEUE_DELAY_US)
    assert config.inputs[0].shape == (2048,)
    assert config.outputs[0].shape == (len(labels()),)


def test_laying_out_again_leaves_the_model_file_and_repairs_a_damaged_one(tmp_path: Path) -> None:
    file = lay_out_repository(tmp_path) / "1" / "model.onnx"
    before = file.stat().st_mtime_ns
    lay_out_repository(tmp_path)
    assert file.stat().st_mtime_ns == before
    file.write_bytes(b"damaged")
    lay_out_repository(tmp_path)
    assert file.read_bytes() == model_path().read_bytes()


def test_a_client_needs_no_ml_library() -> None:
    code = (
        "import sys, local.magika as m; m.features(b'print(1)\\n' * 9); m.labels(); print('onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
