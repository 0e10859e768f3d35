"""HTML of a view, by templates that escape whatever comes from Kafka and the store."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsetkeeper import __version__
from offsetkeeper.core.model import Entry, kafka_topics
from offsetkeeper.core.plan import Verdict
from offsetkeeper.monitor import charts, formatting
from offsetkeeper.monitor.view import GroupLook, View
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.status import Status

_PARTITIONS = 200  # shown at first, of those that are most behind
_ENTRIES = 50
_WORST_FIRST = {status: rank for rank, status in enumerate(Status)}


class Pages:
    """Renders.

    Args:
        store, brokers: where from, without credentials, to be shown.
        every_s: seconds between two looks.
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

    def groups(self, view: View) -> str:
        """Return the page with all groups, the worst first."""
        looks = sorted(view.groups.items(), key=lambda item: (_rank(item[1]), item[0]))
        counts = Counter(formatting.word(look.status) for _, look in looks)
        waiting = [look.waiting for _, look in looks if look.waiting is not None]
        rows = [(name, look, charts.curve(look.points)) for name, look in looks]
        return self._render("groups.html", view, rows=rows, counts=counts, waiting=sum(waiting) if waiting else None)

    def group(self, view: View, name: str, *, whole: bool) -> str:
        """Return the page of one group, with all partitions or those that are most behind."""
        look = view.groups[name]
        lags = sorted(look.lags or (), key=lambda lag: lag.topic_partition)
        if not whole and len(lags) > _PARTITIONS:
            lags = sorted(sorted(lags, key=_behind)[:_PARTITIONS], key=lambda lag: lag.topic_partition)
        told = [row for row in look.plan.rows if row.verdict is not Verdict.RESUME] if look.plan else []
        return self._render(
            "group.html",
            view,
            name=name,
            look=look,
            lags=lags,
            most=max((lag.records or 0 for lag in lags), default=0),
            told=told[:_PARTITIONS],
            told_more=max(0, len(told) - _PARTITIONS),
            curve=charts.curve(look.points),
            time_line=charts.time_line(look.entries),
            cells=charts.cells(look.lags or ()),
            entries=[(entry, _size(entry)) for entry in look.entries[:_ENTRIES]],
            topics=sorted(kafka_topics(look.snapshot.positions)),
        )

    def missing(self, view: View, name: str) -> str:
        """Return the page for what is not there."""
        return self._render("missing.html", view, name=name)

    def _render(self, template: str, view: View, **names: Any) -> str:
        ago = {"ago": lambda at_ms: formatting.ago(at_ms, view.at_ms)}
        return self._templates.get_template(template).render(view=view, **ago, **names)


def link(name: str) -> str:
    """Return the path of a group's page."""
    return f"/groups/{quote(name, safe='')}"


def slug(word: str) -> str:
    """Return a status as a class of the style sheet."""
    return word.replace(" ", "-")


def _rank(look: GroupLook) -> int:
    return -1 if look.error else len(_WORST_FIRST) if look.status is None else _WORST_FIRST[look.status]


def _behind(lag: Lag) -> tuple[int, int]:
    return -lag.lost, -(lag.records or 0)


def _size(entry: Entry) -> int | None:
    return sum(r.size for r in entry.ranges) or None
