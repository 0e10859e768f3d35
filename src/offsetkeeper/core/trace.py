"""The trace of a run: a line of JSON for each request to a store or an output, and one for each answer.

It is off unless `OFFSETKEEPER_TRACE` names a folder. Each process writes a file there for each group. A line has ids,
offsets, marks and names. It has no record, no URL with a password, no setting and no text of an error.
`offsetkeeper check-trace` holds such files against the rules: see `operate.traces`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.codec import entry_fields
from offsetkeeper.core.ledger_document import document_fields
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict

log = logging.getLogger(__name__)
VARIABLE = "OFFSETKEEPER_TRACE"
"""The environment variable with the folder of traces."""
FORMAT = 1
_PRIVATE = ("reason", "actor")  # texts for people may quote what a server has said
_KEPT = 4  # ledgers that a line may name without their content
Told = dict[tuple[int, str], Snapshot]
"""Ledgers that lines have told, by version and change."""
Lines = Callable[[dict[str, Any]], object]
_taken: list[Lines] = []  # instead of files: the last one counts
_files: dict[tuple[str, str, int], _File] = {}
_lock = threading.Lock()


class Who(NamedTuple):
    """Whose line it is.

    Attributes:
        group: the consumer group.
        store: address of the store, without credentials.
        run: id of the ledger in the process that writes; a process may have several.
        owner: id of the owner as whom it works, or would work.
    """

    group: str
    store: str
    run: str
    owner: str


def is_on() -> bool:
    """Whether lines are written."""
    return bool(_taken) or bool(os.environ.get(VARIABLE))


def note(who: Who, event: str, **about: Any) -> None:
    """Write a line, if traces are on."""
    if not is_on():
        return
    line = {"at_ms": environment.now_ms(), **who._asdict(), "event": event, **about}
    if _taken:
        _taken[-1](line)
        return
    with _lock:
        place = (os.environ[VARIABLE], who.group, os.getpid())
        if place not in _files:
            _files[place] = _File(*place)
        _files[place].write(line)


@contextmanager
def taken(lines: Lines) -> Iterator[None]:
    """Give the lines of this process to a function while the block runs, and write no files."""
    _taken.append(lines)
    try:
        yield
    finally:
        _taken.pop()


@contextmanager
def ending(who: Callable[[], Who]) -> Iterator[None]:
    """Note how the block ends: by which error, if by one."""
    try:
        yield
    except BaseException as error:
        note(who(), "end", error=type(error).__name__)
        raise
    note(who(), "end")


@contextmanager
def telling(who: Who, change: Change) -> Iterator[None]:
    """Note what a ledger tells of a change in the end, after all tries: that the block returns, or its error."""
    about = {"change": _key(change.after), "of": change.entry.event}
    try:
        yield
    except Exception as error:
        note(who, "told", **about, outcome=_outcome(error), error=type(error).__name__)
        raise
    note(who, "told", **about, outcome="stored")


def range_fields(ranges: Iterable[OffsetRange]) -> list[list[Any]]:
    """Return ranges as a line has them: topic, partition, start and end of each."""
    return [[*each] for each in ranges]


def batch_fields(batch: Batch) -> dict[str, Any]:
    """Return a batch as a line has it."""
    return {"batch": batch.id, "ranges": range_fields(batch.ranges)}


def mark_fields(mark: OutputMark | None) -> dict[str, Any] | None:
    """Return an output's mark as a line has it."""
    return None if mark is None else mark._asdict()


def traced(store: Store, who: Who, told: Told) -> Store:
    """Return a store whose calls are noted, for a ledger; the store itself if traces are off.

    Args:
        store: the store.
        who: whose lines they are.
        told: what the lines of this ledger have told; empty at first.
    """
    if not is_on():
        return store
    kind = _TracedTransactions if isinstance(store, TransactionalStore) else _Traced
    return kind(store, who, told)


class _File:
    """One file; a line is one write, so a process that dies leaves at most a part of its last one."""

    def __init__(self, folder: str, group: str, pid: int) -> None:
        self._path = Path(folder) / f"{quote(group, safe='')[:100]}-{pid}-{environment.now_ms()}.jsonl"
        self._number = 0
        self._descriptor: int | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error)
        self.write({"event": "file", "format": FORMAT, "pid": pid})

    def write(self, line: dict[str, Any]) -> None:
        """Add a line. A trace that cannot be written ends no run."""
        if self._descriptor is None:
            return
        self._number += 1
        text = json.dumps({"n": self._number, **line}, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._descriptor, text)
        except OSError as error:
            os.close(self._descriptor)
            self._give_up(error)
            return
        if written < len(text):  # another line behind a part of one would be no trace
            os.close(self._descriptor)
            self._give_up(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _give_up(self, error: OSError) -> None:
        self._descriptor = None
        log.warning("%s: the trace is not written on, the run goes on: %s", self._path, error.strerror)


class _Traced:
    """A store whose calls are noted. A ledger that a line before had is named by its version and its change alone."""

    def __init__(self, store: Store, who: Who, told: Told) -> None:
        self._store, self._who, self._told = store, who, told
        self.address, self.abilities = store.address, store.abilities

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        asked = environment.now_ms()
        with self._failing("load", asked_ms=asked):
            found = self._store.load(group)
        note(self._who, "load", asked_ms=asked, ledger=_key(found), **self._content("content", found))
        return found

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        self._send(change, "apply")
        with self._answering(change):
            self._store.apply(change)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        with self._failing("history"):
            found = self._store.history(group, limit)
        note(self._who, "history", entries=[[entry.version, entry.change_id] for entry in found])
        return found

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return self._store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    def _send(self, change: Change, by: str) -> None:
        entry = {name: value for name, value in entry_fields(change.entry).items() if name not in _PRIVATE}
        before = self._content("before", change.before)
        after = self._content("after", change.after)
        keys = {"ledger": _key(change.before), "change": _key(change.after)}
        note(self._who, "send", by=by, **keys, entry=entry, **before, **after)

    @contextmanager
    def _answering(self, change: Change) -> Iterator[None]:
        """Note what the store says of a change: without a line, the process has died or is told to end."""
        about = {"change": _key(change.after)}
        try:
            yield
        except Exception as error:
            note(self._who, "answer", **about, outcome=_outcome(error), error=type(error).__name__)
            raise
        note(self._who, "answer", **about, outcome="stored")

    @contextmanager
    def _failing(self, event: str, **about: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            note(self._who, event, **about, error=type(error).__name__)
            raise

    def _content(self, name: str, ledger: Snapshot) -> dict[str, Any]:
        key = ledger.version, ledger.change_id
        if self._told.get(key) == ledger:
            return {}
        self._told.pop(key, None)
        self._told[key] = ledger
        while len(self._told) > _KEPT:
            del self._told[next(iter(self._told))]
        return {name: document_fields(ledger)}


class _TracedTransactions(_Traced):
    """A store with transactions whose calls are noted."""

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return cast("TransactionalStore", self._store).identity()

    def transaction(self, change: Change) -> AbstractContextManager[Any]:
        """See `TransactionalStore.transaction`."""
        return self._transaction(change)

    @contextmanager
    def _transaction(self, change: Change) -> Iterator[Any]:
        note(self._who, "open", change=_key(change.after))
        inside = False
        try:
            with cast("TransactionalStore", self._store).transaction(change) as connection:
                inside = True
                yield connection
                inside = False
                self._send(change, "transaction")
        except Exception as error:
            outcome = "rolled back" if inside else _outcome(error)
            note(self._who, "answer", change=_key(change.after), outcome=outcome, error=type(error).__name__)
            raise
        note(self._who, "answer", change=_key(change.after), outcome="stored")


def _key(ledger: Snapshot) -> list[Any]:
    return [ledger.version, ledger.change_id]


def _outcome(error: Exception) -> str:
    """Return what an error says of a change."""
    if isinstance(error, VersionConflict):
        return "conflict"
    if isinstance(error, StoreUnavailable):
        return "not stored"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"
