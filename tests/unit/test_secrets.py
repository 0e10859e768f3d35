"""What is shown of a wrong URL or setting: its scheme, and nothing else, wherever it comes out."""

from __future__ import annotations

import json
import traceback
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from offsetkeeper import Pipeline, Policies
from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.cli import options
from offsetkeeper.cli.main import app, main
from offsetkeeper.core.urls import redacted, scheme_of, secrets_of, shown_location, url_error
from offsetkeeper.engines.checkpoint_guard import CheckpointGuard
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.engines.settings import QueryRun
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import open_client, redact
from offsetkeeper.operate.doctor.facts import SparkFacts
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, Table
from offsetkeeper.stores import SCHEMES, open_store

KEY, SECRET = "KEYKEY", "T0psecret"


def shown(call: Callable[[], object]) -> str:
    """Return all that is shown of the error which a call must raise, its causes too, but not the call's own line."""
    with pytest.raises((Refused, SettingsError)) as caught:
        call()
    told: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        told += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = "".join(traceback.format_exception_only(caught.value))
    return "\n".join(told) + lines


@pytest.mark.parametrize("scheme", [*SCHEMES, "cassandra", "hdfs"])
@pytest.mark.parametrize(
    "rest",
    [
        f":/{KEY}:{SECRET}@bucket",
        f":{KEY}:{SECRET}@bucket",
        f":///{KEY}:{SECRET}@bucket/x",
        f":////{KEY}:{SECRET}@bucket/x",
        f"://///{KEY}:{SECRET}@bucket/x",
        f"://{KEY}:[{SECRET}]@bucket/x",
        f"://[{KEY}:{SECRET}@bucket/x",
        f"://{KEY}:{SECRET}",
        f"://{KEY}%3A{SECRET}%40bucket/x",
        f"://{KEY}:1/{SECRET}@bucket/x",
        f"://u:{SECRET}%e4@host/x",
        f"://host:99999{SECRET}/x",
        f"://u:p\n{SECRET}@host/x",
    ],
)
def test_a_url_that_is_not_clear_shows_its_scheme_alone(scheme: str, rest: str) -> None:
    url = scheme + rest
    openers: list[Callable[[str], object]] = [open_store, open_files]
    for call in openers:
        told = shown(lambda call=call: call(url))  # type: ignore[misc]  # bound now
        assert SECRET not in told
        assert KEY not in told


@pytest.mark.parametrize("url", ["file", "sqlite"])
def test_a_path_with_an_at_is_a_path(url: str, tmp_path: Path) -> None:
    assert open_store(f"{url}:///{tmp_path}/me@home/x").address.endswith("me@home/x")


@pytest.mark.parametrize(
    "call",
    [
        lambda url: Table(url, "t"),
        lambda url: Cassandra(url, "k.t", key=("a",)),
        Files,
        DeltaTable,
        lambda url: Pipeline(group="g", topics=["t"], brokers="h:9092", store=url),
        lambda url: Pipeline(group="g", topics=["t"], brokers=url, store="memory://"),
        KafkaCluster,
    ],
)
@pytest.mark.parametrize("slashes", ["", "/", "//", "///"])
def test_sinks_and_pipelines_show_the_scheme_alone(call: Callable[[str], object], slashes: str) -> None:
    told = shown(lambda: call(f"s3:{slashes}{KEY}:{SECRET}@@bucket"))
    assert SECRET not in told
    assert KEY not in told


@pytest.mark.parametrize(
    "url",
    [
        f"sqlite:///x.db?timeout={SECRET}",
        f"sqlite:///x.db?{SECRET}",
        f"sqlite:///x.db?{SECRET}=1",
        f"sqlite:///x.db?table={SECRET}%25",
        f"sqlite:///x.db?history={SECRET}",
        "sqlite:///x.db?history=" + "7" * 5_000,
        f"postgresql://h/d?{SECRET}=1",
        f"redis://h/0?ssl_cert_reqs={SECRET}",
        f"redis://h/0?ttl={SECRET}",
        f"mysql://h/d?connect_timeout={SECRET}",
        f"kafka://h?topic={SECRET}!",
        f"kafka://h?group.{SECRET}=1",
        f"kafka://h?offsetkeeper.{SECRET}=1",
        f"kafka://h?offsetkeeper.rack.env={SECRET}!",
        f"kafka://h?offsetkeeper.token.provider={SECRET}!",
        f"kafka://h?message.max.bytes={SECRET}",
        f"zookeeper://h?auth={SECRET}",
        f"zookeeper://h?tls=true&ca=/{SECRET}",
        f"hbase://h?transport={SECRET}",
        f"cassandra://h?consistency={SECRET}",
        f"checkpoint:///x?{SECRET}=1",
    ],
)
def test_a_setting_that_is_wrong_is_not_shown(url: str) -> None:
    told = shown(lambda: Cassandra(url, "k.t", key=("a",)) if url.startswith("cassandra") else open_store(url))
    assert SECRET not in told
    assert "7777" not in told


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://127.0.0.1:1/d?sslmode={SECRET}",
        f"kafka://127.0.0.1:1?security.protocol={SECRET}",
        f"kafka://127.0.0.1:1?{SECRET}=5",
        f"s3://bucket/x?endpoint_url={SECRET}",
        f"s3://bucket/x?profile={SECRET}",
        f"s3://bucket/x?region={SECRET}!",
    ],
)
def test_what_a_client_library_quotes_of_a_setting_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(url)
    told = shown(lambda: store.load("g"))
    store.close()
    assert SECRET not in told
    assert "://" in told


@pytest.mark.parametrize(
    "given",
    [f"sasl.password {SECRET}", SECRET, f"{SECRET}=", f"sasl.password:{SECRET}=", f"security.protocol={SECRET}"],
)
def test_an_option_of_the_command_that_is_wrong_is_not_shown(given: str) -> None:
    def call() -> None:
        chosen = options.settings("memory://", "127.0.0.1:1", [given])
        with options.open_cluster(chosen):
            pass

    assert SECRET not in shown(call)


@pytest.mark.parametrize(
    "toml",
    [
        f"store = ['{SECRET}']",
        f"store = {{a = '{SECRET}'}}",
        f"store = '{SECRET}",
        f"{SECRET}",
        f"{SECRET} = 1",
        f"{SECRET} = 1\n{SECRET} = 2",
        f"[{SECRET}]\n[{SECRET}]",
        f"brokers = ['{SECRET}']",
        f"topics = '{SECRET}'",
        f"kafka = '{SECRET}'",
        f"[kafka]\n'sasl.password' = ['{SECRET}']",
        f"[kafka]\n'sasl.password={SECRET}' = ['x']",
        f"[alerts]\nwebhook = ['{SECRET}']",
        f"[alerts]\n{SECRET} = 1",
        "store = " + "[" * 1_000 + "]" * 1_000,
        "store = " + "7" * 5_000,
        "store = {}",
    ],
)
def test_a_setting_in_a_file_that_is_wrong_is_not_shown(
    toml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsetkeeper.toml").write_text(toml, "utf-8")
    monkeypatch.chdir(tmp_path)
    told = shown(options.settings)
    assert SECRET not in told
    assert "offsetkeeper.toml" in told


def test_the_command_shows_no_part_of_a_wrong_url(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["offsetkeeper", "groups", "--json", "--store", f"s3:/{KEY}:{SECRET}@bucket"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("offsetkeeper: the s3:// URL is not clear")
    assert SECRET not in told.err
    assert told.err.count("\n") == 1


def test_copy_shows_no_part_of_a_wrong_target(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    arguments = ["copy", "g", "--store", f"sqlite:///{tmp_path}/x.db", "--to", f"kafka:/{KEY}:{SECRET}@h"]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, OffsetkeeperError)
    assert SECRET not in str(error)


def test_settings_show_no_secret_when_they_are_printed() -> None:
    chosen = options.Settings(f"mysql://u:{SECRET}@h/d", f"{SECRET}@h", {"sasl.password": SECRET}, (), {"w": SECRET})
    spark = SparkFacts(version="4", settings={"spark.hadoop.fs.s3a.secret.key": SECRET})
    for each in (chosen, spark):
        assert SECRET not in repr(each)


def test_the_parts_of_a_run_show_no_secret_when_they_are_printed() -> None:
    """As a debugger, a log of the locals, or a traceback with them prints each."""
    kafka = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": SECRET}
    url = f"postgresql://u:{SECRET}@h/d"
    cut: dict[str, Any] = {"dead_letters": Table(url, "letters"), "policies": Policies(poison="quarantine")}
    program = Pipeline(group="g", topics=["t"], brokers="h:1", store=url, kafka=kafka, **cut)
    nothing: Any = None  # no session
    loop = program._engine(nothing, None, Table(url, "t"), "at_least_once", None)
    query = QueryRun(loop.asked, f"s3a://{KEY}:{SECRET}@bucket/x", True, OnMismatch(), False)  # noqa: FBT003 - as they come
    batches = loop.batches
    for each in (
        *(program, loop.asked, loop, batches, batches.delivery, batches.delivery.outputs, batches.quarantine),
        *(query, CheckpointGuard(query, nothing, loop.ledger)),
    ):
        assert "'g'" in repr(each)
        assert SECRET not in repr(each)


@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        json.dumps,
        quote,
        lambda text: quote(text, safe=""),
        lambda text: b64encode(text.encode()).decode(),
        lambda text: b64encode(f"a:{text}".encode()).decode(),
        lambda text: b64encode(f"ab:{text} and more".encode()).decode(),
    ],
)
@pytest.mark.parametrize("secret", [SECRET, f"{SECRET} \"'\\\n/é€"])
def test_a_secret_is_taken_out_in_whichever_form_another_program_quotes_it(
    form: Callable[[str], str], secret: str
) -> None:
    """As an identity provider whose error page shows the request: in its header, id and secret are in base 64."""
    told = redact(form(secret), {"sasl.oauthbearer.client.secret": secret})
    assert "***" in told
    assert len(told.replace("***", "")) <= len(b64encode(b"ab: and more")) + 4  # what is around it


def test_only_what_looks_like_a_scheme_is_one() -> None:
    assert scheme_of("s3://x") == "s3://"
    assert scheme_of("s3:/x") == "s3://"
    assert scheme_of(f"user:{SECRET}") == ""
    assert scheme_of(f"{SECRET}:/x") == ""
    assert scheme_of(f"{SECRET.lower() * 3}:/x") == ""
    assert scheme_of(None) == ""
    assert str(url_error(f"user:{SECRET}@h", "is wrong")) == "the URL is wrong"


@pytest.mark.parametrize("call", [open_files, Files, DeltaTable])
def test_a_url_without_its_scheme_is_not_a_path(call: Callable[[str], object]) -> None:
    for location in (f"//{KEY}:{SECRET}@bucket/x", f"{KEY}:{SECRET}@bucket/x"):
        assert SECRET not in shown(lambda location=location: call(location))  # type: ignore[misc]  # bound now


def test_a_location_that_spark_opens_is_shown_without_its_keys() -> None:
    assert shown_location("/data/me@home") == "/data/me@home"
    assert shown_location(f"s3a://{KEY}:{SECRET}@bucket/x") == "s3a://bucket/x"
    assert shown_location(f"s3a:/{KEY}:{SECRET}@bucket/x") == "s3a://…"


@pytest.mark.parametrize("scheme", ["kafka", "redis", "mysql", "zookeeper", "cassandra"])
def test_a_port_that_cannot_be_one_is_not_shown(scheme: str) -> None:
    """`user:password` without a host looks so, where the password has digits alone."""
    url = f"{scheme}://user:70607"
    told = shown(lambda: Cassandra(url, "k.t", key=("a",)) if scheme == "cassandra" else open_store(url))
    assert "70607" not in told


@pytest.mark.parametrize(
    "value", ['{"client": "x", "private_key": "hunter2s3cr3t"}', f"s3cr3t{'x' * 2000}s3cr3t"], ids=["quotes", "long"]
)
@pytest.mark.parametrize("name", ["sasl.oauthbearer.method", "security.protocol", "transaction.timeout.ms"])
def test_a_wrong_value_of_librdkafka_is_not_shown_however_it_is_cut(name: str, value: str) -> None:
    """It may be in the wrong option."""
    with pytest.raises(SettingsError, match="librdkafka refuses") as found:
        open_client("Producer", "127.0.0.1:1", {name: value}, {})
    assert "s3cr3t" not in str(found.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("postgresql://user:s3cret@host/db", "password s3cret is wrong"),
        ("postgresql://user:s3@cret@host/db", "no host s3@cret"),
        ("postgresql://user:12%2Fcret@host/db", "password 12/cret is wrong"),
        ("redis://:s3cret@host:6379", "password s3cret is wrong"),
        ("jdbc:mysql://host/db?user=a&password=s3cret", "password s3cret is wrong"),
        ("redis://host:s3cret", "no port s3cret"),
    ],
)
def test_a_password_of_a_uri_is_taken_out_of_what_a_client_says(uri: str, said: str) -> None:
    shown = redacted(said, secrets_of({"url": uri}))
    assert "***" in shown
    assert "cret" not in shown
