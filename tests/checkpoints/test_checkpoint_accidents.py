"""Accidents: what Spark itself does with each checkpoint, and whether `verify` says so.

Of a query over two partitions with six records each, batches 0 and 1 are done, and batch 2 is not planned; where a case
says "again", it is planned. So a query that goes on as it should processes offsets 4 and 5 of both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from checkpoints.queries import LIMIT_S, NO_CONFS, ROCKSDB, Queries, configured, copy, do, records
from offsetkeeper.checkpoint import LocalFiles, plan_truncate, read_checkpoint, verify

Spoil = Callable[[LocalFiles], object]
Change = Callable[[bytes], bytes]
RIGHT, FAILS, DOUBLES, LOSES = "right", "fails", "doubles", "loses"
TOPIC = "checkpoints"


class Case(NamedTuple):
    """An accident.

    Attributes:
        spark: what Spark does.
        spoil: does it.
        again: whether batch 2 is planned.
        wrong: whether `verify` calls something wrong, where that does not follow from what Spark does.
    """

    spark: str
    spoil: Spoil
    again: bool = False
    wrong: bool | None = None


def edit(name: str, change: Change) -> Spoil:
    """Change a file as an editor or a copy does, which leave no checksum."""

    def spoil(files: LocalFiles) -> None:
        changed = change(files.read(name) or b"")
        files.delete(name)
        (files.path / name).write_bytes(changed)

    return spoil


def to(content: bytes) -> Change:
    return lambda _: content


def line(number: int, text: bytes) -> Change:
    def change(content: bytes) -> bytes:
        lines = content.split(b"\n")
        return b"\n".join([*lines[:number], text, *lines[number + 1 :]])

    return change


def offset(value: Any) -> Change:
    return line(2, json.dumps({TOPIC: {"0": 4, "1": value}}, separators=(",", ":")).encode())


def beside(name: str, content: bytes) -> Spoil:
    return lambda files: (files.path / name).write_bytes(content)


def folder(name: str) -> Spoil:
    return lambda files: (files.path / name).mkdir()


def gone(*names: str) -> Spoil:
    def spoil(files: LocalFiles) -> None:
        for name in names:
            if (files.path / name).is_dir():
                shutil.rmtree(files.path / name)
            files.delete(name)

    return spoil


def without_checksums(files: LocalFiles) -> None:
    for path in files.path.rglob(".*.crc"):
        path.unlink()


def crlf(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


WRONG_CHECKSUM = b"crc\0\0\0\2\0abcd"
LOST_ONE = line(2, b'{"checkpoints":{"0":4}}')
BACK_AT_NOTHING = line(2, b"-")
FIRST = gone("offsets/1", "commits/0", "commits/1")  # of batch 0 it is not known that it is done


def first(spoil: Spoil) -> Spoil:
    return lambda files: (FIRST(files), spoil(files))


CASES: dict[str, Case] = {
    "nothing has happened": Case(RIGHT, lambda _: None),
    "partition missing in the last offsets": Case(DOUBLES, edit("offsets/1", LOST_ONE)),
    "partition missing where batch 2 starts": Case(DOUBLES, edit("offsets/1", LOST_ONE), again=True),
    "partition missing where batch 2 ends": Case(FAILS, edit("offsets/2", LOST_ONE), again=True),
    "partition missing in old offsets": Case(RIGHT, edit("offsets/0", LOST_ONE)),
    "source line is - in the last offsets": Case(DOUBLES, edit("offsets/1", BACK_AT_NOTHING)),
    "source line is - where batch 2 starts": Case(DOUBLES, edit("offsets/1", BACK_AT_NOTHING), again=True),
    "source line is - where batch 2 ends": Case(DOUBLES, edit("offsets/2", BACK_AT_NOTHING), again=True),
    "source line has no topic": Case(DOUBLES, edit("offsets/1", line(2, b"{}"))),
    "source line is of another topic": Case(FAILS, edit("offsets/1", line(2, b'{"other":{"0":4,"1":4}}'))),
    "source line is a number": Case(FAILS, edit("offsets/1", line(2, b"17"))),
    "source line is empty": Case(FAILS, edit("offsets/1", line(2, b""))),
    "commit is cut to v1": Case(RIGHT, edit("commits/1", to(b"v1"))),
    "commit is cut within its JSON": Case(FAILS, edit("commits/1", to(b"v1\n{"))),
    "commit is empty": Case(FAILS, edit("commits/1", to(b""))),
    "commit has a text as watermark": Case(FAILS, edit("commits/1", to(b'v1\n{"nextBatchWatermarkMs":"a"}'))),
    "commit is of a newer Spark": Case(FAILS, edit("commits/1", to(b"v4\n{}"))),
    "commit has lines of Windows": Case(RIGHT, edit("commits/1", crlf)),
    "commit of an old batch is empty": Case(RIGHT, edit("commits/0", to(b""))),
    "commit of an old batch is missing": Case(RIGHT, gone("commits/0")),
    "commit of batch 2 is a folder": Case(FAILS, folder("commits/2"), again=True),
    "commit is newer than all offsets": Case(FAILS, lambda f: f.write("commits/4", b"v1\n{}")),
    "all commits are gone": Case(DOUBLES, gone("commits")),
    "offsets have lines of Windows": Case(RIGHT, edit("offsets/1", crlf)),
    "offsets are empty": Case(FAILS, edit("offsets/1", to(b""))),
    "offsets are torn": Case(FAILS, edit("offsets/1", lambda content: content[:-3])),
    "offsets are of a newer Spark": Case(FAILS, edit("offsets/1", lambda content: b"v3" + content[2:])),
    "offsets before the last are empty": Case(FAILS, edit("offsets/0", to(b""))),
    "offsets before the last are empty, batch 2 planned": Case(FAILS, edit("offsets/1", to(b"")), again=True),
    "offsets before the last are missing": Case(FAILS, gone("offsets/1"), again=True),
    "offsets that nobody reads are torn": Case(RIGHT, edit("offsets/0", to(b"v1")), again=True),
    "offsets without settings": Case(FAILS, edit("offsets/1", line(1, b""))),
    "offsets with settings {}": Case(RIGHT, edit("offsets/1", line(1, b"{}"))),
    "an offset is null": Case(DOUBLES, edit("offsets/1", offset(None))),
    "an offset is -1": Case(FAILS, edit("offsets/1", offset(-1))),
    "an offset is too large": Case(LOSES, edit("offsets/1", offset(2**63))),
    "offsets of batch 2 are a folder": Case(FAILS, folder("offsets/2")),
    "a copy named 002": Case(FAILS, lambda f: shutil.copy(f.path / "offsets/1", f.path / "offsets/002")),
    "a copy with a name of 200 digits": Case(RIGHT, beside("offsets/" + "9" * 200, b"v1")),
    "all offsets are gone": Case(FAILS, gone("offsets")),
    "query id is gone": Case(FAILS, gone("metadata")),
    "query id is torn": Case(FAILS, edit("metadata", lambda content: content[:-3])),
    "query id is null": Case(FAILS, edit("metadata", to(b'{"id":null}'))),
    "first offsets are gone": Case(RIGHT, gone("sources")),
    "first offsets are torn": Case(RIGHT, edit("sources/0/0", to(b"\0v1\n{"))),
    "first offsets are torn, and needed": Case(FAILS, first(edit("sources/0/0", to(b"\0v1\n{")))),
    "no checksum is there": Case(RIGHT, without_checksums),
    "checksum of batch 2 is there": Case(FAILS, beside("offsets/.2.crc", WRONG_CHECKSUM)),
    "checksum of the commit of batch 2 is there": Case(FAILS, beside("commits/.2.crc", WRONG_CHECKSUM)),
    "a write was cut off": Case(RIGHT, beside("offsets/.2.x.tmp", b"v1")),
    # What Spark does not look at: nobody knows whether what it reads is what was written.
    "checksum does not fit": Case(RIGHT, beside("offsets/.1.crc", WRONG_CHECKSUM), wrong=True),
    "offsets with more after their end": Case(RIGHT, edit("offsets/1", lambda content: content + b"x"), wrong=True),
    "an offset is 4.5": Case(RIGHT, edit("offsets/1", offset(4.5)), wrong=True),
    "a batch was not committed": Case(RIGHT, gone("commits/1"), again=True, wrong=True),
    # What only Kafka knows: `diff --brokers` tells it.
    "an offset is beyond the end": Case(FAILS, edit("offsets/1", offset(99)), wrong=False),
    "a partition that is not there": Case(
        FAILS, edit("offsets/1", line(2, b'{"checkpoints":{"0":4,"1":4,"7":0}}')), wrong=False
    ),
}


def says_wrong(files: LocalFiles) -> bool:
    return any(not each.harmless for each in verify(files))


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_after_an_accident_is_what_spark_does(
    name: str, queries: Queries, plain: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    files = copy(plain, tmp_path / "checkpoint")
    gone("commits/2", *["offsets/2"] * (not case.again))(files)
    case.spoil(files)
    told = says_wrong(files)
    assert done(queries, files, records((0, 4, 6), (1, 4, 6))) == case.spark
    assert told == (case.wrong if case.wrong is not None else case.spark != RIGHT)


def done(queries: Queries, files: LocalFiles, wanted: list[tuple[int, ...]], **how: Any) -> str:
    """Start a query and return what comes of it."""
    try:
        found = sorted(row for rows in queries.run(files.path, **how).values() for row in rows)
    except Exception:  # noqa: BLE001 - of several kinds
        return FAILS
    if found == wanted:
        return RIGHT
    return DOUBLES if set(found) >= set(wanted) else LOSES


REMEDIES: dict[str, tuple[str, Spoil]] = {
    "commit is cut within its JSON": ("Write v1 and {} into it", edit("commits/1", to(b"v1\n{}"))),
    "commit is empty": ("Write v1 and {} into it", edit("commits/1", to(b"v1\n{}"))),
    "offsets before the last are empty": (
        "Copy offsets/1 to it",
        lambda files: edit("offsets/0", to(files.read("offsets/1") or b""))(files),
    ),
    "checksum of batch 2 is there": ("Delete it", gone("offsets/.2.crc")),
    "offsets of batch 2 are a folder": ("Move it out of the folder", gone("offsets/2")),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_after_the_remedy_spark_goes_on_where_it_was(name: str, queries: Queries, plain: Path, tmp_path: Path) -> None:
    remedy, mend = REMEDIES[name]
    files = copy(plain, tmp_path / "checkpoint")
    gone("commits/2", "offsets/2")(files)
    CASES[name].spoil(files)
    [problem] = verify(files)
    assert problem.remedy.startswith(remedy)
    mend(files)
    assert verify(files) == []
    assert done(queries, files, records((0, 4, 6), (1, 4, 6))) == RIGHT


def test_nothing_destructive_is_advised_for_a_format_that_is_not_known(plain: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("offsets/2", "offsets/1", "commits/2")):
        files = copy(plain, tmp_path / f"checkpoint{number}")
        edit(name, lambda content: b"v9" + content[2:])(files)
        [problem] = verify(files)
        assert problem.file == name
        assert problem.remedy.startswith("Use a release of offsetkeeper that knows this format")


def newest(files: LocalFiles, change: Callable[[Path], object], back: int = 0) -> None:
    """Change the newest version of the state of each partition, or one before it; its checksum goes."""
    for partition in (path for path in (files.path / "state/0").iterdir() if path.name.isdigit()):
        found = sorted(
            path for path in partition.iterdir() if path.suffix in {".delta", ".zip"} and path.name[0] != "."
        )
        path = found[-1 - back]
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        change(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


class StateCase(NamedTuple):
    """An accident with the state: what Spark does with its default provider and with RocksDB."""

    counting: str
    rocks: str
    spoil: Spoil
    is_told: bool = True


STATE: dict[str, StateCase] = {
    "nothing has happened": StateCase(RIGHT, RIGHT, lambda _: None),
    "the state is empty": StateCase(FAILS, FAILS, lambda f: (gone("state")(f), folder("state")(f))),
    "an operator is gone": StateCase(FAILS, FAILS, gone("state/0")),
    "the first partition is gone": StateCase(FAILS, FAILS, gone("state/0/0")),
    "the last partition is gone": StateCase(FAILS, FAILS, gone("state/0/1")),
    "the operator's description is gone": StateCase(RIGHT, RIGHT, gone("state/0/_metadata")),
    "the newest files are gone": StateCase(FAILS, FAILS, lambda f: newest(f, Path.unlink)),
    "the newest files are empty": StateCase(FAILS, FAILS, lambda f: newest(f, empty)),
    "older files are empty": StateCase(FAILS, RIGHT, lambda f: newest(f, empty, 1)),
    "older files are gone": StateCase(FAILS, RIGHT, lambda f: newest(f, Path.unlink, 1)),
    "a number of nine digits": StateCase(RIGHT, RIGHT, beside("state/0/0/999999999.delta", b"x")),
    "a folder of nine digits": StateCase(
        RIGHT, RIGHT, lambda f: (folder("state/0/999999999")(f), beside("state/0/999999999/1.delta", b"x")(f))
    ),
    "a number of 200 digits": StateCase(RIGHT, RIGHT, beside(f"state/0/0/{'9' * 200}.delta", b"x")),
    "the commit names no state": StateCase(RIGHT, FAILS, edit("commits/1", to(b"v1\n{}"))),
    # The state itself is not read: it may be as large as a disk.
    "the newest files are damaged": StateCase(
        FAILS, FAILS, lambda f: newest(f, lambda p: p.write_bytes(b"x" * 99)), is_told=False
    ),
}


QUICK = {(name, "counting") for name in STATE} | {
    ("the newest files are empty", "rocks"),
    ("the commit names no state", "rocks"),
}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        pytest.param(name, made, marks=[] if (name, made) in QUICK else pytest.mark.soak)
        for name in STATE
        for made in ("counting", "rocks")
    ],
)
def test_the_verdict_on_the_state_is_what_spark_does(
    name: str, made: str, queries: Queries, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = STATE[name]
    files = copy(request.getfixturevalue(made), tmp_path / "checkpoint")
    do(files, plan_truncate(read_checkpoint(files), 1, query_id="keep"))
    case.spoil(files)
    told = says_wrong(files)
    try:
        found = queries.run(files.path, counting=True, confs=ROCKSDB if made == "rocks" else NO_CONFS)
        outcome = RIGHT if found == {2: [(0, 6), (1, 6)]} else DOUBLES
    except Exception:  # noqa: BLE001 - of several kinds
        outcome = FAILS
    expected = getattr(case, made)
    assert outcome == expected
    assert told == (case.is_told and expected != RIGHT)


LISTS: dict[str, tuple[str, Spoil]] = {
    "nothing has happened": (RIGHT, lambda _: None),
    "the compact list is gone": (FAILS, gone("sources/0/3.compact")),
    "the compact list is gone, its checksum is left": (FAILS, lambda f: (f.path / "sources/0/3.compact").unlink()),
    "all lists are gone": (FAILS, gone("sources")),
    "checksum of the next list is there": (FAILS, beside("sources/0/.4.crc", WRONG_CHECKSUM)),
    "checksum of the next compact list is there": (FAILS, beside("sources/0/.5.compact.crc", WRONG_CHECKSUM)),
}


@pytest.fixture(scope="module")
def files_read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a query that has read four files, and beside it the folder with six."""
    path = tmp_path_factory.mktemp("files")
    (path / "read").mkdir()
    for number in range(4):
        (path / "read" / f"{number}.txt").write_text(str(number))
    assert read_files(spark, path / "checkpoint", path / "read") == ["0", "1", "2", "3"]
    for number in (4, 5):
        (path / "read" / f"{number}.txt").write_text(str(number))
    return path


@pytest.mark.parametrize("name", LISTS)
def test_the_verdict_on_lists_of_files_after_an_accident_is_what_spark_does(
    name: str, spark: SparkSession, files_read: Path, tmp_path: Path
) -> None:
    outcome, spoil = LISTS[name]
    files = copy(files_read / "checkpoint", tmp_path / "checkpoint")
    spoil(files)
    told = says_wrong(files)
    try:
        found = read_files(spark, files.path, files_read / "read")
    except Exception:  # noqa: BLE001 - of several kinds
        assert outcome == FAILS
    else:
        assert (outcome, found) == (RIGHT, ["4", "5"])
    assert told == (outcome == FAILS)


def read_files(spark: SparkSession, checkpoint: Path, path: Path) -> list[str]:
    """Run a query over the files of a folder, one a batch; return what it has read."""
    found: list[str] = []
    with configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "2"}):
        writer = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(path)).writeStream
        writer = writer.foreachBatch(lambda frame, _: found.extend(row.value for row in frame.collect()))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
    return sorted(found)
