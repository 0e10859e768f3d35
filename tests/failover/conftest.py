"""What rounds share: records in Kafka, and servers that fail over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engines.elections import SETTINGS
from failover import mariadb_pair, postgresql_pair
from failover.records import Records
from offsetkeeper.testing.kafka import KafkaServer, KafkaServers
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.zookeeper import ZooKeeperEnsemble


@pytest.fixture
def records(kafka_server: KafkaServer, topic: Callable[..., str]) -> Callable[[], Records]:
    """`records()` produces records into a topic of their own."""

    def make() -> Records:
        made = Records(kafka_server.bootstrap, topic(2))
        made.produce(120)
        return made

    return make


@pytest.fixture(scope="session")
def stopped_postgresql() -> Iterator[PostgreSQLServer]:
    """A stopped PostgreSQL, whose data pairs begin with."""
    server = postgresql_pair.stopped()
    yield server
    server.close()


@pytest.fixture(scope="session")
def stopped_mariadb() -> Iterator[MariaDBServer]:
    """A stopped MariaDB, whose data pairs begin with."""
    server = mariadb_pair.stopped()
    yield server
    server.close()


@pytest.fixture(scope="session")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three servers of ZooKeeper. Who kills one starts it again."""
    with ZooKeeperEnsemble() as servers:
        yield servers


@pytest.fixture(scope="session")
def brokers() -> Iterator[KafkaServers]:
    """Three brokers. Who kills one starts it again."""
    marks = {"transaction.state.log.replication.factor": "3"}  # a broker that dies takes no mark along
    with KafkaServers(settings={**SETTINGS, **marks}) as servers:
        yield servers
