"""What an operator would say of a group, situation by situation: one table, and the status must say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Move, Moves, Owner, Snapshot
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.operate.lag import measure
from offsetkeeper.operate.status import Point, Status, status

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_700_000_000_000
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
HELD, FREE = True, False
Event = tuple[str, float] | tuple[str, float, int, int]
"""What happened, and how many seconds ago; for a reset also from where to where it moved the first partition."""


def commits(every_s: float, count: int, ago_s: float) -> list[Event]:
    """Commits, the newest so many seconds ago."""
    return [("commit", ago_s + every_s * number) for number in range(count)]


def jobs(
    count: int, ago_s: float, *, every_s: float = DAY, took_s: float = HOUR, batches: int = 60, ends: bool = True
) -> list[Event]:
    """Runs that a scheduler starts; the newest one ended so many seconds ago, or was killed then."""
    found: list[Event] = []
    for number in range(count):
        end = ago_s + number * every_s
        found += [("release", end)] if ends or number else []
        found += [("commit", end + took_s * (batch + 0.5) / batches) for batch in range(batches)]
        found += [("acquire", end + took_s)]
    return found


def began(ago_s: float) -> list[Event]:
    """A run that has done nothing yet."""
    return [("acquire", ago_s)]


@dataclass(frozen=True)
class Situation:
    """What is known of a group with one topic of two partitions.

    Attributes:
        text: the situation in words.
        says: what an operator says.
        events: the history, newest first.
        held: whether a run holds the group, as far as the ledger knows.
        oldest_s: age of the first unread record.
        waiting: offsets unread.
        held_back_s: age of the first record behind a transaction that is open.
        retention_s: for how long Kafka keeps records.
        positions, bounds: those of the first partition, where they are special.
        before: what waited a minute ago, two minutes ago, and so on.
    """

    text: str
    says: Status
    events: Sequence[Event] = ()
    held: bool = True
    oldest_s: float | None = None
    waiting: int = 0
    held_back_s: float | None = None
    retention_s: float | None = None
    position: Position = field(default=Position(5))
    bounds: Bounds | None = None
    gone: bool = False
    others: Positions = field(default_factory=dict)  # of topics that are gone
    ledger: bool = True
    before: Sequence[int] = ()


LEFT = {TopicPartition("gone", 0): Position(3)}
BUSY = commits(10, 50, ago_s=4)
SITUATIONS = [
    # A run that reads all the time.
    Situation("it commits every 10 s, and nothing waits", Status.OK, BUSY),
    Situation("it commits every 10 s, and what came since waits", Status.OK, BUSY, oldest_s=9, waiting=100),
    Situation("nothing came for days, and nothing waits", Status.OK, commits(10, 50, 3 * DAY)),
    Situation("nothing came for 10 hours, then one record 5 s ago", Status.OK, commits(10, 50, 10 * HOUR), HELD, 5, 1),
    Situation(
        "nothing came for 10 hours, then a record that nobody reads",
        Status.STALLED,
        commits(10, 50, 10 * HOUR),
        HELD,
        5 * MINUTE,
        1,
    ),
    Situation("it waits for its output", Status.OUTPUT_AWAY, [("wait", 61), *BUSY], HELD, 61, 100),
    Situation("it was busy, and is silent for a minute", Status.STALLED, commits(10, 50, 60), HELD, 61, 100),
    Situation("it commits once an hour, and is silent for two", Status.OK, commits(HOUR, 20, 2 * HOUR), HELD, 7200, 9),
    Situation(
        "it commits once an hour, and is silent for four",
        Status.STALLED,
        commits(HOUR, 20, 4 * HOUR),
        HELD,
        4 * HOUR,
        9,
    ),
    Situation(
        "it commits every 10 s, but once it slept for a night; it is silent for two minutes",
        Status.STALLED,
        [*commits(10, 30, 120), *commits(10, 30, 8 * HOUR)],
        HELD,
        120,
        50,
    ),
    Situation("it commits every 10 s and is minutes behind", Status.BEHIND, BUSY, HELD, 5 * MINUTE, 10_000),
    Situation(
        "it commits every 10 s, and more waits from minute to minute",
        Status.GROWING,
        BUSY,
        HELD,
        5 * MINUTE,
        500,
        before=(400, 300, 200, 100),
    ),
    Situation(
        "it commits every 10 s and is behind, but catches up",
        Status.BEHIND,
        BUSY,
        HELD,
        5 * MINUTE,
        100,
        before=(200, 300, 400, 500),
    ),
    # A run that is young, or was killed.
    Situation("it began just now, and all of a topic waits", Status.OK, began(20), HELD, 60, 10**6),
    Situation("it began just now, and a week of a topic waits", Status.BEHIND, began(20), HELD, 7 * DAY, 10**6),
    Situation("its first batch takes five minutes", Status.OK, began(5 * MINUTE), HELD, 6 * MINUTE, 10**6),
    Situation("its first batch takes half an hour", Status.STALLED, began(30 * MINUTE), HELD, DAY, 10**6),
    Situation("it began, nothing ever came", Status.OK, began(9 * DAY)),
    Situation(
        "it was killed after four commits, three days ago",
        Status.STALLED,
        [*commits(10, 4, 3 * DAY), *began(3 * DAY + 60)],
        HELD,
        3 * DAY,
        10**5,
    ),
    Situation(
        "it was killed after four commits, a minute ago",
        Status.OK,
        [*commits(10, 4, 40), *began(90)],
        HELD,
        41,
        10,
    ),
    Situation("it was killed after a thousand commits", Status.STALLED, commits(10, 200, DAY), HELD, DAY, 10**5),
    Situation("it was killed, and nothing came since", Status.OK, commits(10, 200, DAY)),
    # A run that has ended.
    Situation("it was stopped a minute ago, and records come", Status.STOPPED, [("release", 60), *BUSY], FREE, 60, 100),
    Situation("it was stopped, and nothing came since", Status.OK, [("release", 3 * DAY), *BUSY], FREE),
    Situation(
        "it was stopped after months, with a restart at each deploy",
        Status.STOPPED,
        jobs(6, HOUR, every_s=30 * DAY, took_s=30 * DAY - 60),
        FREE,
        HOUR,
        9,
    ),
    Situation("an operator took it away from a run", Status.STOPPED, [("fence", 30), *BUSY], FREE, 31, 50),
    Situation("it ran once, a week ago, and all since waits", Status.STOPPED, jobs(1, 7 * DAY), FREE, 7 * DAY, 9),
    # A job that a scheduler starts.
    Situation("nightly, it ended 8 hours ago", Status.OK, jobs(3, 8 * HOUR), FREE, 8 * HOUR, 10**6),
    Situation(
        "nightly, one batch a night, it ended 20 hours ago",
        Status.OK,
        jobs(5, 20 * HOUR, batches=1),
        FREE,
        20 * HOUR,
        9,
    ),
    Situation(
        "nightly, more waits from minute to minute",
        Status.OK,
        jobs(3, 8 * HOUR),
        FREE,
        8 * HOUR,
        500,
        before=(400, 300, 200, 100),
    ),
    Situation("nightly, it did not come last night", Status.STOPPED, jobs(3, 40 * HOUR), FREE, 40 * HOUR, 10**6),
    Situation(
        "nightly, it reads now, and has begun with what is a day old",
        Status.OK,
        [*commits(60, 9, 30), *began(600), *jobs(3, 23 * HOUR)],
        HELD,
        23 * HOUR,
        10**6,
    ),
    Situation(
        "nightly, killed in its run four days ago",
        Status.STALLED,
        jobs(4, 4 * DAY, ends=False),
        HELD,
        4 * DAY,
        10**6,
    ),
    Situation(
        "nightly, one batch a night that takes an hour; half of it is over",
        Status.OK,
        [*began(30 * MINUTE), *jobs(5, 23.5 * HOUR, batches=1)],
        HELD,
        23.5 * HOUR,
        10**6,
    ),
    Situation(
        "nightly, last night it ended without a commit",
        Status.FAILING,
        [("release", 7 * HOUR), *began(8 * HOUR), *jobs(4, 31 * HOUR)],
        FREE,
        31 * HOUR,
        10**6,
    ),
    Situation(
        "every 5 minutes, it ended 2 minutes ago",
        Status.OK,
        jobs(9, 2 * MINUTE, every_s=300, took_s=30, batches=3),
        FREE,
        2 * MINUTE,
        100,
    ),
    Situation(
        "every 5 minutes, it ended half an hour ago",
        Status.STOPPED,
        jobs(9, 30 * MINUTE, every_s=300, took_s=30, batches=3),
        FREE,
        30 * MINUTE,
        100,
    ),
    Situation(
        "on workdays, it is Sunday",
        Status.OK,
        [*jobs(5, 2 * DAY), *jobs(5, 9 * DAY)],
        FREE,
        2 * DAY,
        10**6,
    ),
    Situation(
        "it ran twice, and nobody knows when it comes again", Status.STOPPED, jobs(2, 8 * HOUR), FREE, 8 * HOUR, 9
    ),
    # A crash loop.
    Situation(
        "it restarts every 30 s, and commits nothing",
        Status.FAILING,
        [event for number in range(6) for event in began(30.0 * number)],
        HELD,
        DAY,
        10**6,
    ),
    Situation(
        "it was restarted once, and commits",
        Status.OK,
        [*commits(10, 6, 3), *began(70), *commits(10, 40, 90)],
        HELD,
        5,
        10,
    ),
    # An operator moved it.
    Situation("it was reset, and did not run since", Status.REWOUND, [("rewind", HOUR, 9, 5), *BUSY], FREE, DAY, 10**6),
    Situation(
        "it was reset, and has committed since",
        Status.OK,
        [*commits(10, 9, 2), ("rewind", 200, 9, 2), *BUSY],
        HELD,
        8,
        100,
    ),
    Situation(
        "it was reset, and each run since has crashed",
        Status.FAILING,
        [*(event for number in range(4) for event in began(60.0 * number)), ("rewind", HOUR, 9, 5), *BUSY],
        HELD,
        DAY,
        10**6,
    ),
    Situation(
        "it was reset, and the run that began since was killed",
        Status.STALLED,
        [*began(3 * HOUR), ("rewind", 4 * HOUR, 9, 5), *BUSY],
        HELD,
        DAY,
        10**6,
    ),
    Situation(
        "it was reset a minute ago, and reads its first batch",
        Status.REWOUND,
        [*began(20), ("rewind", 60, 9, 5), *BUSY],
        HELD,
        DAY,
        10**6,
    ),
    Situation(
        "it was reset to the end, and a run waits for records", Status.OK, [*began(60), ("rewind", 90, 2, 5), *BUSY]
    ),
    Situation(
        "it was reset to where nothing is left to read, and a run waits for records",
        Status.OK,
        [*began(60), ("rewind", 90, 9, 5), *BUSY],
    ),
    Situation("it was reset to the end, and did not run since", Status.OK, [("rewind", 90, 2, 5), *BUSY], FREE),
    Situation(
        "it was reset to the end, and records came since",
        Status.STOPPED,
        [("rewind", 90, 2, 5), *BUSY],
        FREE,
        60,
        9,
    ),
    Situation(
        "it was reset, and that was undone",
        Status.OK,
        [("rewind", 60, 2, 5), ("rewind", 90, 5, 2), *BUSY],
        FREE,
    ),
    Situation(
        "it was reset, and that was undone, and records came since",
        Status.STOPPED,
        [("rewind", 60, 2, 5), ("rewind", 90, 5, 2), *BUSY],
        FREE,
        30,
        9,
    ),
    Situation(
        "it was reset, and undone after a batch",
        Status.OK,
        [("rewind", 60, 4, 5), ("commit", 70), ("rewind", 90, 5, 2), *BUSY],
        FREE,
    ),
    Situation(
        "it was reset, and then a part of the way forward",
        Status.REWOUND,
        [("rewind", 60, 2, 5), ("rewind", 90, 9, 2), *BUSY],
        FREE,
        DAY,
        100,
    ),
    Situation(
        "nightly, it did not come last night, and an operator looked after an output since",
        Status.STOPPED,
        [("adopt", HOUR), *jobs(3, 40 * HOUR)],
        FREE,
        40 * HOUR,
        10**6,
    ),
    Situation(
        "nightly, it ended 8 hours ago, and an operator looked after an output since",
        Status.OK,
        [("adopt", HOUR), *jobs(3, 8 * HOUR)],
        FREE,
        8 * HOUR,
        10**6,
    ),
    Situation(
        "every 5 minutes, killed in its run half an hour ago",
        Status.STALLED,
        jobs(9, 30 * MINUTE, every_s=300, took_s=30, batches=3, ends=False),
        HELD,
        30 * MINUTE,
        100,
    ),
    Situation(
        "nightly, it reads for ten hours already instead of one, and commits",
        Status.OK,
        [*commits(60, 600, 30), *began(10 * HOUR + MINUTE), *jobs(3, 33 * HOUR)],
        HELD,
        33 * HOUR,
        10**6,
    ),
    Situation("the clock of its driver is ten minutes ahead", Status.OK, commits(10, 50, -600), HELD, 20, 100),
    Situation(
        "the clock of its driver was ahead, and it was killed an hour ago",
        Status.STALLED,
        commits(10, 50, HOUR - 600),
        HELD,
        HOUR,
        100,
    ),
    Situation("its history was deleted, and a record is a day old", Status.BEHIND, (), HELD, DAY, 100),
    # A transaction that stays open.
    Situation("a transaction is open for a minute", Status.OK, BUSY, held_back_s=60),
    Situation("a transaction is open for an hour, and all before it is read", Status.HELD_BACK, BUSY, held_back_s=HOUR),
    Situation(
        "a transaction is open for an hour, and the run is gone",
        Status.STOPPED,
        [("release", HOUR), *BUSY],
        FREE,
        HOUR,
        10,
        held_back_s=HOUR,
    ),
    # Kafka.
    Situation("records are lost to retention", Status.LOSING_DATA, BUSY, HELD, 5, 10, bounds=Bounds(8, 20)),
    Situation("records have had 95 % of their time", Status.LOSING_DATA, BUSY, HELD, 95, 10, retention_s=100),
    Situation(
        "the topic was made again", Status.REFUSED, BUSY, position=Position(5, "old"), bounds=Bounds(0, 9, "new")
    ),
    Situation("its position is past the end", Status.REFUSED, BUSY, bounds=Bounds(0, 3)),
    Situation("all its topics are gone", Status.REFUSED, BUSY, gone=True),
    Situation("one of its topics is gone, the other is read", Status.TOPIC_GONE, BUSY, others=LEFT),
    Situation(
        "one of its topics is gone, and nobody runs", Status.TOPIC_GONE, [("release", HOUR), *BUSY], FREE, others=LEFT
    ),
    Situation("it reads a Spark checkpoint, which tells of no runs", Status.OK, (), FREE, 60, 100, ledger=False),
    Situation("it reads a Spark checkpoint, and is far behind", Status.BEHIND, (), FREE, DAY, 100, ledger=False),
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.text)
def test_the_status_is_what_an_operator_would_say(situation: Situation) -> None:
    assert found(situation) is situation.says


def test_no_situation_is_told_by_the_look_before() -> None:
    """A status is of now: a group that is looked at for the first time has the same one, but for growth."""
    for situation in SITUATIONS:
        if situation.says is not Status.GROWING:
            assert found(replace(situation, before=())) is situation.says


def test_each_status_has_its_situation() -> None:
    assert {situation.says for situation in SITUATIONS} == set(Status)


def found(situation: Situation) -> Status:
    """Return what the software says."""
    entries = [
        Entry(1000 - number, event, "id", NOW - round(1000 * ago_s), "me", moves=_moves(*moved))
        for number, (event, ago_s, *moved) in enumerate(situation.events)
    ]
    owner = Owner("me", 1) if situation.held else None
    snapshot = Snapshot("g", version=1000 if situation.ledger else 0, owner=owner)
    snapshot = replace(snapshot, positions={A: situation.position, **situation.others})
    held_back = 0 if situation.held_back_s is None else 50
    end = situation.position.offset + situation.waiting
    bounds = situation.bounds or Bounds(0, end, log_end=end + held_back)
    lags = measure(
        snapshot.positions,
        {} if situation.gone else {A: bounds},
        NOW,
        {} if situation.oldest_s is None else {A: NOW - round(1000 * situation.oldest_s)},
        {} if situation.retention_s is None else {A.topic: round(1000 * situation.retention_s)},
        held_ms={} if situation.held_back_s is None else {A: NOW - round(1000 * situation.held_back_s)},
    )
    points = [Point(NOW - 60_000 * (number + 1), waiting) for number, waiting in enumerate(situation.before)][::-1]
    return status(snapshot, lags, entries, NOW, points)


def _moves(before: int | None = None, after: int = 0) -> Moves:
    return {} if before is None else {A: Move(Position(before), Position(after))}
