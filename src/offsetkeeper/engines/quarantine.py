"""Quarantine: a batch that fails is cut in halves, down to the offsets that fail; these go into the dead letters.

Each half is a separate batch with its own id. The batch that is cut is given up first, and its id is never used again.
A half that fails is cut at its first failure; a single offset gets all attempts. Only errors of the user's function, of
Spark, or of a row's value lead to a cut. A frame that does not fit does not: no record is its cause, and the program
before or the next one can write all of them. An output or a store that is unavailable does not either.

A program that makes every row wrong looks like records that fail. So none is quarantined before this run has written
another record, or has tried one: everything but the commit. A function cannot take back what it writes, and the service
behind it may be away, which its error does not tell. So it has to write another record now, for good: one that it gets
again later, or has got last. Offsets that were quarantined one after another are counted over restarts, by the history.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.batch import QUARANTINED, Batch
from offsetkeeper.core.bounds import NO_LEADER_EPOCHS
from offsetkeeper.core.executors import error_text, our_error, raised
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Positions, TopicPartition
from offsetkeeper.core.retry import retry
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.errors import GuaranteeRefused, RecordUnreadable, RowMismatch, SettingsError
from offsetkeeper.readers.unreadable import Place
from offsetkeeper.sinks.blame import Blame, blame
from offsetkeeper.sinks.files import Files
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.outputs import Prepared
from offsetkeeper.sinks.sink import AT_ONCE, Joiner, RolledBack, Writer
from offsetkeeper.sinks.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("offsetkeeper")


class Held(NamedTuple):
    """What Kafka holds of the partitions of a run.

    Attributes:
        unread: from the positions on.
        read: before the positions.
        epochs: the leader epochs of partitions that resume, newer than the stored ones after an election.
    """

    unread: Sequence[OffsetRange]
    read: Sequence[OffsetRange]
    epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS


Ranges = tuple[OffsetRange, ...]
_ERROR_CHARACTERS = 2000
_SIZES = (1, 1, 1, 2, 4, 8, 16)  # offsets that are tried together: a failure of one hides that others can be written
_BEFORE = 3
# A time in the years 1 to 9999, which Python knows, in milliseconds; with a day to spare for time zones.
_IS_DATE = "timestamp between -62135510400000 and 253402214399999"
# User and path may have a secret, and so may a query.
_URL = re.compile(r"(\w+://)(?:[^\s/?#\"]*@)?([^\s/?#@'\"]+)([/?#](?:[^\s'\"]|'(?=\w))*)?(['\"]\S*[@&=]\S*)?")
_SERVER = re.compile(r"(\[[\w:.%]*\]|[^:\[\]]*)(:\d*)?[:.,;)>]*")
_ENTRIES = 50  # of the history, for each letter: starts and pieces that were dropped lie between letters
_ENDS = {"commit", "rewind", "adopt"}  # of a row of letters; a reset is somebody's act


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
    _in_a_row: int | None = None  # unknown until the history was asked
    _proven: bool = False  # whether this program can write a record
    _again: Ranges = ()  # an offset that could be written in a trial: none shows all that a landing does

    def __post_init__(self) -> None:
        """Create the delivery into the dead letters."""
        outputs = self.asked.dead_letters
        assert outputs is not None  # noqa: S101 - a quarantine always has dead letters
        asked, program = replace(self.asked, outputs=outputs, process=None), self.asked.program
        self.letters = Delivery(asked, self.ledger, self.stop, QUARANTINED, program=program)
        [sink] = outputs.sinks.values()
        self.letter = letter_for(sink)

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

    def cut(self, batch: Batch, at: Place | None) -> None:
        """Try the halves of a batch next; or what is before a record that is known to fail, this one, and the rest."""
        self._pieces += reversed(pieces(batch.ranges, at))

    def worked(self) -> None:
        """Note that a batch was processed."""
        self._in_a_row, self._proven = 0, True

    def check(
        self, error: Exception, batch: Batch, records: Callable[..., DataFrame], held: Callable[[], Held]
    ) -> bool:
        """Return whether the single record of this batch is the cause of the error.

        False, once, if it can be written now: the error has passed, as of a server that came back.

        Args:
            error: the error.
            batch: the batch.
            records: returns the frame of a batch; also given newer leader epochs, see `Held`.
            held: returns what Kafka holds: other records are tried if it is unknown whether any can be written.

        Raises:
            Exception: the error: it also fails without records, or with all others that were tried, or too many offsets
                in a row have failed.
            Stopped: the run is asked to stop, and its trials are not done; nothing was quarantined.
            OffsetkeeperError: an output or the store is away, or another run has the group; nothing was quarantined.
        """
        limit = self.asked.subscription.policies.poison_limit
        if self._counted() >= limit:
            error.add_note(f"{limit} offsets in a row were quarantined before this one: the run stops")
            raise error
        if (other := self._fails(batch, (), records(batch).limit(0))) is not None:
            error.add_note(f"it also fails without records, so no record is quarantined: {other}"[:2000])
            raise error from other
        unreadable = isinstance(our_error(error) or error, RecordUnreadable)  # nothing was asked to write it
        if not self._proven or (self._writes_for_good and not unreadable):
            self._prove(error, batch, records, held())
        if batch.ranges == self._again or self._fails(batch, batch.ranges, records(batch)) is not None:
            return True
        self._again = batch.ranges
        return False

    def _counted(self) -> int:
        """Return how many offsets were quarantined one after another, the last ones of the group."""
        if self._in_a_row is None:
            limit = self.asked.subscription.policies.poison_limit
            found = (entry for entry in self.ledger.history(_ENTRIES * limit) if entry.event in _ENDS)
            self._in_a_row = sum(1 for _ in takewhile(lambda entry: entry.is_of_letters, found))
        return self._in_a_row

    @property
    def _writes_for_good(self) -> bool:
        """Whether an output is a function, whose writing cannot be tried without being done."""
        return any(isinstance(way, Writer) for way in self.outputs.writers.values())

    @property
    def _shows(self) -> bool:
        """Whether a trial shows that a record can be written; otherwise only a record that was written shows it."""
        return all(not isinstance(way, Once) or way.rehearses for way in self.outputs.writers.values())

    def _prove(self, error: Exception, batch: Batch, records: Callable[..., DataFrame], held: Held) -> None:
        """Return if the program can write another record than that of this batch.

        Raises:
            Exception: the error, because it can write none.
        """
        tried, again = 0, _BEFORE if self._writes_for_good else 0
        if again:  # whatever else is before the position, this group may never have been meant to read
            held = held._replace(read=self._written(held, batch.ranges[0]))
        for ranges in others(held, batch.ranges[0], again) if self._shows else ():
            self.stop.check()
            frame = records(replace(batch, ranges=ranges), held.epochs)
            with suppress(Exception):  # the trial reads it too, and its error is judged
                if frame.isEmpty():
                    continue
            tried += 1
            if self._fails(batch, ranges, frame) is None:
                self._proven = True
                return
        since = "since then" if self._writes_for_good else "yet"
        error.add_note(
            f"this program has written no other record {since}, and none of {tried} others that were tried can be "
            "written either, so no record is quarantined: mend the program or the service that it asks, or start again "
            "when there are more records"
        )
        raise error

    def _written(self, held: Held, bad: OffsetRange) -> list[OffsetRange]:
        """Return what this group has written of the partition since the newest reset, the newest first."""
        entries = takewhile(lambda entry: entry.event not in {"rewind", "copy"}, self.ledger.history(_ENTRIES))
        commits = (each for each in entries if each.event == "commit" and not each.is_of_letters)
        begin = min((r.start for r in held.read if r.topic_partition == bad.topic_partition), default=bad.start)
        mine = (r for entry in commits for r in entry.ranges if r.topic_partition == bad.topic_partition)
        return [r._replace(start=max(r.start, begin)) for r in mine if r.end <= bad.start]

    def _fails(self, batch: Batch, ranges: Ranges, records: DataFrame) -> Exception | None:
        """Try records, see `_try`; return the error of the program or of a record, or None if there is none.

        Raises:
            OffsetkeeperError: an output stayed away, or another run has the group: this tells nothing of a record.
        """
        timeout_s = self.asked.pace.retry_timeout_s
        try:
            retry(
                lambda error: blame(error) is Blame.AWAY and not self.stop.is_set(),
                timeout_s,
                lambda _: self._try(batch, ranges, records),
            )
        except Exception as error:
            if blame(error) in {Blame.AWAY, Blame.REFUSES}:
                raise
            return error
        return None

    def _try(self, batch: Batch, ranges: Ranges, records: DataFrame) -> None:
        """Make the frames of the records of these ranges, and write them; take back what can be taken back.

        What a function writes by itself cannot be. The batch that it gets has an id of its own, as no id ever has two
        sets of ranges. A transaction is that of the batch which fails.
        """
        outputs = self.asked.outputs
        tried = replace(batch, token=environment.token(), ranges=ranges, written=())
        self.ledger.check_held()
        with outputs.frames(records, tried, self.asked.process) as frames:
            for name in outputs.sinks:
                way = {**self.outputs.writers, **self.outputs.joiners}[name]
                if isinstance(way, Writer):
                    way.write(frames[name], tried)
                elif isinstance(way, Joiner):
                    self._try_in_transaction(batch, way.stage(frames[name], tried))
                else:
                    way.rehearse(frames[name], tried)

    def _try_in_transaction(self, batch: Batch, finish: Callable[[Any], object]) -> None:
        with suppress(RolledBack), self.ledger.transaction(batch) as connection:
            finish(connection)
            if self.ledger.store.address.startswith("postgres"):
                connection.execute(AT_ONCE)
            raise RolledBack

    def deliver(self, batch: Batch, error: Exception, records: Callable[[Batch], DataFrame], **more: Any) -> bool:
        """Write a batch of one offset into the dead letters and commit it; see `Delivery.deliver`.

        Args:
            batch: as `Ledger.batch` returns it.
            error: the error that its record causes.
            records: see `Delivery.deliver`.
            more: the other arguments of `Delivery.deliver`.
        """
        self._in_a_row = self._counted() + 1
        [where] = batch.ranges
        text = text_of(error)
        log.warning("%s offset %d is quarantined: %s", where.topic_partition, where.start, text)
        process = partial(self.letter, error=without_paths(text))
        self.letters.asked = replace(self.letters.asked, process=process)
        self.letters.reason = f"{QUARANTINED}: {text.partition(':')[0]}"
        try:
            return self.letters.deliver(batch, records, **more)
        except RowMismatch as refused:
            refused.add_note(f"so this dead letter cannot be written, and the run stops before its record: {text}")
            raise


def is_of_records(error: Exception) -> bool:
    """Whether the records may be the cause of an error."""
    return blame(error) in {None, Blame.RECORD}


def text_of(error: Exception) -> str:
    """Return type and message of an error; if Spark wraps the error, those of the Python worker's error."""
    return str(raised(error) or f"{type(error).__name__}: {error_text(error)}")[:_ERROR_CHARACTERS]


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


def pieces(ranges: Sequence[OffsetRange], at: Place | None) -> list[Ranges]:
    """Return an offset of ranges alone, between what is before and after it; halves, if it is not one of theirs."""
    mine = [r for r in ranges if at and r.topic_partition == at[:2] and r.start <= at.offset < r.end]
    if at is None or not mine:
        return [*halves(ranges)]
    [around] = mine
    before = [r._replace(end=at.offset) if r == around else r for r in ranges]
    bad, after = around._replace(start=at.offset, end=at.offset + 1), around._replace(start=at.offset + 1)
    return [piece for each in (before, [bad], [after]) if (piece := tuple(r for r in each if r.size))]


def without_paths(text: str) -> str:
    """Return a text with the server alone of each URL, and without it if it may be a user with a password."""
    return _URL.sub(_server_alone, text)


def _server_alone(url: re.Match[str]) -> str:
    scheme, server, rest = url[1], url[2], f"{url[3] or ''}{url[4] or ''}"  # a quote may be within the URL or end it
    clear = all(map(_SERVER.fullmatch, server.split(","))) and not (":" in server and "@" in rest)
    return f"{scheme}{server if clear else '…'}{'/…' if rest else ''}"


def others(held: Held, bad: OffsetRange, again: int = 0) -> list[Ranges]:
    """Return ranges of a few other records than one that fails: those after it, in other partitions, and before it.

    Args:
        held: what Kafka holds.
        bad: the single offset that fails.
        again: if what is tried stays written: how many records of `read` may be tried, from the end of its first range
            on. That one repeats what was written last, so that no older record is written over a newer one.
    """
    unread, read, mine = held.unread, held.read, bad.topic_partition
    here = [r._replace(start=bad.end) if r.topic_partition == mine else r for r in unread]
    after = _chunks([r for r in here if r.topic_partition == mine and r.size])
    elsewhere = _chunks([r for r in here if r.topic_partition != mine and r.size])
    before = [(r._replace(start=max(r.start, r.end - _BEFORE)),) for r in read if r.topic_partition == mine and r.size]
    first = [(r._replace(end=r.start + 1),) for r in read if r.topic_partition == mine and r.size]
    far = [(r._replace(start=at, end=at + 1),) for r in here if r.size for at in ((r.start + r.end) // 2, r.end - 1)]
    pairs = [each for pair in zip_longest(after, elsewhere) for each in pair if each]
    if again:
        last = [r for r in read if r.topic_partition == mine]
        alone = ((r._replace(start=at, end=at + 1),) for r in last for at in reversed(range(r.start, r.end)))
        return [*pairs, *islice(alone, again)]
    return pairs + far[: 2 * _BEFORE] + before + first


def _chunks(ranges: Sequence[OffsetRange]) -> Iterator[Ranges]:
    """Yield the first offsets of ranges: few alone, and then ever more together."""
    left = list(ranges)
    for size in _SIZES:
        chunk: list[OffsetRange] = []
        while left and (room := size - sum(r.size for r in chunk)):
            r = left.pop(0)
            here = min(room, r.size)
            chunk.append(r._replace(end=r.start + here))
            left[:0] = [r._replace(start=r.start + here)] if here < r.size else []
        if chunk:
            yield tuple(chunk)


def _why(error: str) -> Column:
    """Return the error of a letter, and what is left out of it."""
    from pyspark.sql.functions import concat, expr, lit  # noqa: PLC0415 - as in `row_of`

    left_out = expr(f"if({_IS_DATE}, '', concat('; its time is left out: ', timestamp, ' ms since 1970'))")
    return concat(lit(error), left_out)


def letter_for(sink: Any) -> Callable[..., DataFrame]:
    """Return what makes the dead letters for a sink, from records, the batch and the error."""
    if isinstance(sink, Files):  # to its readers the name of a batch's folder is a column `batch`
        return lambda *about, **more: row_of(*about, **more).withColumnRenamed("batch", "batch_id")
    return message_of if isinstance(sink, Topic) else row_of


def row_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as rows: place, time, key and value of the record, and the texts `error` and `batch`."""
    from pyspark.sql.functions import expr, lit  # noqa: PLC0415 - the module loads without Spark

    time = expr(f"timestamp_millis(if({_IS_DATE}, timestamp, null))").alias("timestamp")
    where = records.select("topic", "partition", "offset", time, "key", "value", _why(error).alias("error"))
    return where.withColumn("batch", lit(batch.id))


def message_of(records: DataFrame, batch: Batch, error: str) -> DataFrame:
    """Return dead letters as messages: the record's key and value; its place and the error are in headers."""
    from pyspark.sql.functions import array, col, encode, lit, struct  # noqa: PLC0415 - as in `row_of`

    about: Mapping[str, Any] = {
        "topic": col("topic"),
        "partition": col("partition").cast("string"),
        "offset": col("offset").cast("string"),
        "error": _why(error),
        "batch": lit(batch.id),
    }
    headers = [struct(lit(name).alias("key"), encode(text, "UTF-8").alias("value")) for name, text in about.items()]
    return records.select("key", "value", array(*headers).alias("headers"))
