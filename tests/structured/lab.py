"""What tests of the structured engine share: a lab of the engine's tests, with queries and their checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab
from offsetkeeper import Batch
from offsetkeeper.core.retry import retry
from offsetkeeper.engines.query import Query

T = TypeVar("T")
AVAILABLE: Mapping[str, Any] = {"availableNow": True}
SETTINGS = {"attempts", "group", "retry_timeout_s", "policies", "reader", "store", "topics", "exclude", "start"}
SETTINGS |= {"interval_s", "max_records", "max_records_per_topic", "max_bytes", "min_records", "max_delay_s"}


@dataclass
class StructuredLab(Lab):
    """One test's queries, all of one group and with one checkpoint unless it says otherwise.

    Attributes:
        checkpoint: folder of the queries' checkpoint.
        settings: of the pipelines, beside those of every lab.
    """

    checkpoint: Path = field(kw_only=True)
    settings: dict[str, Any] = field(default_factory=dict)

    def start(self, topic: str | list[str], process: Any = None, **how: Any) -> Query:
        """Start a query of a pipeline with short waits, which reads all that is there and ends."""
        settings = self.settings | {setting: how.pop(setting) for setting in SETTINGS & how.keys()}
        topics = [topic] if isinstance(topic, str) else topic
        given: dict[str, Any] = {"checkpoint": str(self.checkpoint), "trigger": AVAILABLE, **how}
        if process is None and "sink" not in how:
            process = self.keep
        return self.pipeline(*topics, **settings).start(self.spark, process, **given)

    def follow(self, topic: str | list[str], process: Any = None, **how: Any) -> list[str]:
        """Run a query until it has read all that is there, and return the values it kept."""
        before = len(self.values)
        assert started(lambda: self.start(topic, process, **how).awaitTermination(LIMIT_S)), "the query did not end"
        return self.values[before:]

    def ends(self, batch_id: int) -> dict[str, dict[str, int]]:
        """Return where a batch ends, by the query's checkpoint."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text("utf-8").splitlines()
        ends: dict[str, dict[str, int]] = json.loads(lines[2])
        return ends

    def batch_ids(self, folder: str = "offsets") -> list[int]:
        """Return the numbers of the batches that a folder of the checkpoint knows."""
        path = self.checkpoint / folder
        return sorted(int(each.name) for each in path.iterdir() if each.name.isdecimal()) if path.is_dir() else []

    def delete_checkpoint(self) -> None:
        """Delete the checkpoint, if there is one."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def copy_checkpoint(self, name: str) -> Path:
        """Copy the checkpoint beside itself."""
        return Path(shutil.copytree(self.checkpoint, self.checkpoint.parent / name))

    def restore_checkpoint(self, copy: Path) -> None:
        """Put a copy in the checkpoint's place."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        shutil.copytree(copy, self.checkpoint)

    def forget_commit(self, batch_id: int) -> None:
        """Leave the checkpoint as a crash does right before Spark notes that the batch is done."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def started(run: Callable[[], T]) -> T:
    """Run a query, once more if its Python was not there within Spark's ten seconds, which no setting makes more."""
    return retry(lambda error: "worker failed to connect back" in str(error), 30, lambda _: run())


def fail(_: DataFrame, __: Batch) -> None:
    """Fail: a process function."""
    raise RuntimeError("the output is away")
