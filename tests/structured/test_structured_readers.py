"""Which reader a query gets, and what is refused before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader

from engines.lab import LIMIT_S
from offsetkeeper.errors import MissingExtra, SparkTooOld
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import releases
from structured.lab import StructuredLab

NewTopic = Callable[..., str]


def source(lab: StructuredLab, topic: str) -> str:
    """Run a query with `auto` until all is read; return what Spark calls its source."""
    query = lab.start(topic, reader="auto")
    assert query.awaitTermination(LIMIT_S)
    [found] = {
        each["description"] for progress in query.recentProgress for each in json.loads(progress.json)["sources"]
    }
    return str(found)


def test_auto_reads_in_python_unless_the_connector_has_begun_the_checkpoint(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """A batch that the connector planned may begin at partitions that the packed source would skip."""
    name = topic()
    lab.produce(name, "a")
    assert "Kafka" not in source(lab, name)
    lab.delete_checkpoint()
    lab.produce(name, "b")
    lab.follow(name, reader="connector")
    lab.produce(name, "c")
    assert "Kafka" in source(lab, name)
    assert lab.values == ["a", "b", "c"]


def test_where_spark_is_too_old_packed_is_refused_and_auto_has_the_connector(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was never touched is not there: neither ledger nor checkpoint."""
    monkeypatch.setattr(releases, "_PACKED_STREAMS", (99, 0))
    name = topic()
    lab.produce(name, "a")
    with pytest.raises(SparkTooOld, match=r"reader='packed' cannot read for a streaming query on Spark 4\.2"):
        lab.start(name, reader="packed")
    assert [*tmp_path.iterdir()] == []
    assert "Kafka" in source(lab, name)
    assert lab.values == ["a"]


def test_what_the_connector_reads_for_auto_is_asked_of_a_client_that_connects_then(
    lab: StructuredLab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumers connect anew too, and cannot be asked where they are."""
    monkeypatch.setattr(releases, "_PACKED_STREAMS", (99, 0))
    anew, asked = KafkaCluster.anew, list[KafkaCluster]()

    def ask(cluster: KafkaCluster) -> KafkaCluster:
        asked.append(cluster)
        return anew(cluster)

    monkeypatch.setattr(KafkaCluster, "anew", ask)
    name = topic()
    lab.produce(name, "a")
    assert lab.follow(name, reader="auto") == ["a"]
    assert len(asked) == 1


def test_without_the_connector_nothing_is_touched(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: DataStreamReader) -> DataFrame:
        raise AnalysisException("Failed to find data source: kafka. Make sure the provider name is correct")

    monkeypatch.setattr(DataStreamReader, "load", missing)
    name = topic()
    with pytest.raises(MissingExtra, match=r"2\.13:4\.2\.0 to spark\.jars\.packages, or use reader='packed', which"):
        lab.start(name, reader="connector")
    monkeypatch.setattr(releases, "_PACKED_STREAMS", (99, 0))
    with pytest.raises(MissingExtra, match=r"2\.13:4\.2\.0 to spark\.jars\.packages$"):
        lab.start(name, reader="auto")
    assert [*tmp_path.iterdir()] == []
