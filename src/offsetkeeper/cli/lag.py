"""The command lag: how far behind, how fast, and how near retention is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated
from urllib.parse import quote

import typer

from offsetkeeper.checkpoint import LocalFiles, open_files
from offsetkeeper.cli import options
from offsetkeeper.cli.output import say_json, say_table, seconds
from offsetkeeper.core import environment
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.json_view import lag_fields
from offsetkeeper.operate.lag import Lag, Sample, Speed, Total, group_lag, speeds, total
from offsetkeeper.operate.status import Point, Status, status, thinned

Group = Annotated[str, typer.Argument(help="The consumer group; not needed for a checkpoint.")]
Checkpoint = Annotated[str, typer.Option(help="A Spark checkpoint, instead of a store: its folder, webhdfs or s3 URL.")]
Watch = Annotated[
    float | None, typer.Option(min=0.1, max=86_400, help="Measure again every so many seconds, until interrupted.")
]
_COLUMNS = ("topic", "partition", "position", "end", "records", "lost", "age", "retention", "lost in")
_SPEEDS = ("read/s", "written/s", "caught up")


def lag(
    group: Group = "",
    *,
    store: options.Store = "",
    checkpoint: Checkpoint = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    watch: Watch = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how far a group is behind, in records and in seconds, how fast it is, how near retention is, and a status.

    Works also while nothing runs. A time after ~ is an estimate. Exit code 1 where unread records are lost, or about
    to be, and where no run could start.

    Example: offsetkeeper lag orders --brokers localhost:9092 --watch 5
    """
    url, name = _source(store, checkpoint, group)
    chosen = options.settings(url, brokers, kafka)
    before: Sample | None = None
    points: Sequence[Point] = ()
    with (
        options.open_ledger(chosen, group or "checkpoint", read_only=True) as ledger,
        options.open_cluster(chosen) as cluster,
    ):
        while True:
            found = group_lag(ledger.load(), cluster, topic or chosen.topics)
            if not found or (not topic and options.nothing_stored(ledger)):
                raise SettingsError(_nothing(name, ledger.store.address))
            sample = Sample(environment.now_ms(), found)
            entries = ledger.history(200)
            word = status(ledger.snapshot, found, entries, sample.at_ms, points)
            _say(name, found, speeds(sample, entries, before), word, as_json=as_json)
            if watch is None:
                break
            before = sample
            points = thinned(points, Point(sample.at_ms, total(found, {}).waiting), entries)
            environment.wait(watch)
    if word in {Status.LOSING_DATA, Status.REFUSED}:
        raise typer.Exit(1)


def _say(
    name: str, lags: Sequence[Lag], speed: Mapping[TopicPartition, Speed], status: Status, *, as_json: bool
) -> None:
    """Show the lag of each partition, with the sums of each topic and of all."""
    if as_json:
        say_json(lag_fields(name, status, lags, speed))
        return
    topics = {topic: total(some, speed) for topic, some in groupby(lags, lambda lag: lag.topic_partition.topic)}
    every = total(lags, speed)
    rows = []
    for topic, some in groupby(lags, lambda lag: lag.topic_partition.topic):
        rows += [_row(lag, speed.get(lag.topic_partition, Speed())) for lag in some]
        if topics[topic].partitions > 1:
            rows.append(_sum(topic, topics[topic]))
    say_table((*_COLUMNS, *_SPEEDS), rows, title=f"{name}: {status}, {_words(every)}")


def _source(store: str, checkpoint: str, group: str) -> tuple[str, str]:
    """Return the URL of the store to look into, empty for the one of the settings, and the name of what is found."""
    if not checkpoint:
        if not group:
            raise SettingsError("name the group, or a checkpoint: offsetkeeper lag orders")
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


def _row(lag: Lag, speed: Speed) -> tuple[object, ...]:
    at = lag.remark if lag.position is None else lag.position
    odd = lag.remark in {"gone", "recreated", "beyond the end"}
    return (
        *lag.topic_partition,
        f"{at} ({lag.remark})" if odd else at,
        lag.end,
        lag.records,
        lag.lost or None,
        *_measures(lag),
        *_speed(speed, lag.records),
    )


def _sum(topic: str, of: Total) -> tuple[object, ...]:
    return (topic, "all", None, None, of.waiting, of.lost or None, *_measures(of), *_speed(of.speed, of.waiting))


def _measures(of: Lag | Total) -> tuple[str, ...]:
    used = "-" if of.retention_used is None else f"{of.retention_used:.0%}"
    return ("~ " * of.estimated + seconds(of.seconds), used, seconds(of.seconds_left))


def _speed(speed: Speed, records: int | None) -> tuple[str, ...]:
    numbers = (speed.processed, speed.produced)
    return (
        *("-" if number is None else f"{number:.3g}" for number in numbers),
        seconds(speed.catch_up_s(records)),
    )


def _words(of: Total) -> str:
    words = [f"{of.waiting} records behind"] if of.waiting is not None else []
    words += [f"the oldest from {seconds(of.seconds)} ago"] if of.seconds else []
    words += [f"{of.lost} lost"] if of.lost else []
    words += [f"partitions without a commit: {of.uncommitted}"] if of.uncommitted else []
    words += [f"partitions that are gone: {of.gone}"] if of.gone else []
    catch_up = of.speed.catch_up_s(of.waiting)
    return ", ".join([*words, *([f"caught up in {seconds(catch_up)}"] if catch_up else [])])
