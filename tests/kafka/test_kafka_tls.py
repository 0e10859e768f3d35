"""Kafka over TLS: what is wrong with a certificate, a key or a port is told, soon and in words; see docs/tls.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from engines.changed_files import Changed
from engines.lab import Lab
from fixtures.certificates import Certificates, Pair
from fixtures.guarded import PASSWORD as OIDC_SECRET
from fixtures.guarded import oidc_options
from fixtures.tls_gate import TlsGate
from offsetkeeper import Batch
from offsetkeeper.cli.main import app
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import BrokerUnavailable, NotAuthorized, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster, java_options
from offsetkeeper.readers import open_reader
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.source import Source
from offsetkeeper.sinks import Topic
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port
from sinks.topics import committed

SOON_S = 8.0
PASSWORD = "geheimwort"


def ssl(certificates: Certificates, **more: str) -> dict[str, str]:
    """Return the options of a client that knows the authority."""
    given = {name.replace("__", "."): value for name, value in more.items()}
    return {"security.protocol": "ssl", "ssl.ca.location": str(certificates.ca), **given}


def own(pair: Pair | None, *, text: bool = False) -> dict[str, str]:
    """Return the options with a certificate of the client's own, as text or as files."""
    files = {"certificate": pair.certificate, "key": pair.key} if pair else {}
    if text:
        return {f"ssl.{name}.pem": path.read_text() for name, path in files.items()}
    return {f"ssl.{name}.location": str(path) for name, path in files.items()}


class TlsBroker:
    """A broker with a listener for each certificate, and one that asks its clients for theirs."""

    def __init__(self, certificates: Certificates, folder: Any) -> None:
        right = certificates.right
        pairs = {"RIGHT": right, "EXPIRED": certificates.expired, "ELSEWHERE": certificates.elsewhere, "ASKING": right}
        self._ports = {name: free_port() for name in pairs}
        self.server = KafkaServer()
        plain, controller = f"127.0.0.1:{self.server.port}", f"127.0.0.1:{self.server.controller_port}"
        names = [f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()]
        listeners = ",".join([f"PLAINTEXT://{plain}", f"CONTROLLER://{controller}", *names])
        kinds = ",".join(["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *(f"{name}:SSL" for name in pairs)])
        self.server._settings |= {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": kinds,
        }
        for name, pair in pairs.items():
            keys = folder / f"{name}.pem"
            keys.write_text(pair.key.read_text() + pair.certificate.read_text())
            ours = f"listener.name.{name.lower()}.ssl."
            self.server._settings |= {f"{ours}keystore.type": "PEM", f"{ours}keystore.location": str(keys)}
        known = {"client.auth": "required", "truststore.type": "PEM", "truststore.location": str(certificates.ca)}
        self.server._settings |= {f"listener.name.asking.ssl.{name}": value for name, value in known.items()}

    def brokers(self, name: str) -> str:
        """Return the address of a listener."""
        return f"127.0.0.1:{self._ports[name]}"


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """The broker."""
    found = TlsBroker(certificates, tmp_path_factory.mktemp("kafka"))
    with found.server:
        yield found


def look(brokers: str, options: dict[str, str], timeout_s: float = 30.0) -> None:
    """Ask for the topics."""
    with KafkaCluster(brokers, options, timeout_s=timeout_s) as cluster:
        cluster.topic_names()


def store(brokers: str, options: dict[str, str]) -> None:
    """Load a group of the store in Kafka."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    with closing(open_store(f"kafka://{brokers}?{query}")) as opened:
        opened.load("g")


def topic(brokers: str, options: dict[str, str]) -> None:
    """Prepare an output."""
    Topic(brokers, "t", kafka=options).prepare(open_store("memory:"), Guarantee.EXACTLY_ONCE)


def command(brokers: str, options: dict[str, str]) -> None:
    """Ask how far a group is."""
    words = [word for name, value in options.items() for word in ("--kafka", f"{name}={value}")]
    result = CliRunner().invoke(app, ["lag", "g", "--store", "memory:", "--topic", "t", "--brokers", brokers, *words])
    assert isinstance(result.exception, Exception)
    raise result.exception


def records(brokers: str, options: dict[str, str]) -> None:
    """Read as a task on an executor does."""
    source = Source(brokers, options, "g", "read_committed", stall_s=30)
    list(read(source, [("t", 0, 0, 1)]))


def values(frame: DataFrame, _: Batch) -> DataFrame:
    """Return what goes on."""
    return frame.select("value")


def connector(brokers: str, options: dict[str, str]) -> None:
    """Read by Spark's own connector; what is wrong is told before Spark is asked."""
    reader = open_reader("connector", KafkaCluster(brokers, options), group="g")
    reader.read(cast("SparkSession", None), [OffsetRange("t", 0, 0, 1)])


@pytest.mark.parametrize("ask", [look, store, records])
def test_each_wrong_certificate_has_its_message_at_once(
    broker: TlsBroker, certificates: Certificates, ask: Callable[[str, dict[str, str]], None]
) -> None:
    foreign = ssl(certificates, ssl__ca__location=str(certificates.foreign))
    for listener, options, told in (
        ("EXPIRED", ssl(certificates), "expired on 20"),
        ("ELSEWHERE", ssl(certificates), "is for the host elsewhere.example, 192.0.2.7, not 127.0.0.1"),
        ("RIGHT", foreign, "is signed by no CA that ssl.ca.location has"),
    ):
        began = time.monotonic()
        with pytest.raises((NotAuthorized, Refused), match=f"the certificate of {broker.brokers(listener)} {told}"):
            ask(broker.brokers(listener), options)
        assert time.monotonic() - began < SOON_S


def test_one_broker_of_several_with_a_wrong_certificate_ends_nothing(
    broker: TlsBroker, certificates: Certificates
) -> None:
    """As while certificates are renewed: the others serve."""
    for _ in range(5):
        look(f"{broker.brokers('EXPIRED')},{broker.brokers('RIGHT')}", ssl(certificates))
    with pytest.raises(NotAuthorized, match=r"the certificate of .* (expired on|is for the host)"):
        look(f"{broker.brokers('EXPIRED')},{broker.brokers('ELSEWHERE')}", ssl(certificates))


def test_the_right_certificate_connects_and_so_does_any_where_the_user_writes_so(
    broker: TlsBroker, certificates: Certificates
) -> None:
    look(broker.brokers("RIGHT"), ssl(certificates))
    look(broker.brokers("ELSEWHERE"), ssl(certificates, ssl__endpoint__identification__algorithm="none"))
    look(broker.brokers("EXPIRED"), {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})


def test_a_port_that_speaks_the_other_way_is_named(broker: TlsBroker, certificates: Certificates) -> None:
    with pytest.raises(BrokerUnavailable, match=f"{broker.brokers('RIGHT')} speaks TLS: set security.protocol to ssl"):
        look(broker.brokers("RIGHT"), {}, timeout_s=2)
    with pytest.raises(BrokerUnavailable, match="connecting to a PLAINTEXT broker listener"):
        look(broker.server.bootstrap, ssl(certificates), timeout_s=2)


@pytest.mark.parametrize("form", ["location", "pem"])
@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "its password as ssl.key.password"), ({"ssl.key.password": "wr0ngwort"}, "is not the password")],
)
def test_a_key_without_its_password_is_told(
    certificates: Certificates, form: str, given: dict[str, str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key, pair = certificates.encrypted(certificates.client, PASSWORD), certificates.client
    files = {"ssl.certificate": pair.certificate, "ssl.key": key}
    named = {f"{name}.{form}": path.read_text() if form == "pem" else str(path) for name, path in files.items()}
    with pytest.raises(SettingsError, match=told) as refused:
        look("127.0.0.1:1", ssl(certificates, **named, **given))
    assert "wr0ngwort" not in str(refused.value) + "".join(capfd.readouterr())
    look_at = ssl(certificates, **named, **{"ssl.key.password": PASSWORD})
    with TlsGate(certificates.right) as gate, pytest.raises(BrokerUnavailable):
        look(f"127.0.0.1:{gate.port}", look_at, timeout_s=1)


FILES = {
    "ssl.ca.location": "no certificate",
    "ssl.certificate.location": "no certificate",
    "ssl.key.location": "no key",
    "ssl.crl.location": "",
}


@pytest.mark.parametrize("ask", [look, store, records, topic, command])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_or_wrong_is_named_at_once(
    certificates: Certificates, name: str, ask: Callable[[str, dict[str, str]], None]
) -> None:
    mine, wrong = certificates.client, certificates.folder / "wrong.pem"
    wrong.write_text("")
    files = {"ssl.certificate.location": str(mine.certificate), "ssl.key.location": str(mine.key)}
    with pytest.raises(SettingsError, match=f"{name}=/nowhere cannot be read on .*: No such file"):
        ask("127.0.0.1:1", ssl(certificates, **files | {name: "/nowhere"}))
    if FILES[name]:
        with pytest.raises(SettingsError, match=f"{name}={wrong} has {FILES[name]} in PEM on "):
            ask("127.0.0.1:1", ssl(certificates, **files | {name: str(wrong)}))


def test_a_certificate_and_a_key_that_are_not_of_one_client_are_refused(certificates: Certificates) -> None:
    mine = {"ssl.certificate.location": str(certificates.client.certificate)}
    key = {"ssl.key.location": str(certificates.right.key)}
    for given, told in (
        (mine | key, f"the key in {certificates.right.key} is not that of ssl.certificate.location="),
        (mine, "ssl.certificate.location is given and no key: give it as ssl.key.location"),
        (key, "ssl.key.location is given and no certificate: give it as ssl.certificate.location"),
    ):
        with pytest.raises(SettingsError, match=told):
            look("127.0.0.1:1", ssl(certificates, **given))


def test_the_certificate_of_a_token_endpoint_is_checked(certificates: Certificates, token_endpoint: str) -> None:
    """Nothing switches that off. With a token, the client goes on to the broker, which is away."""
    unchecked = {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "none"}
    for pair, ca, error, told in (
        (certificates.expired, certificates.ca, NotAuthorized, "certificate has expired"),
        (certificates.elsewhere, certificates.ca, NotAuthorized, "no alternative certificate subject name matches"),
        (certificates.right, certificates.foreign, NotAuthorized, "unable to get local issuer certificate"),
        (certificates.right, certificates.ca, BrokerUnavailable, "Connection refused"),
    ):
        with TlsGate(pair, urlsplit(token_endpoint).port or 0) as gate:
            options = oidc_options(f"https://127.0.0.1:{gate.port}/token") | {"https.ca.location": str(ca)}
            with pytest.raises(error, match=told) as refused:
                look("127.0.0.1:1", options | unchecked, timeout_s=2)
        assert OIDC_SECRET not in str(refused.value)


def test_a_broker_that_does_not_accept_the_certificate_of_the_client_says_why_at_once(
    certificates: Certificates,
) -> None:
    for pair, told in (
        (None, "certificate required"),
        (certificates.stranger, "unknown ca"),
        (certificates.expired, "certificate expired"),
    ):
        with TlsGate(certificates.right, clients=certificates.ca) as gate:
            began = time.monotonic()
            refusal = f"the certificate of the client is not accepted by 127.0.0.1:{gate.port}: {told}"
            with pytest.raises((NotAuthorized, Refused), match=refusal):
                look(f"127.0.0.1:{gate.port}", ssl(certificates, **own(pair)))
            assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_group_lives_where_the_broker_asks_for_certificates(
    reader: str, broker: TlsBroker, certificates: Certificates, spark: SparkSession
) -> None:
    """Its store, reader and output, and the command."""
    there, options = broker.brokers("ASKING"), ssl(certificates, **own(certificates.client))
    reads = ssl(certificates, **own(certificates.client, text=True)) if reader == "connector" else options
    source, target, group = f"from-{reader}", f"to-{reader}", f"with-{reader}"
    for name in (source, target):
        broker.server.create_topic(name)
    store = f"kafka://{there}?{urlencode(options)}"
    lab = Lab(spark, broker.server, store)
    lab.produce(source, "a", "b", "c")
    pipeline = lab.pipeline(source, brokers=there, group=group, kafka=reads, reader=reader)
    output = Topic(there, target, kafka=options)
    summary = pipeline.run(spark, values, sink=output, guarantee="exactly_once", until="caught_up")
    assert summary.ended == "caught_up"
    assert [each.value for each in committed(broker.server.bootstrap, target)] == [b"a", b"b", b"c"]
    words = [word for name, value in options.items() for word in ("--kafka", f"{name}={value}")]
    shown = CliRunner().invoke(app, ["lag", group, "--store", store, "--brokers", there, *words])
    assert shown.exit_code == 0, shown.output
    assert source in shown.output


@pytest.mark.parametrize("ask", [look, store, records, topic, command, connector])
def test_a_broker_of_kafka_that_does_not_accept_it_is_told_by_each_client(
    broker: TlsBroker, certificates: Certificates, ask: Callable[[str, dict[str, str]], None]
) -> None:
    """Whatever is wrong with it, Java says one of these."""
    there = broker.brokers("ASKING")
    told = f"the certificate of the client is not accepted by {there}: (bad certificate|certificate unknown)"
    for pair in (None, certificates.stranger):
        began = time.monotonic()
        with pytest.raises((NotAuthorized, Refused), match=told):
            ask(there, ssl(certificates, **own(pair, text=ask is connector)))
        assert time.monotonic() - began < SOON_S


def test_a_certificate_that_the_task_of_a_topic_does_not_accept_is_told(
    broker: TlsBroker, certificates: Certificates, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(certificates.ca.read_bytes())
    for name in ("source", "target"):
        broker.server.create_topic(name)
    options = ssl(certificates, ssl__ca__location=str(file))
    sink = Topic(broker.brokers("RIGHT"), "target", kafka=options, timeout_s=120)
    lab = Lab(spark, broker.server, f"sqlite:///{tmp_path}/offsets.db")
    output = Changed(
        sink, "ssl.ca.location", file, ("value",), lambda: len(committed(broker.server.bootstrap, "target"))
    )
    output.check(lab, "source", certificates.foreign)


def test_a_key_that_the_connector_cannot_read_is_told_before_java_is_asked(certificates: Certificates) -> None:
    """Java has no factory for keys that are encrypted as openssl does by default."""
    key = certificates.encrypted(certificates.client, PASSWORD).read_text()
    for options, told in (
        ({"ssl.key.pem": key}, "give its password as ssl.key.password"),
        ({"ssl.key.pem": key, "ssl.key.password": PASSWORD}, "PBES2.*reader='packed'"),
        ({"ssl.key.pem": "-----BEGIN EC PRIVATE KEY-----\nAA==\n"}, "in PKCS#8 only"),
    ):
        with pytest.raises(SettingsError, match=told) as refused:
            java_options(options)
        assert PASSWORD not in str(refused.value)
    plain = certificates.client.key.read_text()
    assert java_options({"ssl.key.pem": plain})["ssl.keystore.key"] == plain
    java_options({"ssl.key.pem": key, "offsetkeeper.java.ssl.keystore.key": plain})
