"""Security settings reach both readers' clients, and secrets show up nowhere."""

import logging
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fixtures.guarded import PASSWORD, Guarded, options
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import NotAuthorized, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.trusted import refuse_code
from offsetkeeper.readers import Reader, open_reader, reading_error

MakeTopic = Callable[..., str]
Fill = Callable[..., None]

PEM_KEY = "mock-key-of-a-client-0123456789"
WRONG = "staple-of-the-wrong-kind"
PYTHON = {"offsetkeeper.native": "never"}


@pytest.fixture
def orders(guarded: Guarded, fill: Fill) -> str:
    """A topic of five records that `shop` may read."""
    if "orders" not in guarded.server.topics():
        guarded.server.create_topic("orders")
        guarded.allow("orders", "READ")
        fill(guarded.server, "orders", 5)
    return "orders"


def reader_of(name: str, guarded: Guarded, password: str = PASSWORD) -> Reader:
    """Return a reader for `shop`; `python` is the packed one, not compiled."""
    given = {**options(password), **(PYTHON if name == "python" else {})}
    kind = "packed" if name == "python" else name
    return open_reader(kind, KafkaCluster(guarded.brokers, given), group="test", stall_s=20)


@pytest.mark.parametrize("name", ["packed", "python", "connector"])
def test_a_user_reads_with_a_password_and_without_permission_for_any_group(
    name: str, guarded: Guarded, orders: str, spark: SparkSession
) -> None:
    frame = reader_of(name, guarded).read(spark, [OffsetRange(orders, 0, 1, 5)])
    assert [row.offset for row in frame.select("offset").collect()] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_plans_and_representations_show_no_secret(
    name: str, guarded: Guarded, orders: str, spark: SparkSession
) -> None:
    reader = reader_of(name, guarded)
    frame = reader.read(spark, [OffsetRange(orders, 0, 1, 5)])
    shown = StringIO()
    with redirect_stdout(shown):
        frame.explain("extended")
        frame.explain("formatted")
    assert orders in shown.getvalue() or name == "packed"
    assert PASSWORD not in f"{shown.getvalue()} {reader!r} {frame!r} {vars(frame)}"


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_logs_of_everything_at_debug_show_no_secret(
    name: str, guarded: Guarded, orders: str, spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As text, and in the base 64 in which py4j sends code. Those of the JVM are of Spark's Kafka connector."""
    caplog.set_level(logging.DEBUG)
    key = {"ssl.key.pem": PEM_KEY, "ssl.certificate.pem": "none"} if name == "connector" else {}
    with debug_log(spark, tmp_path / "jvm.log"):
        reader = open_reader(name, KafkaCluster(guarded.brokers, {**options(), **key}), group="test", stall_s=20)
        assert len(reader.read(spark, [OffsetRange(orders, 0, 1, 5)]).collect()) == 4
    jvm = (tmp_path / "jvm.log").read_text("utf-8")
    assert "Command to send" in caplog.text
    assert (name == "packed") or "KafkaOffsetReader" in jvm
    shown = f"{caplog.text} {jvm}"
    codes = [b64decode(code[: len(code) // 4 * 4]) for code in re.findall("[A-Za-z0-9+/]{40,}", shown)]
    for secret in (PASSWORD, PEM_KEY):
        assert secret not in shown
        assert not any(secret.encode() in code for code in codes)


def test_of_all_settings_of_the_java_client_a_text_gives_none_that_is_a_class(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    known = jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configDef().configKeys()
    classes = [name for name in known if str(known[name].type()) == "CLASS" or re.search("class|provider|jaas", name)]
    assert "key.deserializer" in classes
    for name in classes:
        with pytest.raises(SettingsError, match="can load code"):
            refuse_code({f"offsetkeeper.java.{name}": "X"}, "a text")


@contextmanager
def debug_log(spark: SparkSession, path: Path) -> Iterator[None]:
    """Write what Spark's Kafka connector logs at DEBUG to a file."""
    jvm: Any = spark.sparkContext._jvm
    core = jvm.org.apache.logging.log4j.core
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)  # noqa: FBT003 - Java's own
    layout = core.layout.PatternLayout.newBuilder().withPattern("%p %c %m%n").build()
    file = core.appender.FileAppender.newBuilder().setName(path.name).withFileName(str(path)).setLayout(layout).build()
    file.start()
    logger, name = context.getConfiguration().getRootLogger(), "org.apache.spark.sql.kafka010"
    logger.addAppender(file, None, None)
    core.config.Configurator.setLevel(name, jvm.org.apache.logging.log4j.Level.DEBUG)
    try:
        yield
    finally:
        core.config.Configurator.setLevel(name, jvm.org.apache.logging.log4j.Level.WARN)
        logger.removeAppender(path.name)
        file.stop()


@pytest.mark.parametrize("name", ["packed", "python"])
def test_a_task_with_a_wrong_password_says_so_without_showing_it(
    name: str,
    guarded: Guarded,
    orders: str,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    frame = reader_of(name, guarded, WRONG).read(spark, [OffsetRange(orders, 0, 1, 5)])
    with pytest.raises(Exception, match="NotAuthorized") as raised:
        frame.collect()
    error = reading_error(raised.value)
    assert isinstance(error, NotAuthorized)
    assert "Check the credentials" in str(error)
    assert WRONG not in f"{raised.value} {error} {caplog.text} {capfd.readouterr()}"


def test_a_cluster_with_a_wrong_password_says_so_without_showing_it(
    guarded: Guarded, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with KafkaCluster(guarded.brokers, options(WRONG)) as cluster, pytest.raises(NotAuthorized) as refused:
        cluster.bounds([TopicPartition(orders, 0)])
    assert WRONG not in f"{refused.value} {caplog.text}"


@pytest.mark.parametrize("name", ["packed", "python", "connector"])
def test_a_topic_that_the_user_may_not_read_is_named(
    name: str, guarded: Guarded, spark: SparkSession, fill: Fill
) -> None:
    payroll = f"payroll-{name}"
    guarded.server.create_topic(payroll)
    fill(guarded.server, payroll, 5)
    with pytest.raises(Exception, match=r"(?s).+") as raised:
        reader_of(name, guarded).read(spark, [OffsetRange(payroll, 0, 0, 5)]).collect()
    error = reading_error(raised.value)
    assert isinstance(error, NotAuthorized)
    assert payroll in str(error)


def test_an_option_that_only_the_packed_reader_takes_is_refused_by_the_other() -> None:
    given = {"enable.ssl.certificate.verification": "false"}
    with pytest.raises(SettingsError, match="reader='packed'"):
        open_reader("connector", KafkaCluster("localhost:9092", given), group="test")
    assert open_reader("packed", KafkaCluster("localhost:9092", given), group="test")
