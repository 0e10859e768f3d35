"""The settings of a run of a pipeline, the same for every engine. They can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from offsetkeeper.checkpoint.files import Folder
from offsetkeeper.checkpoint.folder import open_folder
from offsetkeeper.core.batch import Output, Program
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.retry import retry
from offsetkeeper.core.urls import shown_location
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers import PackedReader, Reader
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.rows import rows_from
from offsetkeeper.sinks import Outputs, Sink
from offsetkeeper.sinks.sink import kind_and_target, output_of, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.sinks.functions import Process
T = TypeVar("T")
_NUMBERS = (
    ("interval_s", int | float, 0),
    ("poll_interval_s", int | float, 0),
    ("attempts", int, 1),
    ("retry_timeout_s", int | float, 0),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of batches, intervals, attempts and timeouts.

    Attributes:
        limits: limits of each batch.
        interval_s: seconds from the start of one batch to the start of the next; None: as soon as there are records to
            read.
        poll_interval_s: seconds between two polls of Kafka while there are no records to read.
        attempts: how often a batch is tried before the run ends with its error.
        retry_timeout_s: seconds that brokers or the store may be unavailable.
        log_ranges: log one line `topic partition start end` for each range of each batch.
    """

    limits: Limits = field(default_factory=Limits)
    interval_s: float | None = None
    poll_interval_s: float = 1.0
    attempts: int = 3
    retry_timeout_s: float = 60.0
    log_ranges: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        for name, kind, least in _NUMBERS:
            value = getattr(self, name)
            if value is None and name == "interval_s":
                continue
            if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
                raise SettingsError(f"{name}={value!r}: use a {'whole ' * (kind is int)}number from {least} on")

    def patiently(self, on: type[Exception] | tuple[type[Exception], ...], call: Callable[[], T]) -> T:
        """Call until `on` is not raised, for up to `retry_timeout_s`; return what the call returns."""
        return retry(on, self.retry_timeout_s, lambda _: call(), longest_s=2.0)


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of a run. They can be pickled: with Spark Connect, batches are processed in another process.

    Attributes:
        group: the consumer group.
        store_url: URL of the store; None if the user gave a `Store` object.
        cluster: Kafka.
        subscription: topics, where they start, and policies.
        reader: reads exact ranges.
        outputs: the outputs of the rows.
        process: turns a batch's records into a frame, or one frame for each output; None writes them as they are.
        guarantee: the guarantee to keep.
        pace: limits of batches, intervals, attempts and timeouts.
        given: offsets that the user gives for this start.
        dead_letters: the output for records that fail; None if they stop the run.
    """

    group: str
    store_url: str | None = field(repr=False)  # it may have a password
    cluster: Cluster
    subscription: Subscription
    reader: Reader
    outputs: Outputs
    process: Process | None
    guarantee: Guarantee
    pace: Pace
    given: Mapping[TopicPartition, int]
    dead_letters: Outputs | None = None

    def program(self, known: Iterable[str]) -> Program:
        """Return what the program reads and writes; with a pattern, which of the known topics it reads."""
        topics, sinks = self.subscription.topics, self._sinks
        return Program(
            tuple(sorted({*topics.names, *(name for name in known if name in topics)})),
            {name: kind_and_target(sink) for name, sink in sinks.items()},
            {name: place for name, sink in sinks.items() if (place := place_of(sink))},
        )

    @property
    def described(self) -> dict[str, Output]:
        """What it writes to, by the outputs' names, with the dead letters."""
        return {name: output_of(sink) for name, sink in self._sinks.items()}

    @property
    def partly(self) -> tuple[str, ...]:
        """The topics of which it reads chosen partitions alone; sorted."""
        return tuple(sorted(self.subscription.topics.partitions))

    @property
    def worker_modules(self) -> set[str]:
        """The modules that Spark's workers import for the reader and the outputs."""
        return {name for part in (self.reader, *self._sinks.values()) for name in getattr(part, "worker_modules", ())}

    @property
    def _sinks(self) -> dict[str, Sink]:
        """All outputs by their names, with the dead letters."""
        return {**self.outputs.sinks, **(self.dead_letters.sinks if self.dead_letters else {})}

    @property
    def worker_variables(self) -> set[str]:
        """The environment variables that Spark's workers need for the reader."""
        return {*getattr(self.reader, "worker_variables", ())}


@dataclass(frozen=True, slots=True)
class QueryRun:
    """The additional settings of a run by a streaming query. They can be pickled.

    Attributes:
        run: the settings of the run itself.
        checkpoint: folder in which Spark keeps the query's progress and state.
        stateful: whether the output depends on state that Spark keeps between batches.
        on_mismatch: what to do if ledger and checkpoint differ and only the user can judge.
        publish: whether to commit offsets to Kafka's group too.
        open_folder: opens the checkpoint; it must be a module-level function, to be pickled.
        rows_from: returns the rows of a frame at or after offsets, by partition; also a module-level function.
    """

    run: Run
    checkpoint: str = field(repr=False)  # as may this one
    stateful: bool
    on_mismatch: OnMismatch
    publish: bool
    open_folder: Callable[[SparkSession, str], Folder] = open_folder
    rows_from: Callable[[DataFrame, Mapping[TopicPartition, int]], DataFrame] = rows_from

    @property
    def place(self) -> str:
        """The checkpoint without credentials, for messages."""
        return shown_location(self.checkpoint)

    @property
    def packed(self) -> bool:
        """Whether the packed reader reads the records."""
        return isinstance(self.run.reader, PackedReader)
