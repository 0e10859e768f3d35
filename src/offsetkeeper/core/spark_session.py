"""The kind of a Spark session, and secrets for it that no log shows. Imports no pyspark."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from offsetkeeper.core.silence import silent

_SERVED_S = 30
_PY4J = ("py4j.clientserver", "py4j.java_gateway")
_CONNECT = ("pyspark.sql.connect.logging", "pyspark.sql.connect.client.core")  # the second until Spark 3.5
_FUNCTION = re.compile(r'(\bcommand: ")(?:[^"\\]|\\.)*"', re.DOTALL)


def is_connect(spark: Any) -> bool:
    """Whether this is a session, or a frame, of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def unlogged() -> Iterator[None]:
    """Hand a secret to Spark: at DEBUG, its libraries would log it.

    Meanwhile this thread logs nothing of py4j. The client of Spark Connect sends a function again with each action, so
    from now on it logs its requests without functions.
    """
    for name in _CONNECT:
        logging.getLogger(name).addFilter(_without_functions)  # a second time it does nothing
    with silent(_PY4J):
        yield


def map_in_arrow(frame: Any, work: Any, schema: str, **words: Any) -> Any:
    """Return `frame.mapInArrow(work, schema, …)`. What `work` holds, such as a password, is not logged."""
    with unlogged():
        return frame.mapInArrow(work, schema, **words)


def collected(frame: Any) -> list[Any]:
    """Return `frame.collect()`, whole.

    Classic PySpark takes the end of what it gets for the end of the rows, also if the JVM, or its thread that serves
    them, has died in the middle. So this asks the JVM how the serving ended.

    Raises:
        Exception: of PySpark or py4j, if Spark could not compute the rows or has not sent all.
    """
    if is_connect(frame):
        return list(frame.collect())
    asked = _Collecting(frame._jdf)  # noqa: SLF001 - PySpark asks for a frame's rows there
    rows = list(type(frame)(asked, frame.sparkSession).collect())
    jvm = frame.sparkSession._jvm  # noqa: SLF001 - the only way to the JVM
    # All rows are here: it answers at once, or never, if its thread has ended without memory.
    asked.server.getResult(jvm.scala.concurrent.duration.Duration.create(_SERVED_S, "s"))
    return rows


def not_at_debug(spark: Any, classes: Iterable[str]) -> None:
    """Let classes of classic Spark log at INFO and above only, where Spark's log is Log4j 2, as it is by itself."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # noqa: SLF001 - the only way to Spark's log
    with suppress(TypeError):  # in place of a class that is not there, py4j has a package, which is not callable
        for name in classes:
            if log4j.LogManager.getLogger(name).isDebugEnabled():
                log4j.core.config.Configurator.setLevel(name, log4j.Level.INFO)


class _Collecting:
    """The JVM's frame, for `collect` alone: it keeps what serves the rows, which PySpark does not ask."""

    def __init__(self, jdf: Any) -> None:
        self._jdf = jdf
        self.server: Any = None

    def collectToPython(self) -> Any:  # noqa: N802 - Spark's name
        served = self._jdf.collectToPython()
        self.server = served[2]
        return served


def _without_functions(record: logging.LogRecord) -> bool:
    with suppress(TypeError, ValueError):  # a message that does not fit its arguments: logging tells
        record.msg, record.args = _FUNCTION.sub(r'\1***"', record.getMessage()), ()
    return True
