"""Opens a Delta table, tells the errors of deltalake, and reads which batches its log tells of."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.outside import LARGEST_STORED, UnfitFile, open_file
from offsetkeeper.errors import Refused, SinkError
from offsetkeeper.sinks.delta.task import Folder
from offsetkeeper.sinks.held import Held, HeldBatch, tells
from offsetkeeper.sinks.sink import MarkKey

USER_METADATA = "userMetadata"
"""Where a commit keeps a text of its writer; `DESCRIBE HISTORY` of Spark shows it too."""

_CLOCKS_MS = 60_000  # the times of a log are those of its writers, and a RESTORE goes by those of its files
_TAKE_ROWS = ("DELETE", "TRUNCATE", "REPLACE", "CREATE OR REPLACE")
_MANAGED = "when loading a catalog-managed table"
_POINTER = "_delta_log/_last_checkpoint"
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP}


def load(folder: Folder) -> deltalake.DeltaTable:
    """Return the table in a folder, as it is now.

    Raises:
        Refused: there is none, or it cannot be opened.
        SinkError: it could not be reached.
    """
    if folder.local:
        _check_pointer(folder)
    with telling(folder):
        return deltalake.DeltaTable(folder.address, storage_options=dict(folder.options))


def held(folder: Folder) -> Held:
    """Return the batches that the log of a table tells of.

    Commits that a RESTORE has taken back do not count. Old entries of a log are deleted, after 30 days by default.

    Raises:
        Refused, SinkError: see `load`.
    """
    table = load(folder)
    with telling(folder):
        entries = table.history()
    found: list[HeldBatch] = []
    changed: list[str] = []
    for entry in standing(entries):
        version = entry["version"]
        to = restored_to(entry, entries)
        if to is not None and to.surely < to.perhaps:
            return Held(tuple(found[::-1]), f"version {version} restores it to a time, and what that kept is unknown")
        batch = HeldBatch.of(f"version {version}", _metadata(entry))
        if batch is not None:
            found.append(batch)
        elif _takes_rows(entry):
            changed.append(f"version {version} ({entry['operation']})")
    oldest = entries[-1]["version"] if entries else 0
    lacks = f"the log begins with version {oldest}" if oldest else ""
    return Held(tuple(found[::-1]), lacks, ", ".join(changed[::-1]) if found else "")


class RestoredTo(NamedTuple):
    """The version that a RESTORE goes back to: `surely` or a later one, up to `perhaps`; -1 is before the first."""

    surely: int
    perhaps: int


def standing(entries: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the commits of a log from which its table comes, the newest first, as `entries` are.

    Those that a RESTORE has taken back are left out, so a RESTORE that was itself taken back takes nothing back. Those
    that a RESTORE to a time may have kept are yielded.
    """
    reached: int | None = None
    for entry in entries:
        if reached is None or entry["version"] <= reached:
            yield entry
            to = restored_to(entry, entries)
            reached = reached if to is None else to.perhaps


def has_batch(entry: Mapping[str, Any], key: MarkKey, mark: OutputMark) -> bool:
    """Return whether a commit of a log is the one with the batch of a mark; see `held.tells`."""
    return tells(_metadata(entry), key, mark)


def is_restore(entry: Mapping[str, Any]) -> bool:
    """Return whether a commit of a log is a RESTORE."""
    return bool(entry.get("operation") == "RESTORE")


def restored_to(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> RestoredTo | None:
    """Return what a RESTORE goes back to; None of another commit.

    Args:
        entry: the commit.
        entries: the commits of the log, as far back as it matters.
    """
    if not is_restore(entry):
        return None
    parameters = entry.get("operationParameters", {})
    to, time = str(parameters.get("version")), str(parameters.get("datetime"))
    if to.isdecimal():
        return RestoredTo(int(to), int(to))
    times = {each["version"]: each.get("timestamp") for each in entries if each["version"] < entry["version"]}
    until = [version for version, at in times.items() if at is None or at <= int(time)] if time.isdecimal() else []
    if not times or not time.isdecimal() or (0 in times and not until):  # Spark's has no zone; none is before the table
        return RestoredTo(-1, entry["version"] - 1)
    later = min((v for v, at in times.items() if at is None or at > int(time) - _CLOCKS_MS), default=entry["version"])
    return RestoredTo(max((v for v in times if v < later), default=-1), max(until, default=min(times) - 1))


def _takes_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a commit of others may have deleted or replaced rows that were there."""
    overwrites = str(entry.get("operationParameters", {}).get("mode", "")).lower() == "overwrite"
    return overwrites or str(entry.get("operation", "")).startswith(_TAKE_ROWS)


def _metadata(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = json.loads(entry.get(USER_METADATA) or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def telling(folder: Folder) -> Iterator[None]:
    """Raise the errors of deltalake as ours."""
    try:
        yield
    except TableNotFoundError:
        raise Refused(
            f"{folder.address} has no Delta table: create it first, with deltalake.DeltaTable.create(uri, schema=…, "
            "partition_by=[…]), or correct the address"
        ) from None
    except (DeltaError, OSError) as error:
        if _MANAGED in str(error):
            raise Refused(
                f"{folder.address} is managed by a catalog, as Unity Catalog does: each commit goes through the "
                "catalog, which deltalake does not know. Write into a table without that feature, or an IcebergTable"
            ) from None
        raise SinkError(folder.why(error)) from None


def _check_pointer(folder: Folder) -> None:
    """Check the file that deltalake opens without a look: it would wait for a FIFO, or take memory for any size."""
    try:
        file, _ = open_file(Path(folder.address, _POINTER), LARGEST_STORED, root=Path(folder.address))
        file.close()
    except UnfitFile as error:
        raise Refused(
            f"{folder.address}: {error.filename} was not opened: it {error.strerror}. Somebody who may write there "
            "has put it there: take it away"
        ) from None
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise Refused(f"{folder.address}: {error}; nothing was written. Give the folder of a table") from None
        # of others deltalake tells
