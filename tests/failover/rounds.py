"""One round: a pipeline runs, the primary dies, the standby takes over, and each record is counted in the output."""

from __future__ import annotations

import random
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from typer.testing import CliRunner

from failover.plain_run import GROUP, Moments, PlainTable, pipeline
from failover.records import Records
from offsetkeeper import open_store
from offsetkeeper.cli.main import app
from offsetkeeper.errors import MarkAhead, MarkBehind, OffsetkeeperError

_STEPS = 70  # about as many as a run takes
_STUCK_S = 0.5
_RUNS = 8


class Cluster(Protocol):
    """What fails over: a pair, an ensemble, brokers.

    Attributes:
        synchronous: whether a change is acknowledged only when who takes over has it.
    """

    synchronous: bool

    def hold(self) -> None:
        """Hold back what is repeated, so that a standby lacks what comes from now on."""

    def promote(self) -> None:
        """Kill the primary, and make the standby the primary. Nobody is led to it yet."""

    def lead(self) -> None:
        """Lead clients to the new primary."""


@dataclass
class Places:
    """Where the ledger and the rows of a round are.

    Attributes:
        store: URL of the store, for the run.
        output: URL of the database of the output, for the run.
        promoted_store, promoted_output: URL of each on the standby; empty if it is not on the pair.
        rows: reads the rows of the output, at a URL, by partition and offset, with their values.
        sink: makes the sink of a run.
    """

    store: str
    output: str
    rows: Callable[[str], list[tuple[int, int, str]]]
    promoted_store: str = ""
    promoted_output: str = ""
    sink: Callable[[str, Moments], Any] = PlainTable


@dataclass
class Outcome:
    """What became of a round.

    Attributes:
        lost_versions: changes that the store has acknowledged and the standby did not have.
        lost_rows: the same of rows.
        errors: names of the errors that ended runs, in order.
        texts: their texts.
        lost, doubled, wrong: records that are not there, there twice, or not as Kafka has them, at the end.
        acts: how often an operator did what an error says.
    """

    lost_versions: int = 0
    lost_rows: int = 0
    errors: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    acts: int = 0


class Round:
    """A round, whose moments a seed draws.

    Args:
        seed: of all that is drawn.
        records: what is in Kafka.
        places: where ledger and rows are.
        cluster: what fails over.
        held: whether what is repeated is held back before the primary dies.
        folder: for the file of positions that an operator writes.
        least: the fewest steps between the moment at which it is held back and that at which the primary dies.
    """

    def __init__(
        self,
        seed: int,
        *,
        records: Records,
        places: Places,
        cluster: Cluster,
        held: bool,
        folder: Path,
        least: int = 1,
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._records, self._places, self._cluster = records, places, cluster
        self._held, self._folder, self._least = held, folder, least
        self._moments, self.outcome = Moments(), Outcome()
        self._fails, self._over = threading.Event(), threading.Event()

    def play(self) -> Outcome:
        """Play the round, and count."""
        self._draw()
        failing = threading.Thread(target=self._fail_over)
        failing.start()
        self._run_to_the_end()
        self._fails.set()  # if the run took fewer steps
        failing.join()
        assert self._over.is_set(), "the failover has failed"
        self._records.produce(20)
        self._run_to_the_end()
        self._count()
        return self.outcome

    def _draw(self) -> None:
        at = self._random.randint(2 * self._least, _STEPS)
        self._pause_s = self._random.choice([0.0, self._random.uniform(0, 0.02)])
        if self._held:
            self._moments.call(max(1, at - self._random.randint(self._least, 12)), self._hold)
        self._moments.call(at, self._fails.set)

    def _hold(self) -> None:
        self._cluster.hold()
        if self._cluster.synchronous:  # it may acknowledge nothing from now on
            threading.Timer(_STUCK_S, self._fails.set).start()

    def _fail_over(self) -> None:
        self._fails.wait()
        threading.Event().wait(self._pause_s)
        self._cluster.promote()
        self._note_losses()
        self._cluster.lead()
        self._over.set()

    def _note_losses(self) -> None:
        places, known = self._places, self._moments
        if places.promoted_store:
            with closing(open_store(places.promoted_store)) as store:
                self.outcome.lost_versions = max(0, known.version - store.load(GROUP).version)
        if places.promoted_output:
            self.outcome.lost_rows = max(0, known.rows - len(places.rows(places.promoted_output)))

    def _run_to_the_end(self) -> None:
        """Run, again and again as a supervisor does, and do what errors say where they ask for an operator."""
        for _ in range(_RUNS):
            made = pipeline(self._records.brokers, self._records.topic, self._places.store, self._moments)
            try:
                with closing(made.store):
                    made.run(
                        None,  # type: ignore[arg-type]  # there is no Spark
                        sink=self._places.sink(self._places.output, self._moments),
                        guarantee="exactly_once",
                        until="caught_up",
                    )
            except OffsetkeeperError as error:
                self.outcome.errors.append(type(error).__name__)
                self.outcome.texts.append(str(error))
                if isinstance(error, MarkAhead | MarkBehind):
                    self._accept(str(error))
                continue
            return
        raise AssertionError(f"no run came to the end: {self.outcome.texts}")

    def _accept(self, error: str) -> None:
        """Do what docs/recover.md says: set the positions to where the rows end, and accept the mark."""
        self.outcome.acts += 1
        ends = dict.fromkeys({partition for partition, _ in self._records.values}, 0)
        for partition, offset, _ in self._places.rows(self._places.output):
            ends[partition] = max(ends[partition], offset + 1)
        file = self._folder / "offsets.csv"
        file.write_text("".join(f"{self._records.topic},{each},{end}\n" for each, end in ends.items()), "utf-8")
        [command] = re.findall(r"offsetkeeper (adopt .*)", error)
        where = ["--store", self._places.store, "--execute", "--force"]
        reset = ["reset", GROUP, "--brokers", self._records.brokers, "--from-file", str(file), "--reason", "its rows"]
        for each in (reset, shlex.split(command)):
            done = CliRunner().invoke(app, [*each, *where])
            assert done.exit_code == 0, (each, done.output)

    def _count(self) -> None:
        rows = self._places.rows(self._places.output)
        counted = Counter((partition, offset) for partition, offset, _ in rows)
        self.outcome.lost = len(self._records.values.keys() - counted.keys())
        self.outcome.doubled = sum(count - 1 for count in counted.values())
        self.outcome.wrong = sum(self._records.values.get((p, o)) != value for p, o, value in rows)
