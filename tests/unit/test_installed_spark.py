"""The installed Spark and its Kafka connectors, told by files alone."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from offsetkeeper.operate.doctor.collect import installed_spark


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    return tmp_path


def test_the_spark_that_pip_installed_is_known_without_starting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = installed_spark({})
    assert found
    assert (found.version, found.connectors) == (importlib.metadata.version("pyspark"), ())


def test_no_spark_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert installed_spark({}) is None
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert installed_spark({}) is None


@pytest.mark.parametrize(
    "named",
    [
        {"spark.jars": "/x/other.jar, /opt/jars/spark-sql-kafka-0-10_2.13-4.0.1.jar"},
        {"spark.jars.packages": "a:b:1,org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1"},
    ],
)
def test_a_connector_is_a_jar_of_spark_or_one_that_a_setting_names(home: Path, named: dict[str, str]) -> None:
    found = installed_spark(named)
    assert found
    assert found.connectors == ("4.0.1",)
    (home / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    both = installed_spark(named)
    assert both
    assert both.connectors == ("4.0.1", "4.2.0")


def test_settings_come_from_the_defaults_and_from_the_caller(home: Path) -> None:
    lines = "# spark.x 0\nspark.kafka.consumer.cache.capacity   100\nspark.executor.instances=3\n\nspark.alone\n"
    (home / "conf" / "spark-defaults.conf").write_text(lines, "utf-8")
    found = installed_spark({"spark.executor.instances": "4"})
    assert found
    assert found.settings == {"spark.kafka.consumer.cache.capacity": "100", "spark.executor.instances": "4"}
