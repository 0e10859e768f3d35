"""The golden ledgers: where they are kept, and what puts each of them into its server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from golden.files_medium import FolderMedium, HDFSMedium, S3Medium
from golden.hbase_medium import HBaseMedium
from golden.kafka_medium import KafkaMedium
from golden.medium import Medium
from golden.redis_medium import RedisMedium
from golden.tables_medium import MySQLMedium, PostgreSQLMedium, SQLiteMedium
from golden.zookeeper_medium import ZooKeeperMedium

FACTS = "facts"
_FOLDER = Path(__file__).parent


class Kind(NamedTuple):
    """How the ledgers of one store are reached.

    Attributes:
        fixture: of the server, or of a folder.
        medium: makes an empty place there.
    """

    fixture: str
    medium: Callable[[Any], Medium]


KINDS: Mapping[str, Kind] = {
    "folder": Kind("tmp_path", FolderMedium),
    "hbase": Kind("hbase_server", HBaseMedium),
    "hdfs": Kind("hdfs_server", HDFSMedium),
    "kafka": Kind("kafka_server", KafkaMedium),
    "mysql": Kind("mariadb_server", MySQLMedium),
    "postgresql": Kind("postgresql_server", PostgreSQLMedium),
    "redis": Kind("redis_server", RedisMedium),
    "s3": Kind("s3_server", S3Medium),
    "sqlite": Kind("tmp_path", SQLiteMedium),
    "zookeeper": Kind("zookeeper_server", ZooKeeperMedium),
}


def formats() -> list[int]:
    """Return the formats of which golden ledgers are kept."""
    return sorted(int(path.name.removeprefix("format")) for path in _FOLDER.glob("format*"))


def path_of(number: int, name: str) -> Path:
    """Return the file of a format's golden ledgers in a store, or of the `FACTS` in all of them."""
    return _FOLDER / f"format{number}" / f"{name}.json"


def read(number: int, name: str) -> Any:
    """Return what the file holds."""
    return json.loads(path_of(number, name).read_text("utf-8"))
