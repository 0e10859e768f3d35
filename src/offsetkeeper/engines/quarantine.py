"""Quarantine: a batch that fails is cut in halves, down to the offsets that fail; these go into the dead letters.

Each half is a batch of its own, with an id of its own; the batch that was cut is given up first, and its id never used
again. A half that fails is cut at its first failure; a single offset gets all attempts. Only what the user's function,
Spark or a frame that does not fit raises is a reason; an output or a store that is away is none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Batch, Guarantee, OffsetRange, Positions
from offsetkeeper.engines.deliver import Delivery
from offsetkeeper.engines.run import Run, Stop
from offsetkeeper.errors import GuaranteeRefused, OffsetkeeperError, SettingsError, SinkMismatch
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
Ranges = tuple[OffsetRange, ...]
_ERROR_CHARACTERS = 2000
QUARANTINED = "quarantined"  # begins the reason of their commits in the history
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(slots=True)
class Quarantine:
    """What is left of batches that failed, and the dead letters.

    Attributes:
        asked: what the run is asked for, with dead letters.
        ledger: of the group.
        stop: ends the tries of a batch.
        letters: delivers into the dead letters.
        letter: makes the frame of dead letters: of records, the batch, and what went wrong.
    """

    asked: Run
    ledger: Ledger
    stop: Stop
    letters: Delivery = field(init=False)
    letter: Callable[..., DataFrame] = field(init=False)
    _pieces: list[Ranges] = field(default_factory=list)
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        """Bring together what delivers."""
        outputs = self.asked.dead_letters
        assert outputs is not None  # noqa: S101 - there is a quarantine only with them
        self.letters = Delivery(replace(self.asked, outputs=outputs, process=None), self.ledger, self.stop, QUARANTINED)
        [sink] = outputs.sinks.values()
        self.letter = message_of if isinstance(sink, Topic) else row_of

    def prepare(self, others: Delivery) -> None:
        """Prepare the dead letters, and find out whether the guarantee can be kept where a batch is cut.

        Args:
            others: delivers into the other outputs, and is prepared.

        Raises:
            GuaranteeRefused: it cannot.
            SettingsError: the dead letters are a `Topic` with slots.
            See `Delivery.prepare`.
        """
        assert self.asked.dead_letters is not None  # noqa: S101 - as above
        [sink] = self.asked.dead_letters.sinks.values()
        if isinstance(sink, Topic) and sink.slots > 1:
            raise SettingsError("dead_letters: they go out one at a time, so give Topic(…) without slots")
        guarantee = self.asked.guarantee
        if guarantee is Guarantee.AT_MOST_ONCE:
            raise GuaranteeRefused(
                "Policies(poison='quarantine') needs at_least_once or exactly_once: with at_most_once a batch is "
                "committed before it is written, and cannot be cut then"
            )
        self.letters.prepare()
        apart = {**others.outputs.writers, **self.letters.outputs.writers}
        unknown = [name for name, way in apart.items() if not isinstance(way, Once)]
        if guarantee is Guarantee.EXACTLY_ONCE and unknown:
            raise GuaranteeRefused(
                f"Policies(poison='quarantine') with exactly_once: nobody can tell whether the output "
                f"{unknown[0]!r} has a part of a batch that failed, so it cannot be cut. Use outputs that keep a mark "
                "or are in the store's transaction, such as Table; or at_least_once"
            )

    def next(self, positions: Positions) -> Ranges:
        """Return the ranges that are tried next; none where no batch is cut, or the positions have moved elsewhere."""
        piece = self._pieces.pop() if self._pieces else ()
        if all(r.topic_partition in positions and positions[r.topic_partition].offset == r.start for r in piece):
            return piece
        self._pieces.clear()
        return ()

    @property
    def cuts(self) -> bool:
        """Whether pieces of a batch are still to be tried."""
        return bool(self._pieces)

    def cut(self, batch: Batch) -> None:
        """Let the halves of a batch be tried next."""
        first, second = halves(batch.ranges)
        self._pieces += [second, first]

    def worked(self) -> None:
        """Note that a batch was processed."""
        self._in_a_row = 0

    def check(self, error: Exception, batch: Batch, records: DataFrame) -> None:
        """Return if it is the record of a batch of one that fails.

        Raises:
            Exception: the error: the function fails with no records too, or too many in a row have failed.
        """
        limit = self.asked.subscription.policies.poison_limit
        if self._in_a_row >= limit:
            error.add_note(f"{limit} offsets in a row were quarantined before this one: the run stops")
            raise error
        try:
            with self.asked.outputs.frames(records.limit(0), replace(batch, ranges=()), self.asked.process) as frames:
                for frame in frames.values():
                    frame.write.format("noop").mode("overwrite").save()
        except Exception as other:
            error.add_note(f"it fails with no records too, so that no record is quarantined for it: {other}"[:2000])
            raise error from other

    def deliver(self, batch: Batch, error: Exception, records: Callable[[Batch], DataFrame], **more: Any) -> bool:
        """Write a batch of one offset into the dead letters and commit it; see `Delivery.deliver`.

        Args:
            batch: as `Ledger.batch` returns it.
            error: what its record leads to.
            records: see `Delivery.deliver`, as are the others.
            more: see there.
        """
        self._in_a_row += 1
        [where] = batch.ranges
        text = text_of(error)
        log.warning("%s offset %d is quarantined: %s", where.topic_partition, where.start, text)
        self.letters.asked = replace(self.letters.asked, process=partial(self.letter, error=text))
        self.letters.reason = f"{QUARANTINED}: {text.partition(':')[0]}"
        return self.letters.deliver(batch, records, **more)


def is_of_records(error: Exception) -> bool:
    """Whether an error may be the records' own."""
    return not isinstance(error, OffsetkeeperError) or isinstance(error, SinkMismatch)


def text_of(error: Exception) -> str:
    """Return type and message of an error; of one that Spark wraps, those that the Python worker raised."""
    lines = iter(str(error).rpartition(_TRACEBACK)[2].splitlines()[1:] if _TRACEBACK in str(error) else ())
    raised = next((line for line in lines if line.strip() and not line.startswith(" ")), "")
    return (raised or f"{type(error).__name__}: {error}")[:_ERROR_CHARACTERS]


def halves(ranges: Sequence[OffsetRange]) -> tuple[Ranges, Ranges]:
    """Return two halves of ranges with at least two offsets: the first partitions, or offsets, and the others."""
    left = sum(r.size for r in ranges) // 2
    first, second = [], []
    for r in ranges:
        here = min(left, r.size)
        left -= here
        first += [r._replace(end=r.start + here)] if here else []
        second += [r._replace(start=r.start + here)] if here < r.size else []
    return tuple(first), tuple(second)


def row_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as rows: where the record was, its time, key and value, and `error` and `batch`, texts."""
    from pyspark.sql.functions import lit  # noqa: PLC0415 - without Spark the module can be read

    where = records.select("topic", "partition", "offset", "timestamp", "key", "value")
    return where.withColumn("error", lit(error)).withColumn("batch", lit(batch.id))


def message_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as messages: the record's key and value, and where it was and what went wrong as headers."""
    from pyspark.sql.functions import array, col, encode, lit, struct  # noqa: PLC0415 - as in `row_of`

    about: Mapping[str, Any] = {
        "topic": col("topic"),
        "partition": col("partition").cast("string"),
        "offset": col("offset").cast("string"),
        "error": lit(error),
        "batch": lit(batch.id),
    }
    headers = [struct(lit(name).alias("key"), encode(text, "UTF-8").alias("value")) for name, text in about.items()]
    return records.select("key", "value", array(*headers).alias("headers"))
