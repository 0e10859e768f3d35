"""Which guarantee each sink can keep, and what becomes one."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.dataframe import DataFrame
from pyspark.sql.merge import MergeIntoWriter
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks import (
    DeltaTable,
    Files,
    Function,
    Idempotent,
    Outputs,
    Sink,
    Table,
    Topic,
    Transaction,
)
from offsetkeeper.stores import open_store

BATCH = Batch("shop", "token", 1, ())
ONCE, AT_LEAST, AT_MOST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
FRAME: Any = object()  # these sinks hand the frame on and never look at it


def two(frame: Any, batch: Any) -> tuple[Any, Any]:
    return frame, batch


def three(frame: Any, batch: Any, connection: Any) -> None:
    connection.append((frame, batch))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that lends its transaction, and one that does not."""
    return open_store("memory://sinks" if request.param == "memory" else f"sqlite:///{tmp_path}/offsets.db")


def refused(sink: Sink, store: Store) -> set[Guarantee]:
    """Return the guarantees that the sink refuses."""
    found = set()
    for guarantee in Guarantee:
        try:
            sink.prepare(store, guarantee)
        except GuaranteeRefused:
            found.add(guarantee)
    return found


def test_a_function_can_be_anything_but_exactly_once(store: Store) -> None:
    assert refused(Function(two), store) == {ONCE}


def test_an_idempotent_function_can_be_anything(store: Store) -> None:
    assert refused(Idempotent(two), store) == set()


def test_a_transaction_needs_a_store_that_lends_one_and_offsets_that_go_with_it(store: Store) -> None:
    lends = store.address.startswith("sqlite")
    assert refused(Transaction(three), store) == ({AT_MOST} if lends else set(Guarantee))


def test_the_refusal_of_exactly_once_tells_the_three_ways(store: Store) -> None:
    with pytest.raises(GuaranteeRefused, match=r"two.*Table\(.*Transaction\(.*Idempotent\("):
        Function(two).prepare(store, ONCE)


def test_the_refusal_of_a_store_without_transactions_names_it_and_the_remedy() -> None:
    with pytest.raises(GuaranteeRefused, match=r"memory://sinks does not.*store='postgresql://"):
        Transaction(three).prepare(open_store("memory://sinks"), ONCE)


def test_functions_get_the_frame_and_the_batch(store: Store) -> None:
    seen: list[Any] = []
    for kind in (Function, Idempotent):
        kind(lambda *given: seen.append(given)).prepare(store, AT_LEAST).write(FRAME, BATCH)
    assert seen == [(FRAME, BATCH), (FRAME, BATCH)]


def test_a_transactions_function_runs_when_it_is_finished_on_the_connection(tmp_path: Path) -> None:
    written: list[Any] = []
    finish = Transaction(three).prepare(open_store(f"sqlite:///{tmp_path}/offsets.db"), ONCE).stage(FRAME, BATCH)
    assert written == []
    finish(written)
    assert written == [(FRAME, BATCH)]


@pytest.mark.parametrize(
    "shape", [lambda each: each, lambda each: [1, each], lambda each: (each,), lambda each: {1: each}]
)
@pytest.mark.parametrize("kind", [DataFrame, DataFrameWriter, DataFrameWriterV2, MergeIntoWriter])
def test_what_a_function_returns_and_nobody_writes_is_refused(store: Store, kind: type, shape: Any) -> None:
    """A frame, and a writer that was never told to save; also among other values."""
    returned = shape(object.__new__(kind))
    for guarantee, sink in ((AT_LEAST, Function), (ONCE, Idempotent)):
        writer: Any = sink(lambda *_: returned).prepare(store, guarantee)
        with pytest.raises(SettingsError, match=f"returned a {kind.__name__}, and nothing writes it"):
            writer.write(FRAME, BATCH)


def test_what_a_function_raises_comes_out_as_it_is(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        Function(lambda _frame, _batch: 1 / 0).prepare(store, AT_LEAST).write(FRAME, BATCH)


@pytest.mark.parametrize("kind", [Function, Idempotent, Transaction])
@pytest.mark.parametrize("function", [lambda frame: frame, lambda a, b, c, d: (a, b, c, d), "process", None])
def test_what_cannot_be_called_as_it_will_be_is_refused_at_once(kind: Any, function: Any) -> None:
    with pytest.raises(SettingsError, match=r"\(frame, batch"):
        kind(function)


def test_sinks_stay_as_they_are_and_functions_become_one() -> None:
    sink, several = Idempotent(two), Outputs(one=two)
    assert Outputs.of(sink).sinks == {"": sink}
    assert type(Outputs.of(two).sinks[""]) is Function
    assert Outputs.of(several) is several


@pytest.mark.parametrize("thing", [None, "orders", 3, Table, Function])
def test_what_is_neither_sink_nor_function_is_refused(thing: Any) -> None:
    with pytest.raises(SettingsError, match="is not a sink"):
        Outputs.of(thing)


def test_tables_and_files_take_rows_in_any_order_and_functions_and_topics_do_not(tmp_path: Path) -> None:
    table, files = Table(f"sqlite:///{tmp_path}/shop.db", "orders"), Files(tmp_path / "orders")
    assert Outputs(table=table, files=files).any_order
    assert Outputs.of(DeltaTable(tmp_path / "lake")).any_order
    assert not Outputs(table=table, note=Function(print)).any_order
    assert not Outputs.of(Topic("h:1", "out")).any_order
