"""Which Spark is installed, and which Kafka connectors it would load: told by its files, no JVM is started."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from offsetkeeper.operate.doctor.facts import SparkFacts

_CORE = re.compile(r"spark-core_[\d.]+-(\d.*)\.jar")
_CONNECTOR = re.compile(r"spark-sql-kafka-0-10_[\d.]+[-:]([\w.-]+?)(?:\.jar)?")


def installed_spark(given: Mapping[str, str]) -> SparkFacts | None:
    """Return the Spark of SPARK_HOME, else the one that pip installed; None where there is neither.

    Args:
        given: settings of Spark, over those of its spark-defaults.conf.
    """
    home = _home()
    if home is None:
        return None
    names = [path.name for path in (home / "jars").glob("*.jar")]
    version = next((match[1] for name in names if (match := _CORE.fullmatch(name))), None)
    if version is None:
        return None
    settings = _defaults(Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf") | {**given}
    more = [part for name in ("spark.jars", "spark.jars.packages") for part in settings.get(name, "").split(",")]
    return SparkFacts(version, tuple(_connectors([*names, *more])), settings)


def _home() -> Path | None:
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else None


def _connectors(names: Iterable[str]) -> Iterable[str]:
    """Return the versions, each once; a name is a jar's, a path to one, or its coordinates."""
    found = (_CONNECTOR.fullmatch(re.split(r"[/\\]|^[^:]*:(?=spark-)", name.strip())[-1]) for name in names)
    return sorted({match[1] for match in found if match})


def _defaults(path: Path) -> dict[str, str]:
    """Return the settings of a spark-defaults.conf: a name, then its value after spaces or `=`."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return {}
    pairs = (re.split(r"\s*[=\s]\s*", line.strip(), maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
