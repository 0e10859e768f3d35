"""Commands that change a group: reset, rewind, undo, copy. Each shows what it would do, and does it with --execute."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table
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
)
from offsetkeeper.errors import SettingsError
from offsetkeeper.model import TopicPartition, kafka_positions

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
    from offsetkeeper.operations import plan_reset  # noqa: PLC0415 - each command loads what it needs
    from offsetkeeper.reset import load_plan  # noqa: PLC0415

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
    given += [datetime.now(UTC) - parse_duration(by_duration)] if by_duration else []
    chosen = options.settings(store, brokers, kafka)
    kept: dict[TopicPartition, int] = {}
    with options.open_ledger(chosen, group) as ledger:
        if plan is not None:
            if given or topic or all_topics:
                raise SettingsError("--plan says all: give no target and no topics beside it")
            made = load_plan(read_text(plan), str(plan)).check(ledger.load(), ledger.store.address)
        else:
            to, stored = only(given), kafka_positions(ledger.load().positions)
            partitions, topics = _scope(to, topic or [], set(stored) if all_topics else None, chosen.topics)
            kept = {tp: at.offset for tp, at in stored.items() if tp in partitions or tp.topic in topics}
            if export and to == "current" and not execute:
                say(dump_csv(kept))  # what Kafka holds is of no matter: they are to be kept for later
                return
            with options.open_cluster(chosen) as cluster:
                made = plan_reset(
                    ledger.snapshot, ledger.store.address, cluster, to, partitions=partitions, topics=topics
                )
        if save is not None:
            save.write_text(made.dump(), "utf-8")
        if export:
            say(dump_csv(kept | {tp: at.offset for tp, at in made.positions.items()}))
            if not execute:
                return
        _finish(ledger, made, reason, execute=execute, force=force, as_json=as_json)


def rewind(
    group: options.Group,
    *,
    version: Annotated[int, typer.Option(min=1, help="Of the ledger, as `history` shows it.")],
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Set all positions to what they were at a version of the ledger.

    Example: offsetkeeper rewind orders --version 1207 --reason "bad release" --execute
    """
    from offsetkeeper.operations import plan_rewind  # noqa: PLC0415 - loaded on use

    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger, options.open_cluster(chosen) as cluster:
        made = plan_rewind(ledger, cluster, version)
        _finish(ledger, made, reason or f"rewind to version {version}", execute=execute, force=force, as_json=as_json)


def undo(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    execute: Execute = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Take the newest reset back, with all that was committed since.

    Example: offsetkeeper undo orders --execute
    """
    from offsetkeeper.operations import plan_undo  # noqa: PLC0415 - loaded on use

    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger, options.open_cluster(chosen) as cluster:
        made, entry = plan_undo(ledger, cluster)
        why = reason or f"undo of version {entry.version}" + (f" ({entry.reason})" if entry.reason else "")
        _finish(ledger, made, why, execute=execute, force=force, as_json=as_json)


def copy(
    group: options.Group,
    *,
    to: ToGroup,
    store: options.Store = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over what the target has of it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Though a run that died still holds the group.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Copy a group into another store: positions, generation, history. The source is only read.

    Example: offsetkeeper copy orders --store sqlite:///offsets.db --to postgresql://host/shop
    """
    from offsetkeeper import copying  # noqa: PLC0415 - loaded on use

    with (
        options.open_store(options.settings(store)) as source,
        options.open_store(options.Settings(to)) as target,
    ):
        found = copying.copy(group, source, target, overwrite=overwrite, force=force)
        if as_json:
            say_json({"group": group, "from": source.address, "to": target.address, "version": found.version})
        else:
            say(f"{len(found.positions)} positions of {group} are in {target.address} now, compared one by one")


def _scope(
    to: Any, named: list[str], stored: set[TopicPartition] | None, configured: Iterable[str]
) -> tuple[set[TopicPartition], set[str]]:
    """Return the partitions, and the whole topics, that a reset moves; `stored` are those of --all-topics."""
    if isinstance(to, Mapping):
        return set(to), set()
    if stored is not None:
        return stored, set(configured)
    if not named:
        raise SettingsError("say what is to be moved: --topic orders, --topic orders:0,1, or --all-topics")
    return parse_scope(named)


def _finish(ledger: Any, made: Any, reason: str, *, execute: bool, force: bool, as_json: bool) -> None:
    from offsetkeeper.operations import apply_reset  # noqa: PLC0415 - loaded on use

    if execute:
        apply_reset(ledger, made, _signed(reason), force=force)
    if as_json:
        say_json({"executed": execute, "digest": made.digest, "steps": [step.as_dict() for step in made.steps]})
        return
    columns = ("topic", "partition", "old", "new", "read again", "skipped", "above the beginning")
    say_table(
        columns,
        [(*s.topic_partition, s.old, s.new.offset, s.replayed, s.skipped, s.above_beginning) for s in made.steps],
        title=f"{made.group}, from version {made.version}",
    )
    say("Done." if execute else "Nothing was changed. Add --execute to do it.")


def _signed(reason: str) -> str:
    return f"{reason} (by {getpass.getuser()})" if reason else f"by {getpass.getuser()}"
