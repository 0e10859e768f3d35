"""The lag of a group on one pass over thousands of partitions, against Kafka's own tool, on one real broker.

    python benchmarks/lag.py [--partitions 10000] [--rounds 5]

Both take turns. Ours reads the ledger out of SQLite, and tells records, seconds and retention; the tool, the class that
kafka-consumer-groups.sh starts, reads Kafka's group and tells records only. Each is a process of its own, as at the
command line; `pass_s` is our pass alone, in a process that runs on, as in `serve` and `lag --watch`, and `pass_cpu_s`
its own share of the processors. The broker needs 15,000 open files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, left out of its stubs

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.consumers import Consumers
from offsetkeeper.operate.lag import group_lag
from offsetkeeper.stores import open_store
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.java import java
from offsetkeeper.testing.kafka import KafkaServer, KafkaServers
from offsetkeeper.testing.server import wait_until

GROUP = "shop"
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_EACH = 1_000  # partitions of a topic
_BEHIND = 2
_LIMIT_S = 120.0
# Kafka's own settings for what the tests' broker does so often that it does little else with so many partitions.
CALM = {
    "log.retention.check.interval.ms": "300000",
    "log.index.size.max.bytes": "4096",
    "log.initial.task.delay.ms": "300000",
}


class LargeServer(KafkaServer):
    """A broker with memory for thousands of partitions."""

    heap = "2g"


def fill(server: KafkaServer | KafkaServers, partitions: list[TopicPartition]) -> None:
    """Make the topics, put records into every partition, and let Kafka's group stand where the ledger stands.

    The topics are made one after the other, each with a time limit of its own, and each is shown when it is full.
    """
    admin = server.admin()
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 50, "message.timeout.ms": 600_000})
    with KafkaCluster(server.bootstrap, timeout_s=_LIMIT_S) as cluster:
        for topic, those in groupby(sorted(partitions), key=lambda tp: tp.topic):
            parts = [*those]
            asked = NewTopic(topic, num_partitions=len(parts), replication_factor=1)
            admin.create_topics([asked])[topic].result(_LIMIT_S)
            wait_until(partial(known, cluster, topic), f"{topic} was known", _LIMIT_S)
            cluster.bounds(parts)  # it asks again until each partition has a leader
            produce(producer, parts)
            print(f"{topic}: {len(parts)} partitions are full", file=sys.stderr)
    consumers = Consumers(lambda settings: Consumer({**settings, "bootstrap.servers": server.bootstrap}), _LIMIT_S)
    consumers.commit(GROUP, dict.fromkeys(partitions, 1))


def known(cluster: KafkaCluster, topic: str) -> bool:
    """Whether Kafka knows a topic."""
    return topic in cluster.describe({topic})


def produce(producer: Producer, partitions: list[TopicPartition]) -> None:
    """Write records into every partition, and wait until all are written."""
    lost: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            lost.append(str(error))

    for tp in partitions:
        for _ in range(_BEHIND + 1):
            producer.produce(tp.topic, b"x" * 100, partition=tp.partition, callback=delivered)
        producer.poll(0)
    if producer.flush(_LIMIT_S) or lost:
        raise RuntimeError(f"records were not written: {lost[:1]}")


def seconds(act: Callable[[], int], expected: int) -> float:
    """Return how long a measurement of the lag took; it must be right."""
    began = time.perf_counter()
    found = act()
    took = time.perf_counter() - began
    if found != expected:
        raise RuntimeError(f"a lag of {found} records was told, it is {expected}")
    return took


def tool(server: KafkaServer) -> int:
    """Return the lag that Kafka's tool tells."""
    jars = [*fetch_jars("kafka"), *fetch_jars("kafka-tools")]
    command = [str(java()), "-cp", ":".join(map(str, jars)), TOOL, "--bootstrap-server", server.bootstrap]
    command += ["--describe", "--group", GROUP, "--timeout", "60000"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in told.splitlines() if line.startswith(GROUP)]
    return sum(int(row[5]) for row in rows)


def command(server: KafkaServer, store: str) -> int:
    """Return the lag that our command tells."""
    program = str(Path(sys.executable).with_name("offsetkeeper"))
    arguments = ["lag", GROUP, "--store", store, "--brokers", server.bootstrap, "--json"]
    told = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, env={**os.environ}).stdout
    return int(json.loads(told)["records"])


def measure(server: KafkaServer, store: str, partitions: list[TopicPartition], rounds: int) -> dict[str, Any]:
    """Return the medians of all, by turns."""
    ledger = Ledger(open_store(store), GROUP)
    ledger.acquire()
    ledger.place({tp: Position(1) for tp in partitions})
    behind = len(partitions) * _BEHIND
    times: dict[str, list[float]] = {"pass": [], "command": [], "tool": []}
    with KafkaCluster(server.bootstrap) as cluster:

        def one_pass() -> int:
            return sum(each.records or 0 for each in group_lag(ledger.load(), cluster))

        for number in range(rounds + 1):
            found = {
                "pass": seconds(one_pass, behind),
                "command": seconds(lambda: command(server, store), behind),
                "tool": seconds(lambda: tool(server), behind),
            }
            print(f"round {number}: {found}", file=sys.stderr)
            for name, took in found.items() if number else ():  # the first one warms up
                times[name].append(took)
        known = [each.seconds is not None and not each.estimated for each in group_lag(ledger.load(), cluster)]
        began = time.process_time()
        one_pass()
        cpu_s = round(time.process_time() - began, 2)
    medians = {f"{name}_s": round(statistics.median(values), 2) for name, values in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["tool"], times["command"], strict=True))
    return {**medians, "pass_cpu_s": cpu_s, "tool_over_command": round(ratio, 2), "seconds_known": sum(known)}


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    partitions = [TopicPartition(f"topic-{n // _EACH:02}", n % _EACH) for n in range(arguments.partitions)]
    with tempfile.TemporaryDirectory() as folder, LargeServer(settings=CALM) as server:
        fill(server, partitions)
        found = measure(server, f"sqlite:///{folder}/offsets.db", partitions, arguments.rounds)
    print(json.dumps({"benchmark": "lag", "partitions": len(partitions), "rounds": arguments.rounds, **found}))


if __name__ == "__main__":
    main()
