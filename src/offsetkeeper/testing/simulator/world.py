"""One history: a scenario's actors over models of a store, Kafka, Spark and outputs, watched by promises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from offsetkeeper.core.batch import DEAD_LETTERS, Batch
from offsetkeeper.core.mark import Landing, OutputMark, landing
from offsetkeeper.core.model import Change, Guarantee, Landed, Snapshot
from offsetkeeper.core.plan import Policies
from offsetkeeper.core.topics import Topics
from offsetkeeper.engines.settings import Pace, Run
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers.limits import Limits
from offsetkeeper.sinks import MarkKey, Outputs
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.simulator.checkpoint import ModelCheckpoint
from offsetkeeper.testing.simulator.kafka import FIRST, GROUP, TOPIC, ModelCluster, ModelPlace, ModelTopic
from offsetkeeper.testing.simulator.outputs import (
    FAULTS,
    NEW,
    TWICE,
    ModelConnectorReader,
    ModelJoiner,
    ModelMarkedOutput,
    ModelOutput,
    ModelPackedReader,
    ModelSlottedOutput,
    known,
    spoilt,
)
from offsetkeeper.testing.simulator.schedule import Budget, Event, Picker, Schedule
from offsetkeeper.testing.simulator.store import ModelStore, Row
from offsetkeeper.testing.simulator.watcher import CheckedLedger, Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping

PATTERN = re.compile(f"{TOPIC}(-.*)?")
GOING_ON = Policies(below_beginning="beginning", beyond_end="beginning", recreated="beginning", elsewhere="beginning")


def _target(output: str, table: str) -> str:
    return f"{output} of {table}" if table else ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is tried.

    Attributes:
        name: of the scenario.
        guarantee: of its runs.
        outputs: by name, each "apart", "keyed" (apart, and writing a batch twice leaves one copy), "marked"
            (keeps a mark, which it changes together with its rows) or "joined" (in the ledger's own transaction).
        dead_letters: the kind of the output for records that cannot be processed; empty where all can.
        actors: by name, what each does: a function of the world that returns what the actor runs.
        events: events that may happen once, by name; each is a function of the world.
        policies: of its runs.
        stateful: whether what is read goes through the state of a streaming query.
        packed: whether queries read as with the packed reader, else as with Spark's connector.
        own_checkpoints: whether each query has a checkpoint of its own; else they share one.
        slow_looks: whether others go on between two looks at a checkpoint.
        start: where a topic is begun that the group has not read.
        pattern: whether topics are found by a pattern.
        topic_ids: whether Kafka tells the ids of topics.
        leader_epochs: whether Kafka tells the leader epochs of partitions.
        history: entries that the store keeps.
        retry_timeout_s: seconds for which a run retries; with 0, each error is raised at once.
        attempts: how often a batch is tried.
        marked_output: makes an output that keeps a mark: of its name, the schedule, and what each write calls first.
        programs: what each program that is on the group runs, by the table that its outputs write to. The outputs have
            the same names, and share the marks. Empty if there is one program, whose outputs do not tell their target.
    """

    name: str
    guarantee: Guarantee
    outputs: Mapping[str, str]
    actors: Mapping[str, Callable[[World], None]]
    dead_letters: str = ""
    events: Mapping[str, Callable[[World], None]] = field(default_factory=dict)
    policies: Policies = GOING_ON
    stateful: bool = False
    packed: bool = True
    own_checkpoints: bool = False
    slow_looks: bool = False
    start: Literal["earliest", "latest"] = "earliest"
    pattern: bool = False
    topic_ids: bool = True
    leader_epochs: bool = False
    history: int = 1000
    retry_timeout_s: float = 60.0
    attempts: int = 3
    marked_output: Callable[..., ModelMarkedOutput] = ModelMarkedOutput
    programs: Mapping[str, Callable[[World], None]] = field(default_factory=dict)

    @property
    def tables(self) -> list[str]:
        """What the outputs of each program write to."""
        return [*self.programs] or [""]

    @property
    def joined(self) -> bool:
        """Whether all outputs are in the ledger's own transaction."""
        return all(kind == "joined" for kind in self.every_output.values())

    @property
    def marked(self) -> bool:
        """Whether all outputs keep marks."""
        return all(kind in {"marked", "slotted"} for kind in self.every_output.values())

    @property
    def every_output(self) -> Mapping[str, str]:
        """The outputs, and the dead letters."""
        return {**self.outputs, DEAD_LETTERS: self.dead_letters} if self.dead_letters else self.outputs


class World:
    """Everything in one history.

    Args:
        scenario: what is tried.
        pick: chooses at each step.
        watch: makes what watches the history, which is `Promises`.
        preemptions: how often an actor that could go on may be passed over.
        faults: how often something may go wrong.

    Attributes:
        apart: names of the outputs apart from the ledger's store, in their order.
        store: of the ledger.
        origin: the store that the ledger was in at first.
        copy: the store that an operator copies the ledger to.
        copied: whether that was reported as done.
        repeats: whether an event has happened after which records may come again, such as a restored backup.
        rewound: whether they may come again into outputs that keep marks too, as after a reset.
        edited: whether an operator has changed the checkpoint of a query.
        mixed: whether a query ran meanwhile, which the operator has been told to stop.
        dropping: whether runs drop a pending batch, by their policy.
    """

    def __init__(
        self, scenario: Scenario, pick: Picker, watch: Callable[[World], Watcher], *, preemptions: int, faults: int
    ) -> None:
        self.scenario = scenario
        self.schedule = Schedule(pick, Budget(preemptions, faults))
        self.promises = watch(self)
        self.store = ModelStore(self.schedule, GROUP, self._applied_to_origin, scenario.history)
        self.copy = ModelStore(self.schedule, GROUP, self._applied_to_copy, address="model://copy")
        self.origin, self.copied = self.store, False
        self.cluster = ModelCluster(self.schedule, ModelPlace(FIRST, {TOPIC: ModelTopic("1", [(0, 2, 2), (0, 2, 2)])}))
        self.cluster.moves, self.cluster.ids = bool(scenario.events), scenario.topic_ids
        self.cluster.epochs = scenario.leader_epochs
        owners = scenario.actors if scenario.own_checkpoints else [""]
        self.checkpoints = {name: self.new_checkpoint(number) for number, name in enumerate(owners)}
        self.repeats = self.rewound = self.edited = self.mixed = self.dropping = False
        # Whoever lets Spark speculate with a function that appends gets rows twice: no order of the ledger helps that.
        of_writes = tuple(f for f in FAULTS if f != TWICE or scenario.guarantee is not Guarantee.AT_MOST_ONCE)
        self._apart = {
            name: scenario.marked_output(name, self.schedule, self.promises.writing)
            if kind == "marked"
            else ModelSlottedOutput(name, self.schedule, self.promises.writing)
            if kind == "slotted"
            else ModelOutput(name, self.schedule, self.promises.writing, kind == "keyed", of_writes)
            for name, kind in scenario.every_output.items()
            if kind != "joined"
        }
        self.apart = [name for name in self._apart if name != DEAD_LETTERS]
        for each in self._marked().values():
            each.landing = self.promises.landing
        for name, output in self._apart.items():
            output.writes_to = _target(name, scenario.tables[0])
        self._programs = [self._apart, *(self._beside(table) for table in scenario.tables[1:])]
        for name, body in scenario.actors.items():
            self.schedule.add(name, partial(body, self))
        self.schedule.events += [Event(name, partial(happen, self)) for name, happen in scenario.events.items()]

    def run(self) -> None:
        """Let the history happen.

        Raises:
            Violation: a promise was broken.
        """
        self.schedule.run()

    def digest(self) -> int:
        """Return a digest of the whole state: two worlds with the same have the same futures."""
        apart = tuple(output.digest() for program in self._programs for output in program.values())
        checkpoints = [checkpoint.digest() for checkpoint in self.checkpoints.values()]
        return hash(
            (
                self.schedule.digest(),
                self.store.state.key,
                self.copy.state.key,
                self.cluster.digest(),
                *checkpoints,
                apart,
            )
        )

    def run_of(
        self, program: int = 0, pending: Literal["own", "finish", "drop"] = "own", *, renamed: bool = False
    ) -> Run:
        """Return what runs of a program of the scenario are asked for; `renamed` with new names of the outputs."""
        scenario, apart = self.scenario, self._programs[program]
        sinks = {name: apart.get(name) or ModelJoiner(name, self.schedule) for name in scenario.every_output}
        letters = sinks.pop(DEAD_LETTERS, None)
        if renamed:
            sinks = {f"{NEW}{name}" if getattr(sink, "writes_to", "") else name: sink for name, sink in sinks.items()}
        policies = replace(scenario.policies, pending="drop" if self.dropping else pending)
        if letters is not None:
            policies = replace(policies, poison="quarantine")
        return Run(
            group=GROUP,
            store_url=None,
            cluster=self.cluster.client(),
            subscription=Subscription(Topics.of(PATTERN if scenario.pattern else [TOPIC]), scenario.start, policies),
            reader=(ModelPackedReader if scenario.packed else ModelConnectorReader)(self.cluster),
            outputs=Outputs.of(sinks[""]) if "" in sinks else Outputs(**sinks),
            process=None if letters is None else spoilt,
            guarantee=scenario.guarantee,
            pace=Pace(Limits(max_records=2), attempts=scenario.attempts, retry_timeout_s=scenario.retry_timeout_s),
            given={},
            dead_letters=None if letters is None else Outputs.dead_letters(letters),
        )

    def ledger(self) -> CheckedLedger:
        """Return a ledger of the current actor."""
        actor = self.schedule.current
        assert actor is not None  # noqa: S101 - only actors have ledgers
        timeout_s = self.scenario.retry_timeout_s
        ledger = CheckedLedger(self.store, GROUP, retry_timeout_s=timeout_s, name=actor.name)
        ledger.promises, ledger.actor, ledger.model = self.promises, actor, self.store
        return ledger

    @property
    def checkpoint(self) -> ModelCheckpoint:
        """The checkpoint of the current actor; of one without, that which the ledger waits for, or has counted most."""
        actor = self.schedule.current
        if actor is not None and actor.name in self.checkpoints:
            return self.checkpoints[actor.name]
        found = self.store.state.snapshot
        query = found.pending.query if found.pending else None
        waiting, counts = {query.query} if query else set(), found.queries
        return max(
            self.checkpoints.values(),
            key=lambda each: (each.query_id in waiting, counts.get(each.query_id, 0), len(each.files)),
        )

    def landing(self, output: str, batch: Batch) -> Landing | None:
        """Return what the mark of an output says of a batch; None where it keeps none."""
        marks = self.marks()
        return landing(marks[output], batch) if output in marks else None

    def marks(self) -> dict[str, OutputMark | None]:
        """Return the marks of the outputs that keep one."""
        return {
            name: each.look(MarkKey(GROUP, name)).mark
            for first, each in self._marked().items()
            for name in sorted({first, *each.marks})
        }

    def landed_in(self, snapshot: Snapshot, output: str) -> int:
        """Return the sequence of the last batch that a ledger knows in an output, under each of its names."""
        return max(snapshot.landed_in(name).sequence for name in (output, f"{NEW}{output}"))

    def restore_outputs(self) -> None:
        """Put a backup back of each output that keeps a mark."""
        for each in self._marked().values():
            each.restore()

    def remake_outputs(self) -> None:
        """Make the target of each output that keeps a mark again."""
        for each in self._marked().values():
            each.remake()

    def lead_outputs_elsewhere(self) -> None:
        """Let the name of each output that keeps a mark lead to another target, or back."""
        for each in self._marked().values():
            each.lead_elsewhere()

    def lost(self, output: str, landed: Landed) -> str:
        """Return why rows that the ledger knows in an output are gone; empty if they are there."""
        each = self._marked()[known(output)]
        return Once(each.prepare(self.store, Guarantee.EXACTLY_ONCE), output).lost(
            landed, each.look(MarkKey(GROUP, output))
        )

    def gone(self, output: str) -> set[str]:
        """Return the ids of batches whose rows or void marks a backup has taken out of an output."""
        marked = self._marked()
        return marked[known(output)].gone if known(output) in marked else set()

    def _marked(self) -> dict[str, ModelMarkedOutput]:
        return {name: each for name, each in self._apart.items() if isinstance(each, ModelMarkedOutput)}

    def program_of(self, batch: Batch | None) -> int:
        """Return the number of the program whose batch it is in the ledger; 0 if the ledger does not say."""
        program = batch and batch.program
        told = {each.rpartition(" ")[2] for each in program.outputs.values()} if program else set()
        return next((number for number, table in enumerate(self.scenario.tables) if table in told), 0)

    def is_elsewhere(self) -> bool:
        """Whether another program has landed a batch that is pending or unsettled, after it was taken over."""
        found = self.store.state.snapshot
        batch = found.pending or found.unsettled
        others = {*range(len(self._programs))} - {self.program_of(batch)}
        rows = (row for name in self.scenario.every_output for other in others for row in self.rows_of(name, other))
        return batch is not None and any(row.batch == batch.id for row in rows)

    def _beside(self, table: str) -> dict[str, ModelOutput]:
        """Return the outputs of another program: other rows, under the same marks."""
        return {
            name: ModelMarkedOutput(
                name,
                self.schedule,
                self.promises.writing,
                writes_to=_target(name, table),
                marks=first.marks,
                landing=self.promises.landing,
            )
            for name, first in self._marked().items()
        }

    def new_checkpoint(self, number: int) -> ModelCheckpoint:
        """Return an empty checkpoint."""
        query_id = f"00000000-0000-0000-0000-{number:012}"
        return ModelCheckpoint(self.schedule, query_id, slow=self.scenario.slow_looks)

    def _applied_to_origin(self, change: Change, owner_id: str) -> None:
        if self.store is self.origin:  # else it is copied back
            self.promises.applied(change, owner_id)

    def _applied_to_copy(self, change: Change, owner_id: str) -> None:
        if self.schedule.undisturbed or self.store is self.copy:
            self.promises.applied(change, owner_id)

    def rows_of(self, output: str, program: int = 0) -> Counter[Row]:
        """Return the rows of a program's output, and how often each is there."""
        apart = self._programs[program].get(known(output))
        if apart is not None:
            return apart.counted()
        there = [*self.origin.rows(), *self.copy.rows()]
        return Counter(row for row in there if row.output == known(output))
