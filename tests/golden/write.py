"""Writes the golden ledgers of the format that the code has now: once for each format, before the next one comes.

PYTHONHASHSEED=0 PYTHONPATH=src:tests .venv/bin/python -m golden.write
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from golden import scenario
from golden.values import shown
from golden.written import FACTS, KINDS, path_of
from offsetkeeper.core.codec import FORMAT
from offsetkeeper.stores import open_store
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.s3 import S3Server
from offsetkeeper.testing.zookeeper import ZooKeeperServer


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


_SERVERS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "tmp_path": _folder,
    "hbase_server": HBaseServer,
    "hdfs_server": HDFSServer,
    "kafka_server": KafkaServer,
    "mariadb_server": MariaDBServer,
    "postgresql_server": PostgreSQLServer,
    "redis_server": RedisServer,
    "s3_server": S3Server,
    "zookeeper_server": ZooKeeperServer,
}


def main() -> None:
    """Write the ledgers of all stores; stop where those of two stores say different things."""
    told: Any = None
    for name, kind in KINDS.items():
        with _SERVERS[kind.fixture]() as server, closing(kind.medium(server)) as medium:
            with closing(open_store(medium.url)) as store, scenario.fixed_chance():
                scenario.write(store)
                facts = {group: scenario.facts(store, group) for group in scenario.GROUPS}
            _save(name, medium.dump())
        if told not in (None, facts):
            raise SystemExit(f"the ledgers in {name} say something else than those before")
        told = facts
        sys.stdout.write(f"{name} is written\n")
    _save(FACTS, told)


def _save(name: str, content: Any) -> None:
    path = path_of(FORMAT, name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(shown(content) + "\n", "utf-8")


if __name__ == "__main__":
    main()
