"""The way back: a copy in the format of the release before is read and carried on by that release, in each store."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from golden.medium import Medium
from golden.written import KINDS
from offsetkeeper.core.batch import Batch, Program, QueryBatch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.operate.copy import copy
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.sinks.held import as_text, told
from offsetkeeper.stores import open_store
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import values

_HERE = Path(__file__).parent
A, B = TopicPartition("golden-clicks", 0), TopicPartition("golden-sales", 1)
QUERY = "0b1e2f3a-0000-4000-8000-000000000001"
LIMIT_S = 120


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of release 0.2."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(_HERE / "release-0.2.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(f"test_{name}")) for name in KINDS])
def medium(request: pytest.FixtureRequest) -> Iterator[Medium]:
    """An empty place of each store."""
    kind = KINDS[request.param]
    with closing(kind.medium(request.getfixturevalue(kind.fixture))) as place:
        yield place


def memory() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore(f"memory://{secrets.token_hex(8)}")


def newest() -> MemoryStore:
    """Return a store with a group that has all that is new since format 3, and a batch under way."""
    store = memory()
    run = Ledger(store, "orders", name="newer release")
    run.acquire()
    placed = {A: Position(10, "id of clicks", "cluster", 4), B: Position(0, None, "cluster", 5)}
    run.place(placed, given="digest", queries={QUERY: 3})
    run.commit(run.batch([], QueryBatch(QUERY, 3)))
    run.commit(run.batch([OffsetRange(*A, 10, 20)]))
    run.rewind({A: Position(15, "id of clicks", "cluster", 4)}, "by hand")
    program = Program(("golden-clicks", "golden-sales"), {"table": "Table orders"})
    batch = run.batch([OffsetRange(*A, 15, 25), OffsetRange(*B, 0, 7)])
    run.begin(batch, ["table"], {"table": Landed(0, "17")}, program)
    run.note_written(batch, "table", "17")
    run.release()
    return store


def older(release: Path, url: str) -> dict[str, Any]:
    """Let the older release read the group and carry on; return what it has read."""
    found: dict[str, Any] = json.loads(_by(release, "older.py", f"{url}\norders").splitlines()[-1])
    return found


def _by(release: Path, program: str, given: str) -> str:
    """Return what a program prints with the older release."""
    done = subprocess.run(
        [sys.executable, str(_HERE / program)],
        input=given,
        env={**os.environ, "PYTHONPATH": str(release)},
        cwd=release,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_release_before_goes_on_with_a_copy_in_its_format(medium: Medium, release: Path) -> None:
    source = newest()
    with closing(open_store(medium.url)) as target:
        copied = copy("orders", source, target, format=3)
        again = copy("orders", source, target, format=3)
    assert again.version == copied.version, "nothing is written twice"
    found = older(release, medium.url)
    stored = {(row["topic"], row["partition"]): row["offset"] for row in found["ledger"]["positions"]}
    assert stored == {A: 15, B: 0}
    assert found["ledger"]["queries"] == {QUERY: 4}
    pending = copied.pending
    assert pending is not None
    assert (found["ledger"]["pending"]["id"], found["ledger"]["pending"]["written"]) == (pending.id, ["table"])
    told = ["copy", "release", "mark", "begin", "rewind", "commit", "commit", "place", "acquire"]
    assert [entry["event"] for entry in found["history"]] == told
    with closing(open_store(medium.url)) as target:
        later = Ledger(target, "orders")
        later.load()
        assert {tp: at.offset for tp, at in later.snapshot.positions.items()} == {A: 28, B: 7}
        assert later.snapshot.queries == {QUERY: 4}
        assert (later.snapshot.pending, later.snapshot.sequence) == (None, pending.sequence + 1)
        later.acquire("upgraded again")
        later.commit(later.batch([OffsetRange(*A, 28, 30)]))
        later.release()
        assert [entry.event for entry in later.history(3)] == ["release", "commit", "acquire"]


def test_the_release_before_goes_on_with_the_mark_of_a_topic(
    kafka_server: KafkaServer, topic: Callable[..., str], release: Path
) -> None:
    """What a topic tells others is beside the mark; the older release leaves it there, and it is of no batch then."""
    name = topic(2)
    sink, key = Topic(kafka_server.bootstrap, name), MarkKey("orders", "")
    way = sink.prepare(memory(), Guarantee.EXACTLY_ONCE)
    batch = Batch("orders", "token", 5, (OffsetRange(*A, 0, 9),))
    mark = OutputMark.of(batch)
    turn = Turn(sink._slot(key))
    turn.write([], Saying(turn.take(), 5, str(mark), as_text(told(key, mark, batch.lines()), 2_000)))
    assert [each.ranges for each in sink.held(key).batches] == [batch.ranges]
    assert _by(release, "older_topic.py", f"{kafka_server.bootstrap}\n{name}\norders") == str(mark)
    [found] = sink.held(key).batches
    assert (found.batch, found.ranges) == ("orders/older/6", None)
    assert way.seen(key).mark == OutputMark(6, "older", "0" * 16)
    assert values(kafka_server.bootstrap, name) == ["older"]


def test_a_format_that_no_release_has_is_refused() -> None:
    for number in (2, 5):
        with pytest.raises(SettingsError, match=f"format {number} cannot be written: use 3 for release 0.2, or 4"):
            copy("orders", newest(), memory(), format=number)


def test_positions_that_were_lost_cannot_go_back(tmp_path: Path) -> None:
    """The older release would start these partitions as if they were new."""
    path = tmp_path / "offsets.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        copy("orders", newest(), store)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("delete from kafka_offsets where topic = 'golden-sales'")
        with pytest.raises(Refused, match="has lost the positions of golden-sales 1, and format 3 cannot say so"):
            copy("orders", store, memory(), format=3)


def test_a_dropped_batch_whose_records_may_count_as_done_cannot_go_back() -> None:
    """The older release read them again, and wrote them a second time."""
    store = memory()
    run = Ledger(store, "orders")
    run.acquire()
    run.place({A: Position(0), B: Position(0)})
    batch = run.batch([OffsetRange(*A, 0, 10), OffsetRange(*B, 0, 10)])
    run.begin(batch, [""], {"": Landed(0, "17")})
    run.release()
    run.rewind({A: Position(5)}, "by hand")
    with pytest.raises(Refused, match=f"count as done if all outputs have it: {B} 0 10. Format 3 cannot say so"):
        copy("orders", store, memory(), format=3)
    run.rewind({B: Position(5)}, "by hand")
    assert copy("orders", store, memory(), format=3).unsettled is not None
