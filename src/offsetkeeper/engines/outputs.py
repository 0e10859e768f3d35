"""The outputs of a run: how each is written, under which name, and what their marks say of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch, Program
from offsetkeeper.core.duration import duration
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.left_out import gone, gone_text, missed, missed_text
from offsetkeeper.core.mark import Landing, OutputMark, check_left, check_marks
from offsetkeeper.core.model import Entry, Landed, Snapshot
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.traced import tell_outputs, traced
from offsetkeeper.errors import OutcomeUnknown, SinkError, StoreUnavailable
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.sinks.sink import MarkKey, Seen

log = logging.getLogger("offsetkeeper")
_MOVED = (
    "the batch was begun with other settings of the output (its brokers, or a topic's prefix or mark_topic), where its "
    "mark would be: start with those until the batch is done"
)
_UNKNOWN = "the history is too short to say when the batch was begun"
_ENTRIES = 1000  # of the history, for the time when a batch was begun, and for batches that an output lacks


class Voided(NamedTuple):
    """What outputs that keep a mark have of a batch that was given up, and the identities of their targets."""

    landings: Mapping[str, Landing]
    targets: Mapping[str, str]


@dataclass(slots=True)
class RunOutputs:
    """The outputs of a run, for the owner of a ledger.

    Attributes:
        asked: the settings of the run.
        ledger: ledger of the group.
        program: returns what the whole program reads and writes; see `Run.program`.
        prepared: how each output is written with this store; set by `prepare`.
    """

    asked: Run
    ledger: Ledger
    program: Callable[[Iterable[str]], Program]
    prepared: Prepared = field(default_factory=lambda: Prepared({}, {}), init=False)
    _here: Program | None = field(default=None, init=False)
    _found: dict[str, str] = field(default_factory=dict, init=False)  # the targets of outputs at the start
    _beside: dict[str, int] = field(default_factory=dict, init=False)  # the last batch of those that join the ledger

    def prepare(self) -> None:
        """Find out how each output is written, and whether it can keep the guarantee with this store.

        Raises:
            GuaranteeRefused, SettingsError: see `Sink.prepare`.
            StoreUnavailable, SinkError: the store or an output stayed unavailable.
        """
        asked, store = self.asked, self.ledger.store
        self.prepared = asked.pace.patiently(
            (StoreUnavailable, SinkError), lambda: asked.outputs.prepare(store, asked.guarantee)
        )
        tell_outputs(asked, self.prepared, self.ledger)

    @property
    def ways(self) -> Prepared:
        """How each output is written, by the names of `names`."""
        return traced(self.prepared.under(self.old_names), self.ledger)

    @property
    def names(self) -> list[str]:
        """The names of the outputs: those with which the pending or unsettled batch was begun, until it is done."""
        return [self.old_names.get(name, name) for name in self.asked.outputs.sinks]

    @property
    def old_names(self) -> dict[str, str]:
        """The names with which the pending or unsettled batch was begun, by the names of now that differ."""
        batch = self.ledger.snapshot.pending or self.ledger.snapshot.unsettled
        if batch is None:
            return {}
        self._here = self._here or self.program(())  # once, as this is asked several times for each batch
        return batch.old_names(self._here)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the outputs that have the pending batch, as the ledger knows it."""
        pending = self.ledger.snapshot.pending
        return pending.written if pending else ()

    def landings(self, *, anew: bool = False) -> dict[str, Landing]:
        """Return what the marks say of the pending or unsettled batch; outputs that commit with the ledger lack it.

        Without such a batch, or without outputs that keep a mark, the result is empty.

        Args:
            anew: whether the batch was begun for other outputs. What the ledger knows of these names is of those.

        Raises:
            MarkError: the marks do not match the ledger.
            SinkError: an output stayed unavailable.
        """
        once, group, snapshot = self.ways.once, self.ledger.group, self.ledger.snapshot
        if anew and snapshot.pending is not None:
            others = {name: landed for name, landed in snapshot.landed.items() if name not in once}
            snapshot = replace(snapshot, landed=others, pending=replace(snapshot.pending, written=()))
        beside = {
            name: self.asked.pace.patiently(SinkError, partial(joiner.mark, MarkKey(group, name)))
            for name, joiner in self.ways.joiners.items()
        }
        there = {
            name: mark
            for joiner in self.ways.joiners.values()
            for name, mark in self.asked.pace.patiently(SinkError, partial(joiner.marks, group)).items()
        }
        now = traced(self.prepared, self.ledger)
        renamed = {name: each for name, each in now.once.items() if name in self.old_names}
        seen, seen_anew = self._seen(once), self._seen(renamed)
        marks = {name: found.mark for name, found in seen.items()}
        new_marks = {name: found.mark for name, found in seen_anew.items()}
        expiring = {name for name, each in once.items() if each.lander.kept_s is not None}
        for name, found in {**seen, **seen_anew}.items():
            self._found.setdefault(name, found.target)
        every = (*beside.values(), *there.values(), *marks.values(), *new_marks.values())
        newest = max((each.sequence for each in every if each is not None), default=0)
        # A run that lives may have landed batches since the ledger was loaded.
        reached = self.ledger.later().sequence if newest > snapshot.sequence else snapshot.sequence
        for name, mark in {**beside, **there}.items():
            check_left(group, name, mark, reached)
        self._beside = {name: mark.sequence for name, mark in beside.items() if mark is not None}
        lost = {**_lost(snapshot, once, seen), **self._forgotten(snapshot, marks)}
        check_marks(snapshot, marks, expiring, lost, reached)
        # The next batch is begun under the new names. A mark there that does not fit forbids to finish this one.
        pending = snapshot.pending and replace(snapshot.pending, written=tuple(renamed))
        later = replace(snapshot, pending=pending, unsettled=None)
        check_marks(later, new_marks, {*renamed}, _lost(later, renamed, seen_anew), reached)
        batch = snapshot.pending or snapshot.unsettled
        if not once or batch is None:
            return {}
        return {
            **dict.fromkeys(self.ways.joiners, Landing.ABSENT),
            **{name: once[name].landing(mark, batch, exact=anew) for name, mark in marks.items()},
        }

    def _forgotten(self, snapshot: Snapshot, marks: Mapping[str, OutputMark | None]) -> dict[str, str]:
        """Return of each output why its first batch may be there, though it has no mark here, or has it no more.

        The ledger notes the target when the batch is begun. An adopted mark takes the note out: then there is no batch.
        """
        batch, once = snapshot.pending or snapshot.unsettled, self.ways.once
        if batch is None:
            return {}
        first = {name for name in once if snapshot.landed_in(name).target and not snapshot.landed_in(name).sequence}
        unknown = [name for name in first.difference(self.written) if marks[name] is None]
        kept = {name: ask for name in unknown if (ask := once[name].lander.kept_s) is not None}
        moved = {name: _MOVED for name in kept if self._was_elsewhere(batch, name)}
        asked = {name: self.asked.pace.patiently(SinkError, ask) for name, ask in kept.items() if name not in moved}
        if not asked:
            return moved
        begun = begun_ms(self.ledger.history(_ENTRIES), batch)
        age_s = inf if begun is None else (environment.now_ms() - begun) / 1000
        when = _UNKNOWN if begun is None else f"the batch was begun {duration(age_s)} ago"
        return moved | {
            name: f"{when}, and the output keeps a mark for {duration(kept_s)}"
            for name, kept_s in asked.items()
            if age_s >= kept_s
        }

    def tell_left_out(self, before: Snapshot) -> None:
        """Warn of an output that the program has no more, and of one that lacks batches that were committed without it.

        Args:
            before: the ledger as the run before has left it; the marks have been looked at since.

        Raises:
            StoreUnavailable: the store stayed unavailable.
        """
        group, here = self.ledger.group, self.asked.described
        if left := gone(before.outputs, here):
            log.warning("%s", gone_text(group, left))
        last = {**self._beside, **{name: before.landed_in(name).sequence for name in self.ways.once}}
        committed = before.sequence - (before.pending is not None)
        if any(0 < each < committed for each in last.values()):
            history = self.ledger.history(_ENTRIES)
            for name, commits in missed(before, here, last, history).items():
                log.warning("%s", missed_text(group, name, commits, history))

    def _was_elsewhere(self, batch: Batch, name: str) -> bool:
        """Whether a batch was begun for another place than the output has now: then its mark is there."""
        here = self._here or self.program(())
        began = None if batch.program is None else batch.program.places.get(name)
        now = here.places.get(name)
        return None not in {began, now} and began != now and name not in self.old_names.values()

    def landed_before(self, batch: Batch) -> dict[str, Landed]:
        """Return the last batch before this one in each output that keeps a mark, as the marks say it.

        Where an output has this batch already, what it was before that is unknown, and so is the target then.

        Raises:
            SinkError: an output stayed unavailable.
        """
        most = batch.sequence - 1
        return {
            name: Landed(min(at, most), found.target if at <= most else "")
            for name, found in self._seen(self.ways.once).items()
            for at in [found.mark.sequence if found.mark else 0]
        }

    def make_void(self, batch: Batch) -> Voided:
        """Make sure that a dropped batch can never land in an output that keeps a mark; return what each output has.

        Raises:
            MarkBehind: an output has lost rows.
            SinkError, OutcomeUnknown: an output stayed unavailable.
        """
        away, known = (SinkError, OutcomeUnknown), self.landed_in
        # Also those that the program has got since the batch was begun: they may have it under way.
        once = {name: each for name, each in self.ways.once.items() if batch.goes_into(name)}
        found = {
            name: self.asked.pace.patiently(away, partial(each.make_void, batch, known(name)))
            for name, each in once.items()
        }
        return Voided(
            {name: outcome.landing for name, outcome in found.items()},
            {name: outcome.target for name, outcome in found.items()},
        )

    def kept(self, batch: Batch) -> dict[str, str]:
        """Return the identities of the targets that have a batch, by their marks.

        Raises:
            MarkBehind: an output has lost rows since its mark was read.
            SinkError: an output stayed unavailable.
        """
        once = {name: each for name, each in self.ways.once.items() if name in batch.lands_in}
        known, ask = self.ledger.snapshot.landed_in, self.asked.pace.patiently
        return {name: ask(SinkError, partial(each.kept, batch, known(name))).target for name, each in once.items()}

    def first_targets(self, group: str) -> dict[str, Landed]:
        """Return the identity of the target of each output without a batch: it may get one, and be made again."""
        new = [name for name in self.ways.once if self.ledger.snapshot.landed_in(name) == Landed()]
        found = {name: self.ways.once[name].seen(group).target for name in new}
        return {name: Landed(0, target) for name, target in found.items() if target}

    def found_targets(self, names: Iterable[str]) -> dict[str, Landed]:
        """Return the targets that this run has found at its start, of those outputs that tell theirs."""
        return {name: landed for name in names if (landed := self.landed_in(name)).target}

    def landed_in(self, name: str) -> Landed:
        """Return the last batch in an output; before the first one, the target that this run has found at its start."""
        landed = self.ledger.snapshot.landed_in(name)
        return landed if landed.sequence else landed._replace(target=self._found.get(name, ""))

    def _seen(self, once: Mapping[str, Once]) -> dict[str, Seen]:
        """Return the mark of outputs, and the identity of their targets."""
        group = self.ledger.group
        return {name: self.asked.pace.patiently(SinkError, partial(each.seen, group)) for name, each in once.items()}


def begun_ms(entries: Sequence[Entry], batch: Batch) -> int | None:
    """Return when a batch was begun first, in milliseconds since 1970; None if the history does not go back so far.

    A redeploy or another program may have begun it again. Each change before it has a smaller sequence.

    Args:
        entries: the newest history, newest first.
        batch: the batch.
    """
    of_batch = batch.token, batch.sequence
    begun = [each.at_ms for each in entries if each.event == "begin" and (each.token, each.sequence) == of_batch]
    return begun[-1] if begun and entries[-1].sequence < batch.sequence else None


def _lost(ledger: Snapshot, once: Mapping[str, Once], seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return of each output why rows that the ledger knows there are gone; empty if they are there."""
    return {name: once[name].lost(ledger.landed_in(name), found) for name, found in seen.items()}
