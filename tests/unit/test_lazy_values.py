"""What a function returns: work that nobody has done is refused, and whatever else it returns is its own affair."""

from __future__ import annotations

import asyncio
import io
import itertools
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any

import pytest
from pyspark.core.rdd import RDD, PipelinedRDD
from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
from pyspark.sql.connect.group import GroupedData as ConnectGrouped
from pyspark.sql.group import GroupedData
from pyspark.sql.merge import MergeIntoWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from offsetkeeper.sinks.functions import unwritten


def bare(kind: type[Any]) -> Any:
    """Return a value of a class without its session."""
    return object.__new__(kind)


def rows() -> Iterator[int]:
    yield 1


DASK = type("DaskMethodsMixin", (), {"__module__": "dask.base"})
DELAYED = type("Delayed", (DASK,), {"__module__": "dask.delayed"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bare(RDD), "an RDD, and nothing writes it"),
        (bare(PipelinedRDD), "a PipelinedRDD, and nothing writes it"),
        (bare(GroupedData), "a GroupedData, and nothing writes it"),
        (bare(ConnectGrouped), "a GroupedData, and nothing writes it"),
        (bare(ConnectFrame), "a DataFrame, and nothing writes it"),
        (bare(MergeIntoWriter.WhenMatched), "a WhenMatched, and nothing writes it"),
        (bare(DataStreamWriter), "a DataStreamWriter, and nothing writes it"),
        (bare(DELAYED), "a Delayed, and nothing writes it"),
        (map(print, [1]), "a map, and nothing runs it"),
        (filter(None, [1]), "a filter, and nothing runs it"),
        (zip([1], strict=True), "a zip, and nothing runs it"),
        (itertools.starmap(print, [(1,)]), "a starmap, and nothing runs it"),
        (rows(), "a generator, and nothing runs it"),
        (iter(int, 1), "a callable_iterator, and nothing runs it"),
        (Future(), "a Future, and nothing waits for it"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "within",
    [
        lambda value: value,
        lambda value: [1, value],
        lambda value: ("a", (value,)),
        lambda value: {"a": value},
        lambda value: {"a": value}.values(),
        lambda value: deque([value]),
    ],
    ids=["itself", "list", "tuple", "dict", "values", "deque"],
)
def test_a_value_that_only_describes_work_is_refused(value: object, said: str, within: Any) -> None:
    assert unwritten(within(value)) == said


def test_what_a_pool_has_been_given_is_refused_though_it_may_run() -> None:
    """Its error is lost, and the process may end first."""
    with ThreadPool(1) as pool:
        found = [pool.apply_async(int), pool.map_async(int, ["1"]), pool.imap(int, ["1"])]
        assert [unwritten({each}) for each in found] == [
            "an ApplyResult, and nothing waits for it",
            "a MapResult, and nothing waits for it",
            "an IMapIterator, and nothing runs it",
        ]


def test_work_that_a_function_has_waited_for_is_its_own_affair() -> None:
    with ThreadPoolExecutor(1) as threads, ThreadPool(1) as pool:
        futures = [threads.submit(len, "ab")]
        results: list[AsyncResult[Any]] = [pool.apply_async(len, ["ab"]), pool.map_async(int, ["1"])]
        wait(futures)
        for each in results:
            each.wait()
        assert [unwritten(futures), unwritten(results), unwritten(asyncio.run(awaited(len, "ab")))] == [""] * 3


def test_work_that_was_waited_for_and_has_failed_is_refused() -> None:
    """`wait` raises nothing."""
    dropped: Future[int] = Future()
    dropped.cancel()
    with ThreadPoolExecutor(1) as threads, ThreadPool(1) as pool:
        future, result = threads.submit(int, "a"), pool.apply_async(int, ["a"])
        wait([future])
        result.wait()
        assert [unwritten([each]) for each in (future, result, dropped, asyncio.run(awaited(int, "a")))] == [
            "a Future, which has failed, and nothing asks for its error",
            "an ApplyResult, which has failed, and nothing asks for its error",
            "a Future, which has failed, and nothing asks for its error",
            "a Future, which has failed, and nothing asks for its error",
        ]


async def awaited(function: Callable[[str], int], given: str) -> asyncio.Future[int]:
    """Return a future that is done."""
    future = asyncio.get_running_loop().run_in_executor(None, function, given)
    await asyncio.wait([future])
    return future


def test_a_value_whose_work_is_done_is_the_function_s_own_affair() -> None:
    """A cursor has run its statement, and a file has what was written: both are iterators."""
    with closing(sqlite3.connect(":memory:")) as connection:
        cursor = connection.execute("create table t (a int)")
        assert isinstance(cursor, Iterator)
        done = [cursor, io.StringIO("text"), None, 3, "text", b"bytes", [1, (2,)], {"rows": 4}, range(3), Exception()]
        done += [iter([1]), iter((1,)), iter({1}), iter({1: 2}), iter({1: 2}.items()), reversed([1]), iter(range(3))]
        assert [unwritten(value) for value in done] == [""] * len(done)
