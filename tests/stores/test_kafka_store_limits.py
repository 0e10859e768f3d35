"""The store in Kafka: what others see, what expires, what is refused, and who fences whom."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper import rules
from offsetkeeper.errors import Fenced, OutcomeUnknown, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Change, OffsetRange, Position, Snapshot, TopicPartition
from offsetkeeper.stores import open_store
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.stores.kafka_transactions import Claim, Overtaken, Transactions
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port, wait_until

Opener = Callable[..., KafkaStore]


@pytest.fixture
def group() -> str:
    """A group of this test's own."""
    return f"group-{secrets.token_hex(6)}"


@pytest.fixture
def part(topic: Callable[..., str]) -> TopicPartition:
    """The first of the two partitions of a topic."""
    return TopicPartition(topic(2), 0)


@pytest.fixture
def open_one(kafka_server: KafkaServer) -> Iterator[Opener]:
    """Open stores on the broker; they are closed at the end."""
    opened: list[KafkaStore] = []

    def open_store_(query: str = "") -> KafkaStore:
        opened.append(KafkaStore(f"kafka://{kafka_server.bootstrap}{query}"))
        return opened[-1]

    yield open_store_
    for store in opened:
        store.close()


@pytest.fixture
def shown(kafka_server: KafkaServer, group: str, part: TopicPartition) -> Callable[[], dict[TopicPartition, int]]:
    """Ask for the group's offsets as kafka-consumer-groups does."""

    def ask() -> dict[TopicPartition, int]:
        found = kafka_server.group_offsets(group, [part, (part.topic, 1)])
        return {TopicPartition(*each): offset for each, offset in found.items()}

    return ask


def rewind(snapshot: Snapshot, offsets: dict[TopicPartition, int]) -> Change:
    positions = {tp: Position(offset) for tp, offset in offsets.items()}
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


def test_the_ledger_outlives_the_offsets_that_kafka_forgets(
    kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition, shown: Callable[[], object]
) -> None:
    """As a week without consumers makes it. The next run shows all of them again, those that did not move too."""
    other = TopicPartition(part.topic, 1)
    open_one().apply(rewind(Snapshot(group), {part: 5, other: 6}))
    admin: Any = kafka_server.admin()
    for name in (group, f"offsetkeeper.{group}"):
        admin.delete_consumer_groups([name])[name].result(30)
    assert shown() == {}
    store = open_one()
    found = store.load(group)
    assert found.positions == {part: Position(5), other: Position(6)}
    store.apply(rewind(found, {part: 7}))
    assert shown() == {part: 7, other: 6}


def test_offsets_of_a_topic_that_is_gone_stay_in_the_ledger(
    open_one: Opener, group: str, part: TopicPartition, shown: Callable[[], object]
) -> None:
    gone = TopicPartition("no-such-topic", 3)
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 5, gone: 6}))
    assert store.load(group).positions == {part: Position(5), gone: Position(6)}
    assert shown() == {part: 5}


def test_a_ledger_of_ten_thousand_partitions_is_written_and_read(open_one: Opener, group: str) -> None:
    store = open_one()
    offsets = {TopicPartition("no-such-topic", number): 10**12 + number for number in range(10_000)}
    store.apply(rewind(Snapshot(group), offsets))
    assert len(store.load(group).positions) == 10_000


def test_a_ledger_too_large_for_a_message_is_refused_before_anything_is_written(
    open_one: Opener, group: str, part: TopicPartition, shown: Callable[[], object]
) -> None:
    store = open_one("?message.max.bytes=20000")
    store.apply(rewind(Snapshot(group), {part: 5}))
    before = store.load(group)
    many = {TopicPartition("no-such-topic", number): 7**number % 10**12 for number in range(5_000)}
    with pytest.raises(SettingsError, match=rf"{group}.*message may have 19488.*message\.max\.bytes"):
        store.apply(rewind(before, {part: 6, **many}))
    assert store.load(group) == before
    assert shown() == {part: 5}


def test_a_group_with_consumers_in_it_is_refused(
    kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition
) -> None:
    consumer = Consumer({"bootstrap.servers": kafka_server.bootstrap, "group.id": group})
    consumer.subscribe([part.topic])
    try:
        wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the consumer has joined", 30)
        with pytest.raises(SettingsError, match=f"1 consumers are in Kafka's group '{group}'"):
            open_one().apply(rewind(Snapshot(group), {part: 5}))
    finally:
        consumer.close()
    open_one().apply(rewind(open_one().load(group), {part: 5}))


def test_a_topic_in_which_ledgers_would_expire_is_refused(
    open_one: Opener, group: str, topic: Callable[..., str]
) -> None:
    name = topic(1, {"cleanup.policy": "delete"})
    with pytest.raises(SettingsError, match=rf"{name} deletes old records.*compact"):
        open_one(f"?topic={name}").apply(rewind(Snapshot(group), {}))


def test_a_transaction_that_its_owner_left_open_is_ended_by_the_next(
    open_one: Opener, group: str, part: TopicPartition
) -> None:
    """Without waiting for the broker to give it up, which takes ten seconds and more."""
    dead, store = open_one(), open_one()
    dead.apply(rewind(Snapshot(group), {part: 5}))
    change = rewind(dead.load(group), {part: 6})
    claim = dead._claims[group]
    dead._transactions._fill(claim, {group: b"never committed"}, [KafkaPartition(*part, 99)])
    store.apply(change)
    assert store.load(group) == change.after
    with pytest.raises(KafkaException):
        claim.producer.commit_transaction(10)


def test_a_stale_writer_does_not_disturb_the_owner(open_one: Opener, group: str, part: TopicPartition) -> None:
    owner, stale = open_one(), open_one()
    old = rewind(Snapshot(group), {part: 1})
    owner.apply(old)
    claim = owner._claims[group]
    with pytest.raises(VersionConflict):
        stale.apply(old)
    owner.apply(rewind(owner.load(group), {part: 2}))
    assert owner._claims[group] is claim


def test_who_was_fenced_in_vain_writes_after_all(open_one: Opener, group: str, part: TopicPartition) -> None:
    """Somebody has claimed the group and not changed it, so the ledger is still what the owner knows."""
    owner, other = open_one(), open_one()
    owner.apply(rewind(Snapshot(group), {part: 1}))
    other._transactions.claim(group, f"offsetkeeper.{group}", 1)
    change = rewind(owner.load(group), {part: 2})
    owner.apply(change)
    assert owner.load(group) == change.after


def test_two_runs_that_work_in_turn_fence_each_other(open_one: Opener, group: str, part: TopicPartition) -> None:
    one, two = Ledger(open_one(), group), Ledger(open_one(), group)
    one.acquire()
    one.place({part: Position(0)})
    two.acquire()
    with pytest.raises(Fenced):
        one.commit(one.batch([OffsetRange(*part, 0, 5)]))
    two.commit(two.batch([OffsetRange(*part, 0, 5)]))
    one.acquire()
    one.commit(one.batch([OffsetRange(*part, 5, 7)]))
    assert one.load().positions == {part: Position(7)}


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("overtaken", [True, False], ids=["somebody wrote", "nobody wrote"])
def test_a_commit_fenced_before_its_answer_is_looked_up(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch, *, done: bool, overtaken: bool
) -> None:
    """It may have been done. It counts as done exactly if it is in the ledger, or in the history below others."""
    store, rival = open_one(), open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    change = rewind(store.load(group), {part: 2})
    write = Transactions.write

    def cut_off(self: Transactions, claim: Claim, *arguments: Any) -> None:
        monkeypatch.undo()
        if done:
            write(self, claim, *arguments)
        if overtaken:
            rival.apply(rewind(rival.load(group), {part: 9}))
        raise Overtaken(committing=True)

    monkeypatch.setattr(Transactions, "write", cut_off)
    if overtaken and not done:
        with pytest.raises(VersionConflict):
            store.apply(change)
    else:
        store.apply(change)
    assert store.load(group).positions == {part: Position(9 if overtaken else 2)}
    assert store.load(group).version == 2 + (done and overtaken)


def test_an_answer_that_never_came_makes_the_outcome_unknown(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the broker is away at the look-up."""
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    change = rewind(store.load(group), {part: 2})

    def cut_off(*_: Any) -> None:
        raise Overtaken(committing=True)

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(Transactions, "write", cut_off)
    monkeypatch.setattr(store, "_check", away)
    with pytest.raises(OutcomeUnknown):
        store.apply(change)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        ":9092",
        "host:9092/path",
        "host?topic=no topic",
        "host?history=0",
        "host?group.id=x",
        "host?isolation.level=read_uncommitted",
        "host?no.such.setting=1",
        "host?security.protocol=maybe",
    ],
)
def test_a_wrong_url_is_refused(rest: str) -> None:
    url = "kafka://user:s3" + "cret@" + rest  # apart, as a traceback quotes this line
    with pytest.raises(SettingsError) as caught:
        open_store(url).load("g")
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_a_broker_that_is_not_there_is_told_within_the_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    url = f"kafka://user:s3{''}cret@127.0.0.1:{free_port()}?timeout=2&security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
    store = open_store(url)
    with pytest.raises(StoreUnavailable) as caught:
        store.load("g")
    with suppress(StoreUnavailable):
        store.apply(rewind(Snapshot("g"), {}))
    store.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(store) + caplog.text
    assert "s3cret" not in shown
