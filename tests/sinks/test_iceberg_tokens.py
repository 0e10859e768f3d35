"""A catalog of REST whose tokens and keys of S3 expire while a run goes on."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fixtures.oauth_catalog import CLIENT, CLIENT_SECRET, OAuthCatalog, oauth_catalog, properties_of
from fixtures.s3_gate import s3_gate
from offsetkeeper.errors import OffsetkeeperError, Refused, SinkError
from offsetkeeper.sinks.blame import Blame, blame
from offsetkeeper.sinks.iceberg import catalog
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.iceberg import IcebergServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server
from sinks.icebergs import Lake

SCHEMA = pa.schema([("id", pa.int64())])
WRONG = "wr0ng-s3cret"
BOTH = pytest.mark.parametrize("how", ["credential", "auth"])


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server that lets the token of a session pass: the gate before it looks at that."""
    with S3Server(settings={"s3proxy.ignore-unknown-headers": "true"}) as server:
        yield server


@pytest.fixture
def lake(iceberg_server: IcebergServer, server: S3Server) -> Lake:
    """A namespace with an empty table `orders` in a bucket, as its owner sees it, who needs no token."""
    bucket = server.create_bucket()
    keys = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": "us-east-1"}
    files = {**keys, "s3.endpoint": f"http://127.0.0.1:{server.port}"}
    owner = Lake(
        server.folder / "data" / bucket,
        {**iceberg_server.properties(), **files},
        f"shop-{secrets.token_hex(4)}",
    )
    with owner.catalog() as its:
        its.create_namespace(owner.namespace)
        its.create_table(f"{owner.namespace}.orders", SCHEMA, location=f"file://{owner.folder}/orders")
    return owner


@pytest.fixture
def gate(lake: Lake, iceberg_server: IcebergServer, server: S3Server) -> Iterator[OAuthCatalog]:
    """The catalog, and the bucket, as the program that writes must ask for them."""
    bucket = lake.folder.name
    allowed = [("s3:ListBucket", bucket), ("s3:GetObject", f"{bucket}/*"), ("s3:PutObject", f"{bucket}/*")]
    with s3_gate(server.port, allowed, sessions=True) as port:
        keys = {name: value for name, value in lake.properties.items() if name.startswith("s3.")}
        lent = {**keys, "s3.endpoint": f"http://127.0.0.1:{port}"}
        folders = (f"s3://{bucket}/", f"file://{lake.folder}/")
        with oauth_catalog(iceberg_server.port, lent, folders) as gate:
            yield gate


def once(lake: Lake, properties: dict[str, str], **settings: object) -> Once:
    """Return how a sink with these properties writes the table."""
    return Once(lake._replace(properties=properties).lander("orders", **settings), "")


@pytest.mark.parametrize(
    ("how", "expired", "mode"), [("credential", 401, "append"), ("credential", 419, "upsert"), ("auth", 401, "append")]
)
def test_a_run_outlives_its_tokens_and_its_keys(
    spark: SparkSession, lake: Lake, gate: OAuthCatalog, how: str, expired: int, mode: str
) -> None:
    """Though the server of tokens refuses a request with one that has expired."""
    gate.expired, gate.keys_last = expired, 60 if mode == "append" else 150
    to = once(lake, properties_of(gate, how), mode=mode, key=["id"] if mode == "upsert" else ())
    for number in range(1, 9):
        to.write(spark.range(number, number + 2), batch_of(number))
    landed = (
        [(n,) for n in range(1, 10)] if mode == "upsert" else sorted([(n + m,) for n in range(1, 9) for m in (0, 1)])
    )
    assert lake.rows("orders") == landed
    assert gate.refused > 5
    assert len(gate.issued) > 5
    assert len(gate.sessions) > 20


def test_keys_that_expire_while_rows_are_staged_or_land_cost_another_try(
    spark: SparkSession, lake: Lake, gate: OAuthCatalog
) -> None:
    to = once(lake, properties_of(gate, "credential"))
    to.write(spark.range(2), batch_of(1))
    for keys_last in (0, 1):
        gate.keys_last = keys_last
        with pytest.raises(SinkError, match="table was not changed") as raised:
            to.write(spark.range(2, 4), batch_of(2))
        assert blame(raised.value) is Blame.AWAY
        assert_no_secret(raised.value, gate)
    gate.keys_last = 1000
    with pytest.raises(SinkError, match="nothing was written") as raised:
        to.write(spark.range(2, 4), batch_of(2), check=lambda: setattr(gate, "keys_last", 1))
    assert blame(raised.value) is Blame.AWAY
    gate.keys_last = 1000
    to.write(spark.range(2, 4), batch_of(2))
    assert lake.rows("orders") == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("expired", [401, 419])
def test_a_token_that_nothing_renews_ends_in_words(lake: Lake, gate: OAuthCatalog, expired: int) -> None:
    gate.expired = expired
    to = once(lake, {"uri": gate.uri, "token": gate.issue()})
    to.seen("billing")
    with pytest.raises(Refused, match="set `credential` in place of `token`") as raised:
        to.seen("billing")
    assert blame(raised.value) is Blame.REFUSES
    assert_no_secret(raised.value, gate)


@BOTH
def test_a_secret_that_the_server_of_tokens_quotes_is_left_out(lake: Lake, gate: OAuthCatalog, how: str) -> None:
    with pytest.raises(Refused, match=r"invalid_client|401 Client Error") as raised:
        once(lake, properties_of(gate, how, WRONG))
    assert WRONG not in "".join(traceback.format_exception(raised.value))


@BOTH
def test_a_server_of_tokens_that_never_answers_is_waited_for_until_the_time_limit(
    lake: Lake, gate: OAuthCatalog, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the first one."""
    monkeypatch.setattr(catalog, "_REQUEST_S", 1.0)
    with TcpProxy("127.0.0.1", gate.server_port) as proxy:
        proxy.hold()
        with pytest.raises(SinkError, match="timed out"):
            once(lake, properties_of(gate, how, uri=f"http://{proxy.address}"))


def assert_no_secret(error: OffsetkeeperError, gate: OAuthCatalog) -> None:
    """Check that an error, with all that it comes from, shows no secret."""
    shown = "".join(traceback.format_exception(error))
    hidden = [SECRET, CLIENT_SECRET, f"{CLIENT}:", *gate.issued, *gate.sessions]
    assert [each for each in hidden if each in shown] == []
