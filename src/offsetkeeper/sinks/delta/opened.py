"""Opens a Delta table, tells the errors of deltalake, and reads which batches its log tells of."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

UNKNOWN = -1
"""What a RESTORE to a time goes back to: it goes by the times of the log's files, which a copy of the table changes."""

_TAKE_ROWS = ("DELETE", "TRUNCATE", "REPLACE", "CREATE OR REPLACE")
_DELETES = re.compile(r'"actionType"\s*:\s*"delete"')  # a clause of a MERGE, as JSON in a text
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
    after = 0  # how many of these came after the oldest batch that is told
    for entry in standing(entries):
        version = entry["version"]
        if restored_to(entry) == UNKNOWN:
            return Held(tuple(found[::-1]), f"version {version} restores it to a time, and what that kept is unknown")
        batch = HeldBatch.of(f"version {version}", _metadata(entry))
        if batch is not None:
            found.append(batch)
            after = len(changed)
        elif _takes_rows(entry):
            changed.append(f"version {version} ({entry['operation']})")
    oldest = entries[-1]["version"] if entries else 0
    lacks = f"the log begins with version {oldest}" if oldest else ""
    return Held(tuple(found[::-1]), lacks, ", ".join(changed[:after][::-1]))


def standing(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the commits of a log from which its table comes, the newest first, as `entries` are.

    Those that a RESTORE has taken back are left out, so a RESTORE that was itself taken back takes nothing back. After
    one to a time it is unknown what it kept, and all are yielded.
    """
    reached: int | None = None
    for entry in entries:
        if reached is None or entry["version"] <= reached:
            yield entry
            to = restored_to(entry)
            reached = reached if to in {None, UNKNOWN} else to


def has_batch(entry: Mapping[str, Any], key: MarkKey, mark: OutputMark) -> bool:
    """Return whether a commit of a log is the one with the batch of a mark; see `held.tells`."""
    return tells(_metadata(entry), key, mark)


def restored_to(entry: Mapping[str, Any]) -> int | None:
    """Return the version that a RESTORE goes back to, `UNKNOWN` of one to a time; None of another commit."""
    if entry.get("operation") != "RESTORE":
        return None
    to = str(entry.get("operationParameters", {}).get("version"))
    return int(to) if to.isdecimal() else UNKNOWN


def _takes_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a commit of others may have deleted or replaced rows that were there."""
    how: Mapping[str, Any] = entry.get("operationParameters", {})
    overwrites = str(how.get("mode", "")).lower() == "overwrite" or how.get("outputMode") == "Complete"
    merges_away = any(_DELETES.search(str(each)) for each in how.values())
    return overwrites or merges_away or str(entry.get("operation", "")).startswith(_TAKE_ROWS)


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
