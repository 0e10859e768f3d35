"""Traces: what a run writes, and that the checker finds each rule in a trace that was changed by hand."""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core import trace
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Entry
from offsetkeeper.engines.traced import traced
from offsetkeeper.errors import SettingsError, StoreError, StoreUnavailable
from offsetkeeper.operate.traces import RULES, check_lines, check_traces
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.sinks.sink import Lander, MarkKey, Seen
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.faults import Fault, faulty
from offsetkeeper.testing.simulator.explore import replay, wander
from offsetkeeper.testing.simulator.scenarios import scenarios
from offsetkeeper.testing.simulator.traces import lines_of

Lines = list[dict[str, Any]]
MARKED, TWO, APART, FIRST, DROPPED = (
    "exactly once, marked; three owners",
    "exactly once, two marked; three owners",
    "at least once; three owners",
    "at most once; three owners",
    "exactly once, marked; operators",
)


@functools.cache
def history(name: str) -> Lines:
    """Return the trace of a history of a scenario: the first one that settles a batch, or the one without a fault."""
    with lines_of() as lines:
        assert replay(scenarios()[name], (), 0, 0) is None
    seed = 0
    while name == DROPPED and not places(lines, "send", "settle"):
        seed += 1
        with lines_of() as lines:
            wander([scenarios()[name]], seed=f"dropped {seed}", histories=1, faults=0)
    return lines


def places(lines: Lines, event: str, entry: str = "") -> list[int]:
    """Return the places of the lines of an event; of a change, if `entry` is its name."""
    named = [at for at, line in enumerate(lines) if line["event"] == event]
    return [at for at in named if not entry or lines[at]["entry"]["event"] == entry]


def answer_of(lines: Lines, at: int) -> int:
    """Return the place of the answer to a change."""
    return next(number for number in places(lines, "answer") if number > at)


def another_event_than_the_table_has(lines: Lines) -> None:
    lines[places(lines, "send", "place")[0]]["after"]["given"] = "more"
    lines[places(lines, "send", "place")[0]]["after"]["generation"] = 7


def a_change_of_somebody_else(lines: Lines) -> None:
    lines[places(lines, "send", "begin")[0]]["owner"] = "somebody"


def an_epoch_that_stays(lines: Lines) -> None:
    sent = lines[places(lines, "send", "acquire")[0]]["after"]
    sent["epoch"] = sent["owner"]["epoch"] = 0


def a_version_that_is_made_twice(lines: Lines) -> None:
    at = places(lines, "send", "acquire")[0]
    again = copy.deepcopy(lines[at : at + 2])
    for line in again:
        line["run"] = "another"
        line["change"][1] = "other"
    again[0]["after"]["change_id"] = again[0]["entry"]["change_id"] = "other"
    lines[at + 1 : at + 1] = again


def a_version_that_is_left_out(lines: Lines) -> None:
    sent = lines[places(lines, "send", "release")[-1]]
    answer = lines[answer_of(lines, lines.index(sent))]
    for line in (sent, answer):
        line["change"][0] += 1
    sent["after"]["version"] += 1


def a_position_that_goes_back(lines: Lines) -> None:
    for offsets in lines[places(lines, "send", "commit")[1]]["after"]["offsets"].values():
        offsets.update(dict.fromkeys(offsets, 0))


def a_position_that_disappears(lines: Lines) -> None:
    after = lines[places(lines, "send", "release")[0]]["after"]
    after.update(offsets={}, topic_ids={}, holds={}, clusters={}, leader_epochs={})


def a_topic_that_a_commit_exchanges(lines: Lines) -> None:
    after = lines[places(lines, "send", "commit")[0]]["after"]
    after["topic_ids"] = {
        topic: {"new": [*parts]} for topic, ids in after["topic_ids"].items() for parts in ids.values()
    }


def ranges_that_do_not_follow(lines: Lines) -> None:
    for ranges in lines[places(lines, "send", "commit")[1]]["entry"]["ranges"].values():
        ranges[0][1] -= 1


def a_commit_that_moves_more(lines: Lines) -> None:
    for offsets in lines[places(lines, "send", "commit")[0]]["after"]["offsets"].values():
        offsets.update({number: offset + 1 for number, offset in offsets.items()})


def an_id_with_two_sets_of_ranges(lines: Lines) -> None:
    for ranges in lines[places(lines, "send", "begin")[0]]["entry"]["ranges"].values():
        ranges[0][2] += 1


def a_sequence_that_jumps(lines: Lines) -> None:
    lines[places(lines, "send", "begin")[0]]["after"]["sequence"] += 1


def a_mark_that_drops_the_batch(lines: Lines) -> None:
    lines[places(lines, "send", "mark")[0]]["after"]["pending"] = None


def a_commit_beside_an_unsettled_batch(lines: Lines) -> None:
    after = lines[places(lines, "send", "begin")[0]]["after"]
    after["unsettled"] = {**after["pending"], "sequence": after["sequence"], "moved": []}


def a_settled_batch_that_was_forgotten(lines: Lines) -> None:
    sent = lines[places(lines, "send", "settle")[0]]
    sent["entry"]["event"] = "wait"


def a_change_that_was_said_not_to_be_stored(lines: Lines) -> None:
    lines[answer_of(lines, places(lines, "send", "begin")[0])]["outcome"] = "not stored"


def a_ledger_that_is_read_after_an_older_one(lines: Lines) -> None:
    at = answer_of(lines, places(lines, "send", "begin")[0]) + 1
    begun, placed = lines[at - 2], lines[places(lines, "send", "place")[0]]
    of = {name: begun[name] for name in ("group", "store", "owner")}
    reads = [(placed["change"], placed["after"]), (begun["change"], begun["after"])]
    lines[at:at] = [
        {**of, "run": "reader", "event": "load", "ledger": key, "content": content} for key, content in reads
    ]


def a_change_after_one_that_is_not_known(lines: Lines) -> None:
    lines[answer_of(lines, places(lines, "send", "begin")[0])]["outcome"] = "unknown"


def a_change_that_a_run_takes_for_stored(lines: Lines) -> None:
    at = places(lines, "send", "release")[-1]
    lines[answer_of(lines, at)]["outcome"] = "unknown"


def a_change_that_a_run_takes_for_refused(lines: Lines) -> None:
    lines[places(lines, "told")[1]].update(outcome="conflict", error="VersionConflict")


def a_batch_that_was_not_begun(lines: Lines) -> None:
    at = places(lines, "send", "begin")[0]
    del lines[at : at + 2]


def other_ranges_than_those_that_were_begun(lines: Lines) -> None:
    lines[places(lines, "write")[0]]["ranges"][0][3] += 1


def a_write_after_another_owner_was_seen(lines: Lines) -> None:
    at, begun = places(lines, "write")[0], lines[places(lines, "send", "begin")[0]]
    content = {**begun["after"], "version": 99, "change_id": "x", "owner": {"id": "new", "epoch": 9, "name": ""}}
    of = {name: begun[name] for name in ("group", "store", "owner", "run")}
    lines.insert(at, {**of, "event": "load", "ledger": [99, "x"], "content": content})


def an_output_that_is_written_again(lines: Lines) -> None:
    at = places(lines, "wrote")[0]
    lines.insert(at + 1, copy.deepcopy(lines[at - 1]))


def an_output_that_is_written_though_it_is_noted(lines: Lines) -> None:
    at = answer_of(lines, places(lines, "send", "mark")[0])
    land = copy.deepcopy(lines[places(lines, "land")[0]])
    lines.insert(at + 1, land)


def an_output_that_is_not_noted(lines: Lines) -> None:
    at = places(lines, "send", "mark")[0]
    del lines[at : at + 2]


def a_batch_that_lands_twice(lines: Lines) -> None:
    at = places(lines, "landed")[0]
    lines.insert(at + 1, copy.deepcopy(lines[at]))


def a_batch_that_lands_in_two_versions_of_a_table(lines: Lines) -> None:
    for number, at in enumerate(places(lines, "landed")):
        lines[at]["target"] = str(number)
    a_batch_that_lands_twice(lines)
    lines[places(lines, "landed")[1]]["target"] = "9"


def a_batch_that_is_written_before_its_commit(lines: Lines) -> None:
    at = places(lines, "send", "commit")[0]
    lines[at : at + 4] = [lines[at + 3], *lines[at : at + 3]]


def a_batch_that_is_written_twice(lines: Lines) -> None:
    at = places(lines, "write")[0]
    lines.insert(at + 1, copy.deepcopy(lines[at]))


def a_commit_of_what_was_not_written(lines: Lines) -> None:
    del lines[places(lines, "wrote")[0]]


def a_commit_of_what_did_not_land(lines: Lines) -> None:
    lines[places(lines, "landed")[0]]["outcome"] = "not done"


def a_commit_that_does_not_say_where_it_landed(lines: Lines) -> None:
    after = lines[places(lines, "send", "commit")[0]]["after"]
    after["landed"] = {name: [0, target] for name, (_, target) in after["landed"].items()}


def a_batch_that_is_noted_and_not_written(lines: Lines) -> None:
    del lines[places(lines, "landed")[0]]


def a_batch_that_may_still_land(lines: Lines) -> None:
    sent = lines[places(lines, "send", "settle")[0]]
    for line in lines:
        if line["run"] == sent["run"] and line["event"] in {"look", "landed"}:
            line["mark"] = None


def a_mark_that_falls(lines: Lines) -> None:
    lines[places(lines, "land")[0]]["before"] = {**lines[places(lines, "land")[0]]["mark"], "sequence": 9}


def a_landing_under_another_name(lines: Lines) -> None:
    for at in places(lines, "land"):
        lines[at]["output"] = "new"


def a_token_of_another_owner(lines: Lines) -> None:
    lines[places(lines, "send", "commit")[0]]["entry"]["token"] = "other"


def a_pending_batch_that_a_place_moves(lines: Lines) -> None:
    sent = lines[places(lines, "send", "begin")[0]]
    sent["after"]["offsets"] = {topic: dict.fromkeys(of, 1) for topic, of in sent["after"]["offsets"].items()}


def a_mark_of_other_ranges(lines: Lines) -> None:
    lines[places(lines, "land")[0]]["mark"]["digest"] = "0" * 16


def two_landings_on_one_mark(lines: Lines) -> None:
    for at in places(lines, "landed"):
        lines[at]["before"] = None


def a_landing_over_lost_rows(lines: Lines) -> None:
    lines[places(lines, "land")[1]]["before"] = None


SEEDED: list[tuple[str, str, Callable[[Lines], None]]] = [
    ("table", MARKED, another_event_than_the_table_has),
    ("owner", MARKED, a_change_of_somebody_else),
    ("owner", MARKED, an_epoch_that_stays),
    ("version", MARKED, a_version_that_is_made_twice),
    ("version", MARKED, a_version_that_is_left_out),
    ("position", APART, a_position_that_goes_back),
    ("position", APART, a_position_that_disappears),
    ("position", APART, a_topic_that_a_commit_exchanges),
    ("continuity", APART, ranges_that_do_not_follow),
    ("continuity", APART, a_commit_that_moves_more),
    ("identity", APART, an_id_with_two_sets_of_ranges),
    ("identity", APART, a_sequence_that_jumps),
    ("dropped", TWO, a_mark_that_drops_the_batch),
    ("unsettled", MARKED, a_commit_beside_an_unsettled_batch),
    ("unsettled", DROPPED, a_settled_batch_that_was_forgotten),
    ("answer", MARKED, a_change_that_was_said_not_to_be_stored),
    ("answer", MARKED, a_ledger_that_is_read_after_an_older_one),
    ("answer", APART, a_change_after_one_that_is_not_known),
    ("answer", APART, a_change_that_a_run_takes_for_stored),
    ("answer", APART, a_change_that_a_run_takes_for_refused),
    ("begun", APART, a_batch_that_was_not_begun),
    ("begun", MARKED, a_batch_that_was_not_begun),
    ("begun", TWO, a_landing_under_another_name),
    ("identity", APART, a_token_of_another_owner),
    ("continuity", APART, a_pending_batch_that_a_place_moves),
    ("begun", APART, other_ranges_than_those_that_were_begun),
    ("fenced", APART, a_write_after_another_owner_was_seen),
    ("once", APART, an_output_that_is_written_again),
    ("once", TWO, an_output_that_is_written_though_it_is_noted),
    ("once", MARKED, a_batch_that_lands_twice),
    ("once", MARKED, a_batch_that_lands_in_two_versions_of_a_table),
    ("noted", TWO, an_output_that_is_not_noted),
    ("first", FIRST, a_batch_that_is_written_before_its_commit),
    ("first", FIRST, a_batch_that_is_written_twice),
    ("complete", APART, a_commit_of_what_was_not_written),
    ("complete", MARKED, a_commit_of_what_did_not_land),
    ("complete", MARKED, a_commit_that_does_not_say_where_it_landed),
    ("complete", TWO, a_batch_that_is_noted_and_not_written),
    ("void", DROPPED, a_batch_that_may_still_land),
    ("mark", MARKED, a_mark_that_falls),
    ("mark", MARKED, a_mark_of_other_ranges),
    ("mark", MARKED, two_landings_on_one_mark),
    ("kept", MARKED, a_landing_over_lost_rows),
]


@pytest.mark.parametrize(("rule", "name", "spoil"), SEEDED, ids=[f"{rule}-{each.__name__}" for rule, _, each in SEEDED])
def test_a_trace_that_was_changed_by_hand_breaks_its_rule(rule: str, name: str, spoil: Callable[[Lines], None]) -> None:
    assert check_lines(history(name)).broken == ()
    lines = copy.deepcopy(history(name))
    spoil(lines)
    for number, line in enumerate(lines):
        line.update({"at_ms": number} | ({"asked_ms": number} if line["event"] == "load" else {}))
    found = check_lines(lines)
    assert rule in {each.rule for each in found.broken}, found.broken
    assert all(each.lines for each in found.broken)


@pytest.mark.parametrize("name", [MARKED, APART, DROPPED])
def test_a_clock_that_is_set_back_breaks_no_rule(name: str) -> None:
    lines = copy.deepcopy(history(name))
    for at in range(len(lines) // 3, len(lines)):
        lines[at]["at_ms"] -= 1000
    assert check_lines(lines).broken == ()


def test_a_disk_that_takes_a_part_of_a_line_ends_the_trace(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would follow it would be no trace."""
    write, count = os.write, iter(range(10_000))
    monkeypatch.setattr(os, "write", lambda to, text: write(to, text[:40] if next(count) == 3 else text))
    run_once(f"sqlite:///{tmp_path}/offsets.db")
    monkeypatch.undo()
    [path] = folder.iterdir()
    assert len(path.read_bytes().splitlines()) == 4
    assert check_traces([path]).broken == ()


def test_each_rule_is_seeded() -> None:
    assert {rule for rule, _, _ in SEEDED} | {"history"} == RULES.keys()
    asked = {rule for name in (MARKED, TWO, APART, FIRST, DROPPED) for rule in check_lines(history(name)).checked}
    assert asked | {"history"} == RULES.keys()


def run_once(url: str, batches: int = 1) -> Ledger:
    """Let a run commit batches; return its ledger, which has released the group."""
    tp = TopicPartition("t", 0)
    with closing(open_store(url)) as store:
        ledger = Ledger(store, "group/one", retry_timeout_s=0)
        ledger.acquire("start")
        ledger.place({tp: Position(0)} if tp not in ledger.snapshot.positions else {})
        for _ in range(batches):
            at = ledger.snapshot.positions[tp].offset
            batch = ledger.batch([OffsetRange("t", 0, at, at + 5)])
            ledger.begin(batch)
            ledger.commit(batch, "a reason that is not for a trace")
        ledger.release()
        return ledger


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which traces are written."""
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "traces"))
    return tmp_path / "traces"


def test_a_run_writes_its_trace_where_the_environment_says(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/offsets.db"
    run_once(url)
    run_once(url, batches=2)
    [path] = folder.iterdir()
    assert path.name.startswith("group%2Fone-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["n"] for line in lines] == [*range(1, len(lines) + 1)]
    assert "a reason" not in text
    found = check_traces([path])
    assert (found.runs, found.changes, found.replayed, found.broken, found.notes) == (2, 11, 11, (), ())


def test_without_the_environment_nothing_is_written_and_the_store_is_asked_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(trace.VARIABLE, raising=False)
    ledger = run_once(f"sqlite:///{tmp_path}/offsets.db")
    assert trace.traced(ledger.store, ledger.who, {}) is ledger.store
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl" or path.is_dir()] == []


@pytest.mark.parametrize(("staged", "rows"), [(["a row"], True), ([], True), (None, False)])
def test_a_trace_tells_a_landing_of_rows_from_one_that_changes_the_mark_alone(staged: object, *, rows: bool) -> None:
    ledger = Ledger(open_store("memory://landings"), "g", retry_timeout_s=0)
    mark = OutputMark.of(ledger.batch([]), void=not rows)
    landed: list[object] = []
    lander = Lander(lambda *_: staged, lambda _: Seen(None), lambda *given: landed.append(given[3]))
    lines: Lines = []
    with trace.taken(lines.append):
        way = traced(Prepared({"out": Once(lander, "out")}, {}), ledger).writers["out"]
        assert isinstance(way, Once)
        way.lander.land(MarkKey("g", "out"), Seen(None), mark, staged)
    assert [(line["event"], line["rows"], line["mark"]["void"]) for line in lines] == [
        ("land", rows, not rows),
        ("landed", rows, not rows),
    ]
    assert landed == [staged]


def test_a_trace_tells_which_question_to_the_store_has_failed() -> None:
    store = faulty(MemoryStore(f"memory://{secrets.token_hex(8)}"))
    ledger, lines = Ledger(store, "g", retry_timeout_s=0), Lines()
    store.arm(Fault.REFUSED)
    with trace.taken(lines.append), pytest.raises(StoreUnavailable):
        ledger.load()
    assert [(line["event"], line["error"]) for line in lines] == [("load", "StoreUnavailable")]


@pytest.mark.parametrize("fails", ["", "rows", "request", "reply"])
def test_a_trace_tells_rows_that_were_taken_back_from_what_the_store_refuses_or_may_have(
    tmp_path: Path, fails: str
) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/offsets.db")) as real:
        store = faulty(real)
        ledger, lines = Ledger(store, "g", retry_timeout_s=0), Lines()
        ledger.acquire()
        ledger.place({TopicPartition("t", 0): Position(0)})
        batch = ledger.batch([OffsetRange("t", 0, 0, 5)])
        ledger.begin(batch)
        store.arm({"request": Fault.REFUSED, "reply": Fault.REPLY_LOST}.get(fails))
        with trace.taken(lines.append), suppress(ValueError, StoreError), ledger.transaction(batch):
            if fails == "rows":
                raise ValueError("a wrong row")
    outcomes = {"": "stored", "rows": "rolled back", "request": "not stored", "reply": "unknown"}
    assert [line["outcome"] for line in lines if line["event"] == "answer"] == [outcomes[fails]]
    assert len(places(lines, "send")) == (fails in {"", "reply"})


def test_a_trace_that_cannot_be_written_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(trace.VARIABLE, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, trace.__name__):
        ledger = run_once(f"sqlite:///{tmp_path}/offsets.db")
    assert ledger.snapshot.sequence == 1
    [told] = [record.getMessage() for record in caplog.records if record.name == trace.__name__]
    assert "the trace is not written on, the run goes on" in told


def test_the_last_line_of_a_process_that_died_may_be_cut_off(folder: Path, tmp_path: Path) -> None:
    run_once(f"sqlite:///{tmp_path}/offsets.db")
    [path] = folder.iterdir()
    whole = check_traces([path]).lines
    path.write_bytes(path.read_bytes()[:-20])
    found = check_traces([path])
    assert (found.lines, found.broken) == (whole - 1, ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"no json\n", "traces:1 is not a line of a trace"),
        (b"[1]\n", "traces:1 is not a line of a trace"),
        (b"", ""),
        (b'{"event": "load"}\n', "traces:1 is not a line of a trace"),
        (b'{"event": "file", "format": 99}\n', "is of a newer offsetkeeper"),
        (b'{"event":"load","at_ms":1,"group":"g","store":"s","run":"r","owner":"o"}\n', "is not a line of a trace"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "traces"
    path.write_bytes(text)
    if not told:
        assert check_traces([path]).lines == 0
        return
    with pytest.raises(SettingsError, match=re.escape(told)):
        check_traces([path])


def test_a_restored_store_is_told_and_is_no_broken_rule(folder: Path, tmp_path: Path) -> None:
    path, backup = tmp_path / "offsets.db", tmp_path / "backup.db"
    run_once(f"sqlite:///{path}")
    shutil.copy(path, backup)
    run_once(f"sqlite:///{path}", batches=2)
    shutil.copy(backup, path)
    run_once(f"sqlite:///{path}")
    found = check_traces(folder.iterdir())
    assert found.broken == ()
    assert ["went back from version 11 to 5" in note.what for note in found.notes] == [True]


def test_traces_of_several_processes_are_held_together(folder: Path, tmp_path: Path) -> None:
    """The second one goes on with what the first has begun, and its own clock is an hour behind."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    run_once(url)
    [path] = folder.iterdir()
    head, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    first = [line for line in lines if line["event"] != "send" or line["entry"]["event"] != "release"][:-1]
    other = tmp_path / "other.jsonl"
    for place, some in ((path, [head, *first]), (other, [head, *lines[len(first) :]])):
        place.write_text("".join(f"{json.dumps(line)}\n" for line in some), "utf-8")
    moved = [json.loads(line) for line in other.read_text("utf-8").splitlines()]
    for line in moved[1:]:
        line["at_ms"] -= 3_600_000
    other.write_text("".join(f"{json.dumps(line)}\n" for line in moved), "utf-8")
    assert check_traces([path, other]).broken == ()


def test_the_history_of_the_store_is_held_against_the_trace(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/offsets.db"
    run_once(url, batches=2)
    with closing(open_store(url)) as store:
        entries = list(store.history("group/one"))
    assert check_traces(folder.iterdir(), lambda _: entries).broken == ()

    def spoilt(number: int, **values: Any) -> list[Entry]:
        return [Entry(**{**_fields(each), **values}) if at == number else each for at, each in enumerate(entries)]

    def broken_by(history: list[Entry]) -> set[str]:
        return {each.rule for each in check_traces(folder.iterdir(), lambda _: history).broken}

    for wrong in (entries[:2] + entries[3:], spoilt(1, change_id="other"), spoilt(1, ranges=())):
        assert broken_by(wrong) == {"history"}


def _fields(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__slots__}
