"""Exactly once into an output that keeps a mark: applies the rules of `core.mark` through a `Lander`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper.core.batch import DEAD_LETTERS, Batch
from offsetkeeper.core.mark import Landing, OutputMark, behind, landing, mismatch, named
from offsetkeeper.core.model import Landed
from offsetkeeper.errors import BatchVoid, MarkAhead, MarkMismatch, MarkMoved, OutcomeUnknown, Refused, SinkError
from offsetkeeper.sinks.sink import Lander, MarkKey, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_BATCH = Landed()
_TRIES = 5  # a mark may change twice between a read and a write: an older run lands, a newer run drops


class WriteResult(NamedTuple):
    """The result of a write.

    Attributes:
        used: whether the frame was used.
        target: identity of the target with the rows; see `Landed`.
    """

    used: bool
    target: str


class Outcome(NamedTuple):
    """What became of a batch that was given up, and the identity of the target then; see `Landed`."""

    landing: Landing
    target: str


@dataclass(frozen=True, slots=True)
class Once:
    """A named output that keeps a mark.

    Attributes:
        lander: lands rows and mark in one step.
        output: name of the output; empty if it is the only one.
        beside: names of the other outputs of the program.
    """

    lander: Lander
    output: str
    beside: frozenset[str] = frozenset()

    def seen(self, group: str) -> Seen:
        """Return the mark of a group, and the identity of the target.

        Raises:
            SinkError: the output could not be asked.
            MarkError: another program has written something in the place of the mark.
        """
        return self._look(MarkKey(group, self.output))

    def mark(self, group: str) -> OutputMark | None:
        """Return the mark of a group; see `seen`."""
        return self.seen(group).mark

    def landing(self, mark: OutputMark | None, batch: Batch, *, exact: bool = False) -> Landing:
        """Return what a mark says about a batch, see `core.mark`."""
        return landing(mark, batch, self.lander.writes_to, exact=exact)

    def lost(self, landed: Landed, seen: Seen) -> str:
        """Return why rows that the ledger knows in the output are gone; empty if they are there, or there were none.

        For a start: a target that has no batch yet may be made again between two runs.
        """
        never_had = not landed.sequence and seen.mark is None
        return "" if never_had else self.lander.lost(landed, seen)

    def write(
        self, frame: DataFrame, batch: Batch, landed: Landed = _NO_BATCH, check: Callable[[], object] = lambda: None
    ) -> WriteResult:
        """Land the rows, unless the output already has the batch; see `Writer`. The ledger must have begun the batch.

        Args:
            frame: the rows.
            batch: the batch as the user sees it.
            landed: the last batch in the output, as the ledger knows it; its target, as this run has found it.
            check: called after the rows are read and before they land; an error that it raises ends the write. See
                also `Lander.late`.

        Raises:
            BatchVoid, MarkAhead, MarkBehind, MarkMismatch: the mark forbids it; nothing was written.
            SinkError: nothing was written.
            OutcomeUnknown: the rows may be written; another try reads the mark first.
        """
        key = MarkKey(batch.group, self.output)
        seen = self._look(key)
        if self._has(seen, batch, landed):
            return WriteResult(used=False, target=seen.target)
        staged = self.lander.stage(frame, batch)
        check()
        seen = self._look(key)
        if self._has(seen, batch, landed):
            return WriteResult(used=True, target=seen.target)
        late = (check,) if self.lander.late else ()
        try:
            target = self.lander.land(key, seen, self._mark_of(batch, seen), staged, *late)
        except (MarkMoved, OutcomeUnknown):
            seen, target = self._look(key), None
            if not self._has(seen, batch, landed):
                raise
        return WriteResult(used=True, target=seen.target if target is None else target)

    @property
    def rehearses(self) -> bool:
        """Whether `rehearse` shows that rows can be written; otherwise it only shows that their frame can be made."""
        return self.lander.rehearse is not None or not self.lander.late

    def rehearse(self, frame: DataFrame, batch: Batch) -> None:
        """Do what `write` does, as far as it can be taken back; no mark changes.

        Raises:
            SinkError, RowMismatch, SinkMismatch, Refused: the rows cannot be written.
        """
        staged = self.lander.stage(frame, replace(batch, ranges=()))  # of no batch: none was begun
        if self.lander.rehearse is not None:
            self.lander.rehearse(MarkKey(batch.group, self.output), staged)
        elif self.lander.late:
            frame.write.format("noop").mode("overwrite").save()

    def make_void(self, batch: Batch, landed: Landed = _NO_BATCH) -> Outcome:
        """Make sure that a given-up batch can never land; return its outcome, which is not ABSENT or PARTLY.

        Args:
            batch: the batch.
            landed: the last batch in the output, as the ledger knows it.

        Raises:
            MarkBehind: the output has lost rows; a void mark would hide that, so nothing was written.
            SinkError, OutcomeUnknown: the batch may still land: try again.
        """
        key = MarkKey(batch.group, self.output)
        for _ in range(_TRIES):
            seen = self._look(key)
            self._check_kept(seen, batch, landed)
            found = self._landed_in(seen, batch, landed)
            if found not in {Landing.ABSENT, Landing.PARTLY}:
                return Outcome(found, seen.target)
            try:
                target = self.lander.land(key, seen, self._mark_of(batch, seen, void=True), None)
            except MarkMoved:
                continue
            after = Landing.VOID if found is Landing.ABSENT else Landing.CUT
            return Outcome(after, seen.target if target is None else target)
        raise SinkError(
            f"batch {batch.id}: other runs keep changing the mark of output {self.output!r}; nothing was written"
        )

    def kept(self, batch: Batch, landed: Landed) -> Seen:
        """Return the mark of the batch's group; see `seen`.

        Raises:
            MarkBehind: the output has lost rows that the ledger knows there.
        """
        seen = self.seen(batch.group)
        self._check_kept(seen, batch, landed)
        return seen

    def _look(self, key: MarkKey) -> Seen:
        """Return the mark. Where a target has one for all names, check that it is of no other output here.

        A mark of a name that the program does not have any more is of this output: a redeploy has renamed it.
        """
        seen = self.lander.seen(key)
        other = key.output if seen.key is None else seen.key.output
        if other != key.output and (other in self.beside or DEAD_LETTERS in {other, key.output}):
            raise Refused(
                f"the target of {named(key.output)} is that of {named(other)}, by its mark: give each its own. Nothing "
                "was written"
            )
        return seen

    def _check_kept(self, seen: Seen, batch: Batch, landed: Landed) -> None:
        """Check that the output still has the rows that the ledger knows there: a newer mark would hide their loss."""
        why = self.lander.lost(landed, seen)
        if why:
            raise behind(batch.group, self.output, seen.mark, landed, why)

    def _landed_in(self, seen: Seen, batch: Batch, landed: Landed) -> Landing:
        """Return what the output has of a batch. Its mark may have outlived the rows: an operator has adopted that."""
        found = self.landing(seen.mark, batch)
        adopted, before = landed == Landed(batch.sequence), Landed(batch.sequence - 1)
        return Landing.ABSENT if found is Landing.LANDED and adopted and self.lander.lost(before, seen) else found

    def _mark_of(self, batch: Batch, seen: Seen, *, void: bool = False) -> OutputMark:
        """Return the next mark. The slots of a batch that has landed in some of them get the mark of these."""
        if seen.mark is not None and self.landing(seen.mark, batch) is Landing.PARTLY:
            return seen.mark._replace(partly=False, void=void)
        return OutputMark.of(batch, self.lander.writes_to, void=void)

    def _has(self, seen: Seen, batch: Batch, landed: Landed) -> bool:
        """Return whether the output has the batch; False if the batch may land.

        Raises:
            BatchVoid, MarkAhead, MarkBehind, MarkMismatch: the batch must not be written.
        """
        self._check_kept(seen, batch, landed)
        mark = seen.mark
        found, name = self.landing(mark, batch), named(self.output)
        if found in {Landing.VOID, Landing.CUT}:
            raise BatchVoid(f"{name}: another run has dropped batch {batch.id}; nothing was written. Start again")
        if found is Landing.PASSED:
            raise MarkAhead(f"{name} has a later batch than {batch.id}, with the mark '{mark}'; nothing was written")
        if found is Landing.ELSEWHERE:
            raise MarkMismatch(
                f"by its mark, {name} has batch {batch.id}, but in another target than here: outputs of one name in "
                "one schema share a mark. Nothing was written. Stop the program that writes there, and start again: "
                "the start says how to go on"
            )
        if found is Landing.OTHER:
            raise MarkMismatch(f"{name} has the mark '{mark}': {': '.join(mismatch(batch))}; nothing was written")
        return found is Landing.LANDED
