"""A run of a pipeline, the same for every engine: its settings, and how it is ended from outside.

A run ends when a signal or a call stops it, or when Spark dies. After the first SIGTERM or SIGINT the current batch
finishes; the second signal has its usual effect.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from offsetkeeper.checkpoint.files import Folder
from offsetkeeper.checkpoint.folder import open_folder
from offsetkeeper.core.batch import Program
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.urls import shown_location
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.errors import OffsetkeeperError, SettingsError, SparkGone
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers import PackedReader, Reader
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.rows import rows_from
from offsetkeeper.sinks import Outputs
from offsetkeeper.sinks.sink import kind_and_target, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.sinks.functions import Process

_TIMEOUT_S = 5.0
_SAFE = (
    "Committed batches stay committed, and the next run resumes after them: it finishes or repeats the pending "
    "batch, or with at_most_once counts it as done. Start it"
)
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

    def program(self, known: Iterable[str]) -> Program:
        """Return what the program reads and writes; with a pattern, which of the known topics it reads."""
        topics, letters = self.subscription.topics, self.dead_letters
        sinks = {**self.outputs.sinks, **(letters.sinks if letters else {})}
        return Program(
            tuple(sorted({*topics.names, *(name for name in known if name in topics)})),
            {name: kind_and_target(sink) for name, sink in sinks.items()},
            {name: place for name, sink in sinks.items() if (place := place_of(sink))},
        )

    @property
    def worker_modules(self) -> set[str]:
        """The modules that Spark's workers import for the reader and the outputs."""
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
    checkpoint: str
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


class Stop:
    """Requests the end of a run, from any thread or signal handler.

    A `threading.Event` would deadlock: a signal handler that sets it while the main thread enters or leaves `wait`
    waits for ever for a lock that the main thread holds.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._set

    def clear(self) -> None:
        """Withdraw the request."""
        self._set = False
        self._wake = SimpleQueue()

    def wait(self, seconds: float) -> None:
        """Return when a stop is requested, or after `seconds`."""
        with suppress(Empty):
            if not self._set:
                self._wake.get(timeout=seconds)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT while the block runs; do nothing outside the main thread."""
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
    """Return a `SparkGone` error if Spark has died, else None.

    Args:
        error: the error that was raised. Spark's errors do not distinguish a dead JVM from an output that refuses
            connections, so this checks whether Spark still answers. Errors of offsetkeeper need no check.
    """
    if isinstance(error, OffsetkeeperError):
        return None
    jvm = _jvm()
    if jvm is not None and _refuses(jvm):
        return SparkGone(
            f"Spark is gone: its JVM at {jvm[0]}:{jvm[1]} does not answer. {_SAFE} in a new process, because "
            "PySpark cannot start a second JVM in one process. See the log of the JVM or of the system for the cause: "
            "often it is memory"
        )
    if type(error).__module__ == "pyspark.errors.exceptions.connect" and "StatusCode.UNAVAILABLE" in str(error):
        return SparkGone(
            f"Spark is gone: the server of Spark Connect does not answer. {_SAFE} with a new session when it answers "
            "again"
        )
    return None


@contextmanager
def telling_spark_gone() -> Iterator[None]:
    """If Spark has died, raise `SparkGone` instead of the error of the block."""
    try:
        yield
    except Exception as error:
        gone = spark_gone(error)
        if gone is None:
            raise
        raise gone from error


def _jvm() -> tuple[str, int] | None:
    """Return the address of this process's JVM; None if there is none, as with Spark Connect."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)  # missing if only Connect is installed
    gateway = context and context._gateway  # noqa: SLF001 - there is no public access
    return gateway and (gateway.gateway_parameters.address, gateway.gateway_parameters.port)


def _refuses(address: tuple[str, int]) -> bool:
    """Whether the connection is refused. A slow answer, or no free socket in this process, does not count."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
