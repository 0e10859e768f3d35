"""The changes of one ledger in traces: which were sent, which were surely made, and what a store said of them.

Changes are ordered by the ledger's versions, not by clocks: each names the one that it builds on. Clocks only tell a
store that was restored from one that has lost a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from offsetkeeper.operate.traces.judge import Judge
from offsetkeeper.operate.traces.lines import NOTHING, Key, Line

_REFUSED = {"conflict", "not stored"}


@dataclass(slots=True)
class Changes:
    """The changes of one place.

    Attributes:
        lines: the lines of the place, by their time.
        sent: the lines that send a change, by the change, each with its answer; None if there is none.
        made: of each change that was surely made, the first line that shows it.
    """

    lines: Sequence[Line]
    sent: dict[Key, list[tuple[Line, Line | None]]] = field(default_factory=dict, init=False)
    made: dict[Key, Line] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Find them."""
        self._pair()
        for line in self.lines:
            for key in _shown(line):
                self.made.setdefault(key, line)
        for key in list(self.made):
            self._make_parents(key)

    def steps(self) -> Iterator[Line]:
        """Yield the line that sent each change that was made, by versions."""
        for key in sorted(self.made.keys() & self.sent.keys()):
            stored = [send for send, answer in self.sent[key] if answer and answer.about["outcome"] == "stored"]
            yield stored[-1] if stored else self.sent[key][-1][0]

    def _pair(self) -> None:
        """Give each request its answer: the next line of its run about the same change."""
        open_ones: dict[tuple[str, str], Line] = {}
        for line in self.lines:
            if line.event == "send":
                self.sent.setdefault(line.change, []).append((line, None))
                open_ones[line.stream] = line
            elif line.event == "answer" and line.stream in open_ones:
                send = open_ones.pop(line.stream)
                if send.change == line.change:
                    pairs = self.sent[line.change]
                    pairs[pairs.index((send, None))] = (send, line)

    def _make_parents(self, key: Key) -> None:
        """What a change was made to was made, too."""
        line = self.made[key]
        while (sends := self.sent.get(key)) is not None:
            key = sends[-1][0].key
            if key == NOTHING or key in self.made:
                return
            self.made[key] = line


def _shown(line: Line) -> list[Key]:
    """Return the changes that a line shows to be made."""
    match line.event:
        case "load" if not line.failed and line.key[1]:
            return [line.key]
        case "history" if not line.failed:
            return [(version, change) for version, change in line.about["entries"]]
        case "answer" if line.about["outcome"] == "stored":
            return [line.change]
    return []


def check_answers(changes: Changes, judge: Judge) -> None:
    """Check that what a store has called not stored is not there."""
    for key, pairs in changes.sent.items():
        told = [answer.about["outcome"] if answer else "unknown" for _, answer in pairs]
        if key in changes.made and (told[-1] == "stored" or not _REFUSED.issuperset(told)):
            judge.holds("answer", "", ok=True)
        elif _REFUSED.issuperset(told):
            shown = changes.made.get(key)
            what = f"{_named(key)} is made, though the store said each time that it is not stored"
            judge.holds("answer", what, pairs[-1][0], *([shown] if shown else ()), ok=shown is None)


def check_told(changes: Changes, judge: Judge) -> None:
    """Check what ledgers have told of their changes in the end. An acquire that is told as refused is repeated."""
    for line in changes.lines:
        if line.event != "told" or line.about["of"] == "acquire":
            continue
        key, outcome = line.change, line.about["outcome"]
        again = any(send.moment > line.moment for send, _ in changes.sent.get(key, ()))
        if outcome == "stored":
            what = f"a run goes on as if {_named(key)} were stored, and nothing shows that"
            judge.holds("answer", what, line, ok=key in changes.made)
        elif outcome in _REFUSED and not again:
            shown = changes.made.get(key)
            what = f"a run goes on as if {_named(key)} were not stored, and it is"
            judge.holds("answer", what, line, *([shown] if shown else ()), ok=shown is None)


def check_versions(changes: Changes, judge: Judge) -> None:
    """Check that each version was made once, or else that the store went back in between."""
    versions: dict[int, list[Key]] = {}
    for key in sorted(changes.made, key=lambda key: changes.made[key].moment):
        versions.setdefault(key[0], []).append(key)
    for version, keys in sorted(versions.items()):
        for first, second in pairwise(keys):
            shown = changes.made[first], changes.made[second]
            if not _went_back(changes, version, *shown):
                judge.holds("version", f"version {version} was made twice: {first[1]}, {second[1]}", *shown, ok=False)
        judge.holds("version", "", ok=True)


def check_reads(changes: Changes, judge: Judge) -> set[Key]:
    """Note where a store went back; check that it does not show afterwards what it has lost.

    Returns:
        The changes that it has lost.
    """
    known: dict[Key, Line] = {}
    lost: dict[Key, tuple[Line, Line]] = {}
    for line in changes.lines:
        if line.event == "load" and not line.failed:
            _check_lost(changes, line, lost, judge)
            asked = line.about["asked_ms"]
            gone = {key: at for key, at in known.items() if key[0] > line.key[0] and at.moment[0] < asked}
            if gone:
                newest = max(gone)
                what = f"went back from version {newest[0]} to {line.key[0]}: it was restored, or gave an old answer"
                judge.note(f"the store of group {line.place.group!r} {what}", gone[newest], line)
                lost |= {key: (at, line) for key, at in gone.items()}
                known = {key: at for key, at in known.items() if key not in gone}
        for key in _shown(line):
            known.setdefault(key, line)
    return {*lost}


def _check_lost(changes: Changes, line: Line, lost: dict[Key, tuple[Line, Line]], judge: Judge) -> None:
    """Check that a ledger that was gone is not there again: then a read between the two was old.

    Unless a request for this very change was still under way, and was made again in the restored store.
    """
    key = line.key
    if key not in lost:
        judge.holds("answer", "", ok=True)
        return
    before, between = lost.pop(key)
    if not all(answer and answer.about["outcome"] != "unknown" for _, answer in changes.sent.get(key, ())):
        return
    one_clock = len({each.stream[0] for each in (before, between, line)}) == 1
    what = f"{_named(key)} was there, then an older ledger, and then it again"
    if one_clock:
        judge.holds("answer", what, before, between, line, ok=False)
    else:
        judge.note(f"{what}; the clocks of several processes may differ", before, between, line)


def _went_back(changes: Changes, version: int, first: Line, second: Line) -> bool:
    """Whether somebody read an older ledger after a change was there, and before another one took its place."""
    return any(
        line.event == "load"
        and not line.failed
        and line.key[0] < version
        and first.moment[0] <= line.about["asked_ms"]
        and line.moment <= second.moment
        for line in changes.lines
    )


def _named(key: Key) -> str:
    return f"change {key[1]} (version {key[0]})"
