"""Commands that change a group: reset, rewind, undo, adopt, copy. They show what they would do; --execute does it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table, seconds
from offsetkeeper.cli.targets import (
    FromFile,
    Scope,
    ShiftBy,
    ToDatetime,
    ToEarliest,
    ToLatest,
    ToOffset,
    dump_csv,
    only,
    parse_duration,
    parse_scope,
    read_text,
    targets,
    write_text,
)
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import TopicPartition, kafka_positions
from offsetkeeper.core.store import Store
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate import copy as copying
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.operate.json_view import reset_fields
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.reset import (
    Shift,
    Target,
    apply_reset,
    check_reset,
    plan_reset,
    plan_rewind,
    plan_undo,
    reset_lag,
)
from offsetkeeper.operate.reset_plan import ResetPlan, Step, load_plan, select

Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this, it is only shown.")]
Force = Annotated[bool, typer.Option("--force", help="Also while a run holds the group: that run is fenced.")]
Reason = Annotated[str, typer.Option(help="Why, for the history.")]
ToGroup = Annotated[str, typer.Option("--to", help="URL of the store to copy to.")]


def reset(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: Scope = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics of the group, and those that offsetkeeper.toml names.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where they are, for --export.")] = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = "",
    by_duration: Annotated[str, typer.Option(help="To so long ago: PnDTnHnMnS.")] = "",
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as such a CSV.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file, for --plan.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Do what a saved plan says, and nothing else.")] = None,
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Set the positions of a group, with a preview: what is read again, what is skipped.

    Example: offsetkeeper reset orders --topic orders:0,1 --to-datetime 2026-01-31T12:00:00+00:00 --execute
    """
    given = targets(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        shift_by=shift_by,
        from_file=from_file,
        group=group,
    )
    given += ["current"] * to_current
    given += [parse_duration(by_duration)] if by_duration else []
    if plan is not None and (given or topic or all_topics):
        raise SettingsError("--plan says all: give no target and no topics beside it")
    to: Target | Shift = only(given) if plan is None else {}
    partitions, topics = _scope(topic or [], all_topics=all_topics, said=plan is not None or from_file is not None)
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger:
        if export and to == "current" and save is None and not execute:
            stored = kafka_positions(ledger.load().positions)
            kept = select(stored, partitions, topics, f"the positions of group {group!r}")
            if not kept:
                raise SettingsError(f"group {group!r} has no positions: there is nothing to export")
            say(dump_csv({tp: stored[tp].offset for tp in kept}))  # what Kafka holds is of no matter: for later
            return
        with options.open_cluster(chosen) as cluster:
            if plan is not None:
                made = check_reset(ledger, cluster, load_plan(read_text(plan), str(plan)))
            else:
                topics |= set(chosen.topics) if all_topics and from_file is None else set()
                made = plan_reset(
                    ledger.load(),
                    ledger.store.address,
                    cluster,
                    to,
                    partitions=partitions,
                    topics=topics,
                    all_topics=all_topics,
                )
            if save is not None:
                write_text(save, made.dump())
            if export:
                say(dump_csv(made.offsets))
            if execute or not export:
                _finish(ledger, cluster, made, reason, execute=execute, force=force, as_json=as_json)


def rewind(
    group: options.Group,
    *,
    version: Annotated[int, typer.Option(min=1, help="Of the ledger, as `history` shows it.")],
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: Scope = None,
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Set all positions, or those of --topic, to what they were at a version of the ledger.

    Example: offsetkeeper rewind orders --version 1207 --reason "bad release" --execute
    """
    partitions, topics = parse_scope(topic or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group, read_only=True) as ledger, options.open_cluster(chosen) as cluster:
        made = plan_rewind(ledger, cluster, version, partitions=partitions, topics=topics)
        why = reason or f"rewind to version {version}"
        _finish(ledger, cluster, made, why, execute=execute, force=force, as_json=as_json)


def undo(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: Scope = None,
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Take the newest reset back, with all that was committed since; with --topic the newest one there, and only there.

    Example: offsetkeeper undo orders --execute
    """
    partitions, topics = parse_scope(topic or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group, read_only=True) as ledger, options.open_cluster(chosen) as cluster:
        made, entry = plan_undo(ledger, cluster, partitions=partitions, topics=topics)
        why = reason or f"undo of version {entry.version}" + (f" ({entry.reason})" if entry.reason else "")
        _finish(ledger, cluster, made, why, execute=execute, force=force, as_json=as_json)


def adopt(
    group: options.Group,
    *,
    sequence: Annotated[int, typer.Option(min=0, help="Of the batch in the output's mark; 0 where it has no mark.")],
    output: Annotated[str, typer.Option(help="Name of the output; leave it out where the pipeline has only one.")] = "",
    store: options.Store = "",
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Accept the mark of an output, after its database or the store was restored from a backup.

    A start that is refused because ledger and output do not fit prints this command. No record is moved: compare the
    rows in the output with the positions first, and reset the positions where they differ.

    Example: offsetkeeper adopt orders --output shop --sequence 1207 --execute
    """
    chosen = options.settings(store)
    with options.open_ledger(chosen, group, read_only=True) as ledger:
        plan = plan_adoption(ledger.load(), output, sequence)
        if execute:
            apply_adoption(ledger, plan, _signed(reason), force=force)
    if as_json:
        say_json({"executed": execute and plan.changes, **plan.as_dict()})
        return
    for line in plan.lines:
        say(line)
    if not plan.changes:
        say("Nothing was changed: the ledger has it so already.")
    else:
        say("Done." if execute else "Nothing was changed. Add --execute to do it.")


def copy(
    group: options.Group,
    *,
    to: ToGroup,
    store: options.Store = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over what the target has of it.")] = False,
    execute: Execute = False,
    force: Annotated[bool, typer.Option("--force", help="Though a run that died still holds the group.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Copy a group into another store: positions, pending batch, history. The source is only read.

    Example: offsetkeeper copy orders --store sqlite:///offsets.db --to postgresql://host/shop --execute
    """
    with (
        options.open_store(options.settings(store), read_only=True) as source,
        options.open_store(options.Settings(to)) as target,
    ):
        copy_group(group, source, target, execute=execute, overwrite=overwrite, force=force, as_json=as_json)


def copy_group(
    group: str, source: Store, target: Store, *, execute: bool, overwrite: bool, as_json: bool, force: bool = False
) -> None:
    """Copy a group from one open store into another, or only show it, and say what was done."""
    plan = copying.preview(group, source, target, overwrite=overwrite, force=force)
    if execute:
        copying.copy(group, source, target, overwrite=overwrite, force=force)
    found = plan.as_dict()
    if as_json:
        say_json({"executed": execute, "from": source.address, "to": target.address, **found})
        return
    rows = [tuple(row.values()) for row in found["positions"]]
    say_table(("topic", "partition", "old", "new"), rows, title=f"{group}, from {source.address} to {target.address}")
    if plan.wanted.pending is not None:
        say(f"batch {plan.wanted.pending.id} is pending and goes along")
    done = f"Done: {len(rows)} positions are there now, compared one by one."
    say(done if execute else "Nothing was changed. Add --execute to do it.")


def _scope(named: list[str], *, all_topics: bool, said: bool) -> tuple[set[TopicPartition], set[str]]:
    """Return the partitions, and the whole topics, that --topic names; `said` is whether something else says which."""
    if named and all_topics:
        raise SettingsError("give --topic or --all-topics, not both")
    if not (named or all_topics or said):
        raise SettingsError("say what is to be moved: --topic orders, --topic orders:0,1, or --all-topics")
    return parse_scope(named)


def _finish(
    ledger: Ledger, cluster: KafkaCluster, made: ResetPlan, reason: str, *, execute: bool, force: bool, as_json: bool
) -> None:
    if execute:
        apply_reset(ledger, cluster, made, _signed(reason), force=force)
    lags = {} if execute else reset_lag(made, cluster)
    if as_json:
        say_json(reset_fields(made, lags, executed=execute and bool(made.steps)))
        return
    columns = ["topic", "partition", "old", "new", "read again", "skipped", "above the beginning"]
    columns += ["retention", "lost in"] if lags else []
    say_table(columns, [_row(step, lags) for step in made.steps], title=f"{made.group}, from version {made.version}")
    for note in made.notes:
        say(f"note: {note}")
    if not made.steps:
        say(f"Nothing was changed: group {made.group} stands there already.")
    else:
        say("Done." if execute else "Nothing was changed. Add --execute to do it.")


def _row(step: Step, lags: Mapping[TopicPartition, Lag]) -> tuple[object, ...]:
    cells = (*step.topic_partition, step.old, step.new.offset, step.replayed, step.skipped, step.above_beginning)
    lag = lags.get(step.topic_partition)
    if lag is None or lag.retention_used is None:
        return (*cells, None, None) if lags else cells
    mark = "~ " * lag.estimated
    return (*cells, f"{mark}{lag.retention_used:.0%}", mark + seconds(lag.seconds_left))


def _signed(reason: str) -> str:
    return f"{reason} (by {_user()})" if reason else f"by {_user()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user often has a number and no name
        return f"uid {os.getuid()}"
