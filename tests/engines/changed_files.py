"""A file for TLS that is right for the driver, and another one when tasks read it: as on another machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from engines.misfits import LETTERS
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.sinks import Table

LIMIT_S = 100
"""It is told at once, on a slow machine."""


class Changed(NamedTuple):
    """An output whose authorities are in a file.

    Attributes:
        sink: the output.
        setting: that names the file.
        file: it.
        columns: of a frame that fits.
        rows: returns the number of rows in the output.
    """

    sink: Any
    setting: str
    file: Path
    columns: tuple[str, ...]
    rows: Callable[[], int]

    def check(self, lab: Lab, source: str, foreign: Path) -> None:
        """Let a batch land with another authority, with no file, and with the right one. No record is its fault."""
        lab.produce(source, "a", "b", "c")
        right, folder = self.file.read_bytes(), self.file.parent
        with closing(sqlite3.connect(folder / "letters.db")) as connection:
            connection.execute(LETTERS)
        for content, kind, told in (
            (foreign.read_bytes(), Refused, f"is signed by no CA that {self.setting} has"),
            (b"", SettingsError, f"{self.setting}={self.file} has no certificate in PEM on"),
        ):
            began = time.monotonic()
            with pytest.raises(kind, match=told):
                self._run(lab, source, content)
            assert time.monotonic() - began < LIMIT_S
            self.file.write_bytes(right)
            assert self.rows() == 0
        self._run(lab, source, right)
        assert self.rows() == 3
        with closing(sqlite3.connect(folder / "letters.db")) as connection:
            assert connection.execute("select * from letters").fetchall() == []

    def _run(self, lab: Lab, source: str, content: bytes) -> None:
        path = str(self.file)

        def change(batches: Iterable[Any]) -> Iterator[Any]:
            with open(path, "wb") as file:  # noqa: PTH123 - on an executor, with nothing imported
                file.write(content)
            yield from batches

        def process(frame: DataFrame, _: Batch) -> DataFrame:
            chosen = frame.selectExpr(*self.columns)
            return chosen.mapInArrow(change, chosen.schema)

        letters = Table(f"sqlite:///{self.file.parent}/letters.db", "letters")
        pipeline = lab.pipeline(source, attempts=1, policies=Policies(poison="quarantine"), dead_letters=letters)
        pipeline.run(lab.spark, process, sink=self.sink, guarantee="exactly_once", until="caught_up")
