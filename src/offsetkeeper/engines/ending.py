"""What ends a run from outside: a signal or a call asks it to stop, or Spark dies under it.

The first SIGTERM or SIGINT lets the batch under way finish; the second acts as ever.
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
from typing import Any

from offsetkeeper.errors import OffsetkeeperError, SparkGone

_TIMEOUT_S = 5.0
_SAFE = (
    "What was committed stays committed, and the next run goes on from there: it finishes or repeats the batch under "
    "way, or with at_most_once counts it as done. Start it"
)


class Stop:
    """Asks a run to end, from any thread or signal handler.

    A `threading.Event` would not do: a handler that sets it while the main thread is on its way into or out of `wait`
    waits for a lock that this very thread holds, for ever.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether it was asked."""
        return self._set

    def clear(self) -> None:
        """Take it back."""
        self._set = False
        self._wake = SimpleQueue()

    def wait(self, seconds: float) -> None:
        """Return when it was asked, or `seconds` have passed."""
        with suppress(Empty):
            if not self._set:
                self._wake.get(timeout=seconds)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT while the block runs; does nothing outside of the main thread."""
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
    """Return the error that says so where Spark has died, else None.

    Args:
        error: what was raised. Spark's own errors do not tell a dead JVM from an output that refuses connections, so
            it is asked whether it is there. Errors of offsetkeeper are known for what they are.
    """
    if isinstance(error, OffsetkeeperError):
        return None
    jvm = _jvm()
    if jvm is not None and _refuses(jvm):
        return SparkGone(
            f"Spark is gone: nobody answers at {jvm[0]}:{jvm[1]}, where its JVM was. {_SAFE} in a new process, as "
            "PySpark starts no second JVM in one. Why the JVM ended is in its log or the system's: often it is memory"
        )
    if type(error).__module__ == "pyspark.errors.exceptions.connect" and "StatusCode.UNAVAILABLE" in str(error):
        return SparkGone(
            f"Spark is gone: the server of Spark Connect does not answer. {_SAFE} with a new session once it does"
        )
    return None


@contextmanager
def telling_spark_gone() -> Iterator[None]:
    """Raise `SparkGone` in place of what the block raises because Spark has died."""
    try:
        yield
    except Exception as error:
        gone = spark_gone(error)
        if gone is None:
            raise
        raise gone from error


def _jvm() -> tuple[str, int] | None:
    """Return where the JVM of this process takes calls; None without one, as with Spark Connect."""
    context: Any = sys.modules.get("pyspark.core.context")
    gateway = context and context.SparkContext._gateway  # noqa: SLF001 - there is no public way to it
    return gateway and (gateway.gateway_parameters.address, gateway.gateway_parameters.port)


def _refuses(address: tuple[str, int]) -> bool:
    """Whether nobody listens there. One that only takes long, or that this process has no socket left for, may."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
