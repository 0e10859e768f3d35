"""Code shared by the stores of whole files: each change of a group is a new file, `<group>/<number>.json`.

A file is a `document`: offsets and control record, and also the `group`, the history `entry` of the change that made it
and the id of the `previous` change. The file with the highest number is the ledger. The atomic step is to create the
next number if it does not exist. 0.json is written by another program, and is taken over if there is no ledger yet.
Numbers have twelve digits, so that sorting by name is sorting by age.

Old files are deleted, so their names become free again, and a writer that slept meanwhile can create one. Such a
stray has a low number, so it is never the newest; the file after it does not have its id as `previous`; and it is
deleted later. These facts show whether a file that was just created, or just read as the newest, is a stray:

* The newest `_KEPT` files are never deleted, and the newest number never falls. So if fewer files were made since,
  the number was never used before.
* The oldest file is deleted first. So while the same file that a change builds on still exists, the next number
  cannot have been used and deleted. Its stamp is the cheapest request.

People may delete and restore files by hand, so that a number comes again. If the stamp differs, the id of the change
that made the file identifies it.

A place must create a file only if there is none, in one step. Some servers of S3 look first and then write, so that of
two writers at once the second one writes over the first. So a writer also looks whether its own file still has its
stamp. This notices most such cases, not all: the other one may write even later.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from offsetkeeper.clients.url import ClientUrl
from offsetkeeper.core.codec import REMEDY, empty, entry_fields, read_entry
from offsetkeeper.core.ledger_document import check_written_for, dump_document, load_document
from offsetkeeper.core.model import Change, Entry, Snapshot, check_group
from offsetkeeper.core.outside import LARGEST_STORED, load_stored, reason
from offsetkeeper.core.store import not_changed, version_conflict
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
)
from offsetkeeper.stores.base import BaseStore
from offsetkeeper.stores.group_names import Names

log = logging.getLogger(__name__)
_KEPT = 20  # newest files of a group that are never deleted; the proof above needs the same number everywhere
NAME = re.compile(r"([0-9]{12}|0)\.json")  # of our files, or of another program's file
# A slash ends a name, HDFS allows no colon, lists of S3 are XML, which has no control characters, and some file systems
# drop a space at the end. The longest name of a folder, with the two bytes that a changed first character adds.
_NAMES = Names(re.compile("[/:\x00-\x1f\x7f-\x9f\ufffe\uffff]|^ | \\Z"), longest=253)
_CHANGED = ".%:"  # the first hides a folder, the others show that a name was changed
_TRIES = 10
MOST_RANGES = 2_000_000
"""Ranges and moves of a history that is read, some 300 MB; entries before these are left out."""
_LARGE = 2**20  # bytes of a file after which they are read one by one, as each may have 64 MiB
_AT_ONCE = 8  # files read at the same time, as each may be a round trip


class File(NamedTuple):
    """A file as it was created, and its stamp; see `LedgerFiles.stamp`."""

    content: bytes
    stamp: str


class LedgerFiles(Protocol):
    """A place for files in folders, one folder for each group. Safe to use from several threads."""

    def folders(self) -> Sequence[str]:
        """Return the names of the folders with files; hidden folders may be included.

        If reading a folder needs no request, only those with a file whose name matches `NAME`.
        """

    def names(self, folder: str, after: str) -> Sequence[str]:
        """Return the names of the files in a folder: all that sort after `after`, and possibly others.

        Files that exist during the whole call are included.
        """

    def read(self, folder: str, name: str) -> File | None:
        """Return a file, or None if it does not exist."""

    def stamp(self, folder: str, name: str) -> str:
        """Return a text that distinguishes a file from every other one with its name; empty if there is none."""

    def create(self, folder: str, name: str, content: bytes) -> str:
        """Create a file with all of its content, durably, and return its stamp; empty if the name is taken.

        Raises:
            StoreUnavailable: surely not created.
            OutcomeUnknown: may be created.
        """

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete files in this order, one after the other; missing files count as deleted."""

    def clean(self) -> None:
        """Delete files that crashed writers have left, if there can be any."""

    def close(self) -> None:
        """Close connections."""


class _Seen(NamedTuple):
    """The newest file of a group when this process last read it: number, stamp, and the change that made it."""

    version: int
    stamp: str
    change_id: str


class FileStore(BaseStore):
    """Ledgers in files.

    Args:
        url: of the store.
        files: the place.
    """

    def __init__(self, url: ClientUrl, files: LedgerFiles) -> None:
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
            raise CorruptStore(f"{where} has version {snapshot.version}; only 0.json may have none. {REMEDY}")
        self._seen[group] = _Seen(version, file.stamp, snapshot.change_id)
        return snapshot

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        group, before = change.after.group, change.before.version
        content = self._content(change)
        stamp = self._look(change)
        self._seen.pop(group, None)
        made = self._files.create(folder_of(group), name_of(before + 1), content)
        if not made:
            raise not_changed(self.address, change, f"another writer made version {before + 1} first")
        self._confirm(change, stamp, made)
        self._seen[group] = _Seen(before + 1, made, change.after.change_id)
        keep = max(self._history, _KEPT)
        if (before + 1) % (keep // 10) == 0:  # deleting several at once saves requests
            self._prune(group, before + 1 - keep)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        newest, file = self._read_newest(group)
        oldest, previous, entries = max(newest - min(limit, self._history), 0), None, list[Entry]()
        left = MOST_RANGES
        for version, each in self._walk_back(group, newest, file, oldest):
            where = self._where(group, version)
            raw = _parse(each.content, where)
            check_written_for(raw, group, where)
            if previous not in (None, raw.get("change_id")):
                break  # a stray, see above
            entries.append(read_entry(raw.get("entry"), version, where))
            left -= entries[-1].partitions
            if left < 0:
                break
            previous = raw.get("previous")
        return entries

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. On a server any folder with files counts, because reading each needs a request."""
        folders = [folder for folder in self._files.folders() if not folder.startswith(".")]
        return sorted(
            group for folder, group in zip(folders, map(group_of, folders), strict=True) if _has(group, folder)
        )

    def close(self) -> None:
        """See `Store.close`."""
        self._files.close()

    def _content(self, change: Change) -> bytes:
        group = change.after.group  # a file system may take the folders of two groups for one
        more = {"entry": entry_fields(change.entry), "previous": change.before.change_id, "group": group}
        content = dump_document(change.after, **more).encode()
        if len(content) > LARGEST_STORED:  # it could not be read again
            raise Refused(
                f"{self.address}: the ledger of group {group!r} has {len(content)} bytes, and a file has "
                f"{LARGEST_STORED} at most; nothing was written. Give some of its topics a group of their own"
            )
        return content

    def _read_newest(self, group: str) -> tuple[int, File | None]:
        seen, listed = self._seen.get(group), False
        newest = seen.version if seen else None
        for _ in range(_TRIES):
            file = None if newest is None else self._files.read(folder_of(group), name_of(newest))
            now = self._find_newest(group)
            if now is None:
                return 0, None
            # It is the newest of the list before, so it is not a stray of the list after.
            if file and newest is not None and (now == newest or (listed and newest < now < newest + _KEPT)):
                return newest, file
            newest, listed = now, True
        raise StoreUnavailable(f"{self.address}: group {group!r} changes faster than it can be read")

    def _walk_back(self, group: str, newest: int, file: File | None, oldest: int) -> Iterator[tuple[int, File]]:
        """Yield the newest file and those before it, down to the one after `oldest`, until one is gone."""
        if newest > oldest and file is not None:
            yield newest, file
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            last, large = newest - 1, file is not None and len(file.content) > _LARGE
            while last > oldest:
                versions = range(last, max(last - (1 if large else _AT_ONCE), oldest), -1)
                last, large = versions[-1] - 1, False
                found = pool.map(lambda version: self._files.read(folder_of(group), name_of(version)), versions)
                for version, each in zip(versions, found, strict=True):
                    if each is None:
                        return
                    large = large or len(each.content) > _LARGE
                    yield version, each

    def _find_newest(self, group: str) -> int | None:
        seen = self._seen.get(group)
        versions = self._versions(group, seen.version if seen else 0)
        if seen and seen.version not in versions:  # deleted as old, or the whole ledger was restored to an older state
            versions = self._versions(group, 0)
        return max(versions, default=None)

    def _look(self, change: Change) -> str:
        """Return the stamp of the file that the change builds on; empty for the first change."""
        group, before = change.after.group, change.before.version
        seen = self._seen.get(group)
        if seen and (seen.version, seen.change_id) == (before, change.before.change_id):
            return seen.stamp if before else ""
        file = self._files.read(folder_of(group), name_of(before)) if before else None
        newest = self._find_newest(group) or 0  # after the file, which is a stray otherwise
        if newest != before or (before and not _made_by(file, change.before)):
            raise version_conflict(self.address, change, newest)
        return file.stamp if file else ""

    def _versions(self, group: str, start: int) -> Collection[int]:
        names = self._files.names(folder_of(group), name_of(start - 1) if start > 1 else "")
        found = (int(match[1]) for name in names if (match := NAME.fullmatch(name)))
        return {version for version in found if version >= start}

    def _confirm(self, change: Change, stamp: str, made: str) -> None:
        """Return if the created file is the change of its version, by the proof in the docstring above."""
        group, before = change.after.group, change.before.version
        folder, mine, next_one = folder_of(group), name_of(before + 1), name_of(before + 2)
        try:
            if stamp and self._files.stamp(folder, name_of(before)) == stamp:
                self._check_own(change, made)
                return
            versions = self._versions(group, before)
            newest = max(versions, default=0)
            there = before in versions and _made_by(self._files.read(folder, name_of(before)), change.before)
            if before < newest < before + _KEPT and (before == 0 or there):
                self._check_own(change, made)
                return
            after = self._files.read(folder, next_one)
            if after and _parse(after.content, next_one).get("previous") == change.after.change_id:
                return
            # If the next file is gone, all files before it are gone too, except strays.
            known = after is not None or self._files.stamp(folder, mine) == made
            self._files.delete(folder, [mine])
        except OffsetkeeperError as error:
            raise self._unknown(change, str(error)) from error
        if known:
            if before in versions:
                raise version_conflict(self.address, change, before)
            raise not_changed(self.address, change, f"version {before} is gone, the newest is {newest}")
        raise self._unknown(change, f"{newest - before} changes were made meanwhile")

    def _check_own(self, change: Change, made: str) -> None:
        """Check that the file of a change, which is never deleted as old so soon, is still the one that was made."""
        name = name_of(change.after.version)
        if self._files.stamp(folder_of(change.after.group), name) != made:
            raise StoreUnavailable(
                f"{name} is gone, or another writer wrote over it: does the place create files in one step?"
            )

    def _prune(self, group: str, last: int) -> None:
        try:
            old = sorted(version for version in self._versions(group, 0) if 0 < version <= last)
            if old:
                self._files.delete(folder_of(group), [name_of(version) for version in old])
                self._files.clean()
        except OffsetkeeperError as error:  # the change is made; a later change deletes them
            log.warning("%s: old files of group %r could not be deleted: %s", self.address, group, error)

    def _where(self, group: str, version: int) -> str:
        return f"{self.address}, group {group!r}, file {folder_of(group)}/{name_of(version)},"

    def _unknown(self, change: Change, why: str) -> OutcomeUnknown:
        what = f"{self.address}: group {change.after.group!r}: it is unknown whether version {change.after.version}"
        return OutcomeUnknown(f"{what} counts ({why}); load the group again")


def name_of(version: int) -> str:
    """Return the name of the file with a version; 0 is that of another program."""
    return f"{version:012}.json" if version else "0.json"


def _made_by(file: File | None, snapshot: Snapshot) -> bool:
    """Return whether a file is this ledger: numbers repeat if files are deleted or restored."""
    return file is not None and _parse(file.content, "a file").get("change_id") == snapshot.change_id


def folder_of(group: str) -> str:
    """Return the name of a group's folder: a name that a folder can have, changed so that it is never hidden.

    Raises:
        Refused: it is too long for a folder.
    """
    name = _NAMES.name_of(group)
    return f"%{ord(name[0]):X}{name[1:]}" if name[0] in _CHANGED else name


def group_of(folder: str) -> str:
    """Return the group of a folder."""
    return _NAMES.group_of({"%2E": ".", "%25": "%", "%3A": ":"}.get(folder[:3], folder[:3]) + folder[3:])


def _has(group: str, folder: str) -> bool:
    """Whether a folder is that of a group: others have made other folders."""
    with suppress(SettingsError, Refused):
        return folder_of(check_group(group)) == folder
    return False


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        raw = load_stored(text)
    except (ValueError, RecursionError) as error:
        raise CorruptStore(f"{where} is not a JSON object: {reason(error)}. {REMEDY}") from None
    if not isinstance(raw, dict):
        raise CorruptStore(f"{where} is not a JSON object. {REMEDY}")
    return raw
