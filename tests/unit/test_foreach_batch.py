"""The function for `foreachBatch` touches files and Spark's columns only through what its query was given."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import offsetkeeper
from offsetkeeper.checkpoint.logs import BatchOffsets
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.checkpoint_guard import CheckpointGuard
from offsetkeeper.engines.checkpoint_match import OnMismatch, batch_ranges, reconcile
from offsetkeeper.engines.foreach_batch import ForeachBatch
from offsetkeeper.engines.settings import Pace, QueryRun, Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.errors import CheckpointMismatch, Fenced, RangeGone, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers import StreamStart, open_reader
from offsetkeeper.sinks import Outputs
from offsetkeeper.stores.memory import MemoryStore

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
BROKERS = "127.0.0.1:1"  # nobody is asked there
COLUMNS = ["topic", "partition", "offset"]


class Frame:
    """A frame that has columns, and no Spark."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns


class Folder:
    """A checkpoint in which one batch is planned and committed."""

    address = "nowhere"
    files: Mapping[str, bytes] = {"offsets/0": b"", "commits/0": b"", "metadata": b'{"id":"one"}'}

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        return sorted(name.rpartition("/")[2] for name in self.files if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        return self.files.get(name)


def folder_of(_: object, path: str) -> Folder:
    """Return the folder above."""
    assert path == "/checkpoint"
    return Folder()


def told(_: object, offsets: Mapping[TopicPartition, int]) -> Any:
    """Return the offsets in place of rows."""
    return offsets


def write(_: object, __: object) -> None:
    """Do nothing."""


@pytest.fixture
def asked() -> QueryRun:
    run = Run(
        "shop",
        None,
        KafkaCluster(BROKERS),
        Subscription(Topics.of(["orders"])),
        open_reader("auto", KafkaCluster(BROKERS), group="shop"),
        Outputs.of(write),
        None,
        Guarantee.AT_LEAST_ONCE,
        Pace(),
        {},
    )
    return QueryRun(run, "/checkpoint", True, OnMismatch(), False, folder_of, told)  # noqa: FBT003 - as they come


def test_what_a_query_is_asked_for_travels_with_its_functions(asked: QueryRun) -> None:
    there: QueryRun = pickle.loads(pickle.dumps(asked))  # noqa: S301 - made here
    assert (there.open_folder, there.rows_from) == (folder_of, told)


class Unlike:
    """Settings of another release, which cannot be restored here."""

    def __reduce__(self) -> tuple[Any, ...]:
        return settle, ()


def settle() -> None:
    """Fail, as fields that are elsewhere would."""
    raise AssertionError("the settings were restored")


def test_the_function_of_another_release_is_refused_before_its_settings_are_restored(
    asked: QueryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are restored by the positions of their fields, and may be others here."""
    function = ForeachBatch(asked, StreamStart(Topics.of(["orders"]), {}), "me")
    assert repr(pickle.loads(pickle.dumps(function))) == repr(function)  # noqa: S301 - made here
    with monkeypatch.context() as client:
        client.setattr(offsetkeeper, "__version__", "0.0.1")
        packed = pickle.dumps(ForeachBatch(cast("Any", Unlike()), StreamStart(Topics.of(["orders"]), {}), "me"))
    with pytest.raises(SettingsError, match=r"the client has offsetkeeper 0\.0\.1, and .* the same release in both"):
        pickle.loads(packed)  # noqa: S301 - as above


def test_the_checkpoint_is_opened_as_the_query_says(asked: QueryRun) -> None:
    assert CheckpointGuard(asked, cast("Any", None), Ledger(MemoryStore("memory://guard"), "shop")).query() == "one"


def test_rows_that_were_processed_before_are_left_out_as_the_query_says(asked: QueryRun) -> None:
    function = ForeachBatch(asked, StreamStart(Topics.of(["orders"]), {}), "me")
    ranges = [OffsetRange(*A, 0, 10), OffsetRange(*B, 0, 10)]
    found = reconcile({A: Position(4), B: Position(0)}, ranges)
    kept: Any = function._missing(cast("Any", Frame(*COLUMNS)), found, 3)
    assert kept == {A: 4}
    with pytest.raises(CheckpointMismatch, match="the frame has no offset, partition"):
        function._missing(cast("Any", Frame("topic")), found, 3)


def test_a_batch_of_which_nothing_was_processed_is_taken_as_it_is(asked: QueryRun) -> None:
    function, frame = ForeachBatch(asked, StreamStart(Topics.of(["orders"]), {}), "me"), cast("Any", Frame())
    assert function._missing(frame, reconcile({A: Position(0)}, [OffsetRange(*A, 0, 10)]), 3) is frame


@pytest.mark.parametrize("fenced", [True, False])
def test_a_run_that_was_fenced_says_so_and_does_not_blame_the_checkpoint(asked: QueryRun, fenced: bool) -> None:  # noqa: FBT001
    """The newer run goes on with the same checkpoint, which is ahead of what the older one knows of the ledger."""
    store, planned = MemoryStore(f"memory://fenced-{fenced}"), BatchOffsets({A: 5}, {A: 9}, frozenset())
    ledger = Ledger(store, "shop")
    ledger.acquire()
    ledger.place({A: Position(2)})
    if fenced:
        Ledger(store, "shop").acquire()
    query = replace(asked, stateful=False)
    delivery = Delivery(query.run, ledger, Stop())
    function: Any = ForeachBatch(query, StreamStart(Topics.of(["orders"]), {}), ledger.owner_id, delivery)
    log = SimpleNamespace(offset_log=lambda _: SimpleNamespace(sources={"0": None}), batch_offsets=lambda _: planned)
    function._batch_log = lambda _: log
    with pytest.raises(Fenced if fenced else CheckpointMismatch):
        function(SimpleNamespace(sparkSession=None), 3)


OLD, NEW = (f"{'A' * 21}{each}" for each in "Qg")


def batch_function(asked: QueryRun, stored: Mapping[TopicPartition, Position]) -> tuple[Any, Delivery]:
    """Return the function of a query whose ledger has these positions, and whose topic has the newer id now."""
    now = {"orders": TopicDescription("orders", NEW, (0, 1))}
    there = replace(asked.run, cluster=cast("Any", SimpleNamespace(describe=lambda _: now)))
    ledger = Ledger(MemoryStore(f"memory://{len(stored)}"), "shop")
    ledger.acquire()
    ledger.place(stored)
    delivery = Delivery(there, ledger, Stop())
    function = ForeachBatch(asked, StreamStart(Topics.of(["orders"]), {}), ledger.owner_id, delivery)
    return function, delivery


@pytest.mark.usefixtures("briefly_doubted")
@pytest.mark.parametrize(("old", "read"), [(OLD, 120), (NEW, 0), (None, 0)])
def test_a_position_of_the_topic_before_says_nothing_of_a_partition_that_comes_back(
    asked: QueryRun, old: str | None, read: int
) -> None:
    """The topic was made again with one partition, which the group reads, and has grown since."""
    query = replace(asked, stateful=False)
    function, delivery = batch_function(query, {A: Position(10, NEW), B: Position(500, old)})
    function._place_new(delivery, BatchOffsets({A: 10, B: 0}, {A: 10, B: 0}, frozenset({B})))
    found = function._matched(delivery, batch_ranges({A: 10, B: 0}, {A: 20, B: 120}), 5)
    assert {r.topic_partition: r.size for r in found.rest} == {A: 10, **({B: read} if read else {})}


@pytest.mark.usefixtures("briefly_doubted")
def test_a_topic_that_comes_back_made_again_stops_the_query(asked: QueryRun) -> None:
    """The group has read nothing of the new one: the policy of the next start decides."""
    function, delivery = batch_function(asked, {B: Position(500, OLD)})
    with pytest.raises(RangeGone, match=r"orders was deleted and created again.*the policy decides"):
        function._place_new(delivery, BatchOffsets({A: 0, B: 0}, {A: 0, B: 0}, frozenset({A, B})))
    assert delivery.ledger.snapshot.positions == {B: Position(500, OLD)}


@pytest.mark.parametrize("state", ["stop", "rebuild"])
def test_a_first_batch_behind_a_hole_has_no_state(asked: QueryRun, state: Any) -> None:
    """Nothing builds it again: the checkpoint has a batch."""
    wish = OnMismatch(hole="follow", state=state)
    function, delivery = batch_function(replace(asked, on_mismatch=wish), {A: Position(0)})
    function._log = SimpleNamespace(query_id=lambda: "11111111-1111-4111-8111-111111111111")
    with pytest.raises(CheckpointMismatch, match=r"(?s)a hole.*state='empty'"):
        function._matched(delivery, batch_ranges({A: 100}, {A: 120}), 0)
    assert delivery.ledger.snapshot.positions[A].offset == 0


@pytest.mark.parametrize(
    ("raised", "told"), [(ValueError("a wrong row"), ValueError), (KeyboardInterrupt("asked to end"), RuntimeError)]
)
def test_what_has_ended_a_batch_is_kept_for_the_query(
    asked: QueryRun, monkeypatch: pytest.MonkeyPatch, raised: BaseException, told: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(ForeachBatch, "_process", fail)
    function = ForeachBatch(asked, StreamStart(Topics.of(["orders"]), {}), "me")
    with pytest.raises(told, match=str(raised)):
        function(cast("Any", Frame()), 1)
    assert function.error is raised
    assert function.wait(0)
