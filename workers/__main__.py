"""The worker's command line: `serve`, `score`, `announce`, `check`, `replay`. Parses, sets up logging, hands over.

Each command's module is imported when it is chosen, so that --help is instant.
"""

from __future__ import annotations

import logging
import sys

import structlog
from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict, SettingsError, get_subcommand

from workers.settings import CheckSettings, ReplaySettings, ScoreSettings, ServeSettings, WorkerSettings


class Serve(ServeSettings):
    """Serve the models of a pool: consume, batch, load, run, answer. SIGTERM drains, a second one hurries."""

    def cli_cmd(self) -> None:
        """Run until stopped."""
        from workers.serve import serve
        from workers.telemetry import spans

        with spans():
            serve(self)


class Announce(WorkerSettings):
    """Create the topics of a pool's models and announce the models to the gateways, without serving them."""

    def cli_cmd(self) -> None:
        """Run once."""
        from workers.serve import announce

        announce(self)


class Score(ScoreSettings):
    """Run a whole topic through a model, up to the topic's end now, exactly once; again after a kill, it goes on."""

    def cli_cmd(self) -> None:
        """Run to the end of the range."""
        from workers.score import score

        sys.exit(score(self))


class Replay(ReplaySettings):
    """Send requests that became dead letters again, once what made them fail is corrected.

    Look first with --dry-run: it shows what would be sent, grouped by model and cause, and sends nothing. Then narrow
    it down, for example:

      python -m workers replay --model resnet --code model_load_failed --since 2h --dry-run
      python -m workers replay --model resnet --cause "out of memory" --limit 100

    A request keeps its id, headers, payload and asked version, and counts its attempts on. Its deadline and its
    caller's address are left out: both have passed. The answer goes to the results topic, under the request's id. The
    job id of an asynchronous request goes on telling of the failure: an end that was told does not change.

    What was sent is noted among the dead letters, so a second replay does not send it again, except with --again. After
    a kill, up to 100 requests may be sent twice. Run one replay of a model at a time.

    Exit status: 0 all was sent, 1 something was not, 2 the selection is wrong, 130 interrupted (run it again to go on).
    """

    def cli_cmd(self) -> None:
        """Run once over the dead letters that are there now."""
        from workers.replay import replay

        sys.exit(replay(self))


class Check(CheckSettings):
    """Report every fault of a model repository at once, without loading a model; docs/model-config.md lists the fields.

    Read are the configurations, and which files are there; no ML library and no GPU is needed. A fault keeps a model,
    or one of its versions, from being served; a warning is about a field that has no effect. The exit code is 0 without
    a fault, 1 with one, 2 when the repository cannot be read. Example: python -m workers check s3://models/production
    """

    def cli_cmd(self) -> None:
        """Report, and exit with the code that says whether there is a fault."""
        from workers.check import check

        sys.exit(check(self))


class Workers(BaseSettings):
    """tidegate workers. Every flag is also an environment variable: --drain-s is TIDEGATE_DRAIN_S."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_kebab_case=True, cli_implicit_flags=True, cli_prog_name="python -m workers"
    )
    serve: CliSubCommand[Serve]
    score: CliSubCommand[Score]
    announce: CliSubCommand[Announce]
    replay: CliSubCommand[Replay]
    check: CliSubCommand[Check]

    def cli_cmd(self) -> None:
        """Run the chosen command."""
        if get_subcommand(self, is_required=False) is None:
            CliApp.run(Workers, cli_args=["--help"])
        CliApp.run_subcommand(self)


def main() -> None:
    """Entry point."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    try:
        CliApp.run(Workers)
    except ValidationError as error:  # its own text would quote what was given, passwords among it
        for fault in error.errors(include_url=False, include_input=False):
            field = str(fault["loc"][-1]) if fault["loc"] else "settings"
            print(f"workers: {field}: {fault['msg']}; see --help", file=sys.stderr)
        sys.exit(2)
    except SettingsError as error:
        print(f"workers: {error}; see --help", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
