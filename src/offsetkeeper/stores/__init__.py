"""The stores, each in a file of its own, loaded only when its URL is opened."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

from offsetkeeper.errors import MissingExtra, UnknownScheme
from offsetkeeper.store import Store

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class Scheme(NamedTuple):
    """Where the store of a URL scheme lives, and the extra that brings its client library."""

    module: str
    name: str
    extra: str


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "kafka": Scheme("kafka", "KafkaStore", ""),
        "zookeeper": Scheme("zookeeper", "ZooKeeperStore", "zookeeper"),
        "hbase": Scheme("hbase", "HBaseStore", "hbase"),
        "memory": Scheme("memory", "MemoryStore", ""),
        "file": Scheme("folder", "FolderStore", ""),
        "webhdfs": Scheme("hdfs", "HDFSStore", "hdfs"),
        "swebhdfs": Scheme("hdfs", "HDFSStore", "hdfs"),
        "checkpoint": Scheme("checkpoint", "CheckpointStore", ""),
        "s3": Scheme("s3", "S3Store", "s3"),
        "sqlite": Scheme("sqlite", "SQLiteStore", ""),
        "postgresql": Scheme("postgresql", "PostgreSQLStore", "postgresql"),
        "postgres": Scheme("postgresql", "PostgreSQLStore", "postgresql"),
        "mysql": Scheme("mysql", "MySQLStore", "mysql"),
        "mariadb": Scheme("mysql", "MySQLStore", "mysql"),
        "redis": Scheme("redis", "RedisStore", "redis"),
        "rediss": Scheme("redis", "RedisStore", "redis"),
    }
)


def open_store(url: str) -> Store:
    """Open the store a URL names, such as `sqlite:///offsets.db`; nothing is connected before it is used.

    Raises:
        UnknownScheme: no store has this scheme; the message names those that have one.
        MissingExtra: the store's client library is not installed; the message names the extra.
        SettingsError: the URL is wrong otherwise.
    """
    scheme, separator, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    entry = SCHEMES.get(scheme) if separator else None
    if entry is None:
        known = ", ".join(sorted(f"{name}://" for name in SCHEMES))
        named = f"{scheme}://" if separator and _SCHEME.fullmatch(scheme) else "what was given"  # it may be a password
        raise UnknownScheme(f"{named} names no store; known are {known}")
    try:
        module = importlib.import_module(f"offsetkeeper.stores.{entry.module}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        raise MissingExtra(
            f"{scheme}:// needs the library {error.name!r}: pip install 'offsetkeeper[{entry.extra}]'"
        ) from error
    return cast("Store", getattr(module, entry.name)(url))
