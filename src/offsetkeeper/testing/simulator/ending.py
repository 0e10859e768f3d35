"""The end of a history: one more owner works undisturbed, and what a user would count is checked."""

from __future__ import annotations

from functools import partial

from offsetkeeper.errors import CheckpointMismatch, StartRefused
from offsetkeeper.testing.simulator.edits import mend
from offsetkeeper.testing.simulator.operators import adopt
from offsetkeeper.testing.simulator.world import World


def settle(world: World) -> None:
    """Let one more owner work undisturbed, and check what a user would count.

    Raises:
        Violation: a promise was broken.
    """
    world.schedule.undisturbed = True
    if any(checkpoint.barred for checkpoint in world.checkpoints.values()):
        world.schedule.add("mender", partial(mend, world))
        world.schedule.run()
    _go_on(world, "last")
    if world.copied:
        world.store, world.repeats = world.copy, True
        _go_on(world, "last of the copy")


def _go_on(world: World, name: str) -> None:
    if world.repeats:
        world.schedule.add(f"adopter before the {name}", partial(adopt, world))
        world.schedule.run()
    bodies = [*world.scenario.programs.values()] or [*world.scenario.actors.values()]
    found = world.store.state.snapshot
    body = bodies[world.program_of(found.pending or found.unsettled)]
    last = world.schedule.add(name, partial(body, world))
    world.schedule.run()
    if isinstance(last.raised, StartRefused) and world.is_elsewhere():  # it says: drop the batch
        world.dropping = True
        last = world.schedule.add(f"{name}, which drops the batch", partial(body, world))
        world.schedule.run()
    if isinstance(last.raised, CheckpointMismatch) and world.cluster.cut:  # it says: start with a new checkpoint
        world.checkpoints = dict.fromkeys(world.checkpoints, world.new_checkpoint(len(world.schedule.actors)))
        last = world.schedule.add(f"{name}, with a new checkpoint", partial(body, world))
        world.schedule.run()
    world.schedule.current = None
    world.promises.at_the_end(last)
