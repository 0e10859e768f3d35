"""Records that Kafka holds and no frame of Spark can: they end in the dead letters, or the error names them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, its library says so elsewhere
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from engines.lab import Lab
from engines.test_engine_quarantine import numbers
from offsetkeeper import Policies
from offsetkeeper.errors import RecordUnreadable, RowMismatch
from offsetkeeper.sinks import Table, Topic
from readers.test_readers_headers import produce
from sinks.topics import committed

NewTopic = Callable[..., str]
QUARANTINE = Policies(poison="quarantine")
ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**62),
}  # Kafka 4 refuses those that are an hour ahead by default
NOW, MICROSECONDS, NANOSECONDS = (1_700_000_000_000 * 1000**power for power in range(3))
TIMES = [NOW, NOW, NANOSECONDS, NOW, MICROSECONDS, MICROSECONDS, NOW, NANOSECONDS, NANOSECONDS, NOW]
VALUES = [str(offset) if offset != 5 else "bad" for offset in range(len(TIMES))]
BAD = [2, 5, 7, 8]
"""Those that Spark cannot hold; and one that it holds, whose value is no number and whose time is no date of Python."""


@pytest.fixture(params=["never", "required"], ids=["python", "native"])
def native(request: pytest.FixtureRequest) -> str:
    """Which of the two readers of a task reads."""
    found: str = request.param
    if found == "required" and find_spec("offsetkeeper_native") is None:
        pytest.skip("no C compiler made it")
    return found


def fill(lab: Lab, topic: NewTopic, times: list[int], values: list[str], largest: int = 1_000_000) -> str:
    """Return a topic with records of these times, each in a batch of its own."""
    name = topic(1, ANY_TIME | {"max.message.bytes": str(largest)})
    failed: list[Any] = []
    with Producer({"bootstrap.servers": lab.kafka.bootstrap, "message.max.bytes": largest}) as producer:
        for value, time in zip(values, times, strict=True):
            told: Any = lambda error, _: failed.append(error) if error else None  # noqa: E731
            producer.produce(name, value, b"\xff", partition=0, timestamp=time, on_delivery=told)
            assert producer.flush(30) == 0
    assert failed == []
    return name


def run(lab: Lab, source: str, letters: Any, **settings: Any) -> Any:
    given = {"policies": QUARANTINE, "dead_letters": letters, "attempts": 1} if letters else {}
    pipeline = lab.pipeline(source, **given, **settings)
    to = Table(lab.store, "orders")
    return pipeline.run(lab.spark, numbers, sink=to, guarantee="exactly_once", until="caught_up")


def test_times_that_spark_or_python_cannot_hold_go_into_the_dead_letters_without_them(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]], native: str
) -> None:
    source = fill(lab, topic, TIMES, VALUES)
    summary = run(lab, source, Table(lab.store, "letters"), kafka={"offsetkeeper.native": native})
    assert summary.quarantined == len(BAD)
    good = [(source, 0, at, at) for at in range(len(TIMES)) if at not in BAD]
    assert tables("select * from orders order by 3") == good
    found = tables('select "offset", timestamp, key, value, error from letters order by 1')
    assert [row[:4] for row in found] == [(at, None, b"\xff", VALUES[at].encode()) for at in BAD]
    for at, *_, error in found:
        if at == 5:
            assert "invalid literal" in error
        else:
            assert error.startswith(
                f"RecordUnreadable: {source} 0: the record at offset {at} has the time {TIMES[at]} "
            )
        assert error.endswith(f"; its time is left out: {TIMES[at]} ms since 1970")
    dropped = [entry for entry in lab.history() if entry.event == "drop"]
    assert len(dropped) <= 2 * len(BAD) + 2  # each error names its offset, so that nothing is searched for by halves


def test_letters_of_such_records_in_a_topic_say_the_time(lab: Lab, topic: NewTopic, native: str) -> None:
    source, letters = fill(lab, topic, [NOW, NANOSECONDS, NOW], ["a", "b", "c"]), topic(1)
    pipeline = lab.pipeline(
        source,
        policies=QUARANTINE,
        dead_letters=Topic(lab.kafka.bootstrap, letters),
        kafka={"offsetkeeper.native": native},
    )
    pipeline.run(lab.spark, lab.keep, guarantee="at_least_once", until="caught_up")
    assert lab.values == ["a", "c"]
    [letter] = committed(lab.kafka.bootstrap, letters)
    assert (letter.key, letter.value) == (b"\xff", b"b")
    assert (dict(letter.headers or [])["error"] or b"").endswith(b"1700000000000000000 ms since 1970")


def test_without_a_quarantine_the_run_ends_with_an_error_that_names_the_offset(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]], native: str
) -> None:
    source = fill(lab, topic, [NOW, NANOSECONDS, NOW], ["0", "1", "2"])
    with pytest.raises(RecordUnreadable, match=f"{source} 0: the record at offset 1 has the time {NANOSECONDS} ms"):
        run(lab, source, None, kafka={"offsetkeeper.native": native})
    assert tables("select * from orders") == []
    assert sum("begin" in event for event in lab.events()) <= 1  # another try would fail in the same way


def test_what_sparks_connector_says_of_such_a_time_names_the_record_too(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]]
) -> None:
    source = fill(lab, topic, [NOW, NANOSECONDS], ["0", "1"])
    says = f"{source} 0: the record at offset 1 has the time {NANOSECONDS} ms.*use reader='packed'"
    for letters in (None, Table(lab.store, "letters")):
        with pytest.raises(RecordUnreadable, match=says):
            run(lab, source, letters, reader="connector")
    assert tables('select "offset" from orders') == [(0,)]
    assert tables("select * from letters") == []


def test_letters_of_sparks_connector_are_the_same(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]]
) -> None:
    source = fill(lab, topic, [NOW, MICROSECONDS, NOW], ["0", "bad", "2"])
    run(lab, source, Table(lab.store, "letters"), reader="connector")
    [(offset, time, value, error)] = tables('select "offset", timestamp, value, error from letters')
    assert (offset, time, value) == (1, None, b"bad")
    assert error.endswith(f"; its time is left out: {MICROSECONDS} ms since 1970")


def test_headers_that_cannot_be_read_are_left_out_of_the_letter(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]], native: str
) -> None:
    """The library of the reader in Python does not tell that there are more than 100,000."""
    source, options = topic(1), {"offsetkeeper.native": native}
    odd = [b"h"] * 100_001 if native == "required" else [b"\xff", b"\xfe"]
    for keys in ([b"h"], odd, [b"h"]):
        produce(lab.kafka, source, keys)
    with pytest.raises(RecordUnreadable, match=f"{source} 0: the record at offset 1 has header"):
        lab.read(source, kafka=options, headers=True, group="without")
    letters = {"policies": QUARANTINE, "dead_letters": Table(lab.store, "letters")}
    pipeline = lab.pipeline(source, kafka=options, headers=True, max_bytes=1000, **letters)
    pipeline.run(lab.spark, lab.keep, guarantee="at_least_once", until="caught_up")
    assert lab.values == ["x"] * 2
    [(offset, value, error)] = tables('select "offset", value, error from letters')
    assert (offset, value) == (1, b"x")
    assert error.startswith(f"RecordUnreadable: {source} 0: the record at offset 1 has header")


def test_a_letter_that_its_topic_does_not_take_stops_the_run_until_the_topic_takes_it(
    lab: Lab, topic: NewTopic, tables: Callable[[str], list[Any]]
) -> None:
    """The error says which settings to raise; nothing is left out of the letter, and nothing is lost."""
    large = "x" * 2_000_000
    source, letters = fill(lab, topic, [NOW] * 3, ["0", large, "2"], 3_000_000), topic(1)
    options = {"message.max.bytes": "3000000"}
    for given in ({}, options):
        with pytest.raises(RowMismatch, match=r"Raise message\.max\.bytes .*, and max\.message\.bytes of t") as raised:
            run(lab, source, Topic(lab.kafka.bootstrap, letters, kafka=given))
        assert "this dead letter cannot be written" in "".join(raised.value.__notes__)
        assert tables('select "offset" from orders') == [(0,)]
    resource: Any = ConfigResource("TOPIC", letters)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "3000000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = lab.kafka.admin()  # kept until it has answered
    admin.incremental_alter_configs([resource])[resource].result(30)
    run(lab, source, Topic(lab.kafka.bootstrap, letters, kafka=options))
    assert [letter.value for letter in committed(lab.kafka.bootstrap, letters)] == [large.encode()]
    assert tables('select "offset" from orders order by 1') == [(0,), (2,)]
