"""Operators who edit the checkpoint of a query, as actors: move, truncate, and take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetkeeper.checkpoint.change import apply, plan_undo
from offsetkeeper.checkpoint.contents import read_checkpoint
from offsetkeeper.checkpoint.plans import Edit, plan_move, plan_truncate
from offsetkeeper.testing.simulator.checkpoint import ModelFiles
from offsetkeeper.testing.simulator.runs import query

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.world import World


def move(world: World) -> None:
    """Let the query go on elsewhere: in one partition at its beginning, in the other one record later."""
    files = ModelFiles(world.checkpoint)
    found = read_checkpoint(files)
    at = found.next().positions
    edit = plan_move(found, {tp: at[tp] + 1 if tp.partition else 0 for tp in at})
    _apply(world, files, edit)


def truncate(world: World) -> None:
    """Take the query back to where it was after its first batch."""
    files = ModelFiles(world.checkpoint)
    _apply(world, files, plan_truncate(read_checkpoint(files), 0, query_id="keep"))


def take_back(world: World) -> None:
    """Undo the newest edit, or one that was cut off; one that is still under way is waited for."""
    files = ModelFiles(world.checkpoint)
    others = (each for each in world.schedule.actors if each is not world.schedule.current)
    if world.checkpoint.barred and any(each.begun and not each.ended for each in others):
        return
    _apply(world, files, plan_undo(files))


def mend(world: World) -> None:
    """Undo an edit that was cut off, and see that the checkpoint is as it was before it."""
    files = ModelFiles(world.checkpoint)
    edit = plan_undo(files)
    apply(files, edit, force=True)
    if read_checkpoint(files).fingerprint != edit.after:
        world.schedule.violate("(k) an edit that was cut off is undone, and the checkpoint is not as it was")


def _apply(world: World, files: ModelFiles, edit: Edit) -> None:
    world.edited = True
    try:
        world.mixed |= _a_query_runs(world)
        apply(files, edit, force=True)
    finally:
        world.mixed |= _a_query_runs(world)
    found = read_checkpoint(files).fingerprint
    if not world.mixed and found not in {edit.after, edit.before}:  # done, or undone since
        world.schedule.violate("(k) an edit is reported as done, and the checkpoint is not as it was planned")


def _a_query_runs(world: World) -> bool:
    """Whether an edit and a query change the checkpoint at once: nothing in a folder could keep them apart."""
    queries = world.scenario.actors
    return any(each.begun and not each.ended and queries.get(each.name) is query for each in world.schedule.actors)
