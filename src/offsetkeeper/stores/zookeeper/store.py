"""The store in ZooKeeper: `zookeeper://host:2181,host2:2181/chroot`.

    /consumers/<group>/offsets/<topic>/<partition>   the offset in decimal, as old consumers use it
    /consumers/<group>/offsetkeeper/ledger           all of the ledger, see `document`
    /consumers/<group>/offsetkeeper/history/<slot>   a history entry; its slot is its version modulo `history`
    /consumers/<group>/offsetkeeper/unpublished      offsets that did not fit beside the ledger

The ledger counts, and the offsets are a copy: reading 10,000 nodes takes seconds, reading one takes a millisecond. They
change together, in one multi, if everything fits into ZooKeeper's limit for a request. If not, the offsets follow in
several multis, each with the condition that the ledger is still the same. After a crash, the rest is in `unpublished`,
and the next change writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from offsetkeeper.clients.url import read_choice, read_number, read_url
from offsetkeeper.core import environment
from offsetkeeper.core.codec import GARBAGE, REMEDY, dump_entry, empty, load_numbered_entry
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import Positions, TopicPartition, by_topic
from offsetkeeper.core.outside import load_stored, reason
from offsetkeeper.core.store import version_conflict
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, Refused, VersionConflict
from offsetkeeper.stores.base import BaseStore
from offsetkeeper.stores.zookeeper import nodes
from offsetkeeper.stores.zookeeper.nodes import Paths, Rows
from offsetkeeper.stores.zookeeper.sessions import TLS, Request, Sessions, sensible

log = logging.getLogger(__name__)
_LEAST, _MOST, _MARGIN = 65_536, 2**31 - 1, 4_096
_AT_ONCE = 50  # entries that are asked for together, each of up to a megabyte or more
_HOLDS_S = 1.0


class _Seen(NamedTuple):
    """The known state of a group.

    Attributes:
        ledger: the stored ledger; without positions if there is none.
        node: version of its node.
        rows: the rows in `unpublished`.
        behind: published offsets of the last batch's partitions, if they are the start of the batch.
        client: the client whose session read it, and the time, by `environment.monotonic`.
    """

    ledger: Snapshot
    node: int = 0
    rows: Rows = MappingProxyType({})
    behind: Mapping[TopicPartition, int] = MappingProxyType({})
    client: Any = None
    at: float = 0.0

    def holds(self, request: Request) -> bool:
        """Return whether the node's version still identifies its content.

        The versions of a node repeat if it is created again, or if a backup is restored.
        """
        return self.client is request.client and environment.monotonic() - self.at < _HOLDS_S


class ZooKeeperStore(BaseStore):
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

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history", "timeout"), ("publish", "jute.maxbuffer", "auth", *TLS))
        super().__init__(read)
        self._root = unquote(read.parts.path).rstrip("/")
        publish, size = read.given.get("publish", "end"), read.given.get("jute.maxbuffer", "1048575")
        self._publishes_start = read_choice("publish", publish, {"start": True, "end": False})
        self._limit = read_number("jute.maxbuffer", size, _LEAST, _MOST) - _MARGIN
        self._sessions = Sessions(read)
        self._seen: dict[str, _Seen] = {}

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        with self._sessions.request() as request:
            seen = self._seen[group] = self._look(request, group)
            return seen.ledger if seen.ledger.version else empty(group, self._read_rows(request, group))

    def apply(self, change: Change) -> None:
        """See `Store.apply`.

        Raises:
            Refused: ledger and history entry are larger than a request may be; nothing was written.
        """
        seen = self._look_before(change)
        behind = self._behind(change, seen)
        ledger = nodes.packed(dump_document(change.after, **({"behind": by_topic(behind)} if behind else {})))
        rows = {**seen.rows, **self._moved(change, seen, behind)}
        first = self._first(change, seen, ledger, rows)
        written = self._write(change, seen, ledger, first)._replace(behind=behind)
        if rows.keys() <= first.keys():
            self._seen[change.after.group] = written
        else:
            self._publish(change, written, rows)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        paths = self._paths(group)
        with self._sessions.request() as request:
            newest = self._look(request, group).ledger.version
            oldest = max(newest - min(limit, self._settings.history), 0)
            wanted = [self._slot(paths, version) for version in range(newest, oldest, -1)]
            entries = list[Entry]()
            for start in range(0, len(wanted), _AT_ONCE):
                asked = [(path, request.client.get_async(path)) for path in wanted[start : start + _AT_ONCE]]
                found = [(path, request.found(answer)) for path, answer in asked]
                entries += [self._load_entry(group, path, node[0]) for path, node in found if node]
        return [entry for entry in entries if oldest < entry.version <= newest]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        with self._sessions.request() as request:
            ask = request.client.get_children_async
            request.wait(request.agree(f"{self._root}/consumers"))
            groups = [nodes.group_at(name) for name in request.found(ask(f"{self._root}/consumers")) or ()]
            ledgers = {group: request.client.exists_async(self._paths(group).ledger) for group in groups}
            offsets = {self._paths(group).offsets: group for group in groups if not request.wait(ledgers[group])}
            topics = {path: ask(path) for path in offsets}
            rows = [(g, ask(f"{path}/{t}")) for path, g in offsets.items() for t in request.found(topics[path]) or ()]
            return sorted(set(groups) - set(offsets.values()) | {group for group, row in rows if request.found(row)})

    def server_settings(self) -> dict[str, str | None]:
        """See `Examined.server_settings`: how many servers vote, which every user may read unless that was changed."""
        try:
            with self._sessions.request() as request:
                found = request.found(request.client.get_async("/zookeeper/config"))
        except Refused:
            return {"participants": None}
        lines = (found[0] or b"").decode("utf-8", "replace").splitlines() if found else []
        members = [line for line in lines if line.startswith("server.") and ":observer" not in line]
        return {"participants": str(max(1, len(members)))}

    def close(self) -> None:
        """See `Store.close`."""
        self._sessions.close()

    def _look_before(self, change: Change) -> _Seen:
        """Return the state that the change builds on; read it unless it is surely known."""
        with self._sessions.request() as request:
            seen = self._seen.pop(change.after.group, None)
            if seen is None or not seen.holds(request) or not change.builds_on(seen.ledger):
                seen = self._look(request, change.after.group)
        if not change.builds_on(seen.ledger):
            raise self._conflict(change, seen)
        return seen

    def _look(self, request: Request, group: str) -> _Seen:
        """Return the state of a group that a change needs."""
        paths = self._paths(group)
        agreed = request.agree(paths.ledger)
        asked = [request.client.get_async(path) for path in (paths.ledger, paths.unpublished)]
        request.wait(agreed)
        ledger, unpublished = map(request.found, asked)
        at = environment.monotonic()
        if ledger is None:
            return _Seen(Snapshot(group), client=request.client, at=at)
        (data, stat), where = ledger, f"{paths.ledger} in {self.address}, group {group!r},"
        document = nodes.unpacked(data)
        snapshot = load_document(document, group, where)
        rows = nodes.load_rows(paths, unpublished[0], f"{paths.unpublished}, beside {where}") if unpublished else {}
        return _Seen(snapshot, stat.version, rows, _load_behind(document, where), request.client, at)

    def _first(self, change: Change, seen: _Seen, ledger: bytes, rows: Rows) -> Rows:
        """Return what the ledger's multi writes: all rows or, if they do not fit, a note of them."""
        paths, version = self._paths(change.after.group), change.after.version
        entry = {self._slot(paths, version): nodes.packed(f"{version} {dump_entry(change.entry)}")}
        erase = {paths.unpublished: b""} if seen.rows or not seen.ledger.version else {}
        if nodes.size_of(together := {**entry, **erase, **rows}) + len(ledger) <= self._limit:
            return together
        noted = {**entry, paths.unpublished: nodes.dump_rows(paths, rows)}
        if (size := nodes.size_of(noted) + len(ledger)) > self._limit:
            raise Refused(
                f"{self.address}: group {change.after.group!r} was not changed: its ledger and the history entry have "
                f"{size} bytes, but ZooKeeper allows requests of {self._limit}. Raise jute.maxbuffer at the "
                "servers and in the store's URL, or spread the topics over several groups"
            )
        return noted

    def _write(self, change: Change, seen: _Seen, ledger: bytes, rows: Rows) -> _Seen:
        """Write the ledger if it is still the one that was read, and the rows with it; return the new state."""
        paths, version = self._paths(change.after.group), change.after.version
        known: set[str] | None = None
        if seen.ledger.version and not seen.rows:
            known = {paths.row(tp) for tp, move in change.moves.items() if move.before} | {paths.unpublished}
            known |= {paths.row(tp) for tp in seen.behind}
            known |= {self._slot(paths, version)} if version > self._settings.history else set()
        try:
            with self._sessions.request(OutcomeUnknown) as request:
                if not seen.ledger.version:
                    request.change(lambda multi: multi.create(paths.ledger, ledger), rows, known)
                    node = 0
                else:
                    stat = request.change(lambda multi: multi.set_data(paths.ledger, ledger, seen.node), rows, known)
                    with sensible():
                        node = int(stat.version)
        except VersionConflict as error:
            with self._sessions.request() as request:
                found = self._look(request, change.after.group)
            raise self._conflict(change, found) from error
        return _Seen(change.after, node, client=request.client, at=environment.monotonic())

    def _publish(self, change: Change, written: _Seen, rows: Rows) -> None:
        """Write the rows that did not fit, provided the ledger node is unchanged. The change is already durable."""
        paths = self._paths(change.after.group)

        def unchanged(multi: Any) -> None:
            multi.check(paths.ledger, written.node)

        try:
            with self._sessions.request() as request:
                known = request.existing(rows)
                for chunk in nodes.chunks(rows, self._limit):
                    request.change(unchanged, chunk, known)
                request.change(unchanged, {paths.unpublished: b""}, {paths.unpublished})
        except OffsetkeeperError as error:
            log.warning("group %r: some offsets are published with the next change only: %s", change.after.group, error)
        else:
            self._seen[change.after.group] = written._replace(rows={})

    def _behind(self, change: Change, seen: _Seen) -> Mapping[TopicPartition, int]:
        """Return the published offsets of the last batch after the change, if they are the start of the batch."""
        if change.entry.event != "commit":
            return {tp: at for tp, at in seen.behind.items() if tp not in change.moves}
        start = self._publishes_start
        return {tp: move.before.offset for tp, move in change.moves.items() if start and move.before}

    def _moved(self, change: Change, seen: _Seen, behind: Mapping[TopicPartition, int]) -> Rows:
        """Return the rows of a change: of moved partitions, and of partitions that only the batch before has."""
        paths, now = self._paths(change.after.group), change.after.positions
        moved = {*change.moves, *((seen.behind.keys() - behind.keys()) & now.keys())}
        return {paths.row(tp): str(behind[tp] if tp in behind else now[tp].offset).encode() for tp in moved}

    def _read_rows(self, request: Request, group: str) -> Positions:
        """Return the positions that another program has stored for a group without a ledger."""
        ask, offsets = request.client.get_children_async, self._paths(group).offsets
        topics = {topic: ask(f"{offsets}/{topic}") for topic in request.found(ask(offsets)) or ()}
        paths = [f"{offsets}/{topic}/{name}" for topic, found in topics.items() for name in request.found(found) or ()]
        asked = {path: request.client.get_async(path) for path in paths}
        rows = {path: node[0] for path, answer in asked.items() if (node := request.found(answer))}
        return dict(nodes.load_row(path, data, f"{path} in {self.address}") for path, data in rows.items())

    def _load_entry(self, group: str, path: str, data: bytes | None) -> Entry:
        where = f"{path} in {self.address}, group {group!r},"
        return load_numbered_entry(nodes.unpacked(data).decode("utf-8", "replace"), where)

    def _paths(self, group: str) -> Paths:
        return nodes.paths_of(self._root, group)

    def _slot(self, paths: Paths, version: int) -> str:
        return f"{paths.history}/{version % self._settings.history}"

    def _conflict(self, change: Change, seen: _Seen) -> VersionConflict:
        """Return the error for a change of another version than the one found, which may be an earlier try of it."""
        if seen.ledger.change_id == change.after.change_id and seen.rows:
            self._publish(change, seen, seen.rows)  # without its reply, its rows were not published
        return version_conflict(self.address, change, seen.ledger.version)


def _load_behind(document: bytes, where: str) -> Mapping[TopicPartition, int]:
    if b'"behind"' not in document:
        return {}
    found = load_stored(document).get("behind", {})
    try:
        return {TopicPartition(topic, int(number)): int(at) for topic, of in found.items() for number, at in of.items()}
    except GARBAGE as error:
        raise CorruptStore(f"{where} has no valid offsets in `behind`: {reason(error)}. {REMEDY}") from None
