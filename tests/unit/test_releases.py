"""What a release of Spark can do for a query, and what is said where it cannot; `make sparks` runs the releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyspark
import pytest

from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import SparkTooOld
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import ConnectorReader, StreamStart, open_reader
from offsetkeeper.readers.releases import check_packed_streams, connector_package, packed_streams, spark_version

OLD = ["3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.1.0-SNAPSHOT", "3.5.1-amzn-0"]
NEW = ["4.2.0", "4.2.0.dev1", "4.3.0", "4.10.0", "5.0.0", "a fork's own"]


@dataclass
class Session:
    """As much of a session as tells its release."""

    version: str


@pytest.mark.parametrize("version", NEW)
def test_newer_releases_read_for_a_query_in_python(version: str) -> None:
    assert packed_streams(version)
    check_packed_streams(version)


@pytest.mark.parametrize("version", OLD)
def test_older_releases_say_why_not_and_what_to_do(version: str) -> None:
    assert not packed_streams(version)
    with pytest.raises(SparkTooOld) as raised:
        check_packed_streams(version)
    for part in (
        f"on Spark {version}:",
        "Spark 4.2 or newer",
        "reader='auto'",
        connector_package(version),
        "Pipeline.run",
    ):
        assert part in str(raised.value)


START = StreamStart(Topics.of(["orders"]), {})


def test_the_connector_is_of_the_same_release_and_of_its_scala() -> None:
    assert connector_package("3.5.9") == "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.9"
    assert connector_package("4.0.0") == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def test_the_older_of_session_and_client_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark Connect they may differ, and a source in Python is known to both or to none."""

    def decides(session: str, client: str) -> str:
        monkeypatch.setattr(pyspark, "__version__", client)
        return spark_version(Session(session))

    assert decides("4.0.1", "4.2.0") == "4.0.1"
    assert decides("4.3.0", "4.1.4") == "4.1.4"
    assert decides("4.2.0-vendor", "4.2.1") == "4.2.0-vendor"


def test_auto_and_packed_look_at_no_checkpoint_where_spark_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectorReader, "for_query", lambda self, *_: self)
    old: Any = Session("4.1.4")
    auto, packed = (open_reader(name, KafkaCluster("127.0.0.1:1"), group="g") for name in ("auto", "packed"))
    assert isinstance(auto.for_query(old, START, pytest.fail), ConnectorReader)
    with pytest.raises(SparkTooOld):
        packed.for_query(old, START, pytest.fail)


def test_auto_goes_on_with_the_connector_where_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectorReader, "for_query", lambda self, *_: self)
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    new: Any = Session("4.2.0")
    auto = open_reader("auto", KafkaCluster("127.0.0.1:1"), group="g")
    assert isinstance(auto.for_query(new, START, lambda: True), ConnectorReader)
    assert auto.for_query(new, START, lambda: False) is auto
