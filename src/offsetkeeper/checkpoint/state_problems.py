"""What is wrong with what a query keeps beside its offsets: its state, and the lists of a source of files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint, StateStore
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import lines_of
from offsetkeeper.checkpoint.problems import BACKUP, Problem
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import CorruptStore

_METADATA = re.compile(r"state/(\d{1,9})/_metadata/(?:metadata|v2/\d{1,19})")
_MOST = 100_000  # partitions: more are a damaged number
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
    counts = _partition_counts(found, files)
    stores = [each for each in found.state_stores() if each.partition < counts.get(each.operator, _MOST)]
    for store in stores:
        if not store.has(version):
            what = f"the state before batch {version} is not there: the query fails"
            yield Problem(str(store), what, "Truncate to a batch whose state is there, or seed a new checkpoint")
    yield from _partitions(stores, counts)


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


def _partition_counts(found: Checkpoint, files: Files) -> dict[int, int]:
    """Return the number of partitions of each operator, where Spark has written it down (OperatorStateMetadata)."""
    counts: dict[int, int] = {}
    for name in found.state:
        if match := _METADATA.fullmatch(name):
            with suppress(ValueError, RecursionError, IndexError):
                counts[int(match[1])] = _partition_count(load_json(lines_of((files.read(name) or b"").decode())[1]))
    return counts


def _partition_count(metadata: Any) -> int:
    stores = metadata.get("stateStoreInfo", []) if isinstance(metadata, dict) else []
    counts = (
        [each.get("numPartitions") for each in stores if isinstance(each, dict)] if isinstance(stores, list) else []
    )
    return max((count for count in counts if isinstance(count, int) and count < _MOST), default=0)


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
