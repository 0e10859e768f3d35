"""The order in which an output that keeps a mark is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import BatchVoid, GuaranteeRefused, MarkBehind, MarkMoved, RangeGone, SinkError
from offsetkeeper.sinks import Lander, Outputs, Seen
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore

BATCH = Batch("g", "token", 7, (OffsetRange("t", 0, 10, 15),))
FRAME: Any = None


class Output:
    """Notes what it is asked, and answers with the marks it is given."""

    def __init__(self, *marks: OutputMark | None, land: type[Exception] | None = None) -> None:
        self.asked: list[str] = []
        self._marks = [*marks]
        self._error = land

    def prepare(self, _store: object, _guarantee: object) -> Lander:
        """See `Sink.prepare`."""

        def stage(_frame: object, _batch: object) -> str:
            self.asked.append("stage")
            return "staged"

        def seen(_: object) -> Seen:
            self.asked.append("seen")
            return Seen(self._marks.pop(0))

        def land(_key: object, _seen: object, mark: OutputMark, staged: object) -> None:
            self.asked.append("void" if mark.void and staged is None else "land")
            if self._error is not None:
                raise self._error

        return Lander(stage, seen, land)

    def once(self) -> Once:
        """Return the rule over it."""
        return Once(self.prepare(None, None), "")


def test_rows_land_only_after_their_topics_were_looked_at() -> None:
    """Of a topic that was made again meanwhile, other records were read."""
    output = Output(None, None)

    def gone() -> None:
        raise RangeGone(str(output.asked))

    with pytest.raises(RangeGone, match=r"\['seen', 'stage'\]"):
        output.once().write(FRAME, BATCH, check=gone)
    assert "land" not in output.asked


def test_an_output_that_computes_the_frame_late_checks_it_too() -> None:
    asked: list[str] = []
    lander = Output(None, None).prepare(None, None)

    def land(*arguments: Any) -> None:
        asked.append("land")
        arguments[4]()

    once = Once(replace(lander, land=land, late=True), "")
    once.write(FRAME, BATCH, check=lambda: asked.append("check"))
    assert asked == ["check", "land", "check"]


def test_a_batch_that_is_there_is_not_read() -> None:
    output = Output(OutputMark.of(BATCH))
    output.once().write(FRAME, BATCH)
    assert output.asked == ["seen"]


def test_a_batch_that_is_partly_there_is_written_and_its_rest_made_void_where_it_is_dropped() -> None:
    part = OutputMark.of(BATCH)._replace(partly=True)
    written, dropped = Output(part, part), Output(part)
    written.once().write(FRAME, BATCH)
    assert written.asked == ["seen", "stage", "seen", "land"]
    assert dropped.once().make_void(BATCH).landing is Landing.CUT
    assert dropped.asked == ["seen", "void"]
    with pytest.raises(BatchVoid):
        Output(part._replace(void=True)).once().write(FRAME, BATCH)


def test_a_mark_that_moved_is_looked_up_and_told_where_the_batch_is_not_there() -> None:
    there = Output(None, None, OutputMark.of(BATCH), land=MarkMoved)
    there.once().write(FRAME, BATCH)
    lacking = Output(None, None, None, land=MarkMoved)
    with pytest.raises(MarkMoved):
        lacking.once().write(FRAME, BATCH)
    assert lacking.asked == ["seen", "stage", "seen", "land", "seen"]


def test_a_batch_is_made_void_though_the_mark_moves_meanwhile_but_not_for_ever() -> None:
    before = OutputMark.of(BATCH)._replace(sequence=6)
    moved = Output(before, OutputMark.of(BATCH), land=MarkMoved)
    assert moved.once().make_void(BATCH).landing is Landing.LANDED
    restless = Output(*[before] * 9, land=MarkMoved)
    with pytest.raises(SinkError, match="other runs keep changing the mark"):
        restless.once().make_void(BATCH)


def test_an_output_that_went_back_is_refused_before_each_landing_and_before_a_void_mark() -> None:
    """A newer mark would hide that rows are gone."""
    older, known = OutputMark.of(BATCH)._replace(sequence=5), Landed(6)
    before, between, dropped = Output(older), Output(older._replace(sequence=6), older), Output(older)
    for write in (
        lambda: before.once().write(FRAME, BATCH, known),
        lambda: between.once().write(FRAME, BATCH, known),
        lambda: dropped.once().make_void(BATCH, known),
    ):
        with pytest.raises(MarkBehind, match="the ledger says that it has batch 6: the output was restored"):
            write()
    assert [before.asked, between.asked, dropped.asked] == [["seen"], ["seen", "stage", "seen"], ["seen"]]


def test_at_most_once_is_refused_where_rows_land_once() -> None:
    """It would lose a batch at each crash, for nothing: the mark keeps it from being there twice."""
    with pytest.raises(GuaranteeRefused, match="use exactly_once"):
        Outputs.of(Output()).prepare(MemoryStore("memory://"), Guarantee.AT_MOST_ONCE)


@pytest.mark.parametrize("void", [False, True])
def test_slots_go_on_with_the_mark_of_those_that_have_the_batch(*, void: bool) -> None:
    """A release that named no target has landed a part; with another mark, the first slot would be written twice."""
    found, landed = OutputMark.of(BATCH)._replace(partly=True), list[OutputMark]()
    lander = Lander(lambda *_: "rows", lambda _: Seen(found), lambda *given: landed.append(given[2]), writes_to="topic")
    once = Once(lander, "")
    if void:
        assert once.make_void(BATCH).landing is Landing.CUT
    else:
        once.write(FRAME, BATCH)
    assert landed == [OutputMark.of(BATCH, void=void)]
