"""Which groups the page lists and in which order, as its address asks, and the alarms in a line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

from offsetkeeper.monitor import formatting
from offsetkeeper.monitor.alerts import Alarm
from offsetkeeper.monitor.order import Column, Order
from offsetkeeper.monitor.view import GroupSample
from offsetkeeper.operate.status import Status

_WORST_FIRST = {status: rank for rank, status in enumerate(Status)}
_LONGEST_TEXT = 300  # no name is longer
UNREADABLE = "cannot be read"


class Row(NamedTuple):
    """A group in the list; `word` is its status, or that it cannot be read."""

    name: str
    sample: GroupSample
    word: str


def _rank(row: Row) -> int:
    if row.sample.error:
        return -1
    return len(_WORST_FIRST) if row.sample.status is None else _WORST_FIRST[row.sample.status]


COLUMNS: Sequence[Column[Row]] = (
    Column("group", "Group", lambda row: row.name.casefold()),
    Column("status", "Status", _rank),
    Column("waiting", "Waiting", lambda row: row.sample.waiting, descending=True, number=True),
    Column(
        "oldest",
        "Oldest unread",
        lambda row: row.sample.total and row.sample.total.seconds,
        descending=True,
        number=True,
    ),
    Column(
        "read",
        "Read/s",
        lambda row: row.sample.total and row.sample.total.speed.processed,
        descending=True,
        number=True,
    ),
    Column("caught-up", "Caught up in", lambda row: row.sample.time_to_catch_up_s, descending=True, number=True),
    Column(
        "retention",
        "Retention used",
        lambda row: row.sample.total and row.sample.total.retention_used,
        descending=True,
        number=True,
    ),
    Column("held", "Held by", lambda row: row.sample.snapshot.owner and row.sample.snapshot.owner.name.casefold()),
    Column("commit", "Last commit", lambda row: row.sample.committed_ms, number=True),
)
_WORST = Order("status")


class Asked(NamedTuple):
    """What the address of the list asks for.

    Attributes:
        text: a part of the name, in large or small letters.
        word: the only status that is listed; empty lists all.
        order: of the groups; the worst first, unless the address has another.
    """

    text: str = ""
    word: str = ""
    order: Order = _WORST

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """Return what the query of an address asks for; a column that is not known is the status."""
        return cls(
            query.get("search", "").strip()[:_LONGEST_TEXT],
            query.get("status", "")[:_LONGEST_TEXT],
            Order.of(query.get("sort", ""), COLUMNS, _WORST.key),
        )

    @property
    def address(self) -> str:
        """The address that asks for it."""
        sort = "" if self.order == _WORST else self.order.text
        asked = {"search": self.text, "status": self.word, "sort": sort}
        query = urlencode({name: value for name, value in asked.items() if value}, quote_via=quote)
        return f"/?{query}" if query else "/"

    def turned(self, column: Column[Row]) -> Asked:
        """Return what a click on the head of a column asks for."""
        return self._replace(order=self.order.turned(column))


class Listing(NamedTuple):
    """The list of groups.

    Attributes:
        rows: those that are listed, in order.
        counts: how many groups there are of each status that the text leaves over, the worst first.
        every: how many groups there are.
    """

    rows: Sequence[Row]
    counts: Mapping[str, int]
    every: int


def listing(groups: Mapping[str, GroupSample], asked: Asked) -> Listing:
    """Return the groups that are asked for."""
    every = [Row(name, sample, _word(sample)) for name, sample in groups.items()]
    named = [row for row in every if asked.text.casefold() in row.name.casefold()]
    counts = Counter(row.word for row in sorted(named, key=_rank))
    if asked.word and asked.word not in counts:  # it stays on the page, so that it can be taken away
        counts[asked.word] = 0
    chosen = [row for row in named if asked.word in {"", row.word}]
    return Listing(asked.order.sorted(sorted(chosen, key=lambda row: row.name), COLUMNS), counts, len(every))


def counted(alarms: Iterable[Alarm]) -> list[tuple[str, int]]:
    """Return the rules that fire, each with the number of its groups, the most first."""
    return Counter(alarm.key.rule for alarm in alarms).most_common()


def _word(sample: GroupSample) -> str:
    return UNREADABLE if sample.error else formatting.word(sample.status)
