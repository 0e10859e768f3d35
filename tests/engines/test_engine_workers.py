"""What the Python of Spark's workers lacks is one line at the start of a run, before anything is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engines.pythons import python_without
from offsetkeeper.engines.workers import check_workers
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.testing.kafka import KafkaServer

RUN = """
import json, sys
from pyspark.sql import SparkSession
from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table
given = json.loads(sys.argv[1])
spark = SparkSession.builder.config(map=given["session"]).getOrCreate()
shop = Table("postgresql://nobody@127.0.0.1:9/shop", "orders")
for how in ("run", "start"):
    pipeline = Pipeline(**given["pipeline"])
    more = {"until": "caught_up"} if how == "run" else {"checkpoint": given["checkpoint"]}
    try:
        getattr(pipeline, how)(spark, sink=shop, **more)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def poor_python(tmp_path: Path) -> Path:
    """A Python with all that this one has installed, but for the client libraries of Kafka and PostgreSQL."""
    return python_without(tmp_path, "confluent_kafka", "psycopg")


def test_modules_that_workers_lack_are_named_before_anything_is_touched(
    kafka_server: KafkaServer, poor_python: Path, tmp_path: Path
) -> None:
    pipeline = {
        "group": "billing",
        "store": f"sqlite:///{tmp_path}/offsets.db",
        "brokers": kafka_server.bootstrap,
        "topics": ["orders"],
    }
    session = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.log.level": "OFF"}
    given = {"session": session, "pipeline": pipeline, "checkpoint": str(tmp_path / "checkpoint")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(given)],
        env=os.environ | {"PYSPARK_PYTHON": str(poor_python)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("MissingExtra: the Python of Spark's workers, ")
    assert "cannot import confluent_kafka, psycopg: install 'confluent-kafka' 'psycopg[binary]' there" in first
    assert not (tmp_path / "offsets.db").exists()
    assert not (tmp_path / "checkpoint").exists()


def test_a_module_of_the_user_that_workers_lack_is_named(spark: SparkSession) -> None:
    """Such as a token provider's; here not even the package around it is there."""
    with pytest.raises(MissingExtra, match=r"cannot import my_company\.tokens: .* to spark\.submit\.pyFiles"):
        check_workers(spark, ["my_company.tokens", "pyarrow"])


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "cannot run Python: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9. To mend it, set",
        ),
        (
            'SparkException: Job aborted: java.io.IOException: Cannot run program "python9": error=2\n\tat Java',
            'cannot run Python: Cannot run program "python9": error=2. To mend it, set PYSPARK_PYTHON',
        ),
    ],
)
@pytest.mark.usefixtures("spark")  # without any session no question can be put
def test_a_python_that_cannot_run_is_told_without_java(told: str, says: str) -> None:
    """What Spark raises is made up: not every machine has another Python."""

    class Session:
        def range(self, _: int) -> Any:
            raise RuntimeError(told)

    session: Any = Session()
    with pytest.raises(SettingsError) as raised:
        check_workers(session, ["pyarrow"])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
