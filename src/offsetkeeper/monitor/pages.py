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
from offsetkeeper.monitor import cells, charts, formatting, partitions
from offsetkeeper.monitor.alerts import Alarm
from offsetkeeper.monitor.choice import Choice
from offsetkeeper.monitor.group_path import path_of
from offsetkeeper.monitor.history import began_ms, durations_s
from offsetkeeper.monitor.listing import COLUMNS, Asked, counted, listing
from offsetkeeper.monitor.view import View
from offsetkeeper.operate import words

_PARTITIONS, _TOPICS = 200, 10  # shown at first, of those that are most behind
_MOST_PARTITIONS, _MOST_TOPICS = 1000, 100  # shown at all: a page of 10,000 takes a second and five megabytes
_ENTRIES = 50
_SPARK = 60  # points of a picture in the list
_ALL, _USUAL = Asked(), Choice()
_SHOWN = ("number", "share", "span", "clock", "moment", "iso", "word", "meaning", "told", "catch_up")


class Pages:
    """Renders.

    Args:
        store, brokers: where from, without credentials, to be shown.
        every_s: seconds between two polls.
        changes: whether groups may be reset.
        base: path under which browsers reach the server, without a slash at the end; empty for `/`.
    """

    def __init__(self, store: str, brokers: str, *, every_s: float, changes: bool, base: str = "") -> None:
        self._templates = Environment(
            loader=PackageLoader("offsetkeeper.monitor"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = {name: getattr(formatting, name) for name in _SHOWN}
        self._templates.filters |= {**shown, "path": path_of, "slug": slug, "values": values}
        self._templates.filters |= {"link": lambda name: f"{base}{link(name)}", "pieces": words.pieces}
        self._templates.filters |= {"first_step": words.first_step}
        self._templates.globals |= {
            "base": base,
            "words": words,
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

    def group(self, view: View, name: str, choice: Choice = _USUAL) -> str:
        """Return the page of one group.

        Args:
            view: what is known.
            name: of the group.
            choice: what is shown of it.
        """
        sample = view.groups[name]
        every = sample.lags or ()
        most = _MOST_PARTITIONS if choice.whole else _PARTITIONS
        lags = partitions.ordered(every, sample.speeds, choice.order, most)
        told = [row for row in sample.plan.rows if row.verdict is not Verdict.RESUME] if sample.plan else []
        strips = cells.strips(every, choice.shade, _MOST_TOPICS if choice.whole else _TOPICS)
        entries, took = sample.entries[:_ENTRIES], durations_s(sample.entries)
        return self._render(
            "group.html",
            view,
            [alarm for alarm in view.alarms if alarm.key.group == name],
            name=name,
            sample=sample,
            lags=lags,
            choice=choice,
            usual=partitions.USUAL,
            columns=partitions.COLUMNS,
            sorted_by=next(each.label.lower() for each in partitions.COLUMNS if each.key == choice.order.key),
            most=max((row.lag.records or 0 for row in lags), default=0),
            told=told[:_PARTITIONS],
            told_more=max(0, len(told) - _PARTITIONS),
            curve=charts.curve(sample.day if choice.day else sample.points),
            time_line=charts.time_line(sample.entries, view.at_ms, took),
            most_partitions=_MOST_PARTITIONS,
            most_topics=_MOST_TOPICS,
            shades=cells.SHADES,
            strips=strips,
            strip_count=len({lag.topic_partition.topic for lag in every}),
            legend=cells.legend(choice.shade) + cells.marks(strips),
            entries=[(entry, _size(entry)) for entry in entries],
            took=took,
            began_ms=began_ms(sample.snapshot.pending, sample.entries),
            unfolds=any(entry.ranges for entry in entries),
            topics=sorted(topics_of(sample.snapshot.positions)),
        )

    def words(self, view: View) -> str:
        """Return the page that says what each word means."""
        return self._render("words.html", view, ())

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
