"""Checks a history for gaps that no batch has read, offsets that were committed twice, and deleted entries. Pure.

In each partition, a commit must start where the commit before it ends. If it does not, the position jumped: by a
rewind, by a policy at the start of a run, or by an edit from outside of the ledger. A jump is a finding only if offsets
were left out by it, or committed again: an `undo` leaves none. What outputs have of a batch that was dropped counts
like a commit. What outputs without a mark may have of it is a finding of its own, and so are committed records that an
election has cut from the log. A position in the history must still be stored, unless an operator has forgotten it. If
it was deleted, the next run sets it again and reads from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from offsetkeeper.core.bounds import is_another
from offsetkeeper.core.model import NO_CUTS, Cuts, Entry, Having, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.core.plain import plain
from offsetkeeper.operate.chapter import Chapter, Part


class Read(NamedTuple):
    """What a group has read of a partition, as its history says.

    Attributes:
        committed: offsets that were committed, as half-open ranges. Those before the first offset in the history count:
            older entries are pruned.
        began: the group had no position before it got this one. Of the offsets below it that were not committed since,
            nothing is known: it may have been moved here from elsewhere. Else 0.
        perhaps: offsets of batches that were dropped, and that no batch has committed since: some outputs have them, or
            outputs without a mark may.
        passed: offsets that a copy of the ledger has passed, and that no batch has committed: its source may have read
            them.
    """

    committed: tuple[tuple[int, int], ...] = ()
    began: int = 0
    perhaps: tuple[tuple[int, int], ...] = ()
    passed: tuple[tuple[int, int], ...] = ()

    def between(self, start: int, end: int) -> int:
        """Return how many of these offsets were committed."""
        return _within_of(self.committed, start, end)

    def perhaps_between(self, start: int, end: int) -> int:
        """Return how many of these offsets were committed, or were passed by a copy."""
        return _within_of((*self.committed, *self.passed), start, end)


NOTHING_READ = Read()


def _within_of(spans: Iterable[tuple[int, int]], start: int, end: int) -> int:
    return sum(max(0, min(to, end) - max(at, start)) for at, to in spans)


@dataclass(slots=True)
class _Known:
    """What the entries so far tell.

    Attributes:
        chapters: of each partition, the newest last.
        begun: the token of the batch that was begun last, and its ranges with their chapters.
        away: partitions that were forgotten.
    """

    chapters: dict[TopicPartition, list[Chapter]] = field(default_factory=dict)
    begun: tuple[str, list[tuple[Chapter, OffsetRange]]] = ("", [])
    away: set[TopicPartition] = field(default_factory=set)

    def places(self, ranges: Iterable[OffsetRange]) -> list[tuple[Chapter, OffsetRange]]:
        """Return ranges with their chapters."""
        return [(self.chapters.setdefault(r.topic_partition, [_first(Position(r.start))])[-1], r) for r in ranges]

    def note(self, entry: Entry, why: str) -> None:
        """Note a begun batch, parts of dropped batches that outputs have, and offsets that a copy has passed."""
        for tp, move in entry.moves.items() if entry.event == "copy" else ():
            start = move.before.offset if move.before and not is_another(move.before, move.after) else 0
            self.chapters[tp][-1].copied.append(Part(start, max(start, move.after.offset)))
        if entry.event == "begin":
            self.begun = entry.token, self.places(entry.ranges)
        if entry.having:  # by chapters of that time: a topic may have been made again since
            token, ranges = self.begun
            for chapter, r in ranges if token == entry.token else self.places(entry.ranges):
                part = Part(r.start, r.end, entry.version, why)
                if entry.event == "settle" and r.topic_partition in entry.moves:
                    continue  # it counts as done there
                if entry.having is Having.MAYBE:
                    chapter.may_have(part)
                else:
                    chapter.have(part, whole=entry.having is Having.ALL)


class Kind(StrEnum):
    """The kind of a finding."""

    GAP = "gap"
    """Offsets that no batch has committed."""
    OVERLAP = "overlap"
    """Offsets that some output has, or will have, more than once."""
    MAYBE_TWICE = "maybe twice"
    """Offsets of a batch that was dropped, or taken over by another program.

    An output that could not be asked may have them more than once, or outputs of both programs have them.
    """
    CUT = "cut"
    """Offsets that were committed, and whose records an election has cut from the log. Others may have them now."""
    VANISHED = "vanished"
    """A position in the history that is no longer stored."""
    TOPIC_ID = "topic id"
    """A position whose topic id differs from the one in the history."""
    MISSING = "missing"
    """Changes that the history lacks; `start` and `end` are versions."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A finding: something in a history, or between history and positions, that does not fit.

    Attributes:
        kind: the kind of the finding.
        topic_partition: the partition; None for missing changes.
        start, end: the offsets, half-open; their number is the upper bound of the number of records. For a position,
            its offset twice; for missing changes, their versions.
        version: version of the change that jumped; for an edit from outside, of the change that found it.
        why: event and reason of that change; empty if no change of the ledger explains the finding.
    """

    kind: Kind
    topic_partition: TopicPartition | None
    start: int
    end: int
    version: int
    why: str

    @property
    def explained(self) -> bool:
        """Whether a change through the ledger explains the finding."""
        return bool(self.why)

    def __str__(self) -> str:
        why = self.why or "nothing in the history explains it"
        where = "" if self.topic_partition is None else f" {self.topic_partition}"
        return f"{self.kind}{where} {self.start} {self.end}: {why} (version {self.version})"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values; `topic` and `partition` are null for missing changes."""
        found = plain(self, "explained")
        found.pop("topic_partition", None)
        return {"topic": None, "partition": None} | found


def audit(entries: Iterable[Entry], snapshot: Snapshot) -> list[Discrepancy]:
    """Check a history, oldest entry first, up to the ledger as it is now, and return the findings.

    The check of a partition starts at its first commit in the entries, so pruned older entries give no findings.

    Args:
        entries: oldest first.
        snapshot: the ledger; newer entries are changes that the ledger has lost.
    """
    known = _Known()
    findings: list[Discrepancy] = []
    version: int | None = None
    for entry in entries:
        findings += _lacking(version, entry.version)
        version = entry.version
        findings += _jumps(entry, known)
    if version is None and snapshot.version:  # the newest change always has an entry
        version = snapshot.version - 1
    if version is not None:
        findings += _lacking(version, snapshot.version + 1)
    if version is not None and version > snapshot.version:
        findings.append(Discrepancy(Kind.MISSING, None, snapshot.version + 1, version + 1, snapshot.version, ""))
    for tp, found in sorted(known.chapters.items()):
        if tp in known.away and tp not in snapshot.positions:
            continue
        findings += _left(tp, found, snapshot.positions.get(tp), version or 0)
    told = [each for tp, found in known.chapters.items() for each in _told(tp, found)]
    return findings + sorted(told, key=lambda each: (each.version, each.topic_partition, each.start))


def what_was_read(
    entries: Iterable[Entry], snapshot: Snapshot, there: Positions, cuts: Cuts = NO_CUTS
) -> dict[TopicPartition, Read]:
    """Return what the group has read of partitions, of their records that the log still has.

    Args:
        entries: the history, newest first; what is newer than the ledger, or older than a gap, does not count.
        snapshot: the ledger.
        there: positions of the topics and the cluster that are meant: the group may be in another one.
        cuts: as in `Entry`, of logs that were cut since the newest entry.
    """
    known = _Known()
    chapters = known.chapters
    for entry in _unbroken(entries, snapshot.version):
        first = {tp: move.after for tp, move in entry.moves.items() if move.before is None and tp not in chapters}
        chapters |= {tp: [Chapter(at, [], at.offset)] for tp, at in first.items()}
        for _ in _jumps(entry, known):  # what it finds is for `audit`
            pass
    for tp, stored in snapshot.positions.items():
        for _ in _edited(tp, chapters.setdefault(tp, [_first(stored)]), stored, snapshot.version):
            pass
    for tp, offset in cuts.items():
        chapters[tp][-1].cut(offset, snapshot.version, "")
    found = {}
    for tp, at in there.items():
        chapter = next((each for each in chapters.get(tp, ())[::-1] if each.is_of(at)), None)
        found[tp] = NOTHING_READ if chapter is None else _read_of(chapter)
    return found


def _read_of(chapter: Chapter) -> Read:
    perhaps = [*chapter.perhaps, *chapter.partly]
    return Read(_spans(chapter.done), chapter.began, _spans(perhaps), _spans(chapter.passed()))


def _spans(parts: Iterable[Part]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((each.start, each.end) for each in parts))


def _unbroken(entries: Iterable[Entry], version: int) -> list[Entry]:
    """Return the entries up to a version without a gap, oldest first."""
    found: list[Entry] = []
    for entry in entries:
        if entry.version == version - len(found):
            found.append(entry)
        elif entry.version < version:
            break
    return found[::-1]


def up_to(snapshot: Snapshot, entries: Sequence[Entry], again: Callable[[], Snapshot]) -> Sequence[Entry]:
    """Return the entries for an audit of the ledger: those up to its version, in their order.

    A ledger is read before its history, and a run may commit in between: an entry newer than the positions would look
    like a jump. But if the ledger is still at its old version, it has lost the newer changes, and all entries count.

    Args:
        snapshot: the ledger.
        entries: read after it, newest first.
        again: reads the ledger again; called only if entries are newer.
    """
    if entries and entries[0].version > snapshot.version >= again().version:
        return entries
    return [entry for entry in entries if entry.version <= snapshot.version]


def _lacking(before: int | None, version: int) -> Iterator[Discrepancy]:
    if before is not None and version > before + 1:
        yield Discrepancy(Kind.MISSING, None, before + 1, version, version, "")


def _jumps(entry: Entry, known: _Known) -> Iterator[Discrepancy]:
    chapters = known.chapters
    why = f"{entry.event} by {entry.actor}" + (f": {entry.reason}" if entry.reason else "")
    for tp, move in entry.moves.items():
        found = chapters.setdefault(tp, [_first(move.before or move.after)])
        if move.before is not None:
            yield from _edited(tp, found, move.before, entry.version)
        if entry.event == "settle":  # its outputs have these records
            found[-1].commit(move.after.offset)
            continue
        if tp in entry.cuts:
            common = entry.cuts[tp]
            found[-1].cut(common if common >= 0 else move.after.offset, entry.version, why)
        _moved(found, move.after, entry, why if move.before is not None or tp in known.away else "")
        known.away.discard(tp)
    for tp, at in entry.forgot.items():
        if at is not None:
            yield from _edited(tp, chapters.setdefault(tp, [_first(at)]), at, entry.version)
        known.away.add(tp)
    for r in entry.ranges if entry.event == "commit" else ():
        tp = r.topic_partition
        if tp not in chapters:
            chapters[tp] = [_first(Position(r.start))]
        chapter = chapters[tp][-1]
        if chapter.at.offset != r.start:
            chapter.jump(chapter.at._replace(offset=r.start), entry.version, "")
        chapter.commit(r.end)
    known.note(entry, why)


def _first(at: Position) -> Chapter:
    return Chapter(at, [Part(0, at.offset)])


def _moved(chapters: list[Chapter], there: Position, entry: Entry, why: str) -> None:
    """Jump; without a reason, the stored position was deleted, and a run has placed it again."""
    if entry.mirror:
        chapters[-1].follow(there)
    if not chapters[-1].is_of(there):
        _turn_to(chapters, there, Chapter(there._replace(offset=0), []))
    chapters[-1].jump(there, entry.version, why)


def _edited(tp: TopicPartition, chapters: list[Chapter], there: Position, version: int) -> Iterator[Discrepancy]:
    """Jump to a position that was found, and that nothing in the history explains if it is another one."""
    if is_another(chapters[-1].at, there):
        yield Discrepancy(Kind.TOPIC_ID, tp, there.offset, there.offset, version, "")
        _turn_to(chapters, there, _first(there))
    chapters[-1].jump(there, version, "")


def _turn_to(chapters: list[Chapter], there: Position, new: Chapter) -> None:
    """Go on with the chapter of a position's topic and cluster if the group was there before, else with a new one."""
    known = next((number for number in reversed(range(len(chapters))) if chapters[number].is_of(there)), None)
    chapters.append(new if known is None else chapters.pop(known))


def _left(tp: TopicPartition, chapters: list[Chapter], stored: Position | None, version: int) -> Iterator[Discrepancy]:
    if stored is None:
        here = chapters[-1].at.offset
        yield Discrepancy(Kind.VANISHED, tp, here, here, version, "")
    else:
        yield from _edited(tp, chapters, stored, version)


def _told(tp: TopicPartition, chapters: list[Chapter]) -> Iterator[Discrepancy]:
    for number, chapter in enumerate(chapters, 1):
        if number < len(chapters):
            chapter.back, chapter.perhaps = [], []  # its topic is gone, so nothing of it is committed again
        yield from (Discrepancy(Kind.GAP, tp, *each) for each in chapter.gaps())
        yield from (Discrepancy(Kind.OVERLAP, tp, *each) for each in chapter.overlaps())
        yield from (Discrepancy(Kind.MAYBE_TWICE, tp, *each) for each in chapter.doubts())
        yield from (Discrepancy(Kind.CUT, tp, *each) for each in chapter.lost())
