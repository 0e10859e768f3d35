"""Quarantine: a batch that fails is cut in halves, down to the offsets that fail; these go into the dead letters.

Each half is a separate batch with its own id. The batch that is cut is given up first, and its id is never used again.
A half that fails is cut at its first failure; a single offset gets all attempts. Only errors of the user's function, of
Spark, or of a row's value lead to a cut. A frame that does not fit does not: no record is its cause, and the program
before or the next one can write all of them. An output or a store that is unavailable does not either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.executors import raised
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Positions
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks.blame import Blame, blame
from offsetkeeper.sinks.functions import Transaction
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.sinks.sink import Joiner, Writer
from offsetkeeper.sinks.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
Ranges = tuple[OffsetRange, ...]
_ERROR_CHARACTERS = 2000
QUARANTINED = "quarantined"  # first word of the reason of such commits in the history


@dataclass(slots=True)
class Quarantine:
    """The pieces of failed batches that are still to do, and the dead letters.

    Attributes:
        asked: the settings of the run, with dead letters.
        ledger: ledger of the group.
        stop: ends the attempts of a batch.
        letters: delivers into the dead letters.
        letter: returns the frame of dead letters from records, the batch and the error.
        outputs: how the other outputs are written; set by `prepare`.
    """

    asked: Run
    ledger: Ledger
    stop: Stop
    letters: Delivery = field(init=False)
    letter: Callable[..., DataFrame] = field(init=False)
    outputs: Prepared = field(default_factory=lambda: Prepared({}, {}), init=False)
    _pieces: list[Ranges] = field(default_factory=list)
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        """Create the delivery into the dead letters."""
        outputs = self.asked.dead_letters
        assert outputs is not None  # noqa: S101 - a quarantine always has dead letters
        asked, program = replace(self.asked, outputs=outputs, process=None), self.asked.program
        self.letters = Delivery(asked, self.ledger, self.stop, QUARANTINED, program=program)
        [sink] = outputs.sinks.values()
        self.letter = message_of if isinstance(sink, Topic) else row_of

    def prepare(self, others: Prepared) -> None:
        """Prepare the dead letters, and find out whether the guarantee can be kept if a batch is cut.

        Args:
            others: how the other outputs are written.

        Raises:
            GuaranteeRefused: the guarantee cannot be kept.
            SettingsError: the dead letters are a `Topic` with slots.
            See `RunOutputs.prepare`.
        """
        assert self.asked.dead_letters is not None  # noqa: S101 - as above
        [sink] = self.asked.dead_letters.sinks.values()
        if isinstance(sink, Topic) and sink.slots > 1:
            raise SettingsError("dead_letters: records are written one at a time, so give Topic(…) without slots")
        guarantee = self.asked.guarantee
        if guarantee is Guarantee.AT_MOST_ONCE:
            raise GuaranteeRefused(
                "Policies(poison='quarantine') needs at_least_once or exactly_once: with at_most_once a batch is "
                "committed before it is written, so it cannot be cut"
            )
        self.letters.outputs.prepare()
        self.outputs = others
        apart = {**self.outputs.writers, **self.letters.outputs.prepared.writers}
        unknown = [name for name, way in apart.items() if not isinstance(way, Once)]
        if guarantee is Guarantee.EXACTLY_ONCE and unknown:
            raise GuaranteeRefused(
                f"Policies(poison='quarantine') with exactly_once: it is unknown whether the output "
                f"{unknown[0]!r} has a part of a failed batch, so the batch cannot be cut. Use outputs that keep a "
                "mark or are in the store's transaction, such as Table; or use at_least_once"
            )

    def next(self, positions: Positions) -> Ranges:
        """Return the ranges to try next; empty if no batch is cut, or if the positions have moved elsewhere."""
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
        """Try the halves of a batch next."""
        first, second = halves(batch.ranges)
        self._pieces += [second, first]

    def worked(self) -> None:
        """Note that a batch was processed."""
        self._in_a_row = 0

    def check(self, error: Exception, batch: Batch, records: DataFrame) -> None:
        """Return if the single record of this batch is the cause of the error.

        Raises:
            Exception: the error: it also fails without records, or too many offsets in a row have failed.
            OffsetkeeperError: an output or the store is away, or another run has the group; nothing was quarantined.
        """
        limit = self.asked.subscription.policies.poison_limit
        if self._in_a_row >= limit:
            error.add_note(f"{limit} offsets in a row were quarantined before this one: the run stops")
            raise error
        try:
            self._try_without_records(batch, records)
        except Exception as other:
            if blame(other) in {Blame.AWAY, Blame.REFUSES}:
                raise  # an output is away, or another run has the group: this tells nothing of the record
            error.add_note(f"it also fails without records, so no record is quarantined: {other}"[:2000])
            raise error from other

    def _try_without_records(self, batch: Batch, records: DataFrame) -> None:
        """Make the frames without records, and let the user's functions write them; a transaction is rolled back.

        They get a batch with an id of its own: no id ever has two sets of ranges.
        """
        empty, outputs = replace(batch, token=environment.token(), ranges=(), written=()), self.asked.outputs
        self.ledger.check_owner()
        with outputs.frames(records.limit(0), empty, self.asked.process) as frames:
            for name, sink in outputs.sinks.items():
                way = {**self.outputs.writers, **self.outputs.joiners}[name]
                if isinstance(way, Writer):
                    way.write(frames[name], empty)
                elif isinstance(sink, Transaction) and isinstance(way, Joiner):
                    self._try_in_transaction(batch, way.stage(frames[name], empty))
                else:
                    frames[name].write.format("noop").mode("overwrite").save()

    def _try_in_transaction(self, batch: Batch, finish: Callable[[Any], object]) -> None:
        with suppress(_RolledBack), self.ledger.transaction(batch) as connection:
            finish(connection)
            raise _RolledBack

    def deliver(self, batch: Batch, error: Exception, records: Callable[[Batch], DataFrame], **more: Any) -> bool:
        """Write a batch of one offset into the dead letters and commit it; see `Delivery.deliver`.

        Args:
            batch: as `Ledger.batch` returns it.
            error: the error that its record causes.
            records: see `Delivery.deliver`.
            more: the other arguments of `Delivery.deliver`.
        """
        self._in_a_row += 1
        [where] = batch.ranges
        text = text_of(error)
        log.warning("%s offset %d is quarantined: %s", where.topic_partition, where.start, text)
        self.letters.asked = replace(self.letters.asked, process=partial(self.letter, error=text))
        self.letters.reason = f"{QUARANTINED}: {text.partition(':')[0]}"
        return self.letters.deliver(batch, records, **more)


class _RolledBack(Exception):
    """Ends a transaction that is only tried."""


def is_of_records(error: Exception) -> bool:
    """Whether the records may be the cause of an error."""
    return blame(error) in {None, Blame.RECORD}


def text_of(error: Exception) -> str:
    """Return type and message of an error; if Spark wraps the error, those of the Python worker's error."""
    return str(raised(error) or f"{type(error).__name__}: {error}")[:_ERROR_CHARACTERS]


def halves(ranges: Sequence[OffsetRange]) -> tuple[Ranges, Ranges]:
    """Return two halves of ranges with at least two offsets: the first partitions or offsets, and the rest."""
    left = sum(r.size for r in ranges) // 2
    first, second = [], []
    for r in ranges:
        here = min(left, r.size)
        left -= here
        first += [r._replace(end=r.start + here)] if here else []
        second += [r._replace(start=r.start + here)] if here < r.size else []
    return tuple(first), tuple(second)


def row_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as rows: place, time, key and value of the record, and the texts `error` and `batch`."""
    from pyspark.sql.functions import lit  # noqa: PLC0415 - the module loads without Spark

    where = records.select("topic", "partition", "offset", "timestamp", "key", "value")
    return where.withColumn("error", lit(error)).withColumn("batch", lit(batch.id))


def message_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as messages: the record's key and value; its place and the error are in headers."""
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
