"""How a batch that fails is cut, what is kept of its error, and what becomes of a letter after a crash."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from offsetkeeper.core.batch import QUARANTINED, Batch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pending import Fate, Situation, at_start
from offsetkeeper.core.plan import Policies
from offsetkeeper.core.topics import Topics
from offsetkeeper.engines import quarantine
from offsetkeeper.engines.loop import Loop
from offsetkeeper.engines.quarantine import Held, Quarantine, halves, others, pieces, text_of, without_paths
from offsetkeeper.engines.settings import Pace, Run
from offsetkeeper.errors import RangeGone, SettingsError, StartRefused
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers.unreadable import Place
from offsetkeeper.sinks import Idempotent, Outputs
from offsetkeeper.stores.memory import MemoryStore
from unit.test_hostile_starts import Broker, Frame, Restless

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=1000).filter(lambda sizes: sum(sizes) > 1)


@given(SIZES)
def test_halves_hold_all_offsets_in_their_order_and_differ_by_one_at_most(sizes: list[int]) -> None:
    ranges = [OffsetRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]
    first, second = halves(ranges)
    offsets = [[(r.partition, at) for r in half for at in range(r.start, r.end)] for half in (first, second)]
    assert offsets[0] + offsets[1] == [(r.partition, at) for r in ranges for at in range(r.start, r.end)]
    assert 0 <= len(offsets[1]) - len(offsets[0]) <= 1


@pytest.mark.parametrize("offset", [5, 6, 9])
def test_an_offset_that_is_known_to_fail_is_cut_out(offset: int) -> None:
    ranges = OffsetRange("t", 0, 5, 10), OffsetRange("t", 1, 5, 10), OffsetRange("t", 2, 5, 10)
    found = pieces(ranges, Place("t", 1, offset))
    alone = (OffsetRange("t", 1, offset, offset + 1),)
    assert alone in found
    assert all(r.size for piece in found for r in piece)
    offsets = sorted((r.partition, at) for piece in found for r in piece for at in range(r.start, r.end))
    assert offsets == sorted((r.partition, at) for r in ranges for at in range(r.start, r.end))
    starts = [r.start for piece in found for r in piece if r.partition == 1]
    assert starts == sorted(starts)


@pytest.mark.parametrize("place", [None, Place("t", 0, 10), Place("u", 0, 5)])
def test_a_record_that_is_not_of_the_batch_does_not_change_how_it_is_cut(place: Place | None) -> None:
    ranges = (OffsetRange("t", 0, 5, 10),)
    assert pieces(ranges, place) == [*halves(ranges)]


def test_what_stays_written_is_tried_after_the_bad_record_elsewhere_and_then_from_the_last_one_backwards() -> None:
    """So that no older record is written over a newer one for good."""
    held = Held(
        unread=[OffsetRange("t", 0, 10, 12), OffsetRange("t", 1, 5, 6)],
        read=[OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 5)],
    )
    found = others(held, OffsetRange("t", 0, 10, 11), again=3)
    assert [(r.partition, r.start, r.end) for [r] in found] == [
        *((0, 11, 12), (1, 5, 6)),
        *((0, 9, 10), (0, 8, 9), (0, 7, 8)),
    ]


def test_of_what_the_group_has_written_no_letter_is_tried_and_nothing_before_a_reset() -> None:
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g", retry_timeout_s=0)
    ledger.acquire()
    ledger.place({TopicPartition("t", 0): Position(0), TopicPartition("t", 1): Position(0)})

    def commit(partition: int, start: int, end: int, reason: str = "") -> None:
        batch = ledger.batch([OffsetRange("t", partition, start, end)])
        ledger.begin(batch)
        ledger.commit(batch, reason)

    commit(0, 0, 10)
    ledger.rewind({TopicPartition("t", 0): Position(2)}, "once more", force=True)
    ledger.acquire()
    commit(0, 2, 10)
    commit(0, 10, 11, QUARANTINED)
    commit(1, 0, 9)
    commit(0, 11, 20)
    run = cast("Quarantine", SimpleNamespace(ledger=ledger))
    held = Held(unread=[], read=[OffsetRange("t", 0, 5, 20), OffsetRange("t", 1, 0, 9)])
    found = Quarantine._written(run, held, OffsetRange("t", 0, 20, 21))
    assert found == [OffsetRange("t", 0, 11, 20), OffsetRange("t", 0, 5, 10)]
    assert Quarantine._written(run, held, OffsetRange("t", 0, 11, 12)) == [OffsetRange("t", 0, 5, 10)]


def test_few_records_are_tried_of_many_partitions_and_then_those_that_were_read() -> None:
    bad = OffsetRange("t", 0, 10, 11)
    held = Held(
        unread=[OffsetRange("t", number, 100, 200) for number in range(1, 20)], read=[OffsetRange("t", 0, 0, 10)]
    )
    found = [ranges for [*ranges] in others(held, bad)]
    far = [r for ranges in found for r in ranges if r.start in {150, 199} and r.size == 1]
    assert far == [OffsetRange("t", number, at, at + 1) for number in (1, 2, 3) for at in (150, 199)]
    assert found[-2:] == [[OffsetRange("t", 0, 7, 10)], [OffsetRange("t", 0, 0, 1)]]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://host/services/T0", "https://host/…"),
        ("https://host:8443?key=1", "https://host:8443/…"),
        ("https://user:s3cret@host/path", "https://host/…"),
        ("amqps://user:s3cret@host", "amqps://host"),
        ("http://host", "http://host"),
        ("https://user:s3'cret@host/a", "https://host/…"),
        ("https://host/it's?key=1", "https://host/…"),
        ("https://user:s3/cret@host/a", "https://…/…"),
        ("https://user:12/cret@host/a", "https://…/…"),
        ("redis://:s3?cret@host", "redis://…/…"),
        ("https://user:s3#cret@host", "https://…/…"),
        ("https://host/@me", "https://host/…"),
        ("http://[::1]:9200/a", "http://[::1]:9200/…"),
        ("mongodb://user:s3cret@one:1,two:2/db", "mongodb://one:1,two:2/…"),
        ("http://host:9200:", "http://host:9200:"),
    ],
)
def test_of_a_url_a_letter_has_the_server_alone(url: str, told: str) -> None:
    assert without_paths(f"refused for url: {url} twice '{url}'") == f"refused for url: {told} twice '{told}'"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ('postgresql://u:12"w@host/db', "postgresql://…/…"),
        ("https://u:1234/w'@h/x", "https://…/…"),
        ("https://h:443/x?sig=a'&token=abc", "https://h:443/…"),
        ('{"url":"https://host/a","n":3}', '{"url":"https://host/…","n":3}'),
    ],
)
def test_a_quote_within_a_url_ends_no_secret(url: str, told: str) -> None:
    assert without_paths(f"refused for url: {url} twice") == f"refused for url: {told} twice"


def test_of_an_error_that_spark_wraps_what_python_raised_is_told() -> None:
    wrapped = PySparkException(
        "An error occurred while calling o1.save.\nTraceback (most recent call last):\n"
        "  File \"work.py\", line 1, in <lambda>\n    int(value)\nValueError: invalid literal: 'bad'\n\n\tat org"
    )
    assert text_of(wrapped) == "ValueError: invalid literal: 'bad'"
    assert text_of(KeyError("x")) == "KeyError: 'x'"
    assert len(text_of(ValueError("x" * 9999))) == 2000


@pytest.mark.parametrize(
    ("landing", "expected"),
    [(Landing.LANDED, Fate.COUNT), (Landing.ABSENT, Fate.DROP), (Landing.VOID, Fate.DROP), (None, Fate.DROP)],
)
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
def test_a_letter_that_was_begun_counts_where_it_landed_and_is_dropped_else(
    landing: Landing | None, expected: Fate, guarantee: Guarantee
) -> None:
    batch = Batch("g", "token", 3, (OffsetRange("t", 0, 5, 6),), lands_in=("dead_letters",))
    positions = {TopicPartition("t", 0): Position(5)}
    landings = {"": Landing.ABSENT} | ({} if landing is None else {"dead_letters": landing})
    for problems in ([], ["it is gone"]):
        found = Situation(batch, positions, problems, guarantee, Policies(), ["", "dead_letters"], landings)
        assert at_start(found) is expected
    lacking = Situation(batch, positions, [], guarantee, Policies(), [""], {"": Landing.ABSENT})
    with pytest.raises(StartRefused, match="'dead_letters' may have"):
        at_start(lacking)


def test_wrong_policies_are_refused() -> None:
    for wrong in ({"poison": "skip"}, {"poison_limit": 0}, {"poison_limit": True}):
        with pytest.raises(SettingsError, match="policy poison"):
            Policies(**wrong)


class Led(Broker):
    """A cluster of which a clean election makes another replica the leader.

    Attributes:
        epoch: leader epoch of the partition; a record from offset 1 on is of the second one.
    """

    epoch = 5

    def bounds(self, tps: Any, **_: Any) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds`."""
        return {tp: here._replace(leader_epoch=self.epoch) for tp, here in super().bounds(tps).items()}

    def cuts(self, _: object) -> dict[TopicPartition, int]:
        """See `Cluster.cuts`: the election was clean."""
        return {}


class Records(Frame):
    """Records that are read when somebody looks at them."""

    def __init__(self, ranges: tuple[OffsetRange, ...], epochs: dict[TopicPartition, int]) -> None:
        super().__init__(ranges)
        self.epochs = epochs

    def offsets(self) -> list[int]:
        """Read them."""
        found = [offset for r in self.ranges for offset in range(r.start, r.end)]
        if any((6 if offset else 5) > self.epochs.get(TopicPartition("t", 0), 6) for offset in found):
            raise RangeGone("the log was cut")
        return found

    def limit(self, _: int) -> Records:
        """See `DataFrame`."""
        return Records((), self.epochs)

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        """See `DataFrame`."""
        return not self.offsets()


class ReaderByEpochs:
    """Reads records as tasks do: none of a later epoch than it is told."""

    def read(self, _: Any, ranges: Any, __: Any, ___: Any, epochs: Any) -> Any:
        """See `Reader.read`."""
        return Records(ranges, epochs)

    def bare(self) -> ReaderByEpochs:
        """See `Reader.bare`."""
        return self


def test_a_trial_reads_records_that_came_after_an_election_since_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only record of the batch fails, and those that show that others can be written are of the new epoch."""
    monkeypatch.setattr(quarantine, "letter_for", lambda _: lambda records, *_, **__: records)
    broker, written, letters = Led((0, 1)), list[int](), list[int]()

    def write(frame: Records, _: Batch) -> None:
        broker.epoch, broker.held_now[0] = 6, (0, 3)
        if 0 in frame.offsets():
            raise ValueError("a wrong value")
        written.extend(frame.offsets())

    run = Run(
        "g",
        None,
        cast("Any", broker),
        Subscription(Topics.of(["t"]), policies=Policies(poison="quarantine")),
        cast("Any", ReaderByEpochs()),
        Outputs(a=Idempotent(cast("Any", write))),
        None,
        Guarantee.AT_LEAST_ONCE,
        Pace(attempts=1, retry_timeout_s=0),
        {},
        Outputs(b=Idempotent(cast("Any", lambda frame, _: letters.extend(frame.offsets())))),
    )
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g", retry_timeout_s=0)
    first, second = (Loop(cast("Any", None), run, ledger, Restless(), "caught_up").run() for _ in range(2))
    assert (letters, written[-2:]) == ([0], [1, 2])
    assert (first.quarantined, second.quarantined) == (1, 0)
