"""Every error that offsetkeeper raises, as one tree.

    OffsetkeeperError
    ├── SettingsError             a wrong setting, found before anything is touched
    │   ├── UnknownScheme         no store has this URL scheme
    │   ├── MissingExtra          the client library of a store is not installed
    │   ├── SparkTooOld           this release of Spark lacks a feature that is needed
    │   └── GuaranteeRefused      the store or the sink cannot keep the guarantee
    ├── Refused                   the state that was found does not allow it; surely nothing was changed
    │   ├── Stale                 the state has changed since the plan was made: make a new plan
    │   ├── StartRefused          a policy says stop for what the plan of a run found; nothing was read
    │   └── CheckpointMismatch    the ledger and Spark's checkpoint do not match
    ├── StoreError                the store, while reading or changing a ledger
    │   ├── StoreUnavailable      surely not written: retry freely
    │   ├── OutcomeUnknown        may be written: read back before doing anything else
    │   ├── VersionConflict       surely not written: another writer was first
    │   │   └── AlreadyCommitted  surely not written again: an earlier try has committed the batch
    │   └── CorruptStore          the stored data is not a ledger
    ├── RuleError                 the rules refuse; nothing was changed
    │   ├── Fenced                a newer owner has taken the group
    │   ├── NotAllowed            the event does not fit the state of the ledger
    │   └── RangeMismatch         the ranges do not start at the positions, or are not those of the pending batch
    ├── BrokerError               Kafka
    │   ├── BrokerUnavailable     no broker answered in time
    │   ├── UnknownTopic          a topic, or a partition of it, does not exist
    │   ├── NotAuthorized         the credentials are wrong or lack a permission
    │   │   └── TokenUnavailable  the token provider failed
    │   ├── RangeGone             records of a requested range are no longer in Kafka
    │   ├── ReadStalled           a range could not be read to its end in time
    │   └── RecordUnreadable      a record has a time or headers that its reader cannot give
    ├── SparkGone                 Spark has died; what was committed stays committed
    ├── SinkError                 the output, surely not written
    │   ├── SinkMismatch          the frame does not fit the output: no row of it can be written
    │   │   └── RowMismatch       a row has a value that the output cannot hold
    │   ├── MarkMoved             another run has changed the output's mark at the same time
    │   └── ComputedAgain         Spark has computed a part of the batch twice while it was staged
    └── MarkError                 the mark in an output does not match the ledger; nothing was written
        ├── MarkAhead             the mark is of a later batch than the ledger knows
        ├── MarkBehind            the mark is of an earlier batch than the ledger has committed
        ├── MarkMismatch          the mark is of another batch with the same sequence, or of another target
        └── BatchVoid             another run has dropped the batch

Each message says what happened, where, and what to do next. Credentials never appear in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = 20  # lines that fit on a screen


class OffsetkeeperError(Exception):
    """The base class of all errors of offsetkeeper."""


class SettingsError(OffsetkeeperError, ValueError):
    """A setting is wrong; nothing has been touched."""


class UnknownScheme(SettingsError):
    """No store has this URL scheme."""


class MissingExtra(SettingsError):
    """The client library that a store, reader or sink needs is not installed."""


class SparkTooOld(SettingsError):
    """This release of Spark lacks a feature that is needed; a newer release has it."""


class GuaranteeRefused(SettingsError):
    """The store, the sink or the function cannot keep the guarantee that was asked for."""


class Refused(OffsetkeeperError):
    """The state that was found does not allow the request: surely nothing was changed. A retry fails in the same way.

    Examples: a server refuses the user, a table has another layout, a ledger is too large, a position is not in Kafka.
    """


class Stale(Refused):
    """The state has changed since a plan or a preview was made; nothing was changed. Make a new plan."""


class StartRefused(Refused):
    """The plan found a partition for which the policy says stop; nothing was read or changed."""


class CheckpointMismatch(Refused):
    """The ledger and Spark's checkpoint do not match. The message shows both sides; nothing was written."""


class StoreError(OffsetkeeperError):
    """The store failed while a ledger was read or changed."""


class StoreUnavailable(StoreError):
    """The store could not be reached: surely nothing was written, so a retry is safe."""


class OutcomeUnknown(StoreError):
    """The connection to the store was lost between request and reply: the change may be written or not.

    Read the ledger again before you do anything else. `Ledger` does this by itself.
    """


class VersionConflict(StoreError):
    """Another writer changed the ledger first, or the store has lost changes: surely nothing was written."""


class AlreadyCommitted(VersionConflict):
    """An earlier try of this batch, whose reply was lost, was committed: count it as done, do not write it again."""


class CorruptStore(StoreError):
    """The data that the store holds for the group is not a ledger; it was not changed."""


class RuleError(OffsetkeeperError):
    """The rules refuse an event; nothing was changed."""


class Fenced(RuleError):
    """A newer owner has taken the group; this one must stop."""


class NotAllowed(RuleError):
    """The event does not fit the state of the ledger."""


class RangeMismatch(RuleError):
    """The ranges do not start at the positions, or are not the pending ones: a gap, an overlap or a stale driver."""


class BrokerError(OffsetkeeperError):
    """Kafka refused or failed."""


class BrokerUnavailable(BrokerError):
    """No broker answered in time."""


class UnknownTopic(BrokerError):
    """A topic, or a partition of it, does not exist."""


class NotAuthorized(BrokerError):
    """The credentials are wrong, or lack a permission; or a broker's certificate is not accepted."""


class TokenUnavailable(NotAuthorized):
    """The token provider raised an error or returned no usable token; no broker was asked."""


class RangeGone(BrokerError):
    """Records of a requested range are no longer in Kafka (retention, or deleted records)."""


class ReadStalled(BrokerError):
    """A range could not be read to its end in time."""


class RecordUnreadable(BrokerError):
    """A record has a time or headers that its reader cannot give, also at the next try.

    The message names topic, partition and offset. A quarantine takes the record.
    """


class SparkGone(OffsetkeeperError):
    """Spark has died: its JVM or the Spark Connect server.

    Committed batches stay committed. The next run finishes or repeats the pending batch, as its guarantee says.
    """


class SinkError(OffsetkeeperError):
    """The output was not written."""


class SinkMismatch(SinkError):
    """The frame does not fit the output, whatever records it is made of: its columns, or their types.

    The program or the output must change. A quarantine takes no record because of it.
    """


class RowMismatch(SinkMismatch):
    """A row has a value that the output cannot hold, though the frame fits: its record is the cause."""


class MarkMoved(SinkError):
    """Another run has changed the output's mark since this run read it: surely nothing was written."""


class ComputedAgain(SinkError):
    """Spark has computed a part of the batch again while it was staged: surely nothing was landed.

    Rows of both computations may be mixed. The batch is staged anew, which uses up no attempt. It is raised if that
    happens too often.
    """


class MarkError(OffsetkeeperError):
    """The mark that an output keeps of its last batch does not match the ledger; nothing was written."""


class MarkAhead(MarkError):
    """The output has a later batch than the ledger knows: the store was restored, or the ledger was created again."""


class MarkBehind(MarkError):
    """The output lacks a batch that the ledger has committed into it: the output was restored or created again."""


class MarkMismatch(MarkError):
    """The output has another batch with the sequence of the pending batch, or has that batch in another target.

    Two ledgers write into one output; or another program has written the batch into a table with the same mark.
    """


class BatchVoid(MarkError):
    """Another run has dropped the batch, so it can never be written."""


def listed(items: Iterable[object], separator: str = "\n  ", most: int = _SHOWN) -> str:
    """Return the first items as text for a message, and how many more items there are."""
    every = [*map(str, items)]
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return separator.join(every[:most] + more)
