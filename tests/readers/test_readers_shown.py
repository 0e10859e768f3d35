"""Where Spark and we show things, no secret is among them: pages, event logs, logs at DEBUG, files, processes.

Of classic Spark and of Spark Connect, whose server shows what it gets on a page of its own. Logs at DEBUG are those of
Python, and in the JVM those of Spark's Kafka connector, of Kafka's client, of py4j and of Spark Connect.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import psycopg
import pymysql
import pytest

from fixtures.guarded import LOGIN, PASSWORD, Guarded, Right, oidc_options, options
from fixtures.token_provider import bearer
from offsetkeeper.kafka.java import literal_secrets
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.s3 import SECRET, S3Server
from offsetkeeper.testing.server import free_port
from offsetkeeper.testing.spark import SparkConnectServer
from readers import shown_child

PAGES = (
    *("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/", "connect/"),
    *("executors/threadDump/?executorId=driver", "executors/heapHistogram/?executorId=driver"),
)
API = (
    "allexecutors",
    "environment",
    "executors/driver/threads",
    "jobs",
    "sql?details=true&planDescription=true&length=10000",
    "stages?details=true&withSummaries=true",
    "storage/rdd",
)
DETAILS = {"SQL/execution", "jobs/job", "stages/stage", "StreamingQuery/statistics"}
MOST_PAGES = 1_000
KEY_LINES = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCmarkedOne", "kWl1bGx5Tm90QUtleUF0QWxsQnV0TWFya2VkVHdv")
PASSPHRASE = "marked-passphrase-of-a-key"
TOKEN = bearer("clerk", 1)[0].partition(".")[0]  # all begin so
SECRETS = (PASSWORD, *KEY_LINES, PASSPHRASE, SECRET, TOKEN)
CLIENT_KEY = {
    "ssl.key.pem": "\n".join(("-----BEGIN PRIVATE KEY-----", *KEY_LINES, "-----END PRIVATE KEY-----", "")),
    "ssl.certificate.pem": "none",
    "ssl.key.password": PASSPHRASE,
}
JAAS = f'{LOGIN} required username="shop" password="{PASSWORD}";'
PROVIDERS = {
    "offsetkeeper.java.config.providers": "file",
    "offsetkeeper.java.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
SPARK: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
LOGGERS = ("org.apache.spark.sql.kafka010", "org.apache.kafka", "org.apache.spark.sql.connect", "py4j")
TELLING = (
    "org.apache.spark.sql.connect.service.SessionHolder"  # SECURITY.md leaves it out: it logs plans with functions
)
LOG = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/jvm.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
"""


@contextmanager
def session(kind: str, folder: Path, ui_port: int) -> Iterator[dict[str, Any]]:
    """Lend how to make a session with pages, an event log and a log at DEBUG."""
    levels = [*((name, "debug") for name in LOGGERS), (TELLING, "info")]
    loggers = [f"logger.{n}.name = {name}\nlogger.{n}.level = {level}" for n, (name, level) in enumerate(levels)]
    (log := folder / "log4j2.properties").write_text("\n".join((LOG.format(folder=folder), *loggers)), "utf-8")
    spark = {
        **SPARK,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Dlog4j2.configurationFile={log.as_uri()}",
        "spark.ui.port": str(ui_port),
        "spark.eventLog.dir": folder.as_uri(),
        "spark.local.dir": str(folder),
    }
    spark |= {"spark.jars": ",".join(map(str, fetch_jars("connector")))}
    if kind == "classic":
        yield {"connect": "", "spark": spark}
        return
    with SparkConnectServer(settings=spark) as server:
        yield {"connect": server.url, "spark": {}}
        assert not [*showing(server.folder)]


@pytest.fixture
def outputs(guarded: Guarded, database: str, mariadb_server: MariaDBServer) -> dict[str, Any]:
    """A table in each of two databases, and a topic, whose URLs and settings have the password."""
    with psycopg.connect(database) as connection:
        connection.execute("create table shown (id bigint)")
    name = mariadb_server.create_database()
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", ssl_disabled=True) as root:
        for statement in (
            f"create user {name}@'127.0.0.1' identified by '{PASSWORD}'",
            f"grant all on {name}.* to {name}@'127.0.0.1'",
            f"create table {name}.shown (id bigint)",
        ):
            root.cursor().execute(statement)
    guarded.server.create_topic(name)
    rights = [Right("TOPIC", name, "ALL"), Right("GROUP", "offsetkeeper*", "ALL")]
    rights.append(Right("TRANSACTIONAL_ID", "offsetkeeper*", "ALL"))
    return {
        "one": database.replace("postgres@", f"postgres:{PASSWORD}@"),
        "other": mariadb_server.url(name).replace("root@", f"{name}:{PASSWORD}@"),
        "topic": [guarded.brokers, name],
        "kafka": guarded.user(rights),
    }


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """URL of a store in S3, with a secret key."""
    return s3_server.url(s3_server.create_bucket(), "shown")


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_a_secret_is_shown_nowhere(
    kind: str,
    guarded: Guarded,
    fill: Callable[..., None],
    tmp_path: Path,
    outputs: dict[str, Any],
    bucket: str,
    token_endpoint: str,
) -> None:
    if "orders" not in guarded.server.topics():
        guarded.server.create_topic("orders")
        guarded.allow("orders", "READ")
        fill(guarded.server, "orders", 5)
    secret, port = tmp_path / "kafka.properties", free_port()
    secret.write_text(f"jaas={JAAS}\n", "utf-8")
    reference = {"offsetkeeper.java.sasl.jaas.config": f"${{file:{secret}:jaas}}"}
    oidc = {"kafka": oidc_options(token_endpoint) | CLIENT_KEY, "brokers": guarded.tokens}
    java = {"by reference": {"kafka": {**options(), **PROVIDERS, **reference}}} if kind == "connect" else {"oidc": oidc}
    ways = {
        "packed": {"reader": "packed", "store": bucket, **oidc},
        "connector": {"reader": "connector", "kafka": options() | CLIENT_KEY},
        **{name: {"reader": "connector", **given} for name, given in java.items()},
        "outputs": {"reader": "packed", "kafka": options(), "store": outputs["one"], "outputs": outputs},
    }
    shown = tmp_path / "shown"
    shown.mkdir()
    with session(kind, shown, port) as spark:
        settings = {**spark, "ways": ways, "brokers": guarded.brokers, "folder": str(shown)}
        found = read(settings, port, shown)
    refused = [found.pop(f"{how} connector") for how in ("run", "start")] if kind == "connect" else []
    told = "would show sasl.jaas.config and ssl.key.password and ssl.keystore.key on its page"
    assert all(told in each for each in refused), refused
    assert found == {
        f"{how} {way}": 5 for how in ("run", "start") for way in ways if kind == "classic" or way != "connector"
    }
    files = {path: path.read_bytes() for path in shown.rglob("*") if path.is_file()}
    logged = LOGGERS[: 3 if kind == "connect" else 2]
    words = [
        b'command: "***"' if kind == "connect" else b"Command to send",
        *(f"DEBUG {each}".encode() for each in logged),
    ]
    words.append(b"SparkListenerJobStart")
    assert all(any(word in each for each in files.values()) for word in words)  # else there is nothing to see
    pages = {path.name.partition("?")[0] for path in shown.glob("page *")}
    wanted = DETAILS | ({"connect/session"} if kind == "connect" else set())
    assert pages >= {f"page {each.replace('/', ' ')} " for each in wanted}, pages
    assert not [path for path, each in files.items() if shows(each)]
    assert not (shown / "showing").read_text("utf-8")


def read(settings: dict[str, Any], port: int, shown: Path) -> dict[str, Any]:
    """Return what a child reads in each way; write what can be seen meanwhile into files of a folder."""
    with (shown / "stderr").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, shown_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "SPARK_CONNECT_LOG_LEVEL": "debug",
                "PYSPARK_PYTHON": sys.executable,
                "TMPDIR": str(shown),
            },
        )
        assert child.stdin
        assert child.stdout
        try:
            child.stdin.write(json.dumps(settings).encode() + b"\n")
            child.stdin.flush()
            found: dict[str, Any] = json.loads(child.stdout.readline())
            for address, content in pages(f"http://127.0.0.1:{port}/"):
                (shown / f"page {address.replace('/', ' ')[:200]}").write_bytes(content)
            (shown / "processes").write_bytes(b"\n".join(commands(child.pid)))
            (shown / "showing").write_text("\n".join(map(str, showing(shown))), "utf-8")  # some are gone at the end
        finally:
            child.communicate()
    return found


def commands(pid: int) -> Iterator[bytes]:
    """Yield the command of a process and of all below it."""
    yield Path(f"/proc/{pid}/cmdline").read_bytes()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text("utf-8").split():
            yield from commands(int(child))


def showing(folder: Path) -> Iterator[Path]:
    """Yield the files that show the password now."""
    for path in folder.rglob("*"):
        with suppress(OSError):  # it is gone meanwhile, or is a folder
            if shows(path.read_bytes()):
                yield path


def pages(root: str) -> Iterator[tuple[str, bytes]]:
    """Yield what Spark shows: the answers of its API, its pages, and all pages that these link to."""
    with urllib.request.urlopen(f"{root}api/v1/applications") as answer:  # noqa: S310 - of this machine
        [application] = json.load(answer)
    found = [*(f"api/v1/applications/{application['id']}/{each}" for each in API), *PAGES]
    for number, address in enumerate(found):  # it grows meanwhile
        assert number < MOST_PAGES
        try:
            with urllib.request.urlopen(root + address) as answer:  # noqa: S310 - as above
                content: bytes = answer.read()
        except urllib.error.HTTPError as error:
            content = error.read()
        yield address, content
        if not address.startswith("api/"):
            found += dict.fromkeys(each for each in links(root, address, content) if each not in found)


def links(root: str, page: str, content: bytes) -> Iterator[str]:
    """Yield where a page links to, without what only sorts its tables."""
    for link in re.findall(r'href="([^"]+)"', content.decode("utf-8", "replace")):
        to = urlsplit(urljoin(root + page, unescape(link)))
        address = to.path.strip("/")
        if to.netloc == urlsplit(root).netloc and not re.search("^static|^api|kill|^$", address):
            query = [(name, value) for name, value in parse_qsl(to.query) if name in {"id", "attempt", "executorId"}]
            yield f"{address}/" + (f"?{urlencode(query)}" if query else "")


def shows(content: bytes) -> bool:
    """Whether a secret is in it: as text, as in a URL, or in base 64, which may be broken into lines."""
    joined = re.sub(rb"\s|\\[rn]", b"", content)
    return any(form in content or form in joined for form in FORMS)


def forms(secret: str) -> Iterator[bytes]:
    """Yield a secret as text and as in URLs, and what is in base 64 of each text that has it, from any byte on."""
    for text in {secret.encode(), quote(secret).encode(), quote(secret, safe="").encode()}:
        yield text
        for before in range(3):
            code = b64encode(bytes(before) + text)[-(-before * 4 // 3) : (before + len(text)) * 4 // 3]
            yield from {code, code.translate(bytes.maketrans(b"+/", b"-_"))}


FORMS = [form for secret in SECRETS for form in forms(secret)]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("before", ["", "a", "ab", '\n"<&é'])
def test_the_search_finds_each_form(secret: str, before: str) -> None:
    text = f'{before}{secret}\n"<&é'
    raw = text.encode()
    for form in (raw, json.dumps(text).encode(), quote(text).encode(), escape(text).encode(), repr(raw).encode()):
        assert shows(form)
        assert shows(b64encode(form))
    for code in (urlsafe_b64encode(raw), encodebytes(100 * b"x" + raw), json.dumps(encodebytes(raw).decode()).encode()):
        assert shows(code)
    assert not shows(raw.replace(secret.encode(), b"***"))


@pytest.mark.parametrize(
    ("jaas", "secret"),
    [
        (JAAS, True),
        ("x.Login required password=plain;", True),
        ('x.Login required username="a" password="${file:/a:b}";', False),
        ('x.Login required username="${file:/a:b}" password="c";', True),
        ('x.Login required clientId="a" clientSecret="b";', True),
        ('x.Login required apiKey="a";', True),
        ('x.Login required passphrase="a";', True),
        ("${file:/a:b}", False),
        ('x.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="/a" principal="b";', False),
    ],
)
def test_a_reference_is_no_secret(jaas: str, secret: bool) -> None:  # noqa: FBT001 - drawn
    assert literal_secrets({"sasl.jaas.config": jaas, "group.id": "token"}) == ["sasl.jaas.config"] * secret


@pytest.mark.parametrize(
    "name",
    [
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_keys_and_their_passwords_are_secrets(name: str) -> None:
    assert literal_secrets({name: "x"}) == [name]
    assert literal_secrets({name: "${file:/a:b}", "ssl.keystore.location": "x"}) == []
