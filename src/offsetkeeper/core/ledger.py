"""A group's ledger as its users hold it: the rules applied through a store, with retries and lost replies settled."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from offsetkeeper.core import environment, rules
from offsetkeeper.core.model import (
    Batch,
    Change,
    Entry,
    OffsetRange,
    Owner,
    Position,
    Snapshot,
    TopicPartition,
    check_group,
)
from offsetkeeper.core.outside import whole_text
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
_MARGIN = 20  # changes that others may make between two requests


class Ledger:
    """The ledger of one consumer group in one store.

    Each change is written once, whatever happens on the way: a store that is away is retried for `retry_timeout_s`
    seconds, and where a reply was lost the store is asked what it holds. The first change takes over the positions that
    another program has stored; that is logged and in the history. Not for use by several threads at once.

    Whatever changes the ledger raises, beside what it names itself: StoreUnavailable (surely not written),
    OutcomeUnknown (may be written, and the store stayed away, or cannot tell any more: `load` first), VersionConflict
    (somebody else wrote; surely not written).

    Attributes:
        group: the consumer group.
        name: of who makes the changes, for the history; by default host and process.
        store: where the ledger is kept.
        snapshot: the ledger as this process last saw or changed it.
    """

    def __init__(self, store: Store, group: str, *, retry_timeout_s: float = 60.0, name: str = "") -> None:
        self.store = store
        self.group = check_group(group)
        self.snapshot = Snapshot(group)
        self._retry_timeout_s = retry_timeout_s
        self.name = whole_text(name or f"{socket.gethostname()}:{os.getpid()}")
        self._owner_id = environment.token()
        self._acquired = False
        self._taken: Fenced | None = None  # what a look-up has found since the last change that proved ownership
        self._doubts: set[str] = set()  # ids of changes that were sent, and of which nobody has told what became

    def __repr__(self) -> str:
        return f"Ledger({self.group!r} in {self.store.address}, version {self.snapshot.version})"

    def load(self) -> Snapshot:
        """Read the ledger from the store.

        Raises:
            StoreUnavailable: the store stayed away for longer than the ledger's patience.
            CorruptStore: what is stored is not a ledger.
        """
        self.snapshot = self._patiently(lambda: self.store.load(self.group))
        return self.snapshot

    def acquire(self, reason: str = "") -> Snapshot:
        """Become the group's owner under a new token, fence the one before, and return the ledger found.

        Raises:
            Fenced: a newer run took the group at this very moment.
            StoreUnavailable: the store stayed away.
            VersionConflict: several others kept acquiring the group at the same time.
        """
        self._owner_id, self._acquired, self._taken = environment.token(), False, None
        for _ in range(20):
            found = self.load()
            try:
                self._apply(rules.Acquire(Owner(self._owner_id, found.epoch + 1, self.name)), reason)
            except VersionConflict:
                continue
            self._acquired = True
            return self.snapshot
        raise VersionConflict(
            f"group {self.group!r} in {self.store.address}: others keep acquiring it, this run gave up"
        )

    @property
    def owner_id(self) -> str:
        """The random id under which this process acquired the group; another process can `join` as it."""
        return self._owner_id

    def join(self, owner_id: str) -> Snapshot:
        """Go on as an owner that another process became with `acquire`, and return the ledger found.

        One process at a time may work as an owner: the two take turns, each of them joins before its turn.

        Raises:
            Fenced: this owner does not hold the group any more.
            StoreUnavailable: the store stayed away.
        """
        found = self.load()
        if found.owner is None or found.owner.id != owner_id:
            owner = f"{found.owner.name} (epoch {found.owner.epoch})" if found.owner else "nobody"
            raise Fenced(
                f"group {self.group!r} in {self.store.address} is held by {owner}, not by the run that wants to go on; "
                "it must stop"
            )
        self._owner_id, self._acquired, self._taken = owner_id, True, None
        return found

    def release(self, reason: str = "") -> None:
        """Give the group back.

        Raises:
            Fenced: a newer owner has it already.
        """
        self._apply(rules.Release(), reason)
        self._acquired = False

    def place(self, positions: Mapping[TopicPartition, Position], reason: str = "") -> None:
        """Store where reading of these partitions begins.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        if positions:
            self._apply(rules.Place(positions), reason)

    def batch(self, ranges: Sequence[OffsetRange]) -> Batch:
        """Return these ranges under the identity they will be committed with; nothing is written.

        It is the pending batch's where they are its ranges, else the next one.
        """
        pending, chosen = self.snapshot.pending, tuple(sorted(ranges))
        if pending is not None and pending.ranges == chosen:
            return pending
        owner = self.snapshot.owner
        return Batch(self.group, owner.id if owner else self._owner_id, self.snapshot.sequence + 1, chosen)

    def begin(self, batch: Batch, lands_in: Sequence[str] = ()) -> None:
        """Record the intent to process the batch, so that a retry after a crash has the same ranges and identity.

        Args:
            batch: as `Ledger.batch` returns it.
            lands_in: names of the outputs that keep a mark of their own.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`. Fenced also where the begin is stored, but the reply was
                lost and a newer run has taken the group since.
        """
        self._check_next(batch)
        self._apply(rules.Begin(batch.ranges, tuple(lands_in)))

    def mark(self, batch: Batch, output: str) -> None:
        """Record that one of several outputs has the batch, which was begun.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`.
        """
        self._check_next(batch)
        self._apply(rules.Mark(output), f"output {output} is written")

    def confirm(self, batch: Batch) -> bool:
        """Ask the store whether this run still owns the group, as is right before an output is written once more.

        What a change whose outcome was unknown did to the batch is taken over.

        Returns:
            Whether the batch is committed: a commit of this run, whose outcome was unknown, is found stored.

        Raises:
            Fenced: this run does not own the group any more.
            StoreUnavailable: the store stayed away.
        """
        self.check_owner()
        found = self._patiently(lambda: self.store.load(self.group))
        if not self._owns(found):
            raise self._fenced(found, f"batch {batch.id} of this run must not be written again")
        committed = found.pending is None and found.change_id in self._doubts
        if committed or (found.pending is not None and found.pending.id == batch.id):
            self._doubts.discard(found.change_id)
            self.snapshot = found
        return committed

    def check_owner(self) -> None:
        """Check that the last answer of the store named this run as the owner; the store is not asked.

        Raises:
            Fenced: it named another owner, as when the reply to a commit was lost and looked up later.
        """
        if self._taken is not None:
            raise self._taken

    def commit(self, batch: Batch, reason: str = "") -> None:
        """Record that the batch is processed.

        A commit that is stored counts, also where the group was taken over since: then the next event raises Fenced.

        Raises:
            Fenced, NotAllowed, RangeMismatch: see `rules`.
        """
        self._check_next(batch)
        self._apply(rules.Commit(batch.ranges), reason)

    @contextmanager
    def transaction(self, batch: Batch, reason: str = "") -> Iterator[Any]:
        """Yield the store's own connection in a transaction that commits the batch with whatever is written on it.

        Raises:
            SettingsError: the store cannot share a transaction.
            StoreUnavailable: nothing was committed, neither offsets nor output.
            OutcomeUnknown: the reply to the commit of this try, or of one before, was lost, and it is not stored yet,
                or the store stayed away. Try again with the same batch: of all tries at most one is committed.
            AlreadyCommitted: an earlier try of this batch had landed; the block did not run.
            Fenced, NotAllowed, RangeMismatch: see `rules`; nothing was committed.
        """
        if not isinstance(self.store, TransactionalStore):
            raise SettingsError(f"{self.store.address} cannot share a transaction with an output")
        self.check_owner()
        self._check_next(batch)
        change = self._decide(rules.Commit(batch.ranges), reason)
        stage = "opening"
        try:
            with self.store.transaction(change) as connection:
                stage = "inside"
                yield connection
                stage = "closing"
        except (OutcomeUnknown, VersionConflict) as error:
            if stage == "inside":
                raise  # the block's own, and rolled back
            if isinstance(error, OutcomeUnknown):
                self._doubts.add(change.after.change_id)
            self._settle(change, error)
            self._done(change)
            if stage == "opening":
                raise AlreadyCommitted(f"batch {batch.id} is committed already: go on with the next one") from error
        except StoreUnavailable as error:
            if stage != "inside" and change.after.change_id in self._doubts:
                raise self._unknown(change, error) from error
            raise
        self._done(change)

    def abandon(self, reason: str) -> None:
        """Drop the pending batch, so that other ranges can be read.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        self._apply(rules.Abandon(), reason)

    def settle(self, reason: str) -> None:
        """Record what became of the batch that a reset has dropped, and that can never land any more.

        Raises:
            Fenced, NotAllowed: see `rules`.
        """
        self._apply(rules.Settle(), reason)

    def adopt(self, output: str, sequence: int, reason: str, *, force: bool = False) -> None:
        """Accept the mark of an output as it is, as an operator, of the ledger as it was last loaded.

        Args:
            output: its name; empty where it is the only one.
            sequence: of the batch in the output's mark.
            reason: for the history.
            force: whether a live owner is fenced.

        Raises:
            Fenced: a run holds the group, and `force` is not set.
            SettingsError: the sequence cannot be one.
            VersionConflict: the ledger has changed since it was loaded; nothing was changed.
        """
        self._apply(rules.Adopt(output, sequence, force), reason)

    def rewind(self, positions: Mapping[TopicPartition, Position], reason: str, *, force: bool = False) -> None:
        """Set positions as an operator, of the ledger as it was last loaded.

        Raises:
            Fenced: a run holds the group, and `force` is not set.
            VersionConflict: the ledger has changed since it was loaded; nothing was moved.
        """
        self._apply(rules.Rewind(positions, force), reason)

    def history(self, limit: int = 100) -> Sequence[Entry]:
        """Return the newest `limit` changes, newest first."""
        return self._patiently(lambda: self.store.history(self.group, limit))

    def _check_next(self, batch: Batch) -> None:
        expected = self.batch(batch.ranges)
        if batch.id != expected.id:
            raise RangeMismatch(f"batch {batch.id} is not {expected.id}, which is next: use Ledger.batch")

    def _decide(self, event: rules.Event, reason: str = "") -> Change:
        change_id = environment.token()
        if isinstance(event, rules.Begin | rules.Mark | rules.Commit):
            # These keep their ids when the batch is tried again: each is the same change, and may have landed before.
            sequence = self.snapshot.sequence + (self.snapshot.pending is None)
            change_id = f"{self._owner_id}/{type(event).__name__}/{sequence}/{_digest(event)}"
        author = rules.Author(self._owner_id, self.name, environment.now_ms(), change_id, whole_text(reason))
        return rules.decide(self.snapshot, event, author)

    def _apply(self, event: rules.Event, reason: str = "") -> None:
        self.check_owner()
        foreign = "" if self.snapshot.version else _taken_over(self.snapshot)
        self.record(self._decide(event, "; ".join(filter(None, (reason, foreign)))))
        if foreign:
            log.warning("group %s in %s: %s", self.group, self.store.address, foreign)

    def record(self, change: Change) -> None:
        """Write a change that was decided elsewhere, as when a ledger is copied, once and as carefully as all others.

        Raises:
            Fenced: a newer owner has the group.
        """
        try:
            self._patiently(lambda: self._write(change))
        except VersionConflict as error:
            self._settle(change, error)
        except (StoreUnavailable, OutcomeUnknown) as error:
            if change.after.change_id in self._doubts:
                raise self._unknown(change, error) from error
            raise
        self._done(change)

    def _done(self, change: Change) -> None:
        self._doubts.discard(change.after.change_id)
        self.snapshot = change.after

    def _write(self, change: Change) -> None:
        """Apply the change. After a lost reply it is simply applied again: at most one of all tries can succeed."""
        try:
            self.store.apply(change)
        except OutcomeUnknown as error:
            log.warning("%s: %s; the %s is tried again", self.group, error, change.entry.event)
            self._doubts.add(change.after.change_id)
            raise

    def _settle(self, change: Change, error: StoreError) -> None:
        """Look up what became of a change; return if it is in the store, else raise what its absence means.

        A change that is stored proves nothing where the group was taken over since: only a commit is past recall.
        """
        try:
            found = self._patiently(lambda: self.store.load(self.group))
            landed = self._landed(change, found)
        except (StoreUnavailable, OutcomeUnknown) as away:
            raise self._unknown(change, away) from error
        event = change.entry.event
        if landed:
            if not self._owns(change.after) or self._owns(found):
                return
            self._taken = self._fenced(found, f"the {event} of this run is stored")
            if event != "commit":
                raise self._taken from error
            return
        untold = landed is None and change.after.change_id in self._doubts
        if self._acquired and not self._owns(found):
            fate = (
                f"it is unknown whether the {event} of this run is stored"
                if untold
                else f"the {event} of this run was refused"
            )
            raise self._fenced(found, fate) from error
        if untold and (self._acquired or not self._owns(change.after)):  # an acquire is simply made once more
            raise OutcomeUnknown(
                f"group {self.group!r} in {self.store.address} is at version {found.version}, and whether its {event} "
                f"is or will be version {change.after.version} cannot be told; load the ledger before anything else. "
                f"The last try: {error}"
            ) from error
        raise VersionConflict(f"{error}; now it is at version {found.version}: load it and decide anew") from error

    def _owns(self, snapshot: Snapshot) -> bool:
        return snapshot.owner is not None and snapshot.owner.id == self._owner_id

    def _fenced(self, found: Snapshot, fate: str) -> Fenced:
        owner = "an operator" if found.epoch <= self.snapshot.epoch else "a newer run, which has ended since"
        if found.owner is not None:
            owner = f"{found.owner.name or found.owner.id} (epoch {found.owner.epoch})"
        return Fenced(
            f"group {self.group!r} in {self.store.address} was taken over by {owner}; {fate}. This run must stop"
        )

    def _landed(self, change: Change, found: Snapshot) -> bool | None:
        """Whether a change is stored; None where it may be under way still, or no entry tells of its version."""
        version, change_id = change.after.version, change.after.change_id
        if found.version <= version:
            return found.change_id == change_id or (None if found.version < version else False)
        if Ability.HISTORY not in self.store.abilities:
            return None
        newest = self.history(found.version - change.before.version + _MARGIN)
        if any(entry.change_id == change_id for entry in newest):
            return True
        return False if any(entry.version == version for entry in newest) else None

    def _unknown(self, change: Change, error: StoreError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"group {self.group!r}: whether its {change.entry.event} is written cannot be known, "
            f"the store did not answer for {self._retry_timeout_s:g} s; load the ledger before anything else. {error}"
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        passing = (StoreUnavailable, OutcomeUnknown)
        return retry(passing, self._retry_timeout_s, lambda _: call(), first_s=0.05, longest_s=5.0, jitter_s=0.05)


def _digest(event: rules.Begin | rules.Mark | rules.Commit) -> str:
    """Tell the event from others, in each process alike: with Spark Connect another one goes on. `hash` does not."""
    about = event.output if isinstance(event, rules.Mark) else [*zip(*event.ranges, strict=True)]
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()


def _taken_over(found: Snapshot) -> str:
    count, topics = len(found.positions), ", ".join(sorted({tp.topic for tp in found.positions}))
    return f"{count} positions that another program has stored are taken over, of {topics}"[:500] if count else ""
