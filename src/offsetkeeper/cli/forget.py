"""The command forget: takes positions out of a ledger, with a preview."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.changes import Execute, Force, Reason, say_end, say_held, signed
from offsetkeeper.cli.output import say, say_json, say_table
from offsetkeeper.cli.targets import DryRun, check_execute, parse_scope
from offsetkeeper.core import rules
from offsetkeeper.operate.forget import apply_forgetting, plan_forgetting

Named = Annotated[list[str], typer.Argument(help="A whole topic, or some of its partitions as topic:0,1.")]


def forget(
    group: options.Group,
    topics: Named,
    *,
    store: options.Store = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Take positions out of a group, such as of a topic that it never read. `undo` puts them back.

    Kafka is not asked. Records and the positions of other partitions do not change.

    Example: offsetkeeper forget orders oders:0 --reason "a typo" --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    scope = parse_scope(topics, "")
    with options.open_ledger(options.settings(store), group, read_only=True) as ledger:
        found = ledger.load()
        plan = plan_forgetting(found, scope)
        rules.check_forget(found, [tp for tp, _ in plan.positions])
        if execute:
            apply_forgetting(ledger, plan, signed(reason), force=force)
    if as_json:
        say_json({"executed": execute, "held_by": found.owner and found.owner.name, **plan.as_dict()})
        return
    rows = [(*tp, "lost" if at is None else at.offset, plan.start(tp)) for tp, at in plan.positions]
    say_table(
        ("topic", "partition", "position", "a start reads it"), rows, title=f"{group}, from version {plan.version}"
    )
    for note in plan.notes:
        say(f"note: {note}")
    if found.owner is not None and not execute:
        say_held(found.owner, force=force)
    say_end(execute=execute)
