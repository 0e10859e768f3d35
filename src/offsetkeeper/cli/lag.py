"""The command lag: how far a group is behind, how fast it reads, and how near retention is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.lag_table import Sort, say_lag, say_next, usual_top
from offsetkeeper.cli.limits import FailOn, Limits, MaxAge, MaxLag
from offsetkeeper.cli.output import complain, say_json, shown
from offsetkeeper.core import environment
from offsetkeeper.core.published import no_offsets
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.operate.json_view import edited_fields, lag_fields
from offsetkeeper.operate.lag import Sample, group_lag, speeds, total
from offsetkeeper.operate.status import Point, entries_to_read, status, thinned

Group = Annotated[
    str,
    typer.Argument(
        help="Name of the consumer group, as in Kafka (group.id). Without it and without --checkpoint: all groups."
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="Measure a Spark checkpoint instead of a store: its folder, webhdfs:// or s3:// URL.")
]
Top = Annotated[int | None, typer.Option(min=1, help="Show only this many partitions: the worst, as --sort says.")]
Every = Annotated[
    bool,
    typer.Option(
        "--all", help="Show all partitions. On a terminal only the worst ten of many are shown without --all."
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(min=0.1, max=86_400, help="Measure again every this many seconds, until you press Ctrl-C."),
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
    sort: Annotated[
        Sort,
        typer.Option(help="Sort partitions by name, by age, by unread records, or by used retention; the worst first."),
    ] = Sort.PARTITION,
    every: Every = False,
    max_age: MaxAge = "",
    max_lag: MaxLag = None,
    fail_on: FailOn = "",
    as_json: options.AsJson = False,
) -> None:
    """Show the lag of a group in records and seconds, its speed, how near retention is, and its status.

    Without a group: one line for each group of the store, the worst first. No run is needed. A time after ~ is an
    estimate. Exit code 1 if the status is `losing data`, `refused` or `topic gone`, or a limit that you give is
    exceeded. The meaning of each status: https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper lag orders --brokers localhost:9092 --watch 5
    """
    limits = Limits.of(max_age, max_lag, fail_on)
    if not (group or checkpoint):
        limited = bool(max_age or max_lag is not None or fail_on)
        if topic or top or every or sort is not Sort.PARTITION:
            raise SettingsError("--topic, --top, --sort and --all are for one group: name it")
        from offsetkeeper.cli.lag_groups import lag_of_all  # noqa: PLC0415 - it loads what `serve` polls with

        if lag_of_all(options.settings(store, brokers, kafka), limits, watch, limited=limited, as_json=as_json):
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
                raise Refused(_nothing(name, ledger.store.address, no_offsets(ledger.store)))
            sample = Sample(environment.now_ms(), found)
            entries = ledger.history(entries_to_read(len(found)))
            differing = options.say_edited(ledger)
            word = status(snapshot, found, entries, sample.at_ms, points)
            speed = speeds(sample, entries, before)
            if as_json:
                say_json(lag_fields(name, word, found, speed) | edited_fields(differing))
            else:
                say_lag(name, word, found, speed, sort, None if every else top or usual_top(len(found)))
                say_next(name, word)
            if watch is None:
                break
            before = sample
            points = thinned(points, Point(sample.at_ms, total(found, {}).waiting), entries)
            environment.wait(watch)
    problems = [*limits.problems(name, word, total(found, speed), ledger=snapshot.version > 0)]
    for problem in problems:
        complain(shown(problem))
    if problems:
        raise typer.Exit(1)


def _source(store: str, checkpoint: str, group: str) -> tuple[str, str]:
    """Return the URL of the store to read (empty for the configured one), and the name to show."""
    if not checkpoint:
        return store, group
    from offsetkeeper.checkpoint import LocalFiles, open_files  # noqa: PLC0415 - most groups have a store

    files = open_files(checkpoint)
    if isinstance(files, LocalFiles):
        return f"checkpoint://{quote(files.address)}", group or checkpoint
    return f"checkpoint+{checkpoint}", group or files.address


def _nothing(name: str, address: str, why: str) -> str:
    return (
        f"{shown(name)}: {address} has no position of a topic that exists in Kafka{why}. Check the name "
        "(offsetkeeper groups lists all), or name the topics that the group reads, such as --topic orders"
    )
