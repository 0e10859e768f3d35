"""What is wrong with what a query keeps beside its offsets: its state, and the lists of a source of files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from offsetkeeper.checkpoint.contents import Checkpoint, StateStore
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.problems import BACKUP, Problem
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import CorruptStore

_NUMBER = re.compile("[0-9]{1,9}")
_IN_A_PARTITION = 2  # slashes before a file's name
_ELSE = "or seed a new checkpoint"


def state_problems(found: Checkpoint, files: Files) -> Iterator[Problem]:
    """Yield what is missing of the state that the next batch needs. What is in its files is not looked at."""
    version = found.next().batch
    newest = version - 1
    if newest in found.commits and found.state_ids and not found.commit(newest).get("stateUniqueIds"):
        what = f"it does not name the state that batch {version} needs: the query fails"
        yield Problem(f"commits/{newest}", what, f"{BACKUP}, or truncate to batch {newest - 1}, {_ELSE}")
    if not version:
        return
    if not found.state_stores():
        if found.state or found.state_ids or "state" in files.names(""):
            yield Problem("state", "the query's state is gone: the query fails", f"{BACKUP}, {_ELSE}")
        return
    yield from _strays(found)
    stores = found.state_stores()
    for store in stores:
        if not store.has(version):
            what = f"the state before batch {version} is not there: the query fails"
            yield Problem(str(store), what, "Truncate to a batch whose state is there, or seed a new checkpoint")
    yield from _partitions(stores, found.partitions)


def _strays(found: Checkpoint) -> Iterator[Problem]:
    folders = {tuple(name.split("/")[1:3]) for name in found.state if name.count("/") > _IN_A_PARTITION}
    for operator, partition in sorted(folder for folder in folders if all(map(_NUMBER.fullmatch, folder))):
        count = found.partitions.get(int(operator))
        if count is not None and int(partition) >= count:
            what = f"operator {operator} has {count} partitions: Spark does not read this one"
            yield Problem(f"state/{operator}/{partition}", what, "It may stay", harmless=True)


def _partitions(stores: Sequence[StateStore], counts: Mapping[int, int]) -> Iterator[Problem]:
    there: dict[tuple[int, str], set[int]] = {}
    for store in stores:
        there.setdefault((store.operator, store.name), set()).add(store.partition)
    for (operator, name), numbers in sorted(there.items()):
        missing = sorted(set(range(max(max(numbers) + 1, counts.get(operator, 0)))) - numbers)
        if missing:
            store = StateStore(operator, missing[0], name, frozenset(), frozenset())
            more = f", and of {len(missing) - 1} others" if len(missing) > 1 else ""
            what = f"the state of the partition is missing{more}: the query fails"
            yield Problem(str(store), what, f"{BACKUP}, {_ELSE}")


def file_source_problems(found: Checkpoint) -> Iterator[Problem]:
    """Yield where a source of files has lost the list of those that it has read: FileStreamSourceLog of Spark."""
    for source, text in _newest_sources(found).items():
        end = load_json(text or "null")
        number = end.get("logOffset") if isinstance(end, dict) else None
        if not isinstance(number, int) or number < 0:
            continue
        names = {f"sources/{source}/{number}", f"sources/{source}/{number}.compact"}
        if not names & found.listed:
            what = f"the list of the files of batch {number} is gone: the query fails"
            yield Problem(f"sources/{source}", what, f"{BACKUP}, or begin a new checkpoint")


def _newest_sources(found: Checkpoint) -> Mapping[str, str | None]:
    with suppress(CorruptStore, IndexError):
        return found.offset_log(found.offsets[-1]).sources
    return {}
