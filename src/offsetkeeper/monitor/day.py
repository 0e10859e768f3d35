"""The lag of a day: one point for each five minutes, and before the server began, one for each hour of the history.

The history has the positions of each time that it reaches back to, and Kafka has the first record since then. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.operate.status import Point

DAY_MS = 86_400_000
_SLOT_MS, _HOUR_MS = 300_000, 3_600_000
_MOST_PARTITIONS = 1_000  # of a group whose past is asked for: Kafka answers for each of them and each hour
Held = tuple[int, int]
FirstSince = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, tuple[int, int]]]


def kept(points: Sequence[Point], newest: Point) -> Sequence[Point]:
    """Return the points of a day with a new one: of each five minutes the one with most records waiting.

    Args:
        points: so far, oldest first.
        newest: the next one.
    """
    slot = newest.at_ms // _SLOT_MS
    points = tuple(point for point in points if point.at_ms // _SLOT_MS <= slot)  # a clock may be set back
    if points and points[-1].at_ms // _SLOT_MS == slot:
        return (*points[:-1], max(points[-1], newest, key=_waiting))
    return (*(point for point in points if point.at_ms > newest.at_ms - DAY_MS), newest)


def past(
    positions: Positions, entries: Sequence[Entry], held: Mapping[TopicPartition, Held], ask: FirstSince, now_ms: int
) -> Sequence[Point]:
    """Return the lag at each full hour of the last day that the history reaches back to, oldest first.

    Ages are not known. Producers give the times of records, so a record that came late counts from its time on.

    Args:
        positions: stored now.
        entries: the newest history, newest first.
        held: the offsets that Kafka holds of each partition now: the first one, and the one after the last.
        ask: returns the first record at or after a time, as `KafkaCluster.first_since`.
        now_ms: milliseconds since 1970.
    """
    if len(positions) > _MOST_PARTITIONS:
        return ()
    hour = now_ms // _HOUR_MS * _HOUR_MS
    times = range(hour, now_ms - DAY_MS, -_HOUR_MS)
    found = []
    for at_ms, offsets in _at(times, positions, entries):
        first = ask(dict.fromkeys(offsets.keys() & held.keys(), at_ms))
        of_each = [
            _waiting_at(offsets[tp], held[tp], first[tp][0] if tp in first else held[tp][1])
            for tp in offsets.keys() & held.keys()
        ]
        known = [each for each in of_each if each is not None]
        found.append(Point(at_ms, sum(known) if known and len(known) == len(of_each) else None))
    return found[::-1]


def _waiting_at(offset: int, held: Held, written: int) -> int | None:
    """Return how many records waited when all before the offset `written` were there; None if retention hides it."""
    beginning, _ = held
    return None if 0 < written == beginning > offset else max(0, written - offset)


def _at(
    times: Sequence[int], positions: Positions, entries: Sequence[Entry]
) -> Iterator[tuple[int, dict[TopicPartition, int]]]:
    """Yield the offsets at each time, the newest first, as far as the history has them."""
    offsets, rest = {tp: at.offset for tp, at in positions.items()}, list(times)
    for entry in entries:
        while rest and rest[0] >= entry.at_ms:
            yield rest.pop(0), dict(offsets)
        if not rest or any(
            move.before and move.before.topic_id != move.after.topic_id for move in entry.moves.values()
        ):
            return  # offsets of a topic that was made again are of other records
        _take_back(entry, offsets)


def _take_back(entry: Entry, offsets: dict[TopicPartition, int]) -> None:
    if entry.event == "commit":
        offsets.update((each.topic_partition, each.start) for each in reversed(entry.ranges))
    for tp, move in entry.moves.items():
        offsets.pop(tp, None)
        if move.before:
            offsets[tp] = move.before.offset
    offsets.update((tp, at.offset) for tp, at in entry.forgot.items() if at)


def _waiting(point: Point) -> int:
    return -1 if point.waiting is None else point.waiting
