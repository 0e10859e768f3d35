"""Where Spark and we show things, a password is not among them: pages, event logs, logs at DEBUG, files, processes.

Of classic Spark and of Spark Connect, whose server shows what it gets on a page of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from fixtures.guarded import LOGIN, PASSWORD, Guarded, Right, options
from offsetkeeper.kafka.java import literal_secrets
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.server import free_port
from offsetkeeper.testing.spark import SparkConnectServer
from readers import shown_child

PAGES = (
    "SQL/",
    "jobs/",
    "stages/",
    "environment/",
    "StreamingQuery/",
    "api/v1/applications",
    "executors/threadDump/?executorId=driver",
)
JAAS = f'{LOGIN} required username="shop" password="{PASSWORD}";'
PROVIDERS = {
    "offsetkeeper.java.config.providers": "file",
    "offsetkeeper.java.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
SPARK: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


@contextmanager
def session(kind: str, folder: Path, ui_port: int) -> Iterator[dict[str, Any]]:
    """Lend how to make a session with pages and an event log."""
    spark = {
        **SPARK,
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


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_a_password_is_shown_nowhere(
    kind: str, guarded: Guarded, fill: Callable[..., None], tmp_path: Path, outputs: dict[str, Any]
) -> None:
    if "orders" not in guarded.server.topics():
        guarded.server.create_topic("orders")
        guarded.allow("orders", "READ")
        fill(guarded.server, "orders", 5)
    secret, port = tmp_path / "kafka.properties", free_port()
    secret.write_text(f"jaas={JAAS}\n", "utf-8")
    reference = {"offsetkeeper.java.sasl.jaas.config": f"${{file:{secret}:jaas}}"}
    ways = {
        "packed": {"reader": "packed", "kafka": options()},
        "connector": {"reader": "connector", "kafka": options()},
        "by reference": {"reader": "connector", "kafka": {**options(), **PROVIDERS, **reference}},
        "outputs": {"reader": "packed", "kafka": options(), "store": outputs["one"], "outputs": outputs},
    }
    shown = tmp_path / "shown"
    shown.mkdir()
    with session(kind, shown, port) as spark:
        settings = {**spark, "ways": ways, "brokers": guarded.brokers, "folder": str(shown)}
        found = read(settings, port, shown)
    refused = [found.pop(f"{how} connector") for how in ("run", "start")] if kind == "connect" else []
    assert all("would show sasl.jaas.config on its page" in each for each in refused), refused
    assert found == {
        f"{how} {way}": 5 for how in ("run", "start") for way in ways if kind == "classic" or way != "connector"
    }
    files = {path: path.read_bytes() for path in shown.rglob("*") if path.is_file()}
    told = [b"SparkListenerJobStart", b'command: "***"' if kind == "connect" else b"Command to send"]
    assert all(any(word in each for each in files.values()) for word in told)  # else there is nothing to see
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
            pages = [*PAGES, "connect/"] if settings["connect"] else PAGES
            for page in pages:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as answer:
                    (shown / f"page {page.translate({47: 32})}").write_bytes(answer.read())
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


def shows(content: bytes) -> bool:
    """Whether the password is in it, as text or in base 64."""
    codes = (b64decode(code[: len(code) // 4 * 4]) for code in re.findall(b"[A-Za-z0-9+/]{40,}", content))
    return PASSWORD.encode() in content or any(PASSWORD.encode() in code for code in codes)


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
