"""Problems in the state of a query."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from offsetkeeper.checkpoint.contents import Checkpoint, StateStore
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.problems import ANEW, BACKUP, Problem, way_back
from offsetkeeper.checkpoint.state_ids import lost_ids

_NUMBER = re.compile("[0-9]{1,9}")
_IN_A_PARTITION = 2  # slashes before the name of a file
_ELSE = f"or {ANEW}"


def state_problems(found: Checkpoint, files: Files) -> Iterator[Problem]:
    """Yield missing parts of the state that the next batch needs. The content of state files is not checked."""
    version = found.next().batch
    newest = version - 1
    if newest in found.commits and found.state_ids and not found.commit(newest).get("stateUniqueIds"):
        what = f"it lacks the ids of the state that batch {version} needs: the query fails"
        yield Problem(f"commits/{newest}", what, f"{BACKUP}{way_back(found, newest - 1)}, {_ELSE}")
    if not version:
        return
    if not found.state_stores():
        if found.state or found.state_ids or "state" in files.names(""):
            yield Problem("state", "the query's state is gone: the query fails", f"{BACKUP}, {_ELSE}")
        return
    yield from _strays(found)
    stores = found.state_stores()
    missing = [store for store in stores if not store.has(version)]
    remedy = f"{BACKUP}{way_back(found, newest)}, {_ELSE}"
    for store in missing:
        yield Problem(str(store), f"the state before batch {version} is missing: the query fails", remedy)
    for name in [] if missing else lost_ids(found, newest):
        what = f"commits/{newest} has another id of its version {version} than the files: the query fails"
        yield Problem(name, what, remedy)
    yield from _operators(stores)
    yield from _partitions(stores, found.partitions)


def _strays(found: Checkpoint) -> Iterator[Problem]:
    folders = {tuple(name.split("/")[1:3]) for name in found.state if name.count("/") > _IN_A_PARTITION}
    for operator, partition in sorted(folder for folder in folders if all(map(_NUMBER.fullmatch, folder))):
        count = found.partitions.get(int(operator))
        if count is not None and int(partition) >= count:
            what = f"operator {operator} has {count} partitions: Spark does not read this one"
            yield Problem(f"state/{operator}/{partition}", what, "No action is needed", harmless=True)


def _operators(stores: Sequence[StateStore]) -> Iterator[Problem]:
    numbers = {store.operator for store in stores}
    for first, last in _gaps(numbers, max(numbers, default=0)):
        more = f", and that of the operators up to {last}" if last > first else ""
        yield Problem(f"state/{first}", f"the operator's state is gone{more}: the query fails", f"{BACKUP}, {_ELSE}")


def _partitions(stores: Sequence[StateStore], counts: Mapping[int, int]) -> Iterator[Problem]:
    there: dict[tuple[int, str], set[int]] = {}
    for store in stores:
        there.setdefault((store.operator, store.name), set()).add(store.partition)
    for (operator, name), numbers in sorted(there.items()):
        count = max(max(numbers) + 1, counts.get(operator, 0))
        if missing := count - len(numbers):
            first, _ = next(_gaps(numbers, count))
            store = StateStore(operator, first, name, frozenset(), frozenset())
            more = f", and of {missing - 1} others" if missing > 1 else ""
            what = f"the state of the partition is missing{more}: the query fails"
            yield Problem(str(store), what, f"{BACKUP}, {_ELSE}")


def _gaps(there: Collection[int], end: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of the numbers from 0 to before `end` that are not there: it may be any number."""
    for before, after in pairwise([-1, *sorted(there), end]):
        if before + 1 < after:
            yield before + 1, after - 1
