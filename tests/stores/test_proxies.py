"""A company's HTTP proxy, named by the environment: an error says that the request went through it, without secrets."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.model import Snapshot
from offsetkeeper.errors import OffsetkeeperError, Refused, StoreUnavailable
from offsetkeeper.monitor.alerts import Key, Notice, Rule
from offsetkeeper.monitor.webhook import Webhook
from offsetkeeper.stores import open_store
from offsetkeeper.testing.s3 import S3Server
from offsetkeeper.testing.server import free_port, wait_until

SECRET = "geheim"
S3 = "s3://key:secret@bucket/p?region=us-east-1&timeout=5&endpoint_url={}://store.example:9000"
STORES = {
    ("HTTP_PROXY", "S3"): S3.format("http"),
    ("HTTPS_PROXY", "S3"): S3.format("https"),
    ("HTTP_PROXY", "WebHDFS"): "webhdfs://hdfs@store.example:9870/offsets?timeout=5",
    ("HTTPS_PROXY", "WebHDFS"): "swebhdfs://hdfs@store.example:9871/offsets?timeout=5",
}
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Refusing(BaseHTTPRequestHandler):
    """Forbids whatever is asked."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(403)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "16")
        self.end_headers()
        self.wfile.write(b"<p>forbidden</p>" if self.command != "HEAD" else b"")

    do_PUT = do_POST = do_HEAD = do_CONNECT = do_GET  # noqa: N815 - as above

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Proxy(NamedTuple):
    """Where a proxy listens, or should."""

    port: int

    def url(self) -> str:
        """The value of a variable, with user and password."""
        return f"http://me:{SECRET}@127.0.0.1:{self.port}"


@pytest.fixture(params=["refuses", "is away"])
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that forbids all, or none."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if request.param == "is away":
        yield Proxy(free_port())
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Proxy(server.server_address[1])
        server.shutdown()
        thread.join()


def failure(url: str) -> tuple[str, str]:
    """Return the error of a first change, and all that Python would print of it."""
    store = open_store(url)
    change = rules.decide(Snapshot("g"), rules.Rewind({}), rules.Author("me", "me", 0, "id"))
    with pytest.raises(OffsetkeeperError) as caught:
        store.apply(change)
    store.close()
    assert isinstance(caught.value, Refused | StoreUnavailable)  # nothing can be done: the server was never asked
    return str(caught.value), "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("named", STORES, ids=" ".join)
def test_a_request_that_a_proxy_has_failed_names_the_proxy_and_its_variable(
    proxy: Proxy, named: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(named[0], proxy.url())
    told, shown = failure(STORES[named])
    assert f"; asked by way of the proxy 127.0.0.1:{proxy.port} (from {named[0]});" in told
    assert SECRET not in shown


@pytest.mark.parametrize("variable", ["https_proxy", "ALL_PROXY"])
def test_the_variable_is_the_one_that_the_client_reads(
    proxy: Proxy, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy.url())
    told, _ = failure(STORES["HTTPS_PROXY", "WebHDFS"])
    assert f"(from {variable});" in told


@pytest.mark.parametrize("proxy", ["is away"], indirect=True)
def test_no_proxy_leads_past_it(proxy: Proxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3_server.url(s3_server.create_bucket(), "p")
    monkeypatch.setenv("HTTP_PROXY", proxy.url())
    assert "asked by way of the proxy" in failure(url)[0]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    store = open_store(url)
    assert store.load("g") == Snapshot("g")
    store.close()
    told, _ = failure(f"webhdfs://hdfs@127.0.0.1:{free_port()}/offsets?timeout=5")
    assert "cannot connect" in told
    assert "proxy" not in told


def test_a_webhook_names_it_too(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url())
    hook = Webhook("https://hooks.example/T0KEN", retry_timeout_s=0.2, timeout_s=5)
    hook.start()
    hook.put(Notice("fired", Key("far", "g"), Rule("far", "records", limit=1), 0, 5))
    hook_told = f"by way of the proxy 127.0.0.1:{proxy.port} (from HTTPS_PROXY)"
    wait_until(lambda: hook_told in caplog.text, "the log says why", 30)
    assert SECRET not in caplog.text
    assert "T0KEN" not in caplog.text
