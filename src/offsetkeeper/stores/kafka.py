"""The store in Kafka itself: `kafka://host:9092,host2:9092`, the committed offsets of the consumer group.

    group <group>                offsets of all its partitions, as every Kafka tool reads them
    topic offsetkeeper           compacted, one partition
        key <group>              the ledger, see `document`
        key <group>/<slot>       a history entry; its slot is its version modulo `history`
    group offsetkeeper.<group>   offset, in that topic, of the ledger's newest record

The ledger is the truth and the group's offsets are a copy: Kafka drops offsets of groups without members after a week,
and has no way to commit an offset only if it is what it was. All of it changes in one transaction. Its transactional id
is `offsetkeeper.<group>`: who begins to write fences, at the broker, whoever wrote before, and only then looks whether
the ledger is still the one it knows. Nobody can change it afterwards without fencing in turn.
"""

from __future__ import annotations

import logging
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import quote, unquote, urlsplit

from confluent_kafka import KafkaException

from offsetkeeper.control import empty, load_entry
from offsetkeeper.errors import OutcomeUnknown, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.model import Change, Entry, Position, Snapshot, TopicPartition, check_topic
from offsetkeeper.store import Ability, without_credentials
from offsetkeeper.stores.kafka_clients import Clients
from offsetkeeper.stores.kafka_consumers import Record
from offsetkeeper.stores.kafka_records import dump_records, load_entries, load_ledger
from offsetkeeper.stores.kafka_transactions import Claim, Overtaken, Transactions
from offsetkeeper.stores.settings import read_settings

log = logging.getLogger(__name__)
_SHARED = ("history", "timeout")
_TOPIC = "offsetkeeper"
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",  # what is not compacted yet is read by the first start of a group
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_LARGEST = 1_000_000  # bytes: librdkafka's message.max.bytes, and a little less than the brokers' own
_OVERHEAD = 512  # bytes of a message beside its value
_PRODUCERS = 4  # kept, one for each group
_TRIES = 30
_PATIENCE = 1.0  # seconds, for a transaction that somebody else has open
# librdkafka sends no offsets for groups with other characters; the percent sign stands for them here.
_UNSAFE = re.compile("[^ -~]|%")


class KafkaStore:
    """Ledgers in Kafka, with the group's committed offsets as others know them.

    Args:
        url: `kafka://user:password@host:9092,host2:9092`, with `?topic=` (of the ledgers, offsetkeeper), `?prefix=`
            (of the groups' names in Kafka, none), `?history=` (entries kept for each group, 1000), `?timeout=`
            (seconds for one request, 30), and any setting of librdkafka, such as `security.protocol`.

    Raises:
        SettingsError: the URL is wrong.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: str) -> None:
        self.address = without_credentials(url)
        parts = urlsplit(url)
        if parts.path.strip("/") or parts.fragment:
            raise SettingsError(f"{self.address} is no Kafka store: write kafka://host:9092,host2:9092?topic=…")
        self._settings, options = read_settings(parts.query.replace("+", "%2B"), _SHARED)
        self._topic = check_topic(options.pop("topic", _TOPIC))
        self._prefix = options.pop("prefix", "")
        self._clients = Clients(url, self.address, self._settings.timeout, options)
        self._largest = int(options.get("message.max.bytes", _LARGEST)) - _OVERHEAD
        self._lock = threading.Lock()
        self._transactions = Transactions(self._clients, self._topic)
        self._claims: dict[str, Claim] = {}
        self._checked = False

    def __repr__(self) -> str:
        return f"KafkaStore({self.address!r})"

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        with self._translated(group):
            snapshot, _ = self._look(group)
            return snapshot or empty(group, {tp: Position(at) for tp, at in self._committed(self._name(group)).items()})

    def apply(self, change: Change) -> None:
        """See `Store.apply`.

        Raises:
            SettingsError: consumers are in the group, or the ledger is larger than a message may be; nothing was
                written.
        """
        writer = secrets.token_hex(8)
        records = self._records(change, writer)
        doubt = False  # whether the change may be written already
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return self._try(change, writer, records, doubt=doubt)
                except Overtaken as overtaken:
                    doubt = doubt or overtaken.committing
                except (StoreUnavailable, SettingsError) as error:
                    if doubt:
                        raise OutcomeUnknown(f"{error}; an earlier try may have been written") from error
                    raise
                time.sleep(random.uniform(0, 0.2))  # noqa: S311 - no secret
        what = f"{self.address}: group {change.after.group!r}: other producers keep fencing this one"
        raise OutcomeUnknown(what) if doubt else StoreUnavailable(what)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`. The whole topic is read."""
        with self._translated(group):
            snapshot, _ = self._look(group)
            newest = snapshot.version if snapshot else 0
            entries = self._entries(group, newest) if newest else {}
        oldest = max(newest - min(limit, self._settings.history), 0)
        where = f"topic {self._topic} in {self.address}, group {group!r},"
        return [load_entry(entries[at][1], at, where) for at in range(newest, oldest, -1) if at in entries]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. The whole topic is read."""
        with self._translated():
            own = {key.decode("utf-8", "replace") for key in self._newest(lambda key: b"/" not in key)}
            others = {name for name in self._clients.groups() if not name.startswith(f"{_TOPIC}.")}
            names = {name for name in own | others if name.startswith(self._prefix)}
            found = {name for name in names if name in own or self._committed(name)}
        return sorted(unquote(name.removeprefix(self._prefix)) for name in found)

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._claims.clear()
            self._clients.consumers.close()

    def _look(self, group: str, limit: float | None = None) -> tuple[Snapshot | None, str]:
        """Return a group's ledger and who wrote it, or None. The newest record is found without reading the others."""
        name = self._name(group)
        pointer = TopicPartition(self._topic, 0)
        offset = self._clients.consumers.offsets(f"{_TOPIC}.{name}", [pointer], limit).get(pointer)
        record = self._clients.consumers.record(self._topic, offset) if offset is not None else None
        if record is None or record.key != name.encode():  # the group's first start, or a pointer that expired
            record = self._newest(name.encode().__eq__).get(name.encode())
        if record is None:
            return None, ""
        where = f"topic {self._topic} in {self.address}, offset {record.offset}, group {group!r},"
        return load_ledger(record.value, group, where)

    def _newest(self, wanted: Callable[[bytes], bool], *, committed: bool = True) -> dict[bytes, Record]:
        if not self._checked and self._topic not in self._clients.consumers.partitions():
            return {}
        return self._clients.consumers.newest(self._topic, wanted, committed=committed)

    def _try(self, change: Change, writer: str, records: Mapping[str, bytes], *, doubt: bool) -> None:
        group = change.after.group
        claim = self._claims.get(group)
        if claim is None or claim.version != change.before.version:
            claim = self._claim(change, writer, doubt=doubt)
        if claim is None:
            return
        self._claims.pop(group, None)
        self._transactions.write(claim, records, change.after.positions, change.moves)
        self._claims[group] = claim
        if len(self._claims) > _PRODUCERS:
            self._claims.pop(next(iter(self._claims)))

    def _committed(self, name: str) -> dict[TopicPartition, int]:
        """Return all that any program has committed for a group of Kafka's."""
        topics = self._clients.consumers.partitions().items()
        asked = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
        return self._clients.consumers.offsets(name, asked)

    def _claim(self, change: Change, writer: str, *, doubt: bool) -> Claim | None:
        """Fence all other writers of the group; return None where an earlier try of the change has landed."""
        name = self._name(change.after.group)
        with self._translated(change.after.group):
            self._check_topic()
            try:  # a stale writer is to fence nobody
                if self._check(change, writer, doubt=doubt, limit=_PATIENCE):
                    return None
            except KafkaException:  # perhaps a transaction is open, and its owner dead: fencing ends it
                log.debug("group %r: not known whether its ledger has changed; others are fenced first", name)
            claim = self._transactions.claim(name, f"{_TOPIC}.{name}", change.before.version)
            return None if self._check(change, writer, doubt=doubt) else claim

    def _check(self, change: Change, writer: str, *, doubt: bool, limit: float | None = None) -> bool:
        """Check that the ledger is what it was; return whether, where in doubt, the change is written already."""
        group, before, after = change.after.group, change.before.version, change.after.version
        snapshot, found_writer = self._look(group, limit)
        found = snapshot.version if snapshot else 0
        if found == before:
            return False
        if doubt and writer in {found_writer, self._entries(group, found).get(after, ("", ""))[0]}:
            return True
        raise VersionConflict(
            f"{self.address}: group {group!r} was not changed: it is at version {found}, not {before}"
        )

    def _check_topic(self) -> None:
        """Make the topic, and refuse one in which ledgers would expire."""
        if self._checked:
            return
        if self._topic not in self._clients.consumers.partitions():
            self._clients.create_topic(self._topic, {**_CONFIG, "max.message.bytes": str(self._largest + 100_000)})
        if "delete" in self._clients.topic_config(self._topic).get("cleanup.policy", ""):
            raise SettingsError(
                f"{self.address}: topic {self._topic} deletes old records, and with them ledgers: "
                "set its cleanup.policy to compact, or name another by ?topic="
            )
        self._checked = True

    def _records(self, change: Change, writer: str) -> Mapping[str, bytes]:
        records = dump_records(change, self._name(change.after.group), writer, self._settings.history)
        if (size := max(map(len, records.values()))) > self._largest:
            raise SettingsError(
                f"{self.address}: group {change.after.group!r} was not changed: its ledger takes {size} bytes, and a "
                f"message may have {self._largest}. Raise message.max.bytes in the store's URL and max.message.bytes "
                f"of the topic {self._topic}, or spread the topics over several groups"
            )
        return records

    def _entries(self, group: str, newest: int) -> Mapping[int, tuple[str, str]]:
        """Return, by version, who wrote each entry, and the entry.

        Also of transactions that were aborted: they are of later versions, or followed by the one that was not.
        """
        start = f"{self._name(group)}/".encode()
        found = self._newest(lambda key: key.startswith(start), committed=False)
        return load_entries((record.value for record in found.values()), newest)

    def _name(self, group: str) -> str:
        return self._prefix + _UNSAFE.sub(lambda found: quote(found[0], safe=""), group)

    @contextmanager
    def _translated(self, group: str = "") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._clients.failure(error, f"group {group!r}" if group else "the groups") from error
