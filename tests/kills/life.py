"""One life: pipelines on a cluster, what is done to them, and the count of each record at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from failover.postgresql_pair import PostgreSQLPair
from kills.cluster import Machine, Served, children, program
from kills.draw import PROMOTED, Act, Drawn
from kills.draw import Program as Wanted
from kills.driver import Settings
from kills.judge import Message, Verdict, open_book
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.trace import VARIABLE
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.operate.traces import check_traces
from offsetkeeper.stores import open_store
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import Cut
from swarm.outputs import read_messages

PARTITIONS = 3
_FIRST_MS = 1_700_000_000_000  # a multiple of `swarm.records.MANY`: so a record's time tells its number
_AT_ONCE, _EVERY_S = 2, 0.1
_FIRST_S, _STUCK_S, _FLUSH_S = 300.0, 120.0, 300.0
_SETTLE_S = 60.0
_LOOK_S = 0.1


@dataclass
class Outcome:
    """What became of a life.

    Attributes:
        verdict: what was counted in the outputs.
        done: how often each kind of act was done.
        over: kinds of acts, and when each was over.
        batches: when each pipeline has committed its batches.
        ends: how drivers have ended by themselves, by the names of errors.
        stuck: pipelines that did not catch up when all faults were over.
        broken: rules that traces break.
        failed: 1 if the play itself has failed, so that nothing can be said.
        notes: of what is wrong, in words.
    """

    verdict: Verdict = field(default_factory=Verdict)
    done: Counter[str] = field(default_factory=Counter)
    over: list[tuple[str, float]] = field(default_factory=list)
    batches: list[list[float]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    stuck: int = 0
    broken: int = 0
    failed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return bool(self.verdict.findings or self.stuck or self.broken or self.failed)


class Feed(threading.Thread):
    """Produces records into topics, until it is told to end; brokers may be away."""

    def __init__(self, brokers: str, topics: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._topics, self._over = topics, threading.Event()
        settings = {"bootstrap.servers": brokers, "enable.idempotence": True, "message.timeout.ms": 600_000}
        self._producer = Producer({**settings, "log_level": 0})

    def run(self) -> None:
        """See `Thread.run`."""
        number = 0
        while not self._over.wait(_EVERY_S):
            for _ in range(_AT_ONCE):
                for topic in self._topics:
                    value, key = f"value {number}", f"key {number % 7}"
                    how: dict[str, Any] = {"partition": number % PARTITIONS, "timestamp": _FIRST_MS + number}
                    self._producer.produce(topic, value, key, **how)
                number += 1
            self._producer.poll(0)

    def end(self) -> None:
        """Produce no more, and return when Kafka has all."""
        self._over.set()
        self.join()
        left = self._producer.flush(_FLUSH_S)
        assert left == 0, f"Kafka has not taken {left} records"


class Pipeline:
    """A pipeline whose driver is started again whenever it has ended."""

    def __init__(self, settings: Settings, served: set[str]) -> None:
        self.settings, self.served = settings, served
        self.folder = Path(settings.folder)
        self.ends = Counter[str]()
        self._driver: ServerProcess | None = None
        self._stopped: list[ServerProcess] = []
        self._ended = 0

    @property
    def driver(self) -> ServerProcess:
        """The newest driver."""
        if self._driver is None or not self._driver.alive():
            self._start()
        assert self._driver is not None
        return self._driver

    def look(self) -> None:
        """Start a driver if none runs."""
        if not self.driver.alive():
            self._start()

    def replaced(self) -> ServerProcess:
        """Stop the driver, start another one beside it, and return the older."""
        older = self.driver
        older.send_signal(signal.SIGSTOP)
        self._stopped.append(older)
        self._start()
        return older

    def kill(self) -> None:
        """Kill all drivers."""
        for each in (*self._stopped, *([self._driver] if self._driver else [])):
            each.kill()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what drivers have noted."""
        file = self.folder / "events"
        lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}\n")]
        return [each for each in found if each["event"] == kind]

    def snapshot(self) -> Snapshot:
        """Return the ledger as it is now."""
        with closing(open_store(self.settings.store)) as store:
            return Ledger(store, self.settings.group).load()

    def caught_up(self, ends: dict[int, int]) -> bool:
        """Whether all is committed, and no batch is pending."""
        try:
            now = self.snapshot()
        except OffsetkeeperError:
            return False
        reached = {tp.partition: at.offset for tp, at in now.positions.items()}
        return now.pending is None and all(reached.get(number) == end for number, end in ends.items())

    def _start(self) -> None:
        tests = Path(__file__).parent.parent
        traces = self.folder / "traces"
        traces.mkdir(exist_ok=True)
        path = os.pathsep.join([str(tests), str(tests.parent / "src")])
        environment = {**os.environ, "PYTHONPATH": path, VARIABLE: str(traces), "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-m", "kills.driver", self.settings.text]
        self._driver = ServerProcess(command, folder=self.folder, environment=environment)


class Life:
    """Plays what was drawn.

    Args:
        machine: where.
        drawn: what.
        tell: called with what happens.

    Attributes:
        folder: in which all of it is, but for what servers have.
        outcome: what has become of it so far.
        pipelines: its pipelines, once it plays.
    """

    def __init__(self, machine: Machine, drawn: Drawn, tell: Callable[[str], object]) -> None:
        self._machine, self._drawn, self._tell = machine, drawn, tell
        self._opened = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix=f"life-{drawn.seed}-", dir=machine.folder))
        self.outcome = Outcome()
        self.pipelines = list[Pipeline]()
        self._pair: PostgreSQLPair | None = None
        self._promoted = False

    def play(self) -> Outcome:
        """Play it, and count. An error of the play itself is a note, and the life has failed."""
        try:
            self._play()
        except Exception:  # noqa: BLE001 - what was counted before is not lost with it
            self.outcome.failed = 1
            self.outcome.notes.append(traceback.format_exc())
        return self.outcome

    def _play(self) -> None:
        with self._opened:
            kafka: KafkaServer = self._machine.served("kafka").server
            self.pipelines = [self._pipeline(n, each) for n, each in enumerate(self._drawn.programs)]
            for each in self.pipelines:
                self._opened.callback(each.kill)
            feed = Feed(kafka.bootstrap, [each.settings.topic for each in self.pipelines])
            self._opened.callback(feed._over.set)
            feed.start()
            self._wait(self._all_have_begun, _FIRST_S)
            for act in self._drawn.acts:
                if act.settled:
                    self._wait(self._all_went_on, _SETTLE_S)
                self._pass(act.after_s)
                self._tell(f"{act.what} ({act.number}, {act.lasts_s:.1f} s)")
                self._do(act)
            feed.end()
            for each in self.pipelines:
                self._end(each, kafka)

    # What is there ----------------------------------------------------------------------------------------------------

    def _pipeline(self, number: int, wanted: Wanted) -> Pipeline:
        name = f"{self.folder.name}-{number}"
        folder = self.folder / str(number)
        (folder / "store").mkdir(parents=True)
        kafka = self._machine.served("kafka")
        kafka.server.create_topic(name, PARTITIONS, {"retention.ms": "-1"})
        store, served = self._store(wanted.store, name, folder)
        outputs: dict[str, tuple[str, str]] = {}
        for kind in wanted.outputs:
            server, url = self._database(kind)
            served |= server
            outputs[kind.partition(" ")[0].lower()] = (kind, url)
        settings = Settings(
            brokers=kafka.proxy.address,
            topic=name,
            group=name,
            store=store,
            folder=str(folder),
            outputs=outputs,
            engine=wanted.engine,
            reader=wanted.reader,
            shape=tuple(sorted(wanted.shape)),
            max_records=wanted.max_records,
            spark=self._machine.session(),
        )
        for place in settings.places().values():
            place.make()
        return Pipeline(settings, {"kafka", *served})

    def _store(self, kind: str, name: str, folder: Path) -> tuple[str, set[str]]:
        """Return the URL of an empty store, and the server that it is on."""
        if kind == "sqlite":
            return f"sqlite:///{folder}/store/rows.db", set()
        if kind == "folder":
            url = f"file://{folder}/store/ledgers"
            FolderStore(url).init()
            return url, set()
        if kind == "standby":
            if self._pair is None:
                self._pair = self._machine.pair(self._opened)
            return self._pair.url(self._pair.create()), {kind}
        served = self._machine.served(kind)
        if kind == "kafka":
            return f"kafka://{served.proxy.address}?prefix={name}-", {kind}
        if kind in {"postgresql", "mariadb"}:
            return self._own(served), {kind}
        at: dict[str, Any] = {"port": served.proxy.port}
        return str(served.server.url(**at) if kind == "redis" else served.server.url(name, **at)), {kind}

    def _database(self, kind: str) -> tuple[set[str], str]:
        """Return the server of an output, and the URL of a database of its own there."""
        server = kind.lower()
        if server == "cassandra":
            served = self._machine.served(server)
            return {server}, str(served.server.url(served.server.create_keyspace(), port=served.proxy.port))
        if server in {"postgresql", "mariadb"}:
            return {server}, self._own(self._machine.served(server))
        return set(), ""

    def _own(self, served: Served) -> str:
        return str(served.server.url(served.server.create_database(), port=served.proxy.port))

    # What is done -----------------------------------------------------------------------------------------------------

    def _do(self, act: Act) -> None:
        what, who = act.what.rpartition(" ")[2], act.what.rpartition(" ")[0]
        if act.what == PROMOTED:
            done = self._promote()
        elif who in {"server", "request", "answer"}:
            done = self._to_server(act)
        elif who in {"executor", "Python worker"}:
            done = self._to_process(act, self._executors() if who == "executor" else self._python_workers(), what)
        elif who == "worker":
            done = self._to_worker(act, what)
        else:
            done = self._to_driver(act)
        if done:
            self.outcome.done[act.what] += 1
            self.outcome.over.append((act.what, time.monotonic()))

    def _to_process(self, act: Act, those: Sequence[int], what: str) -> bool:
        if not those:
            return False
        pid = those[act.number % len(those)]
        with suppress(ProcessLookupError):
            if what == "killed":
                os.kill(pid, signal.SIGKILL)
                return True
            os.kill(pid, signal.SIGSTOP)
            self._pass(act.lasts_s)
            os.kill(pid, signal.SIGCONT)
            return True
        return False

    def _to_worker(self, act: Act, what: str) -> bool:
        workers = self._machine.cluster.workers
        worker = workers[act.number % len(workers)]
        if what == "stopped":
            worker.pause()
            self._pass(act.lasts_s)
            worker.resume()
        else:
            worker.kill()
            self._pass(act.lasts_s)
            worker.restart()
        return True

    def _to_driver(self, act: Act) -> bool:
        pipeline = self.pipelines[act.number % len(self.pipelines)]
        driver = pipeline.driver
        jvms = [pid for pid in children(driver.pid) if program(pid) == "java"]
        match act.what:
            case "driver killed":
                driver.kill()
            case "driver's JVM killed":
                return self._to_process(act, jvms, "killed")
            case "driver stopped":
                return self._to_process(act, [driver.pid, *jvms], "stopped")
            case _:
                older = pipeline.replaced()
                began = len(pipeline.events("batch"))
                self._wait(lambda: len(pipeline.events("batch")) > began or not older.alive(), _FIRST_S)
                if older.alive():
                    older.send_signal(signal.SIGCONT)
        return True

    def _to_server(self, act: Act) -> bool:
        names = sorted(set().union(*(each.served for each in self.pipelines)))
        name = names[act.number % len(names)]
        server, proxy = self._served(name)
        match act.what:
            case "server killed":
                server.kill()
                self._pass(act.lasts_s)
                server.restart()
            case "server stopped":
                server.pause()
                self._pass(act.lasts_s)
                server.resume()
            case "server refuses":
                proxy.refuse()
                self._pass(act.lasts_s)
                proxy.heal()
            case "server silent":
                proxy.hold()
                self._pass(act.lasts_s)
                proxy.release()
            case _:
                fault = proxy.cut(Cut.REQUEST if act.what == "request cut" else Cut.REPLY)
                self._wait(fault.fired.is_set, act.lasts_s)
                proxy.heal()
                return fault.fired.is_set()
        self.outcome.done[f"{act.what}: {name}"] += 1
        return True

    def _promote(self) -> bool:
        if self._pair is None or self._promoted:
            return False
        self._pair.promote()
        self._pair.lead()
        self._promoted = True
        return True

    def _served(self, name: str) -> Served:
        if name != "standby":
            return self._machine.served(name)
        assert self._pair is not None
        return Served(self._pair.standby if self._promoted else self._pair.primary, self._pair.address)

    def _executors(self) -> list[int]:
        workers = [each.process.pid for each in self._machine.cluster.workers]
        return [pid for worker in workers for pid in children(worker) if program(pid) == "java"]

    def _python_workers(self) -> list[int]:
        daemons = [daemon for executor in self._executors() for daemon in children(executor)]
        return [worker for daemon in daemons for worker in (daemon, *children(daemon))]

    # Waiting, and the end ---------------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let time pass: at any moment may be what comes next."""
        self._wait(lambda: False, seconds)

    def _wait(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Wait, and start drivers that have ended; return whether it happened."""
        until = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > until:
                return False
            for each in self.pipelines:
                each.look()
            time.sleep(_LOOK_S)
        return True

    def _all_have_begun(self) -> bool:
        return all(each.events("batch") for each in self.pipelines)

    def _all_went_on(self) -> bool:
        """Whether each pipeline has committed a batch since the last act was over."""
        since = self.outcome.over[-1][1] if self.outcome.over else 0.0
        return all(events and events[-1]["at"] > since for events in (each.events("batch") for each in self.pipelines))

    def _end(self, pipeline: Pipeline, kafka: KafkaServer) -> None:
        """Wait until it has caught up, end it, and count."""
        settings, outcome = pipeline.settings, self.outcome
        messages = records_of(kafka, settings.topic)
        ends = {n: sum(each.partition == n for each in messages) for n in range(PARTITIONS)}
        began = -1
        while not (done := self._wait(lambda: pipeline.caught_up(ends), _STUCK_S)):
            if (now := len(pipeline.events("batch"))) == began:
                break
            began = now
        if not done:
            outcome.stuck += 1
            last = [each["text"] for each in pipeline.events("end")][-1:]
            outcome.notes.append(f"{settings.group} is stuck at {pipeline.snapshot()}: {last}")
        pipeline.kill()
        outcome.batches.append([each["at"] for each in pipeline.events("batch")])
        outcome.ends.update(each["error"] for each in pipeline.events("end"))
        report = check_traces(sorted((pipeline.folder / "traces").iterdir()))
        outcome.broken += len(report.broken)
        outcome.notes += [f"{settings.group}: trace: {each.rule}: {each.what}" for each in report.broken]
        self.count(pipeline, messages)

    def count(self, pipeline: Pipeline, messages: Sequence[Message]) -> None:
        """Count each record in each output of a pipeline."""
        settings, verdict = pipeline.settings, self.outcome.verdict
        kinds = {name: kind for name, (kind, _) in settings.outputs.items()}
        keeps = {name: "at_least_once" if kind == "Function" else "exactly_once" for name, kind in kinds.items()}
        book = open_book(pipeline.snapshot(), settings.program, keeps, messages)
        for name, place in settings.places().items():
            for each in verdict.count(book, name, place.rows()):
                self.outcome.notes.append(f"{settings.group}: {each.kind} in {each.output}: {each.what}")


def records_of(kafka: KafkaServer, topic: str) -> list[Message]:
    """Return all records of a topic."""
    return [
        Message(
            topic,
            each.partition() or 0,
            each.offset() or 0,
            each.timestamp()[1],
            (each.key() or b"").decode(),
            (each.value() or b"").decode(),
        )
        for each in read_messages(kafka, topic)
    ]
