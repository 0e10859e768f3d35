"""Transactions of the store in Kafka: who begins to write fences who wrote before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.errors import OutcomeUnknown, SettingsError
from offsetkeeper.model import Positions, TopicPartition
from offsetkeeper.stores.kafka_clients import Clients

_REQUEST = 2_000  # offsets in one request: the broker writes those of a request as one batch, of at most 1 MiB
_WHOLE_EVERY = 86_400.0  # seconds; offsets that do not move for a week would expire
_GRACE = 1.0  # seconds, for librdkafka to keep its own limit
_ABORT = 2.0  # seconds; what is not aborted by then ends with the next writer, or by the broker's own limit
_FENCED = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
}


class Overtaken(Exception):
    """Another producer has fenced this one.

    Attributes:
        committing: whether the commit was under way, so that it may have been done.
    """

    def __init__(self, *, committing: bool) -> None:
        super().__init__()
        self.committing = committing


@dataclass
class Claim:
    """The right to write for a group, until somebody else begins to.

    Attributes:
        producer: of the transactions.
        group, pointer: how a transaction names the group, and the one whose offset leads to the ledger.
        version: of the ledger, as long as nobody else writes.
        published: when all offsets were last written, by `time.monotonic`.
    """

    producer: Any
    group: Any
    pointer: Any
    version: int
    published: float = float("-inf")


class Transactions:
    """The transactions of one store.

    Args:
        clients: of the cluster.
        topic: of the ledgers.
    """

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic
        self._partitions: Mapping[str, int] = {}
        # A transaction that takes longer than its own limit is ended by the broker: no use to wait for it.
        self._limit = min(clients.timeout, int(clients.options["transaction.timeout.ms"]) / 1000)

    def claim(self, name: str, pointer: str, version: int) -> Claim:
        """Fence whoever else writes for Kafka's group `name`, and return when its last transaction is over.

        Args:
            name: of the group.
            pointer: name of the group whose offset leads to the ledger; also the transactional id.
            version: of the ledger, to be checked after this.

        Raises:
            Overtaken: somebody else has done the same at the same time.
            SettingsError: consumers are in the group.
            KafkaException: no success within the time limit.
        """
        if members := self._clients.members(name):
            raise SettingsError(
                f"nothing was written: {members} consumers are in Kafka's group {name!r} and commit its offsets. "
                "Stop them, or give this run another group"
            )
        try:
            producer = self._clients.producer(pointer)
        except KafkaException as error:
            if error.args[0].name() in _FENCED:
                raise Overtaken(committing=False) from error
            raise
        return Claim(
            producer, self._clients.consumers.membership(name), self._clients.consumers.membership(pointer), version
        )

    def write(
        self, claim: Claim, records: Mapping[str, bytes], positions: Positions, moved: Iterable[TopicPartition]
    ) -> None:
        """Write records and offsets in one transaction. After an error the claim is not used again.

        Args:
            claim: whose version grows by one.
            records: by key, for the store's topic; the last is the ledger.
            positions: all of the group's.
            moved: the partitions whose offset is to be written. All are, where that was long ago.

        Raises:
            Overtaken: somebody else has claimed the group; nothing was written, unless that was while committing.
            StoreUnavailable: surely not written.
            OutcomeUnknown: the commit was not answered.
        """
        now = time.monotonic()
        whole = now - claim.published > _WHOLE_EVERY
        rows = self._existing(positions if whole else {tp: positions[tp] for tp in moved})
        committing = False
        try:
            _limited(lambda: self._fill(claim, records, rows), self._limit)
            committing = True
            _limited(lambda: claim.producer.commit_transaction(self._limit), self._limit)
        except KafkaException as error:
            self._partitions = {}
            raise self._failure(claim.producer, error, committing=committing) from error
        claim.version += 1
        claim.published = now if whole else claim.published

    def _fill(self, claim: Claim, records: Mapping[str, bytes], rows: Sequence[KafkaPartition]) -> None:
        producer, limit = claim.producer, self._limit
        placed: list[tuple[Any, int]] = []
        producer.begin_transaction()
        for key, value in records.items():
            producer.produce(self._topic, value, key, 0, lambda error, at: placed.append((error, at.offset())))
        for start in range(0, len(rows), _REQUEST):
            producer.send_offsets_to_transaction(rows[start : start + _REQUEST], claim.group, limit)
        producer.flush(limit)
        at = KafkaPartition(self._topic, 0, _last(placed, len(records)))
        producer.send_offsets_to_transaction([at], claim.pointer, limit)

    def _existing(self, positions: Positions) -> list[KafkaPartition]:
        """Return the offsets of partitions that exist: Kafka takes none of others, and would be asked in vain."""
        if any(tp.partition >= self._partitions.get(tp.topic, 0) for tp in positions):
            self._partitions = self._clients.consumers.partitions()
        there = {tp: at for tp, at in positions.items() if tp.partition < self._partitions.get(tp.topic, 0)}
        return [KafkaPartition(*tp, position.offset) for tp, position in there.items()]

    def _failure(self, producer: Any, error: KafkaException, *, committing: bool) -> Exception:
        cause, told = error.args[0], self._clients.failure(error, "nothing was written")
        final = isinstance(told, SettingsError)
        if not final and (cause.fatal() or cause.name() in _FENCED):
            return Overtaken(committing=committing)
        if not final and committing and not cause.txn_requires_abort():
            return self._clients.failure(error, "the commit was not answered", OutcomeUnknown)
        with suppress(KafkaException):
            _limited(lambda: producer.abort_transaction(_ABORT), _ABORT)
        return told


def _limited(call: Callable[[], object], limit: float) -> None:
    """Call with a time limit of our own: librdkafka 2.16 may wait for ever where its broker was started again."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again below
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="kafka-transaction", daemon=True).start()
    try:
        done.result(limit + _GRACE)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - how librdkafka names it


def _last(placed: Sequence[tuple[Any, int]], count: int) -> int:
    """Return the offset of the last record, when all are there."""
    for error, _ in placed:
        if error:
            raise KafkaException(error)
    if len(placed) < count:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - how librdkafka names it
    return placed[-1][1]
