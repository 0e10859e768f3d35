"""Whole processes: asked to stop by a signal, and on a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from engines import child
from engines.lab import LIMIT_S, QUICK, Lab
from engines.pythons import python_without
from offsetkeeper.testing.java import java
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.spark import SparkCluster

NewTopic = Callable[..., str]
CREATE = 'create table orders (topic text, partition int, "offset" bigint, value text)'
SESSION: Mapping[str, Any] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


class Child:
    """A run of `child.py`; a context manager at whose end it is killed if it still runs.

    Args:
        lab: whose store, with a table `orders`, and broker it uses.
        topic: to read.
        session: settings of its Spark session.
        until: when it ends.
        python: of the executors, if not that of the tests; it is asked whether it knows offsetkeeper.
    """

    def __init__(
        self, lab: Lab, topic: str, *, session: Mapping[str, str], until: str = "stopped", python: Path | None = None
    ) -> None:
        pipeline = {**QUICK, "store": lab.store, "brokers": lab.kafka.bootstrap, "topics": [topic]}
        spark = {**SESSION, **session}
        settings = {"pipeline": pipeline, "until": until, "spark": spark, "ask_executors": python is not None}
        self._python = str(python or sys.executable)
        self._command = [sys.executable, child.__file__, json.dumps(settings)]

    def wait_for(self, line: str) -> None:
        """Wait for the next line it prints, which must be this one."""
        assert self.process.stdout
        assert self.process.stdout.readline().rstrip() == line

    def go_on(self) -> None:
        """Let it go on with its batch."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def catches(self, number: int) -> bool:
        """Whether it has a handler for the signal: see proc(5)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
        return bool(int(mask, 16) >> (number - 1) & 1)

    def __enter__(self) -> Self:
        environment = os.environ | {"PYSPARK_PYTHON": self._python, "JAVA_HOME": str(java().resolve().parent.parent)}
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, process_group=0
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def shop(lab: Lab, database: str) -> Lab:
    """A lab whose store is in PostgreSQL, beside a table `orders`."""
    lab.store = database
    with psycopg.connect(database) as connection:
        connection.execute(CREATE)
    return lab


def orders(shop: Lab) -> list[str]:
    """Return the values in the table."""
    with closing(psycopg.connect(shop.store)) as connection:
        return [value for (value,) in connection.execute("select value from orders order by value").fetchall()]


def test_sigterm_lets_the_batch_under_way_finish_and_gives_the_group_back(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a")
    with Child(shop, name, session={"spark.master": "local[1]"}) as run:
        run.wait_for("batch")
        shop.produce(name, "b")
        run.process.send_signal(signal.SIGTERM)
        run.go_on()
        run.wait_for("ended stopped")
        assert run.process.wait(LIMIT_S) == 0
    assert orders(shop) == ["a"]
    assert (shop.offsets(), shop.snapshot().owner) == ({0: 1}, None)


def test_a_second_sigterm_ends_the_process_at_once_and_the_next_run_takes_over(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a")
    with Child(shop, name, session={"spark.master": "local[1]"}) as run:
        run.wait_for("batch")
        run.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not run.catches(signal.SIGTERM), "the first signal was handled", LIMIT_S)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(LIMIT_S) == -signal.SIGTERM
    assert orders(shop) == []
    assert shop.snapshot().owner is not None
    assert shop.read(name) == ["a"]
    assert shop.snapshot().owner is None


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with all that this one has installed, but for offsetkeeper."""
    return python_without(tmp_path, "offsetkeeper")


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers."""
    with SparkCluster(workers=2, memory="512m") as cluster:
        yield cluster


def test_a_cluster_whose_workers_know_nothing_of_offsetkeeper_runs_a_pipeline(
    shop: Lab, topic: NewTopic, cluster: SparkCluster, bare_python: Path
) -> None:
    name = topic(4)
    shop.produce_all(name, [(n % 4, str(n)) for n in range(100, 200)])
    settings = {
        "spark.master": cluster.url,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    with Child(shop, name, until="caught_up", python=bare_python, session=settings) as run:
        run.wait_for("executors without offsetkeeper")
        run.wait_for("batch")
        run.go_on()
        run.wait_for("ended caught_up")
        assert run.process.wait(LIMIT_S) == 0
    assert orders(shop) == [str(n) for n in range(100, 200)]
