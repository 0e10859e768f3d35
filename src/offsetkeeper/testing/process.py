"""Child processes that cannot become orphans."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from offsetkeeper.testing import supervise
from offsetkeeper.testing.errors import ServerError

_KILL_LIMIT = 120.0


def run_to_end(command: Sequence[str], failure: str, **how: Any) -> None:
    """Run a command that prepares a server; `how` is as `subprocess.run` takes it.

    Raises:
        ServerError: it failed; the error is `failure`, and what the command said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise ServerError(f"{failure}:\n{done.stdout}{done.stderr}")


class ServerProcess:
    """A running child process, with all it starts; they die with this process, however it ends.

    Args:
        command: program and arguments.
        folder: where it runs, and its output is appended to the file `log`. Deleted should this process die before
            it has ended the child.
        environment: its environment variables; by default those of this process.
        user: id of the user, and of the group, to run as. Another one than the own needs root.

    Attributes:
        pid: id of the child process.
        log: file with its output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        self.log = folder / "log"
        arguments = [sys.executable, "-I", "-S", supervise.__file__, str(-1 if user is None else user), *command]
        with self.log.open("ab") as out:
            self._supervisor = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                cwd=folder,
                env=environment,
                bufsize=0,
                start_new_session=True,  # else a Ctrl-C meant for the parent would hit the server first
            )
        line = self._answer()
        if not line:
            self.kill()
            raise ServerError(f"{command[0]} could not be run; its output was:\n{self.log_tail()}")
        self.pid = int(line)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._supervisor.poll() is None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, not to those it started; return when it was sent.

        With SIGSTOP, return when all threads of the process stand still.

        Raises:
            ServerError: it runs no more.
        """
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was killed by `kill`
            self._orders.write(bytes([number]))
        if not self._answer():
            raise ServerError(f"process {self.pid} runs no more; its output was:\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill the process and all it started, as kill -9 does; return when they are gone."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was killed before
            self._orders.write(bytes([signal.SIGKILL]))
        self._supervisor.wait(_KILL_LIMIT)
        self._orders.close()
        self._answers.close()

    def stop(self, number: int = signal.SIGTERM, limit: float = 20.0) -> None:
        """Ask the process to end with a signal, and kill it if it runs after `limit` seconds."""
        with contextlib.suppress(ServerError, subprocess.TimeoutExpired):
            self.send_signal(number)
            self.send_signal(signal.SIGCONT)  # a paused process takes the first only now
            self._supervisor.wait(limit)
        self.kill()

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])

    def _answer(self) -> bytes:
        """Return the next line of the supervisor; empty where it has ended."""
        return b"" if self._answers.closed else self._answers.readline()

    @property
    def _orders(self) -> IO[bytes]:
        """The pipe whose end ends the server."""
        assert self._supervisor.stdin  # noqa: S101 - opened as a pipe
        return self._supervisor.stdin

    @property
    def _answers(self) -> IO[bytes]:
        assert self._supervisor.stdout  # noqa: S101 - opened as a pipe
        return self._supervisor.stdout
