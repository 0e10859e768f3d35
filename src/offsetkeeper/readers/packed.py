"""The packed reader: many partitions in each of a few Python tasks, handed to Spark as Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import NO_LEADER_EPOCHS
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.spark_session import map_in_arrow, unlogged
from offsetkeeper.kafka.own_settings import worker_modules, worker_variables
from offsetkeeper.kafka.topic_ids import NO_IDS
from offsetkeeper.readers import consume
from offsetkeeper.readers.connector import ConnectorReader
from offsetkeeper.readers.ranges import Split, split, tidy
from offsetkeeper.readers.releases import check_packed_streams, packed_streams, spark_version
from offsetkeeper.readers.sample import sample
from offsetkeeper.readers.streaming import READING, StreamSource, source_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.core.offsets import OffsetRange, TopicPartition
    from offsetkeeper.readers.source import Source
    from offsetkeeper.readers.streaming import StreamStart


# For executors that may come: of more tasks each would have little to read, where `split` cuts ranges for all of them.
_MOST_TASKS = 200


class PackedReader:
    """Reads exact ranges with one consumer for each task, and few tasks. Needs no jar, and works with Spark Connect.

    Executors need confluent-kafka and pyarrow; offsetkeeper itself need not be installed there.

    Spark raises the errors of executors; `reading_error` finds offsetkeeper's own error in them.

    Args:
        source: where the records are, and how to read them; it travels to the executors.
        split: see `Split`.

    Attributes:
        worker_modules: what Spark's workers import.
        worker_variables: of the environment, which Spark's workers need.
    """

    def __init__(self, source: Source, *, split: Split = None) -> None:
        self._source = source
        self._split = split
        self.worker_modules = (*worker_modules(source.options), "pyarrow")
        self.worker_variables = worker_variables(source.options)
        self._asked = 0  # how many tasks Spark Connect has told to be right; 0 is not known yet

    def read(
        self,
        spark: SparkSession,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str] = NO_IDS,
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,
    ) -> DataFrame:
        """Return a frame of exactly the records in `ranges`. They are read when the frame is used, each time anew.

        Args: see `Reader.read`.

        Raises:
            SettingsError: two ranges overlap, or a range is not valid.
        """
        wanted = tidy(ranges)
        if not wanted:
            return spark.createDataFrame([], self._source.columns)
        tasks = [[tuple(each) for each in task] for task in split(wanted, self._tasks(spark), self._split)]
        epochs = {(*tp,): epoch for tp, epoch in leader_epochs.items()}  # executors may not have offsetkeeper
        kafka = ship(consume.kafka, (self._source, tasks, {**topic_ids}, cluster_id, epochs), READING)
        frame: DataFrame = map_in_arrow(spark.range(0, len(tasks), 1, len(tasks)), kafka, self._source.columns)
        return frame

    def for_query(
        self,
        spark: SparkSession,
        start: StreamStart,  # noqa: ARG002 - the protocol's signature, as below
        connector_began: Callable[[], bool],  # noqa: ARG002
    ) -> PackedReader | ConnectorReader:
        """See `Reader.for_query`.

        Raises:
            SparkTooOld: this Spark has no streaming source in Python that would do.
        """
        check_packed_streams(spark_version(spark))
        return self

    def in_any_order(self) -> PackedReader:
        """See `Reader.in_any_order`."""
        return type(self)(self._source, split="evenly") if self._split == "auto" else self

    def bare(self) -> PackedReader:
        """See `Reader.bare`."""
        return type(self)(replace(self._source, headers=False, raw_times=True), split=self._split)

    def sample(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `Reader.sample`."""
        return sample(self._source, offsets)

    def stream(self, spark: SparkSession, start: StreamStart) -> DataFrame:
        """See `Reader.stream`. Spark's planner, beside the driver, needs confluent-kafka."""
        stream = StreamSource(self._source, start, self._tasks(spark), self._split)
        name = f"offsetkeeper-{environment.token(6)}"
        with unlogged():
            spark.dataSource.register(source_class(name, stream))
        return spark.readStream.format(name).load()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r}, split={self._split})"

    def _tasks(self, spark: SparkSession) -> int:
        """Return how many tasks share the partitions now: executors come and go."""
        context: Any = getattr(spark, "sparkContext", None)
        if context is not None:
            return max(1, int(context.defaultParallelism), _may_come(spark.conf))
        self._asked = self._asked or _parallelism(spark)  # that is a job, so it is asked once
        return self._asked


class AutoReader(PackedReader):
    """Reads as the packed reader does. A query has Spark's own connector where Spark can do no better.

    That is: where this release has no streaming source in Python that would do, and where the connector has begun the
    query's checkpoint. A batch that the connector planned may begin at partitions which the packed source would skip.
    """

    def for_query(
        self, spark: SparkSession, start: StreamStart, connector_began: Callable[[], bool]
    ) -> PackedReader | ConnectorReader:
        """See `Reader.for_query`.

        Raises:
            SettingsError: the connector is needed, and does not take an option or cannot do what is asked for.
            MissingExtra: the connector is needed, and the session has not got it.
        """
        if packed_streams(spark_version(spark)) and not connector_began():
            return self
        most = self._split if isinstance(self._split, int) else None
        return ConnectorReader(self._source, split=most).for_query(spark, start, connector_began)


def _may_come(conf: Any) -> int:
    """Return how many tasks the executors can run that dynamic allocation may start; 0 where that is not known.

    It starts executors only for tasks that wait, so few tasks for few executors would never get more of them.
    """
    if conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() != "true":
        return 0
    executors, cores, each = (
        int(conf.get(f"spark.{name}", default))
        for name, default in (("dynamicAllocation.maxExecutors", "0"), ("executor.cores", "1"), ("task.cpus", "1"))
    )
    return min(executors * (cores // each), _MOST_TASKS)


def _parallelism(spark: SparkSession) -> int:
    """Return into how many partitions Spark Connect deals a range without a number of them: it does not tell more."""
    from pyspark.sql.functions import spark_partition_id  # noqa: PLC0415 - `import offsetkeeper` must not load it

    return spark.range(2**16).select(spark_partition_id()).distinct().count()
