"""Whether Spark itself has died, and not only something that was asked of it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offsetkeeper.errors import OffsetkeeperError, SparkGone

_TIMEOUT_S = 5.0
_SAFE = (
    "What was committed stays committed, and the next run goes on from there: it finishes or repeats the batch under "
    "way, or with at_most_once counts it as done. Start it"
)


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
