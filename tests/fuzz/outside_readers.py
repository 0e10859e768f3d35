"""Every reader of text from outside, with right inputs for it: what is in them may be mended or broken at will."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.mutate import SECRET
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.checkpoint.contents import Checkpoint, Kept
from offsetkeeper.checkpoint.files import Stamp
from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.checkpoint.inspection import inspect
from offsetkeeper.checkpoint.store import CheckpointStore
from offsetkeeper.checkpoint.verification import verify
from offsetkeeper.cli import options
from offsetkeeper.cli.targets import read_csv
from offsetkeeper.core import codec
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.codec import load_numbered_entry
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Snapshot
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, SettingsError
from offsetkeeper.kafka import ledger_log
from offsetkeeper.kafka.clients import check_brokers, check_options, open_client
from offsetkeeper.monitor.alerts import read_rules
from offsetkeeper.operate.json_view import group_fields, history_fields
from offsetkeeper.operate.reset_goal import Goal, make_reset
from offsetkeeper.operate.reset_plan import load_plan
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, Table
from offsetkeeper.sinks.files.link import Link
from offsetkeeper.stores import SCHEMES, memory
from offsetkeeper.stores.files import _parse as parse_file
from offsetkeeper.stores.redis.store import _load_ids as redis_ids
from offsetkeeper.stores.tables import Tables
from offsetkeeper.stores.zookeeper.nodes import Paths, load_row, load_rows
from offsetkeeper.stores.zookeeper.store import _load_behind as load_behind

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass(frozen=True)
class Reader:
    """A reader of text.

    Attributes:
        read: gets the text, and whatever it raises is judged.
        examples: texts that it takes.
        hides: whether its errors show nothing of the text: it is a setting, or a file that a person names.
    """

    read: Callable[[str], object] = field(repr=False)
    examples: tuple[str, ...] = field(repr=False)
    hides: bool = False


def readers(folder: Path) -> dict[str, Reader]:
    """Return all readers by name; files that they read lie in the folder."""
    held, texts = _ledger()
    return {
        "store URLs": Reader(_store, tuple(_urls()), hides=True),
        "sink URLs": Reader(_sinks, tuple(_urls()), hides=True),
        "checkpoint locations": Reader(open_files, tuple(_urls()), hides=True),
        "Kafka settings": Reader(_options, _KAFKA, hides=True),
        "brokers": Reader(check_brokers, ("a:9092,b:9093", f"[::1]:9092,SASL_SSL://{SECRET}:1"), hides=True),
        "TOML": Reader(_Toml(folder / "offsetkeeper.toml"), _TOML, hides=True),
        "CSV": Reader(_Csv(folder / "offsets.csv"), _CSV, hides=True),
        "plans": Reader(lambda text: load_plan(text, "plan.json"), (_plan(held).dump(),), hides=True),
        "offsets of checkpoints": Reader(lambda text: _checkpoint("offsets/1", text), _OFFSETS),
        "commits of checkpoints": Reader(lambda text: _checkpoint("commits/0", text), _COMMITS),
        "sources of checkpoints": Reader(lambda text: _checkpoint("sources/0/0", text), _SOURCES),
        "metadata of checkpoints": Reader(lambda text: _checkpoint("metadata", text), ('{"id":"00000000-0000-0000"}',)),
        "control records": Reader(_control, (texts[0],)),
        "entries": Reader(_entry, (texts[1],)),
        "documents": Reader(_document, (texts[2], '{"offsets":{"orders":{"0":15}}}')),
        "lines in Kafka": Reader(_line, (f"shop/{held.version}/abc {texts[2]}",)),
        "parts of ledgers": Reader(_parts, ('{"orders":{"id":[0,1]}}', '{"orders 0":15}', '{"behind":{"t":{"0":1}}}')),
        "rows of tables": Reader(_rows, (json.dumps([[0, texts[0], 3, None, None], [1, "orders", 0, 5, "id"]]),)),
        "entries of HBase": Reader(lambda text: load_numbered_entry(text, "here"), (f"3 {texts[1]}",)),
        "nodes": Reader(_node, ("orders/0 15", "orders/12 9223372036854775807")),
        "marks": Reader(_mark, ("7 token digest", "7 token digest void", _LINK)),
    }


def _urls() -> list[str]:
    user = f"user:{SECRET}@"
    rests = (f"://{user}host:1234/x", f":///{SECRET.lower()}/x", f"://{user}h1:1,h2:2/a/b?timeout=5&history=9")
    urls = [f"{scheme}{rest}" for scheme in (*SCHEMES, "cassandra", "hdfs", "abfs") for rest in rests]
    return [
        *urls,
        f"s3:/KEY:{SECRET}@bucket/x?region=eu&endpoint_url=http://{SECRET}",
        f"kafka://{user}h:1?security.protocol=SASL_SSL&topic=t&ssl.key.password={SECRET}",
        f"postgresql://{user}h/d?table=t&schema=s&sslmode=disable&password={SECRET}",
        f"mysql://{user}h/d?ssl_key_password={SECRET}&connect_timeout=5",
        f"redis://{user}h:6379/0?key=offset&ttl=60",
        f"zookeeper://{user}h:2181/chroot?tls=false&auth=digest",
        f"sqlite:///{'{'}x.db?table=t&timeout=3",
        f"cassandra://{user}h:9042/shop?consistency=quorum&ssl=true",
        f"memory://name?history=5&password={SECRET}",
    ]


_KAFKA = (
    f"sasl.password={SECRET}",
    f"sasl.password {SECRET}",
    "security.protocol=SASL_SSL",
    "offsetkeeper.rack.env=RACK",
    "offsetkeeper.token.provider=a.b:c",
    f"ssl.key.pem={SECRET}",
    "fetch.wait.max.ms=5",
)
_TOML = (
    f"""store = "mysql://u:{SECRET}@h/d"
brokers = "a:1"
topics = ["orders"]
[kafka]
"security.protocol" = "SSL"
"sasl.password" = "{SECRET}"
"fetch.wait.max.ms" = 5
[alerts]
webhook = "https://h/{SECRET}"
[[alerts.rules]]
name = "far"
records = 5
for = 60
groups = ["shop-*"]
""",
    f'store = ["{SECRET}"]\n',
)
_CSV = ("orders,0,15\norders,1,20\n", "shop,orders,0,15\n", '"orders",0,"15"\n\n')
_SOURCE = '{"orders":{"0":15,"1":20}}'
_OFFSETS = (
    f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":5,"conf":{{"x":"1"}}}}\n{_SOURCE}',
    f"v2\n{{}}\n0:{_SOURCE}\n1:-",
)
_COMMITS = ('v1\n{"nextBatchWatermarkMs":5}', 'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]]}}', "v1\n{}")
_SOURCES = (f"\0v1\n{_SOURCE}", f"v1\n{_SOURCE}")
_LINK = json.dumps(
    {
        "version": 1,
        "mark": "7 token digest",
        "next": 3,
        "columns": {"a": "int"},
        "attempt": "x",
        "group": "shop",
        "output": "",
        "format": "parquet",
        "partition_by": ["a"],
    }
)


class _Tree:
    """A checkpoint's folder in memory; see `Folder`."""

    address = "memory"

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        start = f"{folder}/" if folder else ""
        return sorted({name.removeprefix(start).partition("/")[0] for name in self._files if name.startswith(start)})

    def read(self, name: str) -> bytes | None:
        """Return a file."""
        return self._files.get(name)

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Return the files below a folder."""
        return {name: Stamp(0, len(self._files[name])) for name in self._files if name.startswith(f"{folder}/")}


def _store(url: str) -> None:
    try:
        open_store(url).close()
    finally:
        memory._memories.clear()


def _sinks(url: str) -> None:
    openers: tuple[Callable[[], object], ...] = (
        lambda: Cassandra(url, "k.t", key=("a",)),
        lambda: Table(url, "t"),
        lambda: Files(url),
        lambda: DeltaTable(url),
    )
    errors = []
    for opened in openers:
        try:
            repr(opened())
        except OffsetkeeperError as error:
            errors.append(error)
    if errors:
        raise SettingsError("\n".join(f"{error} {error.__cause__}" for error in errors))


_calls = itertools.count(1)


def _options(text: str) -> None:
    chosen = options.settings("memory://", "a:1", [text])
    check_options(chosen.kafka)
    if next(_calls) % 50 == 0:  # a client takes a millisecond, and two threads
        open_client("Consumer", "127.0.0.1:1", chosen.kafka, {"group.id": "x"}).close()


@dataclass(frozen=True)
class _Toml:
    path: Path

    def __call__(self, text: str) -> None:
        self.path.write_bytes(text.encode("utf-8", "surrogatepass"))
        chosen = options.settings()
        read_rules(chosen.alerts.get("rules", []), "alerts")


@dataclass(frozen=True)
class _Csv:
    path: Path

    def __call__(self, text: str) -> None:
        self.path.write_bytes(text.encode("utf-8", "surrogatepass"))
        read_csv(self.path)


def _checkpoint(name: str, text: str) -> None:
    files = {
        "metadata": b'{"id":"00000000-0000-0000"}',
        "offsets/0": _OFFSETS[0].encode(),
        "offsets/1": _OFFSETS[0].encode(),
        "commits/0": _COMMITS[0].encode(),
        "sources/0/0": _SOURCES[0].encode(),
    } | {name: text.encode("utf-8", "surrogatepass")}
    tree: Any = _Tree(files)
    verify(tree)
    store = CheckpointStore(tree)
    store.groups()
    store.load("g")
    inspect(Checkpoint(Kept("memory", files)))


def _walk(found: Snapshot) -> None:
    repr(found)
    json.dumps(group_fields(found), default=str, ensure_ascii=False).encode()
    codec.dump_control(found)


def _control(text: str) -> None:
    _walk(codec.load_control(text, "shop", 3, {A: Position(5)}, "here"))


def _entry(text: str) -> None:
    json.dumps(history_fields([codec.load_entry(text, 3, "here")]), default=str, ensure_ascii=False).encode()


def _document(text: str) -> None:
    _walk(load_document(text.encode("utf-8", "surrogatepass"), "shop", "here"))


def _line(text: str) -> None:
    key, _, value = text.encode("utf-8", "surrogatepass").partition(b" ")
    line = ledger_log.read_line(0, key, key[-3:], zlib.compress(value, 0))
    if line is not None:
        ledger_log.load_entry(line, "here")
        _walk(ledger_log.load_snapshot(line, "shop", "here"))


def _parts(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    parse_file(data, "here")
    errors = []
    for read in (redis_ids, load_behind, lambda data, where: load_rows(Paths("", "", "", ""), data, where)):
        try:
            read(data, "here")
        except OffsetkeeperError as error:
            errors.append(error)
    if len(errors) == 3:
        raise errors[0]


def _rows(text: str) -> None:
    """Read what a database returns: SQLite has any type in any column."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = [[0, text.encode("utf-8", "replace"), 3, None, None]]
    tables = Tables("o", "g", "h", "here")
    if isinstance(rows, list) and all(isinstance(row, list) and len(row) == 5 for row in rows):
        with suppress(CorruptStore):  # what is a control record is none of these
            tables.entries("shop", [(row[2], row[1]) for row in rows])
        _walk(tables.snapshot("shop", "shop", [[*row, "shop"] for row in rows]))


def _node(text: str) -> None:
    path, _, data = text.partition(" ")
    dict([load_row(f"/x/{path}", data.encode("utf-8", "surrogatepass"), "here")])


def _mark(text: str) -> None:
    if text[:1] == "{":
        Link.parse(text.encode("utf-8", "surrogatepass"), "here")
    else:
        OutputMark.parse(text)


def _ledger() -> tuple[Snapshot, tuple[str, str, str]]:
    ledger = Ledger(open_store("memory://fuzz"), "shop", name="host:1")
    ledger.acquire("start")
    ledger.place({A: Position(5, "id-a"), B: Position(7, "id-b")})
    ledger.commit(ledger.batch([OffsetRange("orders", 0, 5, 9)]))
    ledger.begin(ledger.batch([OffsetRange("orders", 1, 7, 8)]))
    found, entry = ledger.snapshot, ledger.history()[0]
    more = {"entry": codec.entry_fields(entry)}
    memory._memories.clear()
    return found, (codec.dump_control(found), codec.dump_entry(entry), dump_document(found, **more))


def _plan(held: Snapshot) -> Any:
    bounds = {A: Bounds(0, 50, "id-a"), B: Bounds(0, 50, "id-b")}
    return make_reset(held, "memory://", Goal({A: Position(1), B: Position(2)}), bounds)
