"""Chains of acts: runs that crash, what operators do between them, and what happens to Kafka meanwhile.

A chain is a list of steps, each complete before the next one begins. So a failure is such a list, and is shortened by
leaving steps out. What the previews promise is held against the rows: see `previews`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import OffsetkeeperError, StartRefused
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import Forgetting
from offsetkeeper.operate.reset import Shift, apply_reset, plan_rewind, plan_undo
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import Scope
from offsetkeeper.testing.simulator.kafka import GROUP, TOPIC, ModelPlace
from offsetkeeper.testing.simulator.operators import forget_positions, reset_positions
from offsetkeeper.testing.simulator.previews import Previews
from offsetkeeper.testing.simulator.promises import Promises
from offsetkeeper.testing.simulator.runs import owner
from offsetkeeper.testing.simulator.scenarios import (
    add_partition,
    delete_old,
    grow,
    lead_elsewhere,
    open_transaction,
    recreate,
)
from offsetkeeper.testing.simulator.schedule import Budget, Option
from offsetkeeper.testing.simulator.world import Scenario, World

_PARTITIONS = ((), (TopicPartition(TOPIC, 0),), (TopicPartition(TOPIC, 1),), (TopicPartition(TOPIC, 2),))
LEADS = "the name leads to the other cluster"
DROPS = "run that drops"
CUT = "the log is cut"


class Step(NamedTuple):
    """A step of a chain.

    Attributes:
        what: a name in `ACTS` or `EVENTS`; `LEADS`; `CUT`; "run", which runs until it is caught up; or `DROPS`, which
            has the policy that drops a pending batch.
        which: for an act, what it moves: 0 for all, else a partition and 1.
        number: an offset, or what else an act needs.
        faults: for a run, at which of its choices something goes wrong, and the number of the option; -1 kills it.
        beside: for an act, at which choice of a run it is made, with force; -1 if none runs.
    """

    what: str
    which: int = 0
    number: int = 0
    faults: tuple[tuple[int, int], ...] = ()
    beside: int = -1


@dataclass
class Chain:
    """A chain that is under way.

    Attributes:
        scenario: its guarantee, outputs and policies; it has no actors.
    """

    scenario: Scenario
    world: World = field(init=False)
    previews: Previews = field(init=False)
    _places: list[ModelPlace] = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(self.scenario, lambda _: 0, Promises, preemptions=0, faults=0)
        self.world.repeats = self.world.rewound = True
        self._places = [self.world.cluster.place]
        self.previews = Previews(self.world, self._places)

    def run(self, steps: Iterable[Step]) -> None:
        """Take the steps, let a last run catch up, and check.

        Raises:
            Violation: a promise was broken.
        """
        try:
            for step in steps:
                before = self.world.store.state
                self._take(step)
                if step.what != "copy":  # which brings the history of another store
                    self.previews.note_drops(before)
            self.previews.look()
            last = self.world.schedule.add("last", partial(owner, self.world))
            before = self.world.store.state
            self._go(lambda _: 0)
            self.previews.note_drops(before)
            if isinstance(last.raised, StartRefused):
                return  # as a policy wants it: nothing is promised before the operator has decided
            if last.raised is not None:
                self.world.schedule.violate(f"(liveness) the last run ends with {last.raised!r}")
            self.previews.at_the_end()
        finally:
            self.world.schedule.close()

    def _take(self, step: Step) -> None:
        world, number = self.world, len(self.world.schedule.actors)
        self.previews.look()
        if step.what in EVENTS:
            EVENTS[step.what](world)
        elif step.what == LEADS:
            self._lead()
        elif step.what == CUT:
            _cut_the_log(world)
        elif step.what in {"run", DROPS}:
            world.dropping = step.what == DROPS
            world.schedule.add(f"run{number}", partial(owner, world))
            special = dict(step.faults)
            count = iter(range(10**6))
            self._go(lambda options: special.get(next(count), 0) % len(options), faults=len(special))
            world.dropping = False
        else:
            if step.beside >= 0:
                world.schedule.add(f"run{number}", partial(owner, world))
            actor = world.schedule.add(f"act{number}", partial(self._act, step))
            count = iter(range(10**6))
            self._go(
                lambda options: _first_of(options, actor) if next(count) == step.beside else 0,
                preemptions=int(step.beside >= 0),
            )
            if actor.raised is not None and not isinstance(actor.raised, OffsetkeeperError):
                world.schedule.violate(f"(r) {step} ends with {actor.raised!r}")

    def _go(self, pick: Callable[[list[Option]], int], *, preemptions: int = 0, faults: int = 0) -> None:
        schedule = self.world.schedule
        schedule.pick, schedule.budget, schedule.current = pick, Budget(preemptions, faults), None
        schedule.run()
        schedule.current = None

    def _act(self, step: Step) -> None:
        world, before = self.world, self.world.store.state
        plan = ACTS[step.what](world, step)
        done = world.store.state
        if plan is None or done.entry is None or done is before:
            return
        assert done.before is not None  # noqa: S101 - it has an entry
        if isinstance(plan, Forgetting) and done.entry.event == "forget":
            self.previews.note_forgetting(plan)
        elif isinstance(plan, ResetPlan) and done.entry.event == "rewind":
            self.previews.note(plan, done.before.snapshot)

    def _lead(self) -> None:
        """Let the name lead elsewhere, unless a log here was cut: back here, no position would tell it."""
        if self.world.cluster.cut:
            return
        if len(self._places) == 1:
            lead_elsewhere(self.world)
            self._places.append(self.world.cluster.place)
        else:
            here = self.world.cluster.place
            self.world.cluster.place = next(place for place in self._places if place is not here)


def _cut_the_log(world: World) -> None:
    """Let a leader that lacks the last record of partition 0 be elected; others come, and no run notices.

    Only where the group stands after all that any output has: what was read past a position cannot be told as lost.
    """
    topic, found = world.cluster.topics[TOPIC], world.store.state.snapshot
    at = found.positions.get(_PARTITIONS[1][0])
    beginning, stable, end = topic.partitions[0]
    if at is None or at.topic_id != topic.topic_id or at.leader_epoch is None or found.pending or found.unsettled:
        return
    rows = (row.record for name in world.scenario.every_output for row in world.rows_of(name))
    if stable != end or at.offset != stable or beginning == stable or any(r[2] == 0 and r[3] >= stable for r in rows):
        return
    topic.elect(0, 1)
    topic.partitions[0] = (beginning, stable + 2, stable + 2)


def _first_of(options: list[Option], actor: Any) -> int:
    return next((number for number, option in enumerate(options) if option.who is actor), 0)


def _named(step: Step) -> Scope:
    return Scope(_PARTITIONS[step.which], () if step.which else (TOPIC,))


def _reset_with(to: Callable[[Step], Any]) -> Callable[[World, Step], ResetPlan]:
    def act(world: World, step: Step) -> ResetPlan:
        return reset_positions(world, to(step), force=True, scope=_named(step), clip=step.number % 2 == 1)

    return act


def _to_offsets(world: World, step: Step) -> ResetPlan:
    chosen = _PARTITIONS[step.which] or _PARTITIONS[1] + _PARTITIONS[2]
    return reset_positions(world, dict.fromkeys(chosen, step.number), force=True, clip=True)


def _undo(world: World, step: Step) -> ResetPlan:
    ledger = world.ledger()
    plan, _ = plan_undo(ledger, world.cluster, Scope(_PARTITIONS[step.which]))
    apply_reset(ledger, world.cluster, plan, "undo", force=True)
    return plan


def _rewind_by(world: World, step: Step) -> ResetPlan:
    ledger = world.ledger()
    version = max(1, ledger.load().version - step.number * 3)
    plan = plan_rewind(ledger, world.cluster, version, Scope(_PARTITIONS[step.which]))
    apply_reset(ledger, world.cluster, plan, "rewind", force=True)
    return plan


def _forget(world: World, step: Step) -> Forgetting:
    return forget_positions(world, _named(step))


def _copy(world: World, _: Step) -> None:
    """Copy the group to the other store, or back over the first one, and go on there."""
    there = world.copy if world.store is world.origin else world.origin
    copy(GROUP, world.store, there, force=True, overwrite=there is world.origin or bool(there.state.entry))
    world.store = there


ACTS: Mapping[str, Callable[[World, Step], ResetPlan | Forgetting | None]] = MappingProxyType(
    {
        "reset to the earliest": _reset_with(lambda _: "earliest"),
        "reset to the latest": _reset_with(lambda _: "latest"),
        "reset to an offset": _to_offsets,
        "shift": _reset_with(lambda step: Shift(step.number - 2)),
        "undo": _undo,
        "rewind": _rewind_by,
        "forget": _forget,
        "copy": _copy,
    }
)
EVENTS: Mapping[str, Callable[[World], None]] = MappingProxyType(
    {
        "records arrive": grow,
        "a partition is added": add_partition,
        "a transaction begins": open_transaction,
        "retention deletes": delete_old,
        "the topic is made again": recreate,
    }
)
