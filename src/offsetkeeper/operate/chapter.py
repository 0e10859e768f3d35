"""The offsets of one partition that were committed, left out, or committed again, as its history says. Pure.

A topic that was made again has other records under the same offsets: with it, a new chapter begins. The chapter goes on
in another cluster if that is a mirror.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetkeeper.core.bounds import is_another
from offsetkeeper.core.identity import is_elsewhere
from offsetkeeper.core.offsets import MAX_OFFSET, Position


class Part(NamedTuple):
    """Some offsets, half-open, and the jump that went over them: its version, and why it was made."""

    start: int
    end: int
    version: int = 0
    why: str = ""


@dataclass(slots=True)
class Chapter:
    """One partition since its history begins, or since its topic was made.

    Attributes:
        at: the position.
        done: offsets that were committed. Those below the first known position count, as older entries are pruned.
        began: the position that the group got here when it had none; else 0. See `audit.Read`.
        skipped: offsets that a jump forwards has left out, and that no batch has committed since.
        back: committed offsets from the position on: a jump has gone back over them.
        again: offsets that were committed once more, for each time.
        gone: committed offsets of which the log lost the records; others may have come under these offsets since.
        partly: offsets that only some outputs have, and that no batch has committed.
        perhaps: offsets that outputs without a mark may have, and that no batch has committed since.
        doubtful: offsets that were committed, and that such outputs may have had by then.
        copied: offsets that copies of the ledger have passed.
        mirrors: positions of other clusters that have the same records.
    """

    at: Position
    done: list[Part]
    began: int = 0
    skipped: list[Part] = field(default_factory=list)
    back: list[Part] = field(default_factory=list)
    again: list[Part] = field(default_factory=list)
    gone: list[Part] = field(default_factory=list)
    partly: list[Part] = field(default_factory=list)
    perhaps: list[Part] = field(default_factory=list)
    doubtful: list[Part] = field(default_factory=list)
    copied: list[Part] = field(default_factory=list)
    mirrors: list[Position] = field(default_factory=list)

    def is_of(self, there: Position) -> bool:
        """Whether it is about the topic and the cluster of a position, or about a mirror of it."""
        return not all(is_another(each, there) for each in (self.at, *self.mirrors))

    def follow(self, there: Position) -> None:
        """Go on in the cluster of a position, if that is another one: a mirror."""
        if is_elsewhere(self.at.cluster_id, there.cluster_id):
            self.mirrors += [self.at, there]

    def jump(self, there: Position, version: int, why: str) -> None:
        """Move the position without a commit."""
        here, self.at = self.at.offset, there
        if there.offset > here:
            self.back = _without(self.back, here, there.offset)
            left_out = self._new(Part(here, there.offset, version, why))
            self.skipped = _without(self.skipped, here, there.offset) + left_out
        elif there.offset < here:
            over = _within([*self.done, *self.partly], there.offset, here)
            self.back += [each._replace(version=version, why=why) for each in over]

    def cut(self, offset: int, version: int, why: str) -> None:
        """Forget all from an offset on: an election has cut the log there."""
        lost = _within(self.done, offset, MAX_OFFSET)
        self.gone += [each._replace(version=version, why=why) for each in lost]
        self.done, self.skipped, self.back, self.partly, self.perhaps, self.copied = (
            _within(parts, 0, offset)
            for parts in (self.done, self.skipped, self.back, self.partly, self.perhaps, self.copied)
        )
        self.began = min(self.began, offset)
        self.at = self.at._replace(offset=min(offset, self.at.offset))

    def commit(self, end: int) -> None:
        """Commit the offsets from the position up to `end`."""
        start, self.at = self.at.offset, self.at._replace(offset=end)
        rare = self.back or self.skipped or self.partly or self.perhaps
        if not rare and self.done and self.done[-1].end == start:  # nearly always
            self.done[-1] = Part(self.done[-1].start, end)
            return
        self.again += _within(self.back, start, end)
        self.back = _without(self.back, start, end)
        self.skipped = _without(self.skipped, start, end)
        self.partly = _without(self.partly, start, end)
        self.doubtful += _within(self.perhaps, start, end)
        self.perhaps = _without(self.perhaps, start, end)
        self.done = _joined(self.done + self._new(Part(start, end)))

    def may_have(self, part: Part) -> None:
        """Note that outputs may have offsets, beside the position: they may come again if they are read again."""
        known = _within([*self.done, *self.partly, *self.perhaps], part.start, part.end)
        self.doubtful += [each._replace(version=part.version, why=part.why) for each in known]
        self.perhaps += _left_of(part, known)

    def have(self, part: Part, *, whole: bool) -> None:
        """Note that outputs have offsets, beside the position: they come again if they are read again.

        Args:
            part: the offsets.
            whole: whether all outputs have them, so that it is as if they were committed.
        """
        known = _within([*self.done, *self.partly], part.start, part.end)
        self.again += [each._replace(version=part.version, why=part.why) for each in known]
        self.doubtful += _within(self.perhaps, part.start, part.end)
        self.perhaps = _without(self.perhaps, part.start, part.end)
        fresh = _left_of(part, known)
        self.back += [here for each in fresh for here in _within([each], self.at.offset, each.end)]
        if whole:
            self.done = _joined(self.done + self._new(Part(part.start, part.end)))
            self.skipped = _without(self.skipped, part.start, part.end)
            self.partly = _without(self.partly, part.start, part.end)
        else:
            self.partly += [Part(each.start, each.end) for each in fresh]

    def passed(self) -> list[Part]:
        """Return the offsets that copies have passed, and no batch has committed: the sources may have read them."""
        found: list[Part] = []
        for each in self.copied:
            found += _left_of(each, [*self.done, *found])
        return found

    def gaps(self) -> list[Part]:
        """Return the offsets before the position that no batch has committed."""
        return _joined(_within(self.skipped, 0, self.at.offset))

    def lost(self) -> list[Part]:
        """Return the committed offsets of which the log lost the records."""
        return _joined(self.gone)

    def overlaps(self) -> list[Part]:
        """Return the offsets that were committed more than once, or will be."""
        return _joined([*self.again, *self.back])

    def doubts(self) -> list[Part]:
        """Return the offsets that outputs may have more than once, or will."""
        return _joined([*self.doubtful, *_within(self.perhaps, self.at.offset, MAX_OFFSET)])

    def _new(self, part: Part) -> list[Part]:
        """Return what no batch has committed of a part."""
        return _left_of(part, self.done)


def _within(parts: Iterable[Part], start: int, end: int) -> list[Part]:
    cut = (each._replace(start=max(each.start, start), end=min(each.end, end)) for each in parts)
    return [each for each in cut if each.start < each.end]


def _without(parts: Iterable[Part], start: int, end: int) -> list[Part]:
    def left(each: Part) -> Iterator[Part]:
        yield each._replace(end=min(each.end, start))
        yield each._replace(start=max(each.start, end))

    if start >= end:
        return [*parts]
    return [piece for each in parts for piece in left(each) if piece.start < piece.end]


def _left_of(part: Part, taken: Iterable[Part]) -> list[Part]:
    """Return a part without the taken ones."""
    parts = [part]
    for each in taken:
        parts = _without(parts, each.start, each.end)
    return parts


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return the parts in their order, those of one jump that touch as one."""
    found: list[Part] = []
    for each in sorted(parts, key=lambda part: (part.version, part.why, part.start)):
        last = found[-1] if found else None
        if last is not None and last.end == each.start and last[2:] == each[2:]:
            found[-1] = last._replace(end=each.end)
        else:
            found.append(each)
    return found
