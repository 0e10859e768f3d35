"""A run of a pipeline, the same for every engine: what it is asked for, and what ends it from outside.

It ends when a signal or a call asks it to stop, or when Spark dies under it. The first SIGTERM or SIGINT lets the batch
under way finish; the second acts as ever.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from offsetkeeper.checkpoint.files import Folder
from offsetkeeper.checkpoint.folder import open_folder
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.model import Guarantee, TopicPartition
from offsetkeeper.core.urls import shown_location
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.errors import OffsetkeeperError, SettingsError, SparkGone
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers import PackedReader, Reader
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.rows import rows_from
from offsetkeeper.sinks import Outputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.sinks.functions import Process

_TIMEOUT_S = 5.0
_SAFE = (
    "What was committed stays committed, and the next run goes on from there: it finishes or repeats the batch under "
    "way, or with at_most_once counts it as done. Start it"
)
_NUMBERS = (
    ("interval_s", int | float, 0),
    ("poll_interval_s", int | float, 0),
    ("attempts", int, 1),
    ("retry_timeout_s", int | float, 0),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much, how often, how long.

    Attributes:
        limits: of each batch.
        interval_s: seconds from the start of one batch to the start of the next; None where the next one starts as soon
            as there is something to read.
        poll_interval_s: seconds between two looks at Kafka while there is nothing to read.
        attempts: how often a batch is tried before the run ends with its error.
        retry_timeout_s: seconds a broker or store may be away.
        log_ranges: log one line `topic partition start end` for each range of each batch.
    """

    limits: Limits = field(default_factory=Limits)
    interval_s: float | None = None
    poll_interval_s: float = 1.0
    attempts: int = 3
    retry_timeout_s: float = 60.0
    log_ranges: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name, kind, least in _NUMBERS:
            value = getattr(self, name)
            if value is None and name == "interval_s":
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
        dead_letters: where records go that cannot be processed; None where they stop the run.
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
    dead_letters: Outputs | None = None

    @property
    def worker_modules(self) -> set[str]:
        """What Spark's workers import for the reader and the outputs."""
        parts = [
            self.reader,
            *self.outputs.sinks.values(),
            *(self.dead_letters.sinks.values() if self.dead_letters else ()),
        ]
        return {name for part in parts for name in getattr(part, "worker_modules", ())}

    @property
    def worker_variables(self) -> set[str]:
        """The environment variables that Spark's workers need for the reader."""
        return {*getattr(self.reader, "worker_variables", ())}


@dataclass(frozen=True, slots=True)
class QueryRun:
    """What a run by a streaming query is asked for besides. It can be pickled.

    Attributes:
        run: as without a query.
        checkpoint: folder in which Spark keeps the query's progress and state.
        stateful: whether what Spark remembers between batches goes into the output.
        on_mismatch: what to do where ledger and checkpoint differ and only the user can judge.
        publish: whether to put offsets into Kafka's group too.
        open_folder: opens the checkpoint; a function of a module, as is the next.
        rows_from: returns the rows of a frame at or after offsets, by partition.
    """

    run: Run
    checkpoint: str
    stateful: bool
    on_mismatch: OnMismatch
    publish: bool
    open_folder: Callable[[SparkSession, str], Folder] = open_folder
    rows_from: Callable[[DataFrame, Mapping[TopicPartition, int]], DataFrame] = rows_from

    @property
    def place(self) -> str:
        """The checkpoint as it may be shown: a URL without its credentials."""
        return shown_location(self.checkpoint)

    @property
    def packed(self) -> bool:
        """Whether the packed reader reads the records."""
        return isinstance(self.run.reader, PackedReader)


class Stop:
    """Asks a run to end, from any thread or signal handler.

    A `threading.Event` would not do: a handler that sets it while the main thread is on its way into or out of `wait`
    waits for a lock that this very thread holds, for ever.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether it was asked."""
        return self._set

    def clear(self) -> None:
        """Take it back."""
        self._set = False
        self._wake = SimpleQueue()

    def wait(self, seconds: float) -> None:
        """Return when it was asked, or `seconds` have passed."""
        with suppress(Empty):
            if not self._set:
                self._wake.get(timeout=seconds)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT while the block runs; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


def spark_gone(error: BaseException) -> SparkGone | None:
    """Return the error that says so where Spark has died, else None.

    Args:
        error: what was raised. Spark's own errors do not tell a dead JVM from an output that refuses connections, so
            it is asked whether it is there. Errors of offsetkeeper are known for what they are.
    """
    if isinstance(error, OffsetkeeperError):
        return None
    jvm = _jvm()
    if jvm is not None and _refuses(jvm):
        return SparkGone(
            f"Spark is gone: nobody answers at {jvm[0]}:{jvm[1]}, where its JVM was. {_SAFE} in a new process, as "
            "PySpark starts no second JVM in one. Why the JVM ended is in its log or the system's: often it is memory"
        )
    if type(error).__module__ == "pyspark.errors.exceptions.connect" and "StatusCode.UNAVAILABLE" in str(error):
        return SparkGone(
            f"Spark is gone: the server of Spark Connect does not answer. {_SAFE} with a new session once it does"
        )
    return None


@contextmanager
def telling_spark_gone() -> Iterator[None]:
    """Raise `SparkGone` in place of what the block raises because Spark has died."""
    try:
        yield
    except Exception as error:
        gone = spark_gone(error)
        if gone is None:
            raise
        raise gone from error


def _jvm() -> tuple[str, int] | None:
    """Return where the JVM of this process takes calls; None without one, as with Spark Connect."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)  # not so where only Connect is installed
    gateway = context and context._gateway  # noqa: SLF001 - there is no public way to it
    return gateway and (gateway.gateway_parameters.address, gateway.gateway_parameters.port)


def _refuses(address: tuple[str, int]) -> bool:
    """Whether nobody listens there. One that only takes long, or that this process has no socket left for, may."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
