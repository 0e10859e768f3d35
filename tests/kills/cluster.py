"""The machine of many lives: a cluster of three workers, and servers that start when a life first needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from failover.postgresql_pair import PostgreSQLPair, stopped
from fixtures import archives
from fixtures.clusters import CLUSTER_SESSION
from offsetkeeper.testing.cassandra import CassandraServer
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import Server
from offsetkeeper.testing.spark import SparkCluster
from offsetkeeper.testing.zookeeper import ZooKeeperServer

WORKERS = 3
_MAKERS: dict[str, Callable[[], Server]] = {
    "kafka": KafkaServer,
    "postgresql": lambda: PostgreSQLServer(fsync=False),
    "mariadb": lambda: MariaDBServer(fsync=False),
    "redis": RedisServer,
    "zookeeper": ZooKeeperServer,
    "cassandra": CassandraServer,
}


class Served(NamedTuple):
    """A server, and the proxy through which drivers and executors reach it."""

    server: Any
    proxy: TcpProxy


class Machine:
    """What lives have in common.

    Args:
        cluster: where executors are.
        folder: in which each life gets a folder of its own.
        opened: ends the servers.
    """

    def __init__(self, cluster: SparkCluster, folder: Path, opened: ExitStack) -> None:
        self.cluster, self.folder = cluster, folder
        self._opened, self._served = opened, dict[str, Served]()
        self._stopped: PostgreSQLServer | None = None

    def served(self, name: str) -> Served:
        """Return a server, started if it is not yet."""
        if name not in self._served:
            server: Any = self._opened.enter_context(_MAKERS[name]())
            proxy = server.proxy() if name == "kafka" else TcpProxy(server.host, server.port)
            self._served[name] = Served(server, self._opened.enter_context(proxy))
        return self._served[name]

    def pair(self, opened: ExitStack) -> PostgreSQLPair:
        """Return a PostgreSQL with a synchronous standby, which a life ends itself."""
        if self._stopped is None:
            self._stopped = stopped()
            self._opened.callback(self._stopped.close)
        return opened.enter_context(PostgreSQLPair(self._stopped, synchronous=True))

    def session(self) -> dict[str, str]:
        """Return the settings of a session on the cluster."""
        return {
            **CLUSTER_SESSION,
            "spark.master": self.cluster.url,
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "5s",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.stage.maxConsecutiveAttempts": "20",
            "spark.task.maxFailures": "20",
        }


@contextmanager
def machine(folder: Path, workers: int = WORKERS) -> Iterator[Machine]:
    """Lend a machine; all its servers are gone at the end."""
    archives.use()
    with ExitStack() as opened, SparkCluster(workers=workers, cores=2, memory="2g") as cluster:
        yield Machine(cluster, folder, opened)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    try:
        found = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return sorted(int(each) for text in found for each in text.split())


def program(pid: int) -> str:
    """Return the name of the program that a process runs, such as java; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except (FileNotFoundError, ProcessLookupError):
        return ""
