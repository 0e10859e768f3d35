"""Transactions of one producer at a time, and the text that the last one has left. Executors use it too.

A slot is a transactional id and the consumer group with the same name. A transaction writes messages, and commits an
offset of that group whose metadata is a text: either both are written or neither. It may commit a second text, for
others to read, on the next partition. A producer that takes the slot ends the transaction of the producer before it. So
the text that it then reads does not change until it writes, or until another producer takes the slot.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core.environment import monotonic
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import (
    MarkMoved,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    RowMismatch,
    SinkError,
    SinkMismatch,
    TokenUnavailable,
    UnknownTopic,
)
from offsetkeeper.kafka.clients import library, open_client, redact
from offsetkeeper.kafka.codes import (
    FENCED,
    LONG_TEXT,
    NO_REASON,
    OF_RECORD,
    PURGED,
    TOO_LARGE,
    TOO_LONG,
    CodeVerdict,
    judge,
)
from offsetkeeper.kafka.producers import Rows, open_transactional
from offsetkeeper.kafka.tls import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TRY_S = 2.0  # seconds of one try
_ABORT_S = 5.0
_CONNECT_S = 0.5
_EMPTY = 3
# A client that knows a broker, and has no connection to it, waits half of this before it connects.
_QUICKLY = {"reconnect.backoff.ms": "20"}
_TIMEOUT = "transaction.timeout.ms"
_TIMEOUT_MS = "60000"
_READ_MARK = {
    "isolation.level": "read_committed",  # the broker then reports an offset in an open transaction as not known yet
    "enable.auto.commit": "false",
}


class Saying(NamedTuple):
    """What a transaction says.

    Attributes:
        before: the text that must exist before it.
        offset: the offset that it writes.
        text: the text that it writes.
        about: a text for people and other programs, on partition 1; empty if there is none. Nothing depends on it.
    """

    before: str | None
    offset: int
    text: str
    about: str = ""


@dataclass(frozen=True)
class Slot:
    """A transactional id, and the group of the same name.

    Attributes:
        name: name of both.
        topic: the topic whose partition 0 has the offset, and partition 1 the one with the text for others.
        brokers: `host:port,…`.
        options: settings of librdkafka.
        timeout_s: seconds that brokers may be unavailable.
    """

    name: str
    topic: str
    brokers: str
    options: dict[str, str] = field(repr=False)
    timeout_s: float

    def said(self) -> str | None:
        """Return the text of the last transaction, or None. A transaction that a dead producer left open is ended.

        Raises:
            SinkError, Refused: the text could not be read.
        """
        look = _Look(self)
        try:
            return look.said(min(self.timeout_s, 2 * _TRY_S))
        except SinkError:  # a live transaction ends sooner; an open one looks like no answer
            return Turn(self, writes=False).take()

    def shown(self) -> tuple[str | None, str | None]:
        """Return the text of the last transaction, and that for others. No transaction is ended by this.

        Raises:
            SinkError, Refused: they could not be read, as while a transaction is open.
        """
        text, about = _Look(self).texts(self.timeout_s, 2)
        return text, about


class _Look:
    """A consumer in the slot's group."""

    def __init__(self, slot: Slot) -> None:
        self.reports: deque[Any] = deque(maxlen=20)
        self._slot = slot
        settings = {**_READ_MARK, "group.id": slot.name}
        with _telling_no_token():
            options = {**_QUICKLY, **slot.options}
            self.consumer = open_client("Consumer", slot.brokers, options, settings, self.reports.append)

    def connect(self) -> None:
        """Connect to the coordinator of the group. What it answers does not matter."""
        with suppress(library().KafkaException):
            self.consumer.committed([library().TopicPartition(self._slot.topic, 0)], _CONNECT_S)

    def said(self, seconds: float) -> str | None:
        return self.texts(seconds, 1)[0]

    def texts(self, seconds: float, count: int) -> list[str | None]:
        """Return the texts on the topic's partitions from 0 on; None where there is none."""
        asked = [library().TopicPartition(self._slot.topic, number) for number in range(count)]

        def ask(left_s: float) -> list[str | None]:
            found = self.consumer.committed(asked, min(max(left_s, 0.5), _TRY_S))
            for each in found:
                if each.error:
                    raise library().KafkaException(each.error)
            return [None if each.offset < 0 else str(each.metadata or "") for each in found]

        try:
            return retry(_passes, seconds, ask)
        except library().KafkaException as error:
            raise self.failure(error.args[0], f"the mark in group {self._slot.name!r} could not be read") from error

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions.

        Raises:
            UnknownTopic: the topic is not there.
            SinkError, Refused: it is not known.
        """

        def ask(left_s: float) -> int:
            found = self.consumer.list_topics(topic, min(max(left_s, 0.5), _TRY_S)).topics[topic]
            if found.error is not None:
                raise library().KafkaException(found.error)
            return len(found.partitions)

        try:
            return retry(_passes, self._slot.timeout_s, ask)
        except library().KafkaException as error:
            if judge(error.args[0]) in {CodeVerdict.UNKNOWN_TOPIC, CodeVerdict.NOT_SEEN}:
                raise UnknownTopic(f"{self._slot.brokers} has no topic {topic}") from error
            raise self.failure(error.args[0], f"topic {topic}") from error

    def failure(self, error: Any, what: str) -> OffsetkeeperError:
        """Return the error for a failure after which surely nothing was written."""
        while (event := self.consumer.poll(0)) is not None:  # this reports a consumer that may not use its group
            self.reports.append(event.error())
        told = next((each for each in (error, *self.reports) if judge(each) is CodeVerdict.REFUSED), error)
        reasons = [report.str() for report in self.reports if report.name() != NO_REASON]
        text = redact("; ".join(dict.fromkeys([told.str(), *reasons[-1:]])), self._slot.options)
        where = f"{self._slot.brokers}: {what}: {told.name()}: {text}. Nothing was written"
        verdict = judge(told)
        if verdict is CodeVerdict.REFUSED:
            return Refused(f"{where}. The page on rights lists what is needed")
        if told.name() == TOO_LONG:
            ms = self._slot.options.get(_TIMEOUT, _TIMEOUT_MS)
            return Refused(f"{where}. {_TIMEOUT}={ms} is above the brokers' transaction.max.timeout.ms")
        if told.name() == LONG_TEXT:
            return Refused(
                f"{where}. Raise offset.metadata.max.bytes of the brokers to 4096, as it comes; or allow "
                "DESCRIBE_CONFIGS on the cluster, so that Topic(…) sees it and writes shorter texts"
            )
        if told.name() in TOO_LARGE:
            return RowMismatch(
                f"{where}. Raise message.max.bytes in kafka={{…}} of Topic(…), and max.message.bytes of the topic"
            )
        if told.name() in OF_RECORD:
            return RowMismatch(where)
        return SinkMismatch(where) if verdict is CodeVerdict.INVALID else SinkError(where)


class Turn:
    """A producer for one transaction in a slot.

    Args:
        slot: the slot.
        writes: whether it gets any messages.
    """

    def __init__(self, slot: Slot, *, writes: bool = True) -> None:
        self._slot = slot
        self._look = _Look(slot)
        self._failed: list[Any] = []
        self._empty = 0  # looks in a row at a queue without room that was empty
        with _telling_no_token():
            self._producer = open_transactional(
                slot.brokers,
                {_TIMEOUT: _TIMEOUT_MS, **_QUICKLY, **slot.options},
                slot.name,
                self._look.reports.append,
                self._failed.append,
                self._look.consumer.consumer_group_metadata,
                writes=writes,
            )

    def take(self) -> str | None:
        """Take the slot: the producer before can no longer write. Return the text of the last transaction, or None.

        Raises:
            SinkError, Refused: the slot could not be taken, or its text could not be read.
        """
        limits = [_TRY_S] if is_on(self._slot.options) else []  # then it is heard if a certificate is not accepted

        def begin(left_s: float) -> None:
            self._producer.init_transactions(max(min(left_s, limits.pop() if limits else left_s), 0.5))

        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._look.connect)
            with suppress(library().KafkaException):
                # A client without a connection looks for its coordinator only each half second.
                self._producer.connect(_CONNECT_S)
            try:
                retry(self._may_begin, self._slot.timeout_s, begin)
            except library().KafkaException as error:
                raise self._failure(error.args[0]) from error
        return self._look.said(self._slot.timeout_s)

    def _may_begin(self, error: Exception) -> bool:
        self._producer.poll(0)
        return _passes(error) and not any(judge(each) is CodeVerdict.REFUSED for each in self._look.reports)

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions.

        Raises:
            UnknownTopic: the topic is not there.
            SinkError, Refused: it is not known.
        """
        return self._look.partitions(topic)

    def rehearse(self, messages: Iterable[Rows]) -> None:
        """Write messages in a transaction, and abort it; the slot was taken.

        Raises:
            RowMismatch, SinkMismatch, SinkError, Refused: they cannot be written.
        """
        try:
            self._producer.begin_transaction()
            for rows in messages:
                self._producer.send(*rows, self._wait_for_room)
            self._flush()
            self._check()
        except (library().KafkaException, SystemError) as error:
            raise self._failure(([*self._failed, _kafka_error(error)])[0]) from error
        finally:
            self._abort()

    def write(self, messages: Iterable[Rows], saying: Saying, agree: Callable[[], object] = lambda: None) -> None:
        """Write messages and a text in one transaction; the slot was taken, and its text is `saying.before`.

        Args:
            messages: the messages to write.
            saying: the texts before and after.
            agree: called when all is written, before the commit; an error that it raises ends the transaction.

        Raises:
            MarkMoved: another producer has taken the slot; surely nothing was written.
            SinkError: surely nothing was written.
            OutcomeUnknown: the answer to the commit was lost.
        """
        began, committing = monotonic(), False
        try:
            self._producer.begin_transaction()
            for rows in messages:
                self._producer.send(*rows, self._wait_for_room)
            self._flush()
            self._say(saying)
            agree()
            committing = True
            retry(_passes, self._slot.timeout_s, lambda left: self._producer.commit_transaction(max(left, 0.5)))
        except (library().KafkaException, SystemError) as error:
            self._settle(_kafka_error(error), saying, monotonic() - began, committing=committing)
        except BaseException:
            self._abort()
            raise

    def _wait_for_room(self) -> None:
        # An empty queue may have become so since it was full.
        self._empty = 0 if len(self._producer) else self._empty + 1
        if self._empty == _EMPTY:
            raise self._no_room()
        self._producer.poll(0.01)
        self._check()

    def _no_room(self) -> RowMismatch:
        return RowMismatch(
            f"{self._slot.brokers}: a message is larger than queue.buffering.max.kbytes. Nothing was written. Raise it "
            "in kafka={…} of Topic(…)"
        )

    def _flush(self) -> None:
        while self._producer.flush(1.0):
            self._check()

    def _check(self) -> None:
        if self._failed:
            raise library().KafkaException(self._failed[0])

    def _say(self, saying: Saying) -> None:
        retry(_passes, self._slot.timeout_s, lambda left_s: self._send_offset(saying, max(left_s, 0.5)))

    def _send_offset(self, saying: Saying, wait_s: float) -> None:
        slot, texts = self._slot, [saying.text, *filter(None, [saying.about])]
        self._producer.send_offset_to_transaction(slot.topic, saying.offset, texts, slot.name, wait_s)

    def _settle(self, error: Any, saying: Saying, took_s: float, *, committing: bool) -> None:
        """Find out the outcome of the transaction; return if it is done, by this producer or a copy of it."""
        causes = [*self._failed, error]
        told = next((cause for cause in causes if cause.name() in FENCED), causes[0])
        fenced = told.name() in FENCED
        if not fenced and not committing:
            told = self._reason(told, saying)
            self._abort()
            raise self._failure(told)
        try:  # a producer that fenced this one has ended its transaction; otherwise the next turn does
            found = self._look.said(self._slot.timeout_s) if fenced else Turn(self._slot, writes=False).take()
        except (SinkError, Refused) as lost:
            if fenced and not committing:
                raise self._overtaken() from lost  # whatever the mark is: it is not of this producer
            why = redact(told.str(), self._slot.options)
            raise OutcomeUnknown(
                f"{self._slot.brokers}: the transaction: {told.name()}: {why}. It is unknown whether the rows are "
                f"written, as the read after it failed too: {str(lost).replace('. Nothing was written', '')}"
            ) from lost
        if found == saying.text:
            return
        limit_ms = self._slot.options.get(_TIMEOUT, _TIMEOUT_MS)
        if fenced and took_s * 1000 >= float(limit_ms):
            raise SinkError(
                f"{self._slot.brokers}: the batch took {took_s:.0f} s to write, and the broker ended its transaction "
                f"after {limit_ms} ms; nothing was written. Raise {_TIMEOUT} in kafka={{…}}, or give max_records"
            )
        if fenced or found != saying.before:
            raise self._overtaken()
        raise self._failure(told)

    def _overtaken(self) -> MarkMoved:
        return MarkMoved(
            f"{self._slot.brokers}: another producer has taken the transactional id {self._slot.name!r}; nothing "
            "was written"
        )

    def _reason(self, error: Any, saying: Saying) -> Any:
        """Return why the transaction has failed if its messages only report that they were given up."""
        try:
            if error.name() in PURGED:  # a failed transaction answers each call with the cause
                self._send_offset(saying, _TRY_S)
        except library().KafkaException as told:
            return told.args[0]
        return error

    def _abort(self) -> None:
        """Abort the transaction, once the brokers have answered for each message; else the next turn ends it.

        The client would take a message that it must send again out of its queue, and abort. If a connection has broken,
        the first copy may arrive after that. A broker that does not verify it then (KIP-890) counts it in the next
        transaction. The next turn ends an open transaction with a new epoch, which fences the copy.
        """
        with suppress(library().KafkaException, SystemError):
            if not self._producer.flush(_ABORT_S):
                self._producer.abort_transaction(_ABORT_S)

    def _failure(self, error: Any, what: str = "") -> OffsetkeeperError:
        return self._look.failure(error, what or f"transactional id {self._slot.name!r}")


@contextmanager
def _telling_no_token() -> Iterator[None]:
    try:
        yield
    except TokenUnavailable as error:  # may pass, unlike a wrong setting
        raise SinkError(f"{error}. Nothing was written") from None


def _passes(error: Exception) -> bool:
    return isinstance(error, library().KafkaException) and (judge(error.args[0]).passes or error.args[0].retriable())


def _kafka_error(error: BaseException) -> Any:
    """Return librdkafka's error. A callback during a fatal error turns the error into a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, library().KafkaException):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        raise error
    return cause.args[0]
