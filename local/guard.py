"""A child process that cannot outlive its owner: the owner's side (GuardedProcess) and the guard between the two.

Must not import anything of tidegate, and must not know what it runs: the guard is this file run as a script.

The guard's standard input is a pipe held by the owner. The kernel closes that pipe when the owner ends, however it
ends and whichever thread started the guard, and the guard then kills the command. (PR_SET_PDEATHSIG would not do: it
fires as soon as the starting *thread* ends.) On the pipe one byte is an order: `T` terminates the command, `K` kills
it. The guard writes the command's process id as a line on its standard output, sends the command's output to its own
standard error, reaps the command and ends with its exit status. A process that the owner forks without exec holds the
pipe open, too.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_TERMINATE = b"T"
_KILL = b"K"


class GuardedProcess:
    """A running command that dies with this process. It runs in a session of its own: Ctrl-C does not reach it."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int) -> None:
        """Made by `start`."""
        self._guard = guard
        self.pid = pid

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: IO[bytes],
        scratch: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "GuardedProcess":
        """Start a command with its output going to `log`; the directory `scratch` is removed if the owner just dies.

        `environment` is the command's whole environment; None: this process's own.

        Raises:
            ChildProcessError: the command could not be executed; `log` says why.
        """
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(scratch or ""), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        assert guard.stdout is not None  # asked for above
        with guard.stdout:
            line = guard.stdout.readline()
        if not line:
            cls(guard, 0).kill()
            raise ChildProcessError(f"{command[0]} could not be executed; see the log")
        return cls(guard, int(line))

    def poll(self) -> int | None:
        """The exit status (128 + signal for a signal), or None while it runs."""
        return self._guard.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit status. Raises subprocess.TimeoutExpired."""
        status = self._guard.wait(timeout_s)
        assert self._guard.stdin is not None  # asked for in start
        self._guard.stdin.close()
        if status < 0:
            # The guard was killed, not told: the command is left in the guard's session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            return 128 - status
        return status

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing after the end."""
        self._order(_TERMINATE)

    def kill(self) -> int:
        """Send SIGKILL, wait for the end and return the exit status."""
        self._order(_KILL)
        return self.wait()

    def _order(self, order: bytes) -> None:
        assert self._guard.stdin is not None  # asked for in start
        if not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                os.write(self._guard.stdin.fileno(), order)


def main(scratch: str, command: list[str]) -> int:
    """The guard: run the command to its end; remove the directory `scratch` (empty: none) when the owner is gone.

    Returns the command's exit status, 128 + signal for a signal.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    with contextlib.suppress(BrokenPipeError):  # the owner is gone already: standard input says so, too
        os.write(sys.stdout.fileno(), b"%d\n" % child.pid)
    orders = sys.stdin.fileno()
    while child.poll() is None:
        readable, _, _ = select.select([orders, wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 64)
        if orders not in readable:
            continue
        order = os.read(orders, 1)
        if order == _TERMINATE:
            child.terminate()
            continue
        child.kill()
        child.wait()
        if not order and scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
