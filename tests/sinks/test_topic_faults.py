"""What goes wrong while a batch goes into a topic: rivals, dead processes, brokers that are away, lost answers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, its library says so elsewhere

from fixtures.guarded import PASSWORD, Guarded, options
from offsetkeeper.errors import MarkError, MarkMoved, OutcomeUnknown, Refused, RowMismatch, SinkError
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.sinks import Seen, Topic
from offsetkeeper.sinks.topic import task
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import Cut
from offsetkeeper.testing.server import wait_until
from sinks.topics import KEY, LIMIT_S, lander, mark, said, slot, values, write

NewTopic = Callable[..., str]
STEPS = ("taken", "writing", "flushed", "said")
ONE, TWO, THREE = mark(1), mark(2), mark(3)
VOID = ONE._replace(void=True)
CHILD = """
import sys
from sinks.topics import mark, slot, write
def wait():
    print("ready", flush=True)
    sys.stdin.read()
brokers, topic, step, native = sys.argv[1:]
write(slot(brokers, topic, offsetkeeper_native=native), None, mark(1), ["dead", "dead"], step, wait)
"""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("newer", ["lands", "drops", "lands another"])
def test_an_older_run_that_a_newer_one_overtakes_writes_nothing(
    kafka_server: KafkaServer, topic: NewTopic, step: str, newer: str, implementation: dict[str, str]
) -> None:
    """Wherever it is in its transaction. Where the newer one has landed this very batch, it is done for both."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    after = {"lands": ONE, "drops": VOID, "lands another": TWO}[newer]

    def overtake() -> None:
        write(at, None, after, [] if newer == "drops" else ["newer"])

    if newer == "lands":
        write(at, None, ONE, ["older", "older"], step, overtake)
    else:
        with pytest.raises(
            MarkMoved, match=r"another producer has taken the transactional id 'offsetkeeper\.billing/'"
        ):
            write(at, None, ONE, ["older", "older"], step, overtake)
    assert said(at) == after
    assert values(kafka_server.bootstrap, name) == ([] if newer == "drops" else ["newer"])


@pytest.mark.parametrize("step", STEPS)
def test_an_older_run_that_is_fenced_and_not_overtaken_is_told_so(
    kafka_server: KafkaServer,
    topic: NewTopic,
    step: str,
    capfd: pytest.CaptureFixture[str],
    implementation: dict[str, str],
) -> None:
    """The newer one has taken the slot and written nothing yet; and no client prints on its own."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    newer = Turn(at)
    with pytest.raises(MarkMoved):
        write(at, None, ONE, ["older", "older"], step, newer.take)
    newer.write([], Saying(None, 2, str(TWO)))
    assert said(at) == TWO
    assert values(kafka_server.bootstrap, name) == []
    assert "FATAL" not in capfd.readouterr().err


def test_an_older_run_whose_fencing_one_is_in_its_transaction_is_told_so(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """The mark cannot be read meanwhile, but of a producer that was fenced before its commit nothing is there."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, timeout_s=2, options=implementation)
    newer = Turn(at)

    def overtake() -> None:
        newer.take()
        newer._producer.begin_transaction()
        newer._say(Saying(None, 2, str(TWO)))

    with pytest.raises(MarkMoved, match="another producer has taken the transactional id"):
        write(at, None, ONE, ["older", "older"], "writing", overtake)
    newer._producer.commit_transaction(LIMIT_S)
    assert said(at) == TWO
    assert values(kafka_server.bootstrap, name) == []


@pytest.mark.parametrize("step", ["writing", "said"])
def test_a_process_that_is_killed_in_its_transaction_leaves_nothing_and_is_not_waited_for(
    kafka_server: KafkaServer, topic: NewTopic, step: str, implementation: dict[str, str]
) -> None:
    """Its transaction would stay open for a minute. Whoever looks at the mark ends it, where it has one in there."""
    name = topic()
    command = [sys.executable, "-c", CHILD, kafka_server.bootstrap, name, step, *implementation.values()]
    environment = {"PYTHONPATH": ":".join(each for each in sys.path if each)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    at = slot(kafka_server.bootstrap, name, options=implementation)
    assert said(at) is None
    write(at, None, ONE, ["alive"])
    assert values(kafka_server.bootstrap, name) == ["alive"]


def test_a_look_at_a_mark_in_an_open_transaction_ends_that(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """What was told would not stay true otherwise: the transaction could be committed right after the look."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    looks: list[object] = []
    with pytest.raises(MarkMoved):
        write(at, None, ONE, ["a"], "said", lambda: looks.append(said(at)))
    assert looks == [None]
    assert values(kafka_server.bootstrap, name) == []


def test_copies_of_a_task_leave_one_copy_of_the_rows(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """A copy that begins while another writes ends its transaction; the one that was ended finds the batch done."""
    name = topic()
    at, saying = slot(kafka_server.bootstrap, name, options=implementation), Saying(None, 1, str(ONE))
    write(at, None, ONE, ["a"], "writing", lambda: write(at, None, ONE, ["a"]))
    task.land(at, saying, name, ())  # a third one, late
    assert values(kafka_server.bootstrap, name) == ["a"]


def test_a_run_whose_mark_is_gone_changes_nothing(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """As of an older run that wakes up after the newer one has landed two batches."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    write(at, None, ONE, ["one"])
    write(at, ONE, TWO, ["two"])
    for before in (None, ONE):
        text = None if before is None else str(before)
        with pytest.raises(MarkMoved, match="has the mark"):
            task.land(at, Saying(text, 3, str(THREE)), name, ())
    assert said(at) == TWO


def test_another_application_with_the_same_transactional_id_disturbs_and_doubles_nothing(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    other = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": at.name, "log_level": 0})
    with pytest.raises(MarkMoved):
        write(at, None, ONE, ["a", "b"], "writing", lambda: other.init_transactions(LIMIT_S))
    other.begin_transaction()
    other.produce(name, "other")
    other.commit_transaction(LIMIT_S)
    write(at, None, ONE, ["a", "b"])
    assert values(kafka_server.bootstrap, name) == ["a", "b", "other"]


def test_what_another_program_commits_for_the_group_is_no_mark(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    turn = Turn(at)
    turn.take()
    turn.write([], Saying(None, 1, "mine"))
    with pytest.raises(MarkError, match="is not a mark of offsetkeeper"):
        lander(Topic(kafka_server.bootstrap, name)).seen(KEY)


def test_a_batch_that_takes_longer_than_its_transaction_may_is_not_written(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """And the error names what helps."""
    name = topic()
    at = slot(kafka_server.bootstrap, name, transaction_timeout_ms="1000", options=implementation)
    admin: Any = kafka_server.admin()
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # its library leaves it without types

    def end() -> int:
        partition = TopicPartition(name, 0)
        level = IsolationLevel.READ_COMMITTED
        [found] = admin.list_offsets({partition: latest}, isolation_level=level).values()
        return int(found.result().offset)

    def wait() -> None:
        wait_until(lambda: end() > 0, "the broker ended the transaction", LIMIT_S)

    with pytest.raises(SinkError, match=r"ended its transaction after 1000 ms; nothing.*Raise transaction.timeout.ms"):
        write(at, None, ONE, ["a", "b"], "writing", wait)
    assert said(at) is None
    assert values(kafka_server.bootstrap, name) == []


def test_a_longer_transaction_than_the_brokers_allow_is_refused(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """Before anything is read; or where they do not tell, at the first batch."""
    name, much = topic(), "999999999"
    with pytest.raises(Refused, match=r"timeout.ms=999999999 is above the transaction.max.timeout.ms=900000"):
        lander(Topic(kafka_server.bootstrap, name, kafka={"transaction.timeout.ms": much}))
    at = slot(kafka_server.bootstrap, name, transaction_timeout_ms=much, options=implementation)
    with pytest.raises(Refused, match=r"timeout.ms=999999999 is above the brokers' transaction.max.timeout.ms"):
        write(at, None, ONE, ["a"])


def test_brokers_that_are_away_are_told_and_nothing_is_written(kafka_server: KafkaServer, topic: NewTopic) -> None:
    """At the start, at the look, and between the look and the landing; afterwards the batch lands."""
    name = topic()
    with kafka_server.proxy() as proxy:
        sink = Topic(proxy.address, name, timeout_s=1)
        way = lander(sink)
        asks: list[Callable[[], object]] = [
            lambda: lander(sink),
            lambda: way.seen(KEY),
            lambda: way.land(KEY, Seen(None), ONE, None),
        ]
        proxy.refuse()
        for ask in asks:
            with pytest.raises(SinkError):
                ask()
        proxy.heal()
        way = lander(Topic(proxy.address, name))
        way.land(KEY, way.seen(KEY), ONE, None)
        assert way.seen(KEY).mark == ONE


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
def test_a_commit_that_is_cut_off_for_a_moment_is_done(
    kafka_server: KafkaServer, topic: NewTopic, cut: Cut, implementation: dict[str, str]
) -> None:
    name = topic()
    with kafka_server.proxy() as proxy:
        at = slot(proxy.address, name, options=implementation)
        write(at, None, ONE, ["a"], "said", lambda: proxy.cut(cut, at.name.encode()))
        assert proxy.armed == 0
        assert said(at) == ONE
    assert values(kafka_server.bootstrap, name) == ["a"]


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
def test_a_commit_whose_answer_is_lost_is_told_as_unknown(
    kafka_server: KafkaServer, topic: NewTopic, cut: Cut, implementation: dict[str, str]
) -> None:
    """Nobody can be asked any more. Afterwards a look tells whether the request had come."""
    name = topic()
    with kafka_server.proxy() as proxy:
        at = slot(proxy.address, name, timeout_s=1, options=implementation)

        with pytest.raises(OutcomeUnknown, match=r"(?i)unknown whether the rows are written(?!.*nothing was written)"):
            write(at, None, ONE, ["a"], "said", lambda: proxy.cut(cut, at.name.encode(), refuse=True))
        proxy.heal()
    there = slot(kafka_server.bootstrap, name, options=implementation)
    assert said(there) == (ONE if cut is Cut.REPLY else None)
    if cut is Cut.REQUEST:
        write(there, None, ONE, ["a"])
    assert values(kafka_server.bootstrap, name) == ["a"]


@pytest.mark.parametrize("step", ["writing", "said", *(pytest.param(s, marks=pytest.mark.soak) for s in STEPS[::2])])
def test_a_broker_that_dies_and_comes_back_leaves_the_batch_once_or_not_at_all(
    kafka_server: KafkaServer, topic: NewTopic, step: str, implementation: dict[str, str]
) -> None:
    name = topic()
    at = slot(kafka_server.bootstrap, name, timeout_s=30, options=implementation)

    def crash() -> None:
        kafka_server.kill()
        kafka_server.restart()

    try:
        write(at, None, ONE, ["a", "b"], step, crash)
    except (SinkError, OutcomeUnknown):
        if said(at) is None:
            write(at, None, ONE, ["a", "b"])
    assert said(at) == ONE
    assert values(kafka_server.bootstrap, name) == ["a", "b"]


def test_a_topic_that_is_deleted_takes_its_mark_along(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic()
    at = slot(kafka_server.bootstrap, name, options=implementation)
    write(at, None, ONE, ["a"])
    kafka_server.delete_topic(name)
    with pytest.raises(Refused, match=f"has no topic {name}: create it first"):
        lander(Topic(kafka_server.bootstrap, name))
    wait_until(lambda: said(at) is None, "the broker deleted the mark", LIMIT_S)
    rows = pa.record_batch({"value": ["b"]})
    with pytest.raises(SinkError, match=f"has no topic {name}; nothing"):
        task.land(at, Saying(None, 2, str(TWO)), name, [rows])
    kafka_server.create_topic(name)
    assert said(at) is None
    write(at, None, TWO, ["b"])
    assert values(kafka_server.bootstrap, name) == ["b"]


def test_a_record_that_is_too_large_for_the_topic_is_told_and_nothing_is_written(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic(config={"max.message.bytes": "1000"})
    at = slot(kafka_server.bootstrap, name, options=implementation)
    with pytest.raises(RowMismatch, match="MSG_SIZE_TOO_LARGE"):
        write(at, None, ONE, ["a", "b" * 5000])
    assert said(at) is None
    assert values(kafka_server.bootstrap, name) == []


def test_a_user_without_permissions_is_told_which_are_missing(guarded: Guarded) -> None:
    """By the brokers' own words; the password is not among them."""
    guarded.server.create_topic("outputs")
    brokers, settings = guarded.brokers, options()
    with pytest.raises(Refused, match=r"topic outputs: the brokers .* refuse") as found:
        lander(Topic(brokers, "outputs", kafka=settings, timeout_s=2))
    assert PASSWORD not in str(found.value)
    for operation in ("READ", "WRITE", "DESCRIBE"):
        guarded.allow("outputs", operation)
    sink = Topic(brokers, "outputs", kafka=settings, timeout_s=2)
    way = lander(sink)
    asks: list[tuple[Callable[[], object], str]] = [
        (lambda: way.seen(KEY), "GROUP_AUTHORIZATION_FAILED"),
        (lambda: way.land(KEY, Seen(None), ONE, None), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ]
    for ask, what in asks:
        with pytest.raises(Refused, match=what) as found:
            ask()
        assert PASSWORD not in str(found.value)
    assert PASSWORD not in repr(sink) + repr(sink._slot(KEY))
