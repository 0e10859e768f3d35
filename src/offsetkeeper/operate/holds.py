"""Which offsets an output holds, by its own metadata; held against each other, and against the ledger of its group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from offsetkeeper.core.batch import DEAD_LETTERS, batch_id
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.core.store import needing_extra
from offsetkeeper.core.urls import is_url, split_url
from offsetkeeper.errors import Refused, listed
from offsetkeeper.sinks.files.folder import HIDDEN, held_batches
from offsetkeeper.sinks.files.local import LocalTree
from offsetkeeper.sinks.held import Held, HeldBatch
from offsetkeeper.sinks.sink import MarkKey
from offsetkeeper.sinks.topic import Topic

_LETTERS = ""  # in the place of a batch
_TIMEOUT_S = 10.0
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class Kind(StrEnum):
    """The kind of a finding."""

    GAP = "gap"
    """Offsets between those that the output has, which no batch of it has."""
    OVERLAP = "overlap"
    """Offsets that more than one batch of the output has: rows are there twice, unless they replace others by key."""
    LACKS = "lacks"
    """Offsets of a batch that the ledger has committed since the output has some, and that the output does not have."""
    AHEAD = "ahead"
    """Offsets that the output has, and that the ledger has not committed."""


class Finding(NamedTuple):
    """Offsets of a partition that do not fit.

    Attributes:
        kind: the kind of the finding.
        topic_partition: the partition.
        start, end: the offsets, half-open.
        batches: of an overlap, the ids of the output's batches that have them.
    """

    kind: Kind
    topic_partition: TopicPartition
    start: int
    end: int
    batches: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" in {', '.join(self.batches)}" if self.batches else ""
        return f"{self.kind} {self.topic_partition} {self.start} {self.end}{where}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        where = self.topic_partition._asdict()
        return {"kind": self.kind, **where, "start": self.start, "end": self.end, "batches": [*self.batches]}


class Spread(NamedTuple):
    """The offsets of one partition in an output.

    Attributes:
        start: the first one.
        end: the one after the last.
        batches: how many batches have some.
    """

    start: int
    end: int
    batches: int


def held_in(place: str, catalog: str = "", options: Mapping[str, str] = NO_OPTIONS) -> Held:
    """Return the batches that an output holds.

    Args:
        place: a path or URI of a Delta table, a path of a folder of `Files`, or the name of an Iceberg table.
        catalog: name of the catalog, if it is an Iceberg table.
        options: options of deltalake, or properties of the catalog for pyiceberg.

    Raises:
        MissingExtra: the package that reads it is not installed.
        Refused, SinkError, MarkError: there is no such output, or it could not be read.
    """
    if catalog:
        found: Held = _reader("iceberg.history", "iceberg").held(place, catalog, options)
        return found
    if is_url(place) and not place.startswith("file://"):
        return _delta(place, options)
    path = Path(unquote(split_url(place).path) if is_url(place) else place).absolute()
    if path.joinpath("_delta_log").is_dir():
        return _delta(str(path), options)
    if path.joinpath(HIDDEN).is_dir():
        return held_batches(LocalTree(str(path)))
    raise Refused(f"{place} is no Delta table, and no folder of Files: give --catalog for an Iceberg table")


def held_in_topic(
    name: str, key: MarkKey, brokers: str, kafka: Mapping[str, str] = NO_OPTIONS, prefix: str = "offsetkeeper"
) -> Held:
    """Return the last batch that the slots of a `Topic` have; older ones are not told.

    Args:
        name: the topic with the marks.
        key: the group and the output.
        brokers: `host:port,host:port`.
        kafka: settings of librdkafka.
        prefix: the `prefix` of `Topic`.

    Raises:
        SettingsError: an argument is wrong.
        Refused, SinkError, MarkError: the marks could not be read.
    """
    return Topic(brokers, name, kafka=kafka, prefix=prefix, timeout_s=_TIMEOUT_S).held(key)


def _delta(address: str, options: Mapping[str, str]) -> Held:
    module = _reader("delta.opened", "delta")
    found: Held = module.held(module.Folder(address, options))
    return found


def _reader(name: str, extra: str) -> Any:
    with needing_extra("this table needs", extra):
        return import_module(f"offsetkeeper.sinks.{name}")


def spreads(held: Iterable[HeldBatch]) -> dict[TopicPartition, Spread]:
    """Return what batches have of each partition, sorted."""
    found: dict[TopicPartition, Spread] = {}
    for _, r in _ranges(held):
        at = found.get(r.topic_partition, Spread(r.start, r.end, 0))
        found[r.topic_partition] = Spread(min(at.start, r.start), max(at.end, r.end), at.batches + 1)
    return dict(sorted(found.items()))


def compare(batches: Sequence[HeldBatch], letters: Iterable[OffsetRange] = ()) -> list[Finding]:
    """Return the gaps and overlaps of the batches of one group in one output.

    Args:
        batches: the batches.
        letters: the offsets that went into the dead letters: they are no gap.
    """
    by_partition: dict[TopicPartition, list[tuple[str, OffsetRange]]] = {}
    for batch, r in _ranges(batches):
        by_partition.setdefault(r.topic_partition, []).append((batch.batch, r))
    for r in letters:
        if r.topic_partition in by_partition:
            by_partition[r.topic_partition].append((_LETTERS, r))
    return [each for tp, held in sorted(by_partition.items()) for each in _joined(_sweep(tp, held))]


def compare_with(before: Snapshot, after: Snapshot, history: Sequence[Entry], held: Held) -> list[Finding]:
    """Return gaps and overlaps, and what the ledger has and the output lacks, and the other way round.

    Args:
        before: ledger of the group before the output was read: a run may go on meanwhile.
        after: the same after it was read.
        history: its entries before, the newest first.
        held: the batches of the group in one output. One that the ledger has begun and not committed may be there.
    """
    committed, letters = _committed(history)
    lacks = [*_lacking(before, committed, held.batches)]
    for tp, end in ends(held.batches, letters).items():
        at = before.positions.get(tp)
        if at is not None and end < at.offset:
            lacks.append(Finding(Kind.LACKS, tp, end, at.offset))
    under_way = {each.id for each in (after.pending, after.unsettled) if each is not None}
    ahead = []
    for batch, r in _ranges(held.batches):
        at = after.positions.get(r.topic_partition)
        start = max(r.start, 0 if at is None else at.offset)
        if start < r.end and batch.batch not in under_way:
            ahead.append(Finding(Kind.AHEAD, r.topic_partition, start, r.end))
    return compare(held.batches, letters) + _joined(sorted(lacks)) + _joined(sorted(ahead))


def ends(batches: Sequence[HeldBatch], letters: Iterable[OffsetRange] = ()) -> dict[TopicPartition, int]:
    """Return where the last batch with some of a partition ends there, or the dead letters that follow it.

    It is not the largest end: the topic may have been made again, or the group set back.
    """
    found = {r.topic_partition: r.end for _, r in _ranges(batches)}
    for r in sorted(letters):
        if r.start <= found.get(r.topic_partition, -1) < r.end:
            found[r.topic_partition] = r.end
    return dict(sorted(found.items()))


def ends_for_reset(
    ledger: Snapshot, history: Sequence[Entry], held: Held, output: str = ""
) -> dict[TopicPartition, int]:
    """Return the positions at which a group goes on behind the rows of an output.

    A partition without one stays where the ledger has it: its records came before the output did.

    Args:
        ledger: ledger of the group.
        history: its entries, the newest first.
        held: the batches of the group in the place, under all names.
        output: name of the output.

    Raises:
        Refused: the output does not tell the end of a partition that the group has read, or whose position the store
            has lost; or it has another name now.
    """
    held = _under_this_name_or_before(held, output)
    committed, letters = _committed(history)
    found = ends(held.batches, letters)
    silent = (ledger.positions.keys() | ledger.missing) - found.keys()
    known = held.whole and bool(history) and history[-1].version == 1
    if silent and not known:
        raise Refused(
            f"the output tells no offset of {_listed(silent)}: older batches do not say theirs, "
            "or are not known here, or the history of the group is pruned. Ask the rows for these partitions"
        )
    began = _began(held.batches, ledger, history)
    since = [each for each in committed if each.sequence >= (began or 0)]
    first = {r.topic_partition: r.start for each in since for r in each.ranges}  # the oldest comes last
    lost = {tp: first[tp] for tp in silent if tp in first}
    if lost and began is None:
        raise Refused(
            f"the output tells no offset of {_listed(lost)}: its first batch, {held.batches[0].batch}, is of another "
            "ledger, or of the one before a backup was put back. Ask the rows for these partitions"
        )
    told = {**found, **lost}
    if gone := ledger.missing - told.keys():
        raise Refused(
            f"the store has lost the positions of {_listed(gone)}, and the output tells no offset of them: ask the "
            "rows for these partitions"
        )
    return dict(sorted(told.items()))


def newer_names(batches: Sequence[HeldBatch], output: str) -> list[str]:
    """Return the names under which batches came only after the last one of an output: it may have got that name.

    Args:
        batches: the batches of one group in one place, the oldest first.
        output: name of the output.
    """
    numbers = [number for number, each in enumerate(batches) if each.output == output]
    if not numbers:
        return []
    until = batches[: numbers[-1] + 1]
    names, ids = {each.output for each in until}, {each.batch for each in until}
    both = {each.output for each in batches if each.batch in ids}  # a batch goes into all outputs of a program
    return sorted({each.output for each in batches} - names - both - {DEAD_LETTERS})


def _under_this_name_or_before(held: Held, output: str) -> Held:
    """Return the batches of an output, behind those that were in the place before: it may have had another name.

    Raises:
        Refused: the place has batches under other names only, or later ones under a name that came after this one.
    """
    names = sorted({each.output for each in held.batches} - {DEAD_LETTERS, output})
    mine = [number for number, each in enumerate(held.batches) if each.output == output]
    if names and not mine:
        raise Refused(
            f"the place has no batch of {listed_name(output)}, only of {', '.join(map(listed_name, names))}: if the "
            "output had that name before, ask for that one"
        )
    if newer := newer_names(held.batches, output):
        way = f"give --output {newer[0]}" if newer[0] else "leave --output out"
        raise Refused(
            f"the last batches of the place are of {', '.join(map(listed_name, newer))}: {way}, if "
            f"{listed_name(output)} has that name now"
        )
    until = min(mine, default=0) if output != DEAD_LETTERS else 0
    before = [each for each in held.batches[:until] if each.output != DEAD_LETTERS]
    return held._replace(batches=(*before, *(held.batches[number] for number in mine)))


def _began(batches: Sequence[HeldBatch], ledger: Snapshot, history: Iterable[Entry]) -> int | None:
    """Return the sequence of the first batch; 0 if there is none, None if no owner of this ledger has begun it."""
    if not batches:
        return 0
    token, sequence = _token_and_sequence(batches[0])
    known = {each.token for each in (*history, ledger.pending, ledger.unsettled) if each is not None}
    return sequence if token in known else None


def _token_and_sequence(batch: HeldBatch) -> tuple[str, int]:
    _, token, sequence = batch.batch.rsplit("/", 2)
    return token, int(sequence)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return listed(sorted(map(str, partitions)), ", ")


def _committed(history: Iterable[Entry]) -> tuple[list[Entry], list[OffsetRange]]:
    """Return the commits of a history, and of them the ranges that went into the dead letters."""
    found = [entry for entry in history if entry.event == "commit"]
    return found, [r for entry in found if entry.is_of_letters for r in entry.ranges]


def _lacking(ledger: Snapshot, committed: Sequence[Entry], batches: Sequence[HeldBatch]) -> Iterator[Finding]:
    """Yield the ranges of batches that the history has and the output has not, of those after its first batch."""
    there = {batch.batch for batch in batches}
    first = min((_token_and_sequence(batch)[1] for batch in batches), default=0)
    for entry in committed:
        of = batch_id(ledger.group, entry.token, entry.sequence)
        if entry.sequence > first and of not in there and not entry.is_of_letters:
            yield from (Finding(Kind.LACKS, r.topic_partition, r.start, r.end) for r in entry.ranges if r.size)


def _ranges(batches: Iterable[HeldBatch]) -> Iterator[tuple[HeldBatch, OffsetRange]]:
    for batch in batches:
        for r in batch.ranges or ():
            if r.size > 0:
                yield batch, r


def _sweep(tp: TopicPartition, held: Sequence[tuple[str, OffsetRange]]) -> Iterator[Finding]:
    """Yield each stretch between two bounds that no batch has, or more than one."""
    changes = sorted([(r.start, 1, batch) for batch, r in held] + [(r.end, 0, batch) for batch, r in held])
    within: list[str] = []
    for (at, begins, batch), (following, *_) in pairwise(changes):
        within.append(batch) if begins else within.remove(batch)
        held_by = tuple(sorted(each for each in within if each != _LETTERS))
        if at < following and (len(held_by) > 1 or not within):
            yield Finding(Kind.OVERLAP if within else Kind.GAP, tp, at, following, held_by)


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    """Return sorted findings, those alike that touch as one."""
    found: list[Finding] = []
    for each in findings:
        last = found[-1] if found else None
        if last and last.end >= each.start and last._replace(start=each.start, end=each.end) == each:
            found[-1] = last._replace(end=max(last.end, each.end))
        else:
            found.append(each)
    return found
