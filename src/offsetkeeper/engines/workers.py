"""Whether the Python of Spark's workers has what a run needs: one clear line before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from offsetkeeper.errors import MissingExtra, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = {
    "cassandra": "cassandra-driver",
    "confluent_kafka": "confluent-kafka",
    "psycopg": "psycopg[binary]",
    "pymysql": "PyMySQL",
}
_REMEDY = "set PYSPARK_PYTHON, or spark.pyspark.python, to one that has what the driver has, before the session begins"
_WRONG = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\r\n]*|Cannot run program[^\r\n]*")
_checked: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def check_workers(spark: SparkSession, modules: Collection[str]) -> None:
    """Check, once for each session, that Spark's workers can import the modules: a job of one small task.

    Args:
        spark: the session.
        modules: names of modules; without any nothing is asked.

    Raises:
        MissingExtra: a worker lacks some of them.
        SettingsError: Spark cannot start the workers' Python, or it is of another version than the driver's.
    """
    unknown = set(modules) - _checked.get(spark, set()) if modules else set()
    if not unknown:
        return
    python, *missing = _ask(spark, sorted(unknown))
    if missing:
        packages = " ".join(repr(_PACKAGES.get(name, name)) for name in missing)
        raise MissingExtra(
            f"the Python of Spark's workers, {python}, cannot import {', '.join(missing)}: install {packages} there, "
            f"or {_REMEDY}"
        )
    _checked.setdefault(spark, set()).update(unknown)


def _ask(spark: SparkSession, modules: list[str]) -> list[str]:
    from pyspark.sql.functions import lit, udf  # noqa: PLC0415 - `import offsetkeeper` must not load it
    from pyspark.sql.types import ArrayType, StringType  # noqa: PLC0415 - as above

    def look(wanted: str) -> list[str]:  # a function in a function is pickled by value
        import sys  # noqa: PLC0415 - runs on a worker
        from importlib.util import find_spec  # noqa: PLC0415 - as above

        version = ".".join(map(str, sys.version_info[:3]))
        return [f"{sys.executable} ({version})", *(name for name in wanted.split() if find_spec(name) is None)]

    asked: Any = udf(look, ArrayType(StringType()), useArrow=False)  # with it the question itself would need pyarrow
    try:
        [[found]] = spark.range(1).select(asked(lit(" ".join(modules)))).collect()
    except Exception as error:
        wrong = _WRONG.search(str(error))
        if wrong is None:
            raise
        raise SettingsError(f"Spark's workers cannot run Python: {wrong[0].strip()}. To mend it, {_REMEDY}") from error
    return list(found)
