"""`python -m local`: the command line of the local stack. Parses, hands over, and tells errors in plain words.

Each command's module is imported when it is chosen, so that --help is instant.
"""

import signal
import sys
from pathlib import Path

from pydantic import BaseModel, Field, NonNegativeInt
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict, get_subcommand

from local.errors import LocalStackError

_INTERRUPTED = 128 + signal.SIGINT


class Demo(BaseModel):
    """Run the main job once and leave nothing running: real files through a real Kafka and a real model, one
    synchronously, all as jobs, all offline from a topic; print a table and whether the ways agree.
    """

    files: list[Path] = Field([], description="files to classify, --files A --files B; none: the project's own")

    def cli_cmd(self) -> None:
        """Run once."""
        from rich.console import Console

        from local.demo import run_demo

        run_demo(self.files, console=Console())


class Up(BaseModel):
    """Keep Kafka, a gateway and a worker up until Ctrl-C, and print curl lines that work on them."""

    models: str = Field(
        "", description="model repository in Triton's layout, <model>/<version>/model.onnx; none: magika"
    )
    keep: Path | None = Field(
        None, description="directory that keeps Kafka's data, results, job key and logs for the next time"
    )
    port: NonNegativeInt = Field(8000, description="the gateway's port; 0: any free one")

    def cli_cmd(self) -> None:
        """Run until Ctrl-C."""
        from local.up import run_up

        try:
            run_up(models=self.models, keep=self.keep, port=self.port, say=lambda line: print(line, flush=True))
        except KeyboardInterrupt:
            sys.exit(0)  # this is how it ends


class Local(BaseSettings):
    """tidegate on one machine, with the real parts: Apache Kafka, a gateway and a worker as child processes.

    They listen on 127.0.0.1 only, and end with this command, however that ends. Kafka needs Java 17, and Maven once, to
    fetch it; as root on Debian or Ubuntu they are installed when missing. KAFKA_HOME uses an unpacked Kafka 4 instead,
    TIDEGATE_KAFKA_BOOTSTRAP one that runs already. All settings of gateway and worker (python -m gateway --help,
    python -m workers serve --help) may be given as environment variables.
    """

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_LOCAL_", cli_kebab_case=True, cli_implicit_flags=True, cli_prog_name="python -m local"
    )
    demo: CliSubCommand[Demo]
    up: CliSubCommand[Up]

    def cli_cmd(self) -> None:
        """Run the chosen command."""
        if get_subcommand(self, is_required=False) is None:
            CliApp.run(Local, cli_args=["--help"])
        CliApp.run_subcommand(self)


def main() -> int:
    """Entry point; the exit code is 0, 1 for a failure that is told, 130 or 143 for an interruption."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell that starts it aside ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C: everything is stopped
    try:
        CliApp.run(Local)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except LocalStackError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:
        told, others = group.split(LocalStackError)
        if others is not None or told is None:
            raise
        print(f"tidegate: {told.exceptions[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
