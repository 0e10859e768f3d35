"""A catalog of Iceberg that speaks REST: lost answers, a server that hangs or dies, and what it refuses."""

from __future__ import annotations

import pickle
import random
import traceback
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, SinkError
from offsetkeeper.sinks import IcebergTable, Lander, MarkKey
from offsetkeeper.sinks.iceberg import catalog, landing, task
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.iceberg import IcebergServer
from offsetkeeper.testing.proxy import Cut, TcpProxy
from sinks.icebergs import Lake

GROUP = MarkKey("billing", "")
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(iceberg_server: IcebergServer) -> Lake:
    """A namespace with an empty table `orders`."""
    lake = Lake.served(iceberg_server)
    lake.create("orders", SCHEMA)
    return lake


@pytest.fixture
def proxy(iceberg_server: IcebergServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", iceberg_server.port) as proxy:
        yield proxy


def through(lake: Lake, proxy: TcpProxy) -> Lander:
    """Return how a sink writes the table through the proxy."""
    return lake._replace(properties={**lake.properties, "uri": f"http://{proxy.address}"}).lander("orders")


def staged(lake: Lake, *ids: int) -> landing.Staged:
    """Return rows as a job of Spark stages them."""
    table = lake.table("orders")
    plan = task.FilePlan(table.metadata.model_dump_json(), SCHEMA, ())
    place = task.Place("orders", table.location(), {}, catalog.RELEASE)
    rows = pa.record_batch({"id": pa.array(ids, pa.int64())})
    files = [each for reply in task.write_files(place, plan, iter([rows])) for each in reply["file"].to_pylist()]
    return landing.Staged(landing.Shape.of(table), [pickle.loads(each) for each in files], "orders 0 1 2")  # noqa: S301 - ours


def mark(sequence: int) -> OutputMark:
    return OutputMark.of(batch_of(sequence))


def test_an_answer_of_the_server_that_is_lost_is_looked_up(lake: Lake, proxy: TcpProxy) -> None:
    way = through(lake, proxy)
    seen = way.seen(GROUP)
    with proxy.cut(Cut.REPLY, b"add-snapshot"):
        way.land(GROUP, seen, mark(1), staged(lake, 1))
    assert (lake.rows("orders"), way.seen(GROUP).mark) == ([(1,)], mark(1))


def test_a_commit_that_is_cut_off_may_be_done(lake: Lake, proxy: TcpProxy) -> None:
    way = through(lake, proxy)
    seen, files = way.seen(GROUP), staged(lake, 1)
    with proxy.cut(Cut.REQUEST, b"add-snapshot"), pytest.raises(OutcomeUnknown):
        way.land(GROUP, seen, mark(1), files)
    assert (lake.rows("orders"), way.seen(GROUP).mark) == ([], None)
    way.land(GROUP, way.seen(GROUP), mark(1), files)
    assert lake.rows("orders") == [(1,)]


def test_a_server_that_never_answers_is_waited_for_until_the_time_limit(
    lake: Lake, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a commit that reaches it much later changes nothing, as another one was first."""
    way = through(lake, proxy)
    seen, files = way.seen(GROUP), staged(lake, 1)
    monkeypatch.setattr(catalog, "_REQUEST_S", 1.0)
    late = proxy.keep_back(b"add-snapshot")
    with pytest.raises(OutcomeUnknown, match="timed out"):
        way.land(GROUP, seen, mark(1), files)
    Once(lake.lander("orders"), "").make_void(batch_of(1))
    late.land()
    assert lake.rows("orders") == []
    proxy.hold()
    with pytest.raises(SinkError, match="timed out"):
        through(lake, proxy)


def test_each_batch_is_there_once_though_the_server_is_killed(lake: Lake, iceberg_server: IcebergServer) -> None:
    rng = random.Random(3)  # noqa: S311 - the same each time
    way, kills = lake.lander("orders"), 0
    for number in range(1, 13):
        files = staged(lake, number)
        with TcpProxy("127.0.0.1", iceberg_server.port) as proxy:
            to = through(lake, proxy)
            seen = to.seen(GROUP)
            cut = rng.choice([None, Cut.REQUEST, Cut.REPLY])
            if cut is not None:
                with proxy.cut(cut, b"add-snapshot", refuse=True), pytest.raises(OffsetkeeperError):
                    to.land(GROUP, seen, mark(number), files)
                iceberg_server.restart()
                kills += 1
        if way.seen(GROUP).mark != mark(number):
            way.land(GROUP, way.seen(GROUP), mark(number), files)
    assert Counter(lake.rows("orders")) == Counter([(number,) for number in range(1, 13)])
    assert kills > 3


@pytest.mark.parametrize(
    "properties", [{"token": "s3cret"}, {"auth": {"type": "basic", "basic": {"username": "u", "password": "s3cret"}}}]
)
def test_a_secret_of_a_catalog_of_rest_is_shown_nowhere(lake: Lake, properties: dict[str, object]) -> None:
    sink = IcebergTable(f"{lake.namespace}.s3cret", catalog="c", properties={**lake.properties, **properties})  # type: ignore[dict-item]
    with pytest.raises(Refused) as told:
        sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    assert "does not exist" in str(told.value)
    assert "password" not in "".join(traceback.format_exception(told.value))
    assert "s3cret" not in repr(sink).replace(f"{lake.namespace}.s3cret", "")
