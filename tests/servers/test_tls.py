"""TLS means verified: each client against each kind of wrong certificate, and what it says then. See docs/tls.md.

The server behind a right certificate is real, with a port for TLS in front of it. Behind a wrong one there is none: the
handshake fails before any byte of the protocol.
"""

from __future__ import annotations

import pickle
import re
import shutil
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
import pymysql
import pytest

from fixtures.certificates import ELSEWHERE, Certificates, Pair
from fixtures.tls_gate import TlsGate, after_postgresql_asks, at_once
from offsetkeeper.clients.mysql import read_url
from offsetkeeper.clients.postgresql import read_url as read_postgresql
from offsetkeeper.clients.postgresql_tls import check_files
from offsetkeeper.clients.tls import read_tls
from offsetkeeper.errors import Refused, SettingsError, SinkError, StoreUnavailable
from offsetkeeper.sinks.cassandra.url import read_place
from offsetkeeper.sinks.few import NONE
from offsetkeeper.sinks.mysql import task
from offsetkeeper.stores import open_store
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.s3 import S3Server
from stores.test_foreign_answers import Listener

QUICK_S = 5.0
PASSWORD = "geheimwort"


def _load(url: str) -> None:
    store = open_store(url)
    try:
        store.load("g")
    finally:
        store.close()


def _look(url: str) -> None:
    place, _ = read_place(url)
    with place.session() as session:
        assert session.execute("SELECT cluster_name FROM system.local").one()


class Client(NamedTuple):
    """A row of the table in docs/tls.md.

    Attributes:
        server: name of the fixture with the real server.
        url: makes the URL, with a question mark in it, from the server (None if there is none), host and port.
        ca: name of the setting with the authorities.
        unchecked: settings that switch all checks off, and those that switch off only that of the name; "" for none.
        own: names of the settings with a certificate of its own, its key and the key's password.
        begin: what is said before TLS begins.
        ask: connects.
        group: of tests on the same server.
    """

    server: str
    url: Callable[[Any, str, int], str]
    ca: str
    unchecked: tuple[str, str] = ("", "")
    own: tuple[str, str, str] = ("", "", "")
    begin: Callable[[Any], None] = at_once
    ask: Callable[[str], None] = _load
    group: str = ""


def _mysql(_: object, host: str, port: int) -> str:
    return f"mysql://root@{host}:{port}/shop?"


def _s3(server: S3Server | None, host: str, port: int) -> str:
    bucket = server.create_bucket() if server else "bucket"
    url = (server or S3Server()).url(bucket, port=port)
    return url.replace("http://127.0.0.1", f"https://{host}") + "&"


CLIENTS = {
    "mysql": Client(
        "mariadb_with_tls",
        _mysql,
        "ssl_ca",
        ("ssl_verify_cert=false", "ssl_verify_identity=false"),
        ("ssl_cert", "ssl_key", "ssl_key_password"),
        group="test_mysql",
    ),
    "postgresql": Client(
        "postgresql_server",
        lambda _, host, port: f"postgresql://postgres@{host}:{port}/postgres?",
        "sslrootcert",
        ("sslmode=require", "sslmode=verify-ca"),
        ("sslcert", "sslkey", "sslpassword"),
        after_postgresql_asks,
    ),
    "redis": Client(
        "redis_server",
        lambda _, host, port: f"rediss://{host}:{port}/0?",
        "ssl_ca_certs",
        ("ssl_cert_reqs=none", "ssl_check_hostname=false"),
        ("ssl_certfile", "ssl_keyfile", "ssl_password"),
        group="test_redis",
    ),
    "zookeeper": Client(
        "zookeeper_server",
        lambda _, host, port: f"zookeeper://{host}:{port}?tls=true&",
        "ca",
        own=("cert", "key", "key_password"),
        group="test_zookeeper",
    ),
    "s3": Client("s3_server", _s3, "ca_bundle", group="test_s3"),
    "webhdfs": Client(
        "hdfs_server",
        lambda _, host, port: f"swebhdfs://hdfs@{host}:{port}/store?",
        "ca_bundle",
        group="test_hdfs",
    ),
    "cassandra": Client(
        "cassandra_server",
        lambda _, host, port: f"cassandra://cassandra:cassandra@{host}:{port}/?ssl=true&",
        "ssl_ca",
        ("ssl_verify_cert=false", "ssl_verify_identity=false"),
        ("ssl_cert", "ssl_key", "ssl_key_password"),
        ask=_look,
        group="test_cassandra",
    ),
}
PARAMETERS = {
    name: pytest.param(client, id=name, marks=[pytest.mark.xdist_group(client.group)] if client.group else [])
    for name, client in CLIENTS.items()
}
EVERY = pytest.mark.parametrize("client", PARAMETERS.values())
WITH_OWN = pytest.mark.parametrize("client", [PARAMETERS[name] for name, each in CLIENTS.items() if each.own[0]])


class MariaDBWithTls:
    """A server that shows the certificate it is given. MySQL greets before TLS, so no gate can stand before it."""

    def __init__(self, certificates: Certificates, folder: Any) -> None:
        self._pair = Pair(folder / "certificate.pem", folder / "key.pem")
        self._copy(certificates.right)
        files = {
            "ssl-cert": str(self._pair.certificate),
            "ssl-key": str(self._pair.key),
            "ssl-ca": str(certificates.ca),
        }
        self.server = MariaDBServer(settings={"ssl": "1", **files}, fsync=False)

    def show(self, pair: Pair) -> None:
        """Show another certificate from now on."""
        self._copy(pair)
        self.run("FLUSH SSL")

    def run(self, *statements: str) -> None:
        """Run statements as root."""
        with pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", ssl_disabled=True) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def _copy(self, pair: Pair) -> None:
        for source, target in zip(pair, self._pair, strict=True):
            shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def mariadb_with_tls(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDBWithTls]:
    """The server, with an empty database `shop`, and a user who needs a certificate."""
    found = MariaDBWithTls(certificates, tmp_path_factory.mktemp("mariadb"))
    with found.server as server:
        server.create_database("shop")
        found.run("CREATE USER known REQUIRE X509", "GRANT ALL ON shop.* TO known")
        yield found


class Shown:
    """Makes a client's server show a certificate."""

    def __init__(self, request: pytest.FixtureRequest, client: Client) -> None:
        self._request, self._client = request, client

    @contextmanager
    def url(
        self,
        pair: Pair,
        *settings: str,
        real: bool = False,
        host: str = "127.0.0.1",
        clients: Path | None = None,
    ) -> Iterator[str]:
        """Yield the URL with which the server is reached; see `TlsGate` for the clients that it knows."""
        query, client = "&".join(filter(None, settings)), self._client
        always = real or client.server == "mariadb_with_tls"
        server = self._request.getfixturevalue(client.server) if always else None
        if isinstance(server, MariaDBWithTls):
            server.show(pair)
            url = client.url(server, host, server.server.port) + query
            yield url.replace("root@", "known@") if clients else url
            return
        with TlsGate(pair, server.port if server else 0, client.begin, clients) as gate:
            yield client.url(server, host, gate.port) + query

    def refusal(self, pair: Pair, *settings: str, clients: Path | None = None) -> str:
        """Return the message with which the certificate is refused, at once and for good."""
        with self.url(pair, *settings, clients=clients) as url:
            began = time.monotonic()
            with pytest.raises(Refused) as caught:
                self._client.ask(url)
            assert time.monotonic() - began < QUICK_S
            port = url.partition("127.0.0.1:")[2].partition("/")[0].partition("?")[0].partition("&")[0]
            assert f"127.0.0.1:{port}" in str(caught.value)
        assert "nothing was written" in str(caught.value)
        shown = "".join(traceback.format_exception(caught.value))
        assert "cassandra:cassandra" not in shown
        return str(caught.value)


@pytest.fixture
def shown(request: pytest.FixtureRequest, client: Client) -> Shown:
    """See `Shown`."""
    return Shown(request, client)


@EVERY
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves the socket open
def test_each_wrong_certificate_has_its_message(shown: Shown, client: Client, certificates: Certificates) -> None:
    ours = f"{client.ca}={certificates.ca}"
    assert "expired on 20" in shown.refusal(certificates.expired, ours)
    names = ELSEWHERE.replace("DNS:", "").replace("IP:", "").replace(",", ", ")
    assert f"is for the host {names}, not 127.0.0.1" in shown.refusal(certificates.elsewhere, ours)
    assert f"is signed by no CA that {client.ca} has" in shown.refusal(
        certificates.right, f"{client.ca}={certificates.foreign}"
    )


@EVERY
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
def test_the_authorities_of_the_system_are_asked_where_none_is_given(
    shown: Shown, client: Client, certificates: Certificates
) -> None:
    if client.server == "postgresql_server":
        setting = "sslmode=verify-full&sslrootcert=system"
    else:
        setting = "ssl_verify_identity=true" if client.server == "mariadb_with_tls" else ""
    message = shown.refusal(certificates.right, setting)
    assert "is signed by no CA that" in message
    assert f"as {client.ca}" in message


@EVERY
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_right_certificate_connects(shown: Shown, client: Client, certificates: Certificates, host: str) -> None:
    with shown.url(certificates.right, f"{client.ca}={certificates.ca}", real=True, host=host) as url:
        client.ask(url)


PLAIN = {
    "redis": ("redis://127.0.0.1:{}/0?timeout=5", "write rediss://"),
    "zookeeper": ("zookeeper://127.0.0.1:{}?timeout=5", "add tls=true"),
    "s3": ("s3://key:geheim@bucket/x?endpoint_url=http://127.0.0.1:{}&region=x&timeout=5", "write https"),
    "webhdfs": ("webhdfs://hdfs@127.0.0.1:{}/store?timeout=5", "write swebhdfs://"),
    "cassandra": ("cassandra://u:geheim@127.0.0.1:{}/?timeout=5", "add ssl=true"),
    "hbase": ("hbase://127.0.0.1:{}?timeout=5", "no client here has TLS"),
    "kafka": ("kafka://127.0.0.1:{}?timeout=2", "add security.protocol=ssl"),
}


@pytest.mark.parametrize("client", PLAIN)
def test_a_client_without_tls_is_told_that_the_port_speaks_it(client: str, certificates: Certificates) -> None:
    url, told = PLAIN[client]
    with TlsGate(certificates.right) as gate, pytest.raises((StoreUnavailable, SinkError)) as caught:
        (_look if client == "cassandra" else _load)(url.format(gate.port))
    assert f"127.0.0.1:{gate.port} speaks TLS: {told}" in str(caught.value)
    assert "geheim" not in str(caught.value)


NO_TLS = {
    "redis": b"-ERR Protocol error\r\n",
    "zookeeper": b"",
    "s3": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "webhdfs": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "cassandra": b"\x84\0\0\0\0\0\0\0\x18\0\0\0\x0a\0\x12Invalid version: 22",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves the socket open
@pytest.mark.parametrize("client", NO_TLS)
def test_a_client_with_tls_is_told_that_the_port_may_not_speak_it(client: str, certificates: Certificates) -> None:
    """The answers are those of real servers to the first bytes of TLS."""
    found = CLIENTS[client]
    with Listener(NO_TLS[client], more=False) as server:
        url = found.url(None, "127.0.0.1", server.port) + f"{found.ca}={certificates.ca}&timeout=5"
        with pytest.raises((StoreUnavailable, SinkError, Refused), match="Perhaps the port speaks no TLS"):
            found.ask(url)


def test_what_the_url_of_postgresql_asks_for_is_not_lowered_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    def mode(query: str = "") -> object:
        return read_postgresql(f"postgresql://u@127.0.0.1:1/shop{query}")[1].get("sslmode")

    ours = f"?sslrootcert={certificates.ca}"
    assert (mode(), mode(ours), mode(f"{ours}&sslmode=require")) == (None, "verify-full", "require")
    monkeypatch.setenv("PGSSLROOTCERT", str(certificates.ca))
    assert mode() == "verify-full"
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert (mode(), mode(ours)) == (None, "verify-full")
    with TlsGate(certificates.elsewhere, 0, after_postgresql_asks) as gate, pytest.raises(Refused, match="is for the"):
        _load(f"postgresql://u@127.0.0.1:{gate.port}/shop{ours}")


@EVERY
def test_checks_are_left_out_where_the_user_writes_so(shown: Shown, client: Client, certificates: Certificates) -> None:
    """All of them, or that of the name alone."""
    everything, name = client.unchecked
    if everything:
        with shown.url(certificates.expired, everything, real=True) as url:
            client.ask(url)
    if name:
        with shown.url(certificates.elsewhere, f"{client.ca}={certificates.ca}", name, real=True) as url:
            client.ask(url)
        assert "expired on" in shown.refusal(certificates.expired, f"{client.ca}={certificates.ca}", name)


@pytest.mark.parametrize(
    "query",
    [
        "ssl_verify_cert=false&ssl_verify_identity=true",
        "ssl_key=/k",
        "ssl_ca=/ca&ssl_verify_cert=maybe",
        "ssl_key_password=geheim",
    ],
)
@pytest.mark.parametrize("url", ["mysql://host/shop?", "cassandra://host/shop?"])
def test_settings_that_contradict_each_other_are_refused(url: str, query: str) -> None:
    open_url = open_store if url.startswith("mysql") else read_place
    with pytest.raises(SettingsError) as told:
        open_url(url + query)
    assert "geheim" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["mysql://host/shop?ssl_disabled=true&ssl_ca=/ca", "cassandra://host/?ssl=false&ssl_ca=/ca"]
)
def test_tls_that_is_switched_off_has_no_settings(url: str) -> None:
    open_url = open_store if url.startswith("mysql") else read_place
    with pytest.raises(SettingsError, match="switches TLS off and has ssl_ca"):
        open_url(url)


@WITH_OWN
def test_a_server_that_asks_for_a_certificate_gets_it_and_says_why_it_takes_none(
    shown: Shown, client: Client, certificates: Certificates
) -> None:
    certificate, key, password = client.own
    ours = f"{client.ca}={certificates.ca}"
    encrypted = certificates.encrypted(certificates.client, PASSWORD)
    mine = (f"{certificate}={certificates.client.certificate}", f"{key}={encrypted}", f"{password}={PASSWORD}")
    with shown.url(certificates.right, ours, *mine, real=True, clients=certificates.ca) as url:
        client.ask(url)
    with shown.url(certificates.right, ours, clients=certificates.ca) as url, pytest.raises(Refused) as refused:
        client.ask(url)
    asks = f": certificate required. Give one that it accepts as {certificate}, and its key as {key}"
    assert ("Access denied" if client.server == "mariadb_with_tls" else asks) in str(refused.value)
    for pair, why in ((certificates.stranger, "unknown ca"), (certificates.expired, "certificate expired")):
        theirs = (f"{certificate}={pair.certificate}", f"{key}={pair.key}")
        message = shown.refusal(certificates.right, ours, *theirs, clients=certificates.ca)
        assert re.search(f"the certificate of the client is not accepted by 127.0.0.1:[0-9]+: {why}", message)


def _wrong_file(client: Client, settings: dict[str, str]) -> str:
    """Return the message with which a file for TLS is refused. Paths are no secrets, but texts of keys are."""
    query = urlencode({name: value for name, value in settings.items() if value})
    with pytest.raises(SettingsError) as refused:
        client.ask(client.url(None, "127.0.0.1", 1) + query)
    shown = "".join(traceback.format_exception(refused.value))
    assert not [secret for secret in ("PRIVATE KEY", "wr0ngwort", "cassandra:cassandra") if secret in shown]
    return str(refused.value)


MISSING = r"(=/nowhere cannot be read on .*: No such file|=\(no path\) cannot be| in the store's URL is not a file)"


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_what_is_wrong_with_a_file_of_authorities_is_told(client: Client, certificates: Certificates) -> None:
    assert re.match(f"{client.ca}{MISSING}", _wrong_file(client, {client.ca: "/nowhere"}))
    key = str(certificates.right.key)
    assert f"{client.ca}={key} has no certificate in PEM" in _wrong_file(client, {client.ca: key})


def test_a_key_that_libpq_finds_by_itself_is_looked_at_too(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting names it; for its password libpq would ask the terminal."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".postgresql"
    folder.mkdir()
    shutil.copy(certificates.client.certificate, folder / "postgresql.crt")
    shutil.copy(certificates.encrypted(certificates.client, PASSWORD), folder / "postgresql.key")

    def check(query: str) -> None:
        check_files(read_postgresql(f"postgresql://u@127.0.0.1:1/shop{query}")[1])

    with pytest.raises(SettingsError, match=r"postgresql\.key is encrypted: give its password as sslpassword$"):
        check("")
    for query in (f"?sslpassword={PASSWORD}", "?sslcertmode=disable", "?sslmode=disable"):
        check(query)
    (folder / "postgresql.crt").unlink()  # then libpq shows none
    check("")


@pytest.mark.parametrize("client", [each for each in CLIENTS.values() if each.own[0]], ids=lambda each: each.server)
def test_what_is_wrong_with_a_certificate_of_its_own_is_told_before_any_server_is_asked(
    client: Client, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library asks the terminal for a password, as some do for ever."""
    monkeypatch.setenv("HOME", "/nowhere")
    certificate, key, password = client.own
    mine, other = certificates.client, str(certificates.right.key)
    encrypted = str(certificates.encrypted(mine, PASSWORD))
    beside = "/nowhere/.postgresql/postgresql.key" if client.server == "postgresql_server" else mine.certificate
    for wrong, told in (
        ({certificate: "/nowhere"}, f"^{certificate}{MISSING}"),
        ({key: "/nowhere"}, f"^{key}{MISSING}"),
        ({key: mine.key.read_text()}, f"^{key}{MISSING}"),
        ({certificate: other}, f"{certificate}={other} has no certificate in PEM"),
        ({certificate: ""}, f"{certificate}"),
        ({key: ""}, f"{beside}.* (No such file|has no key in PEM .*, or give it as {key}$)"),
        ({key: encrypted}, f"the key in {encrypted} is encrypted: give its password as {password}$"),
        ({key: encrypted, password: "wr0ngwort"}, f"{password} is not the password of the key in {encrypted}$"),
        ({key: encrypted, password: "wr0ngwort" * 999}, f"{password} is not the password of the key in {encrypted}$"),
        ({key: other}, f"the key in {other} is not that of {certificate}={mine.certificate}"),
    ):
        right = {client.ca: str(certificates.ca), certificate: str(mine.certificate), key: str(mine.key)}
        assert re.search(told, _wrong_file(client, right | wrong))


@pytest.mark.parametrize("name", ["sslcrl", "sslcrldir"])
def test_a_list_of_revoked_certificates_that_is_not_there_is_told(name: str, certificates: Certificates) -> None:
    """Libpq would go on without it, and take a certificate that is revoked."""
    url = f"postgresql://u:geheim@127.0.0.1:1/shop?sslrootcert={certificates.ca}&{name}=/nowhere"
    with pytest.raises(SettingsError, match=f"^{name}=/nowhere is not there"):
        _load(url)
    with pytest.raises(StoreUnavailable):
        _load(f"{url}&sslmode=disable")


def test_a_file_for_tls_never_leads_to_plain_text(
    postgresql_server: PostgreSQLServer, certificates: Certificates
) -> None:
    """The server has no TLS: libpq alone would go on without."""
    with pytest.raises(Refused, match="does not support SSL"):
        _load(f"{postgresql_server.url()}?sslrootcert={certificates.ca}")


def test_what_postgresql_rejects_by_its_rules_is_not_tried_again() -> None:
    with PostgreSQLServer(fsync=False) as server:
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all shop 127.0.0.1/32 reject\n{rules.read_text()}")
        server.restart()
        with pytest.raises(Refused, match=r"pg_hba\.conf rejects"):
            _load(server.url().replace("postgres@", "shop@"))


def test_a_node_is_known_by_the_name_in_the_url(certificates: Certificates) -> None:
    """The library would ask the certificate for the address."""
    with TlsGate(certificates.elsewhere) as gate:
        place, _ = read_place(f"cassandra://localhost:{gate.port}/?ssl_ca={certificates.ca}&timeout=2")
        with pytest.raises(Refused, match="not localhost"), place.session():
            pass


def test_tasks_that_write_a_table_of_mysql_check_too(
    mariadb_with_tls: MariaDBWithTls, certificates: Certificates
) -> None:
    """Their settings travel pickled. Each connection checks what the server shows by then."""
    for pair, ca, kind, told in (
        (certificates.right, certificates.foreign, Refused, "is signed by no CA that ssl_ca has"),
        (certificates.expired, certificates.ca, Refused, "expired on"),
        (certificates.right, certificates.ca, SinkError, r"shop\.none"),
    ):
        mariadb_with_tls.show(pair)
        _, settings = read_url(f"{_mysql(None, '127.0.0.1', mariadb_with_tls.server.port)}ssl_ca={ca}")
        batch = pa.record_batch({"n": pa.array([1])})
        sent = pickle.loads(pickle.dumps(settings))  # noqa: S301 - ours
        statements = task.Statements("select 1 from shop.none", "")
        rows = task.insert_rows(sent, "mysql://there", statements, [], NONE, iter([batch]))
        with pytest.raises(kind, match=told):
            list(rows)


@pytest.mark.parametrize("given", [{"ssl_ca": "/ca"}, {"ssl_verify_identity": "true"}, {"ssl_verify_cert": "1"}])
def test_one_setting_is_enough_for_all_checks(given: dict[str, str]) -> None:
    tls = read_tls(given)
    assert tls is not None
    context = replace(tls, ca="").context()
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert read_tls({}) is None
