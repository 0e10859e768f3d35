"""The preview of a large reset on a terminal: a line for each topic, and those partitions that change the most."""

from __future__ import annotations

from typing import cast

import pytest

from offsetkeeper import Ledger, Position, TopicPartition
from offsetkeeper.cli.changes import tell
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Snapshot
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.reset_goal import Goal, make_reset
from offsetkeeper.stores.memory import MemoryStore


def preview(partitions: int, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Return the lines and the errors of the preview of a reset that skips 100 offsets more of each partition."""
    tps = {TopicPartition("orders", number): number for number in range(partitions)}
    positions = {tp: Position(0, "id") for tp in tps}
    bounds = {tp: Bounds(0, 100_000, "id") for tp in tps}
    goal = Goal({tp: Position(100 * number) for tp, number in tps.items() if number})
    made = make_reset(Snapshot("shop", positions=positions), "memory://large", goal, bounds)
    ledger = Ledger(MemoryStore("memory://large"), "shop")
    ledger.load()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("offsetkeeper.cli.changes.reset_lag", lambda *_: {})
        tell(ledger, cast("KafkaCluster", None), made, execute=False, force=False, as_json=False)
    said = capsys.readouterr()
    return [" ".join(line.replace("│", " ").split()) for line in said.out.splitlines()], said.err


def test_on_a_terminal_the_sums_and_the_largest_changes_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("output", "lag_table"):
        monkeypatch.setattr(f"offsetkeeper.cli.{module}.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines, told = preview(61, capsys)
    rows = [line for line in lines if line.startswith("orders ")]
    assert rows[0] == f"orders all - - 0 {100 * sum(range(61))} -"
    assert rows[1:] == [f"orders {at // 100} 0 {at} 0 {at} {at}" for at in range(6000, 5000, -100)]
    assert told == "offsetkeeper: the 10 largest changes of 60 partitions are shown; a pipe and --json have all\n"
    lines, told = preview(21, capsys)
    assert (len([line for line in lines if line.startswith("orders ")]), told) == (20, "")


def test_a_pipe_gets_a_line_for_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    lines, told = preview(61, capsys)
    assert (len([line for line in lines if line.startswith("orders ")]), told) == (60, "")
