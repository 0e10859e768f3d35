"""Where a run starts: compares stored positions with Kafka, and gives each partition a verdict and a start. Pure.

verdict           when                                                   decided by
RESUME            Kafka holds the position                               the store
FIRST_RUN         no position of this topic is stored                    `start`, if `first_run` allows it
NEW               the topic is known, the partition is new               always its beginning
NEW_TOPIC         a pattern finds a topic after the group began          `new_topics`
MISSING           the ledger had a position, and the store has lost it    always stops: the user gives the offset
REMOVED           the position's partition is no longer in Kafka         `removed`
CUT               an election cut records that were read, and others     `cut`
                  have their offsets now
BELOW_BEGINNING   unread records are lost to retention                   `below_beginning`
BEYOND_END        the position is past the end of the partition          `beyond_end`
ELSEWHERE         the brokers are of another Kafka cluster than before   `elsewhere`
RECREATED         the topic was deleted and created again                `recreated`
GIVEN             the user gave the offset                               the user
GIVEN_AGAIN       the user gave it to an earlier start too, and          always stops: a supervisor may repeat a
                  reading has gone on since                              start for ever
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from offsetkeeper.core.bounds import Bounds, Standing, cut_text, known_ids, seen_at, standing_of
from offsetkeeper.core.commands import command
from offsetkeeper.core.html import html_table
from offsetkeeper.core.identity import is_elsewhere
from offsetkeeper.core.offsets import NO_POSITIONS, Position, Positions, TopicPartition, check_offset
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import SettingsError, StartRefused, listed

Jump = Literal["stop", "beginning", "end"]
CutJump = Literal["stop", "common", "beginning", "end"]

_LINES = 20  # of a plan, without its summary
_COUNTS = ("lost", "skipped", "replayed")


class Verdict(StrEnum):
    """The state of a partition at a start."""

    RESUME = "resume"
    FIRST_RUN = "first run"
    NEW = "new"
    NEW_TOPIC = "new topic"
    MISSING = "position missing"
    REMOVED = "removed"
    CUT = "cut"
    BELOW_BEGINNING = "below the beginning"
    BEYOND_END = "beyond the end"
    ELSEWHERE = "another cluster"
    RECREATED = "recreated"
    GIVEN = "given by hand"
    GIVEN_AGAIN = "given again"


_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("below_beginning", "beyond_end", "recreated", "new_topics"), ("stop", "beginning", "end")),
    "elsewhere": ("stop", "keep", "beginning", "end"),
    "cut": ("stop", "common", "beginning", "end"),
    "removed": ("stop", "keep"),
    "first_run": ("start", "stop"),
    "pending": ("own", "finish", "drop"),
    "poison": ("stop", "quarantine"),
}


@dataclass(frozen=True, slots=True)
class Policies:
    """What to do if a stored position cannot simply be resumed; each verdict has its own policy.

    Attributes:
        below_beginning, beyond_end, recreated: "stop" (nothing is read or changed); or continue at the "beginning" or
            at the "end" of the offsets that Kafka holds. The plan counts the offsets that this loses, skips or repeats.
        elsewhere: what to do if the brokers are of another Kafka cluster than the one that was read before: "stop"; or
            go on there at the "beginning" or the "end"; or "keep" the stored offsets, as is right for a mirror of the
            cluster that has each record at the same offset.
        removed: "keep" the stored offsets, report them and read the other partitions; or "stop".
        first_run: "start" a topic that was never read where `Pipeline(start=…)` says; or "stop", because this program
            has run before: then the store is another one, was emptied, or is not mounted.
        new_topics: where to start a topic that a pattern finds after the group began: at its "beginning", so that no
            record is missed; at its "end" at that time; or "stop".
        pending: the batch that an earlier run began and did not commit is finished first: if it is the program's "own",
            which means that the program reads one of the topics of the run that began it, and has an output of the same
            kind and target; else the start stops. "finish" finishes it also for another program. "drop" drops it: its
            records are read again in other batches, and outputs that already have them may get them twice. It counts
            as done if marks say that all outputs have it.
        poison: "stop" the run if a batch fails at its last attempt; or "quarantine" the offsets that fail: the batch
            is cut in halves down to these offsets, they go to `Pipeline(dead_letters=…)`, and the run continues.
        poison_limit: how many offsets in a row may be quarantined; the run stops at the next one.
        cut: what to do if the log of a partition was cut before the position by the election of a leader that lacked
            records, so that other records have the offsets of some that were read: "stop"; or go on at the
            first offset with another record ("common"; it stops if that is unknown), at the "beginning" or the "end".
    """

    below_beginning: Jump = "stop"
    beyond_end: Jump = "stop"
    recreated: Jump = "stop"
    elsewhere: Jump | Literal["keep"] = "stop"
    removed: Literal["stop", "keep"] = "keep"
    first_run: Literal["start", "stop"] = "start"
    new_topics: Jump = "beginning"
    pending: Literal["own", "finish", "drop"] = "own"
    poison: Literal["stop", "quarantine"] = "stop"
    poison_limit: int = 10
    cut: CutJump = "stop"

    def __post_init__(self) -> None:
        """Refuse unknown words and numbers."""
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                known = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
                raise SettingsError(f"policy {name}={getattr(self, name)!r}: use {known}")
        if not isinstance(self.poison_limit, int) or isinstance(self.poison_limit, bool) or self.poison_limit < 1:
            raise SettingsError(f"policy poison_limit={self.poison_limit!r}: use a whole number from 1 on")


_ALWAYS = {Verdict.MISSING, Verdict.GIVEN_AGAIN}
_BY_RESET = {Verdict.BELOW_BEGINNING, Verdict.RECREATED}
_LONGEST_COMMAND = 300  # characters
_WAYS = {
    Verdict.MISSING: "The store has lost positions, as by a clean-up: put them back, reset them, or give them.",
    Verdict.FIRST_RUN: "The store has no position of these topics: if the program has run before, look whether the URL "
    "leads to the same store, and whether its file system is mounted.",
    Verdict.GIVEN_AGAIN: "The same offsets were given to an earlier start, and reading has gone on since: start "
    "without them. To read these records again, reset the group there first.",
}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The plan for one partition; counts are offsets, an upper bound of records.

    Attributes:
        stored: the position in the store, or None.
        bounds: the offsets that Kafka holds, or None if the partition is gone.
        start: the first offset to read, or None if the partition is not read.
        policy: the setting that decides.
        lost: offsets that were never read and that Kafka no longer holds.
        skipped: offsets that were never read, that Kafka holds, and that a policy skips.
        replayed: offsets that will be read again.
        stops: whether this partition prevents the run from starting.
    """

    topic_partition: TopicPartition
    verdict: Verdict
    stored: Position | None
    bounds: Bounds | None
    start: int | None
    policy: str
    lost: int = 0
    skipped: int = 0
    replayed: int = 0
    stops: bool = False

    @property
    def moves_cluster(self) -> bool:
        """Whether the partition goes on in another cluster, as its policy says."""
        if self.stops or self.stored is None or self.bounds is None:
            return False
        return is_elsewhere(self.stored.cluster_id, self.bounds.cluster_id)

    @property
    def there(self) -> str:
        """The offsets that Kafka holds, as text: `beginning..end`, with where it was cut; or `gone`."""
        if self.bounds is None:
            return "gone"
        cut = f" and {cut_text(self.bounds)}" if self.verdict is Verdict.CUT else ""
        return f"{self.bounds.beginning}..{self.bounds.end}{cut}"

    def __str__(self) -> str:
        stored = "-" if self.stored is None else str(self.stored.offset)
        counts = ", ".join(f"{getattr(self, name)} {name}" for name in _COUNTS if getattr(self, name))
        start = "-" if self.start is None else str(self.start)
        there = self.there
        if self.verdict is Verdict.ELSEWHERE and self.stored and self.bounds:
            stored += f" in cluster {self.stored.cluster_id}"
            there += f" in cluster {self.bounds.cluster_id}"
        return (
            f"{self.topic_partition}: {self.verdict}, stored {stored}, Kafka holds {there}, start {start}"
            f"{f', {counts}' if counts else ''} ({self.policy})"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdict and the start of every partition; `str()` is a summary for people, `as_dict()` is for JSON.

    Attributes:
        group: the consumer group.
        rows: one for each partition.
        mirror: whether another cluster counts as a mirror, with each record at the same offset.
    """

    group: str
    rows: tuple[PlanRow, ...]
    mirror: bool = False

    def __repr__(self) -> str:
        return f"<Plan of {self._summary()}>"

    @property
    def places(self) -> dict[TopicPartition, Position]:
        """The positions to store before reading: those that are not stored yet, or differ.

        A stored id of a topic or a cluster stays if Kafka gives none.
        """
        places = {}
        for row in self.rows:
            if row.start is not None and row.bounds is not None:
                wanted = seen_at(row.start, row.bounds, row.stored)
                if wanted != row.stored:
                    places[row.topic_partition] = wanted
        return places

    @property
    def cuts(self) -> dict[TopicPartition, int]:
        """The offset from which on a log that was cut has other records, of the partitions that go on after it."""
        cut = (
            row for row in self.rows if row.start is not None and standing_of(row.stored, row.bounds) is Standing.CUT
        )
        found = {row.topic_partition: row.bounds and row.bounds.others_from for row in cut}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    @property
    def unread(self) -> int:
        """Number of offsets from the starts to the ends that Kafka holds."""
        return sum(max(0, row.bounds.end - row.start) for row in self.rows if row.bounds and row.start is not None)

    def check(self) -> Plan:
        """Return the plan itself if the run may start.

        Raises:
            StartRefused: a policy says stop; the message names up to twenty such partitions, and the remedy.
        """
        stops = [row for row in self.rows if row.stops]
        if not stops:
            return self
        raise StartRefused(f"group {self.group!r} cannot start; nothing was changed:\n  {listed(stops)}\n{self.remedy}")

    @property
    def remedy(self) -> str:
        """What to do so that the run may start; empty if it may."""
        stops = [row for row in self.rows if row.stops]
        verdicts = {row.verdict for row in stops}
        asked = sorted({row.policy for row in stops if row.verdict not in _ALWAYS})
        ways = [_to_start(self.group, asked, elsewhere=Verdict.ELSEWHERE in verdicts)]
        ways *= bool(verdicts - {Verdict.GIVEN_AGAIN})
        ways += [_by_reset(self.group, self.rows)] * bool(verdicts and verdicts <= _BY_RESET)
        return " ".join([*filter(None, ways), *(way for verdict, way in _WAYS.items() if verdict in verdicts)])

    def counts(self) -> dict[str, int]:
        """Return the number of partitions with each verdict, and the offsets lost, skipped and replayed."""
        verdicts = Counter(str(row.verdict) for row in self.rows)
        return dict(verdicts) | {name: sum(getattr(row, name) for row in self.rows) for name in _COUNTS}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, one dict for each partition under `partitions`."""
        return {"group": self.group, "counts": self.counts(), "partitions": [_row_dict(row) for row in self.rows]}

    def _repr_html_(self) -> str:
        columns = ("topic", "partition", "verdict", "stored", "Kafka holds", "start", *_COUNTS, "decided by")
        unusual_first = sorted(self.rows, key=lambda row: (not row.stops, row.verdict is Verdict.RESUME))
        return html_table(self._summary(), columns, map(_cells, unusual_first))

    def _summary(self) -> str:
        summary = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count)
        return f"group {self.group!r}: {summary or 'no partitions'}"

    def __str__(self) -> str:
        return self._text([row for row in self.rows if row.verdict is not Verdict.RESUME])

    def text(self) -> str:
        """Return a summary, and a line for each partition if there are at most twenty; else for the unusual ones."""
        return self._text(self.rows) if len(self.rows) <= _LINES else str(self)

    def _text(self, rows: Iterable[PlanRow]) -> str:
        told: dict[Verdict, list[PlanRow]] = {}
        for row in rows:
            told.setdefault(row.verdict, []).append(row)
        few = len(self.rows) <= _LINES
        # Each verdict gets a share of the lines: a recreated topic must not hide behind a hundred new partitions.
        parts = [listed(found, most=_LINES if few else _LINES // len(told)) for found in told.values()]
        return "\n  ".join([self._summary(), *parts])


_NO_OFFSETS: Mapping[TopicPartition, int] = MappingProxyType({})


class FirstOffsets(NamedTuple):
    """Where partitions start that no stored position decides.

    Attributes:
        name: the name of the user's choice, shown in the plan, such as "latest".
        offsets: the offset that this choice means for each partition that may be a first run; a partition without one
            starts at its beginning. Empty during a run, when all partitions that appear are new.
        pattern: whether a pattern finds the topics: a topic that appears later is then not a first run.
        given: offsets that the user gives for some partitions; they override everything else.
        again: whether an earlier start was given the same offsets.
    """

    name: str = "earliest"
    offsets: Mapping[TopicPartition, int] = _NO_OFFSETS
    pattern: bool = False
    given: Mapping[TopicPartition, int] = _NO_OFFSETS
    again: bool = False


def plan(
    group: str,
    stored: Positions,
    bounds: Mapping[TopicPartition, Bounds],
    policies: Policies,
    first: FirstOffsets,
    *,
    missing: Collection[TopicPartition] = (),
    others: Positions = NO_POSITIONS,
) -> Plan:
    """Compare the stored positions with Kafka and decide for each partition.

    Args:
        group: the consumer group, for messages.
        stored: positions in the store, of all partitions to read.
        bounds: bounds of every partition of the topics to read.
        policies: what to do if a position cannot be resumed.
        first: where partitions start that no stored position decides.
        missing: partitions whose position the store has lost.
        others: positions of partitions that are not read, of the topics to read: a topic is known by them too.

    Raises:
        SettingsError: an offset is given for a partition that does not exist, or Kafka does not hold the offset.
    """
    for tp, offset in first.given.items():
        _check_given(tp, offset, bounds.get(tp))
    topics, ids = {tp.topic for tp in (*stored, *others, *missing)}, known_ids(bounds)
    current = {
        tp.topic for tp, at in (*stored.items(), *others.items()) if at.topic_id and at.topic_id == ids.get(tp.topic)
    }
    rows = []
    for tp in sorted(stored.keys() | bounds.keys()):
        position, here = stored.get(tp), bounds.get(tp)
        if here is None:
            rows.append(_removed(tp, position, policies))
        elif tp in first.given:
            forgotten = position is None and tp not in missing  # an operator took it out: it begins anew
            rows.append(_given(tp, position, here, first.given[tp], again=first.again and not forgotten))
        elif tp in missing:
            rows.append(PlanRow(tp, Verdict.MISSING, None, here, None, "offsets given, or reset", stops=True))
        elif position is None and tp.topic in topics:
            rows.append(_new(tp, here))
        elif position is None and first.pattern and topics:
            rows.append(_new_topic(tp, here, policies.new_topics))
        elif position is None:
            rows.append(_first(tp, here, first, policies))
        elif standing_of(position, here) is Standing.RECREATED and tp.topic in current:
            rows.append(replace(_new(tp, here), stored=position))  # the topic is known again: it has grown since
        else:
            rows.append(_known(tp, position, here, policies))
    return Plan(group, tuple(rows), policies.elsewhere == "keep" and any(row.moves_cluster for row in rows))


def _check_given(tp: TopicPartition, offset: int, here: Bounds | None) -> None:
    if here is None:
        raise SettingsError(f"an offset is given for {tp}, which is not among the partitions to read")
    if standing_of(Position(check_offset(offset)), here._replace(common=None)) is not Standing.WITHIN:
        raise SettingsError(
            f"offset {offset} given for {tp} is outside the offsets that Kafka holds: {here.beginning} to {here.end}"
        )


def _removed(tp: TopicPartition, position: Position | None, policies: Policies) -> PlanRow:
    policy = f"removed={policies.removed}"
    return PlanRow(tp, Verdict.REMOVED, position, None, None, policy, stops=policies.removed == "stop")


def _given(tp: TopicPartition, position: Position | None, here: Bounds, offset: int, *, again: bool) -> PlanRow:
    row = _row(tp, Verdict.GIVEN, position, here, offset, "given")
    if not again or (position is not None and position.offset == offset):
        return row
    return replace(row, verdict=Verdict.GIVEN_AGAIN, start=None, policy="given before", stops=True)


def _first(tp: TopicPartition, here: Bounds, first: FirstOffsets, policies: Policies) -> PlanRow:
    if policies.first_run == "stop":
        return PlanRow(tp, Verdict.FIRST_RUN, None, here, None, "first_run=stop", stops=True)
    at = first.offsets.get(tp, here.beginning)
    return PlanRow(tp, Verdict.FIRST_RUN, None, here, at, f"start={first.name}", skipped=max(0, at - here.beginning))


def _kept(tp: TopicPartition, position: Position, here: Bounds, policies: Policies) -> PlanRow:
    """Judge a position as one of the cluster that the brokers are of now."""
    row = _known(tp, Position(position.offset), here, policies)
    if row.verdict is not Verdict.RESUME:
        return replace(row, stored=position)
    return replace(row, verdict=Verdict.ELSEWHERE, stored=position, policy="elsewhere=keep")


def _new(tp: TopicPartition, here: Bounds) -> PlanRow:
    return PlanRow(tp, Verdict.NEW, None, here, here.beginning, "beginning, always", lost=here.beginning)


def _new_topic(tp: TopicPartition, here: Bounds, policy: Jump) -> PlanRow:
    row = _jump(tp, Verdict.NEW_TOPIC, None, here, "new_topics", policy)
    return replace(row, lost=here.beginning)


def _known(tp: TopicPartition, position: Position, here: Bounds, policies: Policies) -> PlanRow:
    standing = standing_of(position, here)
    if standing is Standing.WITHIN:
        return _row(tp, Verdict.RESUME, position, here, position.offset, "store")
    if standing is Standing.ELSEWHERE and policies.elsewhere == "keep":
        return _kept(tp, position, here, policies)
    verdict, name = Verdict[standing.name], standing.name.lower()  # each standing has a verdict and a policy
    return _jump(tp, verdict, position, here, name, getattr(policies, name))


def _jump(
    tp: TopicPartition, verdict: Verdict, position: Position | None, here: Bounds, name: str, policy: CutJump
) -> PlanRow:
    common = here.beginning if here.common is None else here.common
    starts = {"end": here.end, "common": common}
    row = _row(tp, verdict, position, here, starts.get(policy, here.beginning), f"{name}={policy}")
    if policy != "stop" and (policy != "common" or common >= here.beginning):
        return row
    return PlanRow(tp, verdict, position, here, None, row.policy, lost=row.lost, stops=True)


def _row(
    tp: TopicPartition, verdict: Verdict, position: Position | None, here: Bounds, start: int, policy: str
) -> PlanRow:
    """Count the offsets that the way from the stored position to `start` loses, skips and repeats."""
    known = position is not None and standing_of(position, here) not in {Standing.ELSEWHERE, Standing.RECREATED}
    reached = position.offset if position and known else here.beginning
    if here.common is not None:  # others have the offsets of the records that were read after it
        reached = min(reached, max(here.common, here.beginning))
    lost = max(0, here.beginning - reached)
    skipped = max(0, start - max(reached, here.beginning))
    replayed = max(0, min(reached, here.end) - start)
    return PlanRow(tp, verdict, position, here, start, policy, lost=lost, skipped=skipped, replayed=replayed)


def _cells(row: PlanRow) -> tuple[object, ...]:
    stored, counts = row.stored and row.stored.offset, [getattr(row, name) or None for name in _COUNTS]
    return (*row.topic_partition, row.verdict, stored, row.there, row.start, *counts, row.policy)


def _to_start(group: str, stopping: Sequence[str], *, elsewhere: bool) -> str:
    """Return what lets a run start: the code of the policies that stop it, and what shows the effect of others."""
    address = "correct the brokers' address, or " if elsewhere else ""
    if not stopping:
        return f"To start anyway, {address}give offsets for these partitions."
    pairs = [tuple(each.split("=")) for each in stopping]
    words = {name: [word for word in _WORDS[name] if word not in {"stop", now}] for name, now in pairs}
    each = ", ".join(f"{name} is {' or '.join(map(repr, known))}" for name, known in words.items())
    first, known = next(iter(words.items()))
    example = next((word for word in known if word != "keep"), known[0])  # the plan of "keep" counts nothing as lost
    shown = command("plan", group, f"--policy {first}={example}")
    return (
        f"To start anyway, {address}give policies=Policies({', '.join(f'{name}=…' for name in words)}), where {each}: "
        f"'{shown}' shows what one does. Or give offsets for these partitions."
    )


def _by_reset(group: str, rows: Sequence[PlanRow]) -> str:
    """Return the reset that lets a run start without another release; empty if it has too many names."""
    topics: dict[str, list[str]] = {}
    for row in rows:
        if row.stops:
            topics.setdefault(row.topic_partition.topic, []).append(str(row.topic_partition.partition))
    # A topic alone would be all its partitions that the ledger has, also those that the program does not read.
    names = [f"{topic}:{','.join(partitions)}" for topic, partitions in topics.items()]
    named = " ".join(f"--topic {shlex.quote(name)}" for name in names)
    shown = command("reset", group, f"{named} --to-earliest")
    return f"Without another release: '{shown}' shows what that does." if len(shown) <= _LONGEST_COMMAND else ""


def _row_dict(row: PlanRow) -> dict[str, Any]:
    stored, (beginning, end) = row.stored and row.stored.offset, (row.bounds or (None, None))[:2]
    return plain(row, without="bounds") | {"stored": stored, "beginning": beginning, "end": end}
