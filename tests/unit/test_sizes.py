"""Few bytes that would become much: each is refused before it is made, and what is honest is far below the limits."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

from offsetkeeper.checkpoint import Checkpoint, LocalFiles, StateStore, contents, inspect, read_checkpoint, verify
from offsetkeeper.checkpoint.contents import Kept
from offsetkeeper.checkpoint.files import no_more
from offsetkeeper.core import codec
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.codec import dump, dump_control, dump_entry, entry_fields, load_control, load_entry
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Entry, Move, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.outside import LONGEST, MOST_VALUES, load_json, load_stored
from offsetkeeper.core.store import Store
from offsetkeeper.errors import CorruptStore, Refused, SettingsError
from offsetkeeper.operate.reset_plan import Step, load_plan
from offsetkeeper.stores import files as files_module
from offsetkeeper.stores import open_store
from offsetkeeper.stores.folder import FolderStore

N = MOST_VALUES // 2 + 1
DENSE: dict[str, Callable[[], str]] = {
    "lists": lambda: "[" + "[]," * N + "0]",
    "objects": lambda: '{"offsets":[' + "{}," * N + "0]}",
    "deep": lambda: "[" + ",".join(['{"a":' * 90 + "1" + "}" * 90] * (N // 45)) + "]",
    "texts": lambda: '["' + '","' * 2 * N + '"]',
}
MANY = "it has more than 4,000,000 values"


@contextmanager
def little(megabytes: int = 30) -> Iterator[None]:
    """Check that the block takes little memory."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < megabytes << 20


@contextmanager
def less_than(seconds: float) -> Iterator[None]:
    """Check that the block takes less CPU; without the mend it takes minutes."""
    began = process_time()
    yield
    assert process_time() - began < seconds


@pytest.mark.parametrize("what", DENSE)
def test_json_of_millions_of_values_is_refused_before_one_of_them_is_made(what: str) -> None:
    """A file of less than 64 MiB took gigabytes."""
    text = DENSE[what]()
    for load in (load_json, load_stored):
        for given in (text, text.encode()):
            with little(), pytest.raises(ValueError, match=MANY):
                load(given)


@pytest.mark.parametrize("what", DENSE)
def test_records_of_millions_of_values_are_told_with_their_place(what: str, tmp_path: Path) -> None:
    text = DENSE[what]()
    for read in (
        lambda: load_document(text, "g", "here"),
        lambda: load_control(text, "g", 1, {}, "here"),
        lambda: load_entry(text, 1, "here"),
    ):
        with little(), pytest.raises(CorruptStore, match=f"here .*{MANY}.*Nothing was changed"):
            read()
    with little(), pytest.raises(SettingsError, match=f"plan.json is not a plan of a reset .{MANY}"):
        load_plan(text, "plan.json")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "000000000001.json").write_text(text)
    with closing(open_store(f"file://{tmp_path}")) as store, little(80), pytest.raises(CorruptStore, match=MANY):
        store.load("g")


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "offsets/0 (its settings)", "commits/0", "sources/0/0"])
def test_files_of_a_checkpoint_with_millions_of_values_are_told(name: str, tmp_path: Path) -> None:
    text = DENSE["lists"]()
    whole = {
        "metadata": text,
        "offsets/0": f"v1\n{{}}\n{text}",
        "commits/0": f"v1\n{text}",
        "sources/0/0": f"\0v1\n{text}",
    }
    file = name.partition(" ")[0]
    for each, content in {"metadata": '{"id":"a"}', "offsets/0": "v1\n{}\n{}", "commits/0": "v1\n{}"}.items():
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text(content)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"v1\n{text}\n{{}}" if "settings" in name else whole[file])
    with little(80), pytest.raises(CorruptStore, match=f"{file}.*{MANY}"):
        inspect(read_checkpoint(LocalFiles(tmp_path)))


def test_a_hundred_thousand_partitions_are_far_below_the_limit() -> None:
    """Each in a topic of its own, all in the batch that runs and in the one before it, in a change of all of them."""
    part = 1_000
    at = {TopicPartition(f"t{n}", 0): Position(123_456 + n, f"id {n}", "cluster", 3) for n in range(part)}
    ranges = tuple(OffsetRange(*tp, position.offset, position.offset + 9) for tp, position in at.items())
    batch = Batch("g", "a", 5, ranges)
    snapshot = Snapshot(
        "g", 3, Owner("a", 1, "x"), 1, 1, 4, positions=at, pending=batch, change_id="c", unsettled=batch
    )
    moves = {tp: Move(position, position._replace(offset=1)) for tp, position in at.items()}
    entry = Entry(3, "rewind", "c", 1, "x", "why", 1, 1, 4, "a", ranges, moves)
    steps = [Step(tp, position.offset, position, 0, 9).as_dict() for tp, position in at.items()]
    for text in (dump_document(snapshot, entry=entry_fields(entry)), dump_entry(entry), json.dumps(steps)):
        assert sum(map(text.count, ",[{")) * (100_000 // part) < MOST_VALUES


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(Refused, match=f"was not written: {MANY}.*a group of their own"):
        dump("," * (MOST_VALUES + 1))


def _state(folder: Path, *names: str, batches: int = 3) -> LocalFiles:
    """Make a checkpoint of a query with these state files."""
    logs: dict[str, str] = {"metadata": '{"id":"8a1b3c4d-1111-2222-3333-444455556666"}'}
    logs |= {f"offsets/{n}": f'v1\n{{"conf":{{}}}}\n{{"orders":{{"0":{n}}}}}' for n in range(batches)}
    logs |= {f"commits/{n}": "v1\n{}" for n in range(batches)}
    for name, content in (logs | dict.fromkeys(names, "x")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return LocalFiles(folder)


@pytest.mark.parametrize(("operator", "last"), [(49_999, "49998"), (999_999_999, "999999998")])
def test_operators_that_are_gone_are_one_problem(operator: int, last: str, tmp_path: Path) -> None:
    """One folder of a high number was as many problems, or all memory of the machine."""
    files = _state(tmp_path, f"state/{operator}/0/3.snapshot", "state/1/0/3.snapshot", "state/0/99999/3.snapshot")
    with little():
        found = [str(problem) for problem in verify(files)]
    gone = [line for line in found if "state is gone" in line]
    (line,) = gone
    assert line.startswith(f"wrong state/2: the operator's state is gone, and that of the operators up to {last}: ")
    assert [line for line in found if "state/0/0: the state of the partition is missing, and of 99998 others" in line]


def test_thousands_of_state_versions_take_no_longer_than_their_number() -> None:
    store = StateStore(0, 0, "", frozenset({100}), frozenset(range(1, 200_000)) - {50})
    with less_than(5):
        assert store.loadable() == {*range(1, 50), *range(100, 200_000)}
    assert all(store.has(version) is (version in store.loadable()) for version in (0 + 1, 49, 50, 51, 99, 100, 101))
    other = StateStore(0, 1, "", frozenset(), frozenset(range(1, 101)))
    found = inspect(Checkpoint(Kept("here", {})))
    assert replace(found, state=(store, other)).state_versions == {0: [*range(1, 50), 100]}


def test_a_query_with_thousands_of_batches_and_no_state_is_verified_soon(tmp_path: Path) -> None:
    files = _state(tmp_path, "state/0/0/9999.delta", batches=300)
    with less_than(10):
        assert [problem.file for problem in verify(files)] == ["state/0/0"]


def test_a_checksum_for_every_byte_is_compared_by_its_size_first(tmp_path: Path) -> None:
    files = _state(tmp_path)
    content = b"v1\n{}" + b" " * 5_000_000
    (tmp_path / "commits" / "2").write_bytes(content)
    (tmp_path / "commits" / ".2.crc").write_bytes(b"crc\0" + (1).to_bytes(4, "big") + bytes(4 * 100))
    with little(), less_than(3):
        assert [problem.file for problem in verify(files)] == ["commits/.2.crc"]
    sums = b"".join(zlib.crc32(content[at : at + 512]).to_bytes(4, "big") for at in range(0, len(content), 512))
    (tmp_path / "commits" / ".2.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)
    assert not verify(files)
    (tmp_path / "commits" / ".2.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums[:-4] + bytes(4))
    assert [problem.file for problem in verify(files)] == ["commits/.2.crc"]


def test_a_long_reason_is_kept_with_its_begin_and_its_end() -> None:
    """Histories of some megabytes of reasons stayed in the memory of `serve`."""
    store = open_store("memory://long-reasons")
    ledger = Ledger(store, "g")
    ledger.acquire(f"because {'x' * 100_000} (by me)")
    (entry,) = store.history("g")
    assert len(entry.reason) == LONGEST
    assert entry.reason.startswith("because xx")
    assert " … x" in entry.reason
    assert entry.reason.endswith("xx (by me)")
    raw = entry_fields(entry)
    read = load_entry(json.dumps(raw | {"reason": "y" * 50_000, "actor": "z" * 50_000}), 1, "here")
    assert (len(read.reason), len(read.actor)) == (LONGEST, LONGEST)
    short = load_entry(json.dumps(raw | {"reason": "y" * LONGEST}), 1, "here")
    assert short.reason == "y" * LONGEST
    moves = {"moves": [["t", 0, None, [1, "i" * 2 * LONGEST]]]}
    for odd in ({"event": "e" * 2 * LONGEST}, {"change_id": "c" * 2 * LONGEST}, {"token": "t" * 2 * LONGEST}, moves):
        with pytest.raises(CorruptStore):
            load_entry(json.dumps(raw | odd), 1, "here")


def test_a_checkpoint_of_more_logs_than_one_can_have_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 files took 7.6 s and 117 MB, and nothing said where it would end."""
    files, reads = _state(tmp_path, batches=50), list[str]()
    read = files.read
    monkeypatch.setattr(files, "read", lambda name: (reads.append(name), read(name))[1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(contents, "MOST_LOGS", 101)
    assert read_checkpoint(files).offsets == [*range(50)]
    (tmp_path / "commits" / "50").touch()
    reads.clear()
    with pytest.raises(
        Refused, match=r"has 102 logs, more than 101, and offsetkeeper reads no more.*minBatchesToRetain says more"
    ):
        read_checkpoint(files)
    assert reads == []


def test_a_checkpoint_of_larger_logs_than_one_can_have_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, reads = _state(tmp_path, batches=50), list[str]()
    read = files.read
    monkeypatch.setattr(files, "read", lambda name: (reads.append(name), read(name))[1])  # type: ignore[func-returns-value]
    for number in range(50):
        (tmp_path / "offsets" / f"{number}").write_bytes(bytes(1_000))
    monkeypatch.setattr(contents, "LARGEST_LOGS", 10_000)
    with pytest.raises(Refused, match="has logs of more than 10,000 bytes together, and offsetkeeper reads no more"):
        read_checkpoint(files)
    assert len(reads) < 20


def test_a_checkpoint_of_files_without_end_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _state(tmp_path, *(f"state/0/{number}/1.delta" for number in range(11)))
    monkeypatch.setattr(no_more, "__defaults__", (10,))
    with pytest.raises(Refused, match="state has more than 10 files, and offsetkeeper reads no more"):
        read_checkpoint(files)


@pytest.mark.parametrize("line", ["\n", "ab\n", "\r", "a\r\n"])
@pytest.mark.parametrize("name", ["offsets/0", "commits/0", "sources/0/0", "state/0/_metadata/metadata"])
def test_a_log_of_millions_of_lines_is_refused_before_one_of_them_is_made(name: str, line: str, tmp_path: Path) -> None:
    files = _state(tmp_path, batches=1)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    head = "\0" if name.startswith("sources") else ""
    (tmp_path / name).write_text(f"{head}v1\n{line * 1_000_000}", newline="")
    with little(60):
        found = read_checkpoint(files)
        acts: dict[str, Callable[[], object]] = {
            "offsets/0": lambda: inspect(found),
            "commits/0": lambda: found.commit(0),
            "sources/0/0": found.initial,
        }
        assert not found.partitions
        if name in acts:
            with pytest.raises(CorruptStore, match=f"{name} is not what .* there: it has more than 100,000 lines"):
                acts[name]()


def test_a_list_of_millions_of_files_is_not_checked(tmp_path: Path) -> None:
    files = _state(tmp_path, batches=1)
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    (tmp_path / "sources" / "0").mkdir(parents=True)
    for entries, found in (("{}\n" * 1_000, 0), ("{}\n" * 2_000_000, 0), ("}\n", 1)):
        (tmp_path / "sources" / "0" / "0").write_text(f"v1\n{entries}")
        with little(40):
            assert len([each for each in verify(files) if each.file == "sources/0/0"]) == found


def test_a_record_does_not_name_more_partitions_than_a_group_can_have() -> None:
    """Fifteen bytes made a million objects."""
    at = {TopicPartition("a", number): Position(1) for number in range(2)}
    stored = dump_control(Snapshot("g", 1, positions=at))
    with little(1), pytest.raises(CorruptStore):
        load_control(stored.replace('"0-1"', '"0-1000000"'), "g", 1, at, "here")
    assert len(load_control(stored.replace('"0-1"', '"0-199999"'), "g", 1, at, "here").missing) == 199_998
    entry = entry_fields(Entry(1, "commit", "c", 1, "h", token="t", ranges=(OffsetRange("a", 0, 1, 2),)))
    entry["ranges"] = {"a": [[0, 1, 2]] * 1_000_001}
    with pytest.raises(CorruptStore):
        load_entry(json.dumps(entry), 1, "here")


def test_a_group_of_more_partitions_than_can_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document has the rows of forgotten positions too."""
    monkeypatch.setattr(codec, "MOST_PARTITIONS", 2)
    at = {TopicPartition("a", number): Position(1) for number in range(2)}
    assert dump_control(Snapshot("g", 1, positions=at))
    with pytest.raises(Refused, match="it has 3 partitions, and a group has 2 at most"):
        dump_control(Snapshot("g", 1, positions=at, forgotten={TopicPartition("b", 0): Position(1)}))


def _folder(path: Path) -> Store:
    store = open_store(f"file://{path}")
    assert isinstance(store, FolderStore)
    store.init()
    return store


def test_a_history_is_read_up_to_a_number_of_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(_folder(tmp_path)) as store:
        ledger = Ledger(store, "g")
        ledger.acquire()
        ledger.place({TopicPartition("a", number): Position(0) for number in range(10)})
        for offset in range(10):
            ledger.commit(ledger.batch([OffsetRange("a", number, offset, offset + 1) for number in range(10)]))
        assert len(store.history("g")) == 12
        monkeypatch.setattr(files_module, "MOST_RANGES", 45)
        assert [entry.version for entry in store.history("g")] == [12, 11, 10, 9, 8]


def test_a_history_of_long_texts_is_read_in_pages(tmp_path: Path) -> None:
    """Of 400 MB of reasons `serve` and `verify` had all in memory at once."""
    entry = entry_fields(Entry(1, "acquire", "c", 1, "h", reason="r" * 100_000))
    with closing(open_store(f"sqlite:///{tmp_path}/x.db")) as store:
        Ledger(store, "g").acquire()
        with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
            connection.execute("UPDATE offsetkeeper_groups SET version = 250")
            rows = [("g", version, json.dumps(entry | {"version": version})) for version in range(2, 251)]
            connection.executemany("INSERT INTO offsetkeeper_history VALUES (?, ?, ?)", rows)
        for limit in (1_000, 250, 249, 51, 50, 1, 0):
            with little(15):
                assert [each.version for each in store.history("g", limit)] == [*range(250, 0, -1)][:limit]


def test_large_files_of_a_history_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight at a time had half a gigabyte."""
    monkeypatch.setattr(files_module, "_LARGE", 100)
    with closing(_folder(tmp_path)) as store:
        ledger = Ledger(store, "g")
        ledger.acquire()
        for number in range(20):
            ledger.place({TopicPartition("a", number): Position(0)})
        made = list[int]()
        monkeypatch.setattr(
            ThreadPoolExecutor,
            "map",
            lambda _, call, every: (made.append(len(every)), list(map(call, every)))[1],  # type: ignore[func-returns-value]
        )
        assert len(store.history("g")) == 21
    assert made == [1] * 20
