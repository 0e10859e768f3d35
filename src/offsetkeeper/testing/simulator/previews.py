"""What the previews of a chain of acts have promised of each record, held against the rows of the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import reduce
from itertools import takewhile
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper.core.model import Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Positions, TopicPartition
from offsetkeeper.operate.audit import Kind, audit

if TYPE_CHECKING:
    from offsetkeeper.operate.forget import Forgetting
    from offsetkeeper.operate.reset_plan import ResetPlan, Step
    from offsetkeeper.testing.simulator.kafka import ModelPlace, ModelTopic
    from offsetkeeper.testing.simulator.store import Past, Record
    from offsetkeeper.testing.simulator.world import World


Where = tuple[str, int, int]
"""Topic, partition and offset."""
_WHOLE = 1000  # entries: no chain of the simulator has more


class Promise(Enum):
    """What a preview says of a record."""

    AGAIN = "was read, and comes again"
    FRESH = "was not read, and comes"
    SKIPPED = "was not read, and does not come"
    OVER = "was read, and does not come again"
    OPEN = "comes if start= says so"


class Act(NamedTuple):
    """An act that was done.

    Attributes:
        promised: of the records of partitions that it moves, as far as the preview says anything of them.
        may_be_there: records of a batch that it drops: no preview can know whether outputs have them.
        restored: records of a batch that it makes pending again: they come into outputs that do not have them.
        rows: of each output, how often it has each record.
    """

    promised: Mapping[Record, Promise]
    may_be_there: frozenset[Record]
    restored: frozenset[Record]
    rows: Mapping[str, Counter[Record]]

    @classmethod
    def of(cls, plan: ResetPlan, before: Snapshot, after: Snapshot, rows: Mapping[str, Counter[Record]]) -> Act:
        """Return a reset, rewind or undo that was done just now.

        Args:
            plan: of the act.
            before: the ledger that it changed.
            after: the ledger that it has made.
            rows: of each output, how often it has each record.
        """
        dropped = before.pending if plan.drops else None
        restored = before.unsettled if plan.restores else None
        return cls(
            {record: promise for step in plan.steps for record, promise in _promised(step)},
            frozenset(_records(dropped.ranges, before) if dropped else ()),
            frozenset(_records(restored.ranges, after) if restored else ()),
            rows,
        )


class Account:
    """What a chain of acts has promised of each record. Pure.

    Args:
        broken: called with what is wrong.
        once: whether the group promises exactly once.

    Attributes:
        acts: that were done, in their order.
    """

    def __init__(self, broken: Callable[[str], object], *, once: bool) -> None:
        self._broken, self._once = broken, once
        self.acts: list[Act] = []

    def last(self, record: Record) -> Act | None:
        """Return the last act whose preview says anything of a record."""
        return next((each for each in reversed(self.acts) if record in each.promised), None)

    def check(self, name: str, rows: Counter[Record], there: Collection[Record], unknown: Collection[Record]) -> None:
        """Hold all acts against the rows of an output, after a run has caught up.

        Args:
            name: of the output.
            rows: how often it has each record.
            there: the records that Kafka holds.
            unknown: those that the group need not have read.
        """
        for record in sorted({*there, *rows}):
            self._check_times(name, record, rows[record])
        coming = {Promise.AGAIN, Promise.FRESH}
        restored = {record for each in self.acts for record in each.restored}
        for record in sorted(there):
            last = self.last(record)
            if (last.promised[record] in coming) if last else record not in unknown:
                before = last.rows[name][record] if last else 0
                if rows[record] <= before and not (before and record in restored):
                    self._broken(f"{record} is to come, and has not: {name!r} has it {before} times, as before")

    def _check_times(self, name: str, record: Record, times: int) -> None:
        """Check that no more rows of a record came than was promised."""
        maybe = sum(record in each.may_be_there for each in self.acts)
        again = sum(each.promised.get(record) in {Promise.AGAIN, Promise.OPEN} for each in self.acts)
        if self._once and times > 1 + maybe + again:
            self._broken(
                f"{record} is {times} times in {name!r}; {again} acts promise it again, {maybe} drop its batch"
            )
        last = self.last(record)
        if last is None or last.promised[record] in {Promise.AGAIN, Promise.FRESH, Promise.OPEN}:
            return
        since = times - last.rows[name][record]
        if since > maybe and (self._once or not maybe):
            self._broken(f"{record} {last.promised[record].value}; it has come {since} times since")


class Previews:
    """Watches one chain of acts.

    Args:
        world: in which it happens.
        places: the clusters that the brokers' name has led to.
    """

    def __init__(self, world: World, places: Iterable[ModelPlace]) -> None:
        self._world = world
        self._places = places
        self._logs: dict[str, ModelTopic] = {}
        self._account = Account(self._broken, once=world.scenario.guarantee is Guarantee.EXACTLY_ONCE)

    def look(self) -> None:
        """Remember the logs that are there, by the ids of their topics: later ones may be made in their place."""
        self._logs |= {topic.topic_id: topic for place in self._places for topic in place.topics.values()}

    def note(self, plan: ResetPlan, before: Snapshot) -> None:
        """Hold an act that was done just now against the rows that are there.

        Args:
            plan: of the act.
            before: the ledger that the act changed.
        """
        rows = {name: self._rows(name) for name in self._world.scenario.every_output}
        act = Act.of(plan, before, self._world.store.state.snapshot, rows)
        for step in plan.steps:
            told = Counter(
                p for record, p in act.promised.items() if TopicPartition(record[0], record[2]) == step.topic_partition
            )
            if (told[Promise.AGAIN], told[Promise.SKIPPED]) != (step.replayed, step.skipped):
                self._broken(f"{step} says other numbers than {told}")
        if plan.clusters and self._world.scenario.history < _WHOLE:
            # It may have been read there before, as a note says.
            fresh = {record: Promise.OPEN for record, promise in act.promised.items() if promise is Promise.FRESH}
            act = act._replace(promised={**act.promised, **fresh})
        if plan.drops is not None and before.pending is not None:
            there = act.may_be_there
            may = (*plan.drops.again, *plan.drops.stays)
            at, again = self._world.store.state.snapshot.positions, set(_records(may, before))
            ids = {topic.topic_id for place in self._places for topic in place.topics.values()}
            here = self._world.cluster.place.cluster_id
            away = {tp for tp in at if at[tp].cluster_id != here}  # nobody can see whether topics there were made again
            if again != {r for r in there if (r[1] in ids or TopicPartition(r[0], r[2]) in away) and _comes(r, at)}:
                self._broken(f"of {sorted(there)} comes again, as the preview says: {sorted(again)}")
        act = act._replace(
            promised={self._now(record): promise for record, promise in act.promised.items()},
            may_be_there=frozenset(map(self._now, act.may_be_there)),
            restored=frozenset(map(self._now, act.restored)),
        )
        self._account.acts.append(act)
        if self._world.scenario.history >= _WHOLE:
            self._check_truth(act)

    def note_drops(self, before: Past) -> None:
        """Note the batches that runs have dropped since the store was like this: outputs may have them."""
        states = [*takewhile(lambda state: state is not before, self._world.store.state.states())]
        for state in reversed(states):
            if state.entry is not None and state.entry.event == "abandon":
                began = frozenset(_records(state.entry.ranges, state.snapshot))
                records = began | frozenset(map(self._now, began))  # the log may have been cut since it was begun
                rows = {name: self._rows(name) for name in self._world.scenario.every_output}
                self._account.acts.append(Act({}, records, frozenset(), rows))

    def note_forgetting(self, plan: Forgetting) -> None:
        """Hold positions that were forgotten just now against the rows that are there."""
        world = self._world
        rows = {name: self._rows(name) for name in world.scenario.every_output}
        starts = {tp: plan.start(tp) for tp, _ in plan.positions}
        gone = {tp.topic for tp in starts} - {*plan.known}  # what has no position there starts as start= says too
        promised = {}
        every = [
            (name, topic.record_id(number, offset), number, offset)
            for place in self._places  # the name may lead elsewhere by the next start
            for name, topic in place.topics.items()
            for number, (beginning, _, end) in enumerate(topic.partitions)  # also in open transactions
            for offset in range(beginning, end)
        ]
        for record in every:
            tp = TopicPartition(record[0], record[2])
            if tp not in starts and tp.topic not in gone:
                continue
            if tp.topic not in gone or world.scenario.start == "earliest":
                read = any(found[record] for found in rows.values())
                promised[record] = Promise.AGAIN if read else Promise.FRESH
            else:
                promised[record] = Promise.OPEN
        self._account.acts.append(Act(promised, frozenset(), frozenset(), rows))

    def _check_truth(self, act: Act) -> None:
        """Hold what a preview calls read against the rows that were there. With a short history it may not know."""
        doubtful, unknown = self._doubtful(), self._unknown()
        for name, rows in act.rows.items():
            for record, promise in act.promised.items():
                read = promise in {Promise.AGAIN, Promise.OVER}
                if record in doubtful or (promise is Promise.AGAIN and record in unknown):
                    continue
                if read != (rows[record] > 0):
                    self._broken(f"{record} {promise.value}: {name!r} has it {rows[record]} times")

    def at_the_end(self) -> None:
        """Hold all acts against the rows, after a run has caught up."""
        world, unknown = self._world, self._unknown(forgotten=True)
        there = world.cluster.records()
        for name in world.scenario.every_output:
            self._account.check(name, self._rows(name), there, unknown)
        if world.scenario.history >= _WHOLE and not self._left_a_cut_log():
            self._check_findings()

    def _unasked(self) -> set[Where]:
        """Return the offsets of logs that were cut which retention has deleted since: of these no run asks."""
        return {
            (name, number, offset)
            for name, log in self._world.cluster.topics.items()
            for number, (beginning, _, _) in enumerate(log.partitions)
            for offset in range(beginning if log.lost else 0)
        }

    def _left_a_cut_log(self) -> bool:
        """Whether a log was cut that is not there any more: perhaps nobody noticed that before."""
        here = {topic.topic_id for topic in self._world.cluster.topics.values()}
        return any(log.lost and log.topic_id not in here for log in self._logs.values())

    def _check_findings(self) -> None:
        """Hold what `verify` finds against the rows: a gap is one in any output, and so is an overlap."""
        world = self._world
        every = [self._rows(name) for name in world.scenario.every_output]
        states = [state for state in world.store.state.states() if state.entry is not None]
        findings = audit([state.entry for state in reversed(states) if state.entry], world.store.state.snapshot)
        told: dict[Kind, Counter[Where]] = {kind: Counter() for kind in Kind}
        for each in findings:
            if each.topic_partition is None:
                self._broken(f"verify finds {each}")
            else:
                told[each.kind].update((*each.topic_partition, offset) for offset in range(each.start, each.end))
        gaps = Counter((r[0], r[2], r[3]) for r in self._passed() if not all(rows[r] for rows in every))
        most: Counter[Record] = reduce(or_, every)
        overlaps = Counter((r[0], r[2], r[3]) for r, n in most.items() for _ in range(n - 1))
        once = world.scenario.guarantee is Guarantee.EXACTLY_ONCE
        gaps |= told[Kind.GAP] & self._lost(most)
        for topic, _, partition, offset in self._unknown():  # nobody knows whether they were read elsewhere before
            del told[Kind.OVERLAP][topic, partition, offset], overlaps[topic, partition, offset]
        asked = world.scenario.marked  # the ledger knows what they have
        doubtful = set() if asked else {(r[0], r[2], r[3]) for r in self._doubtful()}
        if others := told[Kind.MAYBE_TWICE].keys() - doubtful:
            self._broken(f"verify says of {sorted(others)} that they may be there twice; no batch of them was dropped")
        for topic, partition, offset in doubtful:
            where = (topic, partition, offset)
            if once and overlaps[where] > told[Kind.OVERLAP][where] + told[Kind.MAYBE_TWICE][where]:
                self._broken(f"verify does not say that {where} may be there {overlaps[where] + 1} times")
            for found in (*told.values(), gaps, overlaps):
                del found[topic, partition, offset]
        unasked = self._unasked()
        told[Kind.GAP], gaps = (_without(found, unasked) for found in (told[Kind.GAP], gaps))
        if once and told[Kind.OVERLAP] != overlaps:
            self._broken(f"verify finds the overlaps {told[Kind.OVERLAP]}, and there are {overlaps}")
        if told[Kind.GAP] != gaps:
            self._broken(f"verify finds the gaps {told[Kind.GAP]}, and there are {gaps}")

    def _passed(self) -> set[Record]:
        """Return the records between where the group began and where it is, or has left a topic."""
        made: dict[str, list[Positions]] = {}  # a copy has the entries of its source, and the newest positions at each
        for state in (*self._world.origin.state.states(), *self._world.copy.state.states()):
            made.setdefault(state.snapshot.change_id, []).append(state.snapshot.positions)
        reached: dict[tuple[TopicPartition, str], int] = {}
        for state in reversed([*self._world.store.state.states()]):
            for positions in made[state.snapshot.change_id]:
                reached |= {(tp, str(at.topic_id)): at.offset for tp, at in positions.items()}
        every = {(*tp, topic_id, n) for (tp, topic_id), end in reached.items() for n in range(end)}
        found = {(topic, topic_id, number, n) for topic, number, topic_id, n in every}
        return {*map(self._now, found)} - self._unknown()

    def _now(self, record: Record) -> Record:
        """Return the record that the log has now at the offset of a record: an election may have cut the log."""
        name, topic_id, number, offset = record
        found = self._logs.get(topic_id)
        return record if found is None else (name, found.record_id(number, offset), number, offset)

    def _unknown(self, *, forgotten: bool = False) -> set[Record]:
        """Return the records before the first position of their partition, or before the first one after a `forget`."""
        entries = [state.entry for state in self._world.store.state.states() if state.entry is not None]
        began = [(tp, move.after) for each in entries for tp, move in each.moves.items() if move.before is None]
        first = began if forgotten else dict(began).items()  # the oldest, as the newest entry comes first
        return {(tp.topic, str(at.topic_id), tp.partition, n) for tp, at in first for n in range(at.offset)}

    def _lost(self, most: Iterable[Record]) -> Counter[Where]:
        """Return the offsets of batches that were lost and dropped: of outputs without marks no ledger knows them."""
        entries = [state.entry for state in self._world.store.state.states() if state.entry is not None]
        dropped = {
            (*r.topic_partition, n)
            for e in entries
            if e.event == "abandon"
            for r in e.ranges
            for n in range(r.start, r.end)
        }
        return Counter(dropped & {(r[0], r[2], r[3]) for r in most} if not self._world.scenario.marked else ())

    def _doubtful(self) -> frozenset[Record]:
        return frozenset().union(*(each.may_be_there for each in self._account.acts))

    def _rows(self, name: str) -> Counter[Record]:
        found = Counter[tuple[str, str, int, int]]()
        for row, times in self._world.rows_of(name).items():
            found[row.record] += times
        return found

    def _broken(self, what: str) -> None:
        self._world.schedule.violate(f"(p) {what}")


def _without(found: Counter[Where], where: Collection[Where]) -> Counter[Where]:
    return Counter({each: times for each, times in found.items() if each not in where})


def _promised(step: Step) -> Iterator[tuple[Record, Promise]]:
    """Yield what a step of a plan promises of records. It says nothing of the others."""
    tp, new = step.topic_partition, step.new
    for offset in range(step.end):
        read = step.read.between(offset, offset + 1) > 0
        record = (tp.topic, str(new.topic_id), tp.partition, offset)
        if offset >= new.offset:
            again = step.read.perhaps_between(offset, offset + 1) > 0 or offset < step.read.began
            yield record, Promise.AGAIN if again else Promise.FRESH
        elif offset >= step.reached:
            yield record, Promise.OVER if read else Promise.SKIPPED


def _comes(record: Record, positions: Positions) -> bool:
    topic, topic_id, partition, offset = record
    at = positions[TopicPartition(topic, partition)]
    return at.topic_id == topic_id and at.offset <= offset


def _records(ranges: tuple[OffsetRange, ...], known: Snapshot) -> Iterator[Record]:
    """Yield the records of ranges, of the topics that a ledger has positions of."""
    for each in ranges:
        at = known.positions[each.topic_partition]
        for offset in range(each.start, each.end):
            yield each.topic, str(at.topic_id), each.partition, offset
