"""A driver of the demo: a process that reports its events, and can be halted, continued and killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from offsetkeeper.testing.errors import ServerError

if TYPE_CHECKING:
    from offsetkeeper.demo.driver import Settings

Event = Mapping[str, Any]
_LIMIT = 120.0


class Driver:
    """One run of `offsetkeeper.demo.driver`, with all processes it starts.

    Args:
        settings: its settings.
        on_event: called with each event, from a thread of the driver's own.
    """

    def __init__(self, settings: Settings, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "offsetkeeper.demo.driver", json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait_for(self, name: str) -> Event:
        """Return the next event of this name.

        Raises:
            ServerError: the driver ended before, or said nothing for two minutes; the error ends with its log.
        """
        while True:
            try:
                event = self._events.get(timeout=_LIMIT)
            except queue.Empty:
                event = None
            if event is None:
                self.kill()
                raise ServerError(f"the driver did not come to {name!r}; its log ends with:\n{self._log_tail()}")
            if event["event"] == name:
                return event

    def go(self) -> None:
        """Let a halted driver go on."""
        self._pipe.write("go\n")
        self._pipe.flush()

    def terminate(self) -> int:
        """Ask for a clean stop and return the exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Return the exit code after all events were handled."""
        code = self._process.wait(_LIMIT)
        self._listener.join(_LIMIT)
        return code

    def kill(self) -> None:
        """Kill it and all it started with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_LIMIT)
        self._listener.join(_LIMIT)

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin  # noqa: S101 - opened as a pipe
        return self._process.stdin

    def _listen(self) -> None:
        assert self._process.stdout  # noqa: S101 - opened as a pipe
        with self._process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:  # killed in the middle of a line, or a word of Spark's own
                    continue
                self._on_event(event)
                self._events.put(event)
        self._events.put(None)

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]
