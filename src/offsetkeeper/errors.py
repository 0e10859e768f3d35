"""Every error offsetkeeper raises, as one tree.

    OffsetkeeperError
    ├── SettingsError             a wrong setting, found before anything is touched
    │   ├── UnknownScheme         no store has this URL scheme
    │   ├── MissingExtra          the client library of a store is not installed
    │   ├── SparkTooOld           this release of Spark lacks what was asked for
    │   └── GuaranteeRefused      the store or the sink cannot keep what was asked of it
    ├── Refused                   what was found does not allow it; surely nothing was changed
    │   ├── Stale                 what a plan was made for has changed since: make it anew
    │   ├── StartRefused          the plan of a run found something that no policy allows; nothing was read
    │   └── CheckpointMismatch    the ledger and Spark's checkpoint do not fit together
    ├── StoreError                the store, while reading or changing a ledger
    │   ├── StoreUnavailable      surely not written: retry freely
    │   ├── OutcomeUnknown        may be written: read back before doing anything else
    │   ├── VersionConflict       surely not written: somebody else wrote first
    │   │   └── AlreadyCommitted  surely not written again: an earlier try of the batch had landed
    │   └── CorruptStore          what is stored there is not a ledger
    ├── RuleError                 the rules refuse; nothing was changed
    │   ├── Fenced                a newer owner has taken the group
    │   ├── NotAllowed            the event does not fit the state of the ledger
    │   └── RangeMismatch         ranges that do not start at the positions, or are not the pending ones
    ├── BrokerError               Kafka
    │   ├── BrokerUnavailable     no broker answered in time
    │   ├── UnknownTopic          a topic, or a partition of it, does not exist
    │   ├── NotAuthorized         the credentials are wrong or lack a permission
    │   │   └── TokenUnavailable  the token provider failed
    │   ├── RangeGone             records of an asked range are no longer there
    │   └── ReadStalled           a range could not be read to its end in time
    ├── SparkGone                 Spark has died; what was committed stays committed
    ├── SinkError                 the output, surely not written
    │   ├── SinkMismatch          the frame does not fit the output
    │   └── MarkMoved             another run has changed the output's mark at this moment
    └── MarkError                 the mark in an output does not fit the ledger; nothing was written
        ├── MarkAhead             it is of a later batch than the ledger knows
        ├── MarkBehind            it is of an earlier batch than the ledger has committed
        ├── MarkMismatch          it is of another batch with the same sequence
        └── BatchVoid             another run has dropped the batch

Each message says what happened, where, and what to do next. Credentials never appear in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = 20  # what fits a screen


class OffsetkeeperError(Exception):
    """The root of every error raised on purpose."""


class SettingsError(OffsetkeeperError, ValueError):
    """A setting is wrong; nothing has been touched."""


class UnknownScheme(SettingsError):
    """No store is known by this URL scheme."""


class MissingExtra(SettingsError):
    """The client library that a store, reader or sink needs is not installed."""


class SparkTooOld(SettingsError):
    """This release of Spark lacks what was asked for; a newer one has it."""


class GuaranteeRefused(SettingsError):
    """The store, the sink or the function cannot keep the guarantee that was asked for."""


class Refused(OffsetkeeperError):
    """What was found does not allow what was asked: surely nothing was changed, and another try ends alike.

    A server refuses the user, a table has another layout, a ledger is too large, a position is not in Kafka.
    """


class Stale(Refused):
    """A plan or a preview was made for something that has changed since; nothing was changed. Make it anew."""


class StartRefused(Refused):
    """The plan found a partition that no policy allows to go on; nothing was read or changed."""


class CheckpointMismatch(Refused):
    """The ledger and Spark's checkpoint do not fit together; both sides are shown, and nothing was written."""


class StoreError(OffsetkeeperError):
    """The store failed while a ledger was read or changed."""


class StoreUnavailable(StoreError):
    """The store could not be reached: surely nothing was written, so a retry is free."""


class OutcomeUnknown(StoreError):
    """The store was cut off between request and reply: the change may be written or not.

    Read back before anything else is done. `Ledger` does so by itself.
    """


class VersionConflict(StoreError):
    """Another writer changed the ledger first: surely nothing was written."""


class AlreadyCommitted(VersionConflict):
    """An earlier try of this very batch, whose reply was lost, had landed: count it as done, do not write it again."""


class CorruptStore(StoreError):
    """What the store holds for the group cannot be a ledger; it was left as it is."""


class RuleError(OffsetkeeperError):
    """The rules refuse an event; nothing was changed."""


class Fenced(RuleError):
    """A newer owner has taken the group; this one must stop."""


class NotAllowed(RuleError):
    """The event does not fit the state the ledger is in."""


class RangeMismatch(RuleError):
    """The ranges do not start at the positions, or are not the pending ones: a gap, a double or a stale driver."""


class BrokerError(OffsetkeeperError):
    """Kafka refused or failed."""


class BrokerUnavailable(BrokerError):
    """No broker answered in time."""


class UnknownTopic(BrokerError):
    """A topic, or a partition of it, does not exist."""


class NotAuthorized(BrokerError):
    """The credentials are wrong, or lack a permission."""


class TokenUnavailable(NotAuthorized):
    """The token provider raised an error, or returned no token that can be used; no broker was asked."""


class RangeGone(BrokerError):
    """Records of an asked range are no longer in Kafka (retention, or deleted records)."""


class ReadStalled(BrokerError):
    """A range could not be read to its end in time."""


class SparkGone(OffsetkeeperError):
    """Spark has died: its JVM, or the server of Spark Connect.

    What was committed stays committed. The next run finishes or repeats the batch under way, as its guarantee says.
    """


class SinkError(OffsetkeeperError):
    """The output was not written."""


class SinkMismatch(SinkError):
    """The frame does not fit the output: its columns, their types, or what is in them."""


class MarkMoved(SinkError):
    """Another run has changed the output's mark since this one looked at it: surely nothing was written."""


class MarkError(OffsetkeeperError):
    """The mark that an output keeps of its last batch does not fit the ledger; nothing was written."""


class MarkAhead(MarkError):
    """The output has a later batch than the ledger knows: the store was restored, or the ledger made anew."""


class MarkBehind(MarkError):
    """The output lacks a batch that the ledger has committed into it: the output was restored, or made anew."""


class MarkMismatch(MarkError):
    """The output has another batch under the sequence of the pending one: two ledgers write into one output."""


class BatchVoid(MarkError):
    """Another run has dropped the batch, so that it can never land."""


def listed(items: Iterable[object], separator: str = "\n  ", most: int = _SHOWN) -> str:
    """Return the first items as text, for a message, and how many more there are."""
    every = [*map(str, items)]
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return separator.join(every[:most] + more)
