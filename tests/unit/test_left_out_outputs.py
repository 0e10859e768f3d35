"""Outputs that get no batch, or by other code than the others, from one release to the next: what a start says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.core.batch import Output
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.left_out import gone, missed, missed_text
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Entry, Landed, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import MarkMoved
from offsetkeeper.sinks import Lander, Outputs, Seen
from offsetkeeper.sinks.sink import Joiner, MarkKey
from offsetkeeper.stores import open_store
from unit.test_hostile_starts import A, Broker, Frame, Scene


class Shelf:
    """An output that keeps a mark.

    Attributes:
        writes_to: its name.
        rows: partition and offset of each row.
        fails, lost: whether a run dies before or after a batch lands here.
    """

    fails = lost = False

    def __init__(self, name: str) -> None:
        self.writes_to = name
        self.rows: list[tuple[int, int]] = []
        self._marks: dict[MarkKey, OutputMark] = {}

    def prepare(self, _store: object, _guarantee: object) -> Lander:
        """See `Sink.prepare`."""

        def land(key: MarkKey, seen: Seen, mark: OutputMark, staged: Sequence[OffsetRange] | None) -> None:
            if seen.mark != self._marks.get(key):
                raise MarkMoved("moved")
            if self.fails:
                raise RuntimeError("dead")
            self._land(staged or ())
            self._marks[key] = mark
            if self.lost:
                raise RuntimeError("dead")

        return Lander(lambda frame, _: frame.ranges, lambda key: Seen(self._marks.get(key)), land)

    def _land(self, ranges: Sequence[OffsetRange]) -> None:
        self.rows += [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]


class Joined(Shelf):
    """The same in the ledger's transaction."""

    def prepare(self, _store: object, _guarantee: object) -> Joiner:  # type: ignore[override]
        """See `Sink.prepare`."""

        def stage(frame: Any, _: object) -> Any:
            return lambda _: self._land(frame.ranges)

        def follow(_: object, key: MarkKey, mark: OutputMark) -> None:
            self._marks[key] = mark

        return Joiner(stage, self._marks.get, follow)


def offsets(*numbers: int) -> list[tuple[int, int]]:
    """Return these offsets of the first partition."""
    return [(0, number) for number in numbers]


@pytest.fixture(params=[Shelf, Joined])
def shelves(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {name: request.param(name) for name in ("a", "b")}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A group whose store lends its transaction, and a topic of two records."""
    made = Scene(Broker((0, 2)))
    with closing(open_store(f"sqlite:///{tmp_path}/offsets.db")) as made.store:  # type: ignore[assignment]
        yield made


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of outputs since the last call."""
    found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    caplog.clear()
    return [text for text in found if "output" in text]


def test_an_output_that_one_release_left_out_is_told_there_and_where_it_is_back(
    scene: Scene, shelves: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its mark was that of the ledger's note, so the start took it for complete: its rows were missing in silence."""
    a, b = shelves.values()
    both = Outputs(**shelves)
    scene.run(outputs=both)
    assert told(caplog) == []
    for end in (4, 6):
        scene.broker.held_now[0] = (0, end)
        scene.run(outputs=Outputs(a=a))
    [left] = told(caplog)  # at the first start without it
    assert left.startswith("group 'g': the run before wrote to output 'b', and this program does not.")
    scene.broker.held_now[0] = (0, 7)
    scene.run(outputs=both)
    assert (a.rows, b.rows) == (offsets(0, 1, 2, 3, 4, 5, 6), offsets(0, 1, 6))
    [lacks] = told(caplog)
    assert "output 'b' has no mark of batches from 2 to 3. A release committed them without this output" in lacks
    ledger = Ledger(scene.store, "g")
    first, second = [each for each in ledger.history()[::-1] if each.event == "commit" and each.sequence in {2, 3}]
    assert f"version {first.version}: t 0 2 4; version {second.version}: t 0 4 6" in lacks
    assert f"offsetkeeper replay g --version {first.version} --process module:function" in lacks


def test_an_output_is_told_again_until_it_gets_its_next_batch(
    scene: Scene, shelves: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    both = Outputs(**shelves)
    scene.run(outputs=both)
    scene.broker.held_now[0] = (0, 4)
    scene.run(outputs=Outputs(a=shelves["a"]))
    told(caplog)
    for _ in range(2):
        scene.run(outputs=both)  # there is nothing to read
        assert [text for text in told(caplog) if "output 'b' has no mark of batch 2. A release" in text]
    scene.broker.held_now[0] = (0, 5)
    for lacks in (1, 0):
        scene.run(outputs=both)
        assert len(told(caplog)) == lacks
    assert shelves["b"].rows == offsets(0, 1, 4)


def test_a_renamed_output_is_told_neither_there_nor_on_the_way_back(
    scene: Scene, shelves: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = shelves.values()
    for end, outputs in (
        (2, Outputs(a=a, b=b)),
        (4, Outputs(a=a, c=b)),
        (6, Outputs(a=a, b=b)),
        (6, Outputs(b=b, a=a)),
    ):
        scene.broker.held_now[0] = (0, end)
        scene.run(outputs=outputs)
    assert told(caplog) == []
    assert a.rows == b.rows == offsets(*range(6))


def test_what_is_gone_has_no_other_name_and_is_no_place_for_dead_letters() -> None:
    before = {
        "a": Output("Table x"),
        "b": Output("Table y"),
        "f": Output("Function"),
        "dead_letters": Output("Table z"),
    }
    assert gone(before, {"a": Output("Table x")}) == ["b", "f"]
    assert gone(before, {"a": Output("Table x"), "g": Output("Function")}) == ["b"]
    assert gone(before, {"one": Output("Table x"), "two": Output("Table y")}) == ["f"]
    assert gone(before, {"a": Output("Table x"), "b": Output("Topic y"), "f": Output("Function")}) == []
    assert gone({}, {"a": Output("Table x")}) == []


def entry(sequence: int, event: str = "commit", reason: str = "") -> Entry:
    """Return an entry of the history."""
    ranges = (OffsetRange(*A, sequence, sequence + 1),)
    return Entry(sequence, event, f"change-{sequence}", 0, "run", reason, sequence=sequence, ranges=ranges)


HISTORY = (entry(9, "abandon"), entry(8, reason="quarantined: ValueError"), entry(7), entry(6), entry(5))
LEDGER = Snapshot("g", sequence=9, outputs={"a": Output("Table x")}, landed={"a": Landed(7), "b": Landed(5)})


@pytest.mark.parametrize(
    ("ledger", "last", "wanted"),
    [
        (LEDGER, {"a": 7, "b": 5}, {"b": [6, 7]}),
        (LEDGER, {"a": 7, "b": 7}, {}),
        (LEDGER, {"a": 7, "b": 0}, {}),
        (LEDGER, {"a": 7, "b": 7, "dead_letters": 4}, {}),
        (replace(LEDGER, landed={"c": Landed(7)}), {"a": 7, "b": 5}, {}),
        (replace(LEDGER, landed={"c": Landed(7)}, outputs={"c": Output("Table y")}), {"a": 7, "b": 5}, {}),
        (replace(LEDGER, landed={"c": Landed(7)}, outputs={"c": Output("Table x")}), {"a": 7, "b": 5}, {"b": [6, 7]}),
        (replace(LEDGER, landed={"dead_letters": Landed(8)}), {"a": 7, "b": 5}, {"b": [6, 7]}),
    ],
    ids=["left out", "dropped, or a letter", "new", "letters", "a name that is gone", "renamed", "another", "beside"],
)
def test_which_batches_an_output_lacks(ledger: Snapshot, last: dict[str, int], wanted: dict[str, list[int]]) -> None:
    """Only batches of records that were committed count, and none that an output of another name may have."""
    found = missed(ledger, {"a": Output("Table x"), "b": Output("Table y")}, last, HISTORY)
    assert {name: [each.sequence for each in commits] for name, commits in found.items()} == wanted


def splits_at(offset: int) -> Callable[[Any, object], dict[str, Frame]]:
    """Return a function that sends the records of a batch from an offset on to a, and those before it to b."""

    def split(frame: Any, _: object) -> dict[str, Frame]:
        [r] = frame.ranges
        return {"a": Frame((r._replace(start=offset),)), "b": Frame((r._replace(end=offset),))}

    return split


@pytest.mark.parametrize(("now", "twice", "never"), [(4, [], []), (3, [], [3]), (5, [4], [])])
def test_a_batch_that_one_output_has_by_other_code_than_the_others_get_it_is_told(
    scene: Scene, caplog: pytest.LogCaptureFixture, now: int, twice: list[int], never: list[int]
) -> None:
    """Nothing compares the code of two releases, so the start tells what an operator has to compare."""
    scene.broker.held_now[0], (a, b) = (0, 6), (Shelf("a"), Shelf("b"))
    b.fails = True
    with pytest.raises(RuntimeError):
        scene.run(outputs=Outputs(a=a, b=b), process=splits_at(4))
    assert (a.rows, told(caplog)) == (offsets(4, 5), [])
    b.fails = False
    scene.run(outputs=Outputs(a=a, b=b), process=splits_at(now))
    rows = [offset for _, offset in a.rows + b.rows]
    assert [n for n in range(6) if rows.count(n) != 1] == twice + never
    [warned] = told(caplog)
    assert ": output 'a' got it from an earlier run, and output 'b' gets it from this one." in warned
    assert warned.endswith("\nt 0 0 6")


@pytest.mark.parametrize("case", ["no output has it", "no function", "all have it"])
def test_a_batch_that_all_outputs_get_by_the_same_code_is_not_told(
    scene: Scene, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    first, second = Shelf("a"), Shelf("b")
    (first if case == "no output has it" else second).fails = True
    process = None if case == "no function" else splits_at(1)
    if case == "all have it":
        second.fails, second.lost = False, True
    with pytest.raises(RuntimeError):
        scene.run(outputs=Outputs(a=first, b=second), process=process)
    first.fails = second.fails = second.lost = False
    scene.run(outputs=Outputs(a=first, b=second), process=process)
    assert sorted(first.rows + second.rows) == offsets(0, 1) if process else first.rows == second.rows == offsets(0, 1)
    assert [text for text in told(caplog) if "got it from an earlier run" in text] == []


def test_a_history_that_does_not_reach_back_is_told() -> None:
    """Its text named the oldest batch that it knew as the first one that is missing."""
    entries = [Entry(each, "commit", "id", 0, "me", sequence=each) for each in range(9, 4, -1)]
    for behind, whole in ((5, True), (4, False)):  # the last batch that the output has
        commits = [each for each in reversed(entries) if each.sequence > behind]
        text = missed_text("g", "b", commits, entries)
        assert ("batches before 5 may be missing too" in text) is not whole
