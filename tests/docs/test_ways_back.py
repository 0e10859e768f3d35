"""Ways back to the old program, and how offsets become those of the other side, by the blocks of the pages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from checkpoints.written import write
from docs.pages import ROOT, blocks
from fixtures.fake_cluster import Fake
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.checkpoint import LocalFiles, plan_seed, read_checkpoint
from offsetkeeper.cli import options
from offsetkeeper.cli.main import app
from offsetkeeper.core.bounds import Bounds
from stores.migrating import ENDS, LEFT, commands


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


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Run the commands of a page's block that has a word; `> FILE` keeps what one prints."""
    monkeypatch.chdir(tmp_path)
    cluster = Fake()
    cluster.held_ = {TopicPartition("orders", number): Bounds(0, 100) for number in LEFT}
    monkeypatch.setattr(options, "open_cluster", lambda _: nullcontext(cluster))
    monkeypatch.setenv("OFFSETKEEPER_STORE", f"sqlite:///{tmp_path}/offsets.db")

    def run(page: str, word: str) -> None:
        for line in commands(page, word):
            command, _, file = line.partition(" > ")
            done = CliRunner().invoke(app, shlex.split(command)[1:])
            assert done.exit_code == 0, f"{line}: {done.output} {done.exception!r}"
            if file:
                (tmp_path / file).write_text(done.stdout, "utf-8")

    return run


def stored(folder: Path) -> dict[int, int]:
    """Return the group's offsets, by partition."""
    with closing(open_store(f"sqlite:///{folder}/offsets.db")) as store:
        return {tp.partition: at.offset for tp, at in store.load("shop").positions.items()}


def place(folder: Path, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets, by partition."""
    with closing(open_store(f"sqlite:///{folder}/offsets.db")) as store:
        Ledger(store, "shop").rewind({TopicPartition("orders", n): Position(at) for n, at in offsets.items()}, "there")


def test_the_last_offsets_of_a_known_layout_are_moved_by_one_there_and_back(
    tmp_path: Path, follow: Callable[[str, str], None]
) -> None:
    """Only the way there was on the page, so the old program skipped a record of each partition."""
    last = {number: offset - 1 for number, offset in LEFT.items()}
    place(tmp_path, last)  # stands for the rows of the old program
    for word, expected in (("--shift-by 1", LEFT), ("--shift-by -1", last), ("--shift-by 1", LEFT)):
        follow("migrate-dstreams.md", word)
        assert stored(tmp_path) == expected


def test_an_old_checkpoint_goes_on_with_the_numbers_of_its_batches(
    tmp_path: Path, follow: Callable[[str, str], None]
) -> None:
    """A seeded one counts from 0, and an output that knows the numbers drops the first batches."""
    (tmp_path / "checkpoints").mkdir()
    files = write(tmp_path / "checkpoints" / "orders")
    for path in files.path.rglob("*"):
        os.utime(path, (0, 0))  # no query runs on it
    before = read_checkpoint(files).next()
    place(tmp_path, {0: 62, 1: 55})
    follow("migrate-checkpoints.md", "checkpoint move")
    after = read_checkpoint(files).next()
    assert (before.batch, after.batch) == (4, 5)
    assert {tp.partition: at for tp, at in after.positions.items()} == {0: 62, 1: 55}
    follow("migrate-checkpoints.md", "checkpoint seed")
    new = read_checkpoint(LocalFiles(tmp_path / "checkpoints" / "back"))
    assert new.next().batch == 0
    assert "txnAppId" in str(plan_seed(new, {"0": {TopicPartition("orders", 0): 62}}))
