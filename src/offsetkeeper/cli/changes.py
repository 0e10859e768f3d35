"""Shows and executes a reset, a rewind or an undo: one row for each partition that moves, then notes."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer

from offsetkeeper.cli.lag_table import usual_top
from offsetkeeper.cli.output import complain, say, say_table, seconds, share
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Owner
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.json_view import reset_fields
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.reset import reset_lag
from offsetkeeper.operate.reset_plan import ResetPlan, Step
from offsetkeeper.operate.reset_words import notes_of

Execute = Annotated[
    bool, typer.Option("--execute", help="Make the change. Without --execute, the command only shows it.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Make the change even while a run holds the group. That run is fenced and ends.")
]
Reason = Annotated[str, typer.Option(help="Reason for the change. It is stored in the history.")]


def tell(
    ledger: Ledger, cluster: KafkaCluster, made: ResetPlan, *, execute: bool, force: bool, as_json: bool
) -> dict[str, Any]:
    """Return a plan as plain values; print it as text unless JSON is asked for. `execute`: it is executed.

    A command executes all its plans before it prints the first one: a reader of the output that goes away, such as
    `head`, stops only what is printed.
    """
    lags, owner = {} if execute else reset_lag(made, cluster), ledger.snapshot.owner
    found = reset_fields(made, lags, executed=execute and made.moves, owner=owner)
    if as_json:
        return found
    columns = ["topic", "partition", "old", "new", "read again", "skipped", "above the beginning"]
    columns += ["lost"] if made.lost else []
    columns += ["retention", "lost in"] if lags else []
    top, spare = usual_top(len(made.steps)), ("above the beginning", "lost in", "retention")
    rows = [_row(step, made, lags) for step in (made.steps if top is None else _largest(made)[:top])]
    sums = [] if top is None else [_sum(topic, [*some], made, lags) for topic, some in groupby(made.steps, _topic)]
    say_table(columns, [*sums, *rows], title=f"{made.group}, from version {made.version}", spare=spare)
    if top is not None:
        complain(f"the {top} largest changes of {len(made.steps)} partitions are shown; a pipe and --json have all")
    for note in notes_of(made):
        say(f"note: {note}")
    if owner is not None and made.moves and not execute:
        say_held(owner, force=force)
    if not made.moves:
        say(f"Nothing to do: group {made.group} is already at these offsets.")
    else:
        say_end(execute=execute)
    return found


def say_end(done: str = "Done.", *, execute: bool) -> None:
    """Say whether the change was made, as the last line; `done` says that it was."""
    say(done if execute else "Nothing was changed. Add --execute to make the change.")


def say_held(owner: Owner, *, force: bool) -> None:
    """Say what the change means for the run that holds the group."""
    fences = "--force fences that run" if force else "--execute is refused until that run ends, unless you add --force"
    say(f"note: {owner.name} holds the group: {fences}")


def _largest(made: ResetPlan) -> list[Step]:
    """Return the steps, those that lose or skip the most first, then those that read the most again."""
    return sorted(made.steps, key=lambda s: (-made.lost.get(s.topic_partition, 0), -s.skipped, -s.replayed))


def _topic(step: Step) -> str:
    return step.topic_partition.topic


def _sum(topic: str, steps: Sequence[Step], made: ResetPlan, lags: Mapping[TopicPartition, Lag]) -> tuple[object, ...]:
    lost = (sum(made.lost.get(step.topic_partition, 0) for step in steps),) if made.lost else ()
    read, skipped = sum(step.replayed for step in steps), sum(step.skipped for step in steps)
    return (topic, "all", None, None, read, skipped, None, *lost, *((None, None) if lags else ()))


def _row(step: Step, made: ResetPlan, lags: Mapping[TopicPartition, Lag]) -> tuple[object, ...]:
    lost = (made.lost.get(step.topic_partition, 0),) if made.lost else ()
    cells = (*step.topic_partition, step.old, step.new.offset, step.replayed, step.skipped, step.above_beginning, *lost)
    lag = lags.get(step.topic_partition)
    if lag is None or lag.retention_used is None:
        return (*cells, None, None) if lags else cells
    mark = "~ " * lag.estimated
    return (*cells, mark + share(lag.retention_used), mark + seconds(lag.seconds_left))


def signed(reason: str) -> str:
    """Return the reason with the user's name appended."""
    return f"{reason} (by {_user()})" if reason else f"by {_user()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user often has only a number
        return f"uid {os.getuid()}"
