"""No secret is told in a log, in help or in what is said of wrong settings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SECRETS = {
    "TIDEGATE_JOB_KEY": "secret-of-the-job-key",
    "TIDEGATE_KAFKA_PASSWORD": "secret-of-kafka",
    "TIDEGATE_KAFKA_KEY_PASSWORD": "secret-of-the-key",
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"TIDEGATE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT"},  # no user
        {"TIDEGATE_PORT": "many"},
        {"TIDEGATE_JWT_JWKS": "x"},
        {"TIDEGATE_MANAGEMENT_PORT": "0", "TIDEGATE_MANAGEMENT_HOST": "0.0.0.0"},  # it is refused
        {"TIDEGATE_JWT_ALGORITHMS": '["HS256"]', "TIDEGATE_KAFKA_SECURITY_PROTOCOL": "PLAINTEXT"},
        {"TIDEGATE_TLS_KEY": "x"},
    ],
)
@pytest.mark.parametrize("module", ["gateway", "workers"])
def test_no_secret_is_in_what_is_said_of_wrong_settings(module: str, settings: dict[str, str]) -> None:
    for arguments in ([], ["--help"], ["serve"], ["serve", "--help"]):
        ended = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={"PATH": "", **SECRETS, **settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = ended.stdout + ended.stderr
        assert said
        assert [secret for secret in SECRETS.values() if secret in said] == []


def test_a_key_is_made_by_a_command_and_is_good() -> None:
    command = [sys.executable, "-m", "gateway", "make-key"]
    arguments = ["--name", "x", "--tenant", "acme", "--scope", "infer:m", "--scope", "jobs:*"]
    made = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True).stdout
    entry = json.loads(next(line for line in made.splitlines() if line.strip().startswith("{")))
    assert (entry["name"], entry["tenant"], entry["scopes"]) == ("x", "acme", ["infer:m", "jobs:*"])
    assert len([line for line in made.splitlines() if line.strip().startswith("tgk_")]) == 1
    wrong = subprocess.run([*command, "--name", "x", "--scope", "all"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "operation:model" in wrong.stdout
