"""Rows into Kafka's topics: all of a batch, and the mark, in one transaction of one producer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from offsetkeeper import errors
from offsetkeeper.core import environment, outside, retry, urls
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Batch, Guarantee, check_topic
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.store import Store
from offsetkeeper.errors import BrokerError, NotAuthorized, Refused, SettingsError, SinkError, SinkMismatch
from offsetkeeper.kafka import KafkaCluster, clients, codes, own_settings, tokens, transactions
from offsetkeeper.kafka.clients import check_brokers, check_options, open_producer
from offsetkeeper.kafka.own_settings import worker_modules
from offsetkeeper.kafka.transactions import Saying, Slot
from offsetkeeper.sinks.sink import Lander, MarkKey, Seen
from offsetkeeper.sinks.topic import task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHIPPED = (errors, environment, retry, outside, urls, codes, own_settings, tokens, clients, transactions, task)
_TEXT = ("string", "binary")
_COLUMNS = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_OURS = {
    "transactional.id": "it is made of the group's and the output's name; give prefix=",
    "enable.idempotence": "transactions need it",
    "acks": "transactions need all",
    "request.required.acks": "transactions need all",
}
_TIMEOUT = "transaction.timeout.ms"
_MOST = "transaction.max.timeout.ms"


class Topic:
    """Writes each batch into Kafka, exactly once: all rows and the mark are one transaction of one producer.

    The frame has the columns of Spark's own Kafka sink: `value`, and if wanted `key`, `headers`, `topic` and
    `partition`; and `timestamp`, which Spark's sink does not take. `key` and `value` are texts or bytes. A null `value`
    is a tombstone, a null `topic` stands for `name`, a null `partition` for the one of the key (as in Java: murmur2),
    and a null `timestamp` for now. Timestamps are cut to milliseconds, as Kafka has no more.

    Whoever reads with `isolation.level=read_committed` sees each batch whole, and once. All rows go through one task,
    as Kafka has no transaction of several producers. Rows of one partition of the frame keep their order.

    The mark is the offset of a consumer group, `<prefix>.<group>/<output>`, on partition 0 of the topic `name`; the
    transactional id has the same name. So a topic that is deleted takes its mark along.

    Executors need confluent-kafka, and reach the brokers.

    Args:
        brokers: `host:port,host:port`; may be of another cluster than the records come from.
        name: of the topic for all rows that name none.
        kafka: settings of librdkafka, for clients (security.protocol, sasl.*, ssl.*) and the producer
            (compression.type, linger.ms, transaction.timeout.ms); never shown.
        mark_topic: has the mark on its partition 0; needed only where `name` is not given.
        prefix: what the names of transactional ids and groups begin with.
        timeout_s: seconds that brokers may be away.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        brokers: str,
        name: str | None = None,
        *,
        kafka: Mapping[str, str] | None = None,
        mark_topic: str | None = None,
        prefix: str = "offsetkeeper",
        timeout_s: float = 30.0,
    ) -> None:
        if not isinstance(kafka, Mapping | None):
            raise SettingsError("kafka: give librdkafka's settings as a dict of texts")  # not shown: may hold a secret
        self._brokers, self._options = check_brokers(brokers), check_options(kafka or {})
        for option in _OURS.keys() & self._options.keys():
            raise SettingsError(f"take the Kafka option {option} out: {_OURS[option]}")
        if name is None and mark_topic is None:
            raise SettingsError("Topic(…) has no topic: give its name; or where rows name theirs, mark_topic='…'")
        if not isinstance(prefix, str) or not prefix.isascii() or not prefix.isprintable() or not prefix:
            raise SettingsError(f"prefix={prefix!r}: use printable ASCII characters")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise SettingsError(f"timeout_s={timeout_s!r}: use a number above 0")
        self._name = None if name is None else check_topic(name)
        self._mark_topic = check_topic(mark_topic or name or "")
        self._prefix, self._timeout_s = prefix, float(timeout_s)

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            Topic, kafka=self._options, mark_topic=self._mark_topic, prefix=self._prefix, timeout_s=self._timeout_s
        )
        return made, (self._brokers, self._name)

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """What Spark's workers import for the one task of a batch."""
        return (*worker_modules(self._options), "pyarrow")

    def __repr__(self) -> str:
        return f"Topic({self._brokers!r}, {self._name!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the same beside all
        """Check the settings, the topics, and that the brokers allow so long a transaction, where they tell.

        Raises:
            Refused: one of them is not as it must be.
            SinkError: no broker could be reached.
        """
        topics = {self._mark_topic, self._name or self._mark_topic}
        try:
            open_producer(self._brokers, self._options, "offsetkeeper", lambda _: None, lambda _: None)
            with KafkaCluster(self._brokers, self._options, timeout_s=self._timeout_s) as cluster:
                missing = sorted(topics - cluster.describe(topics).keys())
                limits = cluster.settings("broker", cluster.nodes()) if _TIMEOUT in self._options else {}
        except NotAuthorized as error:
            raise Refused(str(error)) from error
        except BrokerError as error:
            raise SinkError(str(error)) from error
        if missing:
            raise Refused(f"{self._brokers} has no topic {', '.join(missing)}: create it first")
        most = min((int(each[_MOST]) for each in limits.values() if each.get(_MOST)), default=None)
        if most is not None and int(self._options[_TIMEOUT]) > most:
            raise Refused(
                f"{_TIMEOUT}={self._options[_TIMEOUT]} is above the {_MOST}={most} of the brokers at {self._brokers}"
            )
        return Lander(self._stage, self._seen, self._land, expires=True)

    def _stage(self, frame: DataFrame, batch: Batch) -> DataFrame:  # noqa: ARG002 - the protocol's signature
        fields = frame.schema.fields
        types = {field.name: field.dataType.simpleString() for field in fields}
        twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        problems = [f"column {name} is there more than once" for name in twice]
        problems += [_misfit(name, kind) for name, kind in types.items() if kind not in _COLUMNS.get(name, ())]
        if "value" not in types:
            problems.append("column value is missing")
        if self._name is None and "topic" not in types:
            problems.append("column topic is missing, and Topic(…) has no name")
        if problems:
            raise SinkMismatch(f"the frame does not fit {self!r}: {'; '.join(problems)}. Nothing was written")
        return frame

    def _seen(self, key: MarkKey) -> Seen:
        said = self._slot(key).said()
        return Seen(None if said is None else OutputMark.parse(said))

    def _land(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: DataFrame | None) -> None:
        slot = self._slot(key)
        saying = Saying(None if seen.mark is None else str(seen.mark), mark.sequence, str(mark))
        answers: list[Any] = []
        if staged is not None:
            work = ship(task.answer, (slot, saying, self._name), _SHIPPED)
            # A barrier stage is never speculated: of two copies of the task each would end the other's transaction.
            # Spark has none where executors come and go.
            settings = staged.sparkSession.conf
            barrier = settings.get("spark.dynamicAllocation.enabled", "false") != "true"
            answers = staged.repartition(1).mapInArrow(work, task.RESULT, barrier=barrier).collect()
        for answer in answers:
            if answer["error"] is not None:
                raise getattr(errors, answer["error"])(answer["message"])
        if not answers:  # there are no rows; of a frame that is known to be empty, Spark runs no task
            task.land(slot, saying, self._name, ())

    def _slot(self, key: MarkKey) -> Slot:
        name = f"{self._prefix}.{quote(key.group, safe='')}/{quote(key.output, safe='')}"
        return Slot(name, self._mark_topic, self._brokers, self._options, self._timeout_s)


def _misfit(name: str, kind: str) -> str:
    if name not in _COLUMNS:
        return f"column {name}: there is none such in Kafka, use {', '.join(_COLUMNS)}"
    return f"column {name}: {kind} does not fit, cast it to {' or '.join(_COLUMNS[name])}"
