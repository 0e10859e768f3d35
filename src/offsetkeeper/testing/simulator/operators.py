"""Operators, as actors: rewind, undo, forget, accept a mark, copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetkeeper.core.mark import check_marks
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import MarkBehind, MarkError
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import Forgetting, apply_forgetting, plan_forgetting
from offsetkeeper.operate.reset import Shift, Target, apply_reset, known_history, plan_reset, plan_undo
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import Scope
from offsetkeeper.testing.simulator.kafka import GROUP, TOPIC

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.world import World


def reset_positions(world: World, to: Target | Shift, *, force: bool = False, **which: Any) -> ResetPlan:
    """Set positions, as `offsetkeeper reset` does, and return the plan; `which` are arguments of `plan_reset`."""
    ledger = world.ledger()
    found = ledger.load()
    plan = plan_reset(found, ledger.store.address, world.cluster, to, history=known_history(ledger), **which)
    apply_reset(ledger, world.cluster, plan, "reset", force=force)
    return plan


def forget_positions(world: World, scope: Scope) -> Forgetting:
    """Take positions out, as `offsetkeeper forget --force` does, and return the plan."""
    ledger = world.ledger()
    plan = plan_forgetting(ledger.load(), scope)
    apply_forgetting(ledger, plan, "forget", force=True)
    return plan


def reset_to(world: World, offset: int, *, force: bool = False) -> None:
    """Set the group's two partitions to an offset."""
    reset_positions(world, {TopicPartition(TOPIC, partition): offset for partition in (0, 1)}, force=force)


def rewind(world: World) -> None:
    """Set the group back to the beginning if no run holds it."""
    world.repeats = world.rewound = True
    reset_to(world, 0)


def rewind_one(world: World) -> None:
    """Set one partition back to the beginning, and fence whoever holds the group."""
    world.repeats = world.rewound = True
    reset_positions(world, {TopicPartition(TOPIC, 1): 0}, force=True)


def rewind_forced(world: World) -> None:
    """Set the group back to the beginning, and fence whoever holds it."""
    world.repeats = world.rewound = True
    reset_to(world, 0, force=True)


def undo(world: World) -> None:
    """Take the newest reset back."""
    world.repeats = world.rewound = True
    ledger = world.ledger()
    plan, _ = plan_undo(ledger, world.cluster)
    apply_reset(ledger, world.cluster, plan, "undo", force=True)


def adopt(world: World) -> None:
    """Accept the marks of outputs where they do not fit the ledger; before that, let records be read that one lacks."""
    ledger = world.ledger()
    for name in world.marks():
        mark = world.marks()[name]
        sequence = 0 if mark is None else mark.sequence
        landed = ledger.load().landed_in(name)
        lost = world.lost(name, landed)
        try:
            check_marks(ledger.snapshot, {name: mark}, lost={name: lost} if lost else {})
        except MarkError as error:
            if not isinstance(error, MarkBehind):  # the output has what the ledger has forgotten: that is read again
                world.repeats = world.rewound = True
            if lost or sequence < landed.sequence:
                rewind_forced(world)
            apply_adoption(ledger, plan_adoption(ledger.load(), name, sequence), "adopted", force=True)


def copy_away(world: World) -> None:
    """Copy the ledger to another store, though a run may hold it."""
    copied = copy(GROUP, world.store, world.copy, force=True, overwrite=True)
    world.copied = True
    there = world.copy.state.snapshot
    if there != copied or there.owner is not None:
        world.schedule.violate(f"(f) a copy is reported as done, and the other store holds {there}")
