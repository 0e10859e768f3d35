"""HTML of a view, by templates that escape whatever comes from Kafka and the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsetkeeper import __version__
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import topics_of
from offsetkeeper.core.plan import Verdict
from offsetkeeper.monitor import cells, charts, formatting
from offsetkeeper.monitor.alerts import Alarm
from offsetkeeper.monitor.group_path import path_of
from offsetkeeper.monitor.listing import COLUMNS, Asked, counted, listing
from offsetkeeper.monitor.view import View

_PARTITIONS, _TOPICS = 200, 10  # shown at first, of those that are most behind
_MOST_PARTITIONS, _MOST_TOPICS = 1000, 100  # shown at all: a page of 10,000 takes a second and five megabytes
_ENTRIES = 50
_SPARK = 60  # points of a picture in the list
_ALL = Asked()
_SHOWN = ("number", "share", "span", "clock", "moment", "iso", "word", "meaning", "told", "catch_up")


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
        shown = {name: getattr(formatting, name) for name in _SHOWN}
        self._templates.filters |= {**shown, "link": link, "path": path_of, "slug": slug, "values": values}
        self._templates.globals |= {
            "store": store,
            "brokers": brokers,
            "every_s": every_s,
            "changes": changes,
            "release": __version__,
        }

    def groups(self, view: View, asked: Asked = _ALL) -> str:
        """Return the page with the groups that are asked for; all, the worst first, unless told otherwise."""
        found = listing(view.groups, asked)
        waiting = [row.sample.waiting for row in found.rows if row.sample.waiting is not None]
        return self._render(
            "groups.html",
            view,
            view.alarms,
            asked=asked,
            listing=found,
            columns=COLUMNS,
            curves={row.name: charts.curve(row.sample.points, _SPARK) for row in found.rows},
            waiting=sum(waiting) if waiting else None,
        )

    def group(self, view: View, name: str, *, whole: bool, shade: str = "age") -> str:
        """Return the page of one group.

        Args:
            view: what is known.
            name: of the group.
            whole: whether a thousand partitions are in the table, or two hundred; those that are most behind.
            shade: what the cells tell, a key of `cells.SHADES`.
        """
        sample = view.groups[name]
        every = sample.lags or ()
        lags = cells.worst_of(every, _MOST_PARTITIONS if whole else _PARTITIONS)
        told = [row for row in sample.plan.rows if row.verdict is not Verdict.RESUME] if sample.plan else []
        strips = cells.strips(every, shade, _MOST_TOPICS if whole else _TOPICS)
        entries = sample.entries[:_ENTRIES]
        return self._render(
            "group.html",
            view,
            [alarm for alarm in view.alarms if alarm.key.group == name],
            name=name,
            sample=sample,
            lags=lags,
            most=max((lag.records or 0 for lag in lags), default=0),
            told=told[:_PARTITIONS],
            told_more=max(0, len(told) - _PARTITIONS),
            curve=charts.curve(sample.points),
            time_line=charts.time_line(sample.entries, view.at_ms),
            whole=whole,
            most_partitions=_MOST_PARTITIONS,
            most_topics=_MOST_TOPICS,
            shade=shade,
            shades=cells.SHADES,
            strips=strips,
            strip_count=len({lag.topic_partition.topic for lag in every}),
            legend=cells.legend(shade) + cells.marks(strips),
            entries=[(entry, _size(entry)) for entry in entries],
            unfolds=any(entry.ranges for entry in entries),
            topics=sorted(topics_of(sample.snapshot.positions)),
        )

    def missing(self, view: View, name: str) -> str:
        """Return the page for what is not there."""
        return self._render("missing.html", view, (), name=name)

    def _render(self, template: str, view: View, alarms: Sequence[Alarm], **names: Any) -> str:
        told = {"ago": partial(formatting.ago, now_ms=view.at_ms), "alarms": alarms, "counted": counted(alarms)}
        return self._templates.get_template(template).render(view=view, **told, **names)


def link(name: str) -> str:
    """Return the path of a group's page."""
    return f"/groups/{path_of(name)}"


def slug(word: str) -> str:
    """Return a status as a class of the style sheet."""
    return word.replace(" ", "-")


def values(picture: charts.Curve | charts.TimeLine) -> str:
    """Return what a picture shows as JSON, for the script: of each moment its time, x, heights and words."""
    rounded = [(at_ms, round(x, 1), [round(y, 1) for y in ys], text) for at_ms, x, ys, text in picture.values]
    return json.dumps(rounded, ensure_ascii=False, separators=(",", ":"))


def _size(entry: Entry) -> int | None:
    return sum(r.size for r in entry.ranges) or None
