"""Opening a reader: names, settings, and what the ranges given to it must be."""

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.model import OffsetRange
from offsetkeeper.errors import SettingsError
from offsetkeeper.readers import ConnectorReader, PackedReader, open_reader

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

NOWHERE = "127.0.0.1:1"


def test_readers_have_names() -> None:
    assert isinstance(open_reader("packed", brokers=NOWHERE, group="test"), PackedReader)
    assert isinstance(open_reader("connector", brokers=NOWHERE, group="test"), ConnectorReader)
    assert isinstance(open_reader(brokers=NOWHERE, group="test"), PackedReader)
    with pytest.raises(SettingsError, match="use one of packed, connector"):
        open_reader("fastest", brokers=NOWHERE, group="test")


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_wrong_settings_are_refused_before_anything_is_read(name: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        open_reader(name, brokers="host:port", group="test")
    with pytest.raises(SettingsError, match=r"take the Kafka option group\.id out"):
        open_reader(name, brokers=NOWHERE, group="test", options={"group.id": "x"})
    wrong: Isolation = "dirty"  # type: ignore[assignment]  # that is the point
    with pytest.raises(SettingsError, match="read_committed"):
        open_reader(name, brokers=NOWHERE, group="test", isolation=wrong)
    with pytest.raises(SettingsError, match="split=0"):
        open_reader(name, brokers=NOWHERE, group="test", split=0)


@pytest.mark.parametrize("name", ["packed", "connector"])
@pytest.mark.parametrize("headers", [True, False])
def test_no_ranges_are_an_empty_frame_with_all_columns(name: str, headers: bool, spark: SparkSession) -> None:  # noqa: FBT001 - pytest passes it by name
    frame = open_reader(name, brokers=NOWHERE, group="test", headers=headers).read(spark, [])
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert frame.columns == columns + ["headers"] * headers
    assert frame.collect() == []


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_ranges_that_overlap_are_refused_before_anything_is_read(name: str, spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match="overlap"):
        open_reader(name, brokers=NOWHERE, group="test").read(
            spark, [OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 0, 4, 6)]
        )
