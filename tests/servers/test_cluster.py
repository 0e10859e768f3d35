"""A Spark cluster of real processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.spark import SparkCluster

# Prints, for each task, the environment of its Python and the process of its executor.
WHERE_TASKS_RUN = """
import os, sys
from pyspark.sql import SparkSession
settings = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
}
session = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
tasks = session.sparkContext.parallelize(range(8), 8)
for line in tasks.mapPartitions(lambda _: [f"{sys.prefix}\\t{os.getppid()}"]).collect():
    print(line)
session.stop()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    """A cluster that the tests of this file may kill."""
    with SparkCluster(memory="512m") as cluster:
        yield cluster


def where_tasks_run(url: str) -> set[tuple[str, str]]:
    """Run a job on the cluster; return the Python environments and executors of its tasks."""
    command = [sys.executable, "-c", WHERE_TASKS_RUN, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return {(python, executor) for python, executor in (line.split("\t") for line in done.stdout.splitlines())}


def test_tasks_run_on_every_worker_in_the_python_of_the_tests(cluster: SparkCluster) -> None:
    found = where_tasks_run(cluster.url)
    assert {python for python, _ in found} == {sys.prefix}
    assert len({executor for _, executor in found}) == 2


def test_a_killed_worker_is_missed_by_nobody_once_it_is_back(cluster: SparkCluster) -> None:
    victim, other = cluster.workers
    victim.kill()
    wait_until(lambda: cluster.master.workers_alive() == {other.port}, "the master missed the worker", 90)
    victim.restart()
    assert cluster.master.workers_alive() == {victim.port, other.port}


@pytest.mark.soak
def test_a_cluster_killed_as_a_whole_comes_back_on_its_url(cluster: SparkCluster) -> None:
    url = cluster.url
    cluster.kill()
    assert cluster.master.workers_alive() == set()
    cluster.restart()
    assert cluster.url == url
    assert len(cluster.master.workers_alive()) == 2


def test_the_session_of_the_tests_reads_and_writes_the_broker(
    spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str]
) -> None:
    options = {"kafka.bootstrap.servers": kafka_server.bootstrap}
    name = topic(2)
    frame = spark.createDataFrame([(b"key", b"value")], "key binary, value binary")
    frame.write.format("kafka").options(**options, topic=name).save()
    read = spark.read.format("kafka").options(**options, subscribe=name).load()
    assert [(bytes(row.key), bytes(row.value)) for row in read.collect()] == [(b"key", b"value")]
