"""The control record and the history entry of a group as JSON: the same text in every store.

They do not have the positions: these are the store's own rows, in the layout that other programs know.

Format 4 (this one) has the target of each output in `landed`, and counts void marks there. It names in `holds` the
partitions that have a position, as "0-11,14" for each topic. `clusters` has these by the id of their Kafka cluster, as
far as it is known, and "*" instead of them where all are in one. `given` has digests of the offsets that starts were
given, with spaces between. The pending batch has in `program` what its program reads, and what each output writes to.
`queries` has the number of the next batch of each query with state, and its pending batch the number in `query`;
`watermark_ms` is the watermark of the last batch of such a query, and of a pending one, left out without one; ledgers
without it count these batches as positions, see `query_rows`. `outputs` has what the last run writes to, and `partly`
the topics of which it reads chosen partitions, left out without one. `forgotten` has the offsets of rows that no longer
count. Format 3 has `unsettled`, the pending batch's `lands_in`, and only the sequence in `landed`. Format 2 has `token`
in the pending batch and in history entries. In format 1 the generation named a batch; it is read as the token, so a
pending batch of that time keeps its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from offsetkeeper.core.batch import Batch, Output, Program, QueryBatch, check_query
from offsetkeeper.core.model import Count, Counts, Cuts, Entry, Having, Landed, Move, Owner, Snapshot
from offsetkeeper.core.offsets import (
    NO_POSITIONS,
    OffsetRange,
    Position,
    Positions,
    TopicPartition,
    by_topic,
    check_offset,
    check_partition,
    digest_of,
)
from offsetkeeper.core.outside import LONGEST, TooManyValues, check_values, load_stored, reason, short_text
from offsetkeeper.core.query_rows import split_moves, split_positions, split_ranges
from offsetkeeper.errors import CorruptStore, Refused, SettingsError

FORMAT = 4
_FORMAT_OF_TARGETS = 4
MOST_PARTITIONS = 1_000_000
"""Partitions of a group: some bytes of text name any number of them."""
_ALL = "*"
_SPAN = re.compile("([0-9]{1,10})(?:-([0-9]{1,10}))?")
_VERSION = re.compile("[0-9]{1,19}")
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: no calendar can show later times."""
GARBAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # errors that reading a record can raise


def dump_control(snapshot: Snapshot) -> str:
    """Return `snapshot` without group, version and positions as one line of JSON."""
    return dump(control_fields(snapshot))


def control_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return the content of `dump_control` as plain values.

    Raises:
        Refused: there are too many partitions, so it could not be read again.
    """
    if (count := len(snapshot.positions) + len(snapshot.missing) + len(snapshot.forgotten)) > MOST_PARTITIONS:
        raise Refused(
            f"the ledger was not written: it has {count:,} partitions, and a group has {MOST_PARTITIONS:,} at most. "
            "Give some of its topics a group of their own"
        )
    owner, pending, unsettled = snapshot.owner, snapshot.pending, snapshot.unsettled
    fields: dict[str, Any] = {
        "format": snapshot.format or FORMAT,
        "owner": None if owner is None else {"id": owner.id, "epoch": owner.epoch, "name": owner.name},
        "epoch": snapshot.epoch,
        "generation": snapshot.generation,
        "sequence": snapshot.sequence,
        "pending": None if pending is None else _pending(pending),
        "change_id": snapshot.change_id,
        "landed": {name: [*landed] for name, landed in snapshot.landed.items()},
        "unsettled": None if unsettled is None else {**_pending(unsettled), "sequence": unsettled.sequence},
    }
    if unsettled is not None and fields["format"] >= _FORMAT_OF_TARGETS:
        fields["unsettled"]["moved"] = [[*tp] for tp in unsettled.moved]
    if fields["format"] < _FORMAT_OF_TARGETS:
        return {**fields, "landed": {name: found.sequence for name, found in snapshot.landed.items()}}
    return {
        **fields,
        "queries": dict(snapshot.queries),
        **({} if snapshot.watermark_ms is None else {"watermark_ms": snapshot.watermark_ms}),
        **({"outputs": {name: [*each] for name, each in snapshot.outputs.items()}} if snapshot.outputs else {}),
        **({"partly": [*snapshot.partly]} if snapshot.partly else {}),
        "holds": _holds([*snapshot.positions, *snapshot.missing]),
        "clusters": _grouped(snapshot.positions, lambda at: at.cluster_id),
        "leader_epochs": _epochs(snapshot.positions),
        "given": " ".join(snapshot.given),
        **({"forgotten": by_topic({tp: at.offset for tp, at in gone.items()})} if (gone := snapshot.forgotten) else {}),
    }


def control_mark(snapshot: Snapshot) -> str:
    """Return a text that is in the control record of this ledger, but not in that of another one at this version."""
    return f'"change_id":{dump(snapshot.change_id)}'


def load_control(text: str, group: str, version: int, positions: Positions, where: str) -> Snapshot:
    """Return the snapshot from a control record and the positions that are stored beside it.

    Args:
        text: the output of `dump_control`.
        group: the consumer group.
        version: version of the ledger.
        positions: the positions, already checked.
        where: the place in the store, for messages.

    Raises:
        CorruptStore: the text is not a control record, or has a newer format.
    """
    try:
        raw = load_stored(_text(text))  # a database may return bytes
    except GARBAGE as error:
        raise _no_control(where, error) from None
    snapshot = read_control(raw, group, version, positions, where)
    if control_mark(snapshot) not in text:  # otherwise it could be read but never changed
        raise CorruptStore(
            f"{where} was edited: write its JSON without spaces, so that it contains {control_mark(snapshot)}"
        )
    return snapshot


def read_control(raw: Any, group: str, version: int, positions: Positions, where: str) -> Snapshot:
    """Return the snapshot from `control_fields`, read back from JSON, and the positions.

    Raises:
        CorruptStore: the fields are not a control record, or have a newer format.
    """
    try:
        if _natural(raw["format"]) > FORMAT:
            raise CorruptStore(
                f"{where} was written by a newer offsetkeeper (format {raw['format']}): upgrade this program"
            )
        sequence = _natural(raw["sequence"])
        pending = _load_pending(raw["pending"], group, sequence)
        missing = _load_missing(raw.get("holds", {}), positions)
        positions, forgotten = _load_forgotten(raw.get("forgotten", {}), positions)
        positions, counted = split_positions(positions)
        return Snapshot(
            group=group,
            version=_natural(version),
            owner=_load_owner(raw["owner"]),
            epoch=_natural(raw["epoch"]),
            generation=_natural(raw["generation"]),
            sequence=sequence,
            positions=_with_epochs(_in_clusters(positions, raw.get("clusters", {})), raw.get("leader_epochs", {})),
            queries=_load_queries(raw["queries"]) if "queries" in raw else counted,
            watermark_ms=_load_watermark(raw),
            outputs={_text(name): Output(*map(_text, each)) for name, each in raw.get("outputs", {}).items()},
            partly=tuple(map(_text, raw.get("partly", ()))),
            pending=pending,
            change_id=_text(raw["change_id"]),
            landed=_load_landed(raw, pending),
            unsettled=_load_unsettled(raw, group),
            missing=missing,
            given=tuple(_text(raw.get("given", "")).split()),
            forgotten=forgotten,
        )
    except GARBAGE as error:
        raise _no_control(where, error) from None


def dump_entry(entry: Entry) -> str:
    """Return a history entry as one line of JSON."""
    return dump(entry_fields(entry))


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return the content of `dump_entry` as plain values."""
    return {
        "event": entry.event,
        "change_id": entry.change_id,
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "reason": entry.reason,
        "epoch": entry.epoch,
        "generation": entry.generation,
        "sequence": entry.sequence,
        "token": entry.token,
        "ranges": _ranges(entry.ranges),
        "moves": [[*tp, _stored(move.before), _stored(move.after)] for tp, move in entry.moves.items()],
        **({"counts": {query: [*count] for query, count in entry.counts.items()}} if entry.counts else {}),
        **({"cuts": [[*tp, at] for tp, at in entry.cuts.items()]} if entry.cuts else {}),
        **({"having": entry.having} if entry.having else {}),
        **({"forgot": [[*tp, _stored(at)] for tp, at in entry.forgot.items()]} if entry.forgot else {}),
        **({"mirror": True} if entry.mirror else {}),
    }


def load_entry(text: str, version: int, where: str) -> Entry:
    """Return the history entry that `dump_entry` wrote.

    Raises:
        CorruptStore: the text is not a history entry.
    """
    try:
        raw = load_stored(_text(text))
    except GARBAGE as error:
        raise _no_entry(where, error) from None
    return read_entry(raw, version, where)


def load_numbered_entry(text: str, where: str) -> Entry:
    """Return the history entry from a text that starts with its version and a space.

    Raises:
        CorruptStore: the text is not a history entry.
    """
    return load_entry(text.partition(" ")[2], version_before(text), where)


def version_before(text: str) -> int:
    """Return the version at the start of a text, before a space; -1 if there is none."""
    number = text.partition(" ")[0]
    return int(number) if _VERSION.fullmatch(number) else -1


def read_entry(raw: Any, version: int, where: str) -> Entry:
    """Return the history entry from `entry_fields`, read back from JSON.

    Raises:
        CorruptStore: the fields are not a history entry.
    """
    try:
        ranges, number = split_ranges(_load_ranges(raw["ranges"]))
        moves, counts = split_moves(_load_moves(raw["moves"]))
        if number is not None and raw["event"] == "commit":
            counts = {number.query: Count(number.number, number.number + 1)}
        return Entry(
            version=_natural(version),
            event=_name(raw["event"]),
            change_id=_name(raw["change_id"]),
            at_ms=_moment(raw["at_ms"]),
            actor=short_text(_text(raw["actor"])),
            reason=short_text(_text(raw["reason"])),
            epoch=_natural(raw["epoch"]),
            generation=_natural(raw["generation"]),
            sequence=_natural(raw["sequence"]),
            token=_name(_load_token(raw)) if "token" in raw or raw["ranges"] else "",
            ranges=ranges,
            moves=moves,
            counts=_load_counts(raw["counts"]) if "counts" in raw else counts,
            cuts=_load_cuts(raw.get("cuts", [])),
            having=Having(raw.get("having", "")),
            forgot=_load_forgot(raw.get("forgot", [])),
            mirror=_flag(raw.get("mirror", False)),
        )
    except GARBAGE as error:
        raise _no_entry(where, error) from None


def load_position(offset: Any, topic_id: Any, where: str) -> Position:
    """Return a position read from a store.

    Raises:
        CorruptStore: a value is not an offset or not a topic id; the message names the place.
    """
    try:
        position = Position(check_offset(offset), topic_id)
    except SettingsError:
        raise CorruptStore(f"{where} holds {_kind(offset)} that is not an offset. {REMEDY}") from None
    if topic_id is not None and not isinstance(topic_id, str):
        raise CorruptStore(f"{where} holds {_kind(topic_id)} that is not a topic id. {REMEDY}")
    return position


def empty(group: str, positions: Positions = NO_POSITIONS) -> Snapshot:
    """Return the ledger of a group without a control record: a new group, or positions of another program."""
    positions, counted = split_positions(positions)
    return Snapshot(group, positions=positions, queries=counted)


REMEDY = "Nothing was changed: correct or delete that record, then start again"


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"


def _no_control(where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where} is not a control record: {reason(error)}. {REMEDY}")


def _no_entry(where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where} is not a history entry: {reason(error)}. {REMEDY}")


def dump(value: Any) -> str:
    """Return a record as one line of JSON, in ASCII, which is safe in every character set.

    Raises:
        Refused: it could not be read again, see `MOST_VALUES`.
    """
    text = json.dumps(value, separators=(",", ":"))
    try:
        check_values(text)
    except TooManyValues as error:
        raise Refused(f"the ledger was not written: {error}. Give some of its topics a group of their own") from None
    return text


def _pending(batch: Batch) -> dict[str, Any]:
    return {
        "token": batch.token,
        "ranges": _ranges(batch.ranges),
        "written": list(batch.written),
        "lands_in": list(batch.lands_in),
        "program": None if batch.program is None else batch.program.as_dict(),
        **({} if batch.query is None else {"query": [*batch.query]}),
        **({} if batch.watermark_ms is None else {"watermark_ms": batch.watermark_ms}),
    }


def _holds(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Return the numbers of each topic's partitions, such as "0-11,14"."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return {topic: _spans(sorted(numbers)) for topic, numbers in sorted(topics.items())}


def _spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text; numbers that follow one another are one span."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        follows = bool(spans) and number == spans[-1][1] + 1
        first = spans.pop()[0] if follows else number
        spans.append((first, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _load_missing(holds: dict[str, str], positions: Positions) -> frozenset[TopicPartition]:
    """Return the partitions that the control record names and that have no position."""
    return frozenset(tp for tp in _named(holds) if tp not in positions)


def _load_forgotten(raw: dict[str, dict[str, Any]], rows: Positions) -> tuple[Positions, Positions]:
    """Return the rows that count, and those that do not. A row that another program has moved since counts again."""
    if not raw:
        return rows, NO_POSITIONS
    offsets = {TopicPartition(topic, _natural(int(p))): at for topic, of in raw.items() for p, at in of.items()}
    same = {tp: rows[tp] for tp, at in offsets.items() if tp in rows and rows[tp].offset == check_offset(at)}
    forgotten = {tp: Position(at.offset, at.topic_id) for tp, at in same.items()}
    return {tp: at for tp, at in rows.items() if tp not in forgotten}, forgotten


_Groups = dict[str, dict[str, str] | str]


def _grouped(positions: Positions, value: Callable[[Position], str | None]) -> _Groups:
    """Return the partitions with each value, as `_holds` does; "*" for all."""
    found: dict[str | None, list[TopicPartition]] = {}
    for tp, at in positions.items():
        found.setdefault(value(at), []).append(tp)
    alone = len(found) == 1
    return {name: _ALL if alone else _holds(there) for name, there in found.items() if name is not None}


def _ungrouped(positions: Positions, raw: _Groups) -> dict[TopicPartition, str]:
    """Return the value of each partition that has one."""
    spans = {name: _spans_of(there) for name, there in raw.items() if there != _ALL}
    _check_most(chain.from_iterable(spans.values()))
    return {tp: _text(name) for name in raw for tp in (_all_of(spans[name]) if name in spans else positions)}


def _in_clusters(positions: Positions, raw: _Groups) -> Positions:
    """Return the positions with the ids of their clusters."""
    known = _ungrouped(positions, raw)
    if not known:
        return positions
    return {tp: at._replace(cluster_id=known.get(tp)) for tp, at in positions.items()}


def _epochs(positions: Positions) -> dict[str, Any]:
    """Return the leader epochs, and a digest of the offsets that they were stored with; empty without epochs."""
    known = {tp: at.offset for tp, at in positions.items() if at.leader_epoch is not None}
    if not known:
        return {}
    epochs = _grouped(positions, lambda at: None if at.leader_epoch is None else str(at.leader_epoch))
    return {"of": digest_of(known), "in": epochs}


def _with_epochs(positions: Positions, raw: dict[str, Any]) -> Positions:
    """Return the positions with their leader epochs; without, if another program has edited an offset since."""
    found = {tp: _epoch(text) for tp, text in _ungrouped(positions, raw["in"]).items()} if raw else {}
    known = {tp: epoch for tp, epoch in found.items() if tp in positions}
    if not known or digest_of({tp: positions[tp].offset for tp in known}) != _text(raw["of"]):
        return positions
    return {tp: at._replace(leader_epoch=known.get(tp)) for tp, at in positions.items()}


def _epoch(text: str) -> int:
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a leader epoch")
    return int(text)


def _named(holds: Any) -> Iterator[TopicPartition]:
    """Return the partitions that the output of `_holds` names."""
    spans = _spans_of(holds)
    _check_most(spans)
    return _all_of(spans)


def _spans_of(holds: Any) -> list[tuple[str, range]]:
    return [(_text(topic), _span(span)) for topic, texts in holds.items() for span in _text(texts).split(",")]


def _all_of(spans: Iterable[tuple[str, range]]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for topic, numbers in spans for number in numbers)


def _check_most(spans: Iterable[tuple[str, range]]) -> None:
    """Check the number of partitions before there is one of them: a few bytes may name any number."""
    if sum(len(numbers) for _, numbers in spans) > MOST_PARTITIONS:
        raise ValueError("it names more partitions than a group can have")


def _span(text: str) -> range:
    found = _SPAN.fullmatch(text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if not first <= last < first + MOST_PARTITIONS:
        raise ValueError(f"{text!r} is not a span of partitions")
    return range(first, last + 1)


def _ranges(ranges: tuple[OffsetRange, ...]) -> dict[str, list[list[int]]]:
    topics: dict[str, list[list[int]]] = {}
    for topic, partition, start, end in ranges:
        topics.setdefault(topic, []).append([partition, start, end])
    return topics


def _load_owner(raw: dict[str, Any] | None) -> Owner | None:
    return None if raw is None else Owner(_text(raw["id"]), _natural(raw["epoch"]), _text(raw["name"]))


def _load_pending(raw: dict[str, Any] | None, group: str, sequence: int) -> Batch | None:
    if raw is None:
        return None
    ranges, query = split_ranges(_load_ranges(raw["ranges"]))
    query = _load_query(raw["query"]) if "query" in raw else query
    if not ranges and query is None:
        raise ValueError("the pending batch has no ranges")
    return Batch(
        group,
        _load_token(raw),
        sequence,
        ranges,
        written=_names(raw, "written"),
        lands_in=_names(raw, "lands_in"),
        program=_load_program(raw.get("program")),
        query=query,
        watermark_ms=_load_watermark(raw),
    )


def _load_watermark(raw: dict[str, Any]) -> int | None:
    return None if raw.get("watermark_ms") is None else _natural(raw["watermark_ms"])


def _load_query(raw: list[Any]) -> QueryBatch:
    query, number = raw
    return QueryBatch(check_query(query), _natural(number))


def _load_queries(raw: dict[str, Any]) -> dict[str, int]:
    return {check_query(query): _natural(number) for query, number in raw.items()}


def _load_counts(raw: dict[str, list[Any]]) -> Counts:
    return {
        check_query(query): Count(None if before is None else _natural(before), _natural(after))
        for query, (before, after) in raw.items()
    }


def _load_cuts(raw: list[Any]) -> Cuts:
    return {
        check_partition(TopicPartition(topic, partition)): -1 if at == -1 else check_offset(at)
        for topic, partition, at in raw
    }


def _load_forgot(raw: list[Any]) -> dict[TopicPartition, Position | None]:
    return {
        check_partition(TopicPartition(topic, number)): None if at is None else _load_stored(at)
        for topic, number, at in raw
    }


def _load_program(raw: dict[str, Any] | None) -> Program | None:
    return None if raw is None else Program(_names(raw, "topics"), _texts(raw["outputs"]), _texts(raw["places"]))


def _load_landed(raw: dict[str, Any], pending: Batch | None) -> dict[str, Landed]:
    """Return the last batch in each output. Before format 4 a pending batch that an output has is not in `landed`."""
    stored = {_text(name): _landed(found) for name, found in raw.get("landed", {}).items()}
    if pending is None or raw["format"] >= _FORMAT_OF_TARGETS:
        return stored
    return stored | {name: Landed(pending.sequence) for name in pending.written if name in pending.lands_in}


def _landed(found: Any) -> Landed:
    if not isinstance(found, list):
        return Landed(_natural(found))
    sequence, target = found
    return Landed(_natural(sequence), _text(target))


def _load_unsettled(raw: dict[str, Any], group: str) -> Batch | None:
    """Return the unsettled batch. Before format 4 it is not known which of its partitions were moved: it may be all."""
    found = raw.get("unsettled")
    batch = None if found is None else _load_pending(found, group, _natural(found["sequence"]))
    if found is None or batch is None:
        return None
    if "moved" not in found:
        return replace(batch, moved=tuple(sorted(batch.partitions)))
    return replace(batch, moved=tuple(sorted({check_partition(TopicPartition(*pair)) for pair in found["moved"]})))


def _names(raw: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_text(name) for name in raw.get(key, ()))


def _texts(raw: dict[str, Any]) -> dict[str, str]:
    return {_text(name): _text(each) for name, each in raw.items()}


def _load_token(raw: dict[str, Any]) -> str:
    """Return the token of a batch; in format 1 this was its generation."""
    return _text(raw["token"]) if "token" in raw else str(_natural(raw["generation"]))


def _load_ranges(raw: dict[str, list[list[int]]]) -> tuple[OffsetRange, ...]:
    if sum(map(len, raw.values())) > MOST_PARTITIONS:
        raise ValueError("it has more ranges than a group can have partitions")
    return tuple(_load_range(topic, *numbers) for topic, ranges in raw.items() for numbers in ranges)


def _load_range(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    check_partition(TopicPartition(topic, partition))
    if check_offset(start) >= check_offset(end):
        raise ValueError(f"the range {topic} {partition} {start} {end} is empty or runs backwards")
    return OffsetRange(topic, partition, start, end)


def _load_moves(raw: list[Any]) -> dict[TopicPartition, Move]:
    return {
        check_partition(TopicPartition(topic, partition)): Move(
            None if before is None else _load_stored(before), _load_stored(after)
        )
        for topic, partition, before, after in raw
    }


def _stored(position: Position | None) -> list[Any] | None:
    """Return offset and topic id, and the id of the cluster where it is known. No step back needs a leader epoch."""
    if position is None:
        return None
    return [*position[:3]] if position.cluster_id is not None else [*position[:2]]


def _load_stored(raw: list[Any]) -> Position:
    offset, topic_id, cluster_id = (*raw, None)[:3]
    topic, cluster = (None if each is None else _name(each) for each in (topic_id, cluster_id))
    return Position(check_offset(offset), topic, cluster)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _name(value: Any) -> str:
    """Return a text of which a history has thousands; to cut it would change its meaning."""
    if len(_text(value)) > LONGEST:
        raise ValueError("it has a name that is too long")
    return str(value)


def _moment(value: Any) -> int:
    """Return a time, limited to what a calendar can show: a wrong clock may give any number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a time")
    return int(min(max(value, 0), LATEST_MS))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number of 0 or more")
    return value
