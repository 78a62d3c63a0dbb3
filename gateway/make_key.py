"""`python -m gateway make-key`: a new API key, shown once, and what to put into the file of keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from gateway.api_keys import make_key
from schemas.errors import InferenceError


class MakeKey(BaseSettings):
    """Make an API key. It is printed once and kept nowhere; the entry of the file holds only its hash.

    Example: python -m gateway make-key --name "batch of acme" --tenant acme --scope "infer:*" --scope "jobs:*"
    """

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_MAKE_KEY_", cli_prog_name="python -m gateway make-key")

    name: Annotated[str, Field(description="Who uses the key, for logs and audit records.")]
    tenant: Annotated[str, Field(description="Whose jobs it makes; keys of one tenant see each other's jobs.")] = ""
    scope: Annotated[
        list[str],
        Field(description="What it may: operation:model, once for each; operations are infer, jobs, read and manage."),
    ] = ["infer:*", "jobs:*", "read:*"]


def print_key(arguments: list[str]) -> int:
    """Run the command; 0, or 2 when the key cannot be made as asked for."""
    asked = CliApp.run(MakeKey, cli_args=arguments)
    try:
        key, entry = make_key(name=asked.name, tenant=asked.tenant, scopes=tuple(asked.scope))
    except InferenceError as error:
        print(f"make-key: {error.message}; {error.remedy}")
        return 2
    print(f"The key, shown this once; give it to whoever uses it:\n\n  {key}\n")
    print('The entry for the list "keys" of the file that TIDEGATE_API_KEYS_FILE names:\n')
    print(f"  {msgspec.json.encode(entry).decode()}")
    return 0
