"""Chains of an operator's acts on real servers: what their previews promise is what the rows show.

The simulator tries many more of them (`tests/simulator`). Here a record's value tells which topic of the name it is of.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from engines.marked import Died, dies, hooked, nothing
from offsetkeeper import Batch, Policies, open_store
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import OffsetkeeperError, StartRefused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.audit import Kind, audit
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import apply_forgetting, plan_forgetting
from offsetkeeper.operate.reset import apply_reset, known_history, plan_reset, plan_rewind, plan_undo
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import Scope
from offsetkeeper.sinks import Lander, Table
from offsetkeeper.testing.simulator.previews import Account, Act, Promise

POLICIES = Policies(recreated="beginning", beyond_end="beginning", below_beginning="beginning")
Record = tuple[str, str, int, int]
pytestmark = pytest.mark.usefixtures("briefly_doubted")


@dataclass
class Dying:
    """A table; where it keeps a mark, its driver may die before or after a batch lands.

    Attributes:
        before, after: called then.
    """

    table: Table
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing

    def prepare(self, store: Any, guarantee: Any) -> Any:
        """See `Sink.prepare`."""
        way = self.table.prepare(store, guarantee)
        return hooked(way, self) if isinstance(way, Lander) else way


@dataclass
class Chain:
    """A group of one topic, whose table is in PostgreSQL; its ledger is there too, or in a file of SQLite.

    Attributes:
        steps: what happened, for messages.
        topic_ids: of the topics that had the name, in their order: values are their numbers.
        reached: the last offset of each partition, by topic.
    """

    lab: Lab
    topic: str
    database: str
    file: str
    chance: random.Random
    steps: list[str] = field(default_factory=list)
    topic_ids: list[str] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    reached: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.account = Account(self._broken, once=True)
        self.sink = Dying(Table(self.database, "orders"))
        self.lab.store = self.chance.choice((self.database, self.file))
        self.partitions = 2
        self._appeared()
        self.produce()

    def go(self) -> None:
        """Take some steps, and check."""
        for _ in range(self.chance.randrange(2, 6)):
            for step in (self._happens(), self.chance.choice(["run", "run", *RUNS]), self._acts()):
                if step:
                    self.steps.append(step)
                    STEPS[step](self) if step in STEPS else self.run(step)
                    self._note_positions()
        self.steps.append("the last run")
        if not self.run("run"):
            return  # the operator has to decide first
        self._note_positions()
        rows = self.rows()
        self.account.check("orders", rows, self.there(), ())
        self._check_findings(rows)

    def run(self, how: str) -> bool:
        """Let a run catch up, or die where `how` says; return whether it was let in.

        A batch that is pending for the table's mark is refused where the ledger was copied into the table's database.
        """
        self.sink.before = dies if how == "before it lands" else nothing
        self.sink.after = dies if how == "after it has landed" else nothing

        def process(frame: DataFrame, _: Batch) -> DataFrame:
            if how == "before the batch is written":
                raise Died
            return frame.selectExpr("string(value) as made", "partition", "offset")

        pipeline = self.lab.pipeline(self.topic, start="earliest", policies=POLICIES, max_records=3, attempts=1)
        try:
            pipeline.run(self.lab.spark, process, sink=self.sink, guarantee="exactly_once", until="caught_up")
        except Died:
            pass
        except StartRefused as error:
            if self.lab.store != self.database or "but this program has it without a mark" not in str(error):
                raise
            return False
        return True

    def produce(self) -> None:
        """Let a record come into each partition."""
        made = str(len(self.topic_ids) - 1)
        self.lab.produce_all(self.topic, [(number, made) for number in range(self.partitions)])
        for number in range(self.partitions):
            key = (self.topic_ids[-1], number)
            self.ends[key] = self.ends.get(key, 0) + 1

    def recreate(self) -> None:
        """Let the topic be made again, with a record in each partition."""
        self.lab.recreate(self.topic, self.partitions)
        self._appeared()
        self.produce()

    def grow(self) -> None:
        """Let the topic have a partition more, with a record."""
        self.partitions += 1
        self.lab.grow(self.topic, self.partitions)
        self.produce()

    def reset(self) -> None:
        """Reset all partitions, or one."""
        to = self.chance.choice(("earliest", "latest", "offset"))
        one = self.chance.choice((None, TopicPartition(self.topic, self.chance.randrange(self.partitions))))
        which: dict[str, Any] = {"scope": self._scope(one)}
        with self._acting() as (ledger, cluster):
            target: Any = to
            if to == "offset":
                every = [one] if one else [TopicPartition(self.topic, number) for number in range(self.partitions)]
                target, which = dict.fromkeys(every, self.chance.randrange(4)), {"clip": True}
            found = ledger.load()
            plan = plan_reset(found, ledger.store.address, cluster, target, history=known_history(ledger), **which)
            self._apply(ledger, cluster, plan)

    def _scope(self, one: TopicPartition | None) -> Scope:
        return Scope(topics=[self.topic]) if one is None else Scope([one])

    def undo(self) -> None:
        """Take the newest reset back."""
        with self._acting() as (ledger, cluster):
            plan, _ = plan_undo(ledger, cluster)
            self._apply(ledger, cluster, plan)

    def rewind(self) -> None:
        """Go back to an earlier version."""
        with self._acting() as (ledger, cluster):
            version = max(1, ledger.load().version - self.chance.randrange(8))
            self._apply(ledger, cluster, plan_rewind(ledger, cluster, version))

    def forget(self) -> None:
        """Take all positions out of the ledger, or that of one partition."""
        one = self.chance.choice((None, TopicPartition(self.topic, self.chance.randrange(self.partitions))))
        with self._acting() as (ledger, _):
            plan = plan_forgetting(ledger.load(), self._scope(one))
            apply_forgetting(ledger, plan, "forget", force=True)
            rows, gone = self.rows(), {tp.partition for tp, _ in plan.positions}
            whole = self.topic not in plan.known  # what was forgotten before starts as start= says too
            promised = {
                record: Promise.AGAIN if rows[record] else Promise.FRESH
                for record in self.there()
                if whole or record[2] in gone
            }
            self.account.acts.append(Act(promised, frozenset(), frozenset(), {"orders": rows}))

    def copy(self) -> None:
        """Copy the group to the other store, and go on there."""
        there = self.file if self.lab.store == self.database else self.database
        with closing(open_store(self.lab.store)) as source, closing(open_store(there)) as target, self._refused():
            copy("group", source, target, force=True, overwrite=True)
            self.lab.store = there

    def rows(self) -> Counter[Record]:
        """Return how often the table has each record."""
        with closing(psycopg.connect(self.database)) as connection:
            found = connection.execute('select made, "partition", "offset" from orders').fetchall()
        return Counter((self.topic, self.topic_ids[int(made)], number, offset) for made, number, offset in found)

    def there(self) -> set[Record]:
        """Return the records that Kafka holds."""
        newest = self.topic_ids[-1]
        return {
            (self.topic, newest, number, offset)
            for number in range(self.partitions)
            for offset in range(self.ends.get((newest, number), 0))
        }

    def _apply(self, ledger: Any, cluster: KafkaCluster, plan: ResetPlan) -> None:
        before: Snapshot = ledger.snapshot
        apply_reset(ledger, cluster, plan, "an act", force=True)
        if not plan.moves:
            return
        self.account.acts.append(Act.of(plan, before, ledger.snapshot, {"orders": self.rows()}))

    @contextmanager
    def _acting(self) -> Iterator[tuple[Any, KafkaCluster]]:
        with self._refused(), self.lab.ledger() as ledger, KafkaCluster(self.lab.kafka.bootstrap) as cluster:
            yield ledger, cluster

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OffsetkeeperError as error:
            self.steps[-1] += f" (refused: {error})"

    def _appeared(self) -> None:
        with KafkaCluster(self.lab.kafka.bootstrap) as cluster:
            self.topic_ids.append(str(cluster.describe([self.topic])[self.topic].topic_id))

    def _note_positions(self) -> None:
        for tp, at in self.lab.snapshot().positions.items():
            self.reached[str(at.topic_id), tp.partition] = at.offset

    def _check_findings(self, rows: Counter[Record]) -> None:
        """Hold what `verify` says against the rows."""
        findings = audit(self.lab.history(), self.lab.snapshot())
        told = {kind: Counter[tuple[int, int]]() for kind in Kind}
        for each in findings:
            partition = -1 if each.topic_partition is None else each.topic_partition.partition
            told[each.kind].update((partition, offset) for offset in range(each.start, each.end))
        passed = ((self.topic, *key, n) for key, end in self.reached.items() for n in range(end))
        gaps = Counter((record[2], record[3]) for record in passed if not rows[record])
        overlaps = Counter((record[2], record[3]) for record, times in rows.items() for _ in range(times - 1))
        if (told[Kind.GAP], told[Kind.OVERLAP]) != (gaps, overlaps):
            self._broken(f"verify says {findings}; there are the gaps {gaps} and the overlaps {overlaps}")

    def _happens(self) -> str:
        return self.chance.choice(("", "", "records arrive", "records arrive", "the topic is made again", "it grows"))

    def _acts(self) -> str:
        return self.chance.choice(("reset", "reset", "undo", "rewind", "forget", "copy", "copy"))

    def _broken(self, what: str) -> None:
        pytest.fail("\n  ".join([what, *self.steps]))


RUNS = ("before the batch is written", "before it lands", "after it has landed")
STEPS: dict[str, Callable[[Chain], object]] = {
    "records arrive": Chain.produce,
    "the topic is made again": Chain.recreate,
    "it grows": Chain.grow,
    "reset": Chain.reset,
    "undo": Chain.undo,
    "rewind": Chain.rewind,
    "forget": Chain.forget,
    "copy": Chain.copy,
}


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(number, marks=pytest.mark.soak) for number in range(3, 60))]
)
def test_what_previews_promise_is_what_comes_from_kafka(
    lab: Lab, topic: Callable[..., str], database: str, tmp_path: Path, seed: int
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute('create table orders (made text, "partition" int, "offset" bigint)')
    file = f"sqlite:///{tmp_path}/offsets.db"
    Chain(lab, topic(2), database, file, random.Random(f"chain {seed}")).go()  # noqa: S311 - no secret
