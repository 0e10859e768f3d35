"""Commands on the checkpoint of a streaming query. Commands that change it only show the change without --execute."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from offsetkeeper import checkpoint
from offsetkeeper.checkpoint.log_format import dump_offsets
from offsetkeeper.cli import options
from offsetkeeper.cli.changes import Execute
from offsetkeeper.cli.modify import copy_group
from offsetkeeper.cli.output import complain, counted, say, say_json, say_table
from offsetkeeper.cli.targets import (
    Clip,
    DryRun,
    Targets,
    TopicOption,
    check_execute,
    only,
    parse_scope,
    read_csv,
    taking_targets,
)
from offsetkeeper.core.duration import read_duration
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.core.urls import is_url
from offsetkeeper.errors import Refused, SettingsError, listed
from offsetkeeper.operate.reset import plan_reset
from offsetkeeper.operate.reset_words import clips_of
from offsetkeeper.operate.scope import check_none_lost

app = typer.Typer(
    name="checkpoint",
    help="Inspect, verify and change the checkpoint of a streaming query.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Place = Annotated[
    str, typer.Argument(help="Folder of the checkpoint (Spark's checkpointLocation), or its webhdfs:// or s3:// URL.")
]
Force = Annotated[bool, typer.Option("--force", help="Change the checkpoint even if a query may be running on it.")]
OfGroup = Annotated[
    str, typer.Option("--group", help="Name of the consumer group in the store, as in Kafka (group.id).")
]


_NO_IDS = (
    "a seed has no ids of topics: if a topic was deleted and made again since the group's last run, the new query "
    "skips its first records. offsetkeeper plan {group} compares the ids"
)


class QueryId(StrEnum):
    """Whether the query keeps its id."""

    KEEP = "keep"
    NEW = "new"


@app.command()
def inspect(
    context: typer.Context,
    place: Place,
    *,
    batch: Annotated[int | None, typer.Option(min=0, help="Show only the offsets of this batch.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the content of a checkpoint: batches that ran, the next batch, all positions, state and formats.

    Example: offsetkeeper checkpoint inspect checkpoints/orders --batch 120
    """
    contents = checkpoint.read_checkpoint(_open(context, place))
    if batch is not None:
        _show_batch(checkpoint.inspect_batch(contents, batch), as_json=as_json)
        return
    found = checkpoint.inspect(contents)
    if as_json:
        say_json(found.as_dict())
        return
    say(str(found))
    columns = ("source", "topic", "partition", "ran from", "ran to", "next from", "next to")
    say_table(columns, [(r.source, *r.topic_partition, *r[2:]) for r in found.rows])


@app.command()
def verify(context: typer.Context, place: Place, *, as_json: options.AsJson = False) -> None:
    """Check a checkpoint for missing, damaged or left-over files, and say what to do.

    Exit code 1 if anything is wrong.

    Example: offsetkeeper checkpoint verify checkpoints/orders
    """
    files = _open(context, place)
    findings = checkpoint.verify(files)
    wrong = [each for each in findings if not each.harmless]
    if as_json:
        say_json({"checkpoint": files.address, "findings": [each.as_dict() for each in findings]})
    else:
        for each in findings:
            say(str(each))
        say(f"{counted(len(wrong), 'problem')}, {counted(len(findings) - len(wrong), 'harmless note')}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def diff(
    context: typer.Context,
    place: Place,
    *,
    against: Annotated[str, typer.Option(help="Another checkpoint to compare with: its folder or URL.")] = "",
    store: options.Store = "",
    group: OfGroup = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare a checkpoint's next offsets with another checkpoint, with a group in a store, or with Kafka.

    Exit code 1 if they differ. Without --against and --group, the command compares with Kafka: exit code 1 if a
    position is outside the offsets that Kafka holds.

    Example: offsetkeeper checkpoint diff checkpoints/orders --store sqlite:///offsets.db --group orders
    """
    chosen = options.settings(store, brokers, kafka)
    of_group = bool(group) or _is_typed(context, "store")
    given = sum((bool(against), of_group, _is_typed(context, "brokers")))
    if given > 1 or not (given or chosen.brokers):
        raise SettingsError("give one side to compare with: --against, --group of a --store, or --brokers")
    left = checkpoint.read_checkpoint(_open(context, place)).next().positions
    lost: list[TopicPartition] = []
    if not (against or of_group):
        with options.open_cluster(chosen) as cluster:
            held = checkpoint.against_kafka(left, cluster.bounds_of_topics({tp.topic for tp in left}))
        columns: tuple[str, ...] = ("topic", "partition", "position", "beginning", "end", "verdict")
        rows: list[tuple[object, ...]] = [(*each.topic_partition, *each[1:]) for each in held]
        dicts, differ = [each.as_dict() for each in held], any(each.bad for each in held)
    else:
        other = None if against else _of_group(store, group)
        lost = [] if other is None else sorted(other.missing)
        right = _of_place(context, against) if other is None else _offsets(other)
        found = checkpoint.differences(left, right)
        columns = ("topic", "partition", "checkpoint", "other", "ahead")
        rows = [(*each.topic_partition, each.left, each.right, each.ahead) for each in found]
        dicts, differ = [each.as_dict() for each in found], bool(found or lost)
    if as_json:
        say_json(dicts)
    elif rows:
        say_table(columns, rows)
    elif not lost:
        say("both sides are equal")
    if lost:
        complain(f"the store has lost the positions of {listed(lost, ', ')}, so they are not compared")
    if differ:
        raise typer.Exit(1)


@app.command()
def export(
    context: typer.Context,
    place: Place,
    *,
    to: Annotated[str, typer.Option(help="URL of the store to export into. Without it, the command prints JSON.")] = "",
    group: OfGroup = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what the store already has of the group.")
    ] = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the processed offsets as JSON for Spark's startingOffsets, or write them into a store.

    Example: offsetkeeper checkpoint export checkpoints/orders --to sqlite:///offsets.db --group orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    source = checkpoint.CheckpointStore(_open(context, place))
    if not to:
        positions = source.load("any").positions
        say(dump_offsets({tp: at.offset for tp, at in positions.items()}))
        return
    if not group:
        raise SettingsError("give --group: the name of the group in the store")
    with options.open_store(options.Settings(to)) as target:
        copy_group(group, source, target, execute=execute, overwrite=overwrite, as_json=as_json)
        if execute and not as_json:
            say("If the query had subscribePattern or assign, give topics= as it had them.")
            say(f"Next: {_next_line(target.load(group), target, to, place)}")


def _next_line(snapshot: Snapshot, target: Store, url: str, place: str) -> str:
    """Return the line of a program that goes on from an export; a query with state needs its old checkpoint.

    A URL with settings or a password is a name there. Without its settings it may be of another, empty store; and Spark
    and Hadoop write the URL of a checkpoint in their own way.
    """
    topics = sorted({tp.topic for tp in snapshot.positions})
    store, notes = (repr(url), []) if target.address == url else ("store", ["store: the URL of --to, as it was given"])
    policies = "Policies(first_run='stop')"  # a store without the positions would read all again
    call = "run(spark, process)"
    if snapshot.queries:
        location = "checkpoint" if is_url(place) else repr(place)
        notes += ["checkpoint: Spark's checkpointLocation, as the old query had it"] * is_url(place)
        call = f"start(spark, process, query=query, checkpoint={location})"
    given = f"group={snapshot.group!r}, store={store}, brokers=brokers, topics={topics!r}, policies={policies}"
    return f"Pipeline({given}).{call}" + (f"  # {'; '.join(notes)}" if notes else "")


@app.command()
def seed(
    context: typer.Context,
    place: Place,
    *,
    store: options.Store = "",
    group: OfGroup = "",
    from_file: Annotated[
        Path | None,
        typer.Option(help="CSV with lines topic,partition,offset. If it has several groups, --group selects one."),
    ] = None,
    topic: TopicOption = None,
    source: Annotated[
        str, typer.Option(help="The source that reads the topics: its number in the query plan, or its name.")
    ] = "0",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Change the checkpoint even if a query may be running on it; and take the positions of a group that a "
            "run holds, that has a batch under way, of which the store has lost some, or that differ from Kafka's.",
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a checkpoint so that a new query on Spark's Kafka source starts at the positions of a group in a store.

    Example: offsetkeeper checkpoint seed checkpoints/orders --group orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    if from_file is None and not group:
        raise SettingsError("give --group and --store, or --from-file")
    scope = parse_scope(topic or [])
    positions: Positions = {}
    if from_file is None:
        found = _of_group(store, group, force=force)
        if not force:
            _check_rests(found)
            check_none_lost(found, scope, more="; --force takes the others alone")
        positions, offsets = found.positions, _offsets(found)
    else:
        offsets = read_csv(from_file, group, grouped=bool(group))
    chosen = scope.select(offsets, "the offsets given")
    offsets = {tp: offsets[tp] for tp in chosen}
    files = _open(context, place)
    edit = checkpoint.plan_seed(checkpoint.read_checkpoint(files, may_be_new=True), {source: offsets})
    if any(positions[tp].topic_id for tp in positions.keys() & offsets.keys()):
        edit = replace(edit, notes=(*edit.notes, _NO_IDS.format(group=quote(group))))
    _finish(files, edit, execute=execute, force=force, as_json=as_json)


@app.command()
@taking_targets
def move(
    context: typer.Context,
    place: Place,
    *,
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: TopicOption = None,
    to_batch: Annotated[int | None, typer.Option(min=0, help="Move to the end of this batch.")] = None,
    targets: Targets,
    clip: Clip = False,
    group: Annotated[
        str, typer.Option(help="The group to take from --from-file, if the file has several groups.")
    ] = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Move a query without state back or forward. The command adds a batch to the checkpoint that processes nothing.

    Example: offsetkeeper checkpoint move checkpoints/orders --topic orders:0 --to-offset 1200 --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    if group and targets.from_file is None:
        raise SettingsError("--group selects lines of a --from-file: give --from-file too, or leave --group out")
    files = _open(context, place)
    found = checkpoint.read_checkpoint(files)
    given = targets.given(group, grouped=bool(group))
    given += [] if to_batch is None else [checkpoint.offsets_after(found, to_batch)]
    to = only(given)
    positions = {tp: Position(at) for tp, at in found.next().positions.items()}
    with options.open_cluster(options.settings("", brokers, kafka)) as cluster:
        snapshot = Snapshot("checkpoint", positions=positions)
        made = plan_reset(snapshot, files.address, cluster, to, parse_scope(topic or []), clip=clip)
    edit = checkpoint.plan_move(found, {tp: at.offset for tp, at in made.positions.items()})
    edit = replace(edit, notes=(*edit.notes, *clips_of(made)))
    _finish(files, edit, execute=execute, force=force, as_json=as_json)


@app.command()
def truncate(
    context: typer.Context,
    place: Place,
    *,
    batch: Annotated[int, typer.Option(min=0, help="The last batch to keep. All later batches are removed.")],
    query_id: Annotated[
        QueryId | None,
        typer.Option(
            help="Required if batches are removed; no default. new: outputs that de-duplicate by query id write the "
            "replay, such as Delta. keep: they drop it."
        ),
    ] = None,
    hold: Annotated[
        str, typer.Option(help="Block the checkpoint for this time, such as 10m, so that a query that sleeps fails.")
    ] = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Take a query back to the end of a batch, with its state of that time.

    Example: offsetkeeper checkpoint truncate checkpoints/orders --batch 120 --query-id new --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    hold_s = read_duration(hold, "--hold") if hold else 0.0
    files = _open(context, place)
    edit = checkpoint.plan_truncate(
        checkpoint.read_checkpoint(files), batch, query_id=query_id.value if query_id else ""
    )
    _finish(files, edit, execute=execute, force=force, hold_s=hold_s, as_json=as_json)


@app.command()
def convert(
    context: typer.Context,
    place: Place,
    *,
    to: Annotated[int, typer.Option(min=1, max=2, help="The version of the offset log to write: 1 or 2.")],
    source: Annotated[
        list[str] | None,
        typer.Option(help="Name of a source. Repeat it for each source, in the order of the query plan."),
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Convert the offset log to the other format version. Version 2 has names of sources, for source evolution.

    Example: offsetkeeper checkpoint convert checkpoints/orders --to 2 --source orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    files = _open(context, place)
    edit = checkpoint.plan_convert(checkpoint.read_checkpoint(files), to, source or ())
    _finish(files, edit, execute=execute, force=force, as_json=as_json)


@app.command()
def complete(
    context: typer.Context,
    place: Place,
    *,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Prepare the checkpoint of a continuous query so that a micro-batch query can resume from it.

    Example: offsetkeeper checkpoint complete checkpoints/orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    files = _open(context, place)
    edit = checkpoint.plan_complete(checkpoint.read_checkpoint(files))
    _finish(files, edit, execute=execute, force=force, as_json=as_json)


@app.command()
def undo(
    context: typer.Context,
    place: Place,
    *,
    backup: Annotated[
        str, typer.Option(help="Name of the backup to restore. Without it, the newest change is undone.")
    ] = "",
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Undo the newest change of a checkpoint, or a change that was interrupted.

    Example: offsetkeeper checkpoint undo checkpoints/orders --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    files = _open(context, place)
    _finish(files, checkpoint.plan_undo(files, backup), execute=execute, force=force, as_json=as_json)


def _open(context: typer.Context, place: str) -> checkpoint.Files:
    """Return the checkpoint's folder; its connections are closed when the command ends."""
    files = checkpoint.open_files(place)
    context.call_on_close(files.close)
    return files


def _show_batch(found: checkpoint.BatchInspection, *, as_json: bool) -> None:
    if as_json:
        say_json(found.as_dict())
        return
    say(str(found))
    rows = [(row.source, *row.topic_partition, row.start, row.end) for row in found.rows]
    say_table(("source", "topic", "partition", "from", "to"), rows)


def _finish(
    files: checkpoint.Files,
    edit: checkpoint.Edit,
    *,
    execute: bool,
    force: bool,
    as_json: bool,
    hold_s: float = 0.0,
) -> None:
    backup = checkpoint.apply(files, edit, force=force, hold_s=hold_s) if execute else ""
    nothing = edit.empty and not edit.origin  # an undo ends an interrupted change even if no file differs
    if as_json:
        say_json({**edit.as_dict(), "executed": execute and not nothing, "backup": backup})
        return
    say(str(edit))
    if nothing:
        say("Nothing to do: the query already resumes there.")
    elif not execute:
        say("Nothing was changed. Add --execute to make the change.")
    else:
        say(f"Done. The backup is {files.backup(backup).address}" if backup else "Done.")


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, not by the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _of_group(store: str, group: str, *, force: bool | None = None) -> Snapshot:
    """Return the ledger of a group that has positions; `force`: see `options.check_unedited`, None looks at nothing."""
    if not group:
        raise SettingsError("give --group: the name of the group in the store")
    with options.open_store(options.settings(store)) as opened:
        found = opened.load(group)
        if force is not None:
            options.check_unedited(Ledger(opened, group), force=force)
    if not found.positions:
        raise Refused(f"the store has no positions of group {group!r}")
    return found


def _offsets(found: Snapshot) -> dict[TopicPartition, int]:
    return {tp: at.offset for tp, at in found.positions.items()}


def _check_rests(found: Snapshot) -> None:
    """Refuse a group whose positions are not where a new query can go on.

    Raises:
        Refused: a run holds the group, or outputs may have records after its positions.
    """
    if found.owner is not None:
        raise Refused(
            f"group {found.group!r} is held by {found.owner.name or found.owner.id}, which may read on: stop that run "
            "first. If it is dead, --force takes the positions as they are"
        )
    batch = found.pending or found.unsettled
    if batch is not None:
        raise Refused(
            f"batch {batch.id} was begun and not committed, and outputs may have its records: the new query would read "
            f"them again:\n  {listed(batch.ranges)}\nStart the program of the group once with until='caught_up', which "
            "settles the batch. --force takes the positions as they are"
        )


def _of_place(context: typer.Context, place: str) -> dict[TopicPartition, int]:
    return checkpoint.read_checkpoint(_open(context, place)).next().positions
