"""A group in the simulator whose rows are counted, after acts of an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.operate.audit import Kind, audit
from offsetkeeper.operate.reset import apply_reset, plan_undo
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import Scope
from offsetkeeper.testing.simulator.chain_search import groups
from offsetkeeper.testing.simulator.chains import Chain, Step
from offsetkeeper.testing.simulator.kafka import TOPIC
from offsetkeeper.testing.simulator.operators import reset_positions
from offsetkeeper.testing.simulator.world import Scenario, World

T = TypeVar("T")
GROUPS = {each.name: each for each in groups()}
P0, P1, P2 = (TopicPartition(TOPIC, number) for number in range(3))
Offset = tuple[int, int]


class Counted:
    """A group of two partitions with two records each; a batch has one record of each."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.world = chain, chain.world

    def run(self, *faults: tuple[int, int]) -> None:
        """Let a run work until it is caught up."""
        self.chain._take(Step("run", faults=faults))

    def happen(self, what: str) -> None:
        """Let something happen to Kafka."""
        self.chain._take(Step(what))

    def cut(self, at: int, end: int, partition: int = 0) -> None:
        """Cut a log by an unclean election; then other records come, up to an end."""
        topic = self.world.cluster.topics[TOPIC]
        beginning, stable, _ = topic.partitions[partition]
        topic.elect(partition, stable - at)
        topic.partitions[partition] = (beginning, end, end)

    def do(self, act: Callable[[World], T]) -> T:
        """Let an operator act."""
        found: list[T] = []
        actor = self.world.schedule.add(
            f"operator{len(self.world.schedule.actors)}", lambda: found.append(act(self.world))
        )
        self.chain._go(lambda _: 0)
        if actor.raised is not None:
            raise actor.raised
        return found[0]

    def reset(self, to: Any, *partitions: TopicPartition, **how: Any) -> ResetPlan:
        """Reset partitions, or all."""
        how.setdefault("scope", Scope(partitions))
        return self.do(partial(reset_positions, to=to, force=True, **how))

    def undo(self, **how: Any) -> ResetPlan:
        """Take the newest reset back."""

        def act(world: World) -> ResetPlan:
            ledger = world.ledger()
            plan, _ = plan_undo(ledger, world.cluster, **how)
            apply_reset(ledger, world.cluster, plan, "undo", force=True)
            return plan

        return self.do(act)

    def rows(self, output: str = "", topic_id: str = "1") -> Counter[Offset]:
        """Return how often an output has each record."""
        found: Counter[Offset] = Counter()
        for row, times in self.world.rows_of(output).items():
            if row.record[1] == topic_id:
                found[row.record[2], row.record[3]] += times
        return found

    def there(self) -> set[Offset]:
        """Return what Kafka holds now."""
        return {(number, offset) for _, _, number, offset in self.world.cluster.records()}

    def commits(self) -> list[tuple[OffsetRange, ...]]:
        """Return the ranges of each batch that was committed, the oldest first."""
        entries = [state.entry for state in self.world.store.state.states() if state.entry]
        return [entry.ranges for entry in reversed(entries) if entry.event == "commit"]

    def findings(self, kind: Kind) -> set[tuple[int, int, int]]:
        """Return what `verify` finds."""
        states = [state for state in self.world.store.state.states() if state.entry]
        found = audit([s.entry for s in reversed(states) if s.entry], self.world.store.state.snapshot)
        return {(e.topic_partition.partition, e.start, e.end) for e in found if e.kind is kind and e.topic_partition}


def counted(group: str) -> AbstractContextManager[Counted]:
    """Make a group."""
    return made(GROUPS[group])


@contextmanager
def made(scenario: Scenario) -> Iterator[Counted]:
    """Make the group of a scenario."""
    chain = Chain(scenario)
    try:
        yield Counted(chain)
    finally:
        chain.world.schedule.close()


@contextmanager
def died(group: str, number: int = 1, **has: bool) -> Iterator[Counted]:
    """Make a group whose batch of this number is under way, in these outputs and not in others; its run has died."""
    for choice in range(60):
        with counted(group) as found:
            found.run((choice, -1))
            pending = found.world.store.state.snapshot.pending
            names = {name or "it": bool(found.rows(name)[0, number - 1]) for name in found.world.scenario.every_output}
            if pending is not None and pending.sequence == number and names == has:
                yield found
                return
    pytest.fail("no run died there")
