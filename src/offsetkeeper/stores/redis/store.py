"""The store in Redis: `redis://:password@host:6379/0`, and with TLS `rediss://`. For the keys see `keys`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from itertools import chain, islice
from typing import Any, TypeVar

from offsetkeeper.clients.url import read_number, read_url
from offsetkeeper.core.codec import (
    GARBAGE,
    REMEDY,
    control_mark,
    dump_control,
    dump_entry,
    empty,
    load_control,
    load_entry,
    load_position,
)
from offsetkeeper.core.ledger_document import ids_by_partition, ids_by_topic
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import TopicPartition, check_partition, check_topic
from offsetkeeper.core.outside import load_stored, reason
from offsetkeeper.core.store import not_changed, version_conflict
from offsetkeeper.errors import CorruptStore, Refused, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.stores.base import BaseStore
from offsetkeeper.stores.redis.connections import CLIENT, Command, Connections, texts
from offsetkeeper.stores.redis.keys import DEFAULT, Keys

_TOLD = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")
T = TypeVar("T")
_TRIES = 10
_PAGE = 50  # entries of a history in one answer
_NUMBER = re.compile(rb"0|[1-9]\d{0,18}")

_APPLY = files("offsetkeeper.stores.redis").joinpath("apply.lua").read_text("utf-8")


class RedisStore(BaseStore):
    """Ledgers in Redis or a Redis cluster; `keys` describes the data for other programs.

    Args:
        url: `redis://user:password@host:port/database` or `rediss://`, with `?key=` (template of the hashes' names),
            `?ttl=` (seconds after the last change until a group's offsets are gone; never by default), `?history=`
            (entries kept for each group, 1000), `?timeout=` (seconds one answer may take, 30) and `CLIENT`.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history", "timeout"), ("key", "ttl", *CLIENT))
        super().__init__(read)
        self._keys = Keys(read.given.pop("key", DEFAULT))
        self._ttl = read_number("ttl", read.given.pop("ttl", "0"), least=0)
        self._connections = Connections(read)

    def load(self, group: str) -> Snapshot:
        """See `Store.load`.

        Raises:
            CorruptStore: also if the hash of a topic has expired: a committed ledger must not look new.
        """
        known: set[str] = set()
        scanned = False
        for _ in range(_TRIES):
            control, hashes = self._read(group, known)
            topics = self._topics(control, group) if control else set(known)
            if not control and not scanned:
                topics, scanned = self._scan(group), True
            if topics <= known:
                return self._snapshot(group, control, {topic: hashes[topic] for topic in topics})
            known |= topics
        raise StoreUnavailable(f"{self.address}: group {group!r} gets topics faster than it can be read")

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        keys, arguments = self._arguments(change)
        refusal = self._connections.run(change.after.group, _APPLY, keys, arguments, partial(_refusal, keys))
        if refusal is None:
            return
        version, key, partition = refusal
        if version is not None:
            raise version_conflict(self.address, change, self._version(version, change.after.group))
        raise self._conflict(change, key, partition)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        if limit < 1:
            return []  # to Redis, an end of -1 means all
        found, lines = self._page(group, 0, min(limit, _PAGE))
        if not found:
            return []
        where = self._where(self._keys.history(group), group)
        entries = (_load_line(line, where) for line in chain(lines, self._older(group, lines)))
        return list(islice(_descending(entries, self._version(found[0], group)), limit))

    def _older(self, group: str, page: list[bytes]) -> Iterator[bytes]:
        """Yield the lines after the first page. A change in between pushes lines back: they come again."""
        read, before = 0, list[bytes]()
        while len(page) == _PAGE and page != before:  # the same again would have no end
            read, before = read + _PAGE, page
            page = self._page(group, read, _PAGE)[1]
            yield from page

    def _page(self, group: str, start: int, count: int) -> tuple[list[bytes], list[bytes]]:
        """Return the version, if there is one, and some lines of the history, newest first, of one moment."""
        commands: list[Command] = [
            ("HGET", self._keys.control(group), "version"),
            ("LRANGE", self._keys.history(group), start, start + count - 1),
        ]
        return self._at_once(group, commands, _paged)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. It reads the name of every key in the database."""
        keys = [key for pattern in self._keys.patterns() for key in self._connections.scan(pattern)]
        return sorted({found.group for found in map(self._keys.parse, keys) if found})

    def server_settings(self) -> dict[str, str | None]:
        """See `Examined.server_settings`: those of the server in the URL, and the store's own `ttl`."""
        replicas = self._connections.ask("", [("ROLE",)], _replicas)
        found: dict[str, str | None] = {"ttl": str(self._ttl), "replicas": replicas}
        for name in _TOLD:
            found[name] = None
            with suppress(Refused):  # many hosted Redis servers hide them
                found |= self._connections.ask("", [("CONFIG", "GET", name)], _settings)
        return found

    def clock_ms(self) -> int:
        """See `Clocked.clock_ms`."""
        return self._connections.ask("", [("TIME",)], _time_ms)

    def close(self) -> None:
        """See `Store.close`."""
        self._connections.close()

    def _read(self, group: str, topics: Iterable[str]) -> tuple[dict[bytes, bytes], dict[str, dict[bytes, bytes]]]:
        """Return control record and rows of one moment."""
        names = [self._keys.control(group), *(self._keys.positions(group, topic) for topic in topics)]
        found = self._at_once(group, [("HGETALL", name) for name in names], partial(_rows, names))
        control, *hashes = found
        return control, dict(zip(topics, hashes, strict=True))

    def _at_once(self, group: str, commands: Sequence[Command], read: Callable[[list[Any]], T]) -> T:
        """Return the replies of a master, never of a replica, which may be behind.

        Its connection is not kept: by now the address may lead to the master that took its place.
        """

        def of_master(replies: list[Any]) -> T:
            role, *answers = replies[-1]
            if not _is_master(role):
                raise StoreUnavailable(
                    f"{self.address} is a replica, and may be behind; give the address of its master"
                )
            return read(answers)

        return self._connections.ask(group, [("MULTI",), ("ROLE",), *commands, ("EXEC",)], of_master)

    def _scan(self, group: str) -> set[str]:
        found = map(self._keys.parse, self._connections.scan(self._keys.patterns(group)[0], group))
        return {each.topic for each in found if each and each.group == group}

    def _snapshot(self, group: str, control: dict[bytes, bytes], hashes: dict[str, dict[bytes, bytes]]) -> Snapshot:
        where = self._where(self._keys.control(group), group)
        ids = _load_ids(control.get(b"topic_ids", b"{}"), where)
        positions = {
            _partition(topic, field, at): load_position(_number(value), ids.get((topic, _number(field))), at)
            for topic, rows in hashes.items()
            for at in [self._where(self._keys.positions(group, topic), group)]
            for field, value in rows.items()
        }
        if not control:
            return empty(group, positions)
        version = _number(control.get(b"version", b""))
        text = control.get(b"control", b"").decode("utf-8", "replace")
        return load_control(text, group, version, positions, where)

    def _arguments(self, change: Change) -> tuple[list[str], list[str | int]]:
        group, version, after = change.after.group, change.before.version, change.after
        rows: dict[str, list[str]] = {}
        fresh, renamed = version == 0, version == 0
        for (topic, partition), (before, new) in ((tp, (m.before, m.after)) for tp, m in change.moves.items()):
            rows.setdefault(topic, []).append(f"{partition} {'-' if before is None else before.offset} {new.offset}")
            fresh = fresh or before is None
            renamed = renamed or (before and before.topic_id) != new.topic_id
        every = {tp.topic for tp in after.rows} if fresh or self._ttl else set[str]()
        topics = sorted({*rows, *every})
        return [
            self._keys.control(group),
            self._keys.history(group),
            *(self._keys.positions(group, t) for t in topics),
        ], [
            *(version, after.version, dump_control(after), dump_entry(change.entry), self._settings.history, self._ttl),
            control_mark(change.before),
            " ".join(sorted(every)) if fresh else "",
            json.dumps(ids_by_topic(after.rows), separators=(",", ":")) if renamed else "",
            *(" ".join(rows.get(topic, ())) for topic in topics),
        ]

    def _conflict(self, change: Change, key: str, partition: int) -> VersionConflict:
        """Return the error for a position that another program has changed."""
        group = change.after.group
        what = f"another program changed partition {partition} in {key!r}"
        topics = {tp.topic for tp in change.before.positions}
        if key not in {self._keys.positions(group, topic) for topic in topics}:
            what += (
                ", a topic that the ledger does not know yet: delete that hash, or add its topic to the field "
                f"`topics` of {self._keys.control(group)!r} to continue from its offsets"
            )
        return not_changed(self.address, change, what)

    def _topics(self, control: Mapping[bytes, bytes], group: str) -> set[str]:
        try:
            return set(map(check_topic, control.get(b"topics", b"").decode().split()))
        except ValueError:  # the original message quotes the name
            where = self._where(self._keys.control(group), group)
            raise CorruptStore(f"{where} has no valid topics. {REMEDY}") from None

    def _version(self, text: bytes, group: str) -> int:
        number = _number(text)
        if not isinstance(number, int):
            raise CorruptStore(f"{self._where(self._keys.control(group), group)} has no valid version. {REMEDY}")
        return number

    def _where(self, key: str, group: str) -> str:
        return f"{key!r} in {self.address}, group {group!r},"


def _refusal(keys: Sequence[str], reply: Any) -> tuple[bytes | None, str, int] | None:
    """Return what the script has found: another version, or a key and its partition; None if it has done the change.

    Raises:
        ValueError, TypeError: it cannot have found that.
    """
    if reply == b"done":
        return None
    kind, *told = texts(reply)
    if kind == b"version":
        [version] = told
        return version, "", 0
    key, partition = told[0].decode(), int(told[1])
    if kind != b"position" or key not in keys:
        raise ValueError("another script has answered")
    return None, key, partition


def _paged(replies: list[Any]) -> tuple[list[bytes], list[bytes]]:
    version, lines = replies
    return texts([] if version is None else [version]), texts(lines)


def _rows(names: Sequence[str], replies: list[Any]) -> list[dict[bytes, bytes]]:
    return [_pairs(reply) for _, reply in zip(names, replies, strict=True)]


def _replicas(replies: list[Any]) -> str | None:
    [role] = replies
    return str(len(role[2])) if _is_master(role) else None


def _settings(replies: list[Any]) -> dict[str, str | None]:
    [reply] = replies
    return {key.decode(): value.decode() for key, value in _pairs(reply).items()}


def _time_ms(replies: list[Any]) -> int:
    [reply] = replies
    seconds, microseconds = map(int, texts(reply))
    return seconds * 1000 + microseconds // 1000


def _load_line(line: bytes, where: str) -> Entry:
    version, _, text = line.partition(b" ")
    return load_entry(text.decode("utf-8", "replace"), _number(version), where)


def _is_master(role: Any) -> bool:
    if role[0] not in {b"master", b"slave", b"sentinel"}:
        raise ValueError("no role")
    return bool(role[0] == b"master")


def _pairs(reply: Any) -> dict[bytes, bytes]:
    flat = texts(reply)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _descending(entries: Iterable[Entry], newest: int) -> Iterator[Entry]:
    """Yield the entries of the current ledger: after a control record was deleted, versions start again."""
    for entry in entries:
        if entry.version <= newest:
            yield entry
            newest = entry.version - 1


def _number(text: bytes) -> Any:
    """Return the number, or the text if it is not a number; the checks of `codec` refuse the text."""
    return int(text) if _NUMBER.fullmatch(text) else text.decode("utf-8", "replace")


def _partition(topic: str, field: bytes, where: str) -> TopicPartition:
    try:
        return check_partition(TopicPartition(topic, _number(field)))
    except SettingsError:  # the original message quotes the field
        raise CorruptStore(f"{where} has a field that is not a partition, which HKEYS shows. {REMEDY}") from None


def _load_ids(text: bytes, where: str) -> dict[tuple[str, int], str]:
    try:
        return ids_by_partition(load_stored(text))
    except GARBAGE as error:
        raise CorruptStore(f"{where} has no valid topic ids: {reason(error)}. {REMEDY}") from None
