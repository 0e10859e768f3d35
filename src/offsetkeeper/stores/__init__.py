"""The stores, each in its own file, which is loaded only when its URL is opened."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.core.urls import scheme_of
from offsetkeeper.errors import UnknownScheme


class Scheme(NamedTuple):
    """The class of the store for a URL scheme, and the extra that installs its client library."""

    module: str
    name: str
    extra: str


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "kafka": Scheme("stores.kafka", "KafkaStore", ""),
        "zookeeper": Scheme("stores.zookeeper", "ZooKeeperStore", "zookeeper"),
        "hbase": Scheme("stores.hbase", "HBaseStore", "hbase"),
        "memory": Scheme("stores.memory", "MemoryStore", ""),
        "file": Scheme("stores.folder", "FolderStore", ""),
        "webhdfs": Scheme("stores.hdfs", "HDFSStore", "hdfs"),
        "swebhdfs": Scheme("stores.hdfs", "HDFSStore", "hdfs"),
        "checkpoint": Scheme("checkpoint.store", "open_checkpoint", ""),
        "checkpoint+webhdfs": Scheme("checkpoint.store", "open_checkpoint", "hdfs"),
        "checkpoint+swebhdfs": Scheme("checkpoint.store", "open_checkpoint", "hdfs"),
        "checkpoint+s3": Scheme("checkpoint.store", "open_checkpoint", "s3"),
        "checkpoint+s3a": Scheme("checkpoint.store", "open_checkpoint", "s3"),
        "s3": Scheme("stores.s3", "S3Store", "s3"),
        "sqlite": Scheme("stores.sqlite", "SQLiteStore", ""),
        "postgresql": Scheme("stores.postgresql", "PostgreSQLStore", "postgresql"),
        "postgres": Scheme("stores.postgresql", "PostgreSQLStore", "postgresql"),
        "mysql": Scheme("stores.mysql", "MySQLStore", "mysql"),
        "mariadb": Scheme("stores.mysql", "MySQLStore", "mysql"),
        "redis": Scheme("stores.redis", "RedisStore", "redis"),
        "rediss": Scheme("stores.redis", "RedisStore", "redis"),
    }
)


def open_store(url: str) -> Store:
    """Open the store of a URL, such as `sqlite:///offsets.db`; it connects when it is first used.

    Raises:
        UnknownScheme: no store has this scheme; the message lists the supported schemes.
        MissingExtra: the store's client library is not installed; the message names the extra.
        SettingsError: the URL is wrong in another way.
    """
    scheme, separator, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    entry = SCHEMES.get(scheme) if separator else None
    if entry is None:
        known = ", ".join(sorted(f"{name}://" for name in SCHEMES))
        named = scheme_of(url) or "not shown"  # a text without a scheme may be a password
        hint = "; leave out 'jdbc:'" if scheme == "jdbc" else ""
        raise UnknownScheme(f"unknown store URL ({named}); supported schemes: {known}{hint}")
    with needing_extra(f"{scheme}:// needs the library", entry.extra):
        module = importlib.import_module(f"offsetkeeper.{entry.module}")
    return cast("Store", getattr(module, entry.name)(url))
