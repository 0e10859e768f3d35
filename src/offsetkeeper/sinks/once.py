"""Exactly once into an output that keeps a mark: the rules of `core.mark`, applied through a `Lander`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetkeeper.core.mark import Landing, OutputMark, landing, mismatch, named
from offsetkeeper.core.model import Batch
from offsetkeeper.errors import BatchVoid, MarkAhead, MarkMismatch, MarkMoved, OutcomeUnknown, SinkError
from offsetkeeper.sinks.sink import Lander, MarkKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIES = 5  # others may change a mark twice between a look and a write: an older run that lands, a newer that drops


@dataclass(frozen=True, slots=True)
class Once:
    """An output that keeps a mark, under its name.

    Attributes:
        lander: lands rows and mark in one step.
        output: its name; empty where it is the only one.
    """

    lander: Lander
    output: str

    def mark(self, group: str) -> OutputMark | None:
        """Return the mark of a group.

        Raises:
            SinkError: the output could not be asked.
            MarkError: something else is where the mark should be.
        """
        return self.lander.seen(MarkKey(group, self.output)).mark

    def write(self, frame: DataFrame, batch: Batch, check: Callable[[], object] = lambda: None) -> bool:
        """Land the rows, unless the output has the batch: see `Writer`. It was begun in the ledger before.

        Args:
            frame: the rows.
            batch: as its user sees it.
            check: called between the reading of the rows and their landing; what it raises ends the write.

        Returns:
            Whether the frame was used.

        Raises:
            BatchVoid, MarkAhead, MarkMismatch: the mark forbids it; nothing was written.
            SinkError: nothing was written.
            OutcomeUnknown: the rows may be there; another try looks first.
        """
        key = MarkKey(batch.group, self.output)
        if self._has(self.lander.seen(key).mark, batch):
            return False
        staged = self.lander.stage(frame, batch)
        check()
        seen = self.lander.seen(key)
        if self._has(seen.mark, batch):
            return True
        try:
            self.lander.land(key, seen, OutputMark.of(batch), staged)
        except (MarkMoved, OutcomeUnknown):
            if not self._has(self.lander.seen(key).mark, batch):
                raise
        return True

    def settle(self, batch: Batch) -> Landing:
        """See that a batch that is given up can never land; return what became of it, neither ABSENT nor PARTLY.

        Raises:
            SinkError, OutcomeUnknown: it may still land: ask again.
        """
        key = MarkKey(batch.group, self.output)
        for _ in range(_TRIES):
            seen = self.lander.seen(key)
            found = landing(seen.mark, batch)
            if found not in {Landing.ABSENT, Landing.PARTLY}:
                return found
            try:
                self.lander.land(key, seen, OutputMark.of(batch, void=True), None)
            except MarkMoved:
                continue
            return Landing.VOID if found is Landing.ABSENT else Landing.CUT
        raise SinkError(
            f"batch {batch.id}: others keep changing the mark of output {self.output!r}; nothing was written"
        )

    def _has(self, mark: OutputMark | None, batch: Batch) -> bool:
        """Return whether the output has the batch; False where it may land.

        Raises:
            BatchVoid, MarkAhead, MarkMismatch: it must not be written.
        """
        found, name = landing(mark, batch), named(self.output)
        if found in {Landing.VOID, Landing.CUT}:
            raise BatchVoid(f"{name}: another run has dropped batch {batch.id}; nothing was written. Start again")
        if found is Landing.PASSED:
            raise MarkAhead(f"{name} has a later batch than {batch.id}, with the mark '{mark}'; nothing was written")
        if found is Landing.OTHER:
            raise MarkMismatch(f"{name} has the mark '{mark}': {': '.join(mismatch(batch))}; nothing was written")
        return found is Landing.LANDED
