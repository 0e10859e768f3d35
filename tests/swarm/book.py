"""How often each record is to be in each output, and whether it is: the judge of a history. Pure.

One rule: what is behind the position of its partition is in each output once more than it was when the position was set
there, if it was before it then; all else is as often there as it was. So an operator's act that moves positions only
begins a new count (`Book.begin`): what is there now stays, and what comes after the positions comes once. Rows of a
batch that is still pending are not counted as there: its commit will count them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from swarm.records import Program, Record, Row, Where

Log = tuple[str, str, int]
_SHOWN = 6


class Batch(NamedTuple):
    """A batch that was begun and is not committed.

    Attributes:
        id: its id, which is in its rows.
        records: the places of its records.
    """

    id: str = ""
    records: frozenset[Where] = frozenset()


NONE = Batch()


class Finding(NamedTuple):
    """A promise that is broken.

    Attributes:
        kind: lost, doubled, changed, or what else went wrong.
        output: name of the output; empty if it is of none.
        what: a sentence.
    """

    kind: str
    output: str
    what: str


@dataclass
class Book:
    """What is known of one history.

    Attributes:
        records: all that Kafka has acknowledged, by number.
        programs: all that have run, by number.
        keeps: what each output keeps: exactly_once, at_least_once or at_most_once.
        uncommitted: whether records of aborted transactions are read too.
        disturbed: whether something went wrong so far, so that at least once and at most once may differ from once.
        reached: the last position that was seen in each log.
        pending: the batch that is pending.
        base: how often each output had each record when its count began.
        due: the records that each output is to get once since.
        perhaps: how often an output may have a record beside that.
        left: records that may have come once, or not: nothing tells it any more.
    """

    keeps: dict[str, str] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    programs: dict[int, Program] = field(default_factory=dict)
    uncommitted: bool = False
    disturbed: bool = False
    reached: dict[Log, int] = field(default_factory=dict)
    pending: Batch = NONE
    base: dict[str, Counter[Where]] = field(default_factory=dict)
    due: dict[str, set[Where]] = field(default_factory=dict)
    perhaps: dict[str, Counter[Where]] = field(default_factory=dict)
    left: set[Where] = field(default_factory=set)

    def open(self, output: str, keeps: str) -> None:
        """Begin to count in an output."""
        self.keeps[output] = keeps
        self.base[output], self.due[output], self.perhaps[output] = Counter(), set(), Counter()

    def add(self, record: Record) -> None:
        """Note a record that was produced. It is due, unless nobody is to see it."""
        self.records[record.number] = record
        if not record.aborted or self.uncommitted:
            for due in self.due.values():
                due.add(record.where)

    def passed(self, where: Where) -> bool:
        """Whether a record is behind the position of its partition."""
        return where.offset < self.reached.get(where.log, 0)

    def begin(self, output: str, rows: Iterable[Row], still_due: Callable[[Where], bool], unsettled: Batch) -> None:
        """Begin a new count.

        Args:
            output: its name.
            rows: that are there now.
            still_due: whether a record is to come from now on.
            unsettled: a batch that an act has dropped: the next start counts or repeats what it has of partitions that
                did not move.
        """
        of_pending, of_unsettled = ({row for row in rows if row.id == batch.id} for batch in (self.pending, unsettled))
        self.base[output] = self.deliveries(output, [row for row in rows if row not in of_pending])
        self.perhaps[output] = Counter()
        self.due[output] = {r.where for r in self.records.values() if self._seen(r) and still_due(r.where)}
        if unsettled.id:
            stays = self.deliveries(output, of_unsettled) if unsettled.id != self.pending.id else Counter()
            for where in stays.keys() & unsettled.records & self.due[output]:
                self.base[output][where] -= stays[where]
                self.perhaps[output][where] += stays[where]

    def forgive(self, output: str, gone: Iterable[Row]) -> None:
        """Count rows as never written: somebody else has deleted them."""
        self.base[output].subtract(self.deliveries(output, gone))

    def credit(self, output: str, back: Iterable[Row]) -> None:
        """Count rows as there before: somebody has put them back."""
        self.base[output].update(self.deliveries(output, back))

    def deliveries(self, output: str, rows: Iterable[Row]) -> Counter[Where]:
        """Return how often each record was delivered; rows of one record and one batch are one delivery."""
        found: Counter[Where] = Counter()
        for (number, _), group in _grouped(rows).items():
            if number in self.records:
                found[self.records[number].where] += self._times(output, self.records[number], group)
        return found

    def expected(self, output: str, where: Where) -> tuple[int, int]:
        """Return the fewest and the most times that a record is to be in an output."""
        due, passed = where in self.due[output], self.passed(where)
        low = high = self.base[output][where] + (due and passed)
        if due and not passed and where in self.pending.records:
            high += 1
        if where in self.left:
            low, high = self.base[output][where], max(high, self.base[output][where] + 1)
        high += self.perhaps[output][where]
        if self.disturbed and self.keeps[output] == "at_least_once":
            high = 10**6
        if self.disturbed and self.keeps[output] == "at_most_once":
            low, high = 0, max(high, self.base[output][where] + due)
        return low, high

    def judge(self, output: str, rows: Iterable[Row]) -> list[Finding]:
        """Return what is wrong with the rows of an output."""
        rows = list(rows)
        findings = [*self._wrong(output, rows)]
        found = self.deliveries(output, rows)
        wheres: dict[Where, Record] = {r.where: r for r in self.records.values()}
        lost, doubled = [], []
        for where, record in wheres.items():
            low, high = self.expected(output, where)
            if all(not program.rows(record, output) for program in self.programs.values()):
                continue  # it makes no row in this output
            if record.may_go:
                low = min(low, self.base[output][where])
            if found[where] < low:
                lost.append(f"{_told(record)}: {found[where]} times instead of {low}")
            if found[where] > high:
                doubled.append(f"{_told(record)}: {found[where]} times instead of {high}")
        for kind, those in (("lost", lost), ("doubled", doubled)):
            if those:
                findings.append(Finding(kind, output, _listed(those)))
        return findings

    def unread(self) -> list[Record]:
        """Return the records that are due in every output and not passed."""
        due = set.intersection(*self.due.values()) if self.due else set()
        return [
            r for r in self.records.values() if r.where in due and not self.passed(r.where) and r.where not in self.left
        ]

    def _wrong(self, output: str, rows: Iterable[Row]) -> Iterable[Finding]:
        """Return rows that nobody may have written."""
        for (number, batch), group in _grouped(rows).items():
            record = self.records.get(number)
            if record is None or not self._seen(record):
                what = "unknown" if record is None else "of an aborted transaction"
                yield Finding("changed", output, f"record {number} is {what}: {group[0]}")
                continue
            made = {row.made for row in group}
            program = self.programs.get(group[0].made)
            if len(made) > 1 or program is None:
                yield Finding("changed", output, f"batch {batch} is of the programs {made}: {group[:2]}")
                continue
            whole = Counter(program.rows(record, output))
            got = Counter(row._replace(id="") for row in group)
            if got.keys() - whole.keys():
                yield Finding("changed", output, f"{_told(record)} is {next(iter(got))} instead of {[*whole][:1]}")
            elif got.keys() != whole.keys():
                yield Finding("lost", output, f"{_told(record)} in batch {batch}: {len(got)} of {len(whole)} rows")
            elif len({*got.values()}) > 1:
                yield Finding("doubled", output, f"{_told(record)} in batch {batch}: a part of its rows: {got}")
            elif self.keeps[output] == "exactly_once" and max(got.values()) > 1:
                yield Finding("doubled", output, f"{_told(record)} in batch {batch}: {max(got.values())} times")

    def _times(self, output: str, record: Record, group: list[Row]) -> int:
        """Return how often a batch has delivered a record."""
        program = self.programs.get(group[0].made)
        rows = len(program.rows(record, output)) if program else 1
        return -(-len(group) // max(1, rows))

    def _seen(self, record: Record) -> bool:
        return self.uncommitted or not record.aborted


def _grouped(rows: Iterable[Row]) -> Mapping[tuple[int, str], list[Row]]:
    found: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.number, row.id].append(row)
    return found


def _told(record: Record) -> str:
    where = record.where
    return f"record {record.number} ({where.topic} {where.partition} {where.offset})"


def _listed(lines: list[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
