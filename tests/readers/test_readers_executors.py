"""Executors that know nothing of offsetkeeper: confluent-kafka and pyarrow are there, or the compiled reader too."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.spark import SparkCluster

MakeTopic = Callable[..., str]
Fill = Callable[..., None]

DRIVER = """
import importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from offsetkeeper.core.offsets import (OffsetRange)
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import open_reader

master, brokers, topic, native = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
builder = builder.config("spark.driver.extraJavaOptions", quick).config("spark.executor.extraJavaOptions", quick)
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.log.level", "OFF").config("spark.task.maxFailures", "1").getOrCreate()

def known(batches):
    import importlib.util
    import pyarrow
    for batch in batches:
        found = [importlib.util.find_spec(name) is not None for name in ("offsetkeeper", "pandas")]
        yield pyarrow.RecordBatch.from_pydict({"found": found})

result = {"known": [row.found for row in spark.range(0, 1, 1, 1).mapInArrow(known, "found boolean").collect()]}
options = {"offsetkeeper.native": native}
reader = open_reader("packed", KafkaCluster(brokers, options), group="test", headers=True)
ranges = [OffsetRange(topic, partition, 1, 50) for partition in range(3)]
rows = reader.read(spark, ranges).select("partition", "offset").collect()
result["rows"] = sorted([row.partition, row.offset] for row in rows)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    """A standalone cluster of one worker with two cores."""
    with SparkCluster(workers=1, cores=2) as cluster:
        yield cluster


@pytest.fixture
def python_with(tmp_path: Path) -> Callable[..., Path]:
    """`python_with("a", "b")` is the bare interpreter with those packages and no others."""

    def make(*packages: str) -> Path:
        site = tmp_path / "site"
        site.mkdir()
        for package in packages:
            spec = find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            installed = Path(spec.origin).parent
            for folder in (installed, *installed.parent.glob(f"{package}*.libs")):
                (site / folder.name).symlink_to(folder)
        wrapper = tmp_path / "python"
        bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec "{bare}" "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        return wrapper

    return make


@pytest.fixture
def drive(cluster: SparkCluster, kafka_server: KafkaServer) -> Callable[[Path, str, str], dict[str, object]]:
    """`drive(python, topic, native)` reads on executors that run `python`, and tells what was found."""

    def run(python: Path, topic: str, native: str) -> dict[str, object]:
        command = [sys.executable, "-c", DRIVER, cluster.url, kafka_server.bootstrap, topic, native]
        environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize(
    "compiled",
    [False, pytest.param(True, marks=pytest.mark.skipif(not find_spec("offsetkeeper_native"), reason="not built"))],
)
def test_the_code_of_the_reader_travels_with_the_job(
    python_with: Callable[..., Path],
    drive: Callable[[Path, str, str], dict[str, object]],
    kafka_server: KafkaServer,
    topic: MakeTopic,
    fill: Fill,
    compiled: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    orders = topic(partitions=3)
    for partition in range(3):
        fill(kafka_server, orders, 50, partition=partition)
    more = ("offsetkeeper_native",) if compiled else ()
    found = drive(python_with("confluent_kafka", "pyarrow", *more), orders, "required" if compiled else "auto")
    assert found == {"known": [False, False], "rows": [[p, offset] for p in range(3) for offset in range(1, 50)]}
