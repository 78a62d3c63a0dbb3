"""`python -m workers check` over a repository in S3."""

import json
import subprocess
import sys

import pytest

from store import open_store
from tests.s3_process import lead_boto3_to, make_bucket, s3_process


def run_check(url: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "workers", "check", "--json", url], capture_output=True, text=True, check=False
    )


def test_repository_in_s3_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_process() as (endpoint_url, process):
        lead_boto3_to(endpoint_url, monkeypatch)
        make_bucket(endpoint_url, "models")
        store = open_store("s3://models/prod")
        store.put("fine/1/model.onnx", b"x")
        store.put("fine/config.pbtxt", b"response_cache { enable: true }")
        store.put("faulty/2/model.plan", b"")
        store.put("faulty/config.pbtxt", b"max_batch_size: -1 version_policy { specific { versions: [ 2, 7 ] } }")
        store.put("no model/1/model.onnx", b"x")
        done = run_check("s3://models/prod")
        assert (done.returncode, done.stderr) == (1, "")
        report = json.loads(done.stdout)
        findings = {
            model["name"]: [(finding["severity"], finding["field"]) for finding in model["findings"]]
            for model in report["models"]
        }
        assert findings == {
            "faulty": [
                ("fault", "max_batch_size"),
                ("fault", "version_policy.specific.versions"),
                ("fault", "default_model_filename"),
            ],
            "fine": [("warning", "response_cache")],
            "no model": [("fault", "name")],
        }
        assert (report["faults"], report["warnings"]) == (4, 1)
        process.kill()
        process.wait()
        done = run_check("s3://models/prod")
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot read the repository" in done.stderr
