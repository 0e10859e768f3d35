"""The commands of docs/spark-submit.md, on a standalone cluster whose workers lack offsetkeeper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from docs.pages import ROOT, blocks
from engines.pythons import python_without
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import java, spark_home
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.spark import SparkCluster
from sparks.releases import build_wheel

PAGE = ROOT / "docs" / "spark-submit.md"
LIMIT_S = 300
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = f"""
spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions {QUICK}
spark.executor.extraJavaOptions {QUICK}
spark.executor.memory 512m
spark.log.level ERROR
spark.ui.enabled false
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    """Two workers."""
    with SparkCluster(memory="512m") as cluster:
        yield cluster


def command(word: str) -> str:
    """Return the line of the page that has this word and runs the program."""
    [line] = [line for line in PAGE.read_text("utf-8").splitlines() if word in line and line.endswith(" app.py")]
    return line


@pytest.mark.parametrize(
    ("word", "reader"),
    [
        ("--py-files", "packed"),
        ("MASTER=", "packed"),
        pytest.param("--deploy-mode", "packed", marks=pytest.mark.soak),
        pytest.param("--packages", "connector", marks=pytest.mark.soak),
    ],
)
def test_the_program_of_the_page_runs_as_the_page_says(
    word: str, reader: str, cluster: SparkCluster, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2)
    places = {
        r"\bspark-submit\b": str(spark_home() / "bin" / "spark-submit"),
        r"spark://master:7077": cluster.url,
        r"driver/bin/python": sys.executable,
        r"dist/\S+\.whl": str(build_wheel(tmp_path)) if word == "--py-files" else "",
        r"--packages \S+": f"--jars {','.join(map(str, fetch_jars('connector')))}",
    }
    line = command(word)
    for place, real in places.items():
        line = re.sub(place, real, line)
    [program] = blocks(PAGE)
    program = program.replace("localhost:9092", kafka_server.bootstrap).replace(
        '["orders"]', f'["{name}"], reader="{reader}"'
    )
    (tmp_path / "app.py").write_text(f"{program}\nimport offsetkeeper\nprint(offsetkeeper.__file__)\n", "utf-8")
    (tmp_path / "spark-defaults.conf").write_text(SETTINGS, "utf-8")
    workers = tmp_path / "workers"
    workers.mkdir()
    given = {
        "JAVA_HOME": str(java().resolve().parent.parent),
        "PYSPARK_PYTHON": str(python_without(workers, "offsetkeeper")),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    produce(kafka_server, name)
    shell = ["/bin/sh", "-c", line]
    done = subprocess.run(
        shell, cwd=tmp_path, env=os.environ | given, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{name} 0 0 5\n{name} 1 0 5 10\n" in done.stdout
    assert (".whl/offsetkeeper/" in done.stdout) == (word == "--py-files")


def produce(kafka: KafkaServer, topic: str) -> None:
    """Produce five records to each of two partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce(topic, b"x", partition=number % 2)
    assert producer.flush(60) == 0
