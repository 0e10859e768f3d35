"""Rows into a Cassandra table: for each key what the newest batch says, whoever writes late."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import (
    BatchVoid,
    ComputedAgain,
    MarkAhead,
    MarkMoved,
    Refused,
    SettingsError,
    SinkMismatch,
)
from offsetkeeper.sinks import Cassandra, Lander
from offsetkeeper.sinks.cassandra import landing, task
from offsetkeeper.sinks.cassandra.url import read_place
from offsetkeeper.sinks.limits import RANK
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of
from sinks.cassandra_tables import COLUMNS, KEY, WITH_ORDER, Shop

pytestmark = pytest.mark.xdist_group("test_cassandra")

HOUR_MS = 3_600_000
Stall = Callable[[Callable[[], None]], None]


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Stall:
    """`stall(meanwhile)`: the next landing stalls between its begin and its first row, until `meanwhile` is done."""

    def arm(meanwhile: Callable[[], None]) -> None:
        write = landing.write_all

        def stalled(*arguments: Any) -> Any:
            monkeypatch.setattr(landing, "write_all", write)
            meanwhile()
            return write(*arguments)

        monkeypatch.setattr(landing, "write_all", stalled)

    return arm


class Clock(environment.Environment):
    """A clock that stands."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        """See `Environment`."""
        return self.now


class Behind(environment.Environment):
    """A clock that is half a minute behind."""

    def now_ms(self) -> int:
        """See `Environment`."""
        return super().now_ms() - 30_000


def dies_before_its_mark(way: Lander, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next landing of this run write all rows, and no mark."""
    write = landing.write_all

    def killed(*arguments: Any) -> Any:
        monkeypatch.setattr(landing, "write_all", write)
        write(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(landing, "write_all", killed)
    assert way.seen(KEY) is not None


def test_a_key_has_what_the_newest_batch_says(cassandra_shop: Shop) -> None:
    """Of several rows in a batch the last by topic, partition and offset; what the frame lacks stays as it is."""
    shop = cassandra_shop
    rows = [("orders", 1, 3, "tea", 2.5, "new"), ("orders", 0, 4, "tea", 9.0, "old"), ("orders", 1, 2, "milk", 1.0, "")]
    shop.write(batch_of(1), rows, WITH_ORDER)
    shop.execute("UPDATE {}.orders SET hint = 'hot' WHERE item = 'tea'")
    assert shop.orders() == {"tea": [2.5, "new"], "milk": [1.0, ""]}
    shop.write(batch_of(2), [("tea", 2.0), ("sugar", None)], "item string, price double")
    assert shop.orders() == {"tea": [2.0, "new"], "milk": [1.0, ""], "sugar": [None, None]}
    assert shop.execute("SELECT hint FROM {}.orders WHERE item = 'tea'") == [("hot",)]
    shop.write(batch_of(3), [("tea", None, None)])
    assert shop.orders()["tea"] == [None, None]


def test_rows_are_deleted_where_the_frame_says_so(cassandra_shop: Shop) -> None:
    """By the last row of a key; a later batch brings the key back."""
    shop, columns = cassandra_shop, f"{WITH_ORDER}, gone boolean"
    way = shop.lander(deletes="gone")
    first = [("orders", 0, at, item, 1.0, "", False) for at, item in enumerate(["tea", "milk", "sugar"])]
    shop.write(batch_of(1), first, columns, way)
    second = [("orders", 0, 5, "tea", 1.0, "", True), ("orders", 0, 6, "milk", 1.0, "", True)]
    shop.write(batch_of(2), [*second, ("orders", 0, 7, "milk", 3.0, "back", False)], columns, way)
    assert shop.orders() == {"milk": [3.0, "back"], "sugar": [1.0, ""]}
    shop.write(batch_of(3), [("orders", 0, 8, "tea", 4.0, "again", False)], columns, way)
    assert shop.orders()["tea"] == [4.0, "again"]


def test_rows_of_other_programs_and_from_before_are_written_over(cassandra_shop: Shop) -> None:
    """They have the time of their writing, as is usual: a table may be filled, and repaired, by others."""
    shop = cassandra_shop
    shop.execute("INSERT INTO {}.orders (item, price, note) VALUES ('tea', 9.0, 'theirs')")
    shop.execute("DELETE FROM {}.orders WHERE item = 'milk'")
    shop.write(batch_of(1), [("tea", 2.5, "ours"), ("milk", 1.0, "ours")])
    assert shop.orders() == {"tea": [2.5, "ours"], "milk": [1.0, "ours"]}


@pytest.mark.parametrize("meanwhile", ["same", "same and next", "void", "void and next"])
def test_an_older_run_that_writes_its_rows_late_writes_over_nothing(
    cassandra_shop: Shop, stall: Stall, caplog: pytest.LogCaptureFixture, meanwhile: str
) -> None:
    """It stalls when its batch is begun. A key that only a dropped batch has stays, until another one has it."""
    shop, mine, columns = cassandra_shop, batch_of(1), f"{COLUMNS}, gone boolean"
    way = shop.lander(deletes="gone")

    def newer() -> None:
        other = shop.lander(deletes="gone")
        if "same" in meanwhile:
            shop.write(mine, [("tea", 2.0, "newer", False), ("milk", 2.0, "newer", True)], columns, other)
        else:
            assert shop.make_void(mine) is Landing.VOID
        if "next" in meanwhile:
            shop.write(batch_of(2), [("tea", 3.0, "next", False), ("rum", 3.0, "next", False)], columns, other)

    stall(newer)
    late = [(item, 9.0, "zzz late", False) for item in ("tea", "milk")]
    if meanwhile == "same":
        shop.write(mine, late, columns, way)
    else:
        with pytest.raises({"void": BatchVoid}.get(meanwhile, MarkAhead)):
            shop.write(mine, late, columns, way)
    there = shop.orders()
    following = {"tea": [3.0, "next"], "rum": [3.0, "next"]}
    if "same" in meanwhile:
        assert there == ({"tea": [2.0, "newer"]} if meanwhile == "same" else following)
        return
    assert "was begun and is now dropped: some of its rows may be in table" in caplog.text
    dropped = {"tea": [9.0, "zzz late"], "milk": [9.0, "zzz late"]}
    assert there == (dropped if meanwhile == "void" else {**dropped, **following})
    shop.write(batch_of(3), [("tea", 1.0, "", False), ("milk", 1.0, "", True)], columns, shop.lander(deletes="gone"))
    assert shop.orders() == {"tea": [1.0, ""], **({"rum": [3.0, "next"]} if "next" in meanwhile else {})}


def test_a_batch_that_nobody_has_begun_is_dropped_without_a_word(
    cassandra_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop = cassandra_shop
    shop.write(batch_of(1), [("tea", 1.0, "")])
    with caplog.at_level(logging.WARNING, "offsetkeeper"):
        assert shop.make_void(batch_of(2)) is Landing.VOID
    assert not [each for each in caplog.records if each.name == "offsetkeeper"]
    assert shop.orders() == {"tea": [1.0, ""]}


def test_the_same_batch_by_mended_code_wins_over_a_try_that_died(
    cassandra_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try has a write time of its own: with one for both, Cassandra would mix them, the larger value first."""
    shop = cassandra_shop
    way = shop.lander()
    dies_before_its_mark(way, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        shop.write(batch_of(1), [("tea", 9.0, "zzz"), ("milk", 9.0, "zzz")], way=way)
    assert (shop.orders(), shop.mark()) == ({"tea": [9.0, "zzz"], "milk": [9.0, "zzz"]}, None)
    shop.write(batch_of(1), [("tea", 1.0, "aaa"), ("milk", None, "aaa")])
    assert shop.orders() == {"tea": [1.0, "aaa"], "milk": [None, "aaa"]}
    assert shop.mark() == OutputMark.of(batch_of(1), shop.lander().writes_to)


def test_a_row_is_of_one_attempt_where_a_stage_runs_again_within_a_try(
    cassandra_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of which the rows differ each time is computed again if an executor is lost: here both are written."""
    shop, write = cassandra_shop, landing.write_all
    way = shop.lander()
    first: Any = way.stage(shop.frame([("tea", 9.0, "a"), ("milk", 1.0, "z"), ("rum", 9.0, "z")]), batch_of(1))

    def runs_again(place: Any, rows: Any, given: Any) -> Any:
        write(place, first, given)
        return write(place, rows, given)

    monkeypatch.setattr(landing, "write_all", runs_again)
    shop.write(batch_of(1), [("tea", 1.0, "z"), ("milk", 9.0, "a"), ("rum", None, None)], way=way)
    assert shop.orders() == {"tea": [1.0, "z"], "milk": [9.0, "a"], "rum": [None, None]}


def test_a_batch_of_which_spark_computed_a_stage_again_is_marked_only_when_it_is_written_anew(
    cassandra_shop: Shop,
) -> None:
    """Spark computes the frame while it is written, so that is known only then: a row that moved may be missing."""
    shop, once = cassandra_shop, Once(cassandra_shop.lander(), "")
    asked: list[dict[str, Any]] = []

    def check() -> None:
        asked.append(shop.orders())
        if len(asked) == 2:
            raise ComputedAgain("stage 2 has attempt 1")

    with pytest.raises(ComputedAgain):
        once.write(shop.frame([("tea", 1.0, "old")]), batch_of(1), check=check)
    assert (asked, shop.mark()) == ([{}, {"tea": [1.0, "old"]}], None)
    once.write(shop.frame([("tea", 2.0, "new"), ("milk", 2.0, "new")]), batch_of(1), check=check)
    assert shop.orders() == {"tea": [2.0, "new"], "milk": [2.0, "new"]}
    assert shop.mark() == OutputMark.of(batch_of(1), shop.lander().writes_to)


def test_an_attempt_that_outlives_its_batch_writes_over_nothing(
    cassandra_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that Spark has given up may go on writing; one of an older run may begin after a newer run's landing."""
    shop, write = cassandra_shop, landing.write_all
    way = shop.lander()
    begun: list[task.Window] = []

    def seen(place: Any, rows: Any, window: task.Window) -> Any:
        begun.append(window)
        return write(place, rows, window)

    def stalls(_place: Any, _rows: Any, window: task.Window) -> Any:
        begun.append(window)
        raise KeyboardInterrupt

    def goes_on(window: task.Window, attempt: int) -> None:
        staged: Any = way.stage(shop.frame([("tea", 0.0, "")]), batch_of(9))
        late = pa.record_batch({"c0": ["tea"], "c1": [9.0], "c2": ["zzz late"], RANK: [1]})
        with monkeypatch.context() as patch:
            patch.setattr(task, "_attempt", lambda: attempt)
            assert list(task.write_rows(read_place(shop.url())[0], staged.plan, window, iter([late])))

    with environment.using(Clock(environment.now_ms())):  # else a slow machine would keep the times apart
        monkeypatch.setattr(landing, "write_all", seen)
        shop.write(batch_of(1), [("tea", 1.0, "")], way=way)
        shop.write(batch_of(2), [("tea", 2.0, "next")], way=way)
        goes_on(begun[0], begun[1].after)
        assert shop.orders() == {"tea": [2.0, "next"]}
        monkeypatch.setattr(landing, "write_all", stalls)
        with pytest.raises(KeyboardInterrupt):
            shop.write(batch_of(3), [("tea", 9.0, "")], way=way)
        monkeypatch.setattr(landing, "write_all", write)
        shop.write(batch_of(3), [("tea", 3.0, "newer run")])
        goes_on(begun[2], begun[2].after + task.WIDTH)
        assert shop.orders() == {"tea": [3.0, "newer run"]}


def test_a_clock_that_is_put_back_changes_no_order(cassandra_shop: Shop) -> None:
    """As of a newer run on a machine whose clock is behind."""
    shop = cassandra_shop
    ways = [shop.lander() for _ in range(3)]
    for way, sequence, now_ms, note in zip(
        ways, (1, 2, 3), (1_900_000_000_000, 1_700_000_000_000, 0), "zyx", strict=True
    ):
        with environment.using(Clock(now_ms)):
            shop.write(batch_of(sequence), [("tea", float(-sequence), note)], way=way)
    assert shop.orders() == {"tea": [-3.0, "x"]}


def test_rows_of_another_group_whose_clock_was_ahead_are_written_over(
    cassandra_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its values stay for an hour, and nobody is told."""
    shop, now_ms = cassandra_shop, environment.now_ms()
    older, other = shop.lander(), shop.lander()
    with environment.using(Clock(now_ms + HOUR_MS)):
        shop.write(batch_of(1), [("tea", 9.0, "orders"), ("milk", 9.0, "orders")], way=older)
        shop.write(replace(batch_of(1), group="prices"), [("rice", 9.0, "prices")], way=other)
    newer = shop.lander()
    for sequence, item in ((1, "tea"), (2, "milk"), (3, "rice")):
        shop.write(replace(batch_of(sequence), group="orders2"), [(item, 2.0, "orders2")], way=newer)
    assert shop.orders() == {item: [2.0, "orders2"] for item in ("tea", "milk", "rice")}
    assert "write times of keyspace" in caplog.text


def test_of_the_clocks_of_driver_and_server_the_one_ahead_counts(cassandra_shop: Shop) -> None:
    """Else rows that another program wrote before win over those of a driver whose clock is behind."""
    shop = cassandra_shop
    with environment.using(Behind()):
        way = shop.lander()
        for sequence, item, price in ((1, "tea", 2.5), (2, "milk", 1.0)):
            shop.execute(f"INSERT INTO {{}}.orders (item, price, note) VALUES ('{item}', 9.0, 'theirs')")  # noqa: S608
            shop.write(batch_of(sequence), [(item, price, "ours")], way=way)
    assert shop.orders() == {"tea": [2.5, "ours"], "milk": [1.0, "ours"]}


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_start_whose_clock_is_far_from_that_of_the_server_is_refused(cassandra_shop: Shop, hours: int) -> None:
    """Rows that it wrote would hide those of others for an hour, or be hidden."""
    shop = cassandra_shop
    with (
        environment.using(Clock(environment.now_ms() + hours * HOUR_MS)),
        pytest.raises(Refused, match=r"clock of this driver is at 20\d\d-.*, the server's at 20\d\d-.*set both"),
    ):
        shop.lander()


def test_rows_that_another_program_writes_with_a_clock_ahead_hide_later_ones(cassandra_shop: Shop) -> None:
    """As the docs say: nothing can be done about it."""
    shop = cassandra_shop
    ahead = (environment.now_ms() + HOUR_MS) * 1000
    theirs = "INSERT INTO {}.orders (item, price, note) VALUES ('tea', 9.0, 'theirs')"
    shop.execute(f"{theirs} USING TIMESTAMP {ahead}")
    shop.write(batch_of(1), [("tea", 2.5, "ours"), ("milk", 1.0, "ours")])
    assert shop.orders() == {"tea": [9.0, "theirs"], "milk": [1.0, "ours"]}


def test_a_table_that_forgets_its_rows_is_told_at_a_start(
    cassandra_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be meant. Marks that are forgotten never are."""
    shop = cassandra_shop
    shop.lander()
    assert caplog.text == ""
    shop.execute("ALTER TABLE {}.orders WITH default_time_to_live = 86400")
    shop.lander()
    assert "has default_time_to_live = 86400, so each row is gone 86400 s after it was written" in caplog.text
    shop.execute("ALTER TABLE {}.offsetkeeper_marks WITH default_time_to_live = 86400")
    with pytest.raises(Refused, match=r"forgets marks.*ALTER TABLE .* WITH default_time_to_live = 0"):
        shop.lander()


def test_a_reset_and_a_topic_that_was_made_again_win(cassandra_shop: Shop) -> None:
    """Their offsets are lower: what counts is which batch is the newer."""
    shop = cassandra_shop
    shop.write(batch_of(7), [("orders", 0, 70, "tea", 9.0, "z")], WITH_ORDER)
    again = replace(batch_of(8), ranges=(OffsetRange("orders", 0, 0, 1),))
    shop.write(again, [("orders", 0, 0, "tea", 1.0, "a")], WITH_ORDER)
    assert shop.orders() == {"tea": [1.0, "a"]}


def test_a_long_range_needs_no_limit(cassandra_shop: Shop) -> None:
    """The write time does not count offsets."""
    shop = cassandra_shop
    longest = replace(batch_of(1), ranges=(OffsetRange("orders", 0, 0, 2**62),))
    shop.write(longest, [("orders", 0, 2**62 - 1, "tea", 9.0, "z")], WITH_ORDER)
    shop.write(batch_of(2), [("orders", 0, 0, "tea", 1.0, "a")], WITH_ORDER)
    assert shop.orders() == {"tea": [1.0, "a"]}


def test_a_mark_that_is_gone_meanwhile_is_no_longer_the_one_seen(cassandra_shop: Shop, stall: Stall) -> None:
    shop = cassandra_shop
    shop.write(batch_of(1), [("tea", 1.0, "")])

    def lose() -> None:
        shop.execute("TRUNCATE {}.offsetkeeper_marks")

    stall(lose)
    with pytest.raises(MarkMoved):
        shop.write(batch_of(2), [("tea", 2.0, "")])
    assert shop.mark() is None
    with environment.using(Clock(environment.now_ms() + 2000)):  # a new run may be ahead of the clock by a second
        shop.write(batch_of(2), [("tea", 3.0, "")])
    assert (shop.orders(), shop.mark()) == ({"tea": [3.0, ""]}, OutputMark.of(batch_of(2), shop.lander().writes_to))


@pytest.mark.parametrize("finishes", [True, False], ids=["it finishes the batch", "the batch has landed"])
def test_the_next_batch_under_another_name_is_newer_than_the_one_under_the_old_name(
    cassandra_shop: Shop, *, finishes: bool
) -> None:
    """A run takes over from one whose driver was half a minute ahead, and which wrote under the old name."""
    shop, way = cassandra_shop, cassandra_shop.lander()
    with environment.using(Clock(environment.now_ms() + 30_000)):
        for sequence in (1, 2):
            Once(shop.lander(), "old").write(shop.frame([("tea", 1.0, "old")]), batch_of(sequence))
    if finishes:
        Once(way, "old").write(shop.frame([("tea", 2.0, "old")]), batch_of(3))
    Once(way, "new").write(shop.frame([("tea", 4.0, "new")]), batch_of(4))
    assert shop.orders()["tea"] == [4.0, "new"]


def test_a_table_may_change_between_batches(cassandra_shop: Shop) -> None:
    """Its columns are asked for with each batch; of one that is not there any more the error tells."""
    shop = cassandra_shop
    way = shop.lander()
    shop.write(batch_of(1), [("tea", 1.0, "")], way=way)
    shop.execute("ALTER TABLE {}.orders ADD size int")
    shop.write(batch_of(2), [("milk", 3)], "item string, size int", way)
    assert shop.execute("SELECT size FROM {}.orders WHERE item = 'milk'") == [(3,)]
    shop.execute("ALTER TABLE {}.orders DROP note")
    with pytest.raises(SinkMismatch, match="has no column note"):
        shop.write(batch_of(3), [("tea", 1.0, "")], way=way)
    shop.execute("DROP TABLE {}.orders")
    with pytest.raises(Refused, match="has no table"):
        shop.write(batch_of(3), [("tea", 1.0, "")], way=way)
    shop.make()
    shop.write(batch_of(3), [("rum", 3.0, "new")], way=way)
    assert shop.orders() == {"rum": [3.0, "new"]}


def test_every_type_comes_back_as_it_was(cassandra_shop: Shop) -> None:
    shop = cassandra_shop
    types = {
        "i text": ("string", "'a ''\\u0001b'"),
        '"Odd ""name." int': ("int", "-2147483648"),
        "t tinyint": ("tinyint", "-128Y"),
        "s smallint": ("smallint", "-7S"),
        "b bigint": ("bigint", "-9223372036854775808L"),
        "v varint": ("bigint", "9223372036854775807L"),
        "f float": ("float", "1.5F"),
        "d double": ("float", "0.1F"),
        "e decimal": ("decimal(20,3)", "cast('12345678901234567.125' as decimal(20,3))"),
        "o boolean": ("boolean", "true"),
        "x blob": ("binary", "X'00ff'"),
        "da date": ("date", "date'-0044-03-15'"),
        "ts timestamp": ("timestamp", "timestamp'1900-01-01 00:00:00.001'"),
        "u uuid": ("string", "'00000000-0000-4000-8000-00000000000A'"),
        "tu timeuuid": ("string", "'58e0a7d7-eebc-11d8-9669-0800200c9a66'"),
    }
    shop.execute("DROP TABLE {}.orders")
    shop.make(f"item text PRIMARY KEY, {', '.join(types)}")
    names = [name.rpartition(" ")[0].strip('"').replace('""', '"') for name in types]
    values = [f"{value} as `{name}`" for name, (_, value) in zip(names, types.values(), strict=True)]
    nulls = [f"cast(null as {kind}) as `{name}`" for name, (kind, _) in zip(names, types.values(), strict=True)]
    frame = shop.spark.sql(f"select 'full' as item, {', '.join(values)} union all select 'none', {', '.join(nulls)}")
    way, batch = shop.lander(), batch_of(1)
    way.land(KEY, way.seen(KEY), OutputMark.of(batch), way.stage(frame, batch))
    columns = ", ".join(name.rpartition(" ")[0] for name in types)
    for name, shown in (("da,", "cast(da as text),"), ("ts,", "cast(ts as text),")):
        columns = columns.replace(name, shown)  # which Python has no such dates for
    found = {item: rest for item, *rest in shop.execute(f"SELECT item, {columns} FROM {{}}.orders")}  # noqa: S608 - as above
    assert found["none"] == [None] * len(types)
    assert found["full"] == [
        *("a '\x01b", -2147483648, -128, -7, -9223372036854775808, 9223372036854775807, 1.5, 0.10000000149011612),
        *(Decimal("12345678901234567.125"), True, b"\x00\xff", "-0044-03-15", "1900-01-01T00:00:00.001Z"),
        *(UUID("00000000-0000-4000-8000-00000000000a"), UUID("58e0a7d7-eebc-11d8-9669-0800200c9a66")),
    ]


def test_nothing_of_the_password_is_shown(cassandra_shop: Shop) -> None:
    sink = Cassandra(cassandra_shop.url(password="geheim"), "orders", key=["item"])
    assert "geheim" not in f"{sink!r} {sink._place!r} {sink._table()!r}"
    with pytest.raises(Refused, match="username cassandra and/or password are incorrect") as told:
        cassandra_shop.lander(cassandra_shop.url(password="geheim"))
    assert "geheim" not in f"{told.value!r} {told.value.__cause__!r} {told.value.__context__!r}"


def test_nodes_may_ask_for_tls(cassandra_shop: Shop, cassandra_certificate: Path) -> None:
    """On the driver and in tasks. What tasks refuse is in engines/test_engine_tls.py."""
    shop = cassandra_shop
    way = shop.lander(f"{shop.url()}?ssl_ca={cassandra_certificate}")
    shop.write(batch_of(1), [("tea", 1.0, "")], way=way)
    assert shop.orders() == {"tea": [1.0, ""]}
    with pytest.raises(Refused, match="signed by no CA that this machine knows"):
        shop.lander(f"{shop.url()}?ssl=true")
    with pytest.raises(SettingsError, match="cannot be read"):
        shop.lander(f"{shop.url()}?ssl_ca=/nowhere")
