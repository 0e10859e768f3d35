"""What the stores of whole files share: each change of a group is a new file, `<group>/<number>.json`.

A file is a `document`: offsets, control record, and beside them the history `entry` of the change that made it and the
`previous` change's id. The one with the highest number is the ledger. The atomic step is to create the next number if
nobody has; 0.json is another program's, taken over where there is no ledger yet. Numbers have twelve digits, so that a
list by name is one by age.

Old files are deleted, which makes their names free again: a writer that slept meanwhile can create one. Such a
stray has a low number, so it is never the newest; it is not what the file after it names as `previous`; and it is
deleted in time. What tells whether a file just created, or just read as the newest, is one:

* The newest `_KEPT` files are never deleted, and the newest number never falls. So where fewer have been made since,
  the number was never used before.
* The oldest is deleted first. So while the file that a change builds on is there, the very same one, the next number
  cannot have been used and deleted. To ask for its stamp is the cheapest request there is.

By hand, files may be deleted and put back, so that a number comes again. Where the stamp is another one, the file a
change builds on is told by the id of the change that made it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from offsetkeeper.core.codec import REMEDY, empty, entry_fields, read_entry
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.outside import load_stored, whole_text
from offsetkeeper.core.store import not_changed, version_conflict
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, StoreUnavailable
from offsetkeeper.stores.base import BaseStore, StoreUrl

log = logging.getLogger(__name__)
_KEPT = 20  # newest files of a group that nobody deletes, whatever is set: the proof above needs that all agree on it
NAME = re.compile(r"([0-9]{12}|0)\.json")  # of a file of ours, or that of another program
_TRIES = 10
_AT_ONCE = 8  # files read together where many are, as each may be a round trip


class File(NamedTuple):
    """A file as it was created, and its stamp; see `LedgerFiles.stamp`."""

    content: bytes
    stamp: str


class LedgerFiles(Protocol):
    """A place for files in folders, one folder for each group. Safe to use from several threads."""

    def folders(self) -> Sequence[str]:
        """Return the names of the folders with files in them; of hidden ones too, or not.

        Where a look into each takes no request, only of those with a file whose name is a `NAME`.
        """

    def names(self, folder: str, after: str) -> Sequence[str]:
        """Return the names of the files in a folder: all that sort after `after`, and maybe others.

        Those that are there from begin to end of the call are among them.
        """

    def read(self, folder: str, name: str) -> File | None:
        """Return a file, or None where there is none."""

    def stamp(self, folder: str, name: str) -> str:
        """Return what tells a file from every other that ever had its name; empty where there is none."""

    def create(self, folder: str, name: str, content: bytes) -> str:
        """Create a file with all of its content, durably, and return its stamp; empty where the name is taken.

        Raises:
            StoreUnavailable: surely not created.
            OutcomeUnknown: may be created.
        """

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete files one after the other, each when the one before is gone; those not there count as deleted."""

    def clean(self) -> None:
        """Delete what writers that crashed have left, if there can be such."""

    def close(self) -> None:
        """Give connections back."""


class _Seen(NamedTuple):
    """The newest file of a group when this process last looked: its number, its stamp, and the change that made it."""

    version: int
    stamp: str
    change_id: str


class FileStore(BaseStore):
    """Ledgers in a place for files.

    Args:
        url: of the store.
        files: the place.
    """

    def __init__(self, url: StoreUrl, files: LedgerFiles) -> None:
        super().__init__(url)
        self._files = files
        self._history = url.settings.history
        self._seen: dict[str, _Seen] = {}

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        version, file = self._read_newest(group)
        if file is None:
            return empty(group)
        where = self._where(group, version)
        snapshot = load_document(file.content, group, where)
        if snapshot.version != version:
            raise CorruptStore(f"{where} holds version {snapshot.version}; only 0.json may hold none. {REMEDY}")
        self._seen[group] = _Seen(version, file.stamp, snapshot.change_id)
        return snapshot

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        group, before = change.after.group, change.before.version
        stamp = self._look(change)
        self._seen.pop(group, None)
        more = {"entry": entry_fields(change.entry), "previous": change.before.change_id}
        made = self._files.create(_folder(group), _name(before + 1), dump_document(change.after, **more).encode())
        if not made:
            raise not_changed(self.address, change, f"another writer made version {before + 1} first")
        self._confirm(change, stamp, made)
        self._seen[group] = _Seen(before + 1, made, change.after.change_id)
        keep = max(self._history, _KEPT)
        if (before + 1) % (keep // 10) == 0:  # several at once spare looks
            self._prune(group, before + 1 - keep)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        newest, file = self._read_newest(group)
        oldest, previous, entries = max(newest - min(limit, self._history), 0), None, list[Entry]()
        for version, each in self._walk_back(group, newest, file, oldest):
            where = self._where(group, version)
            raw = _parse(each.content, where)
            if previous not in (None, raw.get("change_id")):
                break  # a stray, see above
            entries.append(read_entry(raw.get("entry"), version, where))
            previous = raw.get("previous")
        return entries

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. On a server any folder with files in it counts: to look into each takes a request."""
        groups = (_group(folder) for folder in self._files.folders() if not folder.startswith("."))
        return sorted(group for group in groups if whole_text(group) == group)  # no command can name another

    def close(self) -> None:
        """See `Store.close`."""
        self._files.close()

    def _read_newest(self, group: str) -> tuple[int, File | None]:
        seen, listed = self._seen.get(group), False
        newest = seen.version if seen else None
        for _ in range(_TRIES):
            file = None if newest is None else self._files.read(_folder(group), _name(newest))
            now = self._find_newest(group)
            if now is None:
                return 0, None
            # Of the list before, it was the newest in this call, and of the list after, it is no stray.
            if file and newest is not None and (now == newest or (listed and newest < now < newest + _KEPT)):
                return newest, file
            newest, listed = now, True
        raise StoreUnavailable(f"{self.address}: group {group!r} changes faster than it can be read")

    def _walk_back(self, group: str, newest: int, file: File | None, oldest: int) -> Iterator[tuple[int, File]]:
        """Yield the newest file and those before it, down to the one after `oldest`, until one is gone."""
        if newest > oldest and file is not None:
            yield newest, file
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for last in range(newest - 1, oldest, -_AT_ONCE):
                versions = range(last, max(last - _AT_ONCE, oldest), -1)
                found = pool.map(lambda version: self._files.read(_folder(group), _name(version)), versions)
                for version, each in zip(versions, found, strict=True):
                    if each is None:
                        return
                    yield version, each

    def _find_newest(self, group: str) -> int | None:
        seen = self._seen.get(group)
        versions = self._versions(group, seen.version if seen else 0)
        if (
            seen and seen.version not in versions
        ):  # deleted as an old one, or the whole ledger was put back to an older state
            versions = self._versions(group, 0)
        return max(versions, default=None)

    def _look(self, change: Change) -> str:
        """Return the stamp of the file that the change builds on; empty for the first change."""
        group, before = change.after.group, change.before.version
        seen = self._seen.get(group)
        if seen and (seen.version, seen.change_id) == (before, change.before.change_id):
            return seen.stamp if before else ""
        file = self._files.read(_folder(group), _name(before)) if before else None
        newest = self._find_newest(group) or 0  # after the file, which is a stray otherwise
        if newest != before or (before and not _made_by(file, change.before)):
            raise version_conflict(self.address, change, newest)
        return file.stamp if file else ""

    def _versions(self, group: str, start: int) -> Collection[int]:
        names = self._files.names(_folder(group), _name(start - 1) if start > 1 else "")
        found = (int(match[1]) for name in names if (match := NAME.fullmatch(name)))
        return {version for version in found if version >= start}

    def _confirm(self, change: Change, stamp: str, made: str) -> None:
        """Return if the file just created is the change of its version, as proven in the docstring above."""
        group, before = change.after.group, change.before.version
        folder, mine, next_one = _folder(group), _name(before + 1), _name(before + 2)
        try:
            if stamp and self._files.stamp(folder, _name(before)) == stamp:
                return
            versions = self._versions(group, before)
            newest = max(versions, default=0)
            there = before in versions and _made_by(self._files.read(folder, _name(before)), change.before)
            if before < newest < before + _KEPT and (before == 0 or there):
                return
            after = self._files.read(folder, next_one)
            if after and _parse(after.content, next_one).get("previous") == change.after.change_id:
                return
            # Where the next one is gone, all before it is, but for strays.
            known = after is not None or self._files.stamp(folder, mine) == made
            self._files.delete(folder, [mine])
        except OffsetkeeperError as error:
            raise self._unknown(change, str(error)) from error
        if known:
            if before in versions:
                raise version_conflict(self.address, change, before)
            raise not_changed(self.address, change, f"version {before} is gone, the newest is {newest}")
        raise self._unknown(change, f"{newest - before} changes were made meanwhile")

    def _prune(self, group: str, last: int) -> None:
        try:
            old = sorted(version for version in self._versions(group, 0) if 0 < version <= last)
            if old:
                self._files.delete(_folder(group), [_name(version) for version in old])
                self._files.clean()
        except OffsetkeeperError as error:  # the change is made; a later one tries again
            log.warning("%s: old files of group %r are not deleted: %s", self.address, group, error)

    def _where(self, group: str, version: int) -> str:
        return f"{self.address}, group {group!r}, file {_folder(group)}/{_name(version)},"

    def _unknown(self, change: Change, why: str) -> OutcomeUnknown:
        what = f"{self.address}: group {change.after.group!r}: whether version {change.after.version} counts"
        return OutcomeUnknown(f"{what} is not known ({why}); load it again")


def _name(version: int) -> str:
    return f"{version:012}.json" if version else "0.json"


def _made_by(file: File | None, snapshot: Snapshot) -> bool:
    """Return whether a file is this ledger: numbers alone repeat where files are deleted or put back."""
    return file is not None and _parse(file.content, "a file").get("change_id") == snapshot.change_id


def _folder(group: str) -> str:
    """Return the name of a group's folder: the group itself, but that no folder of a group is a hidden one."""
    return f"%{ord(group[0]):X}{group[1:]}" if group[0] in ".%" else group


def _group(folder: str) -> str:
    return {"%2E": ".", "%25": "%"}.get(folder[:3], folder[:3]) + folder[3:]


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        raw = load_stored(text)
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise CorruptStore(f"{where} is no JSON object: {text[:200]!r}. {REMEDY}")
    return raw
