"""HTML of a view, by templates that escape whatever comes from Kafka and the store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsetkeeper import __version__
from offsetkeeper.core.model import Entry, kafka_topics
from offsetkeeper.core.plan import Verdict
from offsetkeeper.monitor import charts, formatting
from offsetkeeper.monitor.alerts import Alarm
from offsetkeeper.monitor.view import GroupSample, View
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.status import Status

_PARTITIONS = 200  # shown at first, of those that are most behind
_ENTRIES = 50
_WORST_FIRST = {status: rank for rank, status in enumerate(Status)}


class Wish(NamedTuple):
    """What of the list of groups is shown, and in which order.

    Attributes:
        search: a part of the name; upper and lower case do not count.
        status: one status word; "" for all.
        sort: a column by its name in `COLUMNS`; "" for the worst first.
    """

    search: str = ""
    status: str = ""
    sort: str = ""

    def but(self, **other: str) -> str:
        """Return the address of the list with something else of it."""
        wanted = {name: value for name, value in self._replace(**other)._asdict().items() if value}
        return f"/?{urlencode(wanted)}" if wanted else "/"


ALL = Wish()
COLUMNS: Mapping[str, Callable[[str, GroupSample], Any]] = {
    "name": lambda name, _: name,
    "waiting": lambda _, sample: _most(sample.waiting),
    "oldest": lambda _, sample: _most(sample.total.seconds if sample.total else None),
    "speed": lambda _, sample: _most(sample.total.speed.processed if sample.total else None),
    "retention": lambda _, sample: _most(sample.total.retention_used if sample.total else None),
    "commit": lambda _, sample: _most(sample.committed_ms),
}
"""By which columns the groups can be sorted."""


class Pages:
    """Renders.

    Args:
        store, brokers: where from, without credentials, to be shown.
        every_s: seconds between two polls.
        changes: whether groups may be reset.
    """

    def __init__(self, store: str, brokers: str, *, every_s: float, changes: bool) -> None:
        self._templates = Environment(
            loader=PackageLoader("offsetkeeper.monitor"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = {
            name: getattr(formatting, name) for name in ("number", "share", "clock", "moment", "iso", "word", "meaning")
        }
        self._templates.filters |= {**shown, "span": formatting.span, "link": link, "slug": slug}
        self._templates.globals |= {
            "store": store,
            "brokers": brokers,
            "every_s": every_s,
            "changes": changes,
            "release": __version__,
        }

    def groups(self, view: View, wish: Wish = ALL) -> str:
        """Return the page with the groups that are wished for, the worst first."""
        samples = sorted(view.groups.items(), key=lambda item: (_rank(item[1]), item[0]))
        counts = Counter(formatting.word(sample.status) for _, sample in samples)
        waiting = [sample.waiting for _, sample in samples if sample.waiting is not None]
        if weigh := COLUMNS.get(wish.sort):
            samples.sort(key=lambda item: weigh(*item))
        found = [(name, sample) for name, sample in samples if _is_wished(wish, name, sample)]
        rows = [(name, sample, charts.curve(sample.points)) for name, sample in found]
        told = sum(waiting) if waiting else None
        return self._render(
            "groups.html", view, rows=rows, counts=counts, waiting=told, wish=wish, alarms=_by_rule(view.alarms)
        )

    def group(self, view: View, name: str, *, whole: bool) -> str:
        """Return the page of one group, with all partitions or those that are most behind."""
        sample = view.groups[name]
        lags = sorted(sample.lags or (), key=lambda lag: lag.topic_partition)
        if not whole and len(lags) > _PARTITIONS:
            lags = sorted(sorted(lags, key=_behind)[:_PARTITIONS], key=lambda lag: lag.topic_partition)
        told = [row for row in sample.plan.rows if row.verdict is not Verdict.RESUME] if sample.plan else []
        return self._render(
            "group.html",
            view,
            name=name,
            sample=sample,
            lags=lags,
            most=max((lag.records or 0 for lag in lags), default=0),
            told=told[:_PARTITIONS],
            told_more=max(0, len(told) - _PARTITIONS),
            curve=charts.curve(sample.points),
            time_line=charts.time_line(sample.entries, view.at_ms),
            cells=charts.cells(sample.lags or ()),
            entries=[(entry, _size(entry)) for entry in sample.entries[:_ENTRIES]],
            topics=sorted(kafka_topics(sample.snapshot.positions)),
            alarms=_by_rule([alarm for alarm in view.alarms if alarm.key.group == name]),
        )

    def missing(self, view: View, name: str) -> str:
        """Return the page for what is not there."""
        return self._render("missing.html", view, name=name, alarms={})

    def _render(self, template: str, view: View, **names: Any) -> str:
        ago = {"ago": lambda at_ms, *, never=False: formatting.ago(at_ms, view.at_ms, never=never)}
        return self._templates.get_template(template).render(view=view, **ago, **names)


def link(name: str) -> str:
    """Return the path of a group's page."""
    return f"/groups/{quote(name, safe='')}"


def slug(word: str) -> str:
    """Return a status as a class of the style sheet."""
    return word.replace(" ", "-")


def _by_rule(alarms: Iterable[Alarm]) -> dict[str, list[Alarm]]:
    found: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        found.setdefault(alarm.key.rule, []).append(alarm)
    return found


def _is_wished(wish: Wish, name: str, sample: GroupSample) -> bool:
    return wish.search.casefold() in name.casefold() and wish.status in {"", formatting.word(sample.status)}


def _most(value: float | None) -> float:
    """Return what sorts the largest first, and what is not known last."""
    return math.inf if value is None else -value


def _rank(sample: GroupSample) -> int:
    return -1 if sample.error else len(_WORST_FIRST) if sample.status is None else _WORST_FIRST[sample.status]


def _behind(lag: Lag) -> tuple[int, int]:
    return -lag.lost, -(lag.records or 0)


def _size(entry: Entry) -> int | None:
    return sum(r.size for r in entry.ranges) or None
