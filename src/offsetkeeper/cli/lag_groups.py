"""The command lag without a group: one line for each group of the store, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from offsetkeeper.cli import options
from offsetkeeper.cli.lag_table import say_next
from offsetkeeper.cli.limits import Limits
from offsetkeeper.cli.output import complain, counted, say_json, say_table, seconds, share, shown
from offsetkeeper.core import environment
from offsetkeeper.errors import BrokerUnavailable, Refused, StoreUnavailable
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.view import GroupSample, View
from offsetkeeper.operate.status import Status

_COLUMNS = ("group", "status", "records", "lost", "age", "retention", "held back", "caught up", "held by", "committed")
_SPARE = ("caught up", "retention", "held back", "held by", "committed")  # a narrow terminal leaves the first one out
_EXPLAINING = {
    Status.LOSING_DATA: "retention",
    Status.HELD_BACK: "held back",
    Status.STALLED: "held by",
    Status.OUTPUT_AWAY: "held by",
}


def lag_of_all(chosen: options.Settings, limits: Limits, watch: float | None, *, limited: bool, as_json: bool) -> bool:
    """Show the lag of all groups; return whether a group exceeds the limits or could not be measured.

    Args:
        chosen: settings.
        limits: the limits.
        watch: seconds between two measurements, for ever; None measures once.
        limited: whether a limit was asked for. Then there must be a group: a check of a store that was emptied, or
            mistyped, must not look healthy.
        as_json: whether to print JSON.

    Raises:
        Refused: a limit was asked for, and the store has no groups.
        SettingsError: store or brokers are missing or wrong.
        StoreUnavailable, BrokerUnavailable: the store or the brokers do not answer.
    """
    with options.open_store(chosen, read_only=True) as store, options.open_cluster(chosen) as cluster:
        collector = Collector(store, cluster)
        while True:
            collector.poll()
            view = collector.view
            if not view.store.up:
                raise StoreUnavailable(view.store.error)
            if not view.kafka.up:
                raise BrokerUnavailable(view.kafka.error)
            if limited and not view.groups:
                raise Refused(f"{store.address} has no groups, so there is nothing to hold against the limits")
            bad = _say(view, limits, as_json=as_json)
            if watch is None:
                return bad
            environment.wait(watch)


def _say(view: View, limits: Limits, *, as_json: bool) -> bool:
    samples = sorted(view.groups.items(), key=_badness)
    problems = [problem for name, sample in samples for problem in _problems(name, sample, limits)]
    if as_json:
        say_json([_fields(name, sample) for name, sample in samples])
    else:
        counts = {word: sum(sample.status is word for _, sample in samples) for word in Status}
        words = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        say_table(
            _COLUMNS,
            [_row(name, sample) for name, sample in samples],
            title=f"{counted(len(samples), 'group')}: {words}" if words else counted(len(samples), "group"),
            spare=_spare(word for word, count in counts.items() if count),
            wrap=("held by",),
        )
        if samples:
            say_next(samples[0][0], samples[0][1].status)
    for problem in problems:
        complain(shown(problem))
    return bool(problems)


def _spare(found: Iterable[Status]) -> list[str]:
    """Return the columns that may be left out; the one that explains the worst status is the last one."""
    explaining = dict.fromkeys(_EXPLAINING[status] for status in found if status in _EXPLAINING)
    return [*(name for name in _SPARE if name not in explaining), *reversed(explaining)]


def _problems(name: str, sample: GroupSample, limits: Limits) -> Iterator[str]:
    if sample.error:
        yield f"{name}: {sample.error}"
    if sample.total is not None and sample.status is not None:
        yield from limits.problems(name, sample.status, sample.total, ledger=sample.snapshot.version > 0)


def _badness(named: tuple[str, GroupSample]) -> tuple[int, float, str]:
    name, sample = named
    rank = -1 if sample.status is None else [*Status].index(sample.status)
    return rank, -((sample.total and sample.total.seconds) or 0.0), name


def _row(name: str, sample: GroupSample) -> tuple[object, ...]:
    of, owner = sample.total, sample.snapshot.owner
    ago = None if sample.committed_ms is None else f"{seconds((sample.at_ms - sample.committed_ms) / 1000)} ago"
    if of is None:
        return (name, "cannot be read", *(None for _ in _COLUMNS[4:]), owner and owner.name, ago)
    numbers = (sample.waiting, of.lost or None, seconds(of.seconds), share(of.retention_used), of.held_back or None)
    return (name, sample.status, *numbers, seconds(sample.catch_up_s), owner and owner.name, ago)


def _fields(name: str, sample: GroupSample) -> dict[str, Any]:
    sums = {} if sample.total is None else sample.total.as_dict()
    return {"group": name, "status": sample.status, **sums, "error": sample.error or None}
