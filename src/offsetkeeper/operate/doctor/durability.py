"""The doctor's rules on what an acknowledged write survives: a crash of its server, and a failover to a replica. Pure.

The tables in docs/stores.md and docs/sinks.md say the same for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from offsetkeeper.kafka.replication import ERROR, NOTE, WARNING, Finding, Severity

Settings = Mapping[str, str]

ASKED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "PostgreSQL": ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names"),
        "MySQL": (
            *("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "sync_binlog", "wsrep_on"),
            *("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"),
        ),
        "Redis": ("appendonly", "appendfsync", "maxmemory-policy", "min-replicas-to-write"),
        "ZooKeeper": ("participants",),
        "HDFS": ("dfs.replication",),
        "Cassandra": ("replication_factor", "commitlog_sync"),
    }
)
"""The settings that each kind of server is asked for, as far as it has them."""


class _Unsafe(NamedTuple):
    """A value of a setting with which the crash of one server may lose acknowledged writes."""

    setting: str
    values: frozenset[str]
    severity: Severity
    what: str
    remedy: str


_UNSAFE = (
    _Unsafe(
        "fsync",
        frozenset({"off"}),
        ERROR,
        "does not wait for the disk (fsync off): a loss of power may lose commits and damage the database",
        "set fsync = on",
    ),
    _Unsafe(
        "full_page_writes",
        frozenset({"off"}),
        WARNING,
        "has full_page_writes off: a loss of power may leave half a page, unless the storage writes pages whole",
        "set full_page_writes = on",
    ),
    _Unsafe(
        "synchronous_commit",
        frozenset({"off"}),
        WARNING,
        "has synchronous_commit off for this user: a crash may lose commits of the last second",
        "set synchronous_commit = on, for the server or with ALTER ROLE … SET",
    ),
    _Unsafe(
        "innodb_flush_log_at_trx_commit",
        frozenset({"0", "2"}),
        WARNING,
        "flushes its log once a second (innodb_flush_log_at_trx_commit): a loss of power may lose commits of it",
        "set innodb_flush_log_at_trx_commit = 1",
    ),
    _Unsafe(
        "innodb_doublewrite",
        frozenset({"OFF", "0", "DETECT_ONLY"}),
        WARNING,
        "has no innodb_doublewrite: a loss of power may leave half a page, unless the storage writes pages whole",
        "set innodb_doublewrite = ON",
    ),
)
_SWITCHED_ON = {"ON", "1"}


def durability(address: str, settings: Settings, hidden: Sequence[str] = ()) -> Iterator[Finding]:
    """Return what acknowledged writes may be lost by, as far as the settings of a server are known.

    Args:
        address: where the server is, for people.
        settings: what it told; see `ASKED`.
        hidden: names of settings that it does not show.
    """
    for each in _UNSAFE:
        if settings.get(each.setting) in each.values:
            yield Finding("crash-may-lose", each.severity, address, each.what, each.remedy)
    for rule in (_binlog, _postgresql, _mysql, _redis, _copies, _commit_log):
        yield from rule(address, settings)
    if hidden:
        what = f"does not show this user {', '.join(hidden)}: what its writes survive was judged without"
        remedy = "ask for them as an administrator: docs/stores.md and docs/sinks.md have what they must be"
        yield Finding("settings-hidden", NOTE, address, what, remedy)


def _binlog(address: str, settings: Settings) -> Iterator[Finding]:
    if settings.get("log_bin") in _SWITCHED_ON and settings.get("sync_binlog", "1") != "1":
        what = f"has sync_binlog {settings['sync_binlog']}: a loss of power may take commits with it"
        yield Finding("crash-may-lose", WARNING, address, what, "set sync_binlog = 1")


def _postgresql(address: str, settings: Settings) -> Iterator[Finding]:
    if "synchronous_standby_names" not in settings or settings.get("replicas", "0") == "0":
        return
    if not settings["synchronous_standby_names"]:
        why, remedy = "waits for none of its replicas", "name the ones to wait for in synchronous_standby_names"
    elif settings.get("synchronous_commit") in {"local", "off"}:
        why = f"does not wait for its replicas (synchronous_commit {settings['synchronous_commit']} for this user)"
        remedy = "set synchronous_commit = on"
    else:
        return
    yield _failover(address, why, remedy)


def _mysql(address: str, settings: Settings) -> Iterator[Finding]:
    """Judge by the replicas that MariaDB counts; MySQL shows them only to some users."""
    semi = [f"rpl_semi_sync_{name}" for name in ("master", "source")]
    waits = any(settings.get(f"{n}_status") == "ON" and settings.get(f"{n}_clients", "0") != "0" for n in semi)
    clustered = settings.get("wsrep_on") in _SWITCHED_ON
    if settings.get("slaves_connected", "0") != "0" and not waits and not clustered:
        enabled = {settings.get(f"{name}_enabled") for name in semi} & _SWITCHED_ON
        why = "waits for none of its replicas" + " now, although it is told to (semi-synchronous)" * bool(enabled)
        yield _failover(address, why, "use semi-synchronous replication, with a long timeout, or a cluster")


def _redis(address: str, settings: Settings) -> Iterator[Finding]:
    """Redis acknowledges a write before its replicas have it, whatever is set."""
    if "min-replicas-to-write" not in settings or settings.get("replicas", "0") == "0":
        return
    why = "acknowledges writes before its replicas have them, and no setting changes that"
    if settings["min-replicas-to-write"] == "0":
        remedy = "set min-replicas-to-write 1, which makes it less likely, or keep the offsets in another store"
        yield _failover(address, why, remedy)
    else:
        remedy = "fail over only when the replica has caught up, or keep the offsets in another store"
        yield _failover(address, why, remedy, NOTE)


def _copies(address: str, settings: Settings) -> Iterator[Finding]:
    if settings.get("participants") == "1":
        what = "is one server, not an ensemble: what it has acknowledged is as safe as its disk"
        yield Finding("one-server", NOTE, address, what, "use an ensemble of three servers or more")
    for name in ("dfs.replication", "replication_factor"):
        if settings.get(name) == "1":
            what = f"keeps one replica ({name} 1): if the node with it is lost, so is what was written"
            yield Finding("one-replica", WARNING, address, what, "keep three replicas")


def _commit_log(address: str, settings: Settings) -> Iterator[Finding]:
    if settings.get("commitlog_sync") == "periodic":
        alone = settings.get("replication_factor") == "1"
        what = "acknowledges writes before they are on the disk (commitlog_sync periodic): "
        what += "a loss of power may lose the last ones" + " if all replicas lose it at once" * (not alone)
        remedy = "set commitlog_sync: batch or group, or keep replicas that do not lose power together"
        yield Finding("crash-may-lose", WARNING if alone else NOTE, address, what, remedy)


def _failover(address: str, why: str, remedy: str, severity: Severity = WARNING) -> Finding:
    what = f"{why}: if one of them takes over, acknowledged writes may be lost"
    return Finding("failover-may-lose", severity, address, what, remedy)
