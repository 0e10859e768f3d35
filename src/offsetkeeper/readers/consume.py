"""The heart of the packed reader: exact ranges of many partitions, read by one client. Runs on executors.

A range is read to its end when an offset at or past its last one was seen, or when the partition was said to end at or
past it. Counting records would not do: compaction and transaction markers leave holes.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.errors import BrokerError, RangeGone, ReadStalled
from offsetkeeper.kafka.clients import Admin, library, redact
from offsetkeeper.kafka.closing import close
from offsetkeeper.kafka.codes import (
    LOG_TRUNCATED,
    NO_GROUP_NEEDED,
    PARTITION_END,
    CodeVerdict,
    broker_error,
    judge,
)
from offsetkeeper.kafka.topic_ids import NO_IDS, TopicIds, check_cluster
from offsetkeeper.readers.messages import NO_EPOCHS, Messages, Partition
from offsetkeeper.readers.native import open_messages
from offsetkeeper.readers.source import cut, for_ranges
from offsetkeeper.readers.turns import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from offsetkeeper.readers.source import Source

R = TypeVar("R", bound=Range)
_PATIENCE_S = 0.5
_QUESTION_S = 10.0
_DOUBT_S = 5.0
_SHOWN = 5
_DOUBTFUL = frozenset({CodeVerdict.NOT_SEEN, CodeVerdict.UNKNOWN_TOPIC})


class _Kept(dict[Any, Admin]):
    """Clients that stay in their process: where this code is sent to another one, they do not go along."""

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()


_kept = _Kept()  # at most one: to connect takes a small task longer than all it asks


def kafka(
    source: Source,
    tasks: Sequence[Iterable[Range]],
    topic_ids: Mapping[str, str],
    cluster_id: str | None,
    epochs: Mapping[Partition, int],
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the tasks whose numbers are in the only column of `numbers`; see `read`."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read(source, tasks[number], topic_ids, cluster_id, epochs)


def read_task(source: Source, task: tuple[Iterable[Range], Mapping[str, str], str | None]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a streaming query's task: its ranges, and the ids of topics and cluster that are known."""
    return read(source, *task)


def read(
    source: Source,
    ranges: Iterable[Range],
    topic_ids: Mapping[str, str] = NO_IDS,
    cluster_id: str | None = None,
    epochs: Mapping[Partition, int] = NO_EPOCHS,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `ranges` as record batches, always in the same order: see `turns`.

    Args:
        source: where the records are.
        ranges: of offsets.
        topic_ids: the ids that topics must have, where they are known: before the first record is given, and once more
            before the last one is.
        cluster_id: the id that the cluster must have, if it is known; at the same times.
        epochs: the leader epoch of partitions in which Kafka held all of the range, where it is known. A record of a
            later epoch was written since, in the place of another.

    Raises:
        RangeGone: Kafka no longer holds the beginning of a range, or a topic was made again, or is in another cluster;
            or the log was cut.
        ReadStalled: a range was not read to its end within `stall_s` seconds without progress. Records of aborted
            transactions, which are passed over, are progress.
        BrokerUnavailable: the same, as brokers did not answer.
        UnknownTopic: a topic or partition does not exist.
        NotAuthorized: the credentials are wrong or lack a permission.
        BrokerError: a broker failed in another way.
        MissingExtra: confluent-kafka is not installed here.
    """
    wanted = sorted(each for each in ranges if each[2] < each[3])
    ids = {topic: topic_ids[topic] for topic, *_ in wanted if topic in topic_ids}
    with ThreadPoolExecutor(1) as aside:  # as a client with a token provider takes a second to open
        opening = aside.submit(_open_ids, source, ids, cluster_id) if ids else None

        def check(messages: Messages) -> None:
            here = None if opening is None and cluster_id is None else messages.cluster_id(source.stall_s)
            check_cluster(cluster_id, here, {topic for topic, *_ in wanted})
            if opening is not None:
                opening.result().check(here)

        for some in rounds(wanted):
            consumption = _Consumption(source, some, check, epochs)
            try:
                yield from consumption.batches()
            finally:
                consumption.close()
        if opening is not None:
            _kept.clear()
            _kept[_key(source)] = opening.result().admin


def _open_ids(source: Source, ids: Mapping[str, str], cluster_id: str | None) -> TopicIds:
    """Return the check of topic ids, with the client of the task before if that one ended well."""
    admin = _kept.pop(_key(source), None) or Admin(source.brokers, source.options, source.stall_s)
    return TopicIds(admin, ids, cluster_id)


def _key(source: Source) -> tuple[Any, ...]:
    return (source.brokers, *sorted(source.options.items()), source.stall_s)


def rounds(ranges: Iterable[R]) -> list[list[R]]:
    """Part sorted `ranges` so that no partition comes twice in one part: a consumer can be at one place of it only."""
    parts: list[list[R]] = []
    seen: Counter[Partition] = Counter()
    for each in ranges:
        number = seen[each[:2]]
        seen[each[:2]] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(each)
    return parts


def range_gone(topic: str, partition: int, wanted: tuple[int, int], held: tuple[Any, ...] | None) -> RangeGone:
    """Return the error for offsets `wanted` where Kafka holds only `held`, or None if that is not known."""
    but = "what Kafka still holds could not be asked" if held is None else "Kafka holds {} up to {}".format(*held)
    return RangeGone(
        f"{topic} {partition}: offsets {wanted[0]} up to {wanted[1]} are to be read, but {but}. Records were deleted, "
        "by retention or by hand, the topic was made again, or an election cut its log: let the start be planned anew"
    )


def _log_cut(partition: Partition, offset: int, why: str) -> RangeGone:
    return RangeGone(
        "{} {}: the log was cut by the election of a leader that lacked records, and written again, after the range "
        "was planned: offset {} has a record of {}. Let the start be planned anew".format(*partition, offset, why)
    )


class _Consumption:
    """Messages of one client, and the ranges it has still to read."""

    def __init__(
        self,
        source: Source,
        ranges: list[Range],
        check_ids: Callable[[Messages], None],
        epochs: Mapping[Partition, int],
    ) -> None:
        self._source, self._check_ids, self._epochs = source, check_ids, epochs
        self._reports: deque[Any] = deque(maxlen=20)
        self._trouble: Any = None  # the client's last report since a record came
        self._idle_s = 0.0
        self._doubt_s = min(_DOUBT_S, source.stall_s)
        self._doubted = False  # whether Kafka was asked since a record came
        self._question_s = min(_QUESTION_S, source.stall_s)
        self._kafka = library()
        self._messages = open_messages(for_ranges(source, len(ranges)), ranges, self._reports.append, epochs)
        self._unread = self._messages.unread
        self._ranges_end = {each[:2]: each[3] for each in ranges}
        self._ends: dict[Partition, int] = {}  # of partitions, where they were met

    def batches(self) -> Iterator[pa.RecordBatch]:
        first = True
        while self._unread or self._messages.awaited is not None:
            coming = bool(self._unread)
            batch = self._next()
            if (coming and not self._unread) or (first and batch is not None):
                self._check_ids(self._messages)  # the records taken before are of the topics with these ids
                first = False
            if batch is not None:
                yield from cut(batch, self._source.batch_bytes)

    def close(self) -> None:
        close(self._messages.close)

    def _next(self) -> pa.RecordBatch | None:
        """Return the next records, or None where only other messages came."""
        taken = self._messages.take(_PATIENCE_S)
        self._idle_s += taken.waited_s
        for error, partition, offset in taken.events:
            self._hear(error, partition, offset)
        if taken.arrived:
            self._idle_s, self._doubted, self._trouble = 0.0, False, None
        self._check()
        return taken.batch

    def _hear(self, error: Any, partition: Partition | None, offset: int) -> None:
        verdict, unread = judge(error), None if partition is None else self._unread.get(partition)
        if error.name() == PARTITION_END:
            if partition is not None and unread is not None:
                self._ends[partition] = offset
        elif verdict is CodeVerdict.NOTHING or error.name() == NO_GROUP_NEEDED:
            return
        elif partition is not None and self._concerns(error, partition, offset):  # also if it was passed over
            if error.name() == LOG_TRUNCATED:
                raise _log_cut(partition, offset, error.str())
            raise self._failure(error, error.str(), "partition {} {}".format(*partition))
        elif partition is None or unread is None or verdict.passes or verdict in _DOUBTFUL:
            self._reports.append(error)
        elif verdict is CodeVerdict.GONE:
            raise self._gone(partition)
        else:
            raise self._failure(error, error.str(), "partition {} {}".format(*partition))

    def _concerns(self, error: Any, partition: Partition, offset: int) -> bool:
        """Whether an error says that an offset which was or is to be read is damaged, or another record's."""
        told = judge(error) is CodeVerdict.FATAL or error.name() == LOG_TRUNCATED
        return told and 0 <= offset < self._ranges_end.get(partition, 0)

    def _check(self) -> None:
        """Raise what the client reports beside the messages and no waiting mends, or that nothing has come too long."""
        while self._reports:
            report = self._reports.popleft()
            self._trouble = report
            if judge(report) is CodeVerdict.REFUSED and report.name() != NO_GROUP_NEEDED:
                raise self._failure(report, report.str(), "the connection")
            if judge(report) in _DOUBTFUL:
                self._check_topics()
        if self._idle_s > self._doubt_s and not self._doubted:
            self._doubted = True
            self._check_topics()  # not all that is wrong with a topic is reported
            self._check_ends()
        if self._unread and self._idle_s > self._source.stall_s:
            raise self._stalled()

    def _stalled(self) -> BrokerError:
        unread = f"no record came for {self._source.stall_s:g} s. Unread: {self._describe(_SHOWN)}"
        trouble = self._trouble
        if trouble is None or not judge(trouble).passes:
            trouble = self._check_topics() or trouble
        if trouble is not None and judge(trouble).passes:
            return self._failure(trouble, trouble.str(), unread)
        told = "" if trouble is None else f" ({redact(trouble.str(), self._source.options)})"
        return ReadStalled(
            f"{unread}. The brokers at {self._source.brokers} have nothing more to give{told}: the ranges end past the "
            "partitions' ends, or behind transactions that are still open"
        )

    def _describe(self, most: int) -> str:
        """Say what is unread; of partitions, at most so many one by one, first the one whose records come next."""
        awaited = self._messages.awaited
        lines = [
            f"{topic} {number} at {unread.position} of {unread.end}"
            + (f" (the partition ends at {self._ends[topic, number]})" if (topic, number) in self._ends else "")
            for (topic, number), unread in sorted(self._unread.items(), key=lambda each: (each[0] != awaited, each[0]))
        ]
        return "; ".join(lines[:most]) + (f" and {len(lines) - most} more" if len(lines) > most else "")

    def _check_topics(self) -> Any:
        """Raise that a partition does not exist or may not be read, if the cluster says so, not one broker alone.

        Return the error of a partition that has no leader, of which the client reports nothing; None without one.
        """
        leaderless = None
        for topic in sorted({topic for topic, _ in self._unread}):
            with suppress(self._kafka.KafkaException):
                known = self._messages.consumer().list_topics(topic, self._question_s).topics[topic]
                if known.error is not None and judge(known.error) in {CodeVerdict.UNKNOWN_TOPIC, CodeVerdict.REFUSED}:
                    raise self._failure(known.error, known.error.str(), f"topic {topic}")
                numbers = {number for name, number in self._unread if name == topic}
                missing = min(numbers - known.partitions.keys(), default=None)
                if missing is not None and known.error is None:
                    raise self._failure(CodeVerdict.UNKNOWN_TOPIC, "", f"partition {topic} {missing}")
                for number in sorted(numbers & known.partitions.keys()):
                    if known.partitions[number].leader < 0 and leaderless is None:
                        code, text = self._kafka.KafkaError.LEADER_NOT_AVAILABLE, f"{topic} {number} has no leader"
                        leaderless = self._kafka.KafkaError(code, text)
        return leaderless

    def _check_ends(self) -> None:
        """Raise that a partition ends before a range which it held in an earlier leader epoch: its log was cut.

        A range of which that is not known may be a wish, or lie in a transaction that will end.
        """
        for partition in self._ends.keys() & self._unread.keys() & self._epochs.keys():
            held = self._held(partition)
            if held is not None and held[1] < self._unread[partition].end:
                raise self._gone(partition)

    def _gone(self, partition: Partition) -> RangeGone:
        unread = self._unread[partition]
        return range_gone(*partition, (unread.position, unread.end), self._held(partition))

    def _held(self, partition: Partition) -> tuple[int, int] | None:
        """Ask Kafka which offsets it holds of a partition; return None if it does not answer."""
        held: tuple[int, int] | None = None
        with suppress(self._kafka.KafkaException):
            held = self._messages.consumer().get_watermark_offsets(
                self._kafka.TopicPartition(*partition), self._question_s
            )
        return held

    def _failure(self, error: Any, text: str, what: str) -> BrokerError:
        return broker_error(error, redact(text, self._source.options), what, self._source.brokers)
