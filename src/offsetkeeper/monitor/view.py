"""What one look at store and Kafka found. Everything that is served is worked out of the newest view. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from offsetkeeper.core.model import Entry, Snapshot, TopicPartition
from offsetkeeper.core.plan import Plan
from offsetkeeper.monitor.alerts import Alarm
from offsetkeeper.monitor.ledgers import NOTHING, Past
from offsetkeeper.operate.gaps import Finding
from offsetkeeper.operate.lag import Lag, Sample, Speed, Total
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Point, Status


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the store, or Kafka, answered at the newest look.

    Attributes:
        up: whether it did.
        since_ms: since when that is so, milliseconds since 1970.
        error: why it did not, in words.
    """

    up: bool
    since_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupLook:
    """One group, as it was seen.

    Attributes:
        at_ms: when; a group that could not be read stays as it was seen before.
        snapshot: its ledger.
        past: its newest history, and the gaps and overlaps in it.
        lags: of its partitions; None where Kafka could not be asked, as are `total`, `plan`, `ahead` and `status`.
        speeds: of its partitions.
        total: of all of them.
        plan: where the next start begins, by the usual policies.
        ahead: what it does first with a pending batch, at least once.
        status: in a word.
        points: of this look and the ones before, oldest first, for the picture.
        looks: those of them that growth is told from.
        anchors: earlier samples that speed is measured from.
        error: why the group could not be read at the newest look, in words.
    """

    at_ms: int
    snapshot: Snapshot
    past: Past = NOTHING
    lags: Sequence[Lag] | None = None
    speeds: Mapping[TopicPartition, Speed] = field(default_factory=dict)
    total: Total | None = None
    plan: Plan | None = None
    ahead: Outlook | None = None
    status: Status | None = None
    points: Sequence[Point] = ()
    looks: Sequence[Point] = ()
    anchors: Sequence[Sample] = ()
    error: str = ""

    @property
    def entries(self) -> Sequence[Entry]:
        """Its newest history, newest first."""
        return self.past.entries

    @property
    def findings(self) -> Sequence[Finding]:
        """Gaps and overlaps in it."""
        return self.past.findings

    @property
    def waiting(self) -> int | None:
        """Offsets unread, of all partitions; None where they are not known."""
        return None if self.total is None else self.total.waiting

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until nothing waits; None where that is not known, or never."""
        return None if self.total is None else self.total.speed.catch_up_s(self.total.waiting)

    @property
    def committed_ms(self) -> int | None:
        """When the newest commit in the history was made."""
        return next((entry.at_ms for entry in self.entries if entry.event == "commit"), None)


@dataclass(frozen=True, slots=True)
class View:
    """Store and Kafka at one moment.

    Attributes:
        number: one more with each look; 0 is before the first.
        at_ms: when the look began, milliseconds since 1970.
        took_s: how long it took.
        store, kafka: whether they answered.
        groups: by name; of a store that is away, those of the last look that could be had.
        alarms: of all rules, those that fire now.
    """

    number: int
    at_ms: int
    took_s: float
    store: Health
    kafka: Health
    groups: Mapping[str, GroupLook] = field(default_factory=lambda: MappingProxyType({}))
    alarms: Sequence[Alarm] = ()

    def fresh(self) -> dict[str, GroupLook]:
        """Return the groups that were read at this very look."""
        return {name: look for name, look in self.groups.items() if look.at_ms == self.at_ms}
