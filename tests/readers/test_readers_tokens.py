"""Tokens reach both readers' clients: from an endpoint, or from a function of the user's, which Java cannot call."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from fixtures.certificates import Certificates
from fixtures.guarded import BEARER, Guarded, oidc_options, provider_options
from fixtures.tls_gate import TlsGate
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import SettingsError, TokenUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import open_reader, reading_error

pytestmark = pytest.mark.xdist_group("test_readers_security")  # the same broker
Fill = Callable[..., None]
PROVIDER = Path(__file__).parents[1] / "fixtures" / "token_provider.py"


@pytest.fixture
def receipts(guarded: Guarded, fill: Fill) -> str:
    """A topic of five records."""
    if "receipts" not in guarded.server.topics():
        guarded.server.create_topic("receipts")
        fill(guarded.server, "receipts", 5)
    return "receipts"


@pytest.mark.parametrize(
    ("name", "more"), [("packed", {}), ("packed", {"offsetkeeper.native": "never"}), ("connector", {})]
)
def test_tokens_come_from_an_endpoint(
    name: str, more: dict[str, str], guarded: Guarded, token_endpoint: str, receipts: str, spark: SparkSession
) -> None:
    options = {**oidc_options(token_endpoint), **more}
    reader = open_reader(name, KafkaCluster(guarded.tokens, options), group="test", stall_s=20)
    frame = reader.read(spark, [OffsetRange(receipts, 0, 1, 5)])
    assert [row.offset for row in frame.select("offset").collect()] == [1, 2, 3, 4]


@pytest.mark.parametrize("form", ["location", "pem"])
def test_the_connector_too_knows_an_endpoint_by_the_authorities_of_its_own(
    form: str, guarded: Guarded, token_endpoint: str, receipts: str, spark: SparkSession, certificates: Certificates
) -> None:
    """The driver asks for a token when the frame is made, Java when the frame is read."""
    authority = str(certificates.ca) if form == "location" else certificates.ca.read_text()
    with TlsGate(certificates.right, urlsplit(token_endpoint).port or 0) as gate:
        options = oidc_options(f"https://127.0.0.1:{gate.port}/token") | {f"https.ca.{form}": authority}
        reader = open_reader("connector", KafkaCluster(guarded.tokens, options), group="test", stall_s=20)
        frame = reader.read(spark, [OffsetRange(receipts, 0, 1, 5)]).select("offset")
        assert [row.offset for row in frame.collect()] == [1, 2, 3, 4]


def test_a_provider_is_called_on_the_executor_and_what_it_raises_is_told_without_its_text(
    guarded: Guarded, receipts: str, spark: SparkSession, tmp_path: Path
) -> None:
    spark.sparkContext.addPyFile(str(PROVIDER))
    options = provider_options(tmp_path / "calls")
    reader = open_reader("packed", KafkaCluster(guarded.tokens, options), group="test", stall_s=20)
    frame = reader.read(spark, [OffsetRange(receipts, 0, 1, 5)], {}).select("offset")
    assert [row.offset for row in frame.collect()] == [1, 2, 3, 4]
    (tmp_path / "calls.broken").touch()
    with pytest.raises(Exception, match="TokenUnavailable") as raised:
        frame.collect()
    error = reading_error(raised.value)
    assert isinstance(error, TokenUnavailable)
    assert "token_provider:token raised RuntimeError in token, line " in str(error)
    assert "correct-horse-battery" not in str(raised.value)


def test_the_connector_says_why_it_takes_no_provider_and_takes_java_s_own(tmp_path: Path) -> None:
    options = provider_options(tmp_path / "calls")
    with pytest.raises(SettingsError, match=r"is Java, and cannot call the token provider token_provider:token: use"):
        open_reader("connector", KafkaCluster("localhost:9092", options), group="test")
    with pytest.raises(SettingsError, match=r"needs sasl\.oauthbearer\.method=oidc for Spark's own Kafka connector"):
        open_reader("connector", KafkaCluster("localhost:9092", BEARER), group="test")
    given = {"offsetkeeper.java.sasl.login.callback.handler.class": "com.example.Login"}
    assert open_reader("connector", KafkaCluster("localhost:9092", options | given), group="test")
