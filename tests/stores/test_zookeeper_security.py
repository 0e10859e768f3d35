"""The store in ZooKeeper: credentials, TLS, wrong URLs, and that no password is shown."""

from __future__ import annotations

import gc
import secrets
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kazoo.exceptions import NoAuthError

from offsetkeeper.core import rules
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.stores import open_store
from offsetkeeper.testing.server import free_port
from offsetkeeper.testing.zookeeper import ZooKeeperServer

SECRET = "s3cret/@%"
A = TopicPartition("a", 0)
CHANGE = rules.decide(Snapshot("g"), rules.Rewind({A: Position(1)}), rules.Author("me", "me", 0, "id"))
LOGIN = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_shop="s3cret/@%"; };'


class Guarded:
    """A server with a port for TLS, that knows the user `shop`."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "cert.pem"
        self.tls_port = free_port()
        key, store = folder / "key.pem", folder / "keys.p12"
        names = ["-subj", "/CN=zookeeper", "-addext", "subjectAltName=IP:127.0.0.1"]
        request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
        subprocess.run([*request, "-keyout", key, "-out", self.ca], check=True, capture_output=True)
        export: list[str | Path] = ["openssl", "pkcs12", "-export", "-inkey", key, "-in", self.ca, "-out", store]
        subprocess.run([*export, "-passout", "pass:changeit"], check=True, capture_output=True)
        (folder / "jaas.conf").write_text(LOGIN)
        settings = {
            "secureClientPort": str(self.tls_port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(store),
            "ssl.keyStore.password": "changeit",
            "ssl.clientAuth": "none",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        options = [f"-Djava.security.auth.login.config={folder / 'jaas.conf'}"]
        self.server = ZooKeeperServer(settings=settings, options=options)

    def url(self, root: str, *, user: str = "shop", password: str = SECRET, tls: bool = False) -> str:
        """Return the URL of a store for a user."""
        port = self.tls_port if tls else self.server.port
        return f"zookeeper://{user}:{quote(password, safe='')}@127.0.0.1:{port}/{root}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The guarded server."""
    guarded = Guarded(tmp_path_factory.mktemp("zookeeper"))
    with guarded.server:
        yield guarded


@pytest.fixture
def stranger(guarded: Guarded) -> Iterator[Any]:
    """A bare client without credentials."""
    client = guarded.server.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def root() -> str:
    """A path of this test's own, without slash."""
    return f"test-{secrets.token_hex(6)}"


def refusal(url: str, kind: type[Exception], caplog: pytest.LogCaptureFixture) -> str:
    """Try to write, check the kind of error and that nothing of the password is shown; return the message."""
    caplog.set_level("DEBUG")
    store = open_store(url)
    with pytest.raises(kind) as caught:
        store.apply(CHANGE)
    store.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(store) + caplog.text
    assert "s3cret" not in shown
    assert "wr0ng" not in shown
    return str(caught.value)


@pytest.mark.parametrize("query", ["", "?auth=sasl"], ids=["digest", "sasl"])
def test_what_a_user_has_written_others_may_only_read(
    guarded: Guarded, root: str, stranger: Any, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    store = open_store(guarded.url(root) + query)
    store.apply(CHANGE)
    store.close()
    assert stranger.get(f"/{root}/consumers/g/offsets/a/0")[0] == b"1"
    for path in ("offsets/a/0", "offsetkeeper/ledger"):
        with pytest.raises(NoAuthError):
            stranger.set(f"/{root}/consumers/g/{path}", b"2")
    assert "s3cret" not in caplog.text


def test_a_wrong_digest_may_not_write_over(guarded: Guarded, root: str, caplog: pytest.LogCaptureFixture) -> None:
    owner = open_store(guarded.url(root))
    owner.apply(CHANGE)
    thief = open_store(guarded.url(root, password="wr0ng"))
    found = thief.load("g")
    change = rules.decide(found, rules.Rewind({A: Position(2)}), rules.Author("me", "me", 0, "id"))
    with pytest.raises(Refused, match="refuses these credentials") as caught:
        thief.apply(change)
    assert "wr0ng" not in "".join(traceback.format_exception(caught.value)) + caplog.text
    assert owner.load("g") == CHANGE.after
    for store in (owner, thief):
        store.close()


def test_a_wrong_sasl_password_is_a_setting(guarded: Guarded, root: str, caplog: pytest.LogCaptureFixture) -> None:
    url = guarded.url(root, password="wr0ng") + "?auth=sasl"
    assert "credentials" in refusal(url, Refused, caplog)


def test_tls_with_the_right_authority_connects(guarded: Guarded, root: str) -> None:
    store = open_store(f"{guarded.url(root, tls=True)}?tls=true&ca={guarded.ca}")
    store.apply(CHANGE)
    assert store.load("g") == CHANGE.after
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves the socket open
def test_tls_with_an_unknown_authority_is_refused(
    guarded: Guarded, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = refusal(f"{guarded.url(root, tls=True)}?tls=true&timeout=5", Refused, caplog)
    assert "signed by no CA that this machine knows" in message
    gc.collect()


@pytest.mark.parametrize(
    "rest",
    [
        "host:port/",
        "/",
        "host/?publish=middle",
        "host/?jute.maxbuffer=10",
        "host/?jute.maxbuffer=much",
        "host/?auth=kerberos",
        "host/?tls=maybe",
        "host/?ca=/somewhere",
        "host/?tls=true&ca=/nowhere/at/all",
        "host/?table=t",
        "host/?timeout=0",
    ],
)
def test_a_wrong_url_is_refused_before_anything_is_opened(rest: str) -> None:
    url = "zookeeper://user:s3" + "cret@" + rest  # apart, as a traceback quotes this line
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
