"""The store in ZooKeeper: `zookeeper://host:2181,host2:2181/chroot`.

    /consumers/<group>/offsets/<topic>/<partition>   the offset in decimal, as the old consumers have it
    /consumers/<group>/offsetkeeper/ledger           all of the ledger, see `document`
    /consumers/<group>/offsetkeeper/history/<slot>   a history entry; its slot is its version modulo `history`
    /consumers/<group>/offsetkeeper/unpublished      offsets that did not fit beside the ledger

The ledger is the truth and the offsets are a copy: to read 10,000 nodes takes seconds, to read one a millisecond. They
change together, in one multi, where all fits into ZooKeeper's limit for a request. Where not, the offsets follow in
several, each on the condition that the ledger is still the same; what a crash leaves over is in `unpublished`, for the
next change to write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from offsetkeeper.control import dump_entry, empty, load_entry
from offsetkeeper.document import dump_document, load_document
from offsetkeeper.errors import (
    OffsetkeeperError,
    OutcomeUnknown,
    SettingsError,
    VersionConflict,
)
from offsetkeeper.model import Change, Entry, Positions, Snapshot
from offsetkeeper.store import Ability, without_credentials
from offsetkeeper.stores.settings import read_settings, refuse_unknown
from offsetkeeper.stores.zookeeper_connections import TLS, Sessions
from offsetkeeper.stores.zookeeper_nodes import (
    Paths,
    chunks,
    dump_rows,
    group_at,
    load_row,
    load_rows,
    packed,
    paths_of,
    size_of,
    unpacked,
)
from offsetkeeper.stores.zookeeper_requests import Request, Rows

log = logging.getLogger(__name__)
_SHARED = ("history", "timeout")
_OWN = ("publish", "jute.maxbuffer", "auth", *TLS)
_LEAST, _MOST, _MARGIN = 65_536, 2**31 - 1, 4_096


class _Seen(NamedTuple):
    """What is known of a group: the ledger's version, that of its node, and the rows in `unpublished`."""

    version: int = 0
    node: int = 0
    rows: Rows = MappingProxyType({})


class ZooKeeperStore:
    """Ledgers in ZooKeeper.

    Args:
        url: `zookeeper://user:password@host:2181,host2:2181/chroot`, with `?history=` (entries kept for each group,
            1000), `?timeout=` (seconds for a request, to connect, and for the session, 30), `?publish=start` (others
            see the first offsets of the last batch, in place of the next ones to read), `?jute.maxbuffer=` (bytes the
            servers take in one request, 1048575), `?auth=sasl` (by default digest), and `?tls=true` with `ca`,
            `cert`, `key`, `key_password`.

    Raises:
        SettingsError: the URL is wrong.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: str) -> None:
        self.address = without_credentials(url)
        parts = urlsplit(url)
        self._settings, given = read_settings(parts.query.replace("+", "%2B"), _SHARED)
        refuse_unknown(given, (*_SHARED, *_OWN))
        self._root = unquote(parts.path).rstrip("/")
        self._publishes_start = _publishes_start(given.get("publish", "end"))
        self._limit = _limit(given.get("jute.maxbuffer", "1048575"))
        self._sessions = Sessions(url, self.address, self._settings.timeout, given)
        self._seen: dict[str, _Seen] = {}

    def __repr__(self) -> str:
        return f"ZooKeeperStore({self.address!r})"

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        with self._sessions.request() as request:
            snapshot, self._seen[group] = self._look(request, group)
            return snapshot or empty(group, self._read_rows(request, group))

    def apply(self, change: Change) -> None:
        """See `Store.apply`.

        Raises:
            SettingsError: ledger and history entry are larger than a request may be; nothing was written.
        """
        group, before = change.after.group, change.before.version
        seen = self._seen.pop(group, None)
        if seen is None or seen.version != before:
            snapshot, seen = self._look_anew(group)
            if seen.version != before:
                raise self._conflict(change, snapshot, seen)
        ledger, rows = packed(dump_document(change.after)), {**seen.rows, **self._moved(change)}
        first = self._first(change, seen, ledger, rows)
        node = self._write(change, seen, ledger, first)
        if rows.keys() <= first.keys():
            self._seen[group] = _Seen(change.after.version, node)
        else:
            self._publish(change, node, rows)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        paths = self._paths(group)
        with self._sessions.request() as request:
            _, (newest, *_) = self._look(request, group)
            oldest = max(newest - min(limit, self._settings.history), 0)
            wanted = [self._slot(paths, version) for version in range(newest, oldest, -1)]
            asked = [(path, request.client.get_async(path)) for path in wanted]
            found = [(path, request.found(answer)) for path, answer in asked]
        entries = [self._load_entry(group, path, node[0]) for path, node in found if node]
        return [entry for entry in entries if oldest < entry.version <= newest]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        with self._sessions.request() as request:
            ask = request.client.get_children_async
            request.wait(request.agree(f"{self._root}/consumers"))
            groups = [group_at(name) for name in request.found(ask(f"{self._root}/consumers")) or ()]
            ledgers = {group: request.client.exists_async(self._paths(group).ledger) for group in groups}
            offsets = {self._paths(group).offsets: group for group in groups if not request.wait(ledgers[group])}
            topics = {path: ask(path) for path in offsets}
            rows = [(g, ask(f"{path}/{t}")) for path, g in offsets.items() for t in request.found(topics[path]) or ()]
            return sorted(set(groups) - set(offsets.values()) | {group for group, row in rows if request.found(row)})

    def close(self) -> None:
        """See `Store.close`."""
        self._sessions.close()

    def _look_anew(self, group: str) -> tuple[Snapshot | None, _Seen]:
        with self._sessions.request() as request:
            return self._look(request, group)

    def _look(self, request: Request, group: str) -> tuple[Snapshot | None, _Seen]:
        """Return a group's ledger, None where there is none, and what is to be known to change it."""
        paths = self._paths(group)
        agreed = request.agree(paths.ledger)
        asked = [request.client.get_async(path) for path in (paths.ledger, paths.unpublished)]
        request.wait(agreed)
        ledger, unpublished = map(request.found, asked)
        if ledger is None:
            return None, _Seen()
        (data, stat), where = ledger, f"{paths.ledger} in {self.address}, group {group!r},"
        snapshot = load_document(unpacked(data), group, where)
        rows = load_rows(paths, unpublished[0], f"{paths.unpublished}, beside {where}") if unpublished else {}
        return snapshot, _Seen(snapshot.version, stat.version, rows)

    def _first(self, change: Change, seen: _Seen, ledger: bytes, rows: Rows) -> Rows:
        """Return what is written in the ledger's multi: all the rows, or, where they do not fit, a note of them."""
        paths, version = self._paths(change.after.group), change.after.version
        entry = {self._slot(paths, version): packed(f"{version} {dump_entry(change.entry)}")}
        erase = {paths.unpublished: b""} if seen.rows or not seen.version else {}
        if size_of(together := {**entry, **erase, **rows}) + len(ledger) <= self._limit:
            return together
        noted = {**entry, paths.unpublished: dump_rows(paths, rows)}
        if (size := size_of(noted) + len(ledger)) > self._limit:
            raise SettingsError(
                f"{self.address}: group {change.after.group!r} was not changed: its ledger and the history entry take "
                f"{size} bytes, and ZooKeeper takes requests of {self._limit}. Raise jute.maxbuffer at the "
                "servers and in the store's URL, or spread the topics over several groups"
            )
        return noted

    def _write(self, change: Change, seen: _Seen, ledger: bytes, rows: Rows) -> int:
        """Write the ledger if it is still the one seen, and the rows with it; return the version of its node."""
        paths, version = self._paths(change.after.group), change.after.version
        known: set[str] | None = None
        if seen.version and not seen.rows:
            known = {paths.row(tp) for tp, move in change.moves.items() if move.before} | {paths.unpublished}
            known |= {self._slot(paths, version)} if version > self._settings.history else set()
        try:
            with self._sessions.request(OutcomeUnknown) as request:
                if not seen.version:
                    request.change(lambda multi: multi.create(paths.ledger, ledger), rows, known)
                    return 0
                stat = request.change(lambda multi: multi.set_data(paths.ledger, ledger, seen.node), rows, known)
        except VersionConflict as error:
            raise self._conflict(change, *self._look_anew(change.after.group)) from error
        return int(stat.version)

    def _publish(self, change: Change, node: int, rows: Rows) -> None:
        """Write the rows that did not fit, as long as the ledger is what it was made. The change is durable already."""
        paths = self._paths(change.after.group)

        def unchanged(multi: Any) -> None:
            multi.check(paths.ledger, node)

        try:
            with self._sessions.request() as request:
                known = request.existing(rows)
                for chunk in chunks(rows, self._limit):
                    request.change(unchanged, chunk, known)
                request.change(unchanged, {paths.unpublished: b""}, {paths.unpublished})
        except OffsetkeeperError as error:
            log.warning("%s: some offsets are published with the next change only: %s", change.after.group, error)
        else:
            self._seen[change.after.group] = _Seen(change.after.version, node)

    def _moved(self, change: Change) -> Rows:
        paths, start = self._paths(change.after.group), self._publishes_start and change.entry.event == "commit"
        shown = {tp: move.before if start and move.before else move.after for tp, move in change.moves.items()}
        return {paths.row(tp): str(position.offset).encode() for tp, position in shown.items()}

    def _read_rows(self, request: Request, group: str) -> Positions:
        """Return what another program has stored for a group without a ledger."""
        ask, offsets = request.client.get_children_async, self._paths(group).offsets
        topics = {topic: ask(f"{offsets}/{topic}") for topic in request.found(ask(offsets)) or ()}
        nodes = [f"{offsets}/{topic}/{name}" for topic, found in topics.items() for name in request.found(found) or ()]
        asked = {path: request.client.get_async(path) for path in nodes}
        rows = {path: node[0] for path, answer in asked.items() if (node := request.found(answer))}
        return dict(load_row(path, data, f"{path} in {self.address}") for path, data in rows.items())

    def _load_entry(self, group: str, path: str, data: bytes) -> Entry:
        version, _, text = unpacked(data).partition(b" ")
        where = f"{path} in {self.address}, group {group!r},"
        return load_entry(text.decode("utf-8", "replace"), int(version) if version.isdigit() else -1, where)

    def _paths(self, group: str) -> Paths:
        return paths_of(self._root, group)

    def _slot(self, paths: Paths, version: int) -> str:
        return f"{paths.history}/{version % self._settings.history}"

    def _conflict(self, change: Change, snapshot: Snapshot | None, seen: _Seen) -> VersionConflict:
        """Return the error for a change of another version than the one found; that may be its own, of another try."""
        if snapshot is not None and snapshot.change_id == change.after.change_id and seen.rows:
            self._publish(change, seen.node, seen.rows)  # whoever lost its reply has not
        return VersionConflict(
            f"{self.address}: group {change.after.group!r} was not changed: another writer was first, and it is at "
            f"version {seen.version}, not {change.before.version}"
        )


def _publishes_start(text: str) -> bool:
    if text not in {"start", "end"}:
        raise SettingsError(f"publish={text!r} in the store's URL: use start or end")
    return text == "start"


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not _LEAST <= int(text) <= _MOST:
        raise SettingsError(f"jute.maxbuffer={text!r} in the store's URL: use the servers' own, from 65536 bytes on")
    return int(text) - _MARGIN
