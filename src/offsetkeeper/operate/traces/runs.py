"""What must hold within each run, by what the run itself knew: order of begin, output and commit, and fencing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offsetkeeper.core.batch import DEAD_LETTERS, Batch
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee, Having, Landed, Snapshot
from offsetkeeper.operate.traces.judge import Judge
from offsetkeeper.operate.traces.lines import Key, Line


@dataclass(slots=True)
class Run:
    """One ledger of a process, and what it has learned so far.

    Attributes:
        judge: counts, and keeps what is broken.
        guarantee: that is asked for; empty if no line says it.
        outputs: by name, as the line `outputs` has them.
        ledger: as the run knows it; None until it does.
        fenced: the line that showed another owner, after this one had the group.
    """

    judge: Judge
    guarantee: str = ""
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    ledger: Snapshot | None = None
    fenced: Line | None = None
    _owner: str = ""  # who has acquired the group, as this run
    _unsure: Line | None = None  # an answer that did not say whether a change is stored, if nothing was read since
    _open: dict[Key, Line] = field(default_factory=dict)  # changes whose outcome the run does not know
    _has: dict[tuple[str, str], Line] = field(default_factory=dict)  # by batch and output: a write that returned
    _tried: dict[tuple[str, str], Line] = field(default_factory=dict)  # the same: a write that began
    _joined: set[tuple[str, str]] = field(default_factory=set)  # the same: rows in the open transaction
    _committed: set[str] = field(default_factory=set)
    _shown: dict[tuple[str, str], OutputMark] = field(default_factory=dict)  # the same: the mark that shows it there
    _marks: dict[str, OutputMark | None] = field(default_factory=dict)  # as last seen

    def take(self, line: Line) -> None:
        """Take the next line of the run."""
        if line.event in {"load", "history"} and line.failed:
            return
        handlers: Mapping[str, Callable[[Line], None]] = {
            "outputs": self._told,
            "load": self._learn,
            "history": self._listed,
            "open": self._opens,
            "send": self._sends,
            "answer": self._answered,
            "read": self._check_ranges,
            "write": self._writes,
            "wrote": self._wrote,
            "join": self._joins,
            "look": self._looks,
            "land": self._lands,
            "landed": self._landed,
        }
        if handler := handlers.get(line.event):
            handler(line)

    def _told(self, line: Line) -> None:
        self.guarantee = str(line.about["guarantee"])
        self.outputs.update(line.about["outputs"])

    def _listed(self, line: Line) -> None:
        for version, change in line.about["entries"]:
            self._learn_stored((version, change))

    def _opens(self, _: Line) -> None:
        self._joined.clear()

    def _sends(self, line: Line) -> None:
        self._check_sent(line)
        unsure = self._unsure
        known = unsure is None or unsure.change == line.change
        what = "a change is sent, and the run does not know whether the one before is stored"
        self.judge.holds("answer", what, *((unsure,) if unsure else ()), line, ok=known)
        self._open[line.change] = line

    def _writes(self, line: Line) -> None:
        self._check_write(line, line.batch, line.output)
        self._check_ranges(line)
        self._tried[line.batch, line.output] = line

    def _wrote(self, line: Line) -> None:
        if line.about["outcome"] == "done":
            self._has[line.batch, line.output] = line

    def _joins(self, line: Line) -> None:
        self._joined.add((line.batch, line.output))
        self._check_ranges(line)

    def _looks(self, line: Line) -> None:
        mark = self._marks[line.output] = line.mark()
        if mark is not None and not mark.void and not mark.partly:
            self._shown[_id_of(line, mark), line.output] = mark

    def _learn(self, line: Line) -> None:
        self._unsure = None
        self._learn_stored(line.key)
        ledger = line.ledger
        if ledger is None:
            return
        if self.ledger is None or ledger.version >= self.ledger.version:  # else the store went back: see `changes`
            self.ledger = ledger
        if self._owner and self._owner == line.owner and (ledger.owner is None or ledger.owner.id != line.owner):
            self.fenced = self.fenced or line
        elif ledger.owner is not None and ledger.owner.id == line.owner:
            self._owner = line.owner

    def _learn_stored(self, key: Key) -> None:
        """Take over a change whose outcome was unknown, and which is stored."""
        send = self._open.pop(key, None)
        if send is not None:
            self._stored(send)

    def _stored(self, send: Line) -> None:
        self.ledger = send.after
        event = send.entry.event if send.entry else ""
        if event == "acquire":
            self._owner, self.fenced = send.owner, None
        elif event == "commit" and send.entry:
            self._committed.add(f"{send.place.group}/{send.entry.token}/{send.entry.sequence}")
        elif event == "release":
            self._owner = ""

    def _answered(self, line: Line) -> None:
        unknown = line.about["outcome"] == "unknown"
        if unknown or (self._unsure is None or line.about["outcome"] == "stored"):
            self._unsure = line if unknown else None
        send = self._open.get(line.change)
        if send is None or unknown:
            return
        if line.about["outcome"] == "stored":
            del self._open[line.change]
            self._stored(send)

    # What is written.

    def _lands(self, line: Line) -> None:
        mark, before = line.mark(), line.mark("before")
        if mark is None:
            return
        batch_id = _id_of(line, mark)
        self._check_mark(line, batch_id, before, mark)
        if line.about["rows"]:
            self._check_write(line, batch_id, line.output)
            self._tried[batch_id, line.output] = line

    def _landed(self, line: Line) -> None:
        mark = line.mark()
        if mark is not None and line.about["outcome"] == "done":
            self._marks[line.output] = mark
            if line.about["rows"]:
                self._has[_id_of(line, mark), line.output] = line

    def _check_write(self, line: Line, batch_id: str, output: str) -> None:
        """Check a write, or a landing of rows, before it is made."""
        what = f"batch {batch_id} goes into output {output!r}"
        fences = (self.fenced,) if self.fenced else ()
        self.judge.holds("fenced", f"{what} after the run has seen another owner", *fences, line, ok=not fences)
        if self.guarantee == Guarantee.AT_MOST_ONCE:
            committed = batch_id in self._committed
            self.judge.holds("first", f"{what} before it is committed", line, ok=committed)
            tried = self._tried.get((batch_id, output))
            self.judge.holds("first", f"{what} twice", *((tried,) if tried else ()), line, ok=tried is None)
            return
        pending = self.ledger.pending if self.ledger else None
        if pending is None or pending.id != batch_id:
            self.judge.holds("begun", f"{what}, and the run does not know it as begun", line, ok=False)
            return
        named = pending.program is None or output in pending.program.outputs
        self.judge.holds("begun", f"{what}, which it was not begun for", line, ok=named)
        noted = output in pending.written
        self.judge.holds("once", f"{what}, which the ledger notes as written", line, ok=not noted)
        has = self._has.get((batch_id, output))
        self.judge.holds("once", f"{what} again", *((has,) if has else ()), line, ok=has is None)
        others = [name for (id_, name) in self._has if id_ == batch_id and name != output]
        left = [name for name in others if name not in pending.written]
        self.judge.holds("noted", f"{what}, and the ledger does not note {left}", line, ok=not left)

    def _check_ranges(self, line: Line) -> None:
        pending = self.ledger.pending if self.ledger else None
        if pending is not None and pending.id == line.batch:
            what = f"batch {line.batch} is written with other ranges than it was begun with"
            self.judge.holds("begun", what, line, ok=line.ranges == pending.ranges)

    def _check_mark(self, line: Line, batch_id: str, before: OutputMark | None, mark: OutputMark) -> None:
        name, ledger, about = line.output, self.ledger, self.outputs.get(line.output, {})
        if ledger is None:
            return
        at, known = before.sequence if before else 0, ledger.landed_in(name)
        rises = mark.sequence > at or (before is not None and before.partly and mark.sequence == at)
        # A restore has taken the batch back and kept its mark, and an operator has adopted that.
        voided = before is not None and mark == before._replace(void=True) and known == Landed(at)
        self.judge.holds("mark", f"the mark of {name!r} goes from {at} to {mark.sequence}", line, ok=rises or voided)
        kept = at >= known.sequence or (before is None and bool(about.get("expires")))
        what = f"{batch_id} lands in {name!r}, whose mark is {at}; the ledger knows batch {known.sequence} there"
        self.judge.holds("kept", what, line, ok=kept)
        batch = next((each for each in (ledger.pending, ledger.unsettled) if each and each.id == batch_id), None)
        what = f"the mark of {name!r} becomes that of {batch_id}, which is neither pending nor unsettled"
        self.judge.holds("begun", what, line, ok=batch is not None)
        if batch is not None:
            whole = before is None or not before.partly  # else it is the mark that the first part has got
            targets = self._targets(batch, name)
            targets = targets - {""} or targets
            ok = mark.digest in {OutputMark.of(batch, to).digest for to in targets} or not whole
            self.judge.holds("mark", f"the mark of {name!r} is not of ranges and target of {batch_id}", line, ok=ok)

    # What is told to the ledger.

    def _check_sent(self, line: Line) -> None:
        before, after, entry = line.ledger, line.after, line.entry
        if before is None or after is None or entry is None or not self.outputs:
            return
        match entry.event:
            case "commit":
                self._check_commit(line, before.pending, f"{after.group}/{entry.token}/{entry.sequence}")
            case "mark" if before.pending is not None and after.pending is not None:
                for name in {*after.pending.written} - {*before.pending.written}:
                    ok = self._is_there(before.pending, name)
                    self.judge.holds("complete", f"{name!r} is noted, and does not have the batch", line, ok=ok)
            case "abandon" if before.pending is not None:
                self._check_void(line, before.pending, after)
            case "settle" if before.unsettled is not None and entry.having not in {Having.MAYBE, Having.SOME}:
                self._check_void(line, before.unsettled, after)

    def _check_commit(self, line: Line, pending: Batch | None, batch_id: str) -> None:
        if self.guarantee == Guarantee.AT_MOST_ONCE:
            return
        letters = (batch_id, DEAD_LETTERS) in self._has.keys() | self._joined
        letters |= pending is not None and DEAD_LETTERS in {*pending.lands_in, *pending.written}
        lacking = [
            name
            for name in self._here(pending)
            if (name == DEAD_LETTERS) == letters
            and (batch_id, name) not in self._joined
            and not (pending is not None and self._is_there(pending, name))
        ]
        what = f"batch {batch_id} is committed, and nothing shows that it is in {lacking}"
        self.judge.holds("complete", what, line, ok=not lacking)

    def _here(self, pending: Batch | None) -> list[str]:
        """Return the outputs of a batch that this program has, by their names in the batch.

        A redeploy may have renamed one, or taken one away.
        """
        program = pending.program if pending else None
        if program is None:
            return [*self.outputs]
        places = {(each.get("target"), each.get("place")) for each in self.outputs.values() if each.get("place")}
        of = {name: (target, program.places.get(name)) for name, target in program.outputs.items()}
        return [name for name, place in of.items() if name in self.outputs or place in places]

    def _is_there(self, batch: Batch, name: str) -> bool:
        """Whether the run knows that an output has a batch."""
        mark = self._shown.get((batch.id, name))
        here = mark is not None and mark.digest in {
            OutputMark.of(batch, to).digest for to in self._targets(batch, name)
        }
        return name in batch.written or (batch.id, name) in self._has or here

    def _targets(self, batch: Batch, name: str) -> set[str]:
        """Return what marks of an output say of the target, under each of its names; empty is that of an old mark."""
        program = batch.program
        place = (program.outputs.get(name), program.places.get(name)) if program else None
        same = [each for each in self.outputs.values() if (each.get("target"), each.get("place")) == place]
        return {str(each.get("writes_to", "")) for each in [*same, self.outputs.get(name, {})]} | {""}

    def _check_void(self, line: Line, batch: Batch, after: Snapshot) -> None:
        """Check that outputs with marks can never get a batch that is given up."""
        told = {name for name in batch.lands_in if after.landed_in(name).sequence == batch.sequence}
        for name in batch.lands_in:
            if name not in self._marks and name not in told:
                continue  # it is not an output of this program
            mark = self._marks.get(name)
            ok = mark is not None and mark.sequence >= batch.sequence and not (mark.partly and not mark.void)
            self.judge.holds("void", f"batch {batch.id} is given up, and may still land in {name!r}", line, ok=ok)


def _id_of(line: Line, mark: OutputMark) -> str:
    return f"{line.place.group}/{mark.token}/{mark.sequence}"
