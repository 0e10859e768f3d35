"""The tables of the command lag: all partitions or the worst ones, with sums for each topic and for the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

import typer

from offsetkeeper.cli.output import on_terminal, say, say_table, seconds, share
from offsetkeeper.core.commands import command
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.operate.lag import AHEAD, Lag, Speed, Total, total
from offsetkeeper.operate.status import Status
from offsetkeeper.operate.words import first_step


class Sort(StrEnum):
    """The sort key of partitions. The worst come first, except by partition."""

    PARTITION = "partition"
    AGE = "age"
    RECORDS = "records"
    RETENTION = "retention"


_ORDERS: dict[Sort, Callable[[Lag], tuple[float, ...]]] = {
    Sort.AGE: lambda lag: (-bool(lag.remark or lag.lost), -(lag.seconds or 0.0), -(lag.records or 0)),
    Sort.RECORDS: lambda lag: (-(lag.records or 0),),
    Sort.RETENTION: lambda lag: (-bool(lag.lost), -(lag.retention_used or 0.0)),
}
_COLUMNS = ("topic", "partition", "position", "end", "records", "lost", "age", "retention", "lost in")
_HELD_BACK = "held back"
# Columns that a narrow terminal leaves out, the first one first; those that explain the status are the last ones.
_SPARE = ("written/s", "read/s", "caught up", "lost in", "retention", "age")
_EXPLAINING = {
    Status.LOSING_DATA: ("lost in", "retention"),
    Status.GROWING: ("written/s", "read/s"),
    Status.STALLED: ("age",),
    Status.BEHIND: ("written/s", "read/s", "age"),
}
_BEFORE_THEM = ("end", "position")
_MANY, _WORST = 20, 10  # partitions
_SPEEDS = ("read/s", "written/s", "caught up")


def usual_top(partitions: int) -> int | None:
    """Return how many partitions are shown without --top and --all; None for all."""
    return _WORST if partitions > _MANY and on_terminal() else None


def say_lag(
    name: str,
    status: Status,
    lags: Sequence[Lag],
    speed: Mapping[TopicPartition, Speed],
    sort: Sort,
    top: int | None,
) -> None:
    """Show the status, the lag of all partitions or the worst ones, and the sums for each topic and for all."""
    every = total(lags, speed)
    extra = (_HELD_BACK,) if every.held_back else ()
    sums: list[tuple[object, ...]] = []
    shown: list[tuple[object, ...]] = []
    for topic, some in groupby(lags, lambda lag: lag.topic_partition.topic):
        partitions = [*some]
        of = total(partitions, speed)
        sums += [(*_sum(topic, of), *_more(of, extra))] if of.partitions > 1 else []
        shown += _rows(partitions, speed, extra) + sums[-1:] * (of.partitions > 1)
    if top is not None or sort is not Sort.PARTITION:
        worst = sorted(lags, key=_ORDERS[Sort.AGE if sort is Sort.PARTITION else sort])[:top]
        shown = [*sums, *_rows(worst, speed, extra)]
    title = f"{name}: {status}, {_words(every)}"
    say_table((*_COLUMNS, *_SPEEDS, *extra), shown, title=title, spare=_spare(status))
    if top is not None and top < len(lags):
        typer.echo(
            f"The worst {top} of {len(lags)} partitions. --all shows all, --top N shows N, --sort changes the order",
            err=True,
        )


def say_next(name: str, status: Status | None) -> None:
    """Say on a terminal the first thing to do for a group; nothing where all is well."""
    step = "".join(piece.text for piece in first_step(status, name))
    if step and on_terminal():
        say(f"Next for {name}: {step}. All of it: {command('doctor', name)}")


def _spare(status: Status) -> Sequence[str]:
    explaining = _EXPLAINING.get(status, ())
    others = tuple(name for name in _SPARE if name not in explaining)
    return (*others, *_BEFORE_THEM, *explaining) if explaining else others


def _rows(lags: Sequence[Lag], speed: Mapping[TopicPartition, Speed], extra: Sequence[str]) -> list[tuple[object, ...]]:
    return [(*_row(lag, speed.get(lag.topic_partition, Speed())), *_more(lag, extra)) for lag in lags]


def _row(lag: Lag, speed: Speed) -> tuple[object, ...]:
    at = lag.remark if lag.position is None else lag.position
    odd = lag.remark in {"gone", "another cluster", "recreated", "beyond the end"}
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
    return ("~ " * of.estimated + seconds(of.seconds), share(of.retention_used), seconds(of.seconds_left))


def _speed(speed: Speed, records: int | None) -> tuple[str, ...]:
    numbers = (speed.processed, speed.produced)
    return (
        *("-" if number is None else f"{number:.3g}" for number in numbers),
        seconds(speed.catch_up_s(records)),
    )


def _more(of: Lag | Total, extra: Sequence[str]) -> tuple[object, ...]:
    """Return the columns that are shown only if they have values."""
    return tuple(of.held_back for _ in extra)


def _words(of: Total) -> str:
    words = [f"{of.waiting} records behind"] if of.waiting is not None else []
    words += [f"the oldest from {seconds(of.seconds)} ago"] if of.seconds else []
    why = f" ({AHEAD}: {of.ahead})" if of.ahead else ""
    words += [f"partitions whose age is unknown: {of.undated}{why}"] if of.undated else []
    words += [f"{of.lost} lost"] if of.lost else []
    words += [f"partitions without a commit: {of.uncommitted}"] if of.uncommitted else []
    words += [f"partitions that are gone: {of.gone}"] if of.gone else []
    words += [f"partitions that end before the position: {of.beyond}"] if of.beyond else []
    held_back = f"{of.held_back} records are held back by open transactions"
    since = "" if of.held_back_s is None else f", since {seconds(of.held_back_s)} ago"
    words += [f"{held_back}{since}"] if of.held_back else []
    catch_up = of.speed.catch_up_s(of.waiting)
    return ", ".join([*words, *([f"caught up in {seconds(catch_up)}"] if catch_up else [])])
