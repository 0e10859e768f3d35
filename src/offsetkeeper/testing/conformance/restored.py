"""Runs of the real engine over one output that keeps a mark, one after the other, while backups come back."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

import pytest

from offsetkeeper.core.model import Guarantee, Snapshot
from offsetkeeper.errors import MarkError
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.testing.simulator.kafka import TOPIC, ModelTopic
from offsetkeeper.testing.simulator.operators import reset_to
from offsetkeeper.testing.simulator.outputs import ModelMarkedOutput
from offsetkeeper.testing.simulator.promises import Promises
from offsetkeeper.testing.simulator.runs import owner
from offsetkeeper.testing.simulator.scenarios import grow
from offsetkeeper.testing.simulator.world import Scenario, World

Output = TypeVar("Output", bound=ModelMarkedOutput)
_COMMAND = re.compile(r"offsetkeeper (adopt .*)$", re.MULTILINE)


class Restored(Generic[Output]):
    """A group with one output, over models of a store and of Kafka with one record in each of two partitions.

    The same calls give the same batches, ids and marks. So the output of a second one that was called less often is a
    backup of the first one's.

    Args:
        output: makes the output, as in `Scenario.marked_output`.

    Attributes:
        output: the output.
    """

    output: Output

    def __init__(self, output: Callable[..., Output]) -> None:
        def make(*arguments: Any) -> Output:
            self.output = output(*arguments)
            return self.output

        scenario = Scenario("restored", Guarantee.EXACTLY_ONCE, {"": "marked"}, {}, marked_output=make)
        self.world = World(scenario, lambda _: 0, Promises, preemptions=0, faults=0)
        self.world.schedule.undisturbed = self.world.repeats = self.world.rewound = True
        self.world.cluster.topics[TOPIC] = ModelTopic("1", [(0, 1, 1), (0, 1, 1)])
        self._numbers = count()

    @property
    def ledger(self) -> Snapshot:
        """The ledger as it is stored."""
        return self.world.store.state.snapshot

    def produce(self) -> None:
        """Write a record to each partition."""
        grow(self.world)

    def run(self) -> None:
        """Run until all is read, as a program that is started anew.

        Raises:
            OffsetkeeperError: see `Pipeline.run`.
        """
        self._do(owner)

    def refused(self, error: type[MarkError]) -> list[str]:
        """Assert that a start is refused and changes neither ledger nor output; return the command that it prints."""
        before = self.ledger, self.counted()
        with pytest.raises(error) as caught:
            self.run()
        assert (self.ledger, self.counted()) == before
        [command] = _COMMAND.findall(str(caught.value))
        return shlex.split(command)

    def adopt(self, command: list[str]) -> None:
        """Do what the command that a refused start prints does with `--execute`."""
        word, _, option, sequence = command
        assert (word, option) == ("adopt", "--sequence")

        def body(world: World) -> None:
            ledger = world.ledger()
            apply_adoption(ledger, plan_adoption(ledger.load(), "", int(sequence)), "adopted")

        self._do(body)

    def reset(self, offset: int) -> None:
        """Do what `offsetkeeper reset --execute` does: set both partitions to an offset."""
        self._do(partial(reset_to, offset=offset))

    def counted(self) -> dict[tuple[int, int], int]:
        """Return how often each record is in the output, by partition and offset."""
        counted: Counter[tuple[int, int]] = Counter()
        for row, times in self.world.rows_of("").items():
            counted[row.record[2:]] += times
        return dict(counted)

    def _do(self, body: Callable[[World], object]) -> None:
        actor = self.world.schedule.add(f"process {next(self._numbers)}", partial(body, self.world))
        self.world.schedule.run()
        self.world.schedule.current = None
        if actor.raised is not None:
            raise actor.raised


def each(*offsets: int, times: int = 1) -> dict[tuple[int, int], int]:
    """Return the records with these offsets in both partitions, as often as told; see `Restored.counted`."""
    return {(partition, offset): times for partition in (0, 1) for offset in offsets}
