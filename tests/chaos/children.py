"""Fresh processes by the hundred: one that has loaded everything and opened nothing forks a child for each run."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from chaos.driver import Settings, main
from offsetkeeper.core.trace import VARIABLE
from offsetkeeper.testing.server import wait_until

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIMIT_S = 200
_RUNNING = "running"
STORES = ("sqlite", "postgresql", "redis", "kafka", "zookeeper", "mysql", "folder")
"""What drivers open, by the names of their modules."""


class Child:
    """One run of the driver."""

    def __init__(self, children: Children, pid: int) -> None:
        self._children, self._pid = children, pid

    def wait(self) -> int | None:
        """Return its exit code, negative for the signal that ended it, or None once it is stopped by one."""
        answers: list[int | None] = []

        def answered() -> bool:
            answer = self._children.ask({"wait": self._pid})
            answers.extend([] if answer == _RUNNING else [answer])
            return bool(answers)

        wait_until(answered, "the driver ended or stopped", _LIMIT_S)
        return answers[0]

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._pid

    def kill(self) -> None:
        """Kill it, stopped or not."""
        os.kill(self._pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def go_on(self) -> int | None:
        """Let it go on after it was stopped, and return as `wait` does."""
        os.kill(self._pid, signal.SIGCONT)
        return self.wait()


class Children:
    """Starts runs of the driver, from any thread; a context manager at whose end none of them lives.

    Args:
        folder: what they print goes into a file of it.
    """

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "errors"
        self._errors.touch()
        self._lock = threading.Lock()

    def start(self, settings: Settings) -> Child:
        """Start a run."""
        return Child(self, self.ask({"run": asdict(settings), "traces": os.environ.get(VARIABLE, "")}))

    def errors(self) -> str:
        """Return the end of what they printed."""
        return self._errors.read_text("utf-8")[-5000:]

    def ask(self, order: dict[str, Any]) -> Any:
        """Send an order and return the answer."""
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.children", str(self._errors)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate(timeout=_LIMIT_S)


def serve(orders: IO[str], answers: IO[str], errors: str) -> None:
    """Fork and look after the children as ordered, until the orders end."""
    for line in orders:
        order = json.loads(line)
        answer = _look(order["wait"]) if "wait" in order else (os.fork() or _child(order, errors))
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


def _look(pid: int) -> int | str | None:
    found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    if not found:
        return _RUNNING
    return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def _child(order: dict[str, Any], errors: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    code = 1
    try:
        os.environ[VARIABLE] = order["traces"]
        code = main(Settings(**order["run"]), errors)
    finally:
        os._exit(code)


if __name__ == "__main__":
    # Loaded here, so that no child has to; pyarrow asks for pandas.
    for name in ("confluent_kafka.admin", "pandas", *(f"offsetkeeper.stores.{store}" for store in STORES)):
        importlib.import_module(name)
    serve(sys.stdin, sys.stdout, sys.argv[1])
