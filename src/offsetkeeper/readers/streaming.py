"""The packed reader as a source for `readStream`: which offsets a batch gets, and a Python data source around it.

What a batch reads is always between two offsets that Spark has written down. Two things are done for that. The first
batch of a query is empty, so that where the query begins is in the checkpoint before anything is read. And a partition
found new gets its beginning as its end in the batch that finds it, and is read from the next batch on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper import errors
from offsetkeeper.core import bounds, duration, environment, identity, offsets, outside, retry, tls, topics, urls
from offsetkeeper.core import cluster as cluster_protocol
from offsetkeeper.core.bounds import Standing, known_cluster, known_ids, standing_of
from offsetkeeper.core.cluster import cluster_id_of, topic_ids_of
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition, by_topic
from offsetkeeper.core.pickle_by_value import dumps, ship
from offsetkeeper.core.retry import retry as patiently
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch, StartRefused, UnknownTopic
from offsetkeeper.kafka import (
    clients,
    closing,
    cluster,
    codes,
    compiled,
    log_cuts,
    many_offsets,
    own_settings,
    tokens,
    topic_ids,
    verification,
)
from offsetkeeper.kafka import tls as kafka_tls
from offsetkeeper.kafka.cluster import KafkaCluster
from offsetkeeper.kafka.topic_ids import check_cluster, with_ids
from offsetkeeper.readers import (
    consume,
    flow,
    headers,
    held,
    limits,
    messages,
    native,
    ranges,
    sample,
    source,
    turns,
    unreadable,
)
from offsetkeeper.readers.consume import range_gone, read_task
from offsetkeeper.readers.limits import BatchSize, Limits
from offsetkeeper.readers.ranges import Split, split, tidy
from offsetkeeper.readers.sample import sample as sample_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetkeeper.core.bounds import Bounds
    from offsetkeeper.core.plan import Jump
    from offsetkeeper.readers.source import Source

_DOUBT_S = 5.0
_SHOWN = 5
Json = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a query begins, and what it reads.

    Attributes:
        topics: to read.
        positions: of every partition known when the query starts. A new query begins there.
        limits: of each batch.
        new_topics: the policy for topics that a pattern finds later.
        whole: whether to read also the records before the positions, if a checkpoint begins there: a query with state
            needs them. Others skip them, since the group has processed them.
    """

    topics: Topics
    positions: Mapping[TopicPartition, Position]
    limits: Limits = field(default_factory=Limits)
    new_topics: Jump = "beginning"
    whole: bool = False


@dataclass(frozen=True)
class StreamSource:
    """What one query reads; it travels to Spark's planner and to the executors.

    Attributes:
        source: where the records are.
        start: where the query begins.
        tasks: how many tasks read at once.
        split: see `Split`.
    """

    source: Source
    start: StreamStart
    tasks: int
    split: Split = None


class StreamPlanner:
    """Decides which offsets the batches of one query get; lives in Spark's planner process as long as the query runs.

    Raises:
        SettingsError: librdkafka does not take the options.
    """

    def __init__(self, stream: StreamSource) -> None:
        self._stream = stream
        self._began: bool | None = None  # None: not asked yet where to begin
        self._target: Mapping[TopicPartition, Bounds] | None = None
        self.ids = known_ids(stream.start.positions)
        self.cluster_id = known_cluster(stream.start.positions.values())
        self._begin = {tp: at.offset for tp, at in stream.start.positions.items()}
        self._turn = 0
        source = stream.source
        self._size = BatchSize(stream.start.limits, partial(sample_of, source))
        self._cluster = KafkaCluster(
            source.brokers, source.options, isolation=source.isolation, timeout_s=min(30, source.stall_s)
        )

    def initial(self) -> Json:
        """Return where a new query begins: the same each time."""
        self._began = False if self._began is None else self._began
        return by_topic(self._begin)

    def freeze(self) -> None:
        """Take what Kafka holds now as all there is to read, for `Trigger.AvailableNow`."""
        self._target = patiently(UnknownTopic, _DOUBT_S, lambda _: self._find_all())

    def latest(self, start: Json, limit: int | None) -> Json:
        """Return where the batch ends that starts at `start`.

        Args:
            start: an offset of this source.
            limit: the limit that Spark passes on; None where it wants all records, as `Trigger.Once` does.

        Raises:
            CheckpointMismatch: the offsets are not of these topics, or lie past their ends.
            RangeGone: Kafka does not hold them any more, or the topic was made again.
            StartRefused: a new topic is found, and the policy says stop.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `errors`.
        """
        starts = self._parse(start)
        if self._began is False:
            self._began = True
            return start
        self._began = True
        found = self._find() if self._target is None else self._target
        ends = dict(starts)
        backlogs: dict[TopicPartition, int] = {}
        known = {tp.topic for tp in starts}
        for tp, here in found.items():
            if tp not in starts:
                ends[tp] = self._begin.get(tp, here.beginning if tp.topic in known else self._new_topic(tp.topic, here))
            else:
                backlogs[tp] = self._check(tp, starts[tp], here) - starts[tp]
        self._turn += 1
        shares = backlogs
        if limit is not None:
            shares = self._size.shares(backlogs, starts, self._turn, last=self._target is not None)
        for tp, size in shares.items():
            ends[tp] = starts[tp] + size
        return by_topic(ends)  # always in the same order: Spark compares them as text

    def tasks(self, start: Json, end: Json) -> list[list[tuple[str, int, int, int]]]:
        """Return the ranges that each task reads for a batch."""
        self._began = True
        starts, ends = self._parse(start), self._parse(end)
        ranges = (OffsetRange(*tp, self._from(tp, starts[tp]), ends[tp]) for tp in starts.keys() & ends.keys())
        wanted = tidy(r for r in ranges if r.size > 0)
        return [[(*each,) for each in task] for task in split(wanted, self._stream.tasks, self._stream.split)]

    @property
    def wanted(self) -> tuple[Mapping[str, str], str | None]:
        """The ids that topics and cluster must have, as far as known."""
        return self.ids, self.cluster_id

    def _from(self, tp: TopicPartition, start: int) -> int:
        return start if self._stream.start.whole else max(start, self._begin.get(tp, 0))

    def _new_topic(self, topic: str, here: Bounds) -> int:
        """Return where a partition of a topic begins that a pattern has found."""
        policy = self._stream.start.new_topics
        if policy == "stop":
            raise StartRefused(
                f"the pattern finds the new topic {topic}, and Policies(new_topics='stop') says stop. Choose "
                "'beginning' or 'end', or exclude it"
            )
        return here.end if policy == "end" else here.beginning

    def _find(self) -> Mapping[TopicPartition, Bounds]:
        ask = partial(self._cluster.find, self._stream.start.topics, self.ids)
        topics = with_ids(self.ids, ask, partial(topic_ids_of, cluster_id=self.cluster_id))
        here = cluster_id_of(topics)
        check_cluster(self.cluster_id, here, topics)
        self.cluster_id = self.cluster_id or here
        self.ids |= topic_ids_of(topics)
        return self._cluster.bounds_of(topics.values())

    def _find_all(self) -> Mapping[TopicPartition, Bounds]:
        """Return what Kafka holds of all partitions that were there when the query started, and of new ones."""
        found = self._find()
        lacking = sorted(self._begin.keys() - found.keys())
        if lacking:
            raise UnknownTopic(
                f"Kafka does not know {', '.join(map(str, lacking[:_SHOWN]))} any more, which was there when the query "
                "started. Start it again"
            )
        return found

    def _parse(self, offsets: Json) -> dict[TopicPartition, int]:
        topics = self._stream.start.topics
        try:
            found = {TopicPartition(t, int(p)): int(at) for t, each in offsets.items() for p, at in each.items()}
        except (AttributeError, TypeError, ValueError):
            found = {}
        if not any(tp.topic in topics for tp in found):
            raise CheckpointMismatch(
                "the checkpoint is of another query, or of one with its sources in another order: the offsets in the "
                f"place of this source are {str(offsets)[:200]}, without any of {topics}. Start the query as it was, "
                "or give this one a checkpoint of its own"
            )
        return found

    def _check(self, tp: TopicPartition, start: int, here: Bounds) -> int:
        """Return the partition's end, at or past `start`."""
        wanted = self._from(tp, start)
        if standing_of(Position(wanted), here) is Standing.BELOW_BEGINNING:
            raise range_gone(*tp, (wanted, here.end), here)
        if standing_of(Position(start), here) is not Standing.BEYOND_END:
            return here.end
        written = self._cluster.bounds([tp], isolation="read_uncommitted")[tp]  # past a transaction still open?
        if standing_of(Position(start), written) is Standing.BEYOND_END:
            anew = "delete the checkpoint, and start from the ledger"
            remedy = "start again, and the plan decides" if self._stream.start.whole else anew  # the state is in it
            raise CheckpointMismatch(
                f"{tp}: the checkpoint stands at {start}, but the partition ends at {written.end}. The topic was made "
                "again, or its log was cut by the election of a leader that lacked records, or the checkpoint is of "
                f"another one: {remedy}"
            )
        return start


# What reading needs, and what planning needs besides. In what is shipped no module may be used as one: it would be
# imported.
READING = (
    *(errors, environment, retry, outside, urls, identity, tls, kafka_tls),
    *(codes, own_settings, tokens, clients, compiled, closing, topic_ids, consume, messages, native, source, headers),
    *(unreadable, turns, flow, held),
)
_SHIPPED = (
    *(*READING, offsets, bounds, topics, cluster_protocol),
    *(cluster, duration, log_cuts, many_offsets, ranges, limits, sample, verification),
)


def source_class(name: str, stream: StreamSource) -> Any:  # noqa: C901 - the methods that Spark asks for
    """Return the Python data source of one query, under this name; it needs no offsetkeeper where it runs."""
    import sys  # noqa: PLC0415 - as below

    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition  # noqa: PLC0415 - no Spark before
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - as above
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    shipped = dumps((stream, StreamPlanner), (*_SHIPPED, sys.modules[__name__]))
    limit = stream.start.limits.rows
    columns = stream.source.columns
    read = ship(read_task, (stream.source,), READING)

    # What is inside a function is pickled by value: nothing in it may be a global of this file.
    def loaded() -> Any:
        import pickle  # noqa: PLC0415 - runs in Spark's processes

        return pickle.loads(shipped)  # noqa: S301 - made by the driver

    # Spark 4.2 tells its planner to look for the session's Python files in a folder below theirs, which is empty.
    def find_files() -> None:
        import sys  # noqa: PLC0415 - runs in Spark's planner
        from pathlib import PurePath  # noqa: PLC0415 - as above

        told = [PurePath(path) for path in sys.path if "streaming_job" in PurePath(path).parts]
        sys.path += [str(PurePath(*(part for part in path.parts if part != "streaming_job"))) for path in told]

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, schema: Any) -> None:
            self._schema = schema
            self._made: Any = None

        def __getstate__(self) -> dict[str, Any]:
            return {"_schema": self._schema, "_made": None}

        @property
        def _planner(self) -> Any:
            if self._made is None:
                find_files()
                stream, planner = loaded()
                self._made = planner(stream)
            return self._made

        def initialOffset(self) -> Any:  # noqa: N802 - Spark's name
            return self._planner.initial()

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Any:  # noqa: N802 - as above
            return self._planner.latest(start, getattr(limit, "max_rows", None))

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - as above
            return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above
            self._planner.freeze()

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition((task, *self._planner.wanted)) for task in self._planner.tasks(start, end)]

        def read(self, partition: InputPartition) -> Any:
            from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - as above

            schema = to_arrow_schema(self._schema, timezone="UTC")
            for batch in read(partition.value):
                yield batch if batch.schema.equals(schema) else batch.cast(schema)

    class Packed(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return columns

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - as above
            return Reader(schema)

    return Packed
