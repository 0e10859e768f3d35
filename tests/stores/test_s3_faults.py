"""The store in a bucket: connections that break, a server killed or frozen, and what it or its owner refuses."""

from __future__ import annotations

import json
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest

from offsetkeeper import rules
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Change, Position, Snapshot
from offsetkeeper.stores import open_store
from offsetkeeper.stores.s3 import S3Store
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server
from offsetkeeper.testing.server import free_port, wait_until

Arm = Callable[[TcpProxy, bytes], Fault]
CUTS: dict[str, Arm] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
PUT, HEAD, LIST, GET = b'"change_id"', b"HEAD /", b"list-type=2", b"GET /"


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    """The run's server: killed and frozen here, and each time brought back."""
    return s3_server


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    """Name of a bucket for all tests of this file."""
    return server.create_bucket()


@pytest.fixture(scope="module")
def client(server: S3Server) -> Any:
    """A bare client."""
    return server.client()


@pytest.fixture
def prefix() -> str:
    """A prefix of the test's own."""
    return secrets.token_hex(6)


@pytest.fixture
def url(server: S3Server, bucket: str, prefix: str) -> str:
    """URL of the test's prefix."""
    return server.url(bucket, prefix)


@pytest.fixture
def proxy(server: S3Server) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


def holding(url: str, *, patience_s: float = 60) -> Ledger:
    """Return a ledger that holds the group, at offset 0."""
    ledger = Ledger(S3Store(url), "g", patience_s=patience_s)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    return ledger


@pytest.fixture
def ledger(server: S3Server, bucket: str, prefix: str, proxy: TcpProxy) -> Iterator[Ledger]:
    """A ledger that reaches the server through the proxy."""
    ledger = holding(server.url(bucket, prefix, port=proxy.port))
    yield ledger
    ledger.store.close()


@pytest.fixture
def stored(client: Any, bucket: str, prefix: str) -> Callable[[], tuple[int, int]]:
    """Look, without store and proxy, at offset and version of the newest object."""

    def look() -> tuple[int, int]:
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/g/")["Contents"]]
        raw = json.loads(client.get_object(Bucket=bucket, Key=max(keys))["Body"].read())
        return raw["offsets"]["rivals"]["0"], raw["version"]

    return look


def commit_of(ledger: Ledger) -> Change:
    return ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]], cut: Arm
) -> None:
    """Wherever the connection is cut, the store does not guess. What was done can be read back."""
    change = commit_of(ledger)
    with cut(proxy, PUT), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert stored() == ((10, 3) if done else (0, 2))
    assert (ledger.store.load("g") == change.after) == done


@cuts
def test_a_look_that_is_lost_after_the_write_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]], cut: Arm
) -> None:
    """The object is there, but not yet known to count."""
    with cut(proxy, HEAD), pytest.raises(OutcomeUnknown):
        ledger.store.apply(commit_of(ledger))
    assert stored() == (10, 3)


@cuts
@pytest.mark.parametrize("at", [PUT, HEAD])
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]], cut: Arm, at: bytes
) -> None:
    """Nothing is taken for somebody else's that is this run's own."""
    for number in (1, 2, 3):
        with cut(proxy, at):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (number * 10, 2 + number)


@cuts
@pytest.mark.parametrize("at", [LIST, GET])
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm, at: bytes) -> None:
    with cut(proxy, at), pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    with cut(proxy, at):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]]
) -> None:
    proxy.refuse()
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        ledger.store.load("g")
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        ledger.store.apply(commit_of(ledger))
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert stored() == (10, 3)


def test_what_was_acknowledged_survives_the_server(
    server: S3Server, url: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """It is killed in the middle of commits and started again; the run goes on and nothing is lost or doubled."""
    batches, acknowledged = 60, threading.Semaphore(0)
    ledger = holding(url)

    def work() -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(2):
        for _ in range(10):
            assert acknowledged.acquire(timeout=60)
        server.kill()
        server.restart()
    worker.join(120)
    assert not worker.is_alive()
    assert ledger.store.load("g") == ledger.snapshot
    assert stored() == (batches * 10, batches + 2)
    ledger.store.close()


def test_no_wait_is_endless_while_the_server_is_frozen(
    server: S3Server, url: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    ledger = holding(f"{url}&timeout=0.5")
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match=r"no answer came for 0\.5 s"):
            ledger.store.apply(commit_of(ledger))
        with pytest.raises(StoreUnavailable):
            ledger.store.load("g")
        assert time.monotonic() - began < 10
    finally:
        server.resume()
    ledger.commit(next_batch(ledger, 10))
    assert ledger.store.load("g") == ledger.snapshot
    wait_until(lambda: stored() == (10, 3), "the late request is done with", 20)
    ledger.store.close()


def test_a_second_create_of_a_version_is_refused_by_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a process remembers."""
    one, two = S3Store(url), S3Store(url)
    author = rules.Author("me", "me", 0, "id")
    changes = [rules.decide(Snapshot("g"), rules.Rewind({PARTITION: Position(n)}), author) for n in (1, 2)]
    monkeypatch.setattr(two, "_look", lambda _: "")  # it had looked before the other wrote
    one.apply(changes[0])
    with pytest.raises(VersionConflict, match="another writer made version 1 first"):
        two.apply(changes[1])
    assert two.load("g") == changes[0].after
    one.close()
    two.close()


class Careless(BaseHTTPRequestHandler):
    """Answers as servers do that know no conditions: each PUT is fine."""

    def do_PUT(self) -> None:
        """Take anything."""
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", '"same"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """List nothing."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_server_that_ignores_the_condition_is_refused_before_anything_is_written() -> None:
    """A fake, as no server at hand is so old; on one like it two runs would overwrite each other."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        server.paths = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"s3://a:b@bucket/x?endpoint_url=http://127.0.0.1:{server.server_port}&region=us-east-1"
        ledger = Ledger(S3Store(url), "g", patience_s=1)
        with pytest.raises(SettingsError, match="ignores If-None-Match"):
            ledger.acquire()
        ledger.store.close()
        server.shutdown()
        thread.join()
        assert {path.partition("?")[0] for path in server.paths} == {"/bucket/x/.create-if-absent"}  # type: ignore[attr-defined]


def refusal(url: str, kind: type[OffsetkeeperError], caplog: pytest.LogCaptureFixture) -> str:
    """Acquire, check the kind of error and that nothing of the secret is shown; return the message."""
    caplog.set_level("DEBUG")
    store = open_store(url)
    with pytest.raises(kind) as caught:
        Ledger(store, "g", patience_s=0.1).acquire()
    store.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text + repr(store)
    assert "s3cret" not in shown
    assert "wr0ng" not in shown
    return str(caught.value)


def test_a_wrong_secret_is_a_setting_and_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    message = refusal(url.replace(quote(SECRET, safe=""), "wr0ng"), SettingsError, caplog)
    assert "SignatureDoesNotMatch" in message
    assert "permissions" in message


def test_an_unknown_key_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    refusal(url.replace(KEY, "nobody"), SettingsError, caplog)


def test_no_credentials_at_all_are_a_setting(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert "credentials" in refusal(url.replace(f"{KEY}:{quote(SECRET, safe='')}@", ""), SettingsError, caplog)


def test_an_unknown_bucket_is_a_setting(url: str, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "NoSuchBucket" in refusal(url.replace(bucket, "no-such-bucket"), SettingsError, caplog)


def test_an_unknown_profile_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "nobody" in refusal(f"{url}&profile=nobody", SettingsError, caplog)


def test_a_port_that_nobody_listens_on_is_worth_another_try(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal(server.url(bucket, "x", port=free_port()), StoreUnavailable, caplog)


def test_tls_that_the_server_does_not_speak_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "SSL" in refusal(url.replace("http://", "https://"), OffsetkeeperError, caplog)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://bucket/prefix#x",
        "s3://s3cret@bucket/prefix",
        "s3://:s3cret@bucket/prefix",
        "s3://key:s3cret@bucket/prefix?acl=x",
        "s3://bucket/" + "p" * 701,
    ],
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_the_newest_object_is_read_by_any_client(ledger: Ledger, client: Any, bucket: str, prefix: str) -> None:
    """None of our code."""
    for _ in range(3):
        ledger.commit(next_batch(ledger, 10))
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/g/")["Contents"]]
    assert keys == [f"{prefix}/g/{number:012}.json" for number in range(1, 6)]
    raw = json.loads(client.get_object(Bucket=bucket, Key=keys[-1])["Body"].read())
    assert (raw["offsets"], raw["entry"]["event"]) == ({"rivals": {"0": 30}}, "commit")


def test_another_programs_object_that_is_torn_is_told_and_left(client: Any, bucket: str, prefix: str, url: str) -> None:
    client.put_object(Bucket=bucket, Key=f"{prefix}/g/0.json", Body=b'{"offsets":{"a"')
    store = S3Store(url)
    with pytest.raises(CorruptStore, match=r"g/0\.json.*mend or delete"):
        Ledger(store, "g", patience_s=1).acquire()
    store.close()


def test_a_whole_bucket_may_be_the_place(server: S3Server) -> None:
    """Without a prefix."""
    store = S3Store(server.url(server.create_bucket()))
    ledger = Ledger(store, "g", patience_s=5)
    ledger.acquire()
    assert store.groups() == ["g"]
    assert store.load("g") == ledger.snapshot
    store.close()


def test_old_objects_are_deleted(url: str, client: Any, bucket: str, prefix: str) -> None:
    """A hundred are kept where nothing is set, and never many more than are wanted."""
    for query, most in (("&history=30", 33), ("", 73)):
        ledger = Ledger(S3Store(url + query), "g", patience_s=5)
        ledger.acquire()
        ledger.place({PARTITION: Position(0)}) if query != "" else None
        for _ in range(40):
            ledger.commit(next_batch(ledger, 10))
        found = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/g/")
        assert found["KeyCount"] <= most
        assert [e.version for e in ledger.store.history("g", 30)] == list(
            range(ledger.snapshot.version, ledger.snapshot.version - 30, -1)
        )
        ledger.store.close()
