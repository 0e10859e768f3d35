"""The judge of `make chaos` finds what is wrong with rows, and a seed always draws the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kills.draw import ACTS, OUTPUTS, PROMOTED, STORES, draw, fits, never
from kills.judge import Message, Verdict, open_book, recoveries, summary
from kills.life import Outcome
from kills.places import OwnTopic, place_of
from kills.table import Table
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from swarm.records import Program, Row

TOPIC, BATCH = "orders", "billing/token/1"
"""Kafka has three records; two are committed."""
MESSAGES = [Message(TOPIC, 0, offset, 1_000_000 + offset, "key", f"value {offset}") for offset in range(3)]


def counted(rows: list[Row], keeps: str = "exactly_once", pending: Batch | None = None) -> tuple[int, int, int]:
    """Return how many are lost, doubled and wrong."""
    now = Snapshot("billing", positions={TopicPartition(TOPIC, 0): Position(2, "id")}, pending=pending)
    verdict = Verdict()
    verdict.count(open_book(now, Program(), {"o": keeps}, MESSAGES), "o", rows)
    return verdict.lost, verdict.doubled, verdict.wrong


def rows_of(*offsets: int, batch: str = BATCH) -> list[Row]:
    """Return the rows of records, as they are to be."""
    return [Row(n, 0, TOPIC, 0, n, "key", f"value {n}", None, 1, batch) for n in offsets]


def test_a_life_that_is_right_has_nothing_lost_doubled_or_wrong() -> None:
    assert counted(rows_of(0, 1)) == (0, 0, 0)


def test_a_life_that_loses_a_record_is_found() -> None:
    assert counted(rows_of(1)) == (1, 0, 0)
    assert counted([]) == (2, 0, 0)
    assert counted(rows_of(1), keeps="at_least_once") == (1, 0, 0)


def test_a_life_that_doubles_a_record_is_found() -> None:
    assert counted(rows_of(0, 1, 1)) == (0, 1, 0)
    assert counted([*rows_of(0, 1), *rows_of(0, 1, batch="billing/other/2")]) == (0, 2, 0)
    assert counted([*rows_of(0, 1), *rows_of(1, batch="billing/other/2")], keeps="at_least_once") == (0, 0, 0)


def test_a_life_that_changes_a_record_is_found() -> None:
    right = rows_of(0, 1)
    assert counted([right[0], right[1]._replace(value="other")]) == (0, 0, 1)
    assert counted([*right, *rows_of(7)]) == (0, 0, 1)


def test_a_record_that_is_written_and_not_committed_is_doubled_but_in_a_pending_batch() -> None:
    early = [*rows_of(0, 1), *rows_of(2, batch="billing/token/2")]
    assert counted(early) == (0, 1, 0)
    pending = Batch("billing", "token", 2, (OffsetRange(TOPIC, 0, 2, 3),))
    assert counted(early, pending=pending) == (0, 0, 0)


def test_a_record_that_kafka_has_twice_is_a_defect_of_the_producer() -> None:
    now = Snapshot("billing", positions={TopicPartition(TOPIC, 0): Position(2, "id")})
    with pytest.raises(AssertionError, match="Kafka has record 2 twice"):
        open_book(now, Program(), {"o": "exactly_once"}, [*MESSAGES, MESSAGES[2]._replace(offset=3)])


def test_no_two_pipelines_share_a_topic_for_their_rows() -> None:
    folders = [Path("/life-1/0"), Path("/life-1/1"), Path("/life-2/0")]
    places = [place_of("Topic", "topic", each, brokers="", store="", url="") for each in folders]
    assert [place.topic for place in places if isinstance(place, OwnTopic)] == [
        "out-life-1-0-topic",
        "out-life-1-1-topic",
        "out-life-2-0-topic",
    ]


def test_a_recovery_ends_when_the_last_pipeline_has_committed_again() -> None:
    over = [("killed", 1.0), ("killed", 4.0), ("cut", 5.0)]
    found = recoveries(over, [[0.5, 2.0, 4.5, 9.0], [3.0, 8.0]])
    assert found == {"killed": [2.0, 4.0], "cut": [4.0]}
    assert recoveries([("killed", 8.5)], [[9.0], [8.0]]) == {}
    assert summary(found)["killed"] == {"acts": 2, "median": 3.0, "max": 4.0}
    assert summary(found)["all"]["acts"] == 3
    assert summary({}) == {}


def test_a_life_is_drawn_from_its_seed_alone() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert draw(1) != draw(2)


def test_every_kind_is_drawn_and_what_is_left_out_is_told() -> None:
    lives = [draw(seed) for seed in range(200)]
    assert never(lives) == []
    assert never([]) == never([draw(1, acts=0, programs=0)])
    programs = [program for life in lives for program in life.programs]
    assert all(fits(output, program.store) for program in programs for output in program.outputs)
    assert all([act.what for act in life.acts].count(PROMOTED) <= 1 for life in lives)
    few = [draw(seed, outputs=["Files"], stores=["redis"]) for seed in range(20)]
    assert {each for life in few for program in life.programs for each in program.outputs} == {"Files"}
    assert {f"output {each}" for each in OUTPUTS if each != "Files"} <= {*never(few)}
    assert {f"store {each}" for each in STORES if each != "redis"} <= {*never(few)}
    assert len({act.what for life in lives for act in life.acts}) == len(ACTS)


def test_a_table_counts_each_kill_once_and_tells_what_is_wrong() -> None:
    table, outcome = Table(1), Outcome(stuck=1, notes=["it is stuck"])
    outcome.done.update({"executor killed": 3, "server killed": 2, "server killed: kafka": 2, "server silent": 1})
    table.add(draw(1), outcome)
    told = table.as_dict(60)
    assert told["kills"] == 5
    assert told["kills by kind"] == {"executor killed": 3, "server killed": 2}
    assert told["acts by server"] == {"server killed: kafka": 2}
    assert (told["stuck"], told["findings"], table.wrong) == (1, ["seed 1: it is stuck"], True)
