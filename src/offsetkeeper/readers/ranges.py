"""Which offsets a batch reads, and which task reads them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import SettingsError

# The cost to open a partition, in records, so that a thousand tiny ranges are distributed evenly too.
_OPENING = 100
# A task that has fewer records than this beyond its share costs less than a partition that is opened twice.
_WORTH_CUTTING = 20_000
# The golden ratio, as a part of 2**64.
_GOLDEN = 0x9E3779B97F4A7C15

Split = int | Literal["auto", "evenly"] | None
"""The most offsets for one task; or None or "auto": each partition in one task; or "evenly": see `split`.

A reader with "auto" reads "evenly" where rows may come in any order.
"""


def fair_share(backlogs: Mapping[TopicPartition, int], limit: int | None, turn: int = 0) -> dict[TopicPartition, int]:
    """Return how many offsets each partition may give to the batch; those that give none are left out.

    Small backlogs are taken whole, what they leave is shared equally among the larger ones, and where fewer offsets
    than partitions remain, `turn` decides who goes first.

    Args:
        backlogs: offsets waiting in each partition. Name those that have none too: the turns go round all partitions.
        limit: the most offsets in the batch, at least 1, or None for all.
        turn: the number of the batch; the next batch begins with the partitions this one left out.

    Raises:
        SettingsError: the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise SettingsError(f"{limit!r} is not a limit for a batch: use a number of 1 or more, or None for no limit")
    waiting = {tp: size for tp, size in backlogs.items() if size > 0}
    if limit is None or sum(waiting.values()) <= limit:
        return waiting
    shares: dict[TopicPartition, int] = {}
    left = limit
    by_size = sorted(waiting, key=lambda tp: (waiting[tp], tp))
    while waiting[tp := by_size[len(shares)]] <= left // (len(by_size) - len(shares)):
        shares[tp] = waiting[tp]
        left -= waiting[tp]
    large = set(by_size[len(shares) :])  # which all have more waiting than an equal share
    equal, over = divmod(left, len(large))
    favoured = _favoured(sorted(backlogs), large, over, turn)
    return shares | {tp: equal + (tp in favoured) for tp in large if equal or tp in favoured}


def _favoured(
    order: Sequence[TopicPartition], large: Collection[TopicPartition], over: int, turn: int
) -> set[TopicPartition]:
    """Return who gets the offsets that are left over: whose turn it is, and others for those that have none waiting.

    The turns go round all partitions, so that under one limit nobody waits longer than a round, however the others
    come and go. The places of idle ones are spread over all that wait: the turn after an idle one would get them all.
    They begin at multiples of the golden ratio, which have no period that idle partitions could have too.
    """
    first = turn * over % len(order)
    due = {tp for tp in (*order[first : first + over], *order[: max(0, first + over - len(order))]) if tp in large}
    others = [tp for tp in order if tp in large and tp not in due]
    first = (turn * _GOLDEN % 2**64) * len(others) >> 64
    return due.union((others[first:] + others[:first])[: over - len(due)])


def check_range(given: object) -> OffsetRange:
    """Return what is given if it is an `OffsetRange`.

    Raises:
        SettingsError: it is something else, such as a plain tuple.
    """
    if not isinstance(given, OffsetRange):
        raise SettingsError(f"{given!r} is not a range: write OffsetRange('orders', 0, start, end)")
    return given


def tidy(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return `ranges` sorted, without empty ones, and with those that touch each other joined.

    Raises:
        SettingsError: a range is not an OffsetRange, starts below 0 or ends before it starts, or two ranges overlap.
    """
    tidied: list[OffsetRange] = []
    for each in sorted(map(check_range, ranges)):
        if not 0 <= each.start <= each.end:
            raise SettingsError(f"{each} is not a range of offsets: it must be 0 <= start <= end")
        last = tidied[-1] if tidied else None
        if not each.size:
            continue
        if last is None or last.topic_partition != each.topic_partition or last.end < each.start:
            tidied.append(each)
        elif each.start < last.end:
            raise SettingsError(f"the ranges {last} and {each} overlap: each record is read once")
        else:
            tidied[-1] = last._replace(end=each.end)
    return tidied


def split(ranges: Sequence[OffsetRange], tasks: int, most: Split = None) -> list[tuple[OffsetRange, ...]]:
    """Return what each task reads: at most `tasks` of them, none empty, of about the same size.

    A partition stays in one task. With a number, no task has more than that many offsets: ranges are cut, and there are
    as many tasks as that takes. With "evenly", ranges are cut only where one task would have far more than its share.

    Args:
        ranges: as `tidy` returns them.
        tasks: how many can run at once.
        most: the largest number of offsets for one task; or one of the words of `Split`.
    """
    share = max(1, -(-sum(r.size for r in ranges) // tasks))
    if isinstance(most, int):
        return _cut(ranges, max(1, min(most, share)))
    whole = _whole(ranges, tasks)
    largest = max((sum(r.size for r in task) for task in whole), default=0)
    if most == "evenly" and largest - share > max(_WORTH_CUTTING, share // 4):
        return _cut(ranges, share)
    return whole


def _whole(ranges: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    of_partition: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for each in ranges:
        of_partition[each.topic_partition].append(each)
    of_task: list[list[OffsetRange]] = [[] for _ in range(min(tasks, len(of_partition)))]
    loads = [0] * len(of_task)
    for piece in sorted(of_partition.values(), key=_load, reverse=True):
        least = loads.index(min(loads))
        of_task[least] += piece
        loads[least] += _load(piece)
    return [tuple(task) for task in of_task]


def _load(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.size + _OPENING for r in ranges)


def _cut(ranges: Iterable[OffsetRange], most: int) -> list[tuple[OffsetRange, ...]]:
    of_task: list[list[OffsetRange]] = []
    room = 0
    for each in ranges:
        rest = each
        while rest.size:
            if not room:
                of_task.append([])
                room = most
            middle = rest.start + min(room, rest.size)
            of_task[-1].append(rest._replace(end=middle))
            room -= middle - rest.start
            rest = rest._replace(start=middle)
    return [tuple(task) for task in of_task]
