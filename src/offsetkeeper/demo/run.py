"""The demo as a play in scenes: produce, kill, kill again, let a stale driver try, and count."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.store import EVERY_ENTRY
from offsetkeeper.demo import orders, poison
from offsetkeeper.demo.display import Display
from offsetkeeper.demo.driver import FENCED, Settings
from offsetkeeper.demo.outputs import OUTPUTS, make_letters, read_letters
from offsetkeeper.demo.poison import Letter
from offsetkeeper.demo.process import Driver
from offsetkeeper.operate.holds import compare_with
from offsetkeeper.stores import open_store
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import spark_home
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer

StoreName = Literal["sqlite", "postgresql"]

POINTS = {
    "staged": "rows read and staged, nothing written",
    "written": "rows written, offsets not committed",
    "committed": "committed, and nothing told yet",
    "read": "ranges chosen, nothing read",
    "": "any moment",
}


class Demo:
    """One run of the demo.

    Args:
        store: "sqlite" or "postgresql", for the offsets.
        sink: the kind of output, of `OUTPUTS`; a table is in the store's database.
        kills: how many drivers are killed.
        rate: orders produced in a second.
        display: shows what happens.
        poison: whether bad orders are among the orders.
    """

    def __init__(
        self, store: StoreName, sink: str, *, kills: int, rate: int, display: Display, poison: bool = False
    ) -> None:
        self._store, self._kills, self._rate, self._display, self._poison = store, kills, rate, display, poison
        self._sink, self._output = sink, OUTPUTS[sink]
        self._random = random.Random()  # noqa: S311 - no secret
        self._stack = ExitStack()

    def run(self) -> dict[str, object]:
        """Play all scenes and return the summary.

        Raises:
            ToolMissing: PySpark is not installed; nothing was started.
            ArtifactError: a server's jars could not be had.
            ServerError: a server or a driver did not do its part.
        """
        spark_home()  # the drivers need it
        began = time.monotonic()
        tell = self._display.tell
        with self._stack as stack:
            url = stack.enter_context(self._open_store())
            tell("Starting a Kafka broker")
            kafka = stack.enter_context(KafkaServer(progress=tell))
            for topic, partitions in orders.TOPICS.items():
                kafka.create_topic(topic, partitions, poison.ANY_TIME if self._poison else None)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="offsetkeeper-demo-"))
            place = self._output.place(url, kafka.bootstrap, str(Path(folder) / "orders"))
            self._output.make(place)
            settings = Settings(kafka.bootstrap, url, self._sink, place, poison=self._poison)
            if self._poison:
                make_letters(url)
            producer = orders.Producer(kafka.bootstrap, self._rate, poison.due(self._rate) if self._poison else ())
            producer.start()
            stack.callback(producer.stop)
            self._display.watch(producer)
            for number in range(self._kills):
                self._kill(number, settings)
                if number == 0:
                    self._grow(kafka)
            fenced = self._stale(settings)
            produced = producer.finish()
            tell("The producer has ended; a last driver catches up")
            last = self._driver(replace(settings, until="caught_up", max_records=2_000 if self._poison else 20_000))
            last.wait_for("end")
            last.wait()
            counts = self._count(produced, producer.letters, settings, fenced)
            return counts | {"seconds": round(time.monotonic() - began, 1)}

    @contextmanager
    def _open_store(self) -> Iterator[str]:
        """Make the database, and yield its URL."""
        if self._store == "sqlite":
            with tempfile.TemporaryDirectory(prefix="offsetkeeper-demo-") as folder:
                yield f"sqlite:///{Path(folder) / 'demo.db'}"
        else:
            self._display.tell("Starting PostgreSQL")
            with PostgreSQLServer(progress=self._display.tell) as server:
                yield server.url(server.create_database())

    def _driver(self, settings: Settings) -> Driver:
        driver = Driver(settings, self._display.on_event)
        self._stack.callback(driver.kill)
        return driver

    def _kill(self, number: int, settings: Settings) -> None:
        """Let a driver work for some batches, and kill it at one of the points."""
        point = list(POINTS)[number % len(POINTS)]
        after = self._random.randrange(1, 4)
        self._display.tell(f"Driver {number + 1} starts")
        driver = self._driver(replace(settings, halt_at=point, after=after))
        if point:
            driver.wait_for("halt")
        else:
            for _ in range(after):
                driver.wait_for("batch")
            time.sleep(self._random.random() / 2)  # any moment is what this kill is about
        driver.kill()
        self._display.killed(POINTS[point])

    def _grow(self, kafka: KafkaServer) -> None:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # noqa: PLC0415 - loaded on use

        count = orders.TOPICS[orders.GROWS] + 1
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(orders.GROWS, count)])[orders.GROWS].result(30)
        self._display.tell(f"Topic {orders.GROWS} has grown to {count} partitions")

    def _stale(self, settings: Settings) -> int:
        """Halt a driver in a batch, let a second one take over, and send the first on: it must be fenced."""
        tell = self._display.tell
        tell("A driver stalls in the middle of a batch")
        stale = self._driver(replace(settings, halt_at="staged"))
        stale.wait_for("halt")
        tell("A second driver takes over, then the stalled one wakes up")
        second = self._driver(settings)
        second.wait_for("batch")
        stale.go()
        code = stale.wait()
        fenced = int(code == FENCED)
        tell("The stale driver was fenced" if fenced else f"The stale driver was NOT fenced (exit code {code})")
        if (code := second.terminate()) != 0:
            raise ServerError(f"the second driver did not stop cleanly, exit code {code}")
        tell("The second driver stopped cleanly on SIGTERM")
        return fenced

    def _count(
        self, produced: list[orders.Order], bad: Mapping[str, list[Letter]], settings: Settings, fenced: int
    ) -> dict[str, object]:
        verdict = orders.compare(produced, list(self._output.read(settings.place)))
        with closing(open_store(settings.store)) as store:
            ledger = Ledger(store, "demo")
            reached = {tp: position.offset for tp, position in ledger.load().positions.items()}
            held, now = self._output.held and self._output.held(settings.place), ledger.snapshot
            misfits = held and compare_with(now, now, ledger.history(EVERY_ENTRY), held)
        poisoned = [letter for letters in bad.values() for letter in letters]
        letters = read_letters(settings.store) if self._poison else []
        ends = orders.ends([*produced, *poisoned])
        behind = sum(1 for tp, end in ends.items() if reached.get(tp) != end)
        partitions = sum(orders.TOPICS.values()) + (self._kills > 0)
        lacking = len(poison.KINDS) - len(bad) if self._poison else 0  # kinds that were not produced prove nothing
        wrong = poison.wrong(poisoned, letters) + lacking
        ok = verdict.clean and not behind and fenced == 1 and len(ends) == partitions and not wrong and not misfits
        counts = {"kills": self._kills, "fenced": fenced, "partitions": len(ends), "positions_behind": behind}
        if misfits is not None:
            counts["misfits"] = len(misfits)
        if self._poison:
            counts |= {"bad": len(poisoned), "dead_letters": len(letters), "wrong_letters": wrong}
        return verdict._asdict() | counts | {"store": self._store, "sink": self._sink, "ok": ok}
