"""Commands that change a group: rewind, undo, fence, adopt, copy. They show the change; --execute makes it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.changes import Execute, Force, Reason, say_end, signed, tell
from offsetkeeper.cli.output import say, say_json, say_table
from offsetkeeper.cli.targets import Clip, DryRun, TopicOption, check_execute, parse_scope
from offsetkeeper.core.codec import FORMAT
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.store import Store
from offsetkeeper.operate import copy as copying
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.operate.fence import fence as fence_run
from offsetkeeper.operate.reset import (
    apply_reset,
    check_again,
    plan_rewind,
    plan_undo,
    taken_back,
    taken_back_by,
    undo_reason,
)

ToGroup = Annotated[str, typer.Option("--to", help="URL of the store to copy to.")]


def rewind(
    group: options.Group,
    *,
    version: Annotated[int, typer.Option(min=1, help="Version of the ledger to go back to, as `history` shows it.")],
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: TopicOption = None,
    clip: Clip = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Set positions back to an earlier version of the ledger: all of them, or those of --topic.

    Example: offsetkeeper rewind orders --version 1207 --reason "bad release" --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    scope = parse_scope(topic or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group, read_only=True) as ledger, options.open_cluster(chosen) as cluster:
        made = plan_rewind(ledger, cluster, version, scope, clip=clip)
        if execute:
            apply_reset(ledger, cluster, made, signed(reason or f"rewind to version {version}"), force=force)
        found = tell(ledger, cluster, made, execute=execute, force=force, as_json=as_json)
    if as_json:
        say_json(found)


def undo(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: TopicOption = None,
    clip: Clip = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    again: Annotated[
        bool, typer.Option("--again", help="Undo even an undo: make the change that it took back once more.")
    ] = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Undo the newest reset or forget and all commits since. With --topic: the newest reset of those partitions only.

    If the newest reset is an undo itself, --execute also needs --again: so an undo that is repeated by mistake changes
    nothing.

    Example: offsetkeeper undo orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    scope = parse_scope(topic or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group, read_only=True) as ledger, options.open_cluster(chosen) as cluster:
        made, entry = plan_undo(ledger, cluster, scope, clip=clip)
        check_again(entry, "add --again", again=again or not execute)
        why, notes = undo_reason(entry, reason), taken_back(ledger, entry, scope)
        if taken_back_by(entry) is not None and not execute:
            notes.append("to make it, add --again beside --execute")
        if execute:
            apply_reset(ledger, cluster, made, signed(why), force=force)
        for note in [] if as_json else notes:
            say(f"note: {note}")
        found = tell(ledger, cluster, made, execute=execute, force=force, as_json=as_json)
    if as_json:
        say_json({**found, "notes": [*notes, *found["notes"]]})


def fence(
    group: options.Group,
    *,
    store: options.Store = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Fence the run that holds a group: it can commit nothing more, and ends. No position moves.

    A batch that it has begun stays pending: the next start deals with it. If a supervisor starts the job again, that
    run takes the group as any other.

    Example: offsetkeeper fence orders --reason "hangs" --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    with options.open_ledger(options.settings(store), group, read_only=True) as ledger:
        held = fence_run(ledger, signed(reason or "fence")) if execute else ledger.load().owner
        options.check_stored(ledger)
        pending = ledger.snapshot.pending
    if as_json:
        say_json({"executed": execute and held is not None, "held_by": held and held.name})
        return
    if held is None:
        say(f"Nothing to do: no run holds group {group}.")
        return
    say(f"{held.name} is fenced." if execute else f"{held.name} holds group {group}: --execute fences that run")
    if pending is not None:
        say(f"note: batch {pending.id} was begun and not committed: it stays, and the next start deals with it")
    say_end("Done. Now start the job.", execute=execute)


def adopt(
    group: options.Group,
    *,
    sequence: Annotated[
        int, typer.Option(min=0, help="Sequence of the batch in the output's mark; 0 if the output has no mark.")
    ],
    output: Annotated[str, typer.Option(help="Name of the output. Leave it out if the pipeline has only one.")] = "",
    store: options.Store = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Accept the mark of an output after its database or the store was restored from a backup.

    If a start is refused because ledger and output do not match, the error prints this command. No position and no
    record moves. First compare the rows in the output with the positions, and reset the positions where they differ.

    Example: offsetkeeper adopt orders --output shop --sequence 1207 --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    chosen = options.settings(store)
    with options.open_ledger(chosen, group, read_only=True) as ledger:
        plan = plan_adoption(ledger.load(), output, sequence)
        if execute:
            apply_adoption(ledger, plan, signed(reason), force=force)
    if as_json:
        say_json({"executed": execute and plan.changes, **plan.as_dict()})
        return
    for line in plan.lines:
        say(line)
    if not plan.changes:
        say("Nothing to do: the ledger already has this value.")
    else:
        say_end(execute=execute)


def copy(
    group: options.Group,
    *,
    to: ToGroup,
    store: options.Store = "",
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace what the target already has of the group. Positions that only the target has are taken out.",
        ),
    ] = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Copy even though a run still holds the group, if it has died; or although Kafka's offsets of the "
            "group differ from the ledger, if no other program has gone on.",
        ),
    ] = False,
    format: Annotated[  # noqa: A002 - the option's name
        int, typer.Option("--format", help="Format of the copy: an older one is for an older release. 3 is of 0.2.")
    ] = FORMAT,
    as_json: options.AsJson = False,
) -> None:
    """Copy a group into another store: positions, pending batch, history. The source does not change.

    A target that has another history of the group keeps it, and gets none of the source; the preview says so.

    Example: offsetkeeper copy orders --store sqlite:///offsets.db --to postgresql://host/shop --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    with (
        options.open_store(options.settings(store), read_only=True) as source,
        options.open_store(options.Settings(to)) as target,
    ):
        how: dict[str, Any] = {"overwrite": overwrite, "force": force, "format": format}
        copy_group(group, source, target, execute=execute, as_json=as_json, **how)


def copy_group(group: str, source: Store, target: Store, *, execute: bool, as_json: bool, **how: Any) -> None:
    """Copy a group from one open store into another, or only show the copy; print what was done.

    Args:
        group: the consumer group.
        source: the store to copy from.
        target: the store to copy to.
        execute: whether to copy.
        as_json: whether to print JSON.
        how: further arguments of `operate.copy.copy`.
    """
    if how.get("force"):  # given for a run that has died, it must not hide what another program has done
        options.check_unedited(Ledger(source, group), force=True)
    plan = copying.preview(group, source, target, **how)
    if execute:
        copying.copy(group, source, target, **how)
    found = plan.as_dict()
    if as_json:
        say_json({"executed": execute, "from": source.address, "to": target.address, **found})
        return
    rows = [tuple(row.values()) for row in found["positions"]]
    say_table(("topic", "partition", "old", "new"), rows, title=f"{group}, from {source.address} to {target.address}")
    for note in plan.notes:
        say(f"note: {note}")
    if (number := how.get("format", FORMAT)) != FORMAT:
        say(f"The copy is in format {number}, for an older release.")
    done = f"Done: {len(rows)} positions were copied and compared one by one."
    say_end(done, execute=execute)
