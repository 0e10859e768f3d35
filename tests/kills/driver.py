"""A driver on the cluster, in a process that is killed: `python -m kills.driver SETTINGS`.

It notes each batch that is committed, and the error with which it ends, as lines of JSON in the file of events.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kills.places import place_of
from offsetkeeper import Pipeline
from offsetkeeper.sinks import Function, Outputs
from swarm.records import Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch

_ATTEMPTS = 10


@dataclass(frozen=True)
class Settings:
    """What a driver is told.

    Attributes:
        brokers, topic, group, store, max_records, reader: of the pipeline.
        folder: of the pipeline.
        outputs: by name, the kind of each and the URL of its database.
        engine: `run` or `start`.
        shape: what the frames have.
        spark: settings of the session.
    """

    brokers: str
    topic: str
    group: str
    store: str
    folder: str
    outputs: dict[str, tuple[str, str]]
    engine: str
    reader: str
    shape: tuple[str, ...]
    max_records: int
    spark: dict[str, str]

    @property
    def text(self) -> str:
        """All of it as JSON."""
        return json.dumps(asdict(self))

    @property
    def program(self) -> Program:
        """What makes rows of records."""
        return Program(shape=frozenset(self.shape))

    @property
    def guarantee(self) -> str:
        """What the pipeline asks for: functions can write twice."""
        return "at_least_once" if any(kind == "Function" for kind, _ in self.outputs.values()) else "exactly_once"

    def places(self) -> dict[str, Any]:
        """Return the outputs by name."""
        where: dict[str, Any] = {"brokers": self.brokers, "store": self.store}
        return {
            name: place_of(kind, name, Path(self.folder), url=url, **where)
            for name, (kind, url) in self.outputs.items()
        }


def main(settings: Settings) -> None:
    """Run until the process is killed, or an error ends it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - who makes settings needs no Spark

    program, places = settings.program, settings.places()

    def say(event: str, **values: str) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), "process": os.getpid(), **values})
        with Path(settings.folder, "events").open("a", encoding="utf-8") as events:
            events.write(f"{line}\n")

    def process(frame: DataFrame, batch: Batch) -> Any:
        made = {name: place.frame(program.frame(frame, batch.id, name)) for name, place in places.items()}
        return made if len(made) > 1 else made[next(iter(made))]

    sinks = {name: place.sink() for name, place in places.items()}
    [first, *others] = [each if hasattr(each, "prepare") else Function(each) for each in sinks.values()]
    sink = Outputs(**dict(zip(sinks, [first, *others], strict=True))) if others else first
    native = {"offsetkeeper.native": "never"} if settings.reader.endswith("python") else {}
    place = "at the start of Spark: "
    try:
        spark = SparkSession.builder.config(map=settings.spark).getOrCreate()  # type: ignore[arg-type]
        place = ""
        pipeline = Pipeline(
            group=settings.group,
            store=settings.store,
            brokers=settings.brokers,
            topics=[settings.topic],
            kafka=native,
            reader="packed",
            max_records=settings.max_records,
            poll_interval_s=0.2,
            attempts=_ATTEMPTS,
        )
        how: dict[str, Any] = {"sink": sink, "guarantee": settings.guarantee}
        if settings.engine == "run":
            pipeline.run(spark, process, on_batch=lambda _: say("batch"), **how)
        else:
            query = pipeline.start(
                spark,
                process,
                checkpoint=f"{settings.folder}/checkpoint",
                trigger={"processingTime": "200 milliseconds"},
                on_progress=lambda _: say("batch"),
                **how,
            )
            query.awaitTermination()
        say("end", error="none", text="")
    except BaseException as error:
        say("end", error=f"{place}{type(error).__name__}", text=str(error)[:2000])
        raise


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
