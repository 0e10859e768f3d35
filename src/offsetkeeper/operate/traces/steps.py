"""What must hold from one version of a ledger to the next: a second reading of docs/design.md and docs/proof.md.

It does not ask `core.rules`, but for the rule "table". So a mistake there is found too, where a promise is broken.
"""

from __future__ import annotations

from offsetkeeper.core.batch import Batch, Kind
from offsetkeeper.core.model import MAX_SEQUENCE, Snapshot
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.operate.traces.judge import Judge
from offsetkeeper.operate.traces.lines import Line
from offsetkeeper.operate.traces.replay import is_explained

_OF_OWNERS = {"release", "place", "begin", "mark", "wait", "commit", "abandon", "settle"}
_COPY = "copy"


class Steps:
    """Checks changes that were made, one after the other, of all ledgers.

    Args:
        judge: counts, and keeps what is broken.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._ranges: dict[str, tuple[tuple[OffsetRange, ...], Line]] = {}

    def check(self, line: Line) -> None:
        """Check a change that was made."""
        before, after, entry = line.ledger, line.after, line.entry
        if before is None or after is None or entry is None:
            self._judge.note("a line lacks the ledger that it changes: lines are missing before it", line)
            return
        told = f"{entry.event} to version {after.version}"
        follows = after.version == before.version + 1 == entry.version
        self._judge.holds("version", f"{told} follows version {before.version}", line, ok=follows)
        if entry.event == _COPY or _is_copy(after):
            return  # it sets the state of another store's ledger
        self._check_owner(line, before, after, entry.event)
        self._check_positions(line, before, after)
        self._check_sequence(line, before, after)
        self._check_batches(line, before, after)
        if entry.event == "commit":
            self._check_commit(line, before, after)
        if entry.event in {"begin", "commit"} and after.owner is not None:
            token = before.pending.token if before.pending else after.owner.id
            what = f"a {entry.event} has the token {entry.token}, and its batch {token}"
            self._judge.holds("identity", what, line, ok=entry.token == token)
            self._check_identity(line, f"{after.group}/{token}/{after.sequence}", entry.ranges)
        explained = is_explained(before, after, entry, line.owner)
        self._judge.holds("table", f"no event of the table makes the {told} of {before.version}", line, ok=explained)

    def _check_owner(self, line: Line, before: Snapshot, after: Snapshot, event: str) -> None:
        mine = before.owner is not None and before.owner.id == line.owner
        ok = event not in _OF_OWNERS or mine
        self._judge.holds("owner", f"a {event} of {line.owner} is made, and the group is {before.owner}'s", line, ok=ok)
        if event == "acquire":
            ok = after.owner is not None and after.owner.epoch == after.epoch == before.epoch + 1
            self._judge.holds("owner", f"epoch {before.epoch} is followed by {after.epoch}", line, ok=ok)
        elif event != "release" and mine:
            self._judge.holds("owner", f"a {event} changes the owner", line, ok=after.owner == before.owner)

    def _check_positions(self, line: Line, before: Snapshot, after: Snapshot) -> None:
        entry = line.entry
        for tp, at in before.positions.items():
            moved = after.positions.get(tp)
            if moved is None:
                ok = entry is not None and tp in entry.forgot
                self._judge.holds("position", f"the position of {tp} is gone", line, ok=ok)
                continue
            ok = moved.offset >= at.offset or after.generation > before.generation
            self._judge.holds("position", f"{tp} goes back from {at.offset} to {moved.offset}", line, ok=ok)
            if entry is not None and entry.event == "commit":
                self._judge.holds("position", f"a commit changes ids of {tp}", line, ok=moved[1:] == at[1:])

    def _check_sequence(self, line: Line, before: Snapshot, after: Snapshot) -> None:
        event = line.entry.event if line.entry else ""
        new = event in {"begin", "commit"} and before.pending is None
        wanted = before.sequence + new
        ok = after.sequence == wanted if event != "adopt" else after.sequence >= before.sequence
        ok |= event == "adopt" and before.sequence >= MAX_SEQUENCE
        what = f"sequence {before.sequence} is followed by {after.sequence} in a {event}"
        self._judge.holds("identity", what, line, ok=ok)

    def _check_batches(self, line: Line, before: Snapshot, after: Snapshot) -> None:
        """Check what becomes of the pending and the unsettled batch."""
        event, pending, unsettled = line.entry.event if line.entry else "", before.pending, before.unsettled
        if event in {"begin", "commit"}:
            what = f"a {event} is made while batch {unsettled and unsettled.id} is unsettled"
            self._judge.holds("unsettled", what, line, ok=unsettled is None)
        if pending is not None and not _is(pending, after.pending):
            ok = event in {"commit", "abandon", "adopt"} or (event == "rewind" and _touches(line, pending))
            self._judge.holds("dropped", f"a {event} drops batch {pending.id}", line, ok=ok)
            if event not in {"commit", "abandon"} and pending.lands_in and before.sequence < MAX_SEQUENCE:
                what = f"batch {pending.id} may still land, and a {event} forgets it"
                self._judge.holds("unsettled", what, line, ok=_is(pending, after.unsettled))
        if event in {"begin", "rewind", "place", "forget"} and after.pending is not None:
            edited = before.pending is not None and bool(_not_at_its_start(before.pending, before))
            wrong = [] if edited else _not_at_its_start(after.pending, after)  # another program may edit positions
            what = f"batch {after.pending.id} is pending after a {event}, and {wrong} are not at its start"
            self._judge.holds("continuity", what, line, ok=not wrong)
        if unsettled is not None and not _is(unsettled, after.unsettled) and before.sequence < MAX_SEQUENCE:
            ok = event == "settle" or (event == "rewind" and _is(unsettled, after.pending))
            self._judge.holds("unsettled", f"a {event} forgets batch {unsettled.id}", line, ok=ok)

    def _check_commit(self, line: Line, before: Snapshot, after: Snapshot) -> None:
        ranges = line.entry.ranges if line.entry else ()
        reached = {tp: at.offset for tp, at in before.positions.items()}
        for each in ranges:
            ok = reached.get(each.topic_partition) == each.start < each.end
            at = reached.get(each.topic_partition)
            what = f"range {each} is committed, and its partition is at {at}"
            self._judge.holds("continuity", what, line, ok=ok)
            reached[each.topic_partition] = each.end
        wrong = [tp for tp, at in after.positions.items() if reached.get(tp) != at.offset]
        self._judge.holds("continuity", f"a commit of other ranges moves {wrong}", line, ok=not wrong)
        pending = before.pending
        if pending is not None:
            self._judge.holds("identity", f"other ranges than those of {pending.id}", line, ok=ranges == pending.ranges)
            left = [name for name in pending.lands_in if after.landed_in(name).sequence != after.sequence]
            what = f"batch {pending.id} is committed, and the ledger does not say so of {left}"
            self._judge.holds("complete", what, line, ok=not left)

    def _check_identity(self, line: Line, batch_id: str, ranges: tuple[OffsetRange, ...]) -> None:
        known, first = self._ranges.setdefault(batch_id, (ranges, line))
        self._judge.holds("identity", f"batch {batch_id} has two sets of ranges", first, line, ok=known == ranges)


def _is_copy(after: Snapshot) -> bool:
    return after.owner is not None and after.owner.name == _COPY


def _is(batch: Batch, other: Batch | None) -> bool:
    return other is not None and other.id == batch.id


def _touches(line: Line, pending: Batch) -> bool:
    moved: set[TopicPartition] = {*line.entry.moves} if line.entry else set()
    return pending.kind is Kind.QUERY or bool(moved & pending.partitions)


def _not_at_its_start(batch: Batch, ledger: Snapshot) -> list[TopicPartition]:
    """Return the partitions of a batch whose positions are not where it starts."""
    starts = {r.topic_partition: r.start for r in reversed(batch.ranges)}
    found = ledger.positions
    return [tp for tp, start in starts.items() if tp not in found or found[tp].offset != start]
