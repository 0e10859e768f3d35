"""The command lag: how far behind, how fast, and how near retention is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from offsetkeeper.checkpoint import LocalFiles, open_files
from offsetkeeper.cli import options
from offsetkeeper.cli.lag_groups import lag_of_all
from offsetkeeper.cli.lag_table import Sort, say_lag, usual_top
from offsetkeeper.cli.limits import FailOn, Limits, MaxAge, MaxLag
from offsetkeeper.cli.output import complain, say_json
from offsetkeeper.core import environment
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.operate.json_view import edited_fields, lag_fields
from offsetkeeper.operate.lag import Sample, group_lag, speeds, total
from offsetkeeper.operate.status import Point, entries_to_read, status, thinned

Group = Annotated[str, typer.Argument(help="The consumer group; without it, and without a checkpoint, all groups.")]
Checkpoint = Annotated[str, typer.Option(help="A Spark checkpoint, instead of a store: its folder, webhdfs or s3 URL.")]
Top = Annotated[int | None, typer.Option(min=1, help="Show the worst partitions only, so many of them.")]
Every = Annotated[
    bool, typer.Option("--all", help="Show all partitions; on a terminal the worst ten are shown where there are many.")
]
Watch = Annotated[
    float | None, typer.Option(min=0.1, max=86_400, help="Measure again every so many seconds, until interrupted.")
]


def lag(
    group: Group = "",
    *,
    store: options.Store = "",
    checkpoint: Checkpoint = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    watch: Watch = None,
    top: Top = None,
    sort: Annotated[Sort, typer.Option(help="Which partitions are worst, and come first.")] = Sort.PARTITION,
    every: Every = False,
    max_age: MaxAge = "",
    max_lag: MaxLag = None,
    fail_on: FailOn = "",
    as_json: options.AsJson = False,
) -> None:
    """Show how far a group is behind, in records and in seconds, how fast it is, how near retention is, and a status.

    Without a group: all groups of the store, a line each, the worst first. Works also while nothing runs. A time after
    ~ is an estimate. Exit code 1 where unread records are lost, or about to be, where no run could start, and beyond
    the limits that are given.

    Example: offsetkeeper lag orders --brokers localhost:9092 --watch 5
    """
    limits = Limits.of(max_age, max_lag, fail_on)
    if not (group or checkpoint):
        if topic or top or every or sort is not Sort.PARTITION:
            raise SettingsError("--topic, --top, --sort and --all are for one group: name it")
        if lag_of_all(options.settings(store, brokers, kafka), limits, watch, as_json=as_json):
            raise typer.Exit(1)
        return
    url, name = _source(store, checkpoint, group)
    chosen = options.settings(url, brokers, kafka)
    before: Sample | None = None
    points: Sequence[Point] = ()
    with (
        options.open_ledger(chosen, group or "checkpoint", read_only=True) as ledger,
        options.open_cluster(chosen) as cluster,
    ):
        while True:
            snapshot = ledger.load()
            found = group_lag(snapshot, cluster, topic or chosen.topics)
            if not found or (not topic and options.nothing_stored(ledger)):
                raise Refused(_nothing(name, ledger.store.address))
            sample = Sample(environment.now_ms(), found)
            entries = ledger.history(entries_to_read(len(found)))
            differing = options.say_edited(ledger)
            word = status(snapshot, found, entries, sample.at_ms, points)
            speed = speeds(sample, entries, before)
            if as_json:
                say_json(lag_fields(name, word, found, speed) | edited_fields(differing))
            else:
                say_lag(f"{name}: {word}", found, speed, sort, None if every else top or usual_top(len(found)))
            if watch is None:
                break
            before = sample
            points = thinned(points, Point(sample.at_ms, total(found, {}).waiting), entries)
            environment.wait(watch)
    problems = [*limits.problems(name, word, total(found, speed))]
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)


def _source(store: str, checkpoint: str, group: str) -> tuple[str, str]:
    """Return the URL of the store to look into, empty for the one of the settings, and the name of what is found."""
    if not checkpoint:
        return store, group
    files = open_files(checkpoint)
    if isinstance(files, LocalFiles):
        return f"checkpoint://{quote(files.address)}", group or checkpoint
    return f"checkpoint+{checkpoint}", group or files.address


def _nothing(name: str, address: str) -> str:
    return (
        f"{name}: {address} has no position of a topic that Kafka has. Check the name, or say which topics it reads: "
        "offsetkeeper groups lists all names, and --topic orders is a topic"
    )
