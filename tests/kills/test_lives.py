"""One short life on a real cluster: an executor and the broker are killed, and each record is counted.

`make chaos` plays long ones, with everything that can be drawn.
"""

from __future__ import annotations

from pathlib import Path

from kills.cluster import machine
from kills.draw import Act, Drawn, Program
from kills.life import Life, records_of
from kills.table import Table

KILLS = ("executor killed", "server killed")
PROGRAM = Program("sqlite", ("SQLite", "Files"), "run", "packed", frozenset(), 100)


def test_each_record_is_there_once_after_an_executor_and_the_broker_were_killed(tmp_path: Path) -> None:
    drawn = Drawn(1, (PROGRAM,), tuple(Act(each, 0, 0.5, 0.5, settled=True) for each in KILLS))
    with machine(tmp_path, workers=1) as here:
        life = Life(here, drawn, lambda _: None)
        outcome, table = life.play(), Table(1)
        assert not outcome.wrong, outcome.notes
        table.add(drawn, outcome)
        told = table.as_dict(1)
        assert told["kills by kind"] == dict.fromkeys(KILLS, 1)
        assert told["rows"] == told["records"] > 0
        assert (told["lost"], told["doubled"], told["wrong"], told["stuck"], told["failed"]) == (0, 0, 0, 0, 0)
        # What is damaged by hand is found.
        [pipeline] = life.pipelines
        rows = pipeline.settings.places()["sqlite"]
        rows._do("update orders set value = 'other' where number = 0")
        rows._do("delete from orders where number = 1")
        rows._do("insert into orders select * from orders where number = 2")
        life.count(pipeline, records_of(here.served("kafka").server, pipeline.settings.topic))
    found = outcome.verdict
    assert (found.lost, found.doubled, found.wrong) == (1, 1, 1), outcome.notes
