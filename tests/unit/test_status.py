"""One word for a group, by the rules as they are written; and what known monitors get wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Move, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.operate.lag import Lag, measure, topics_read, total
from offsetkeeper.operate.status import Point, Status, commit_interval_s, status, thinned

A = TopicPartition("a", 0)
ADDED, OTHER = TopicPartition("a", 1), TopicPartition("b", 0)
NOW = 1_700_000_000_000
HELD = Snapshot("g", version=9, owner=Owner("me", 1), positions={A: Position(5)})
FREE = Snapshot("g", version=9, positions={A: Position(5)})


def behind(seconds: float = 1.0, records: int = 10, retention_s: int | None = None) -> list[Lag]:
    kept = {} if retention_s is None else {A.topic: retention_s * 1000}
    return measure(HELD.positions, {A: Bounds(0, 5 + records)}, NOW, {A: NOW - round(seconds * 1000)}, kept)


CAUGHT_UP = measure(HELD.positions, {A: Bounds(0, 5)}, NOW)


def commits(pause_s: float, count: int = 10, ago_s: float = 0.0) -> list[Entry]:
    """Return commits with so many seconds between them, newest first."""
    times = [NOW - round(1000 * (ago_s + number * pause_s)) for number in range(count)]
    return [Entry(count - number, "commit", "id", at, "me") for number, at in enumerate(times)]


def points(waiting: Sequence[int], apart_s: int, ago_s: int = 0) -> list[Point]:
    """Return samples so far apart, the newest as long before now."""
    return [
        Point(NOW - 1000 * (ago_s + apart_s * (len(waiting) - number)), each) for number, each in enumerate(waiting)
    ]


def test_a_group_that_commits_as_ever_is_ok() -> None:
    assert status(HELD, behind(), commits(5), NOW) is Status.OK
    assert status(HELD, CAUGHT_UP, [], NOW) is Status.OK


def test_a_group_that_is_idle_since_nothing_is_produced_is_ok_however_long() -> None:
    assert status(HELD, CAUGHT_UP, commits(5, ago_s=1_000_000), NOW) is Status.OK


def test_rare_commits_are_usual_and_no_alarm() -> None:
    """A group that commits once an hour is not stalled after two."""
    assert status(HELD, behind(7000), commits(3600, ago_s=7000), NOW) is Status.OK
    assert status(HELD, behind(11_000), commits(3600, ago_s=11_000), NOW) is Status.STALLED


def test_a_busy_group_that_pauses_shortly_is_not_stalled() -> None:
    assert status(HELD, behind(25), commits(0.1, ago_s=25), NOW) is Status.OK
    assert status(HELD, behind(31), commits(0.1, ago_s=31), NOW) is Status.STALLED


def test_too_few_commits_tell_no_usual_interval() -> None:
    assert status(HELD, behind(599), commits(5, count=4, ago_s=599), NOW) is Status.OK
    assert status(HELD, behind(601), commits(5, count=4, ago_s=601), NOW) is Status.STALLED
    assert commit_interval_s(commits(5, count=4)) is None
    assert commit_interval_s(commits(20, count=5)) == 20


def test_the_pause_between_two_runs_is_no_commit_interval() -> None:
    first, second = commits(20, ago_s=0, count=5), commits(20, ago_s=1_000_000, count=5)
    assert commit_interval_s([*first, Entry(6, "acquire", "id", NOW, "me"), *second]) == 20


def test_records_in_a_partition_that_was_added_while_nobody_is_there_are_a_stopped_group() -> None:
    """Retention would take them before anybody is told. A topic that the group never read does not count."""
    for tp, word in ((ADDED, Status.STOPPED), (OTHER, Status.OK)):
        lags = measure(FREE.positions, {A: Bounds(0, 5), tp: Bounds(0, 3)}, NOW)
        assert status(FREE, lags, commits(5, ago_s=60), NOW) is word
        assert status(HELD, lags, commits(5, ago_s=20), NOW) is Status.OK  # the run may read it in its next batch


def test_a_run_that_was_killed_before_a_partition_was_added_is_stalled() -> None:
    """Its ledger keeps its owner, and the first record there has no known age. A topic never read does not count."""
    for tp, word in ((ADDED, Status.STALLED), (OTHER, Status.OK)):
        lags = measure(HELD.positions, {A: Bounds(0, 5), tp: Bounds(0, 1_000_000)}, NOW)
        assert status(HELD, lags, commits(5, ago_s=5 * 86_400), NOW) is word
        assert status(HELD, lags, commits(3600, ago_s=7000), NOW) is Status.OK


def test_of_a_partition_that_was_added_the_age_of_its_first_record_counts() -> None:
    lags = measure(HELD.positions, {A: Bounds(0, 5), ADDED: Bounds(0, 3)}, NOW, {ADDED: NOW - 20_000})
    assert status(HELD, lags, commits(5, ago_s=5 * 86_400), NOW) is Status.OK  # an idle run reads it next
    lags = measure(HELD.positions, {A: Bounds(0, 5), ADDED: Bounds(0, 3)}, NOW, {ADDED: NOW - 900_000})
    assert status(HELD, lags, commits(5, ago_s=5 * 86_400), NOW) is Status.STALLED
    kept = {ADDED.topic: 1_000_000}
    lags = measure(HELD.positions, {A: Bounds(0, 5), ADDED: Bounds(0, 3)}, NOW, {ADDED: NOW - 950_000}, kept)
    assert status(HELD, lags, commits(5), NOW) is Status.LOSING_DATA


def test_a_group_whose_positions_the_store_has_lost_is_refused() -> None:
    """Nothing of it is known to wait, and no start reads on: it is not ok."""
    lost = replace(FREE, positions={}, missing=frozenset({A}))
    lags = measure({}, {A: Bounds(0, 180)}, NOW)
    assert status(lost, lags, commits(5), NOW) is Status.REFUSED
    assert total(lags, {}).waiting is None
    assert topics_read(lost) == {A.topic}


def told(events: Iterable[tuple[str, int, str]]) -> list[Entry]:
    """Return a history of events, each with its seconds ago and its reason, newest first."""
    return [
        Entry(100 - number, event, "id", NOW - 1000 * ago, "me", reason=why)
        for number, (event, ago, why) in enumerate(events)
    ]


def hours(ago: int) -> list[tuple[str, int, str]]:
    """Return the runs of a job that starts every hour, the newest so many seconds ago."""
    runs = ((("release", ago + 3600 * hour, "end"), ("acquire", ago + 3600 * hour + 60, "run")) for hour in range(5))
    return [each for run in runs for each in run]


def test_a_job_between_two_runs_is_not_failing_as_a_partition_was_added() -> None:
    """Its newest run had nothing to read; the next one reads the partition."""
    entries = told(hours(1800))
    lags = measure(FREE.positions, {A: Bounds(0, 5), ADDED: Bounds(0, 3)}, NOW)
    assert status(FREE, lags, entries, NOW) is Status.OK
    assert status(FREE, lags, entries, NOW + 3 * 3600_000) is Status.FAILING


def test_a_fence_is_no_run_that_failed() -> None:
    """A job hung after a commit, an operator fenced it, and the next run has not committed yet."""
    fenced = [("release", 120, ""), ("acquire", 121, "hangs (by ann)"), ("commit", 1800, ""), ("acquire", 1860, "run")]
    entries = told([("acquire", 60, "run"), *fenced, *hours(4000)])
    lags = measure(HELD.positions, {A: Bounds(0, 15)}, NOW, {A: NOW - 1_700_000})
    assert status(HELD, lags, entries, NOW) is not Status.FAILING
    assert status(FREE, lags, entries[1:], NOW) is not Status.FAILING
    assert (
        status(FREE, lags, told([("release", 50, ""), ("acquire", 60, "run"), *fenced, *hours(4000)]), NOW)
        is Status.FAILING
    )


def test_runs_that_end_before_they_begin_to_read_a_partition_that_was_added_are_failing() -> None:
    lags = measure(HELD.positions, {A: Bounds(0, 5), ADDED: Bounds(0, 3)}, NOW)
    assert status(HELD, lags, [*attempts(4, "acquire"), *commits(5, ago_s=130)], NOW) is Status.FAILING
    assert status(HELD, lags, [*attempts(3, "acquire"), *commits(5, ago_s=130)], NOW) is Status.OK


def test_runs_that_commit_none_of_the_records_without_a_time_are_failing() -> None:
    undated = measure(HELD.positions, {A: Bounds(0, 15)}, NOW)
    assert status(HELD, undated, [*attempts(4, "acquire"), *commits(5, ago_s=130)], NOW) is Status.FAILING


def test_records_that_wait_with_nobody_there_are_a_stopped_group() -> None:
    assert status(FREE, behind(), commits(5), NOW) is Status.STOPPED
    assert status(FREE, CAUGHT_UP, commits(5), NOW) is Status.OK


def test_offsets_without_a_ledger_do_not_tell_whether_anybody_is_there() -> None:
    """Those of a Spark checkpoint, or of another program."""
    assert status(Snapshot("g", positions=HELD.positions), behind(), [], NOW) is Status.OK


def test_a_group_whose_records_are_old_is_behind() -> None:
    assert status(HELD, behind(100), commits(5), NOW) is Status.BEHIND


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1, 2, 3], Status.GROWING),
        ([9, 1, 2, 3], Status.GROWING),
        ([1, 3, 2], Status.OK),
        ([2, 3], Status.OK),
        ([1, 2, 10], Status.OK),
        ([], Status.OK),
    ],
)
def test_a_lag_that_grew_at_every_sample_is_growing(samples: list[int], expected: Status) -> None:
    assert status(HELD, behind(15), commits(5), NOW, points(samples, 10)) is expected
    assert status(HELD, behind(10), commits(5), NOW, points(samples, 10)) is Status.OK  # the next commit may take all


@pytest.mark.parametrize(
    ("every_s", "count", "expected"), [(5, 30, Status.OK), (20, 8, Status.OK), (60, 3, Status.GROWING)]
)
def test_only_samples_a_commit_interval_apart_tell_of_growth(every_s: int, count: int, expected: Status) -> None:
    """Between two commits more records wait from sample to sample, of a healthy group too."""
    seen = [NOW // 1000 - every_s * number for number in range(count, -1, -1)]
    waiting = [at % 60 if every_s < 60 else number for number, at in enumerate(seen)]
    found = behind(90, records=waiting[-1])
    assert status(HELD, found, commits(60, ago_s=20), NOW, points(waiting[:-1], every_s)) is expected


def test_looks_without_an_answer_tell_nothing_of_growth() -> None:
    """Where one is missing, two intervals are compared at once."""
    seen = [*points([1, 2, 3, 4], 10, ago_s=10), Point(NOW - 10_000, None)]
    assert status(HELD, behind(15), commits(5), NOW, seen) is Status.OK
    seen = [*points([1, 2, 3, 4, 5], 10, ago_s=10), Point(NOW - 10_000, None)]
    assert status(HELD, behind(15), commits(5), NOW, seen) is Status.GROWING


def test_a_run_that_waits_for_its_output_is_told_until_it_goes_on_or_ends() -> None:
    entries = commits(60, ago_s=100)
    waiting = [replace(entries[0], event="wait", at_ms=NOW - 1000, version=entries[0].version + 1), *entries]
    assert status(HELD, behind(400), waiting, NOW) is Status.OUTPUT_AWAY
    assert status(HELD, behind(400), entries, NOW) is not Status.OUTPUT_AWAY
    assert status(replace(HELD, owner=None), behind(400), waiting, NOW) is Status.STOPPED


@pytest.mark.parametrize(("read_s", "word"), [(901, Status.HELD_BACK), (900, Status.OK)])
def test_a_transaction_of_unknown_age_counts_as_old_where_nothing_of_its_partition_was_read_since(
    read_s: int, word: Status
) -> None:
    """Who may not read a topic sees short transactions come and go, and knows the age of none."""
    lags = measure(HELD.positions, {A: Bounds(0, 5, log_end=9)}, NOW)
    read = replace(commits(5, ago_s=read_s)[0], ranges=(OffsetRange("a", 0, 4, 5),))
    others = [replace(each, ranges=(OffsetRange("b", 0, 4, 5),)) for each in commits(60)]
    assert status(HELD, lags, [*others, read], NOW) is word
    assert status(HELD, CAUGHT_UP, others, NOW) is Status.OK
    for age_s, known in ((900, Status.OK), (901, Status.HELD_BACK)):
        dated = measure(HELD.positions, {A: Bounds(0, 5, log_end=9)}, NOW, held_ms={A: NOW - age_s * 1000})
        assert status(HELD, dated, others, NOW) is known


def test_a_run_whose_tries_take_long_says_seldom_that_it_waits() -> None:
    entries = commits(60, ago_s=2400)
    wait = replace(entries[0], event="wait")
    waiting = [replace(wait, at_ms=NOW - ago_s * 1000) for ago_s in (1500, 3300)]
    assert status(HELD, behind(86_400), [*waiting, *entries], NOW) is Status.OUTPUT_AWAY
    assert status(HELD, behind(86_400), [*waiting, *entries], NOW + 4_000_000) is Status.STALLED


@pytest.mark.parametrize(("pause_s", "most_s"), [(10, 600), (1000, 3000)])
def test_a_run_that_died_while_it_waited_for_its_output_is_stalled(pause_s: int, most_s: int) -> None:
    """One that lives says every five minutes that it waits."""
    for ago_s, word in ((most_s, Status.OUTPUT_AWAY), (most_s + 1, Status.STALLED)):
        entries = commits(pause_s, ago_s=ago_s + 10)
        waiting = [replace(entries[0], event="wait", at_ms=NOW - ago_s * 1000), *entries]
        assert status(HELD, behind(86_400), waiting, NOW) is word
    assert status(HELD, CAUGHT_UP, waiting, NOW) is Status.OK


@pytest.mark.parametrize("every_s", [1, 5, 7, 13, 61])
def test_a_group_that_reads_all_at_each_commit_is_never_growing(every_s: int) -> None:
    """However the samples lie between its commits, each a little later or earlier than the one before."""
    samples: Sequence[Point] = ()
    for at in range(0, 3600, every_s):
        waited_s = at % 60
        entries, now_ms = commits(60, ago_s=waited_s - at), NOW + 1000 * at
        assert status(HELD, behind(waited_s, records=1000 * waited_s + 1), entries, now_ms, samples) is Status.OK
        samples = thinned(samples, Point(now_ms, 1000 * waited_s + 1), entries)


@pytest.mark.parametrize("every_s", [5, 60])
def test_a_group_that_leaves_more_at_each_commit_is_growing(every_s: int) -> None:
    samples: Sequence[Point] = ()
    words = []
    for at in range(0, 900, every_s):
        waiting = 1000 * (at % 60) + 500 * at
        entries, now_ms = commits(60, ago_s=at % 60 - at), NOW + 1000 * at
        words.append(status(HELD, behind(100, records=waiting + 1), entries, now_ms, samples))
        samples = thinned(samples, Point(now_ms, waiting + 1), entries)
    assert set(words[len(words) // 2 :]) == {Status.GROWING}


@pytest.mark.parametrize(
    ("interval_s", "every_s"),
    [(20, 5), (20, 60), (1_500, 5), (1_799, 7), (86_400, 60)],
    ids=lambda seconds: f"{seconds} s",
)
def test_few_samples_tell_of_growth_whatever_the_interval(interval_s: int, every_s: int) -> None:
    """A day at a sample every five seconds is 17,280 of them."""
    entries, samples = commits(interval_s), list[Point]()
    for at in range(0, 4 * interval_s + 4 * every_s, every_s):
        kept = thinned(samples, Point(NOW + 1000 * at, 1 + at), entries)
        assert len(kept) <= 30
        samples = list(kept)
    now_s = samples[-1].at_ms // 1000 - NOW // 1000 + every_s
    found, now_ms = behind(2 * interval_s, records=2 + now_s), NOW + 1000 * now_s
    assert status(HELD, found, commits(interval_s, ago_s=-now_s), now_ms, samples) is Status.GROWING


def test_looks_without_an_answer_take_no_place() -> None:
    entries = commits(60)
    samples = thinned(points([1], 600), Point(NOW, 2), entries)
    for seconds in range(10_000):
        samples = thinned(samples, Point(NOW + 1000 * seconds, None), entries)
    assert [each.waiting for each in samples] == [1, 2]


def test_looks_go_on_after_a_clock_was_set_back() -> None:
    samples = thinned([Point(NOW + 86_400_000, 7)], Point(NOW, 1), commits(60))
    assert [each.waiting for each in samples] == [7, 1]


def test_where_the_interval_is_not_known_samples_a_minute_apart_tell() -> None:
    assert status(HELD, behind(61), [], NOW, points([1, 2, 3], 50)) is Status.OK
    assert status(HELD, behind(61), [], NOW, points([1, 2, 3], 60)) is Status.GROWING


def test_a_reset_is_told_until_something_is_committed_after_it() -> None:
    rewind = Entry(11, "rewind", "id", NOW, "me", moves={A: Move(Position(9), Position(5))})
    acquire = Entry(12, "acquire", "id", NOW, "me")
    assert status(FREE, behind(), [rewind, *commits(5)], NOW) is Status.REWOUND
    assert status(HELD, behind(), [acquire, rewind, *commits(5)], NOW) is Status.REWOUND
    assert status(HELD, behind(), [*commits(5, count=1), rewind, *commits(5)], NOW) is Status.OK


@pytest.mark.parametrize(("now", "word"), [("new", Status.STOPPED), ("old", Status.REWOUND), (None, Status.REWOUND)])
def test_a_reset_to_records_of_a_topic_that_was_made_again_reads_nothing_again(now: str | None, word: Status) -> None:
    rewind = Entry(11, "rewind", "id", NOW, "me", moves={A: Move(Position(9, "old"), Position(5, now))})
    assert status(replace(FREE, positions={A: Position(5, now)}), behind(), [rewind, *commits(5)], NOW) is word


@pytest.mark.parametrize(
    ("position", "bounds"),
    [
        (Position(6), {A: Bounds(0, 5)}),
        (Position(5, "old"), {A: Bounds(0, 5, topic_id="new")}),
        (Position(5, None, "A"), {A: Bounds(0, 5, cluster_id="B")}),
        (Position(5), {}),
    ],
    ids=["beyond the end", "recreated", "another cluster", "gone"],
)
def test_where_no_run_could_start_it_is_refused(position: Position, bounds: dict[TopicPartition, Bounds]) -> None:
    """Nothing waits that could be counted, so every other rule finds it healthy."""
    assert status(HELD, measure({A: position}, bounds, NOW), commits(5), NOW) is Status.REFUSED


def test_a_topic_that_is_gone_beside_others_is_no_reason_to_refuse_and_not_ok() -> None:
    """The policy for what is removed keeps its positions, and reads the rest. What was unread of it is lost."""
    lags = measure({A: Position(5), TopicPartition("gone", 0): Position(1)}, {A: Bounds(0, 5)}, NOW)
    assert status(HELD, lags, commits(5), NOW) is Status.TOPIC_GONE


def attempts(count: int, *events: str, every_s: int = 30) -> list[Entry]:
    """Return runs that committed nothing, each with these entries, newest first; the newest has just begun."""
    names = [name for _ in range(count) for name in reversed(events)]
    return [
        Entry(1000 - number, name, "id", NOW - 1000 * every_s * (number // len(events)), "me")
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("events", [("acquire", "begin"), ("acquire",), ("release", "acquire", "begin")], ids=" ".join)
def test_runs_that_end_one_after_the_other_without_a_commit_are_failing(events: tuple[str, ...]) -> None:
    """A crash loop is never silent, and its history may have no commit at all, so no usual interval."""
    lags = behind(86_400, records=1_000_000)
    assert status(HELD, lags, attempts(100, *events), NOW) is Status.FAILING
    assert status(HELD, lags, [*attempts(4, *events), *commits(5, ago_s=130)], NOW) is Status.FAILING
    assert status(HELD, lags, [*attempts(3, *events), *commits(5000, ago_s=130)], NOW) is not Status.FAILING
    assert status(FREE, lags, [*attempts(3, *events), *commits(5000, ago_s=130)], NOW) is Status.FAILING


def test_runs_that_had_nothing_to_read_have_not_failed() -> None:
    idle = attempts(9, "release", "acquire", every_s=3600)
    assert status(HELD, behind(60), idle, NOW) is Status.OK
    assert status(HELD, CAUGHT_UP, attempts(9, "acquire"), NOW) is Status.OK


def test_runs_before_a_reset_tell_nothing_of_those_after_it() -> None:
    rewind = Entry(900, "rewind", "id", NOW - 65_000, "me", moves={A: Move(Position(9), Position(5))})
    history = [*attempts(2, "acquire"), rewind, *attempts(9, "acquire")]
    assert status(HELD, behind(86_400), history, NOW) is Status.REWOUND


@pytest.mark.parametrize(("age_s", "expected"), [(89, Status.OK), (90, Status.LOSING_DATA)])
def test_records_about_to_be_deleted_go_before_everything_else(age_s: int, expected: Status) -> None:
    assert status(HELD, behind(age_s, retention_s=100), commits(60), NOW) is expected


def test_records_that_are_deleted_unread_are_lost_data() -> None:
    lost = measure(HELD.positions, {A: Bounds(7, 9)}, NOW)
    assert status(HELD, lost, commits(5), NOW) is Status.LOSING_DATA


def test_records_of_a_partition_that_was_added_and_were_deleted_unread_are_lost_data() -> None:
    lost = measure(HELD.positions, {A: Bounds(0, 5), ADDED: Bounds(7, 7)}, NOW, added={ADDED})
    assert status(HELD, lost, commits(5), NOW) is Status.LOSING_DATA
