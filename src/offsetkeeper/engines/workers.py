"""Whether the Python of Spark's workers has what a run needs: one clear line before anything is touched."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from offsetkeeper.core.spark_session import collected
from offsetkeeper.errors import MissingExtra, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = {
    "cassandra": "cassandra-driver",
    "confluent_kafka": "confluent-kafka",
    "deltalake": "deltalake",
    "numpy": "numpy",
    "offsetkeeper_native": "offsetkeeper[native]",
    "psycopg": "psycopg[binary]",
    "pyarrow": "pyarrow",
    "pyiceberg": "pyiceberg[pyiceberg-core]==0.12.0",
    "pymysql": "PyMySQL",
}
log = logging.getLogger("offsetkeeper")
_REMEDY = "set PYSPARK_PYTHON, or spark.pyspark.python, to one that has what the driver has, before the session begins"
_OWN_MODULE = "add a module of your own to spark.submit.pyFiles, "
_WRONG = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\r\n]*|Cannot run program[^\r\n]*")
_checked: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def check_workers(spark: SparkSession, modules: Collection[str], variables: Collection[str] = ()) -> None:
    """Check, once for each session, that Spark's workers have what a run needs: a job of one small task.

    Args:
        spark: the session.
        modules: names of modules that they import.
        variables: of the environment, which are set there. Without modules and variables nothing is asked.

    Raises:
        MissingExtra: a worker lacks modules.
        SettingsError: a worker lacks variables; Spark cannot start the workers' Python, or it is of another version
            than the driver's.
    """
    wanted = {*modules, *(f"${name}" for name in variables)}
    unknown = wanted - _checked.get(spark, set()) if wanted else set()
    if not unknown:
        return
    log.info("asking the Python of Spark's workers for what the run needs, once for each session")
    python, *missing = _ask(spark, sorted(unknown))
    lacking = [name for name in missing if not name.startswith("$")]
    if lacking:
        packages = " ".join(repr(_PACKAGES.get(name, name)) for name in lacking)
        raise MissingExtra(
            f"the Python of Spark's workers, {python}, cannot import {', '.join(lacking)}: install {packages} there, "
            f"{'' if _PACKAGES.keys() >= {*lacking} else _OWN_MODULE}or {_REMEDY}"
        )
    if missing:
        raise SettingsError(
            f"the Python of Spark's workers, {python}, lacks the environment variable {missing[0][1:]}, which the "
            f"settings name: set it where the executors start, for all alike with spark.executorEnv.{missing[0][1:]}"
        )
    _checked.setdefault(spark, set()).update(unknown)


def _ask(spark: SparkSession, wanted: list[str]) -> list[str]:
    """Return the workers' Python, and what of the modules and `$variables` it lacks."""
    from pyspark.sql.functions import lit, udf  # noqa: PLC0415 - `import offsetkeeper` must not load it
    from pyspark.sql.types import ArrayType, StringType  # noqa: PLC0415 - as above

    def look(wanted: str) -> list[str]:  # a function in a function is pickled by value
        import os  # noqa: PLC0415 - runs on a worker
        import sys  # noqa: PLC0415 - as above
        from importlib.util import find_spec  # noqa: PLC0415 - as above

        def has(name: str) -> bool:
            if name.startswith("$"):
                return bool(os.environ.get(name[1:]))
            try:
                return find_spec(name) is not None
            except ModuleNotFoundError:  # a package around it is not there
                return False

        version = ".".join(map(str, sys.version_info[:3]))
        return [f"{sys.executable} ({version})", *(name for name in wanted.split() if not has(name))]

    asked: Any = udf(look, ArrayType(StringType()), useArrow=False)  # with it the question itself would need pyarrow
    try:
        [[found]] = collected(spark.range(1).select(asked(lit(" ".join(wanted)))))
    except Exception as error:
        wrong = _WRONG.search(str(error))
        if wrong is None:
            raise
        raise SettingsError(f"Spark's workers cannot run Python: {wrong[0].strip()}. To mend it, {_REMEDY}") from error
    return list(found)
