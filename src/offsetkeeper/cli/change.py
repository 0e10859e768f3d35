"""Commands that change a group: reset, rewind, undo, copy. Each shows what it would do, and does it with --execute."""

from __future__ import annotations

import csv
import getpass
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table
from offsetkeeper.errors import SettingsError
from offsetkeeper.model import TopicPartition

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_PARTITIONS = re.compile(r"([^:]+)(?::(\d+(?:,\d+)*))?")

Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this, it is only shown.")]
Force = Annotated[bool, typer.Option("--force", help="Also while a run holds the group: that run is fenced.")]
Reason = Annotated[str, typer.Option(help="Why, for the history.")]
Scope = Annotated[list[str] | None, typer.Option("--topic", help="topic, or topic:0,1; may be repeated.")]
ToGroup = Annotated[str, typer.Option("--to", help="URL of the store to copy to.")]


def reset(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: Scope = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics of the group.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the beginning.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where they are, for --export.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To an offset.")] = None,
    to_datetime: Annotated[str, typer.Option(help="To the first record at or after 2026-01-31T12:00:00+00:00.")] = "",
    by_duration: Annotated[str, typer.Option(help="To so long ago: PnDTnHnMnS.")] = "",
    shift_by: Annotated[int | None, typer.Option(help="Forwards or, if negative, backwards.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="To a CSV's lines topic,partition,offset.")] = None,
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
    from offsetkeeper.operations import Shift, plan_reset  # noqa: PLC0415 - each command loads what it needs
    from offsetkeeper.reset import load_plan  # noqa: PLC0415

    given: list[Any] = ["earliest"] * to_earliest + ["latest"] * to_latest + ["current"] * to_current
    given += [] if to_offset is None else [to_offset]
    given += [_datetime(to_datetime)] if to_datetime else []
    given += [datetime.now(UTC) - _duration(by_duration)] if by_duration else []
    given += [] if shift_by is None else [Shift(shift_by)]
    given += [_read_csv(from_file)] if from_file else []
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger:
        if plan is not None:
            if given or topic or all_topics:
                raise SettingsError("--plan says all: give no target and no topics beside it")
            made = load_plan(_read(plan), str(plan)).check(ledger.load(), ledger.store.address)
        else:
            if len(given) != 1:
                raise SettingsError(f"give exactly one target, such as --to-earliest; {len(given)} were given")
            if not topic and not all_topics and not from_file:
                raise SettingsError("say what is to be moved: --topic orders, --topic orders:0,1, or --all-topics")
            partitions, topics = _scope(topic or [])
            with options.open_cluster(chosen) as cluster:
                made = plan_reset(
                    ledger.load(), ledger.store.address, cluster, given[0], partitions=partitions, topics=topics
                )
        if save is not None:
            save.write_text(made.dump(), "utf-8")
        if export:
            for step in made.steps:
                say(f"{step.topic_partition.topic},{step.topic_partition.partition},{step.new.offset}")
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


def _scope(texts: list[str]) -> tuple[set[TopicPartition], set[str]]:
    partitions: set[TopicPartition] = set()
    topics: set[str] = set()
    for text in texts:
        match = _PARTITIONS.fullmatch(text)
        if match is None:
            raise SettingsError(f"--topic {text}: write topic, or topic:0,1")
        if match[2] is None:
            topics.add(match[1])
        else:
            partitions |= {TopicPartition(match[1], int(number)) for number in match[2].split(",")}
    return partitions, topics


def _datetime(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(f"--to-datetime {text}: write it like 2026-01-31T12:00:00+00:00") from error
    if found.tzinfo is None:
        raise SettingsError(f"--to-datetime {text} has no time zone: add one, such as +00:00 or Z")
    return found


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise SettingsError(f"--by-duration {text}: write it like P1DT2H30M")
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _read_csv(path: Path) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(_read(path).splitlines()), 1):
        try:
            topic, partition, offset = (cell.strip() for cell in row)
            tp, new = TopicPartition(topic, int(partition)), int(offset)
        except ValueError as error:
            raise SettingsError(f"{path}, line {number}: write topic,partition,offset ({error})") from error
        if tp in found:
            raise SettingsError(f"{path}, line {number}: {tp} is there twice")
        found[tp] = new
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
