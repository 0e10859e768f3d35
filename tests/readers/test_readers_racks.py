"""Each executor reads from the replica in its own rack, which its environment names: bytes of brokers are counted."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, its library says so elsewhere
from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.spark import SparkMaster, SparkWorker

ORDERS = "orders"
COUNT, SIZE = 300, 10_000
PARTITION = COUNT * SIZE  # bytes; each partition's leader is broker 1
LITTLE = PARTITION // 10
OPTIONS = {"offsetkeeper.rack.env": "RACK"}

DRIVER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from offsetkeeper import Pipeline
given = json.loads(sys.argv[1])
spark = SparkSession.builder.config(map=given["spark"]).getOrCreate()
counts = []
def count(frame, batch):
    counts.append(frame.count())
for job in sys.stdin:
    how, reader = job.split()
    pipeline = Pipeline(**given["pipeline"], group=f"{how}-{reader}", reader=reader)
    if how == "run":
        pipeline.run(spark, count, until="caught_up")
    else:
        checkpoint = given["checkpoint"] + how + reader
        pipeline.start(spark, count, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
    print(sum(counts), flush=True)
    counts.clear()
"""


class Racks:
    """A cluster of three brokers in three racks, each behind a proxy that counts.

    Attributes:
        proxies: by the broker's number.
    """

    def __init__(self, proxies: Mapping[int, TcpProxy]) -> None:
        self.proxies = proxies
        self.brokers = ",".join(proxy.address for proxy in proxies.values())
        self._before: dict[int, int] = {}

    def count(self) -> None:
        """Begin to count."""
        self._before = {number: proxy.replied for number, proxy in self.proxies.items()}

    def sent(self) -> list[int]:
        """Return how many bytes each broker has sent since, by its number."""
        return [self.proxies[number].replied - before for number, before in sorted(self._before.items())]


@pytest.fixture(scope="module")
def racks() -> Iterator[Racks]:
    """The cluster; its topic has two partitions that broker 1 leads, with a replica on each."""
    servers = KafkaServers(
        settings={"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    )
    for number, broker in servers.brokers.items():
        broker._settings["broker.rack"] = f"rack-{number}"
    with servers, ExitStack() as entered:
        fill(servers)
        proxies = {number: entered.enter_context(broker.proxy()) for number, broker in servers.brokers.items()}
        yield Racks(proxies)


def fill(servers: KafkaServers) -> None:
    """Make the topic and its records, and return when all replicas have them."""
    admin = servers.admin()
    topic = NewTopic(ORDERS, 2, replica_assignment=[[1, 2, 3], [1, 2, 3]])
    admin.create_topics([topic])[ORDERS].result(60)
    producer = Producer({"bootstrap.servers": servers.bootstrap, "acks": "all"})
    for number in range(2 * COUNT):
        producer.produce(ORDERS, os.urandom(SIZE), partition=number % 2)
    assert producer.flush(60) == 0
    wait_until(
        lambda: servers.in_sync(ORDERS) == {1, 2, 3} and servers.leader(ORDERS) == 1, "all replicas were in sync", 60
    )


@pytest.fixture
def source(racks: Racks) -> Source:
    """The topic, for a reader in the rack that its environment names."""
    return Source(racks.brokers, OPTIONS, "test", "read_committed", stall_s=30)


@pytest.mark.parametrize(("rack", "broker"), [("rack-2", 2), ("rack-3", 3), ("", 1), ("elsewhere", 1)])
def test_a_task_reads_from_the_replica_in_its_rack(
    rack: str, broker: int, racks: Racks, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACK", rack)
    racks.count()
    assert sum(batch.num_rows for batch in read(source, [(ORDERS, 0, 0, COUNT)])) == COUNT
    sent = racks.sent()
    assert sent.pop(broker - 1) > PARTITION
    assert max(sent) < LITTLE


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a Spark cluster of two workers, in the racks of brokers 2 and 3."""
    with ExitStack() as entered:
        master = entered.enter_context(SparkMaster())
        for number in (2, 3):
            monkeypatch.setenv("RACK", f"rack-{number}")
            entered.enter_context(SparkWorker(master, memory="512m"))
        monkeypatch.delenv("RACK")
        yield master.url


def test_each_executor_reads_from_the_replica_in_its_rack(racks: Racks, workers: str, tmp_path: Path) -> None:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = {
        "spark.master": workers,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": quick,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.jars": ",".join(map(str, fetch_jars("connector"))),
        "spark.log.level": "OFF",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false",
    }
    pipeline = {"store": f"sqlite:///{tmp_path}/offsets.db", "brokers": racks.brokers, "topics": [ORDERS]}
    given = {"spark": spark, "pipeline": {**pipeline, "kafka": OPTIONS}, "checkpoint": f"{tmp_path}/"}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(given)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin
        assert driver.stdout
        for job in ("run packed", "start packed", "run connector"):
            racks.count()
            print(job, file=driver.stdin, flush=True)
            assert driver.stdout.readline() == f"{2 * COUNT}\n", job
            leader, second, third = racks.sent()
            assert leader < LITTLE, job
            assert second + third > 2 * PARTITION, job
            assert min(second, third) > PARTITION or "connector" in job, job  # which may read all on one executor
        driver.stdin.close()


def test_a_variable_that_workers_lack_is_told_before_anything_is_touched(spark: SparkSession, tmp_path: Path) -> None:
    options = {"offsetkeeper.rack.env": "NO_SUCH_VARIABLE"}
    store, brokers = f"sqlite:///{tmp_path}/offsets.db", "127.0.0.1:9"
    pipeline = Pipeline(group="group", store=store, brokers=brokers, topics=[ORDERS], kafka=options)
    with pytest.raises(SettingsError, match=r"lacks the environment variable NO_SUCH_VARIABLE.*spark\.executorEnv"):
        pipeline.run(spark, lambda frame, _: frame.count(), until="caught_up")
    assert not (tmp_path / "offsets.db").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"offsetkeeper.rack.env": "a-b"}, "write the name of an environment variable"),
        ({"offsetkeeper.rack.env": "RACK", "client.rack": "a"}, "not both"),
    ],
)
def test_a_wrong_setting_of_the_rack_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        KafkaCluster("localhost:9092", options)
