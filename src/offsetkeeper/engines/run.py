"""What a run of a pipeline is asked for, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetkeeper.core.model import Guarantee, TopicPartition
from offsetkeeper.engines.reconcile import OnMismatch
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import Cluster
from offsetkeeper.kafka.ask_plan import Subscription
from offsetkeeper.readers import PackedReader, Reader
from offsetkeeper.sinks import Outputs

if TYPE_CHECKING:
    from offsetkeeper.sinks.functions import Process

_NUMBERS = (
    ("max_records", int, 1),
    ("poll_interval_s", int | float, 0),
    ("attempts", int, 1),
    ("patience_s", int | float, 0),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much, how often, how long.

    Attributes:
        max_records: the most offsets in one batch, or None for no limit.
        poll_interval_s: seconds between two looks at Kafka while there is nothing to read.
        attempts: how often a batch is tried before the run ends with its error.
        patience_s: seconds a broker or store may be away.
        log_ranges: log one line `topic partition start end` for each range of each batch.
    """

    max_records: int | None = None
    poll_interval_s: float = 1.0
    attempts: int = 3
    patience_s: float = 60.0
    log_ranges: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name, kind, least in _NUMBERS:
            value = getattr(self, name)
            if value is None and name == "max_records":
                continue
            if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
                raise SettingsError(f"{name}={value!r}: use a {'whole ' * (kind is int)}number from {least} on")


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is asked for. It can be pickled: with Spark Connect batches are processed in another process.

    Attributes:
        group: the consumer group.
        store_url: of the ledger; None for a store that was handed over open.
        cluster: Kafka.
        subscription: topics, where they begin, and policies.
        reader: of exact ranges.
        outputs: where rows go.
        process: makes a frame, or one for each output, of a batch's records; None where they go out as they are.
        guarantee: asked for.
        pace: how much, how often, how long.
        given: offsets by hand for this start.
    """

    group: str
    store_url: str | None
    cluster: Cluster
    subscription: Subscription
    reader: Reader
    outputs: Outputs
    process: Process | None
    guarantee: Guarantee
    pace: Pace
    given: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class QueryRun:
    """What a run by a streaming query is asked for besides. It can be pickled.

    Attributes:
        run: as without a query.
        checkpoint: folder in which Spark keeps the query's progress and state.
        stateful: whether what Spark remembers between batches goes into the output.
        on_mismatch: what to do where ledger and checkpoint differ and only the user can judge.
        publish: whether to put offsets into Kafka's group too.
    """

    run: Run
    checkpoint: str
    stateful: bool
    on_mismatch: OnMismatch
    publish: bool

    @property
    def packed(self) -> bool:
        """Whether the packed reader reads the records."""
        return isinstance(self.run.reader, PackedReader)
