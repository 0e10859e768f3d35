"""At 80 columns: `lag` keeps the column that explains the status, and `show` of a large group is short."""

from __future__ import annotations

import pytest

from offsetkeeper import Position, TopicPartition
from offsetkeeper.cli import inspect, lag_groups, lag_table
from offsetkeeper.cli.output import say_table
from offsetkeeper.core.bounds import Standing
from offsetkeeper.operate.lag import Lag, Speed
from offsetkeeper.operate.status import Status

KEPT = {
    Status.LOSING_DATA: "retention",
    Status.GROWING: "read/s",
    Status.STALLED: "age",
    Status.BEHIND: "age",
}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    for module in ("output", "lag_table"):
        monkeypatch.setattr(f"offsetkeeper.cli.{module}.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")


def lags(topic: str, partitions: int = 3) -> list[Lag]:
    """Of a topic, far behind."""
    tps = [TopicPartition(topic, number) for number in range(partitions)]
    return [Lag(tp, 1_000_000, 0, 123_456_789, 1_234_567, 0, 586_800.0, 0.97) for tp in tps]


@pytest.mark.parametrize("topic", ["orders", "orders.of.the.warehouse", "orders.of.the.northern.warehouse.v2"])
@pytest.mark.parametrize("status", KEPT)
def test_the_column_that_explains_the_status_stays(
    status: Status, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lags(topic)
    speed = {lag.topic_partition: Speed(1234.5, 2345.6) for lag in found}
    lag_table.say_lag("shop", status, found, speed, lag_table.Sort.PARTITION, None)
    said = capsys.readouterr().out
    assert said.startswith(f"shop: {status}, ")
    table, _, left = said.partition("Left out")
    assert max(map(len, table.splitlines()[1:])) <= 80
    assert KEPT[status] in table
    assert KEPT[status] not in left
    assert topic in table


def test_the_groups_in_a_list_keep_it_too() -> None:
    spare = lag_groups._spare([Status.LOSING_DATA, Status.OK])
    assert spare[-1] == "retention"
    assert lag_groups._spare([Status.LOSING_DATA, Status.HELD_BACK])[-2:] == ["held back", "retention"]
    assert sorted(lag_groups._spare([])) == sorted(spare)


def test_a_column_without_a_value_is_left_out_before_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as "lost" and "held back", which nearly always have none, and not the time of the last commit."""
    row = ("shop", "stopped", 1234, None, "1 h", "12%", None, None, None, "1 h 5 min ago")
    say_table(lag_groups._COLUMNS, [row], spare=lag_groups._spare([Status.STOPPED]))
    said = capsys.readouterr().out
    assert "1 h 5 min ago" in said
    assert "too narrow: lost, held back, caught up" in said
    assert "a pipe (| cat) shows all" in said


def test_the_next_step_of_the_group_is_said_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lag_table.say_next("my shop", Status.HELD_BACK)
    assert capsys.readouterr().out.startswith("Next for my shop: offsetkeeper doctor 'my shop' names the open")
    lag_table.say_next("my shop", Status.OK)
    monkeypatch.setattr("offsetkeeper.cli.lag_table.on_terminal", lambda: False)  # a pipe has the table alone
    lag_table.say_next("my shop", Status.HELD_BACK)
    assert capsys.readouterr().out == ""


def test_a_large_group_has_a_line_for_each_topic_and_those_partitions_that_need_a_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {lag.topic_partition: lag for topic in ("clicks", "orders") for lag in lags(topic, 100)}
    positions = {tp: Position(1_000_000 + tp.partition) for tp in found}
    worst = lag_table.usual_top(len(positions))
    inspect._say_lags(positions, found, worst)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) < 10
    assert "123456700" in said.out.replace(",", "")  # a hundred times 1,234,567 are behind in each topic
    assert "200 partitions. --all shows each" in said.err
    gone = Lag(TopicPartition("orders", 7), 1_000_007, 0, 5, None, 0, None, None, standing=Standing.BEYOND_END)
    inspect._say_lags(positions, {**found, gone.topic_partition: gone}, worst)
    assert "beyond the end" in capsys.readouterr().out
    inspect._say_lags(positions, {}, worst)
    assert "behind" not in capsys.readouterr().out
    inspect._say_lags(positions, found, None)
    assert len(capsys.readouterr().out.splitlines()) > 200


def test_a_small_group_has_a_line_for_each_partition_and_so_has_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lag_table.usual_top(20) is None
    assert lag_table.usual_top(21) == 10
    monkeypatch.setattr("offsetkeeper.cli.lag_table.on_terminal", lambda: False)
    assert lag_table.usual_top(200) is None
