"""What each release of Spark can do for a reader: the one place that knows. docs/running.md has a table for people."""

from __future__ import annotations

import re
import sys
from typing import Protocol

from offsetkeeper.errors import SparkTooOld

# From here on Spark tells a source in Python where a batch starts, and how much it may have. Before, a source
# has to guess the first and cannot keep to `max_records`.
_PACKED_STREAMS = (4, 2)
_SCALA_213 = (4, 0)  # pip's older ones are of Scala 2.12


class Session(Protocol):
    """As much of a Spark session as matters here."""

    @property
    def version(self) -> str:
        """The release of the Spark that runs the session."""
        ...


def spark_version(spark: Session) -> str:
    """Return the release that decides: of the session, or of this Python's PySpark where that is older.

    They differ with Spark Connect alone: a source in Python must be known on both sides.
    """
    client: str = getattr(sys.modules.get("pyspark"), "__version__", spark.version)
    return min(spark.version, client, key=_minor)


def packed_streams(version: str) -> bool:
    """Whether the packed reader can be the source of a query."""
    return _minor(version) >= _PACKED_STREAMS


def check_packed_streams(version: str) -> None:
    """Refuse a query whose source the packed reader cannot be.

    Raises:
        SparkTooOld: this release cannot do it.
    """
    if not packed_streams(version):
        raise SparkTooOld(
            f"reader='packed' cannot read for a streaming query on Spark {version}: it needs Spark "
            f"{'.'.join(map(str, _PACKED_STREAMS))} or newer, which tells a source in Python where a batch starts. "
            f"Nothing was changed. Use reader='auto' or 'connector', with {connector_package(version)} in "
            "spark.jars.packages; or Pipeline.run, which reads with 'packed' on this Spark too"
        )


def connector_package(version: str) -> str:
    """Return the Maven coordinates of Spark's Kafka connector for this release of Spark."""
    scala = "2.13" if _minor(version) >= _SCALA_213 else "2.12"
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{version}"


def _minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; a version without numbers counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (999, 0)
