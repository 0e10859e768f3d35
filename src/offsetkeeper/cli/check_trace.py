"""The command that holds traces of runs against the rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table
from offsetkeeper.core.model import Entry
from offsetkeeper.core.store import EVERY_ENTRY, Store
from offsetkeeper.operate.traces import RULES, Finding, Place, Report, check_traces

Files = Annotated[list[Path], typer.Argument(help="Traces: the files that OFFSETKEEPER_TRACE has made.")]
History = Annotated[
    str, typer.Option("--store", help="URL of the store: the group's history there is compared with the traces.")
]


def check_trace(files: Files, *, store: History = "", as_json: options.AsJson = False) -> None:
    """Check traces of runs: whether each change, landing and write is one that the rules allow.

    With OFFSETKEEPER_TRACE=FOLDER in its environment a run writes its trace there. Give the files of all runs and
    commands of a group. Exit code 1 if a rule is broken.

    Example: offsetkeeper check-trace traces/*.jsonl
    """
    with options.open_store(options.Settings(store), read_only=True) if store else nullcontext() as opened:
        report = check_traces(files, lambda place: _history(opened, place))
    if as_json:
        say_json(report.as_dict())
    else:
        _say(report)
    if report.broken:
        raise typer.Exit(1)


def _history(store: Store | None, place: Place) -> Sequence[Entry]:
    return store.history(place.group, EVERY_ENTRY) if store is not None and store.address == place.store else ()


def _say(report: Report) -> None:
    say(
        f"{report.lines} lines of {report.runs} runs and commands: {report.changes} changes were made, "
        f"{report.replayed} of them are in the traces"
    )
    say_table(("checked", "rule"), [(number, RULES[name]) for name, number in report.checked.items()], wrap=("rule",))
    for note in report.notes:
        say(f"note: {_told(note)}")
    for found in report.broken:
        say(f"BROKEN {found.rule}: {RULES[found.rule]}\n  {_told(found)}")
    say("a rule is broken: send the traces with a report" if report.broken else "no rule is broken")


def _told(found: Finding) -> str:
    return f"{found.what}, see {', '.join(found.lines)}"
