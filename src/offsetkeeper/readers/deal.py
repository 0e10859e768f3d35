"""Which ranges are read by which task: pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from offsetkeeper.core.model import OffsetRange, TopicPartition
from offsetkeeper.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What it costs to open a partition, counted in records, so that a thousand tiny ranges are dealt evenly too.
_OPENING = 100


def tidy(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return `ranges` sorted, without empty ones, and with those that touch each other joined.

    Raises:
        SettingsError: a range begins below 0 or ends before it begins, or two overlap.
    """
    tidied: list[OffsetRange] = []
    for each in sorted(OffsetRange(*r) for r in ranges):
        if not 0 <= each.start <= each.end:
            raise SettingsError(f"{each} is no range of offsets: it must be 0 <= start <= end")
        last = tidied[-1] if tidied else None
        if last and last.topic_partition == each.topic_partition and each.start < last.end and each.size:
            raise SettingsError(f"the ranges {last} and {each} overlap: each record is read once")
        if last and last.topic_partition == each.topic_partition and each.start == last.end:
            tidied[-1] = last._replace(end=each.end)
        elif each.size:
            tidied.append(each)
    return tidied


def deal(ranges: Sequence[OffsetRange], tasks: int, split: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """Return what each task reads: at most `tasks` of them, none empty, of about the same size.

    A partition stays in one task. With `split`, no task has more than that many offsets: ranges are cut, and there are
    as many tasks as that takes.

    Args:
        ranges: as `tidy` returns them.
        tasks: how many can run at once.
        split: the largest number of offsets for one task.
    """
    if split is not None:
        total = sum(r.size for r in ranges)
        return _cut(ranges, max(1, min(split, -(-total // tasks))))
    of_partition: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for each in ranges:
        of_partition[each.topic_partition].append(each)
    dealt: list[list[OffsetRange]] = [[] for _ in range(min(tasks, len(of_partition)))]
    loads = [0] * len(dealt)
    for piece in sorted(of_partition.values(), key=_load, reverse=True):
        least = loads.index(min(loads))
        dealt[least] += piece
        loads[least] += _load(piece)
    return [tuple(task) for task in dealt]


def _load(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.size + _OPENING for r in ranges)


def _cut(ranges: Iterable[OffsetRange], limit: int) -> list[tuple[OffsetRange, ...]]:
    dealt: list[list[OffsetRange]] = []
    room = 0
    for each in ranges:
        rest = each
        while rest.size:
            if not room:
                dealt.append([])
                room = limit
            middle = rest.start + min(room, rest.size)
            dealt[-1].append(rest._replace(end=middle))
            room -= middle - rest.start
            rest = rest._replace(start=middle)
    return [tuple(task) for task in dealt]
