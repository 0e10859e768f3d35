"""One history, tried; and the shortest one that fails as it does."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from offsetkeeper.testing.kafka import KafkaServer
from swarm.book import Finding
from swarm.draw import History
from swarm.outputs import OtherTopic
from swarm.world import Broken, World

_TRIES = 40


@dataclass(frozen=True)
class Result:
    """What has come of a history.

    Attributes:
        history: that was tried.
        verdict: "caught_up", the error that ended its last run, or "broken".
        finding: what is wrong; None if nothing is.
        told: its acts in plain words.
        seen: what it has reached.
    """

    history: History
    verdict: str
    finding: Finding | None
    told: tuple[str, ...]
    seen: Counter[str]

    def __str__(self) -> str:
        lines = [str(self.history), *(f"  {number + 1}. {each}" for number, each in enumerate(self.told))]
        found = self.finding
        if found is None:
            return "\n".join([*lines, f"  {self.verdict}"])
        return "\n".join(
            [*lines, f"  {found.kind.upper()} {found.output}: {found.what}", f"  --seed {self.history.seed}"]
        )


@dataclass(frozen=True)
class Machine:
    """What a history needs of the machine.

    Attributes:
        spark, kafka: where it happens.
        folder: in which it gets a folder of its own.
        databases: see `World`.
    """

    spark: SparkSession
    kafka: KafkaServer
    folder: Path
    databases: Mapping[str, Callable[[], str]] = field(default_factory=dict)

    def tried(self, history: History) -> Result:
        """Let a history happen."""
        folder = self.folder / f"h{history.seed}-{secrets.token_hex(4)}"
        folder.mkdir()
        world = World(history, self.spark, self.kafka, folder, self.databases)
        finding = None
        try:
            world.go()
        except Broken as broken:
            finding = broken.finding
        finally:
            self.spark.catalog.clearCache()
            made = {
                *world.source.topics,
                *(place.topic for place in world.places.values() if isinstance(place, OtherTopic)),
            }
            for topic in made & self.kafka.topics():
                self.kafka.delete_topic(topic)
            shutil.rmtree(folder)
        return Result(history, "broken" if finding else world.verdict, finding, tuple(world.told), world.seen)


def shortened(result: Result, tried: Callable[[History], Result], tries: int = _TRIES) -> Result:
    """Return the shortest history that fails in the same way, leaving out acts and making runs plain.

    Args:
        result: of a history that fails.
        tried: lets a history happen.
        tries: the most histories to try.
    """
    kept = replace(result.history, steps=result.history.steps[: len(result.told)])
    at = len(kept.steps)
    while at > 0 and tries > 0:
        at -= 1
        less = replace(kept, steps=(*kept.steps[:at], *kept.steps[at + 1 :]))
        found = tried(less)
        tries -= 1
        if found.finding and result.finding and found.finding.kind == result.finding.kind:
            result, kept = found, less
            at = min(at, len(kept.steps))
    return result
