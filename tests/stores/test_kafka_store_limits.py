"""The store in Kafka: what others see, what expires, what is refused, and who fences whom."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Fenced, OutcomeUnknown, Refused, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.kafka.ledger_log import dump_change
from offsetkeeper.stores import open_store
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port, wait_until
from stores.kafka_media import commit

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
def open_one(kafka_server: KafkaServer, at_end: ExitStack) -> Opener:
    """Open stores on the broker; they are closed at the end."""
    return lambda query="": at_end.enter_context(closing(KafkaStore(f"kafka://{kafka_server.bootstrap}{query}")))


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


def away(*_: Any) -> None:
    raise KafkaException(KafkaError(KafkaError._TRANSPORT))


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
    with pytest.raises(Refused, match=rf"{group}.*message may have 18976.*message\.max\.bytes"):
        store.apply(rewind(before, {part: 6, **many}))
    assert store.load(group) == before
    assert shown() == {part: 5}


def test_what_a_run_that_lives_has_published_is_not_told_as_an_edit(
    open_one: Opener,
    group: str,
    part: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It commits while another run makes its first change, which is refused."""
    living, starting = open_one(), open_one()
    living.apply(rewind(Snapshot(group), {part: 5}))
    before = starting.load(group)

    def commit_meanwhile(*_: str) -> bool:
        living.apply(rewind(before, {part: 6}))
        return False

    monkeypatch.setattr(starting._clients, "has_members", commit_meanwhile)
    with pytest.raises(VersionConflict):
        starting.apply(rewind(before, {part: 7}))
    assert "Another tool has changed them" not in caplog.text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_consumers_in_it_is_refused(
    kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition, protocol: str
) -> None:
    consumer = Consumer({"bootstrap.servers": kafka_server.bootstrap, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([part.topic])
    try:
        wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the consumer has joined", 30)
        with pytest.raises(Refused, match=f"consumers are in Kafka's group '{group}'"):
            open_one().apply(rewind(Snapshot(group), {part: 5}))
    finally:
        consumer.close()
    open_one().apply(rewind(open_one().load(group), {part: 5}))


@pytest.fixture
def blind(open_one: Opener, monkeypatch: pytest.MonkeyPatch) -> Callable[[], KafkaStore]:
    """Open a store whose broker lags, so it does not list the topics yet, until it is asked what is committed."""

    def open_blind() -> KafkaStore:
        store = open_one()
        monkeypatch.setattr(store._clients.consumers, "partitions", dict)
        return store

    return open_blind


def test_an_offset_that_a_lagging_broker_has_hidden_is_not_passed_over(
    kafka_server: KafkaServer,
    open_one: Opener,
    blind: Callable[[], KafkaStore],
    group: str,
    part: TopicPartition,
    shown: Callable[[], object],
) -> None:
    """The partition counted as new: with `start="latest"` 400 records were lost, and Kafka's offset written over."""
    commit(kafka_server, group, {part: 500})
    run = Ledger(blind(), group, retry_timeout_s=5)
    run.acquire()
    with pytest.raises(Refused, match=rf"offset 500 of {part.topic} 0.*at 900.*reset {group} --topic {part.topic}:0"):
        run.place({part: Position(900)})
    assert (run.load().positions, shown()) == ({}, {part: 500})
    run = Ledger(open_one(), group, retry_timeout_s=5)
    run.load()
    run.rewind({part: Position(500)}, "as the message says", force=True)
    run.acquire()
    run.place({TopicPartition(part.topic, 1): Position(900)})
    assert shown() == {part: 500, TopicPartition(part.topic, 1): 900}


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden by a lagging broker", "committed meanwhile"])
def test_an_offset_that_appears_before_the_first_change_is_taken_over(
    kafka_server: KafkaServer,
    open_one: Opener,
    blind: Callable[[], KafkaStore],
    group: str,
    part: TopicPartition,
    *,
    hidden: bool,
) -> None:
    """Whether the ledger had none of it, or an older one, as where the old program ends only now."""
    commit(kafka_server, group, {part: 500})
    store = blind() if hidden else open_one()
    before = store.load(group)
    if not hidden:
        commit(kafka_server, group, {part: 600})
    with pytest.raises(VersionConflict, match="another program has committed"):
        store.apply(rewind(before, {part: 0} if hidden else {}))
    store = open_one()
    store.apply(rewind(store.load(group), {}))
    assert store.load(group).positions == {part: Position(500 if hidden else 600)}


def test_what_another_run_has_published_is_a_conflict_and_no_offset_of_others(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, newer = open_one(), Ledger(open_one(), group, retry_timeout_s=5)
    older, look = Ledger(store, group, retry_timeout_s=5), store._look
    older.acquire()

    def look_and_sleep(name: str) -> Any:
        found = look(name)
        monkeypatch.setattr(store, "_look", look)
        newer.acquire()
        newer.place({part: Position(7)})
        return found

    monkeypatch.setattr(store, "_look", look_and_sleep)
    with pytest.raises(Fenced):
        older.place({part: Position(9)})
    assert store.load(group).positions == {part: Position(7)}


def test_a_topic_in_which_ledgers_would_expire_is_refused(
    open_one: Opener, group: str, topic: Callable[..., str]
) -> None:
    name = topic(1, {"cleanup.policy": "delete"})
    with pytest.raises(Refused, match=rf"{name} deletes old records.*compact"):
        open_one(f"?topic={name}").apply(rewind(Snapshot(group), {}))


def header_of(message: Message) -> str:
    """Return the one header of a record."""
    value = dict(message.headers() or [])["previous"]
    assert isinstance(value, bytes)
    return value.decode()


def newest_line(kafka_server: KafkaServer, group: str) -> tuple[str, str]:
    """Return key and header of a group's newest record, read by a bare client."""
    at_once = {"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": kafka_server.bootstrap, "group.id": "bare", **at_once})
    consumer.assign([KafkaPartition("offsetkeeper", 0, 0)])
    found = "", ""
    while (message := consumer.poll(30)) is not None and message.error() is None:
        key = bytes(message.key() or b"").decode()
        if key.startswith(f"{group}/") and message.value():
            found = key, header_of(message)
    consumer.close()
    return found


def append(kafka_server: KafkaServer, key: str, value: bytes, previous: str) -> None:
    """Append a record as a writer does that slept."""
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce("offsetkeeper", value, key, 0, headers=[("previous", previous.encode())])
    assert producer.flush(30) == 0


def test_a_stale_writer_changes_nothing_and_does_not_disturb_the_owner(
    open_one: Opener, group: str, part: TopicPartition, shown: Callable[[], dict[TopicPartition, int]]
) -> None:
    owner, stale = open_one(), open_one()
    old = rewind(Snapshot(group), {part: 1})
    owner.apply(old)
    with pytest.raises(VersionConflict):
        stale.apply(old)
    owner.apply(rewind(owner.load(group), {part: 2}))
    with pytest.raises(VersionConflict, match="it is at version 2, not 1"):
        stale.apply(rewind(old.after, {part: 9}))
    assert stale.load(group).positions == {part: Position(2)}
    assert shown() == {part: 2}


def test_a_change_that_lands_late_does_not_count(
    kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition
) -> None:
    """Its writer was given up; it builds on what another change has built on meanwhile."""
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    first, _ = newest_line(kafka_server, group)
    late = dump_change(rewind(store.load(group), {part: 99}))
    store.apply(rewind(store.load(group), {part: 2}))
    append(kafka_server, f"{group}/2/00ff", late, first.rpartition("/")[2])
    for reader in (store, open_one()):
        assert reader.load(group).positions == {part: Position(2)}
        assert [entry.moves[part].after.offset for entry in reader.history(group)] == [2, 1]
    store.apply(rewind(store.load(group), {part: 3}))
    assert open_one().load(group).positions == {part: Position(3)}


@pytest.mark.parametrize("overtaken", [False, True], ids=["nobody was faster", "somebody was faster"])
def test_a_change_made_while_others_append_is_looked_up(
    kafka_server: KafkaServer,
    open_one: Opener,
    group: str,
    part: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
    *,
    overtaken: bool,
) -> None:
    """Between its look and its record others come: of another group, which is no matter, or of its own."""
    store, rival = open_one(), open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    rival.load(group)
    append_ = store._clients.append

    def late(*arguments: Any) -> int:
        monkeypatch.undo()
        append(kafka_server, f"other-{group}/1/00aa", b"whatever", "")
        if overtaken:
            rival.apply(rewind(rival.load(group), {part: 7}))
        return append_(*arguments)

    monkeypatch.setattr(store._clients, "append", late)
    change = rewind(store.load(group), {part: 2})
    if overtaken:
        with pytest.raises(VersionConflict):
            store.apply(change)
    else:
        store.apply(change)
    assert store.load(group).positions == open_one().load(group).positions == {part: Position(7 if overtaken else 2)}


def test_an_earlier_try_that_lands_late_is_published_in_kafka(
    kafka_server: KafkaServer,
    open_one: Opener,
    group: str,
    part: TopicPartition,
    shown: Callable[[], dict[TopicPartition, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was given up, so nobody publishes it but the next try, which is refused for it."""
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    first, _ = newest_line(kafka_server, group)
    append_ = store._clients.append

    def late(*arguments: Any) -> int:
        monkeypatch.undo()
        append(kafka_server, f"{group}/2/00ff", dump_change(change), first.rpartition("/")[2])
        return append_(*arguments)

    monkeypatch.setattr(store._clients, "append", late)
    change = rewind(store.load(group), {part: 2})
    with pytest.raises(VersionConflict):
        store.apply(change)
    assert store.load(group) == change.after
    assert shown() == {part: 2}


def test_a_failure_to_read_what_is_to_be_deleted_leaves_no_doubt(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been written then."""
    store = open_one("?history=1")
    store.apply(rewind(Snapshot(group), {part: 1}))
    change = rewind(store.load(group), {part: 2})

    with monkeypatch.context() as patch:
        patch.setattr(store, "_lines", away)
        with pytest.raises(StoreUnavailable):
            store.apply(change)
    assert store.load(group) == change.before
    store.apply(change)


def test_a_change_that_counts_is_known_as_such_below_newer_ones(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer was held up between its record and the look for it."""
    store, rival = open_one(), open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    append_ = store._clients.append

    def slow(*arguments: Any) -> int:
        monkeypatch.undo()
        offset = append_(*arguments)
        rival.apply(rewind(rival.load(group), {part: 7}))
        return offset + 1_000_000  # as if others had been in between

    monkeypatch.setattr(store._clients, "append", slow)
    store.apply(rewind(store.load(group), {part: 2}))
    assert store.load(group).positions == {part: Position(7)}
    assert [entry.moves[part].after.offset for entry in store.history(group)] == [7, 2, 1]


def test_the_last_word_on_the_offsets_is_the_newest_change_s(
    open_one: Opener,
    group: str,
    part: TopicPartition,
    shown: Callable[[], dict[TopicPartition, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who was held up between change and offsets writes older ones over newer, sees it, and mends it."""
    store, rival = open_one(), open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))
    publish = store._publish

    def late(*arguments: Any) -> None:
        monkeypatch.undo()
        rival.apply(rewind(rival.load(group), {part: 7}))
        publish(*arguments)

    monkeypatch.setattr(store, "_publish", late)
    store.apply(rewind(store.load(group), {part: 2}))
    assert shown() == {part: 7}


def test_offsets_that_could_not_be_published_come_with_the_next_change(
    open_one: Opener,
    group: str,
    part: TopicPartition,
    shown: Callable[[], dict[TopicPartition, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The change is made all the same."""
    other = TopicPartition(part.topic, 1)
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 1, other: 1}))

    with monkeypatch.context() as patch:
        patch.setattr(store._clients.consumers, "commit", away)
        store.apply(rewind(store.load(group), {other: 2}))
    assert "published with the next change only" in caplog.text
    assert (store.load(group).positions[other], shown()) == (Position(2), {part: 1, other: 1})
    store.apply(rewind(store.load(group), {part: 5}))
    assert shown() == {part: 5, other: 2}


def test_a_change_whose_record_was_not_acknowledged_is_in_doubt(
    open_one: Opener, group: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_one()
    store.apply(rewind(Snapshot(group), {part: 1}))

    def cut_off(*_: Any) -> int:
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    monkeypatch.setattr(store._clients, "append", cut_off)
    with pytest.raises(OutcomeUnknown, match="not acknowledged"):
        store.apply(rewind(store.load(group), {part: 2}))


def test_a_pointer_that_leads_nowhere_is_no_matter(
    kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition
) -> None:
    """All of the topic is read instead."""
    open_one().apply(rewind(Snapshot(group), {part: 5}))
    for at in (0, 10**9):
        commit(kafka_server, f"offsetkeeper.{group}", {TopicPartition("offsetkeeper", 0): at})
        assert open_one().load(group).positions == {part: Position(5)}


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


def test_old_records_are_deleted(kafka_server: KafkaServer, open_one: Opener, group: str, part: TopicPartition) -> None:
    """A bare client finds those of the history and no others."""
    store = open_one("?history=5")
    for offset in range(12):
        store.apply(rewind(store.load(group), {part: offset}))
    store.close()
    at_once = {"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": kafka_server.bootstrap, "group.id": "bare", **at_once})
    consumer.assign([KafkaPartition("offsetkeeper", 0, 0)])
    left = {}
    while (message := consumer.poll(30)) is not None and message.error() is None:
        left[bytes(message.key() or b"")] = message.value()
    consumer.close()
    versions = [
        int(key.split(b"/")[1]) for key, value in left.items() if value and key.startswith(f"{group}/".encode())
    ]
    assert versions == [8, 9, 10, 11, 12]
    assert [entry.version for entry in open_one("?history=5").history(group)] == [12, 11, 10, 9, 8]


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
        "host?allow.auto.create.topics=true",
        "host?no.such.setting=1",
        "host?security.protocol=maybe",
    ],
)
def test_a_wrong_url_is_refused_in_kafka(rest: str) -> None:
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
