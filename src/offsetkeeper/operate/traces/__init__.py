"""Holds traces of real runs against the rules: a second reading of design and promises, apart from the code that ran.

It reads lines, see `core.trace`, and asks no server. Of several processes, changes are ordered by the versions of the
ledger. Where lines are missing, less is checked, and nothing is called broken for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offsetkeeper.core.model import Entry
from offsetkeeper.operate.traces.changes import Changes, check_answers, check_reads, check_told, check_versions
from offsetkeeper.operate.traces.judge import RULES, Finding, Judge
from offsetkeeper.operate.traces.lines import Key, Line, Place, given_meaning, read_files
from offsetkeeper.operate.traces.marks import check_landings
from offsetkeeper.operate.traces.runs import Run
from offsetkeeper.operate.traces.steps import Steps

__all__ = ["RULES", "Finding", "Place", "Report", "check_lines", "check_traces"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what was found.

    Attributes:
        lines: number of lines.
        runs: number of ledgers that processes had opened.
        changes: number of changes that were surely made.
        replayed: number of these that the trace has, so that they were held against the table of rules.
        checked: how often each rule was asked.
        broken: the broken rules.
        notes: what is no broken rule, such as a store that was restored.
    """

    lines: int
    runs: int
    changes: int
    replayed: int
    checked: dict[str, int]
    broken: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        counts = {name: getattr(self, name) for name in ("lines", "runs", "changes", "replayed", "checked")}
        told = {"broken": [each.as_dict() for each in self.broken], "notes": [each.as_dict() for each in self.notes]}
        return {"ok": not self.broken, **counts, **told}


HistoryOf = Callable[[Place], Sequence[Entry]]


def check_traces(paths: Iterable[Path], history_of: HistoryOf = lambda _: ()) -> Report:
    """Check the traces in files.

    Args:
        paths: of the files: of all runs of a group that are to be held together.
        history_of: returns the history of a group in its store now; empty if it is not to be held against the trace.

    Raises:
        SettingsError: a file cannot be read, or is not a trace.
    """
    return _checked(given_meaning(read_files(paths)), history_of)


def check_lines(lines: Iterable[dict[str, Any]]) -> Report:
    """Check the lines of one process; see `check_traces`."""
    return _checked(given_meaning((f"line:{number}", line) for number, line in enumerate(lines, 1)), lambda _: ())


def _checked(lines: list[Line], history_of: HistoryOf) -> Report:
    judge, made, replayed = Judge(), 0, 0
    steps = Steps(judge)
    places: dict[Place, list[Line]] = {}
    for line in lines:
        places.setdefault(line.place, []).append(line)
    for place, there in places.items():
        changes = Changes(there)
        check_answers(changes, judge)
        check_told(changes, judge)
        check_versions(changes, judge)
        lost = check_reads(changes, judge)
        for step in changes.steps():
            steps.check(step)
            replayed += 1
        made += len(changes.made)
        if history := history_of(place):
            _check_history(changes, history, lost, judge)
    runs: dict[tuple[str, str], Run] = {}
    for line in lines:
        runs.setdefault(line.stream, Run(judge)).take(line)
    check_landings(lines, judge)
    return Report(len(lines), len(runs), made, replayed, {**judge.checked}, (*judge.broken,), (*judge.notes,))


def _check_history(changes: Changes, history: Sequence[Entry], lost: Collection[Key], judge: Judge) -> None:
    """Check that a store's history has the changes of the trace, as far as it goes back."""
    there = {entry.version: entry for entry in history}
    for key, line in changes.made.items():
        if key[0] < min(there) or key in lost:
            continue
        found = there.get(key[0])
        what = f"version {key[0]} is {key[1]} in the trace, and {found.change_id if found else 'missing'} in the store"
        if not judge.holds("history", what, line, ok=found is not None and found.change_id == key[1]):
            continue
        for send, _ in changes.sent.get(key, ())[-1:]:
            same = found is not None and send.entry is not None and _essence(found) == _essence(send.entry)
            judge.holds("history", f"the entry of version {key[0]} is not the one of the trace", send, ok=same)


def _essence(entry: Entry) -> tuple[Any, ...]:
    return entry.event, entry.token, entry.sequence, entry.ranges, entry.generation
