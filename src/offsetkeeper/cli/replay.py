"""The command replay: reads given ranges again without touching the group."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table
from offsetkeeper.cli.targets import TopicOption, parse_datetime, parse_scope
from offsetkeeper.core import environment
from offsetkeeper.errors import SettingsError, listed
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.replay import (
    Limit,
    plan_replay,
    plan_replay_of,
    replay_batch,
    wanted_rows,
)
from offsetkeeper.operate.replay_plan import Replay, record_fields
from offsetkeeper.operate.replay_records import replay_records
from offsetkeeper.readers import open_reader, task_error

Version = Annotated[
    int | None,
    typer.Option(min=1, help="Read the batch whose commit made this version again; `history` shows versions."),
]
FromOffset = Annotated[int | None, typer.Option(min=0, help="Start at this offset.")]
ToOffset = Annotated[int | None, typer.Option(min=0, help="End before this offset.")]
FromDatetime = Annotated[
    str, typer.Option(help="Read records with a time from this one on, such as 2026-01-31T12:00:00+00:00.")
]
ToDatetime = Annotated[
    str, typer.Option(help="Read records with a time before this one, such as 2026-01-31T13:00:00+00:00.")
]
Ordered = Annotated[
    bool,
    typer.Option(
        "--ordered",
        help="The records are in the order of their times: end at the first one at or after --to-datetime. Without it "
        "all records up to the end of the topic are looked at.",
    ),
]
Output = Annotated[str, typer.Option(help="Write the records as JSON lines to this new file; - is stdout.")]
Process = Annotated[
    str,
    typer.Option(
        help="Call this function, given as module:function, with a Spark DataFrame and the batch. It writes by itself."
    ),
]
Partial = Annotated[
    bool, typer.Option("--partial", help="Read the rest even if a part of the records is lost, or may be.")
]


def replay(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    version: Version = None,
    topic: TopicOption = None,
    from_offset: FromOffset = None,
    to_offset: ToOffset = None,
    from_datetime: FromDatetime = "",
    to_datetime: ToDatetime = "",
    ordered: Ordered = False,
    output: Output = "",
    process: Process = "",
    partial: Partial = False,
    as_json: options.AsJson = False,
) -> None:
    """Read records again without touching the group: no position moves, and no run is disturbed.

    The command shows the ranges, and which records are lost: retention has deleted them, or an election has cut them
    from the log. --output or --process reads the others. By default the ranges start at the beginning and end at the
    group's positions. Exit code 1 if a part is lost, or may be.

    Example: offsetkeeper replay orders --version 1207 --output batch.jsonl
    """
    start, end = _bound("from", from_offset, from_datetime), _bound("to", to_offset, to_datetime)
    if (version is None) == (not topic and start is None and end is None):
        raise SettingsError("say what to read: either --version, or --topic, --from-… and --to-…")
    if ordered and not to_datetime:
        raise SettingsError("--ordered is about --to-datetime: give both")
    if output and process:
        raise SettingsError("give --output or --process, not both")
    scope = parse_scope(topic or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group, read_only=True) as ledger, options.open_cluster(chosen) as cluster:
        if version is None:
            kept = cluster.retentions
            made = plan_replay(ledger, cluster, start=start, end=end, scope=scope, ordered=ordered, retentions=kept)
        else:
            made = plan_replay_of(ledger, cluster, version)
        options.check_stored(ledger)
        if not (output or process):
            _show(made, as_json=as_json)
        elif not (made.whole or partial):
            raise SettingsError(f"{made.losses}: add --partial to read the rest")
        elif output:
            count = _write(made, cluster, output)
            _done(made, f"{count} records written", as_json=as_json, quiet=output == "-")
        else:
            _process(made, cluster, process)
            _done(made, f"{process} is done", as_json=as_json)
    if not (made.whole or partial):
        raise typer.Exit(1)


def _show(made: Replay, *, as_json: bool) -> None:
    if as_json:
        say_json(made.as_dict())
        return
    columns = ["topic", "partition", "from", "to", "records at most", "lost to retention"] + ["cut"] * bool(made.cut)
    rows = [
        (*each.left, each.left.size, (each.lost - each.cut) or None, *([each.cut or None] if made.cut else []))
        for each in made.stretches
    ]
    title = f"{made.group}: {made.size} offsets to read again"
    if made.since or made.before:
        times = " ".join(f"{word} {at.isoformat()}" for word, at in (("from", made.since), ("to", made.before)) if at)
        title = f"{made.group}: {made.size} offsets to look at, for records with a time {times}"
    say_table(columns, rows, title=title)
    if made.cut or made.perhaps_deleted:
        say(f"note: {made.losses}")
    if made.emptied:
        say(_emptied(made))
    say("Nothing was read. Add --output or --process to read the records.")


def _emptied(made: Replay) -> str:
    told = listed(made.emptied, ", ")
    return (
        f"note: retention has deleted all records of these partitions, as they are older than --from-datetime: {told}"
    )


def _done(made: Replay, what: str, *, as_json: bool, quiet: bool = False) -> None:
    if made.emptied:
        typer.echo(_emptied(made), err=True)
    if quiet:
        typer.echo(what, err=True)
    elif as_json:
        say_json({**made.as_dict(), "done": what})
    else:
        say(what)


def _write(made: Replay, cluster: KafkaCluster, output: str) -> int:
    count = 0
    with _opened(output) as file:
        escaped = (file.encoding or "").lower().replace("-", "") != "utf8"  # what others cannot hold stays JSON
        for record in replay_records(made, cluster):
            file.write(json.dumps(record_fields(record), ensure_ascii=escaped) + "\n")
            count += 1
    return count


@contextmanager
def _opened(output: str) -> Iterator[TextIO]:
    """Lend a file that gets its name only when it is complete."""
    if output == "-":
        yield sys.stdout
        return
    path = Path(output)
    part = path.with_name(f"{path.name}.{environment.token(4)}.part")  # no other replay's, and nobody can guess it
    try:
        if os.path.lexists(path):
            raise SettingsError(f"{path} already exists: give a new file")
        with part.open("x", encoding="utf-8") as file:
            try:
                yield file
                file.flush()
                part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error}") from error


def _process(made: Replay, cluster: KafkaCluster, name: str) -> None:
    from offsetkeeper.sinks.functions import unwritten  # noqa: PLC0415 - a command that shows loads no sink

    function = _function(name)
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError("--process needs Spark: pip install 'offsetkeeper[spark]'") from error
    reader = open_reader("auto", cluster, group=made.group, headers=True)
    running = SparkSession.getActiveSession()
    spark = running or SparkSession.builder.appName(f"offsetkeeper replay {made.group}").getOrCreate()
    try:
        frame = reader.read(spark, made.ranges, made.topic_ids)
        lacking = unwritten(function(wanted_rows(made, frame), replay_batch(made)))
    except Exception as error:
        found = task_error(error)
        if found is None:
            raise
        raise found from error
    finally:
        if running is None:
            spark.stop()
    if lacking:
        raise SettingsError(f"{name} returned {lacking}: write it in the function, and return None")


def _function(name: str) -> Callable[[Any, Any], object]:
    module, _, attribute = name.partition(":")
    sys.path.append("")  # the current folder, after all others: in one that is not yours a file hides no module
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"--process {name}: write module:function, importable from here ({error})") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise SettingsError(f"--process {name} is not a function")
    return found  # type: ignore[no-any-return]  # its parameters cannot be seen from here


def _bound(side: str, offset: int | None, at: str) -> Limit:
    if offset is not None and at:
        raise SettingsError(f"give --{side}-offset or --{side}-datetime, not both")
    return parse_datetime(at, f"--{side}-datetime") if at else offset
