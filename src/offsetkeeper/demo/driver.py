"""The pipeline of the demo, in its own process that can be killed: `python -m offsetkeeper.demo.driver SETTINGS`.

It prints events as lines of JSON. At a given point it halts until it is killed or gets the command to continue.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.plan import Policies
from offsetkeeper.demo import orders
from offsetkeeper.demo.outputs import OUTPUTS
from offsetkeeper.demo.poison import LETTERS
from offsetkeeper.errors import Fenced
from offsetkeeper.pipeline import Pipeline
from offsetkeeper.sinks import Joiner, Lander, Sink, Table, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.core.batch import Batch
    from offsetkeeper.core.model import Guarantee
    from offsetkeeper.core.store import Store
    from offsetkeeper.engines.loop import Progress, Until

FENCED = 3
"""Exit code of a driver that was fenced."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a driver.

    Attributes:
        brokers: brokers of the cluster.
        store: URL of the store.
        sink: the kind of output, of `OUTPUTS`.
        place: location of the output.
        until: "stopped" or "caught_up".
        max_records: the most records in a batch.
        halt_at: "read", "staged", "written" or "committed": where to halt; "" for nowhere.
        after: number of batches to commit before.
        poison: whether bad orders go into the dead letters.
    """

    brokers: str
    store: str
    sink: str
    place: str
    until: Until = "stopped"
    max_records: int = 1000
    halt_at: str = ""
    after: int = 1
    poison: bool = False


class Halt:
    """Halts the driver once at one point, until it gets the command to continue."""

    def __init__(self, settings: Settings) -> None:
        self.committed = 0
        self._settings = settings
        self._go = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def at(self, point: str) -> None:
        """Halt here if this is the point and enough batches were committed."""
        if point == self._settings.halt_at and self.committed >= self._settings.after and not self._go.is_set():
            say("halt", at=point)
            self._go.wait()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                self._go.set()
        os._exit(1)  # the parent process is gone


class HaltingSink:
    """The demo's sink, with halting points between its steps."""

    def __init__(self, sink: Sink, halt: Halt) -> None:
        self._sink, self._halt = sink, halt

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """Prepare the sink; it can halt before and after its rows are staged, and after they are written."""
        way = self._sink.prepare(store, guarantee)
        if isinstance(way, Joiner):
            return replace(way, stage=partial(self._join, way.stage))
        if isinstance(way, Lander):
            return replace(way, stage=partial(self._stage, way.stage), land=partial(self._land, way.land))
        return way

    def _stage(self, stage: Callable[..., Any], frame: DataFrame, batch: Batch) -> Any:
        self._halt.at("read")
        staged = stage(frame, batch)
        self._halt.at("staged")
        return staged

    def _join(self, stage: Callable[..., Any], frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        finish = self._stage(stage, frame, batch)

        def finish_and_halt(connection: Any) -> None:
            finish(connection)
            self._halt.at("written")

        return finish_and_halt

    def _land(self, land: Callable[..., object], *arguments: Any) -> None:
        land(*arguments)
        self._halt.at("written")


def say(event: str, **values: object) -> None:
    """Print one event as a line of JSON."""
    print(json.dumps({"event": event, **values}), flush=True)  # noqa: T201 - the parent reads it


def session() -> SparkSession:
    """Return a local session of two cores."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, so it is loaded after the settings are read

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master("local[2]").appName("offsetkeeper demo").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run(settings: Settings) -> int:
    """Run the pipeline and return the process's exit code."""
    halt = Halt(settings)
    policies = Policies(poison="quarantine") if settings.poison else None
    letters = Table(settings.store, LETTERS) if settings.poison else None
    pipeline = Pipeline(
        group="demo",
        store=settings.store,
        brokers=settings.brokers,
        topics=list(orders.TOPICS),
        max_records=settings.max_records,
        poll_interval_s=0.1,
        policies=policies,
        dead_letters=letters,
    )

    def on_batch(progress: Progress) -> None:
        halt.committed += 1
        batch = progress.batch
        say("batch", id=batch.id, offsets=batch.size, seconds=round(progress.seconds, 3), left=progress.left)
        halt.at("committed")

    spark = session()
    say("ready")
    output = OUTPUTS[settings.sink]
    sink = HaltingSink(output.open(settings.place), halt)
    try:
        summary = pipeline.run(
            spark, output.process, sink=sink, guarantee="exactly_once", until=settings.until, on_batch=on_batch
        )
    except Fenced as error:
        say("fenced", message=str(error))
        return FENCED
    say("end", batches=summary.batches, offsets=summary.offsets, ended=summary.ended)
    return 0


if __name__ == "__main__":
    sys.exit(run(Settings(**json.loads(sys.argv[1]))))
