"""The store in Kafka itself: `kafka://host:9092,host2:9092`, the committed offsets of the consumer group.

    topic offsetkeeper           compacted, one partition; see `kafka/ledger_log`
        key <group>/<version>/…  a change: all of the ledger, and its history entry
    group <group>                offsets of all its partitions, as every Kafka tool reads them
    group offsetkeeper.<group>   offset, in that topic, of a change that counts: newer changes are searched from there

The topic is the ledger. Kafka has no conditional write, but the records of a partition have one order: of several
changes with the same version, the first one counts, and none of the others is built on. A writer knows the offset of
its record, and reads the records between that offset and the last one that it knew. Before, it looks whether that last
one is still there: a topic may have lost its tail, or was made again, and then be as long as before.

Committed offsets are a copy that is written afterwards. Then the writer checks whether another change was faster, and
if so writes the offsets of the newest change: so the last write is always that of the newest change. Kafka deletes them
after a week without consumers; each run writes all of them with its first change, and once a day.

A transaction over both would need more rights and take longer. And a broker that is killed in the middle of one (tried
with 4.3) may come back with the transaction committed but without the group's part.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException

from offsetkeeper.clients.pool import Lost
from offsetkeeper.clients.url import read_number, read_url
from offsetkeeper.core import environment
from offsetkeeper.core.codec import empty
from offsetkeeper.core.commands import command
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import Position, Positions, TopicPartition, check_topic
from offsetkeeper.core.published import differences, told
from offsetkeeper.core.store import not_changed, version_conflict
from offsetkeeper.errors import (
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.kafka import ledger_log
from offsetkeeper.kafka.consumers import Gone, Mark, Read, can_be_asked, no_consumer_group
from offsetkeeper.kafka.ledger_log import Line
from offsetkeeper.kafka.replication import KafkaFacts, Severity, replication
from offsetkeeper.stores.base import BaseStore
from offsetkeeper.stores.group_names import Names
from offsetkeeper.stores.kafka.clients import Clients

log = logging.getLogger(__name__)
_TOPIC = "offsetkeeper"
_CONFIG = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",  # whatever the brokers have
    "segment.bytes": "16777216",  # the first start of a group reads all records that are not compacted yet
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_LARGEST = "1000000"  # bytes: librdkafka's message.max.bytes, a little less than the brokers' limit
_OVERHEAD = 1_024  # bytes of a message without its value
_WHOLE_EVERY_S = 86_400.0
_LOOKS = 10
_NOTHING = Read([], 0, None)
_POINTER_EVERY = 10  # versions; a start reads the records since
# librdkafka drops spaces at the beginning, and the process dies if nothing is left. Older releases of it could not
# commit for groups with characters other than ASCII.
NAMES = Names(re.compile("^ "), quoted=re.compile("[^ -~]"))
_POINTERS = Names(re.compile("/"))  # so that none is a group of `Topic`, offsetkeeper.<group>/<output>


class _Seen(NamedTuple):
    """The known state of a group.

    Attributes:
        head: the newest line that counts, or None.
        end: offset up to which the topic was read.
        last: the last record of any group before `end`, or None if there is none.
        snapshot: the ledger in `head`.
    """

    head: Line | None
    end: int
    last: Mark | None
    snapshot: Snapshot


class KafkaStore(BaseStore):
    """Ledgers in Kafka, with the committed offsets of the group for other programs.

    Args:
        url: `kafka://user:password@host:9092,host2:9092`, with `?topic=` (of the ledgers, offsetkeeper), `?prefix=`
            (of the groups' names in Kafka, none), `?history=` (entries kept for each group, 1000), `?timeout=`
            (seconds for one request, 30), and any setting of librdkafka, such as `security.protocol`.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history", "timeout"), own=None)
        super().__init__(read)
        if read.parts.path.strip("/") or read.parts.fragment:
            raise read.error("is not a Kafka store: write kafka://host:9092,host2:9092?topic=…")
        self._topic = _read_topic(read.given.pop("topic", _TOPIC))
        self._prefix = read.given.pop("prefix", "")
        self._clients = Clients(read)
        size = read.given.get("message.max.bytes", _LARGEST)
        self._largest = read_number("message.max.bytes", size, least=2 * _OVERHEAD) - _OVERHEAD
        self._lock = threading.RLock()
        self._checked = False
        self._judged = False
        self._seen: dict[str, _Seen] = {}
        self._counts: Mapping[str, int] = {}  # number of partitions by topic
        self._published: dict[str, float] = {}  # when all offsets of a group were written, by `environment.monotonic`

    def load(self, group: str) -> Snapshot:
        """See `Store.load`.

        Raises:
            Refused: the name is that of a share group.
        """
        with self._lock, self._translated(f"group {group!r}"):
            seen = self._look(group)
            if seen.head is not None:
                return seen.snapshot
            found = self._committed(self._name(group)) or self._committed_by_others(group)
            if not found and not self._clients.is_consumer_group(self._name(group)):
                raise no_consumer_group(self._name(group))
        return empty(group, {tp: Position(offset) for tp, offset in found.items()})

    def apply(self, change: Change) -> None:
        """See `Store.apply`.

        Raises:
            Refused: the group has consumers, or Kafka has an offset of a partition that is new to the ledger, or the
                ledger is larger than a message may be; nothing was written.
        """
        group, line = change.after.group, self._line(change)
        with self._lock:
            with self._translated(f"group {group!r} was not changed"):
                seen = self._look(group)
                if not change.builds_on(seen.snapshot):
                    raise self._conflict(change, seen)
                if group not in self._published:
                    self._check(group)
                self._check_new(change, seen)
                old = self._old(change)
            self._append(change, seen, line._replace(previous=seen.head.token if seen.head else ""), old)
            self._publish(group, change.moves)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`. The whole topic is read."""
        with self._lock, self._translated(f"group {group!r}"):
            lines = self._lines(group)
        head = ledger_log.newest(lines)
        found = list(ledger_log.chain(head, lines))[: min(limit, self._settings.history)] if head else []
        return [ledger_log.load_entry(line, self._where(line)) for line in found]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. The whole topic is read."""
        with self._lock, self._translated("the groups"):
            lines = self._clients.consumers.read(self._topic).lines if self._exists() else []
            own = {line.group for line in ledger_log.undeleted(lines).values()}
            others = {name for name in self._clients.groups() if not name.startswith(f"{_TOPIC}.")}
            names = {name for name in own | others if name.startswith(self._prefix)}
            found = {name for name in names if name in own or not can_be_asked(name) or self._committed(name)}
        return sorted({NAMES.group_of(name.removeprefix(self._prefix)) for name in found})

    def published_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of the consumer group, of the partitions in its ledger; see `Publishing`.

        Raises:
            Refused: Kafka refused to tell.
            StoreUnavailable, CorruptStore: see `Store.load`.
        """
        with self._lock, self._translated(f"group {group!r}"):
            return self._offsets(self._look(group).snapshot)

    def kafka_facts(self) -> KafkaFacts:
        """Return the facts about the ledgers' topic and the live brokers, for `offsetkeeper doctor`.

        Raises:
            Refused: Kafka refused to tell.
            StoreUnavailable: Kafka could not be asked.
        """
        with self._lock, self._translated(f"topic {self._topic}"):
            return self._clients.describe(self._topic)

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._seen.clear()
            self._clients.close()

    def _look(self, group: str) -> _Seen:
        """Read the new records of the topic, and return the state of a group.

        The last record that was read is looked at again. If it is not there, the topic has lost its tail or was made
        again, and another run may have filled the place, so nothing that was read before counts.
        """
        seen = self._seen.get(group)
        try:
            head, read = self._follow(group, seen) if seen else self._search(group)
        except Gone:
            self._checked, seen = False, None
            head, read = self._search(group)
        if seen and head is seen.head:
            snapshot = seen.snapshot
        else:
            snapshot = ledger_log.load_snapshot(head, group, self._where(head)) if head else Snapshot(group)
        self._seen[group] = _Seen(head, read.end, read.last, snapshot)
        return self._seen[group]

    def _follow(self, group: str, seen: _Seen) -> tuple[Line | None, Read]:
        read = self._read(group, seen.last or OFFSET_BEGINNING) if self._exists() else _NOTHING
        return self._newest(group, seen.head, read)

    def _search(self, group: str) -> tuple[Line | None, Read]:
        """Return the newest line of a group that counts, for a process that has no state of it yet."""
        if not self._exists():
            return None, _NOTHING
        pointer = TopicPartition(self._topic, 0)
        at = self._clients.consumers.offsets(self._pointer(group), [pointer]).get(pointer)
        with suppress(Gone):
            read = self._read(group, at) if at is not None else _NOTHING
            if read.lines and read.lines[0].offset == at and read.lines[0].value:
                return self._newest(group, read.lines[0], read._replace(lines=read.lines[1:]))
        return self._newest_of_all(group)  # the group's first start, or the pointer has expired

    def _newest(self, group: str, head: Line | None, read: Read) -> tuple[Line | None, Read]:
        """Return the newest line that counts; `head` is the one before what was read."""
        if ledger_log.deletes(head, read.lines):
            return self._newest_of_all(group)
        return ledger_log.newest([head, *read.lines] if head else read.lines), read

    def _newest_of_all(self, group: str) -> tuple[Line | None, Read]:
        read = self._read(group)
        return ledger_log.newest(read.lines), read

    def _read(self, group: str, start: int | Mark = OFFSET_BEGINNING) -> Read:
        return self._clients.consumers.read(self._topic, self._name(group), start)

    def _end(self) -> int:
        return self._clients.consumers.end(self._topic) if self._exists() else 0

    def _append(self, change: Change, seen: _Seen, line: Line, old: Sequence[Line]) -> None:
        group = change.after.group
        with self._translated(f"group {group!r}: the change was not acknowledged", OutcomeUnknown):
            offset = self._clients.append(self._topic, line, old)
            if offset == seen.end:
                last = Mark(offset, line.key.encode())
                self._seen[group] = _Seen(line._replace(offset=offset), offset + 1, last, change.after)
                return
            seen = self._look(group)
        if seen.head is None or seen.head.version < change.after.version:
            raise OutcomeUnknown(
                f"{self.address}: group {group!r}: another program changed its topic; load the group again"
            )
        if seen.head.token != line.token and not self._overtaken(group, seen, line):
            raise self._conflict(change, seen)

    def _overtaken(self, group: str, seen: _Seen, line: Line) -> bool:
        """Return whether the line counts, and newer lines that count exist."""
        if seen.head is None or seen.head.version == line.version:
            return False
        with self._translated(f"group {group!r}: the change was made or not", OutcomeUnknown):
            return any(each.token == line.token for each in ledger_log.chain(seen.head, self._lines(group)))

    def _publish(self, group: str, moved: Collection[TopicPartition] | None = None) -> None:
        """Commit the offsets for other programs: those that moved, or all. The change is already durable."""
        name, seen = self._name(group), self._seen[group]
        whole = moved is None or environment.monotonic() - self._published.get(group, float("-inf")) > _WHOLE_EVERY_S
        try:
            for _ in range(_LOOKS):
                if seen.head is None:
                    return
                every = seen.snapshot.positions
                self._commit(name, every if whole else {tp: every[tp] for tp in moved or () if tp in every})
                if whole or seen.head.version % _POINTER_EVERY == 0:
                    pointer = {TopicPartition(self._topic, 0): seen.head.offset}
                    self._clients.consumers.commit(self._pointer(group), pointer)
                if whole:
                    self._published[group] = environment.monotonic()
                if self._end() == seen.end:
                    return
                version, whole, seen = seen.snapshot.version, True, self._look(group)
                if seen.snapshot.version == version:
                    return
        except (KafkaException, OffsetkeeperError) as error:
            self._published.pop(group, None)
            self._counts = {}
            told = self._clients.failure(error, "its offsets") if isinstance(error, KafkaException) else error
            log.warning("group %r: some offsets are published with the next change only: %s", group, told)

    def _commit(self, name: str, positions: Positions) -> None:
        """Commit offsets of existing partitions: Kafka refuses offsets of others."""
        if any(tp.partition >= self._counts.get(tp.topic, 0) for tp in positions):
            self._counts = self._clients.consumers.partitions()
        there = {tp: at.offset for tp, at in positions.items() if tp.partition < self._counts.get(tp.topic, 0)}
        if there:
            self._clients.consumers.commit(name, there)
        for topic in {tp.topic for tp in positions} - self._counts.keys():
            self._clients.consumers.exists(topic)  # raises an error if the topic may not be described

    def _committed(self, name: str) -> dict[TopicPartition, int]:
        """Return all offsets that are committed for a consumer group in Kafka."""
        topics = self._clients.consumers.partitions().items()
        asked = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
        return self._clients.consumers.offsets(name, asked)

    def _committed_of(self, group: str, asked: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of these partitions that `load` takes over, whatever a broker lists."""
        names = filter(None, (self._name(group), self._others_name(group)))
        found = (self._clients.consumers.offsets(name, asked) for name in names if can_be_asked(name))
        return next(filter(None, found), {})

    def _committed_by_others(self, group: str) -> dict[TopicPartition, int]:
        name = self._others_name(group)
        if not can_be_asked(name):
            if name in self._clients.groups():
                raise Refused(
                    f"{name!r} is a group in Kafka, and its offsets cannot be read: the client library drops white "
                    "space at the beginning of a name, so it would read those of another group. Give the run a group "
                    "with another name, and set its offsets: offsetkeeper reset --from-file"
                )
            return {}
        return self._committed(name) if name else {}

    def _offsets(self, snapshot: Snapshot) -> dict[TopicPartition, int]:
        """Return the offsets committed in Kafka for the partitions of a ledger."""
        return self._clients.consumers.offsets(self._name(snapshot.group), snapshot.positions)

    def _check(self, group: str) -> None:
        """Before the first change of this process: create the topic, and refuse unsafe situations."""
        known = self._seen[group].snapshot
        others = self._others_name(group) if not known.version else ""
        for name in filter(can_be_asked, filter(None, (self._name(group), others))):
            if self._clients.has_members(name, self._topic):
                raise Refused(
                    f"nothing was written: consumers are in Kafka's group {name!r} and commit its offsets. "
                    "Stop them, or give this run another group"
                )
        if not self._exists():
            self._clients.create_topic(self._topic, {**_CONFIG, "max.message.bytes": str(self._largest + 100_000)})
            self._checked = True
        if not self._judged:
            self._judge()
            self._judged = True
        found = differences(known.positions, self._offsets(known))
        if found and self._look(group).snapshot == known:  # else a run that lives has published newer ones
            log.warning("%s", told(group, found))

    def _check_new(self, change: Change, seen: _Seen) -> None:
        """Check that no offset that another program has committed is passed over: brokers that lag list not all topics.

        An operator may pass it over, but not in the first change.
        """
        group, by_run = change.after.group, change.entry.event == "place"
        known = {} if seen.head else dict(change.before.positions)
        if by_run or not seen.head:
            known |= {tp: move.after for tp, move in change.moves.items() if move.before is None}
        found = differences(known, self._committed_of(group, known))
        if not found:
            return
        topic, partition, offset, ours = found[0]
        what = f"Kafka has offset {offset} of {topic} {partition}, which another program has committed"
        if not seen.head:
            raise not_changed(self.address, change, f"{what}, and which was not there when the group was read")
        if self._look(group).head is not seen.head:  # another run has published it
            raise self._conflict(change, self._seen[group])
        way = command("reset", group, f"--topic {topic}:{partition} --to-offset {offset} --execute")
        raise Refused(
            f"{self.address}: group {group!r} was not changed: {what}, and the ledger has no position of it "
            f"({len(found)} partitions are like that). A broker did not list the topic when the group was taken over, "
            f"or it was committed later. The run would begin at {ours} there. Set the position: {way}"
        )

    def _judge(self) -> None:
        """Refuse a topic in which ledgers expire, and warn if the loss of a broker could lose them."""
        facts = self._clients.describe(self._topic)
        if any("delete" in topic.settings.get("cleanup.policy", "") for topic in facts.topics):
            raise Refused(
                f"{self.address}: topic {self._topic} deletes old records, and ledgers with them: "
                "set its cleanup.policy to compact, or use another topic with ?topic="
            )
        for finding in replication(facts):
            if finding.severity is not Severity.NOTE:
                log.warning("%s: the ledgers' %s %s: %s", self.address, finding.where, finding.what, finding.remedy)

    def _exists(self) -> bool:
        self._checked = self._checked or self._clients.consumers.exists(self._topic)
        return self._checked

    def _line(self, change: Change) -> Line:
        group, value = change.after.group, ledger_log.dump_change(change)
        if len(value) > self._largest:
            raise Refused(
                f"{self.address}: group {group!r} was not changed: its ledger has {len(value)} bytes, but a "
                f"message may have {self._largest}. Raise message.max.bytes in the store's URL and max.message.bytes "
                f"of the topic {self._topic}, or spread the topics over several groups"
            )
        return Line(-1, self._name(group), change.after.version, environment.token(), "", value)

    def _old(self, change: Change) -> list[Line]:
        """Return the lines to delete after a change: several at once, because this reads the topic."""
        version, kept = change.after.version, self._settings.history
        if version % max(kept // 10, 1):
            return []
        found = {line.token: line for line in self._lines(change.after.group) if line.version <= version - kept}
        return [line for line in found.values() if line.value]

    def _lines(self, group: str) -> list[Line]:
        """Return all lines of a group."""
        return self._read(group).lines if self._exists() else []

    def _name(self, group: str) -> str:
        return self._prefix + NAMES.name_of(group)

    def _pointer(self, group: str) -> str:
        return f"{_TOPIC}.{self._prefix}{_POINTERS.name_of(NAMES.name_of(group))}"

    def _others_name(self, group: str) -> str:
        """Return the name that another program uses for a group in Kafka, if this store uses another; else empty."""
        return f"{self._prefix}{name}" if (name := NAMES.others_name(group)) else ""

    def _where(self, line: Line) -> str:
        return f"record {line.key} at offset {line.offset} of topic {self._topic} in {self.address}"

    def _conflict(self, change: Change, seen: _Seen) -> VersionConflict:
        """Return the error for a change of another version than the one found, which may be an earlier try of it."""
        if seen.snapshot.change_id == change.after.change_id:  # without its reply, its offsets were not published
            self._publish(change.after.group)
        return version_conflict(self.address, change, seen.snapshot.version)

    @contextmanager
    def _translated(self, what: str, lost: Lost = StoreUnavailable) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._clients.failure(error, what, lost) from error
        except StoreUnavailable as error:
            raise lost(str(error)) from error


def _read_topic(text: str) -> str:
    try:
        return check_topic(text)
    except SettingsError:  # the original message quotes the name
        raise SettingsError(
            "topic in the store's URL is wrong: use 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        ) from None
