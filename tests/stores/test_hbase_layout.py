"""The store in HBase: its tables as a bare client sees and makes them, what does not fit, and its history's slots."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import happybase  # noqa: F401 - it makes the module Hbase_thrift
import pytest
from Hbase_thrift import IOError as ThriftError

from offsetkeeper.core import rules
from offsetkeeper.core.environment import using
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, Refused, SettingsError
from offsetkeeper.stores import open_store
from offsetkeeper.stores.hbase import HBaseStore, tables
from offsetkeeper.stores.hbase.connections import scan
from offsetkeeper.testing.clock import SetClock
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.rivals import PARTITION, next_batch

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
DAY_MS = 86_400_000


@pytest.fixture
def bare(hbase_server: HBaseServer) -> Iterator[Any]:
    """A bare client, new for each test: the server closes one that is idle for a minute."""
    client = hbase_server.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def table(hbase_server: HBaseServer) -> str:
    """Tables of this file; each test has a group."""
    name = f"layout_{secrets.token_hex(4)}"
    store = HBaseStore(f"{hbase_server.url()}?table={name}")
    Ledger(store, "first").acquire()
    store.close()
    return name


@pytest.fixture
def url(hbase_server: HBaseServer, table: str) -> str:
    """URL of the tables."""
    return f"{hbase_server.url()}?table={table}"


@pytest.fixture
def group() -> str:
    """A group of the test's own."""
    return f"g-{secrets.token_hex(4)}"


@pytest.fixture
def ledger(url: str, group: str) -> Iterator[Ledger]:
    """A ledger of the group."""
    ledger = Ledger(HBaseStore(url), group, retry_timeout_s=5)
    yield ledger
    ledger.store.close()


def rows(bare: Any, table: str, topic: str, group: str) -> list[tuple[int, dict[bytes, bytes]]]:
    """Return the rows of a topic, newest first, each with its time."""
    found = bare.table(table).scan(row_prefix=f"{topic}:{group}:".encode(), reverse=True)
    return [(int(key.rpartition(b":")[2]), row) for key, row in found]


def test_each_change_adds_a_row_with_all_of_the_topic(bare: Any, table: str, ledger: Ledger) -> None:
    """Its time is that of the batch, in milliseconds; rows of topics that stood still are left alone."""
    began = time.time() * 1000 - 1
    ledger.acquire()
    ledger.place({A0: Position(1), A1: Position(2), B0: Position(3)})
    for start in (1, 6, 11):
        ledger.commit(ledger.batch([OffsetRange(*A0, start, start + 5)]))
    found = rows(bare, table, "a", ledger.group)
    assert [row for _, row in found] == [
        {b"offsets:0": b"%d" % offset, b"offsets:1": b"2"} for offset in (16, 11, 6, 1)
    ]
    times = [at for at, _ in found]
    assert times == sorted(set(times), reverse=True)
    assert began <= times[-1] <= times[0] <= time.time() * 1000 + 1
    assert len(rows(bare, table, "b", ledger.group)) == 1


def test_tables_are_made_with_the_known_ttl_and_ledgers_without(bare: Any, table: str) -> None:
    [offsets] = bare.table(table).families().values()
    assert (offsets["name"], offsets["time_to_live"], offsets["max_versions"]) == (b"offsets:", 2_592_000, 1)
    families = bare.table(f"{table}_ledger").families()
    assert sorted(families) == [b"history", b"ledger"]
    assert {family["time_to_live"] for family in families.values()} == {2**31 - 1}


def test_the_default_is_the_table_that_people_know(hbase_server: HBaseServer) -> None:
    store = HBaseStore(hbase_server.url())
    assert (store._tables.offsets, store._tables.ledger) == (b"stream_kafka_offsets", b"stream_kafka_offsets_ledger")
    assert HBaseStore("hbase://h/ops?table=t")._tables.ledger == b"ops:t_ledger"


def test_of_offsets_of_others_the_newest_row_of_each_topic_is_taken_over(bare: Any, table: str, ledger: Ledger) -> None:
    """Whatever stands next to it, and though their clock is ahead: our rows come after theirs."""
    group, ahead = ledger.group, time.time_ns() // 1_000_000 + 3_600_000
    for topic, name, at, row in (
        ("a", group, ahead - 1, {b"offsets:0": b"1", b"offsets:1": b"1"}),
        ("a", group, ahead, {b"offsets:0": b"10"}),
        ("a", f"{group}0", ahead + 5, {b"offsets:0": b"77"}),
        ("a", f"0{group}", ahead + 5, {b"offsets:0": b"77"}),
        ("a", f"{group};", ahead + 5, {b"offsets:0": b"77"}),
        ("aa", group, ahead + 5, {b"offsets:0": b"30"}),
        ("b", group, ahead - 2, {b"offsets:0": b"20"}),
        ("c", f"{group}:5", "", {b"offsets:0": b"77"}),  # of another group, without a time
    ):
        bare.table(table).put(f"{topic}:{name}:{at}".encode(), row)
    bare.table(table).put(b"no offsets at all", {b"offsets:x": b"y"})
    assert ledger.load().positions == {A0: Position(10), TopicPartition("aa", 0): Position(30), B0: Position(20)}
    assert {group, f"{group}0", f"0{group}", f"{group};"} <= set(ledger.store.groups())
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*A0, 10, 15)]))
    newest, row = rows(bare, table, "a", group)[0]
    assert (newest > ahead, row) == (True, {b"offsets:0": b"15"})
    assert rows(bare, table, "b", group)[0] == (newest - 1, {b"offsets:0": b"20"})


def test_groups_are_found_however_many_rows_each_has(
    bare: Any, hbase_server: HBaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many come with one request, which may end within the rows of one; a row without a group is passed over."""
    name = f"many_{secrets.token_hex(4)}"
    store = HBaseStore(f"{hbase_server.url()}?table={name}")
    Ledger(store, "first").acquire()
    keys = [f"{topic}:long:{at}" for topic in ("a", "b") for at in range(100_000, 100_250)]
    keys += [f"c:short-{number:03}:100000" for number in range(250)]
    with bare.table(name).batch() as batch:
        for key in [*keys, "b", "c"]:
            batch.put(key.encode(), {b"offsets:0": b"5"})
    requests: list[Any] = []

    def counted(*asked: Any, **how: Any) -> list[Any]:
        requests.append(asked)
        return scan(*asked, **how)

    monkeypatch.setattr(tables, "scan", counted)
    assert set(store.groups()) == {"first", "long", *(f"short-{number:03}" for number in range(250))}
    assert len(requests) < 10
    store.close()


@pytest.mark.parametrize("row", [{b"offsets:zero": b"1"}, {b"offsets:0": b"one"}, {b"offsets:0": b"9" * 19}])
def test_garbage_in_a_row_of_others_is_told(bare: Any, table: str, ledger: Ledger, row: dict[bytes, bytes]) -> None:
    bare.table(table).put(f"a:{ledger.group}:1".encode(), row)
    with pytest.raises(CorruptStore, match=f"{ledger.group}.*correct or delete"):
        ledger.acquire()


def test_rows_of_an_idle_topic_are_written_anew_before_they_expire(bare: Any, table: str, ledger: Ledger) -> None:
    began_ms = now_ms = time.time_ns() // 1_000_000
    with using(SetClock(lambda: now_ms)):
        ledger.acquire()
        ledger.place({A0: Position(0), B0: Position(7)})
        for day in (9, 11):
            now_ms = began_ms + day * DAY_MS
            start = ledger.snapshot.positions[A0].offset
            ledger.commit(ledger.batch([OffsetRange(*A0, start, start + 1)]))
    expected = [(now_ms, {b"offsets:0": b"7"}), (began_ms + 1, {b"offsets:0": b"7"})]
    assert rows(bare, table, "b", ledger.group) == expected


def test_rows_that_expired_do_not_open_the_ledger_again(bare: Any, table: str, url: str, ledger: Ledger) -> None:
    ledger.acquire()
    ledger.place({A0: Position(3)})
    for at, _ in rows(bare, table, "a", ledger.group):
        bare.table(table).delete(f"a:{ledger.group}:{at}".encode(), [b"offsets"])
    again = HBaseStore(url)
    assert again.load(ledger.group) == ledger.snapshot
    again.close()


@pytest.mark.parametrize("history", [10, 40])
def test_the_history_has_a_bounded_number_of_rows(bare: Any, table: str, url: str, group: str, history: int) -> None:
    """And tells all of what it should; a writer that slept does not bring back what it saw."""
    store = HBaseStore(f"{url}&history={history}")
    ledger = Ledger(store, group)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    asleep = store._seen[group]
    for _ in range(70):
        ledger.commit(next_batch(ledger, 1))
    store._save(group, asleep)
    found = store.history(group, 1000)
    assert [entry.version for entry in found] == list(range(72, 72 - history, -1))
    assert all(entry.change_id for entry in found)
    slots = bare.table(f"{table}_ledger").scan(row_prefix=f"{group}:".encode())
    assert len(list(slots)) <= history
    store.close()


def test_a_document_of_another_program_is_taken_over(bare: Any, table: str, ledger: Ledger) -> None:
    """One with nothing but offsets; its cell is changed, on the condition that it is still the same."""
    text = b'{"offsets": {"a": {"0": 5}}}'
    bare.table(f"{table}_ledger").put(ledger.group.encode(), {b"ledger:document": text})
    assert ledger.load().positions == {A0: Position(5)}
    ledger.acquire()
    assert ledger.load().version == 1
    assert rows(bare, table, "a", ledger.group)[0][1] == {b"offsets:0": b"5"}


def set_back(store: HBaseStore, group: str, offset: int, reason: str) -> None:
    """Set a position for a reason of any length, past the ledger, which keeps its beginning and its end."""
    author = rules.Author("me", "me", 0, secrets.token_hex(8), reason)
    store.apply(rules.decide(store.load(group), rules.Rewind({A0: Position(offset)}, force=True), author))


def test_a_ledger_too_large_for_a_cell_is_refused_before_anything_is_written(url: str, group: str) -> None:
    for settings, size in (("", 10_000_000), ("&transport=framed", 500_000)):
        store = HBaseStore(url)
        ledger = Ledger(store, group, retry_timeout_s=5)
        ledger.acquire()
        store._limit = HBaseStore(url + settings)._limit
        before = ledger.snapshot
        with pytest.raises(Refused, match=f"allows {size} with this transport"):
            set_back(store, group, 1, "x" * size)
        assert store.load(group) == before
        store.close()


def test_older_entries_make_room_before_a_commit_is_refused(url: str, group: str) -> None:
    """Its begin fitted, and the batch is in the output."""
    store = HBaseStore(url)
    ledger = Ledger(store, group, retry_timeout_s=5)
    ledger.acquire()
    ledger.place({A0: Position(0)})
    batch = ledger.batch([OffsetRange(*A0, 0, 1)])
    ledger.begin(batch)
    store._limit = len(store._seen[group].data)
    ledger.commit(batch)
    assert store.load(group).positions == {A0: Position(1)}
    assert [entry.event for entry in store.history(group)] == ["commit", "begin", "place", "acquire"]
    store.close()


def test_a_ledger_nearly_as_large_as_a_cell_is_kept(url: str, group: str) -> None:
    store = HBaseStore(url)
    for offset, letter in enumerate("xy"):
        set_back(store, group, offset, letter * 9_999_000)
        assert len(store._seen[group].data) > 9_999_000
    assert [entry.reason[0] for entry in store.history(group)] == ["y", "x"]
    store.close()


def test_tables_of_others_are_used_as_they_are(hbase_server: HBaseServer, bare: Any) -> None:
    name = f"own_{secrets.token_hex(4)}"
    bare.create_table(name, {"offsets": {"time_to_live": 1000}, "more": {}})
    store = HBaseStore(f"{hbase_server.url()}?table={name}")
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({A0: Position(3)})
    assert bare.table(name).families()[b"offsets"]["time_to_live"] == 1000
    assert rows(bare, name, "a", "g")[0][1] == {b"offsets:0": b"3"}
    store.close()


def test_a_table_of_offsets_that_was_dropped_is_made_again_by_the_second_change(
    hbase_server: HBaseServer, bare: Any
) -> None:
    """The first one finds that it is gone; to look for it before each would take the master."""
    name = f"dropped_{secrets.token_hex(4)}"
    store = HBaseStore(f"{hbase_server.url()}?table={name}")
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({A0: Position(3), B0: Position(7)})
    bare.delete_table(name, disable=True)
    ledger.commit(ledger.batch([OffsetRange(*A0, 3, 5)]))
    ledger.commit(ledger.batch([OffsetRange(*A0, 5, 6)]))
    assert [rows(bare, name, topic, "g")[0][1] for topic in ("a", "b")] == [{b"offsets:0": b"6"}, {b"offsets:0": b"7"}]
    store.close()


def refusal(url: str) -> str:
    store = open_store(url)
    with pytest.raises(OffsetkeeperError) as caught:
        Ledger(store, "g", retry_timeout_s=0.1).acquire()
    store.close()
    assert isinstance(caught.value, Refused), repr(caught.value)
    return str(caught.value)


def test_a_table_of_ledgers_that_expire_is_refused(hbase_server: HBaseServer, bare: Any) -> None:
    name = f"expiring_{secrets.token_hex(4)}"
    bare.create_table(f"{name}_ledger", {"ledger": {"time_to_live": 1000}, "history": {}})
    assert "TTL" in refusal(f"{hbase_server.url()}?table={name}")


def test_a_table_of_ledgers_that_gets_a_ttl_later_is_refused_at_the_next_start(
    hbase_server: HBaseServer, bare: Any
) -> None:
    """Else the ledger of a group that pauses is gone, and its next run begins as a new one."""
    name = f"later_{secrets.token_hex(4)}"
    ledgers = f"{name}_ledger"
    url = f"{hbase_server.url()}?table={name}"
    with closing(open_store(url)) as store:
        Ledger(store, "g").acquire()
    kept = dict(bare.table(ledgers).scan())
    bare.delete_table(ledgers, disable=True)
    bare.create_table(ledgers, {"ledger": {"time_to_live": 1000}, "history": {}})
    for row, cells in kept.items():
        bare.table(ledgers).put(row, cells)
    assert "TTL" in refusal(url)
    with closing(open_store(url)) as store:
        assert store.load("g").version == 1


def test_a_family_of_others_may_expire(hbase_server: HBaseServer, bare: Any) -> None:
    name = f"beside_{secrets.token_hex(4)}"
    bare.create_table(f"{name}_ledger", {"ledger": {}, "history": {}, "theirs": {"time_to_live": 1000}})
    for version in (1, 2):
        with closing(open_store(f"{hbase_server.url()}?table={name}")) as store:
            Ledger(store, "g").acquire()
            assert store.load("g").version == version


@pytest.mark.parametrize("said", [b"AccessDeniedException: no C", b"MasterNotRunningException"])
def test_a_group_that_is_there_needs_no_answer_about_its_table(
    url: str, group: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master may be away, and the right C taken back since the group's first change."""
    with closing(HBaseStore(url)) as store:
        Ledger(store, group).acquire()

    def refuse(*_: object) -> None:
        raise ThriftError(message=said)

    with closing(HBaseStore(url)) as store:
        with store._connections.lend() as client:
            monkeypatch.setattr(type(client), "getColumnDescriptors", refuse, raising=False)
        Ledger(store, group, retry_timeout_s=0.1).acquire()
        assert store.load(group).version == 2


def test_a_table_without_the_family_is_refused(hbase_server: HBaseServer, bare: Any) -> None:
    name = f"other_{secrets.token_hex(4)}"
    bare.create_table(f"{name}_ledger", {"ledger": {}})
    assert "no column family 'history'" in refusal(f"{hbase_server.url()}?table={name}")
    bare.create_table(f"{name}2", {"things": {}})
    assert "choose one with ?table=" in refusal(f"{hbase_server.url()}?table={name}2")


def test_a_namespace_that_is_not_there_is_told(hbase_server: HBaseServer) -> None:
    assert "NamespaceNotFound" in refusal(hbase_server.url("nowhere"))


def test_runs_that_make_the_tables_at_once_all_get_on(hbase_server: HBaseServer) -> None:
    url = f"{hbase_server.url()}?table=new_{secrets.token_hex(4)}"

    def run(number: int) -> int:
        ledger = Ledger(HBaseStore(url), f"g{number}")
        ledger.acquire()
        ledger.place({A0: Position(number)})
        found: int = ledger.load().positions[A0].offset
        ledger.store.close()
        return found

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    "url",
    [
        "hbase://",
        "hbase:///namespace",
        "hbase://h:port",
        "hbase://h1,,h2",
        "hbase://user:s3cret@host:9090",
        "hbase://host/a/b",
        "hbase://host/?table=a:b",
        "hbase://host/?table=",
        "hbase://host/?transport=http",
        "hbase://host/?protocol=json",
        "hbase://host/?ttl=3",
        "hbase://host/#x",
    ],
)
def test_a_wrong_url_is_refused_in_hbase(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("later", ["", ":5", ":1", ":17", ":v2", ":"])
def test_rows_of_a_group_whose_name_goes_on_after_a_colon_are_another_groups(
    bare: Any, table: str, url: str, group: str, later: str
) -> None:
    """Also if the rest of that name looks like a time: `a:g:5:1700000000000` is of `g:5`."""
    others = [f"{group}{rest}" for rest in (":5", ":1", ":17", ":v2", ":", "") if rest != later]
    for at, name in enumerate([*others, f"{group}{later}"]):
        bare.table(table).put(f"a:{name}:{1_700_000_000_000 + at}".encode(), {b"offsets:0": b"%d" % at})
    with closing(HBaseStore(url)) as store:
        for at, name in enumerate([*others, f"{group}{later}"]):
            assert store.load(name).positions == {A0: Position(at)}
        listed = {name for name in store.groups() if name.startswith(group)}
        assert listed >= {f"{group}{rest}" for rest in ("", ":5", ":1", ":v2", ":")}
        Ledger(store, f"{group}:17").acquire()
        assert f"{group}:17" in store.groups()
        assert store.load(f"{group}:1").positions.keys() == {A0}
