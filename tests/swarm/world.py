"""Lets a history happen: a real broker, a real Spark, real stores and outputs; and asks the judge after each act."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from engines.lab import Lab
from engines.marked import nothing
from offsetkeeper import Batch as KafkaBatch
from offsetkeeper import Pipeline, Policies, TopicPartition, open_store
from offsetkeeper.core.batch import QUARANTINED
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.adopt import apply_adoption, plan_adoption
from offsetkeeper.operate.copy import copy
from offsetkeeper.operate.forget import apply_forgetting, plan_forgetting
from offsetkeeper.operate.reset import Shift, apply_reset, known_history, plan_reset, plan_rewind, plan_undo
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import Scope
from offsetkeeper.sinks import Joiner, Lander, MarkKey, Outputs, few
from offsetkeeper.sinks.functions import Function
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer
from swarm.book import NONE, Batch, Book, Finding
from swarm.draw import HAPPENINGS, History, Step
from swarm.faults import HOWS, Died, DiedInQuery, Fault, Trip, UserError, trip_sink, tripped_store
from swarm.outputs import KINDS, Database, Letters, OtherTopic, Place, WithOffsets
from swarm.records import LETTERS, Program, Row, Where
from swarm.source import Source

_LIMIT_S = 120
_MARKS = ("MarkAhead", "MarkBehind", "MarkMismatch", "StartRefused")
EXCUSES: Mapping[str, tuple[str, ...]] = {
    "recreated": ("StartRefused", "RangeGone", "CheckpointMismatch"),
    "retention": ("StartRefused", "RangeGone", "CheckpointMismatch"),
    "restored": (*_MARKS, "SinkError", "CheckpointMismatch"),
    "deleted": (*_MARKS, "SinkError"),
    "mark deleted": _MARKS,
    "copied": (*_MARKS, "CheckpointMismatch"),
    "adopted": _MARKS,
    "queries and runs": ("CheckpointMismatch",),
}
"""What a run may end with after that."""
QUIET = frozenset({"records come", *HAPPENINGS, "a backup is made"})
"""Acts that change neither ledger nor outputs."""
Rows = Mapping[str, list[Row]]


class Broken(Exception):
    """A history has shown a defect."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.kind} in {finding.output or 'no output'}: {finding.what}")
        self.finding = finding


@dataclass
class Backup:
    """A copy of all that is on disk.

    Attributes:
        folder: where.
        url: of the store.
    """

    folder: Path
    url: str


@dataclass
class World:
    """One history that happens.

    Attributes:
        databases: for each kind of server, makes an empty database and returns its URL.
        told: its acts in plain words, as far as they have happened.
        seen: what it has reached, for the coverage.
        verdict: how it ended.
    """

    history: History
    spark: SparkSession
    kafka: KafkaServer
    folder: Path
    databases: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    verdict: str = ""

    def __post_init__(self) -> None:
        history, self.group = self.history, f"g-{self.folder.name}"
        self._database = self.databases[history.store]() if history.store in self.databases else ""
        self._url = self._store_url("store")
        self._make_store(self._url)
        self.source = Source(self.kafka, Lab(self.spark, self.kafka, self._url), history.content)
        for number in history.partitions:
            self.source.make(number)
        self.places = {f"o{number}": self._place(kind, f"o{number}") for number, kind in enumerate(history.outputs)}
        if history.quarantines:
            self.places[LETTERS] = Letters(LETTERS, self.folder / LETTERS)
            self.places[LETTERS].make()
        self.outputs = {name: place for name, place in self.places.items() if name != LETTERS}
        self.program = Program(
            copies=2 if {"copies", "union"} & history.program else 1,
            skips=frozenset([*self.outputs][:1]) if "skips" in history.program else frozenset(),
            shape=history.program,
            heads="headers" in history.content,
            poisonous=history.quarantines,
        )
        self.book = Book(programs={1: self.program}, uncommitted=history.isolation == "read_uncommitted")
        for name, place in self.places.items():
            self.book.open(name, self._keeps(place))
        self._backups: list[Backup] = []
        self._excuses: set[str] = set()
        self._left_urls: list[str] = []  # of stores that the group was copied from
        self._seen_ledger: tuple[Snapshot, list[Entry]] | None = None
        self._exempt: set[tuple[str, str]] = set()  # batches in outputs of which nothing is to be said
        self._suspended: dict[str, str] = {}  # outputs that must be refused, and why
        self._first_ends: dict[tuple[str, str, int], int] = {}

    # What happens -----------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Let it happen to its end.

        Raises:
            Broken: a promise is broken.
        """
        with self._staged():
            for step in self.history.steps:
                self._take(step)
            self._end()

    def _take(self, step: Step) -> None:
        self.told.append(step.what)
        self._seen_ledger = None
        before = len(self.told)
        done = _DO[step.what](self, step)
        if done is False:
            self.told[before - 1] += " (nothing to do)"
            return
        self.seen[step.what] += 1
        if step.what not in QUIET:
            self._observe()
            self._judge()

    def _end(self) -> None:
        """Let a last run catch up, with the remedies that an operator has."""
        self.told.append("the last run")
        if self.source.end():
            self.told[-1] += ", after the transaction has ended"
        if self.program.misfit:
            self._change(misfit=False)
        for remedy in ("", "adopt", "reset"):
            if remedy == "adopt" and self.verdict.startswith("StartRefused"):
                continue
            if remedy:
                self.told.append(f"the remedy: {remedy}")
                _REMEDIES[remedy](self)
            outcome = self._run([])
            self._observe()
            self._judge()
            self.verdict = outcome
            if not outcome.startswith(("Mark", "StartRefused")):
                return

    def _reset_all(self) -> None:
        """Read all again: what remains after a refusal."""

        def plan(ledger: Ledger, cluster: KafkaCluster) -> ResetPlan:
            scope = Scope(topics=self.source.topics)
            return plan_reset(ledger.load(), ledger.store.address, cluster, "earliest", scope)

        self._act(plan)

    def _come(self, step: Step) -> None:
        chance = step.chance()
        self._note(self.source.produce(chance, chance.randrange(1, 7)))

    def _abort(self, step: Step) -> None:
        self._note(self.source.abort(step.chance()))

    def _leave_open(self, step: Step) -> bool | None:
        found = self.source.open(step.chance())
        self._note(found)
        return None if found else False

    def _end_transaction(self, _: Step) -> bool:
        return self.source.end()

    def _grow(self, step: Step) -> None:
        self.told[-1] += f" to {self.source.grow(step.chance())}"

    def _recreate(self, step: Step) -> None:
        self.told[-1] += f": {self.source.recreate(step.chance())}"
        self._excuses.add("recreated")
        self.book.left |= self.book.pending.records

    def _retention(self, step: Step) -> bool | None:
        chance = step.chance()
        logs = [log for log in {r.where.log for r in self.book.records.values()} if self._is_now(log)]
        if not logs:
            return False
        log = chance.choice(sorted(logs))
        ends = max(r.where.offset for r in self.book.records.values() if r.where.log == log) + 1
        before = chance.randrange(1, min(ends, self.source.open_from.get(log, ends)) + 1)
        self.source.delete(log[0], log[2], before)
        self._excuses.add("retention")
        self.told[-1] += f" {log[0]} {log[2]} before {before}"
        for record in self.book.records.values():
            if record.where.log == log and record.where.offset < before and not self.book.passed(record.where):
                if record.where in self.book.pending.records:
                    self.book.left.add(record.where)
                else:
                    for due in self.book.due.values():
                        due.discard(record.where)
        return None

    def _is_now(self, log: tuple[str, str, int]) -> bool:
        return self.source.ids.get(log[0]) == log[1]

    def _plain_run(self, _: Step) -> None:
        self._run([])

    def _faulty_run(self, step: Step) -> None:
        self._run([self._fault(step, dies=False)])

    def _dying_run(self, step: Step) -> None:
        self._run([self._fault(step, dies=True)])

    def _fault(self, step: Step, *, dies: bool) -> Fault:
        chance = step.chance()
        where = chance.choice(("store", "store", "output", "output", "function"))
        how = chance.choice([how for how in HOWS[where] if how.startswith("dies") == dies])
        fault = Fault(where, how, chance.randrange(1, 9 if where == "store" else 3))
        self.told[-1] += f", {fault}"
        return fault

    def _query(self, _: Step) -> bool | None:
        return self._start([])

    def _dying_query(self, step: Step) -> bool | None:
        return self._start([self._fault(step, dies=True)])

    def _program_changes(self, step: Step) -> None:
        chance = step.chance()
        what = chance.choice(("copies", "drops", "misfit", "shape", "mended"))
        if what == "copies":
            self._change(copies=3 - self.program.copies)
        elif what == "drops":
            self._change(drops=frozenset({chance.choice(("key", "value", "heads"))}))
        elif what == "misfit":
            self._change(misfit=True)
        elif what == "shape":
            self._change(shape=frozenset({chance.choice(("python", "union", "repartition", "random"))}))
        else:
            self._change(misfit=False, drops=frozenset())

    def _change(self, **what: Any) -> None:
        current = {name: getattr(self.program, name) for name in Program.__dataclass_fields__}
        self.program = Program(**{**current, **what, "made": self.program.made + 1})
        self.book.programs[self.program.made] = self.program
        self.told[-1] += f": {', '.join(f'{name} {word}' for name, word in what.items())}"

    def _delete_checkpoint(self, _: Step) -> bool:
        there = (self.folder / "checkpoint").exists()
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        return there

    def _backup(self, _: Step) -> None:
        to = self.folder / f"backup-{len(self._backups)}"
        to.mkdir()
        for place in self.places.values():
            if place.restorable:
                place.save(to / place.name)
        if self._store_folder.exists():
            shutil.copytree(self._store_folder, to / "store")
        self._backups.append(Backup(to, self._url))

    def _restore_output(self, step: Step) -> bool | None:
        chance = step.chance()
        choice = [name for name, place in self.places.items() if place.restorable]
        if not self._backups or not choice:
            return False
        name, backup = chance.choice(choice), chance.choice(self._backups)
        before = self._rows(name)
        self.places[name].put_back(backup.folder / name)
        self.told[-1] += f": {name}, as it was in {backup.folder.name}"
        self._went_back({name: before})
        return None

    def _roll_back(self, step: Step) -> bool | None:
        chance = step.chance()
        if not self._backups:
            return False
        backup, before = chance.choice(self._backups), {name: self._rows(name) for name in self.places}
        name = chance.choice([*self.outputs])
        if not (backup.folder / name).exists() or not self.places[name].roll_back(backup.folder / name):
            return False
        self.told[-1] += f": {name}, to {backup.folder.name}"
        self._went_back({name: before[name]})
        return None

    def _restore_in_a_run(self, step: Step) -> bool | None:
        """Restore an output while a batch is computed: before it lands."""
        chance = step.chance()
        choice = [name for name, place in self.outputs.items() if place.restorable and place.marked]
        if not self._backups or not choice or self.history.guarantee == "at_most_once" or self._suspended:
            return False
        name, backup = chance.choice(choice), chance.choice(self._backups)
        self._note(self.source.produce(chance, 4))
        self.told[-1] += f" in a run: {name}, as it was in {backup.folder.name}"
        trip, ids = Trip(), list[set[str]]()

        def restore() -> None:
            ids.append({row.id for row in self._rows(name)})
            self.places[name].put_back(backup.folder / name)
            ids.append({row.id for row in self._rows(name)})

        trip.once = {chance.randrange(1, 3): restore}
        self._excuses.add("restored")
        self._ran(trip, lambda: self._run_once(trip))
        if ids:
            before, after = ids
            further = {row.id for row in self._rows(name)} - after
            if before - after and further:
                self._broken("accepted", name, f"it lost {sorted(before - after)}, and has got {sorted(further)} since")
        self._went_back({})
        return None

    def _older_program(self, _: Step) -> bool | None:
        """A supervisor that was forgotten starts the program with the store from before a copy."""
        if not self._left_urls or self._suspended:
            return False
        here, self._url = self._url, self._left_urls[-1]
        self._excuses.add("copied")
        counts = {name: self.book.deliveries(name, self._rows(name)) for name in self.places}
        trip = Trip()
        outcome = self._ended(trip, lambda: self._run_once(trip))
        self.told[-1] += f" → {outcome}"
        self._url = here
        self._observe()
        for name, place in self.places.items():
            if self._keeps(place) != "exactly_once":
                self._begin(name)
                continue
            now = self.book.deliveries(name, self._rows(name))
            twice = [where for where in now if now[where] > counts[name][where] and self.book.passed(where)]
            if twice and (name not in self._suspended):
                self._broken("doubled", name, f"the older program has written again: {twice[:3]}")
        self._went_back({})
        return None

    def _restore_store(self, step: Step) -> bool | None:
        choice = [backup for backup in self._backups if (backup.folder / "store").exists()]
        if not choice:
            return False
        backup = step.chance().choice(choice)
        before = {name: self._rows(name) for name in self.places}
        self._url = backup.url
        shutil.rmtree(self._store_folder)
        shutil.copytree(backup.folder / "store", self._store_folder)
        self.told[-1] += f", as it was in {backup.folder.name}"
        self._observe()
        self._went_back(before)
        for name, place in self.places.items():
            if not place.marked or self._keeps(place) == "at_most_once":
                self._begin(name)
        return None

    def _went_back(self, before: Rows) -> None:
        """Find out which outputs fit their store no more: a run must not accept them."""
        self._excuses.add("restored")
        for name, place in self.places.items():
            if not place.marked or self._keeps(place) == "at_most_once":
                if name in before:
                    old, now = Counter(before[name]), Counter(self._rows(name))
                    self.book.forgive(name, [*(old - now).elements()])
                    self.book.credit(name, [*(now - old).elements()])
                continue
            if trouble := self._trouble(name):
                self._suspended[name] = trouble
            else:
                self._suspended.pop(name, None)
                self._begin(name)

    def _trouble(self, name: str) -> str:
        """Return how a marked output and the ledger contradict one another; empty if they do not."""
        entries, snapshot = self._entries(), self._snapshot()
        known = {f"{self.group}/{entry.token}/{entry.sequence}" for entry in entries if entry.token}
        known |= {each.id for each in (snapshot.pending, snapshot.unsettled) if each is not None}
        there = {row.id for row in self._rows(name)}
        committed = {
            f"{self.group}/{entry.token}/{entry.sequence}"
            for entry in entries
            if entry.event == "commit"
            and entry.reason.startswith(QUARANTINED) == (name == LETTERS)
            and self._makes_rows(name, entry.ranges)
        }
        lost = {each for each in committed - there if (name, each) not in self._exempt}
        extra = {each for each in there - known if (name, each) not in self._exempt}
        told = [f"lacks the committed batches {sorted(lost)}"] if lost else []
        return ", ".join(told + ([f"has the unknown batches {sorted(extra)}"] if extra else []))

    def _makes_rows(self, name: str, ranges: tuple[OffsetRange, ...]) -> bool:
        """Whether a batch surely has rows: its records are known, and may not go."""
        found = [
            record
            for record in self.book.records.values()
            for r in ranges
            if (record.where.topic, record.where.partition) == (r.topic, r.partition)
            and r.start <= record.where.offset < r.end
        ]
        ids = {(record.where.topic, record.where.topic_id) for record in found}
        return len(ids) == len({topic for topic, _ in ids}) and any(
            not record.may_go
            and (not record.aborted or self.book.uncommitted)
            and all(program.rows(record, name) for program in self.book.programs.values())
            for record in found
        )

    def _delete_rows(self, step: Step) -> bool | None:
        return self._delete(step, every=False)

    def _empty(self, step: Step) -> bool | None:
        return self._delete(step, every=True)

    def _delete(self, step: Step, *, every: bool) -> bool | None:
        chance = step.chance()
        name = chance.choice([*self.places])
        before = self._rows(name)
        if not before:
            return False
        one = chance.choice(sorted(before, key=str))
        chosen = None if every else [row for row in before if (row.number, row.id) == (one.number, one.id)]
        if not self.places[name].delete(chosen):
            return False
        now = Counter(self._rows(name))
        gone = [*(Counter(before) - now).elements()]
        self.book.forgive(name, gone)
        self._exempt |= {(name, row.id) for row in gone}
        self._excuses.add("deleted")
        self.told[-1] += f": {len(gone)} of {name}"
        return None

    def _drop_mark(self, step: Step) -> bool:
        name = step.chance().choice([*self.places])
        self._excuses.add("mark deleted")
        self.told[-1] += f" of {name}"
        return self.places[name].drop_mark()

    # Acts of an operator ----------------------------------------------------------------------------------------------

    def _reset(self, step: Step) -> bool | None:
        chance = step.chance()
        topic = chance.choice(self.source.topics)
        to: Any = chance.choice(("earliest", "latest", "offset", "shift"))
        one = TopicPartition(topic, chance.randrange(self.source.partitions[topic]))
        scope = Scope([one]) if chance.random() < 0.5 else Scope(topics=[topic])
        number = chance.randrange(6)
        self.told[-1] += f" {to} {number} of {scope.partitions or topic}"
        if to == "offset":
            to = {one: number}
            scope = Scope([one])
        elif to == "shift":
            to = Shift(number - 3)

        def plan(ledger: Ledger, cluster: KafkaCluster) -> ResetPlan:
            found = ledger.load()
            known = known_history(ledger)
            return plan_reset(found, ledger.store.address, cluster, to, scope, clip=True, history=known)

        return self._act(plan)

    def _undo(self, _: Step) -> bool | None:
        return self._act(lambda ledger, cluster: plan_undo(ledger, cluster)[0])

    def _rewind(self, step: Step) -> bool | None:
        back = step.chance().randrange(12)

        def plan(ledger: Ledger, cluster: KafkaCluster) -> ResetPlan:
            return plan_rewind(ledger, cluster, max(1, ledger.load().version - back))

        return self._act(plan)

    def _act(self, make: Callable[[Ledger, KafkaCluster], ResetPlan]) -> bool | None:
        with self._acting() as (ledger, cluster):
            plan = make(ledger, cluster)
            before = ledger.snapshot
            apply_reset(ledger, cluster, plan, "an act", force=True)
            if not plan.moves:
                return False
            self._observe()
            self._check_preview(plan, before)
            self._begin_all()
            return None
        return False

    def _forget(self, step: Step) -> bool | None:
        chance = step.chance()
        topic = chance.choice(self.source.topics)
        one = TopicPartition(topic, chance.randrange(self.source.partitions[topic]))
        with self._acting() as (ledger, _):
            scope = Scope([one]) if chance.random() < 0.5 else Scope(topics=[topic])
            plan = plan_forgetting(ledger.load(), scope)
            apply_forgetting(ledger, plan, "an act", force=True)
            self._observe()
            self._begin_all()
            return None
        return False

    def _copy(self, step: Step) -> bool | None:
        there = self._store_url("other" if "other" not in self._url else "store")
        self._make_store(there)
        del step
        with self._refused(), closing(open_store(self._url)) as source, closing(open_store(there)) as target:
            copy(self.group, source, target, force=True, overwrite=True)
            self._left_urls.append(self._url)
            self._url = there
            self._excuses.add("copied")
            self._exempt |= {(name, row.id) for name in self.places for row in self._rows(name)}
            self._exempt |= {
                (name, f"{self.group}/{entry.token}/{entry.sequence}")
                for name in self.places
                for entry in self._entries()
            }
            return None
        return False

    def _adopt_step(self, _: Step) -> bool | None:
        if self.history.guarantee == "at_most_once":
            return False
        return self._adopt()

    def _adopt(self) -> bool | None:
        """Accept the marks of all outputs as they are."""
        changed = False
        with self._refused(), closing(open_store(self._url)) as store:
            for name, place in self.places.items():
                way = place.sink().prepare(store, Guarantee.EXACTLY_ONCE) if place.marked else None
                key = MarkKey(self.group, name if len(self.outputs) > 1 or name == LETTERS else "")
                if isinstance(way, Lander):
                    mark = way.seen(key).mark
                elif isinstance(way, Joiner):
                    mark = way.mark(key)
                else:
                    continue
                ledger = Ledger(store, self.group)
                plan = plan_adoption(ledger.load(), key.output, mark.sequence if mark else 0)
                apply_adoption(ledger, plan, "", force=True)
                changed = True
        self._observe()
        if changed:
            ids = {f"{self.group}/{entry.token}/{entry.sequence}" for entry in self._entries()}
            ids |= {row.id for name in self.places for row in self._rows(name)}
            self._exempt |= {(name, each) for name in self.places for each in ids}
            self._suspended.clear()
            self._begin_all()
            self._excuses.add("adopted")
        return None if changed else False

    @contextmanager
    def _acting(self) -> Iterator[tuple[Ledger, KafkaCluster]]:
        with self._refused(), closing(open_store(self._url)) as store, KafkaCluster(self.kafka.bootstrap) as cluster:
            yield Ledger(store, self.group), cluster

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Note what is refused in our words; all else is a finding."""
        try:
            yield
        except OffsetkeeperError as error:
            self.told[-1] += f" (refused: {_short(error)})"
            self.seen[f"refused {type(error).__name__}"] += 1
        except Broken:
            raise
        except Exception as error:
            raise Broken(Finding("foreign", "", f"{type(error).__name__}: {error}")) from error

    def _check_preview(self, plan: ResetPlan, before: Snapshot) -> None:
        """Hold what a preview calls read against the rows of exactly once."""
        if (
            self.history.guarantee != "exactly_once"
            or self._excuses
            or self._suspended
            or self.history.start == "latest"
        ):
            return
        doubtful = {
            where for each in (before.pending, before.unsettled) if each for where in self._places_of(each, before)
        }
        if any(entry.event in {"abandon", "settle", "rewind", "forget"} for entry in self._entries()[1:]):
            return  # what was dropped may be there
        for name in self.places:
            counts = self.book.deliveries(name, self._rows(name))
            for step in plan.steps:
                for record in self.book.records.values():
                    where = record.where
                    silent = any(not program.rows(record, name) for program in self.book.programs.values())
                    if (where.topic, where.partition) != step.topic_partition or where in doubtful or silent:
                        continue
                    if (
                        where.topic_id != step.new.topic_id
                        or record.may_go
                        or (record.aborted and not self.book.uncommitted)
                    ):
                        continue
                    read = step.read.between(where.offset, where.offset + 1) > 0 or where.offset < step.read.began
                    del read
                    if where.offset >= step.new.offset:
                        promised = step.read.perhaps_between(where.offset, where.offset + 1) > 0
                        if (promised or where.offset < step.read.began) != (counts[where] > 0):
                            self._broken(
                                "preview",
                                name,
                                f"{step} says of {record} {promised}: it is {counts[where]} times there",
                            )

    # Runs -------------------------------------------------------------------------------------------------------------

    def _run(self, faults: list[Fault]) -> str:
        trip = Trip(faults)
        return self._ran(trip, lambda: self._run_once(trip))

    def _run_once(self, trip: Trip) -> str:
        pipeline = self._pipeline(trip)
        summary = pipeline.run(self.spark, self._process(trip), **self._how(trip), until="caught_up")
        return summary.ended

    def _start(self, faults: list[Fault]) -> bool | None:
        self._excuses.add("queries and runs")
        trip = Trip(faults, DiedInQuery)

        def once() -> str:
            how = {**self._how(trip), "checkpoint": str(self.folder / "checkpoint"), "trigger": {"availableNow": True}}
            query = self._pipeline(trip).start(self.spark, self._process(trip), **how)
            ended = query.awaitTermination(_LIMIT_S)
            return "caught_up" if ended else "did not end"

        if self._ran(trip, once).startswith("CheckpointMismatch"):
            self.told.append("its checkpoint is deleted")
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        return None

    def _ran(self, trip: Trip, once: Callable[[], str]) -> str:
        """Run, and judge how it ended."""
        before = self._snapshot()
        known = {tp.topic for tp in before.positions}
        self._first_ends |= {log: end for log, end in self._ends().items() if log[0] not in known}
        outcome = self._ended(trip, once)
        self._observe()
        for fault in trip.fired:
            self.seen[f"fault {fault.where} {fault.how}"] += 1
            self.book.disturbed = True
        self.told[-1] += f" → {outcome}"
        kind = outcome.split(":")[0]
        self.seen[f"run ends: {kind}"] += 1
        self._accepted(before, outcome)
        self._check_refusal(kind, outcome, trip)
        return outcome

    def _ended(self, trip: Trip, once: Callable[[], str]) -> str:
        try:
            return once()
        except (Died, DiedInQuery):
            return "died"
        except OffsetkeeperError as error:
            return f"{type(error).__name__}: {_short(error)}"
        except UserError:
            return "UserError: the function fails"
        except Exception as error:
            if self.history.quarantines and "poisoned" in str(error):
                return "UserError: a record fails"
            if trip.dead or "DiedInQuery" in str(error):
                return "died"
            told = "\n".join([str(error), *getattr(error, "__notes__", [])])
            raise Broken(Finding("foreign", "", f"a run ends with {type(error).__name__}: {told[:1500]}")) from error

    def _check_refusal(self, kind: str, outcome: str, trip: Trip) -> None:
        """A run that nothing disturbs is not refused, and says why if it is."""
        if kind in {"caught_up", "died"}:
            return
        if trip.fired and self.history.guarantee == "at_most_once":
            return
        if kind == "UserError":
            if not trip.fired and not self.history.quarantines:
                self._broken("refused", "", outcome)
            return
        if self.program.misfit and kind in {"SinkMismatch", "RowMismatch"}:
            return
        excused = {name for excuse in self._excuses for name in EXCUSES[excuse]}
        if kind not in excused:
            done = ", ".join(sorted(self._excuses)) or "nothing was done to it"
            self._broken("refused", "", f"{done}, and a run ends: {outcome}")

    def _accepted(self, before: Snapshot, outcome: str) -> None:
        """Look what a run has done with what it must refuse, and where it has begun."""
        now = self._snapshot()
        entries = [entry for entry in self._entries() if entry.version > before.version]
        if self._suspended and (outcome == "caught_up" or any(entry.event == "commit" for entry in entries)):
            name, trouble = next(iter(self._suspended.items()))
            self._broken("accepted", name, f"a run goes on though {name} {trouble}")
        if self.history.start == "latest":
            placed = {(tp.topic, str(at.topic_id), tp.partition) for tp, at in now.positions.items()}
            for log in [*self._first_ends]:
                if log in placed:
                    end = self._first_ends.pop(log)
                    for due in self.book.due.values():
                        due -= {where for where in due if where.log == log and where.offset < end}
        else:
            self._first_ends.clear()
        if outcome == "caught_up":
            limit = self.source.open_from
            unread = [r for r in self.book.unread() if self.source.is_here(r.where) and not r.may_go]
            unread = [r for r in unread if r.where.offset < limit.get(r.where.log, r.where.offset + 1)]
            if unread:
                self._broken("lost", "", f"the run has caught up, and has not read {unread[:3]}")

    def _ends(self) -> dict[tuple[str, str, int], int]:
        found: dict[tuple[str, str, int], int] = {}
        for topic, partitions in self.source.partitions.items():
            for number in range(partitions):
                log = self.source.log(topic, number)
                ends = [r.where.offset + 1 for r in self.book.records.values() if r.where.log == log]
                end = max(ends, default=0)
                found[log] = end if self.book.uncommitted else min(end, self.source.open_from.get(log, end))
        return found

    def _pipeline(self, trip: Trip) -> Pipeline:
        history, kafka = self.history, {}
        reader = history.reader
        if reader == "packed, python":
            reader, kafka = "packed", {"offsetkeeper.native": "never"}
        poison: dict[str, Any] = {"poison": "quarantine"} if history.quarantines else {}
        return Pipeline(
            group=self.group,
            store=tripped_store(open_store(self._url), trip),
            brokers=self.kafka.bootstrap,
            topics=self.source.topics,
            start=history.start,  # type: ignore[arg-type]  # one of its words
            policies=Policies(**dict(history.policies), **poison),  # type: ignore[arg-type]
            dead_letters=trip_sink(self.places[LETTERS].sink(), trip) if history.quarantines else None,
            attempts=2 if history.quarantines else 3,
            isolation=history.isolation,  # type: ignore[arg-type]
            reader=reader,
            kafka=kafka,
            headers=self.program.heads,
            max_records=history.max_records,
            poll_interval_s=0.05,
            retry_timeout_s=20,
        )

    def _how(self, trip: Trip) -> dict[str, Any]:
        """Return the outputs of a run, which fail as a trip says."""
        sinks = {name: trip_sink(place.sink(), trip) for name, place in self.outputs.items()}
        [first, *others] = [each if hasattr(each, "prepare") else Function(each) for each in sinks.values()]
        sink = Outputs(**dict(zip(sinks, [first, *others], strict=True))) if others else first
        return {"sink": sink, "guarantee": self.history.guarantee}

    def _process(self, trip: Trip) -> Any:
        program, places = self.program, self.outputs

        def process(frame: DataFrame, batch: KafkaBatch) -> Any:
            if trip.at("function") == "refused":
                raise UserError
            trip.once.pop(trip.calls["function"], nothing)()
            made = {name: place.frame(program.frame(frame, batch.id, name)) for name, place in places.items()}
            return made if len(made) > 1 else made[next(iter(made))]

        return process

    # What is there ----------------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        """Look at the ledger."""
        self._seen_ledger = None
        snapshot = self._snapshot()
        placed = {(tp.topic, str(at.topic_id), tp.partition): at.offset for tp, at in snapshot.positions.items()}
        for log in [log for log in self.book.reached if self._is_now(log) and log not in placed]:
            del self.book.reached[log]
        self.book.reached |= placed
        self.book.pending = self._batch(snapshot.pending, snapshot)

    def _batch(self, batch: KafkaBatch | None, snapshot: Snapshot) -> Batch:
        return NONE if batch is None else Batch(batch.id, frozenset(self._places_of(batch, snapshot)))

    def _places_of(self, batch: KafkaBatch, snapshot: Snapshot) -> set[Where]:
        found = set()
        for r in batch.ranges:
            at = snapshot.positions.get(r.topic_partition)
            found |= {Where(r.topic, str(at and at.topic_id), r.partition, offset) for offset in range(r.start, r.end)}
        return found

    def _begin_all(self) -> None:
        for name in self.places:
            self._begin(name)

    def _begin(self, name: str) -> None:
        """Begin to count anew in an output: what is behind a position stays as it is."""
        snapshot = self._snapshot()
        unsettled = self._batch(snapshot.unsettled, snapshot)

        def due(where: Where) -> bool:
            return self.source.is_here(where) and where.offset >= self.book.reached.get(where.log, 0)

        self.book.begin(name, self._rows(name), due, unsettled)

    def _judge(self) -> None:
        for name in self.places:
            if name in self._suspended:
                continue
            for finding in self.book.judge(name, self._rows(name)):
                raise Broken(finding)
            if self.places[name].marked and self._keeps(self.places[name]) != "at_most_once" and not self._dropping():
                snapshot = self._snapshot()
                trouble = self._trouble(name)
                if trouble and snapshot.version:
                    self._broken("ledger", name, f"{name} {trouble}")

    def _dropping(self) -> bool:
        return ("pending", "drop") in self.history.policies

    def _keeps(self, place: Place) -> str:
        if self.history.guarantee == "at_least_once" and place.marked:
            return "exactly_once"
        return self.history.guarantee

    def _rows(self, name: str) -> list[Row]:
        return self.places[name].rows()

    def _snapshot(self) -> Snapshot:
        return self._ledger()[0]

    def _entries(self) -> list[Entry]:
        return self._ledger()[1]

    def _ledger(self) -> tuple[Snapshot, list[Entry]]:
        """Return ledger and history as `_observe` has last seen them: to ask some stores takes long."""
        if self._seen_ledger is None:
            with closing(open_store(self._url)) as store:
                ledger = Ledger(store, self.group)
                self._seen_ledger = ledger.load(), [*ledger.history(1000)]
        return self._seen_ledger

    def _note(self, records: list[Any]) -> None:
        for record in records:
            self.book.add(record)
        self.told[-1] += f": {len(records)}"

    def _broken(self, kind: str, output: str, what: str) -> None:
        raise Broken(Finding(kind, output, what))

    # What it is made of -----------------------------------------------------------------------------------------------

    @property
    def _store_folder(self) -> Path:
        return self.folder / ("other" if "/other/" in self._url else "store")

    def _store_url(self, name: str) -> str:
        if self.history.store == "memory":
            return f"memory://{self.folder.name}-{name}"
        if self.history.store == "kafka" and name == "store":
            return f"kafka://{self.kafka.bootstrap}"
        if self._database and name == "store":
            return self._database
        if self.history.store == "folder":
            return f"file://{self.folder}/{name}/folder"
        return f"sqlite:///{self.folder}/{name}/rows.db"

    def _make_store(self, url: str) -> None:
        if url.startswith(("sqlite", "file")):
            folder = self.folder / ("other" if "/other/" in url else "store")
            folder.mkdir(exist_ok=True)
        with closing(open_store(url)) as store:
            if isinstance(store, FolderStore):
                store.init()

    def _place(self, kind: str, name: str) -> Place:
        made, folder = KINDS[kind], self.folder / name
        if made is WithOffsets:
            place: Place = made(name, self.folder / "store")
        elif made is OtherTopic:
            place = made(name, folder, kafka=self.kafka)
        elif issubclass(made, Database):
            place = made(name, folder, url=self._database if made.joined else self.databases[kind.lower()]())
        else:
            place = made(name, folder)
        place.make()
        return place

    @contextmanager
    def _staged(self) -> Iterator[None]:
        before = few.LIMIT
        few.LIMIT = few.NONE if self.history.staged else before
        try:
            yield
        finally:
            few.LIMIT = before
            with suppress(Exception):
                self.source.end()


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


_REMEDIES: dict[str, Callable[[World], Any]] = {"adopt": World._adopt, "reset": World._reset_all}
_DO: dict[str, Callable[[World, Step], Any]] = {
    "records come": World._come,
    "a transaction is aborted": World._abort,
    "a transaction stays open": World._leave_open,
    "the transaction ends": World._end_transaction,
    "a partition is added": World._grow,
    "the topic is made again": World._recreate,
    "retention deletes": World._retention,
    "run": World._plain_run,
    "run with a fault": World._faulty_run,
    "run that dies": World._dying_run,
    "query": World._query,
    "query that dies": World._dying_query,
    "the program changes": World._program_changes,
    "the checkpoint is deleted": World._delete_checkpoint,
    "a backup is made": World._backup,
    "the output is restored": World._restore_output,
    "the output is restored in a run": World._restore_in_a_run,
    "the output is rolled back": World._roll_back,
    "the older program runs": World._older_program,
    "the store is restored": World._restore_store,
    "rows are deleted": World._delete_rows,
    "the output is emptied": World._empty,
    "the mark is deleted": World._drop_mark,
    "reset": World._reset,
    "undo": World._undo,
    "rewind": World._rewind,
    "forget": World._forget,
    "copy": World._copy,
    "adopt": World._adopt_step,
}
