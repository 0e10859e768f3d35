"""Features of Delta tables that others have turned on: right rows, or refused in words before any is written."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import Refused
from offsetkeeper.sinks import DeltaTable, Outputs
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a table with three rows in one file, in version 1."""
    path = str(tmp_path / "table")
    deltalake.DeltaTable.create(path, schema=SCHEMA)
    deltalake.write_deltalake(path, pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), mode="append")
    return path


def entries(path: str, version: int) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in Path(path, "_delta_log", f"{version:020}.json").read_text("utf-8").splitlines()
    ]


def commit(path: str, *actions: dict[str, Any]) -> None:
    """Commit version 2, as another program does."""
    Path(path, "_delta_log", f"{2:020}.json").write_text("\n".join(map(json.dumps, actions)), "utf-8")


def protocol(readers: list[str], writers: list[str]) -> dict[str, Any]:
    """Return the action that turns features on; a feature of readers is one of writers too."""
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": {**versions, "readerFeatures": readers, "writerFeatures": [*readers, *writers]}}


def configured(path: str, **settings: str) -> dict[str, Any]:
    """Return the metadata of the table, with these properties."""
    [found] = [each["metaData"] for each in entries(path, 0) if "metaData" in each]
    return {"metaData": {**found, "configuration": settings}}


def prepared(path: str, **words: Any) -> Once:
    """Return how a sink on the table writes."""
    way = Outputs(it=DeltaTable(path, **words)).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    return way.once["it"]


REFUSED: dict[str, tuple[list[str], list[str], str]] = {
    "managed by a catalog": (["catalogManaged"], ["inCommitTimestamp"], "is managed by a catalog"),
    "managed by a catalog, before it had that name": (["catalogOwned-preview"], [], "is managed by a catalog"),
    "row tracking": ([], ["rowTracking", "domainMetadata"], "it has feature rowTracking"),
    "times of commits": ([], ["inCommitTimestamp"], "it has feature inCommitTimestamp"),
    "clustering": ([], ["clustering", "domainMetadata"], "it has feature clustering"),
    "columns that grow wider": (["typeWidening"], [], "it has feature typeWidening"),
    "defaults": ([], ["allowColumnDefaults"], "it has feature allowColumnDefaults"),
    "read as Iceberg": ([], ["icebergCompatV2"], "it has feature icebergCompatV2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_feature_that_asks_for_more_is_refused_by_name(case: str, path: str) -> None:
    readers, writers, told = REFUSED[case]
    commit(path, protocol(readers, writers))
    with pytest.raises(Refused, match=told):
        prepared(path)
    assert not Path(path, "_delta_log", f"{3:020}.json").exists()


def test_columns_that_have_other_names_in_files_are_refused(path: str) -> None:
    about = configured(path, **{"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"})
    schema = json.loads(about["metaData"]["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    about["metaData"]["schemaString"] = json.dumps(schema)
    commit(path, protocol(["columnMapping"], []), about)
    with pytest.raises(Refused, match="it maps its columns to other names"):
        prepared(path)


def test_a_column_whose_values_the_table_gives_is_refused(path: str) -> None:
    """An identity column; the feature alone, without such a column, is not."""
    commit(path, protocol([], ["identityColumns"]))
    prepared(path)
    about = configured(path)
    schema = json.loads(about["metaData"]["schemaString"])
    schema["fields"][0]["metadata"] = {"delta.identity.start": 1, "delta.identity.step": 1}
    about["metaData"]["schemaString"] = json.dumps(schema)
    commit(path, protocol([], ["identityColumns"]), about)
    with pytest.raises(Refused, match=r"column id has delta\.identity\.start"):
        prepared(path)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_another_program_deleted_beside_the_data_stay_deleted(
    path: str, spark: SparkSession, mode: str
) -> None:
    """By a deletion vector: the file still has the row, and an upsert writes the file anew."""
    [added] = [each["add"] for each in entries(path, 1) if "add" in each]
    gone = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}
    commit(path, protocol(["deletionVectors"], []), {"remove": gone}, {"add": {**added, "deletionVector": vector(0)}})
    assert rows(path) == [(2, "b"), (3, "c")]
    words = {"mode": mode, "key": ["id"]} if mode == "upsert" else {}
    kinds = "topic string, partition int, offset long, id long, name string"
    frame = spark.createDataFrame([("orders", 0, 7, 2, "new")], kinds)
    prepared(path, **words).write(frame if words else frame.select("id", "name"), batch_of(1))
    assert rows(path) == [*([] if words else [(2, "b")]), (2, "new"), (3, "c")]


def rows(path: str) -> list[tuple[int, str]]:
    """Return what a reader finds that knows deletion vectors."""
    found = QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("select id, name from t").read_all()
    return sorted((row["id"], row["name"]) for row in pa.table(found).to_pylist())


def vector(*places: int) -> dict[str, Any]:
    """Return the deletion vector of these rows of a file.

    Source: the Delta protocol, "Deletion Vector Format": a 64-bit roaring bitmap in Z85.
    """
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(places) - 1, 16) + b"".join(struct.pack("<H", at) for at in places)
    data = struct.pack("<iQI", 1681511377, 1, 0) + bitmap
    padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
    words = [int.from_bytes(padded[at : at + 4]) for at in range(0, len(padded), 4)]
    text = "".join(_Z85[word // 85**power % 85] for word in words for power in range(4, -1, -1))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(places)}
