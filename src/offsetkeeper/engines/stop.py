"""How a run is ended from outside: a signal or a call stops it, or Spark dies.

After the first SIGTERM or SIGINT the current batch finishes; the second signal has its usual effect.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.executors import error_text
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.errors import OffsetkeeperError, SparkGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMEOUT_S = 5.0
_SAFE = (
    "Committed batches stay committed, and the next run resumes after them: it finishes or repeats the pending "
    "batch, or with at_most_once counts it as done. Start it"
)


class Stopped(Exception):
    """Ends what only a run that goes on needs: the run is asked to stop."""


class Stop:
    """Requests the end of a run, from any thread or signal handler.

    A `threading.Event` would deadlock: a signal handler that sets it while the main thread enters or leaves `wait`
    waits for ever for a lock that the main thread holds.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._set

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested."""
        if self._set:
            raise Stopped

    def clear(self) -> None:
        """Withdraw the request."""
        self._set = False
        self._wake = SimpleQueue()

    def wait(self, seconds: float) -> None:
        """Return when a stop is requested, or after `seconds`."""
        with suppress(Empty):
            if not self._set:
                self._wake.get(timeout=seconds)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT while the block runs; do nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


def spark_gone(error: BaseException) -> SparkGone | None:
    """Return a `SparkGone` error if Spark has died, else None.

    Args:
        error: the error that was raised. Spark's errors do not distinguish a dead JVM from an output that refuses
            connections, so this checks whether Spark still answers. Errors of offsetkeeper need no check.
    """
    if isinstance(error, OffsetkeeperError):
        return None
    jvm = _jvm()
    if jvm is not None and _refuses(jvm):
        return SparkGone(
            f"Spark is gone: its JVM at {jvm[0]}:{jvm[1]} does not answer. {_SAFE} in a new process, because "
            "PySpark cannot start a second JVM in one process. See the log of the JVM or of the system for the cause: "
            "often it is memory"
        )
    if type(error).__module__ == "pyspark.errors.exceptions.connect" and "StatusCode.UNAVAILABLE" in error_text(error):
        return SparkGone(
            f"Spark is gone: the server of Spark Connect does not answer. {_SAFE} with a new session when it answers "
            "again"
        )
    return None


def check_spark(frame: DataFrame | None) -> None:
    """Ask the JVM of classic Spark whether it lives: for a frame whose rows PySpark may have read in part.

    Raises:
        Exception: of py4j, if it has died; see `spark_gone`.
    """
    gateway = _gateway()
    if gateway is not None and not is_connect(frame):
        gateway.jvm.System.nanoTime()


@contextmanager
def telling_spark_gone() -> Iterator[None]:
    """If Spark has died, raise `SparkGone` instead of the error of the block."""
    try:
        yield
    except Exception as error:
        gone = spark_gone(error)
        if gone is None:
            raise
        raise gone from error


def _jvm() -> tuple[str, int] | None:
    """Return the address of this process's JVM; None if there is none, as with Spark Connect."""
    gateway = _gateway()
    return gateway and (gateway.gateway_parameters.address, gateway.gateway_parameters.port)


def _gateway() -> Any:
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)  # missing if only Connect is installed
    return context and context._gateway  # noqa: SLF001 - there is no public access


def _refuses(address: tuple[str, int]) -> bool:
    """Whether the connection is refused. A slow answer, or no free socket in this process, does not count."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
