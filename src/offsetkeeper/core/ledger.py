"""A group's ledger: applies the rules through a store, retries, and finds out the outcome of lost replies."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from offsetkeeper.core import environment, rules, trace
from offsetkeeper.core.batch import NO_OUTPUTS, NO_QUERIES, Batch, Output, Program, Queries, QueryBatch
from offsetkeeper.core.model import (
    NO_CUTS,
    RUN,
    START,
    Change,
    Cuts,
    Entry,
    Having,
    Landed,
    Owner,
    Snapshot,
    check_group,
    latest,
)
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition, topics_of
from offsetkeeper.core.outside import short_text, whole_text
from offsetkeeper.core.retry import retry
from offsetkeeper.core.store import Ability, Store, TransactionalStore
from offsetkeeper.errors import (
    AlreadyCommitted,
    Fenced,
    OutcomeUnknown,
    RangeMismatch,
    SettingsError,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
MARGIN = 20
"""Changes that other processes may make between two requests, such as for a ledger and for its history."""


class Ledger:
    """The ledger of one consumer group in one store.

    Each change is written exactly once: requests to an unavailable store are retried for `retry_timeout_s` seconds, and
    after a lost reply the store is read to find out the outcome. The first change takes over positions that another
    program has stored; the log and the history say so. Do not use one ledger in several threads at once.

    Every method that changes the ledger raises, beside the errors that it names: StoreUnavailable (surely not written),
    OutcomeUnknown (may be written, but the store stayed unavailable or can no longer tell: `load` first),
    VersionConflict (another writer was first; surely not written).

    Attributes:
        group: the consumer group.
        name: name of the writer in the history; by default host and process.
        store: the store of the ledger.
        snapshot: the ledger as this process last read or changed it.
        replaced: the owner that `acquire` has fenced; None if nobody held the group.
    """

    def __init__(self, store: Store, group: str, *, retry_timeout_s: float = 60.0, name: str = "") -> None:
        self.store = store
        self.group = check_group(group)
        self.snapshot = Snapshot(group)
        self._retry_timeout_s = retry_timeout_s
        self.name = whole_text(name or f"{socket.gethostname()}:{os.getpid()}")
        self._owner_id = self._run_id = environment.token()
        self._told: trace.Told = {}
        self._acquired = False
        self.replaced: Owner | None = None
        self._taken: Fenced | None = None  # the error that a read has found since the last change that proved ownership
        self._doubts: set[str] = set()  # ids of sent changes whose outcome is unknown

    def __repr__(self) -> str:
        return f"Ledger({self.group!r} in {self.store.address}, version {self.snapshot.version})"

    def load(self) -> Snapshot:
        """Read the ledger from the store.

        Raises:
            StoreUnavailable: the store stayed unavailable for `retry_timeout_s`.
            CorruptStore: the stored data is not a ledger.
        """
        self.snapshot = self._patiently(lambda: self._calls.load(self.group))
        return self.snapshot

    def later(self) -> Snapshot:
        """Read the ledger once more, and keep `snapshot`: what another run has committed while marks were looked at.

        Returns:
            The ledger as it is now; `snapshot` if the two do not follow on each other, see `latest`.

        Raises:
            StoreUnavailable, CorruptStore: see `load`.
        """
        return latest(self.snapshot, self._patiently(lambda: self._calls.load(self.group)))

    def acquire(
        self, reason: str = "", outputs: Mapping[str, Output] = NO_OUTPUTS, partly: tuple[str, ...] = ()
    ) -> Snapshot:
        """Become the group's owner with a new token, fence the owner before, and return the ledger.

        Args:
            reason: reason for the history.
            outputs: what the run writes to, by the outputs' names.
            partly: topics of which the run reads chosen partitions alone.

        Raises:
            Fenced: a newer run took the group at the same time.
            StoreUnavailable: the store stayed unavailable.
            VersionConflict: other runs kept acquiring the group at the same time, or the store keeps no change of it.
        """
        self._owner_id, self._acquired, self._taken = environment.token(), False, None
        last: VersionConflict | None = None
        for _ in range(20):
            found = self.load()
            try:
                self._apply(rules.Acquire(Owner(self._owner_id, found.epoch + 1, self.name), outputs, partly), reason)
            except VersionConflict as error:
                last = error
                continue
            self._acquired, self.replaced = True, found.owner
            return self.snapshot
        raise VersionConflict(
            f"group {self.group!r} in {self.store.address} could not be acquired in 20 tries, so this run gave up. If "
            f"another run commits faster than the store answers here, stop that run first. The last try: {last}"
        ) from last

    @property
    def who(self) -> trace.Who:
        """Who works, for a trace."""
        return trace.Who(self.group, self.store.address, self._run_id, self._owner_id)

    @property
    def _calls(self) -> Store:
        """The store, with its calls noted if traces are on."""
        return trace.traced(self.store, self.who, self._told)

    @property
    def owner_id(self) -> str:
        """The random id with which this process acquired the group; another process can `join` with it."""
        return self._owner_id

    def join(self, owner_id: str) -> Snapshot:
        """Continue as the owner that another process became by `acquire`, and return the ledger.

        Only one process at a time may work as an owner: the processes take turns, and each joins before its turn.

        Raises:
            Fenced: this owner no longer holds the group.
            StoreUnavailable: the store stayed unavailable.
        """
        found = self.load()
        if found.owner is None or found.owner.id != owner_id:
            owner = f"{found.owner.name} (epoch {found.owner.epoch})" if found.owner else "nobody"
            raise Fenced(
                f"group {self.group!r} in {self.store.address} is held by {owner}, not by the run that wants to "
                "continue; this run must stop"
            )
        self._owner_id, self._acquired, self._taken = owner_id, True, None
        return found

    def release(self, reason: str = "") -> None:
        """Release the group.

        Raises:
            Fenced: a newer owner already has the group.
        """
        self._apply(rules.Release(), reason)
        self._acquired = False

    def place(
        self,
        positions: Mapping[TopicPartition, Position],
        reason: str = "",
        given: str = "",
        queries: Queries = NO_QUERIES,
        cuts: Cuts = NO_CUTS,
        *,
        mirror: bool = False,
    ) -> None:
        """Store the start positions of these partitions; the other arguments as in `rules.Place`.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        if positions or queries or (given and (given,) != self.snapshot.given[-1:]):
            self._apply(rules.Place(positions, given, queries, cuts, mirror), reason)

    def batch(
        self, ranges: Sequence[OffsetRange], query: QueryBatch | None = None, watermark_ms: int | None = None
    ) -> Batch:
        """Return these ranges as a batch with the id that they will be committed with; nothing is written.

        If they are the ranges of the pending batch, it is that batch, else the next one. `query` is the number that a
        query with state gives it, `watermark_ms` the watermark with which that query computes it.
        """
        pending, chosen = self.snapshot.pending, tuple(sorted(ranges))
        if pending is not None and (pending.ranges, pending.query) == (chosen, query):
            return pending
        owner = self.snapshot.owner
        token = owner.id if owner else self._owner_id
        return Batch(self.group, token, self.snapshot.sequence + 1, chosen, query=query, watermark_ms=watermark_ms)

    def begin(
        self,
        batch: Batch,
        lands_in: Sequence[str] = (),
        landed: Mapping[str, Landed] = rules.NOTHING_LANDED,
        program: Program | None = None,
        reason: str = "",
    ) -> None:
        """Record the intent to process the batch, so that a retry after a crash has the same ranges and id.

        Args:
            batch: as `Ledger.batch` returns it. If it is the pending one, another program takes it over.
            lands_in: names of the outputs that keep their own mark.
            landed: the targets or the last batches of outputs, see `rules.Begin`.
            program: what the program reads and writes.
            reason: reason for the history.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`. Fenced also if the begin is stored, but its reply was lost
                and a newer run has taken the group since.
        """
        self._check_next(batch)
        event = rules.Begin(batch.ranges, tuple(lands_in), landed, program, batch.query, batch.watermark_ms)
        self._apply(event, reason)

    def note_written(self, batch: Batch, output: str, target: str = "") -> None:
        """Record that one of several outputs has the pending batch.

        Args:
            batch: the pending batch.
            output: name of the output.
            target: identity of its target, if it keeps a mark; see `Landed`.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`.
        """
        self._check_next(batch)
        self._apply(rules.Written(output, target), f"output {output} is written")

    def note_waiting(self, reason: str) -> None:
        """Record in the history that this run waits for an output that is away.

        Args:
            reason: which output, since when and why.

        Raises:
            Fenced: see `rules`.
        """
        self._apply(rules.Wait(), reason)

    def confirm(self, batch: Batch) -> bool:
        """Ask the store whether this run still owns the group, before an output is written again.

        If a change with an unknown outcome turns out to be stored, its effect on the batch is taken over.

        Returns:
            Whether the batch is committed: a commit of this run with an unknown outcome turns out to be stored.

        Raises:
            Fenced: this run no longer owns the group.
            StoreUnavailable: the store stayed unavailable.
            VersionConflict: the store has lost changes that it acknowledged.
        """
        self.check_owner()
        found = self._patiently(lambda: self._calls.load(self.group))
        if not self._owns(found):
            raise self._fenced(found, f"batch {batch.id} of this run must not be written again")
        self._check_kept(found)
        committed = found.pending is None and found.change_id in self._doubts
        if committed or (found.pending is not None and found.pending.id == batch.id):
            self._doubts.discard(found.change_id)
            self.snapshot = found
        return committed

    def check_held(self) -> None:
        """Ask the store whether this run still owns the group.

        Raises:
            Fenced: it does not.
            StoreUnavailable: the store stayed unavailable.
            VersionConflict: the store has lost changes that it acknowledged.
        """
        found = self._patiently(lambda: self._calls.load(self.group))
        if not self._owns(found):
            raise self._fenced(found, "its newer batches are in the ledger")
        self._check_kept(found)

    def check_owner(self) -> None:
        """Check that the last answer of the store named this run as the owner. The store is not asked.

        Raises:
            Fenced: it named another owner, for example in a read after a lost reply to a commit.
        """
        if self._taken is not None:
            raise self._taken

    def commit(self, batch: Batch, reason: str = "", targets: rules.Targets = rules.NO_TARGETS) -> None:
        """Record that the batch is processed.

        A stored commit counts even if the group was taken over since; then the next event raises Fenced.

        Args:
            batch: as `batch` returns it.
            reason: reason for the history.
            targets: identity of the target of each output that keeps a mark; see `Landed`.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`.
        """
        self._check_next(batch)
        self._apply(rules.Commit(batch.ranges, targets, batch.query, batch.watermark_ms), reason)

    @contextmanager
    def transaction(self, batch: Batch, reason: str = "", targets: rules.Targets = rules.NO_TARGETS) -> Iterator[Any]:
        """Yield the store's connection in a transaction that commits the batch together with all writes on it.

        The arguments are those of `commit`.

        Raises:
            SettingsError: the store cannot share a transaction.
            StoreUnavailable: nothing was committed, neither offsets nor output.
            OutcomeUnknown: the reply to the commit of this or an earlier try was lost, and the commit is not stored
                yet, or the store stayed unavailable. Try again with the same batch: at most one try is committed.
            AlreadyCommitted: an earlier try of this batch was committed; the block did not run.
            Fenced, NotAllowed, RangeMismatch: see `rules`; nothing was committed.
        """
        store = self._calls
        if not isinstance(store, TransactionalStore):
            raise SettingsError(f"{self.store.address} cannot share a transaction with an output")
        self.check_owner()
        self._check_next(batch)
        change = self._decide(rules.Commit(batch.ranges, targets, batch.query, batch.watermark_ms), reason)
        stage = "opening"
        try:
            with store.transaction(change) as connection:
                stage = "inside"
                yield connection
                stage = "closing"
        except (OutcomeUnknown, VersionConflict) as error:
            if stage == "inside":
                raise  # an error of the block; all is rolled back
            if isinstance(error, OutcomeUnknown):
                self._doubts.add(change.after.change_id)
            self._find_outcome(change, error)
            self._done(change)
            if stage == "opening":
                raise AlreadyCommitted(f"batch {batch.id} is already committed: continue with the next one") from error
        except StoreUnavailable as error:
            if stage != "inside" and change.after.change_id in self._doubts:
                raise self._unknown(change, error) from error
            raise
        self._done(change)

    def abandon(self, reason: str, targets: rules.Targets = rules.NO_TARGETS, having: Having = Having.NONE) -> None:
        """Drop the pending batch, so that other ranges can be read; see `rules.Abandon`.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        self._apply(rules.Abandon(targets, having), reason)

    def settle(self, reason: str, targets: rules.Targets = rules.NO_TARGETS, having: Having = Having.NONE) -> None:
        """Record the outcome of the batch that a reset has dropped, and that can no longer land; see `rules.Settle`.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        self._apply(rules.Settle(targets, having), reason)

    def adopt(self, output: str, sequence: int, reason: str, *, force: bool = False) -> None:
        """Accept the mark of an output as it is, for an operator, based on the last loaded ledger.

        Args:
            output: name of the output; empty if the pipeline has only one.
            sequence: sequence of the batch in the output's mark.
            reason: reason for the history.
            force: whether to fence a live owner.

        Raises:
            Fenced: a run holds the group, and `force` is not set.
            SettingsError: the sequence is not valid.
            VersionConflict: the ledger has changed since it was loaded; nothing was changed.
        """
        self._apply(rules.Adopt(output, sequence, force), reason)

    def rewind(
        self,
        positions: Mapping[TopicPartition, Position],
        reason: str,
        *,
        force: bool = False,
        queries: Queries = NO_QUERIES,
        stays: Collection[TopicPartition] = (),
        restores: bool = False,
        cuts: Cuts = NO_CUTS,
    ) -> None:
        """Set positions for an operator, based on the last loaded ledger; the other arguments as in `rules.Rewind`.

        Raises:
            Fenced: a run holds the group, and `force` is not set.
            VersionConflict: the ledger has changed since it was loaded; nothing was moved.
            NotAllowed, RangeMismatch: `restores` is set, and no batch can be pending again at these positions.
        """
        self._apply(rules.Rewind(positions, force, queries, tuple(stays), restores, cuts), reason)

    def forget(self, partitions: Collection[TopicPartition], reason: str, *, force: bool = False) -> None:
        """Take positions out of the ledger for an operator, based on the last loaded ledger; see `rules.Forget`.

        Raises:
            Fenced: a run holds the group, and `force` is not set.
            NotAllowed: a partition has no position, or is in a batch that is pending or unsettled.
            VersionConflict: the ledger has changed since it was loaded; nothing was changed.
        """
        self._apply(rules.Forget(tuple(sorted(partitions)), force), reason)

    def history(self, limit: int = 100) -> Sequence[Entry]:
        """Return the newest `limit` changes, newest first."""
        return self._patiently(lambda: self._calls.history(self.group, limit))

    def _check_next(self, batch: Batch) -> None:
        expected = self.batch(batch.ranges, batch.query)
        if batch.id != expected.id:
            raise RangeMismatch(f"batch {batch.id} is not the next batch, {expected.id}: use Ledger.batch")

    def _decide(self, event: rules.Event, reason: str = "") -> Change:
        change_id = environment.token()
        if isinstance(event, rules.Begin | rules.Written | rules.Commit):
            # These changes keep their ids when the batch is tried again, because an earlier try may be stored.
            sequence = self.snapshot.sequence + (self.snapshot.pending is None)
            change_id = f"{self._owner_id}/{type(event).__name__}/{sequence}/{_digest(event)}"
        author = rules.Author(
            self._owner_id, self.name, environment.now_ms(), change_id, short_text(whole_text(reason))
        )
        return rules.decide(self.snapshot, event, author)

    def _apply(self, event: rules.Event, reason: str = "") -> None:
        self.check_owner()
        foreign = "" if self.snapshot.version else _taken_over(self.snapshot)
        change = self._decide(event, "; ".join(filter(None, (reason, foreign))))
        with trace.telling(self.who, change):
            self.record(change)
        if foreign:
            log.warning("group %r in %s: %s", self.group, self.store.address, foreign)

    def record(self, change: Change) -> None:
        """Write a change that was decided elsewhere, such as in a copy, exactly once like all other changes.

        Raises:
            Fenced: a newer owner has the group.
        """
        try:
            self._patiently(lambda: self._write(change))
        except VersionConflict as error:
            self._find_outcome(change, error)
        except (StoreUnavailable, OutcomeUnknown) as error:
            if change.after.change_id in self._doubts:
                raise self._unknown(change, error) from error
            raise
        self._done(change)

    def _done(self, change: Change) -> None:
        self._doubts.discard(change.after.change_id)
        self.snapshot = change.after

    def _write(self, change: Change) -> None:
        """Apply the change. After a lost reply, apply it again: at most one of all tries can succeed."""
        try:
            self._calls.apply(change)
        except OutcomeUnknown as error:
            log.warning("group %r: %s; the %s is tried again", self.group, error, change.entry.event)
            self._doubts.add(change.after.change_id)
            raise

    def _find_outcome(self, change: Change, error: StoreError) -> None:
        """Find out the outcome of a change; return if it is stored, else raise the error that its absence means.

        If the group was taken over since, a stored change does not count, except a commit, which is final.
        """
        try:
            found = self._patiently(lambda: self._calls.load(self.group))
            stored = self._is_stored(change, found)
        except (StoreUnavailable, OutcomeUnknown) as away:
            raise self._unknown(change, away) from error
        event, gone = change.entry.event, self._gone(found)
        if stored:
            if not self._owns(change.after) or self._owns(found):
                return
            self._taken = self._fenced(found, f"the {event} of this run is stored")
            if event != "commit":
                raise self._taken from error
            return
        untold = stored is None and change.after.change_id in self._doubts
        if self._acquired and not self._owns(found):
            fate = (
                f"it is unknown whether the {event} of this run is stored"
                if untold
                else f"the {event} of this run was refused"
            )
            raise self._fenced(found, fate) from error
        if untold and (self._acquired or not self._owns(change.after)):  # an acquire is simply repeated
            raise OutcomeUnknown(
                f"group {self.group!r} in {self.store.address} is at version {found.version}. It is unknown whether "
                f"its {event} is or will be version {change.after.version}; load the ledger before anything else. "
                f"{gone}The last try: {error}"
            ) from error
        if gone:
            raise VersionConflict(f"{self.store.address}: group {self.group!r} was not changed. {gone}") from error
        raise VersionConflict(
            f"{error}; now the ledger is at version {found.version}: load it and decide again"
        ) from error

    def _check_kept(self, found: Snapshot) -> None:
        if gone := self._gone(found):
            raise VersionConflict(f"{self.store.address}: group {self.group!r} was not changed. {gone}")

    def _gone(self, found: Snapshot) -> str:
        """Return what has become of changes that the store has acknowledged; empty if it still has them."""
        if found.version >= self.snapshot.version:
            return ""
        return (
            f"This run has seen version {self.snapshot.version} of the ledger, and the store has version "
            f"{found.version}: it has lost changes that it acknowledged. A replica without them has taken over, a "
            "backup was restored, or the ledger was deleted. Start again: an output that keeps a mark is then held "
            "against the ledger, and any other gets records again. "
        )

    def _owns(self, snapshot: Snapshot) -> bool:
        return snapshot.owner is not None and snapshot.owner.id == self._owner_id

    def _fenced(self, found: Snapshot, fate: str) -> Fenced:
        owner = "an operator" if found.epoch <= self.snapshot.epoch else self._gone_owner(found)
        if found.owner is not None:
            owner = f"{found.owner.name or found.owner.id} (epoch {found.owner.epoch})"
        return Fenced(
            f"group {self.group!r} in {self.store.address} was taken over by {owner}; {fate}. This run must stop"
            + (f". {gone}" if (gone := self._gone(found)) else "")
        )

    def _gone_owner(self, found: Snapshot) -> str:
        """Return who took the group last and gave it back: an operator, as `fence` does, or a run."""
        try:
            newest = self.history(MARGIN) if Ability.HISTORY in self.store.abilities else ()
        except StoreError:
            newest = ()
        last = next((entry for entry in newest if entry.event == "acquire" and entry.version <= found.version), None)
        if last is None or last.reason in {"", RUN, START}:
            return "a newer run that has ended since"
        return f"an operator at {last.actor} ({last.reason})"

    def _is_stored(self, change: Change, found: Snapshot) -> bool | None:
        """Whether a change is stored; None if it may still be on its way, or no history entry has its version."""
        version, change_id = change.after.version, change.after.change_id
        if found.version <= version:
            return found.change_id == change_id or (None if found.version < version else False)
        if Ability.HISTORY not in self.store.abilities:
            return None
        newest = self.history(found.version - change.before.version + MARGIN)
        if any(entry.change_id == change_id for entry in newest):
            return True
        return False if any(entry.version == version for entry in newest) else None

    def _unknown(self, change: Change, error: StoreError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"group {self.group!r}: it is unknown whether its {change.entry.event} is written, because "
            f"the store did not answer for {self._retry_timeout_s:g} s; load the ledger before anything else. {error}"
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        passing = (StoreUnavailable, OutcomeUnknown)
        return retry(passing, self._retry_timeout_s, lambda _: call(), first_s=0.05, longest_s=5.0, jitter_s=0.05)


def _digest(event: rules.Begin | rules.Written | rules.Commit) -> str:
    """Return a digest of the event that is the same in every process, unlike `hash`: Spark Connect uses several."""
    about = event.output if isinstance(event, rules.Written) else [event.query, *zip(*event.ranges, strict=True)]
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()


def _taken_over(found: Snapshot) -> str:
    count, topics = len(found.positions), ", ".join(sorted(topics_of(found.positions)))
    return f"{count} positions that another program has stored are taken over, of {topics}"[:500] if count else ""
