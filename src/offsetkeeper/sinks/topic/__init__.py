"""Rows into Kafka's topics: all of a batch, and the mark, in one transaction of one producer."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from offsetkeeper import errors
from offsetkeeper.core import environment, offsets, outside, retry, tls, topics, urls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import OutputMark, lowered, together
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import check_topic
from offsetkeeper.core.outside import load_json
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.spark_session import collected, map_in_arrow
from offsetkeeper.core.store import Store
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import (
    BrokerError,
    ComputedAgain,
    GuaranteeRefused,
    NotAuthorized,
    OutcomeUnknown,
    Refused,
    SettingsError,
    SinkError,
    SinkMismatch,
)
from offsetkeeper.kafka import KafkaCluster, clients, codes, compiled, own_settings, producers, tokens, transactions
from offsetkeeper.kafka import tls as kafka_tls
from offsetkeeper.kafka.clients import check_brokers, check_options, open_producer
from offsetkeeper.kafka.own_settings import worker_modules
from offsetkeeper.kafka.transactions import Saying, Slot
from offsetkeeper.kafka.verification import REMEDY, may_tear, unverified
from offsetkeeper.sinks import limits
from offsetkeeper.sinks.held import Held, HeldBatch, as_text, tells, told
from offsetkeeper.sinks.sink import Lander, MarkKey, Seen
from offsetkeeper.sinks.topic import ends, several, task
from offsetkeeper.sinks.topic.task import NO_TOPICS, loop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHIPPED = (
    errors,
    environment,
    offsets,
    topics,
    retry,
    outside,
    urls,
    codes,
    own_settings,
    tokens,
    tls,
    kafka_tls,
    clients,
    compiled,
    producers,
    transactions,
    limits,
    ends,
    task,
    several,
)
log = logging.getLogger("offsetkeeper")
T = TypeVar("T")
_TEXT = ("string", "binary")
_COLUMNS = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_SOURCES = {several.SOURCE[0]: ("string",), several.SOURCE[1]: ("int",)}
_OURS = {
    "transactional.id": "it is made from the names of group and output; use prefix= instead",
    "enable.idempotence": "transactions need it",
    "acks": "transactions need all",
    "request.required.acks": "transactions need all",
}
_TIMEOUT = "transaction.timeout.ms"
_MOST = "transaction.max.timeout.ms"
_KEPT = "offsets.retention.minutes"
_LONGEST = "offset.metadata.max.bytes"
_LONGEST_TEXT = 2_000  # characters; a broker takes 4,096 as it comes
_DAY_S = 86_400.0
_UNCLEAN = "unclean.leader.election.enable"
_LARGEST, _BATCH = "max.message.bytes", "batch.size"
_BATCH_BYTES = 1_000_000  # librdkafka's own batch.size
_MAY_LOSE = (
    "{!r}: topic {} has {}=true. A replica that lacks rows may become the leader. Then rows of batches that count as "
    "written are gone, and no mark shows it"
)
_OWN_ROWS = "This output aborts nothing that is still on its way, other producers may"
_MOST_SLOTS = 100
_SLOTS = " slots="  # between a mark and their number


class _Staged(NamedTuple):
    """Rows, the partitions they may come from, and the offsets that they are of."""

    frame: DataFrame
    sources: frozenset[tuple[str, int]]
    offsets: str


class _Source(NamedTuple):
    """The cluster and the topics that the pipeline reads."""

    cluster: KafkaCluster | None
    topics: Topics


_NOTHING_READ = _Source(None, NO_TOPICS)


class _Before(NamedTuple):
    """The slots when they were read: the text of the first slot's mark, and the number of slots in it."""

    text: str | None
    slots: int


class Topic:
    """Writes each batch into Kafka, exactly once: all rows and the mark are one transaction of one producer.

    The frame has the columns of Spark's own Kafka sink: `value`, and optionally `key`, `headers`, `topic` and
    `partition`; and also `timestamp`, which Spark's sink does not have. `key` and `value` are texts or bytes. A null
    `value` is a tombstone. A null `topic` means `name`, a null `partition` the partition of the key (murmur2, as in
    Java), and a null `timestamp` the current time. Kafka keeps milliseconds, so a `timestamp` with microseconds is
    refused.

    Consumers with `isolation.level=read_committed` see each batch completely and once. All rows go through one task,
    because a Kafka transaction has only one producer. Rows of one partition of the frame keep their order.

    With `slots=n` there are n tasks, each with its own transaction, and consumers see a batch slot by slot. Then the
    frame needs the columns `source_topic` and `source_partition`: the partition of the row's record, which selects the
    slot. So slots fit functions that make each row from one record, or from several records of one partition. If one
    slot of a batch has landed, the batch can be finished only with the same number of slots.

    The mark is the offset of a consumer group, `<prefix>.<group>/<output>`, on partition 0 of the topic `name`; the
    transactional id has the same name. If the topic is deleted, its mark is deleted too. If there is a partition 1, the
    offset there tells other programs the ranges of the batch.

    Executors need confluent-kafka and a connection to the brokers.

    Args:
        brokers: `host:port,host:port`; it may be another cluster than the one that is read.
        name: the topic for all rows without one.
        kafka: settings of librdkafka, for clients (security.protocol, sasl.*, ssl.*) and the producer
            (compression.type, linger.ms, transaction.timeout.ms). Values are never shown.
        mark_topic: the topic with the mark on its partition 0; needed only if `name` is not given.
        prefix: prefix of the names of transactional ids and groups.
        slots: number of tasks that write a batch at the same time; Spark needs as many free cores.
        also_read: whether rows may go into a topic that the pipeline reads too. Without it that is refused: each batch
            would write what the next one reads.
        unclean_elections: whether a topic `name` with `unclean.leader.election.enable` is taken at exactly once too.
            Without it that is refused: such an election takes rows of batches that count as written, and nothing shows
            it.
        timeout_s: seconds that brokers may be unavailable.

    Raises:
        SettingsError: an argument is wrong.
    """

    mode = "append"

    def __init__(
        self,
        brokers: str,
        name: str | None = None,
        *,
        kafka: Mapping[str, str] | None = None,
        mark_topic: str | None = None,
        prefix: str = "offsetkeeper",
        slots: int = 1,
        also_read: bool = False,
        unclean_elections: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        if not isinstance(kafka, Mapping | None):
            raise SettingsError("kafka: give librdkafka's settings as a dict of texts")  # not shown: may be secret
        self._brokers, self._options = check_brokers(brokers), check_options(kafka or {})
        for option in _OURS.keys() & self._options.keys():
            raise SettingsError(f"remove the Kafka option {option}: {_OURS[option]}")
        if name is None and mark_topic is None:
            raise SettingsError("Topic(…) has no topic: give its name; or mark_topic='…' if each row has its topic")
        if not isinstance(prefix, str) or not prefix.isascii() or not prefix.isprintable() or not prefix.strip():
            raise SettingsError(f"prefix={prefix!r}: use printable ASCII characters")
        if prefix[0] == " ":  # the library drops it from the name of a group in one place, and not in another
            raise SettingsError(f"prefix={prefix!r}: begin with another character than a blank")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise SettingsError(f"timeout_s={timeout_s!r}: use a number above 0")
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= _MOST_SLOTS:
            raise SettingsError(f"slots={slots!r}: use a number from 1 to {_MOST_SLOTS}")
        if not isinstance(also_read, bool):
            raise SettingsError(f"also_read={also_read!r}: use True or False")
        if not isinstance(unclean_elections, bool):
            raise SettingsError(f"unclean_elections={unclean_elections!r}: use True or False")
        self._also_read, self._source, self._closed = also_read, _NOTHING_READ, NO_TOPICS
        self._unclean_elections = unclean_elections
        self._name, self._slots = None if name is None else check_topic(name), slots
        self._mark_topic = check_topic(mark_topic or name or "")
        self._prefix, self._timeout_s = prefix, float(timeout_s)
        self._batching: Mapping[str, str] = {}
        self._longest_text = 0  # a start finds out whether there is a place for it
        self._cluster: KafkaCluster | None = None  # opened once: each landing asks it

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            Topic,
            kafka=self._options,
            mark_topic=self._mark_topic,
            prefix=self._prefix,
            slots=self._slots,
            also_read=self._also_read,
            unclean_elections=self._unclean_elections,
            timeout_s=self._timeout_s,
        )
        return _rebuilt, (made, (self._brokers, self._name), self._source)

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """The modules that Spark's workers import."""
        return (*worker_modules(self._options), "pyarrow")

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return self._name or self._mark_topic

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        return f"{self._brokers} {self._name} {self._mark_topic} {self._prefix}"

    def __repr__(self) -> str:
        return f"Topic({self._brokers!r}, {self._name!r})"

    @property
    def slots(self) -> int:
        """Number of tasks that write a batch at the same time."""
        return self._slots

    def for_reader_of(self, cluster: KafkaCluster, topics: Topics) -> Topic:
        """Return this output as one of a pipeline that reads these topics of a cluster."""
        made = copy(self)
        made._source = _Source(cluster, topics)  # noqa: SLF001 - a copy of this one
        return made

    def held(self, key: MarkKey) -> Held:
        """Return the last batch that each slot of a group and output has; no transaction is ended by this.

        Raises:
            SinkError, Refused, MarkError: the marks could not be read, as while a transaction is open.
        """
        first = self._slot(key)
        text, about = first.shown()
        if text is None:
            return Held((), f"group {first.name} has no mark: it has written no batch here, or Kafka has forgotten it")
        mark, slots = _parsed(text)
        batches, behind = [_held("slot 0", key, mark, about)], []
        for number in range(1, slots):
            text, _ = self._slot(key, number).shown()
            other = None if text is None else _parsed(text)[0]
            if other != mark:
                behind.append(f"slot {number}")
                batches += [] if other is None else [HeldBatch.untold(f"slot {number}", key, other)]
        late = f"; not in {', '.join(behind)} yet" if behind else ""
        return Held((*reversed(batches),), f"a topic tells of its last batch alone{late}")

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check the settings, the topics and, if the brokers show it, the longest transaction that they allow.

        Raises:
            SettingsError: the pipeline reads the topic too.
            GuaranteeRefused: exactly once is asked for, and a topic allows unclean elections.
            Refused: one of them is wrong; the message says how to correct it.
            SinkError: no broker could be reached.
        """
        written = self._name or self._mark_topic
        topics = {self._mark_topic, written}
        try:
            open_producer(self._brokers, self._options, "offsetkeeper", lambda _: None, lambda _: None)
            with KafkaCluster(self._brokers, self._options, timeout_s=self._timeout_s) as cluster:
                found = cluster.describe(topics)
                missing = sorted(topics - found.keys())
                closed = self._closed_here(cluster)
                nodes = cluster.nodes()
                allowed = cluster.settings("broker", nodes) if _TIMEOUT in self._options else {}
                brokers = cluster.shown_by_brokers(nodes)
                late = unverified(nodes, brokers)
                shown = cluster.settings("topic", {written} - {*missing})
        except NotAuthorized as error:
            raise Refused(str(error)) from error
        except BrokerError as error:
            raise SinkError(str(error)) from error
        if missing:
            raise Refused(f"{self._brokers} has no topic {', '.join(missing)}: create it first")
        most = min((int(each[_MOST]) for each in allowed.values() if each.get(_MOST)), default=None)
        if most is not None and int(self._options[_TIMEOUT]) > most:
            raise Refused(
                f"{_TIMEOUT}={self._options[_TIMEOUT]} is above the {_MOST}={most} of the brokers at {self._brokers}"
            )
        if self._name is not None and self._name in closed:
            raise SettingsError(f"{self!r}: {loop(self._name)}")
        self._closed, self._batching = closed, _batching(shown.get(self._name or "", {}))
        if shown.get(written, {}).get(_UNCLEAN) == "true":
            self._check_elections(written, guarantee)
        if late:
            log.warning("%r: %s: %s. %s", self, may_tear(late), REMEDY, _OWN_ROWS)
        if len(found[self._mark_topic].partitions) > 1:
            taken = [int(each[_LONGEST]) for each in brokers.values() if each.get(_LONGEST)]
            self._longest_text = min([_LONGEST_TEXT, *taken]) - 1  # clients may send an end of the text too
        return Lander(
            self._stage,
            self._seen,
            self._land,
            self._lost,
            self._rehearse,
            kept_s=self._kept_s,
            late=True,
            writes_to=self.writes_to,
        )

    def _check_elections(self, name: str, guarantee: Guarantee) -> None:
        warning = _MAY_LOSE.format(self, name, _UNCLEAN)
        if guarantee is Guarantee.EXACTLY_ONCE and not self._unclean_elections:
            raise GuaranteeRefused(
                f"{warning}. So exactly once cannot be kept: set it to false; or say unclean_elections=True, and rows "
                "that an election takes are lost without an error"
            )
        log.warning("%s: set it to false", warning)

    def _closed_here(self, cluster: KafkaCluster) -> Topics:
        """Return the topics of this cluster that no row may go into."""
        there, topics = self._source
        if there is None or self._also_read:
            return NO_TOPICS
        same = there.brokers == cluster.brokers or there.cluster_id() == cluster.cluster_id() is not None
        return topics if same else NO_TOPICS

    def _stage(self, frame: DataFrame, batch: Batch) -> _Staged:
        fields = frame.schema.fields
        types = {field.name: field.dataType.simpleString() for field in fields}
        columns = _COLUMNS | (_SOURCES if self._slots > 1 else {})
        twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        problems = [f"column {name} occurs more than once" for name in twice]
        problems += [_misfit(name, kind, columns) for name, kind in types.items() if kind not in columns.get(name, ())]
        needed = ["value", *(_SOURCES if self._slots > 1 else ())]
        problems += [f"column {name} is missing" for name in needed if name not in types]
        if self._name is None and "topic" not in types:
            problems.append("column topic is missing, and Topic(…) has no name")
        if problems:
            raise SinkMismatch(f"the frame does not fit {self!r}: {'; '.join(problems)}. Nothing was written")
        if self._slots > 1:
            self._check_spark(frame)
        return _Staged(frame, frozenset((r.topic, r.partition) for r in batch.ranges), batch.lines())

    def _check_spark(self, frame: DataFrame) -> None:
        if not _has_barriers(frame):
            raise SettingsError(f"{self!r}: slots need spark.dynamicAllocation.enabled=false. Nothing was written")
        local = re.fullmatch(r"local(?:\[(\d+)\])?", frame.sparkSession.conf.get("spark.master", "") or "")
        if local is not None and int(local[1] or 1) < self._slots:
            raise SettingsError(f"{self!r}: {self._slots} slots need as many cores, but Spark has {local[0]}")

    def _seen(self, key: MarkKey) -> Seen:
        with ThreadPoolExecutor(1) as pool:
            target = pool.submit(self._target)
            return self._marks(key)._replace(target=target.result())

    def _marks(self, key: MarkKey) -> Seen:
        said = self._slot(key).said()
        mark, slots = (None, self._slots) if said is None else _parsed(said)
        if mark is None or slots == 1:
            return Seen(mark, _Before(said, slots))
        with ThreadPoolExecutor(slots) as pool:
            others = list(pool.map(Slot.said, [self._slot(key, number) for number in range(1, slots)]))
        return Seen(
            together([mark, *(None if other is None else _parsed(other)[0] for other in others)]), _Before(said, slots)
        )

    def _target(self) -> str:
        """Return the id of the topic of all rows, else of the topic with the mark; empty from a broker without ids."""
        topic = self._name or self._mark_topic
        [found] = self._ask(lambda cluster: cluster.describe({topic}, required=True)).values()
        return found.topic_id or ""

    def _kept_s(self) -> float:
        """See `Lander`. The mark is an offset of a group; a day if the brokers do not say it, as before Kafka 2.0."""
        brokers = self._ask(lambda cluster: cluster.settings("broker", cluster.nodes()))
        kept = [float(each[_KEPT]) * 60 for each in brokers.values() if each.get(_KEPT)]
        return min(kept, default=_DAY_S)

    def _ask(self, question: Callable[[KafkaCluster], T]) -> T:
        try:
            if self._cluster is None:
                self._cluster = KafkaCluster(self._brokers, self._options, timeout_s=self._timeout_s)
            return question(self._cluster)
        except NotAuthorized as error:
            raise Refused(str(error)) from error
        except BrokerError as error:
            raise SinkError(str(error)) from error

    def _lost(self, landed: Landed, seen: Seen) -> str:
        """See `Lander`. The mark is in a group, which outlives the topic; and it expires."""
        if landed.target and seen.target and landed.target != seen.target:
            name = self._name or self._mark_topic
            return f"topic {name} was deleted and created again, or the output is another topic now"
        return "" if seen.mark is None else lowered(landed, seen.mark)

    def _land(
        self,
        key: MarkKey,
        seen: Seen,
        mark: OutputMark,
        staged: _Staged | None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._land_rows(key, seen, mark, staged)
        try:
            check()
        except ComputedAgain as error:  # the task has ended its transaction: too late
            log.warning(
                "%r has the batch with the mark '%s', but %s. If the function gives other rows for the same records, "
                "rows are lost or there twice. Let the function return frame.localCheckpoint()",
                *(self, mark, error),
            )

    def _land_rows(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: _Staged | None) -> None:
        before: _Before = seen.handle or _Before(None if seen.mark is None else str(seen.mark), self._slots)
        partly = seen.mark is not None and seen.mark.partly and seen.mark.sequence == mark.sequence
        if partly and mark.void:
            for number in range(1, before.slots):
                self._void(key, number, mark, before.slots)
            return
        if partly and before.slots != self._slots:
            raise Refused(
                f"{self!r}: a part of batch {mark.sequence} was written with slots={before.slots}, and the rest needs "
                "the same number of slots: start once with it. Nothing was written"
            )
        text = str(mark) if self._slots == 1 or mark.void else f"{mark}{_SLOTS}{self._slots}"
        about = as_text(told(key, mark, staged and staged.offsets), self._longest_text)
        saying = Saying(before.text, mark.sequence, text, about)
        if staged is None or self._slots == 1:
            self._land_one(self._slot(key), saying, None if staged is None else staged.frame)
        else:
            self._land_several([self._slot(key, number) for number in range(self._slots)], saying, staged)

    def _rehearse(self, key: MarkKey, staged: _Staged) -> None:
        self._work(self._slot(key), None, staged.frame)

    def _land_one(self, slot: Slot, saying: Saying, frame: DataFrame | None) -> None:
        if frame is None:
            task.land(slot, saying, self._name, ())
        else:
            self._work(slot, saying, frame)

    def _work(self, slot: Slot, saying: Saying | None, frame: DataFrame) -> None:
        """Let one task land all rows, or rehearse that without a saying."""
        work = ship(task.answer, (slot, saying, self._name, self._closed), _SHIPPED)
        # A barrier stage has no speculative tasks: two copies of the task would abort each other's transactions.
        # Spark does not allow it with dynamic allocation.
        rows = ends.in_order(ends.with_ends(frame).repartition(1))
        [answer] = collected(map_in_arrow(rows, work, task.RESULT, barrier=_has_barriers(frame)))
        if answer["error"] is not None:
            raise getattr(errors, answer["error"])(answer["message"])

    def _land_several(self, slots: list[Slot], saying: Saying, staged: _Staged) -> None:
        share = several.Share(slots, saying, self._name, staged.sources, self._closed)
        placed = several.placed(several.with_ends_of_slots(staged.frame, len(slots)), len(slots))
        rows = ends.in_order(placed.repartition(len(slots), *several.SOURCE))
        work = ship(several.answer, (share,), _SHIPPED)
        answers = sorted(collected(map_in_arrow(rows, work, several.RESULT, barrier=True)))
        for number, error, text in answers:
            failure = None if error is None else getattr(errors, error)(text)
            if failure is not None and answers[0]["error"] is not None:
                raise failure
            if failure is not None:
                unknown = f"slot {number}: {text}. Other slots have landed; another try writes the rest"
                raise OutcomeUnknown(unknown) from failure

    def _void(self, key: MarkKey, number: int, mark: OutputMark, slots: int) -> None:
        slot = self._slot(key, number)
        if (said := slot.said()) is None or _parsed(said)[0] != mark._replace(void=False):
            several.void(slot, Saying(None, mark.sequence, f"{mark}{_SLOTS}{slots}"))

    def _slot(self, key: MarkKey, number: int = 0) -> Slot:
        name = f"{self._prefix}.{quote(key.group, safe='')}/{quote(key.output, safe='')}"
        name += f"/{number}" if number else ""
        return Slot(name, self._mark_topic, self._brokers, {**self._batching, **self._options}, self._timeout_s)


def _batching(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the setting by which a topic takes each batch of small messages; else one of them would be refused."""
    most = int(settings.get(_LARGEST, _BATCH_BYTES))
    return {_BATCH: str(max(1, most))} if most < _BATCH_BYTES else {}


def _held(place: str, key: MarkKey, mark: OutputMark, about: str | None) -> HeldBatch:
    """Return the batch of a mark, with its offsets if the text beside it is of the same batch."""
    try:
        found = load_json(about or "{}")
    except ValueError:  # of another program
        found = {}
    batch = HeldBatch.of(place, found) if isinstance(found, dict) and tells(found, key, mark) else None
    return batch or HeldBatch.untold(place, key, mark)


def _parsed(said: str) -> tuple[OutputMark, int]:
    mark, _, slots = said.partition(_SLOTS)
    return OutputMark.parse(mark), int(slots) if slots.isdecimal() else 1


def _rebuilt(made: Callable[..., Topic], arguments: tuple[Any, ...], source: _Source) -> Topic:
    topic = made(*arguments)
    topic._source = source  # noqa: SLF001 - of this file
    return topic


def _has_barriers(frame: DataFrame) -> bool:
    return bool(frame.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") != "true")


def _misfit(name: str, kind: str, columns: Mapping[str, tuple[str, ...]]) -> str:
    if name not in columns:
        return f"column {name}: not a column for Kafka; use {', '.join(columns)}"
    return f"column {name}: {kind} does not fit; cast it to {' or '.join(columns[name])}"
