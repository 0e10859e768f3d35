"""One short life on a real cluster: an executor and a broker are killed, and each record is counted.

`make chaos` plays long ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kills.cluster import machine
from kills.draw import Act, draw
from kills.life import Life
from kills.table import Table

ACTS = ("executor killed", "server killed")


def test_each_record_is_there_once_after_an_executor_and_the_broker_were_killed(tmp_path: Path) -> None:
    drawn = draw(1, outputs=["SQLite", "Files"], stores=["sqlite"], programs=1)
    drawn = replace(drawn, acts=tuple(Act(each, 0, 0.5, 0.5, settled=True) for each in ACTS))
    with machine(tmp_path, workers=1) as here:
        outcome = Life(here, drawn, lambda _: None).play()
    assert not outcome.wrong, outcome.notes
    table = Table(1)
    table.add(drawn, outcome)
    told = table.as_dict(1)
    assert told["kills by kind"] == dict.fromkeys(ACTS, 1)
    assert told["rows"] == told["records"] > 0
    assert (told["lost"], told["doubled"], told["wrong"], told["stuck"]) == (0, 0, 0, 0)
