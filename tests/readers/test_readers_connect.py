"""With Spark Connect, the server shows what it gets on a page and in its event log: a password is not among it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.guarded import LOGIN, PASSWORD, Guarded, options
from offsetkeeper.kafka.java import literal_secrets
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.server import free_port
from offsetkeeper.testing.spark import SparkConnectServer
from readers import connect_secrets_child

LIMIT_S = 240
PAGES = ("connect/", "SQL/", "jobs/", "stages/", "environment/", "StreamingQuery/", "api/v1/applications")
JAAS = f'{LOGIN} required username="shop" password="{PASSWORD}";'
PROVIDERS = {
    "offsetkeeper.java.config.providers": "file",
    "offsetkeeper.java.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[SparkConnectServer, int]]:
    """A server with a page and an event log, and the port of the page."""
    port = free_port()
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(tmp_path),
        "spark.jars": ",".join(map(str, fetch_jars("connector"))),
    }
    with SparkConnectServer(settings=settings) as found:
        yield found, port


def test_a_password_is_not_shown_by_the_server(
    server: tuple[SparkConnectServer, int], guarded: Guarded, fill: Callable[..., None], tmp_path: Path
) -> None:
    if "orders" not in guarded.server.topics():
        guarded.server.create_topic("orders")
        guarded.allow("orders", "READ")
        fill(guarded.server, "orders", 5)
    (tmp_path / "kafka.properties").write_text(f"jaas={JAAS}\n", "utf-8")
    reference = {"offsetkeeper.java.sasl.jaas.config": f"${{file:{tmp_path}/kafka.properties:jaas}}"}
    common: dict[str, Any] = {"brokers": guarded.brokers, "kafka": options()}
    ways = {
        "packed": {**common, "reader": "packed"},
        "connector": {**common, "reader": "connector"},
        "by reference": {**common, "reader": "connector", "kafka": {**options(), **PROVIDERS, **reference}},
    }
    settings = {
        "spark": server[0].url,
        "ways": ways,
        "store": f"sqlite:///{tmp_path}/offsets.db",
        "folder": str(tmp_path),
    }
    command = [sys.executable, connect_secrets_child.__file__, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found = json.loads(done.stdout)
    refused = [found.pop(f"{how} connector") for how in ("run", "start")]
    assert all("would show sasl.jaas.config on its page" in each for each in refused), refused
    assert found == {f"{how} {way}": 5 for how in ("run", "start") for way in ("packed", "by reference")}
    pages = [urllib.request.urlopen(f"http://127.0.0.1:{server[1]}/{page}").read() for page in PAGES]
    logs = [path.read_bytes() for path in [*tmp_path.glob("**/app-*"), *tmp_path.glob("**/local-*")] if path.is_file()]
    assert any(b"kafka.properties" in each for each in pages + logs)
    assert not [each for each in [*pages, *logs, done.stderr.encode()] if PASSWORD.encode() in each]


@pytest.mark.parametrize(
    ("jaas", "secret"),
    [
        (JAAS, True),
        ("x.Login required password=plain;", True),
        ('x.Login required username="a" password="${file:/a:b}";', False),
        ('x.Login required username="${file:/a:b}" password="c";', True),
        ('x.Login required clientId="a" clientSecret="b";', True),
        ("${file:/a:b}", False),
        ('x.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="/a" principal="b";', False),
    ],
)
def test_a_reference_is_no_secret(jaas: str, secret: bool) -> None:  # noqa: FBT001 - drawn
    assert literal_secrets({"sasl.jaas.config": jaas, "group.id": "token"}) == ["sasl.jaas.config"] * secret


@pytest.mark.parametrize(
    "name", ["ssl.keystore.key", "ssl.key.password", "ssl.keystore.password", "ssl.truststore.password"]
)
def test_keys_and_their_passwords_are_secrets(name: str) -> None:
    assert literal_secrets({name: "x"}) == [name]
    assert literal_secrets({name: "${file:/a:b}", "ssl.keystore.location": "x"}) == []
