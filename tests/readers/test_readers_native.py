"""The compiled reader: what only it can give, when it is taken, and that both readers give the same."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import check_options
from offsetkeeper.readers import Source, open_reader
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.packed import PackedReader
from offsetkeeper.testing.kafka import KafkaServer
from readers.test_readers_exact import check_sizes
from readers.test_readers_headers import produce

pytestmark = pytest.mark.skipif(find_spec("offsetkeeper_native") is None, reason="no C compiler made it")
MakeTopic = Callable[..., str]
Fill = Callable[..., None]
COMPILED, PYTHON, ANY = ({"offsetkeeper.native": value} for value in ("required", "never", "auto"))


def source(server: KafkaServer, options: dict[str, str], **more: Any) -> Source:
    """Return a source that reads by one of the two readers."""
    return Source(server.bootstrap, options, "offsetkeeper-test", "read_committed", **more)


def rows(given: Source, wanted: list[tuple[str, int, int, int]]) -> list[dict[str, Any]]:
    """Return what a task reads; each batch is looked through."""
    found: list[dict[str, Any]] = []
    for batch in read(given, wanted):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def test_text_that_is_not_utf_8_becomes_what_java_makes_of_it(spark: SparkSession) -> None:
    """Half a surrogate pair is one wrong character to Java, and three to Python."""
    from offsetkeeper_native import text  # noqa: PLC0415 - it may not be there

    chance = Random(1)  # noqa: S311 - no secret
    java: Any = spark._jvm.java.lang.String  # type: ignore[union-attr]
    pieces = [b"a", b"\0", b"\xc3\xa9", b"\xed\xa0", b"\xed\xa0\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80"]
    pieces += [b"\xff", b"\xc0\xaf", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80", b"\x80", b"\xed\xbf\xbf"]
    for number in range(500):
        raw = b"".join(chance.choices(pieces, k=chance.randint(0, 6)))
        raw += chance.randbytes(chance.randint(0, 4)) if number % 2 else b""
        assert text(raw) == java(bytearray(raw), "UTF-8")


def test_keys_of_headers_that_the_client_library_does_not_give_come_as_from_spark(
    spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    orders = topic(partitions=1)
    produce(kafka_server, orders, [b"\xff", b"\xfe"], [b"a\0bc"], [b"", b"\xed\xa0\x80", b"plain"])
    found = []
    for name, options in (("packed", COMPILED), ("connector", {})):
        reader = open_reader(name, KafkaCluster(kafka_server.bootstrap, options), group="test", headers=True)
        some = reader.read(spark, [OffsetRange(orders, 0, 0, 3)]).select("offset", "headers").collect()
        found.append({row.offset: [(h.key, bytes(h.value)) for h in row.headers] for row in some})
    assert found[0] == found[1]
    assert [key for key, _ in found[0][1]] == ["a\0bc"]


@pytest.mark.parametrize("limits", [(10_000, 8 * 2**20), (7, 8 * 2**20), (10_000, 1000), (10_000, 1)])
def test_both_readers_give_the_same_rows_in_batches_that_are_not_too_large(
    limits: tuple[int, int], kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    orders = topic(partitions=3)
    chance = Random(2)  # noqa: S311 - no secret
    with Producer({"bootstrap.servers": kafka_server.bootstrap, "linger.ms": 5}) as producer:
        for _ in range(600):
            size = chance.choice([0, 1, 30, 500, 5000])
            value, key = chance.choice([None, chance.randbytes(size)]), chance.choice([None, b"", b"key"])
            pairs = [(chance.choice(["", "a", "ключ"]), chance.choice([None, b"", b"v"])) for _ in range(size % 4)]
            producer.produce(orders, value, key, partition=chance.randrange(3), headers=pairs or None)  # type: ignore[arg-type]
        assert producer.flush(60) == 0
    wanted = [(orders, 0, 3, 90), (orders, 0, 100, 150), (orders, 1, 0, 120), (orders, 2, 17, 18)]
    found = []
    for options in (COMPILED, PYTHON):
        some = source(kafka_server, options, headers=True, batch_rows=limits[0], batch_bytes=limits[1])
        batches: list[Any] = [*read(some, wanted)]
        check_sizes(batches, *limits)
        found.append([row for batch in batches for row in batch.to_pylist()])
    assert found[0] == found[1]
    assert len(found[0]) == 87 + 50 + 120 + 1


def test_the_log_says_which_reader_reads_and_why(
    kafka_server: KafkaServer,
    topic: MakeTopic,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import offsetkeeper_native  # noqa: PLC0415 - it may not be there

    orders = topic()
    fill(kafka_server, orders, 3)
    caplog.set_level(logging.INFO, "offsetkeeper.readers")

    def said(options: dict[str, str]) -> tuple[str, str]:
        caplog.clear()
        assert len(rows(source(kafka_server, options), [(orders, 0, 0, 3)])) == 3
        [record] = [each for each in caplog.records if each.name == "offsetkeeper.readers"]
        return record.levelname, record.getMessage()

    assert said(ANY) == ("INFO", f"the compiled reader reads: offsetkeeper-native {offsetkeeper_native.__version__}")
    assert said(PYTHON)[0] == "INFO"
    assert said({}) == said(ANY)
    with monkeypatch.context() as other:
        other.setattr(offsetkeeper_native, "NEWEST", (2, 5))
        offsetkeeper_native.library.cache_clear()
        level, text = said(ANY)
        assert level == "WARNING"
        assert "the reader in Python reads: offsetkeeper-native cannot be used: librdkafka is 2." in text
        with pytest.raises(MissingExtra, match=r"it was tried with 2\.6 to 2\.5"):
            rows(source(kafka_server, COMPILED), [(orders, 0, 0, 3)])
    offsetkeeper_native.library.cache_clear()
    with monkeypatch.context() as other:
        other.setattr(offsetkeeper_native, "INTERFACE", 0)
        assert said(ANY)[0] == "WARNING"
    monkeypatch.setitem(sys.modules, "offsetkeeper_native", None)
    assert said(ANY)[0] == "INFO"
    with pytest.raises(MissingExtra, match="Install offsetkeeper-native for the Python of every executor"):
        rows(source(kafka_server, COMPILED), [(orders, 0, 0, 3)])


def test_workers_are_asked_for_it_where_it_is_required() -> None:
    asked = [PackedReader(Source("h:1", each, "test", "read_committed")).worker_modules for each in (COMPILED, ANY)]
    assert asked == [("confluent_kafka", "offsetkeeper_native", "pyarrow"), ("confluent_kafka", "pyarrow")]


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"offsetkeeper\.native is wrong: write one of auto, never, required"):
        check_options({"offsetkeeper.native": "yes"})
    tokens = {"offsetkeeper.token.provider": "a.b:c", "sasl.mechanism": "OAUTHBEARER", "security.protocol": "sasl_ssl"}
    with pytest.raises(SettingsError, match="exclude each other"):
        check_options(COMPILED | tokens)
