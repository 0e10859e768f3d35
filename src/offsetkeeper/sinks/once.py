"""Exactly once into an output that keeps a mark: applies the rules of `core.mark` through a `Lander`."""

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

_TRIES = 5  # a mark may change twice between a read and a write: an older run lands, a newer run drops


@dataclass(frozen=True, slots=True)
class Once:
    """A named output that keeps a mark.

    Attributes:
        lander: lands rows and mark in one step.
        output: name of the output; empty if it is the only one.
    """

    lander: Lander
    output: str

    def mark(self, group: str) -> OutputMark | None:
        """Return the mark of a group.

        Raises:
            SinkError: the output could not be asked.
            MarkError: another program has written something in the place of the mark.
        """
        return self.lander.seen(MarkKey(group, self.output)).mark

    def write(self, frame: DataFrame, batch: Batch, check: Callable[[], object] = lambda: None) -> bool:
        """Land the rows, unless the output already has the batch; see `Writer`. The ledger must have begun the batch.

        Args:
            frame: the rows.
            batch: the batch as the user sees it.
            check: called after the rows are read and before they land; an error that it raises ends the write.

        Returns:
            Whether the frame was used.

        Raises:
            BatchVoid, MarkAhead, MarkMismatch: the mark forbids it; nothing was written.
            SinkError: nothing was written.
            OutcomeUnknown: the rows may be written; another try reads the mark first.
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
        """Make sure that a given-up batch can never land; return its outcome, which is not ABSENT or PARTLY.

        Raises:
            SinkError, OutcomeUnknown: the batch may still land: try again.
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
            f"batch {batch.id}: other runs keep changing the mark of output {self.output!r}; nothing was written"
        )

    def _has(self, mark: OutputMark | None, batch: Batch) -> bool:
        """Return whether the output has the batch; False if the batch may land.

        Raises:
            BatchVoid, MarkAhead, MarkMismatch: the batch must not be written.
        """
        found, name = landing(mark, batch), named(self.output)
        if found in {Landing.VOID, Landing.CUT}:
            raise BatchVoid(f"{name}: another run has dropped batch {batch.id}; nothing was written. Start again")
        if found is Landing.PASSED:
            raise MarkAhead(f"{name} has a later batch than {batch.id}, with the mark '{mark}'; nothing was written")
        if found is Landing.OTHER:
            raise MarkMismatch(f"{name} has the mark '{mark}': {': '.join(mismatch(batch))}; nothing was written")
        return found is Landing.LANDED
