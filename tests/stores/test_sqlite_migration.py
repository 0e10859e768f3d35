"""Offsets of the last records that were read, and how they become the next ones: docs/migrate-dstreams.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from docs.pages import ROOT, blocks
from offsetkeeper import open_store
from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import ENDS, LEFT, Switch


class Hash:
    """A hash in Redis of a program that keeps the last offsets that it has read."""

    def __init__(self) -> None:
        """Have read all before `LEFT`."""
        self.fields = {f"orders:{number}": str(offset - 1) for number, offset in LEFT.items()}

    def hgetall(self, key: str) -> dict[str, str]:
        """Return all fields."""
        assert key == "offsets:orders"
        return self.fields

    def hset(self, key: str, field: str, value: int) -> None:
        """Set a field."""
        assert key == "offsets:orders"
        self.fields[field] = str(value)


def test_the_last_offsets_of_another_layout_become_the_next_ones_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They became so by `--shift-by` after a reset, which lost a record where the reset had clipped a partition."""
    monkeypatch.chdir(tmp_path)
    old = Hash()
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: old)
    names: dict[str, Any] = {}
    [there, back] = (
        next(block for block in blocks(ROOT / "docs" / "migrate-dstreams.md") if word in block)
        for word in ("hgetall", "hset")
    )
    assert "last_read = 0" in there
    exec(there.replace("last_read = 0", "last_read = 1"), names)  # noqa: S102 - what is under test
    rows = (tmp_path / "offsets.csv").read_text("utf-8").splitlines()
    assert rows == [f"orders,{number},{offset}" for number, offset in LEFT.items()]
    (tmp_path / "back.csv").write_text(
        "".join(f"orders,{number},{offset}\n" for number, offset in ENDS.items()), "utf-8"
    )
    exec(back, names)  # noqa: S102 - what is under test
    assert old.fields == {f"orders:{number}": str(offset - 1) for number, offset in ENDS.items()}


def test_the_last_offsets_of_a_known_layout_are_moved_by_one_there_and_back(
    spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    switch = Switch(spark, kafka_server, topic(2), tmp_path, f"sqlite:///{tmp_path}/offsets.db")
    switch.produce(ENDS)
    last = {number: offset - 1 for number, offset in LEFT.items()}
    rows = [f"{switch.topic},{number},{offset}" for number, offset in last.items()]
    (tmp_path / "offsets.csv").write_text("\n".join(rows), "utf-8")
    switch.follow("--from-file")  # stands for the rows of the old program
    for word, expected in (("--shift-by 1", LEFT), ("--shift-by -1", last), ("--shift-by 1", LEFT)):
        switch.follow(word)
        with closing(open_store(switch.store)) as store:
            found = store.load(switch.group).positions
        assert {tp.partition: position.offset for tp, position in found.items()} == expected
