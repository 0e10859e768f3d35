"""The store in a bucket: what it or its owner refuses, and its objects as others see them."""

from __future__ import annotations

import json
import secrets
import threading
import traceback
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.clients.s3 import Connection
from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    Refused,
    SettingsError,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.stores import open_store
from offsetkeeper.stores.s3 import S3Store
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.s3 import KEY, SECRET, S3Server
from offsetkeeper.testing.server import free_port


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    """The run's server."""
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
        ledger = Ledger(S3Store(url), "g", retry_timeout_s=1)
        try:
            with pytest.raises(Refused, match="ignores If-None-Match"):
                ledger.acquire()
        finally:
            ledger.store.close()
            server.shutdown()
            thread.join()
        assert {path.partition("?")[0] for path in server.paths} == {"/bucket/x/.create-if-absent"}  # type: ignore[attr-defined]


def test_a_place_whose_objects_expire_is_refused_before_anything_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle group would be new one day. S3Proxy has no lifecycle rules: what S3 says of them is added."""
    connect = Connection._connect
    rule = 'expiry-date="Fri, 01 Jan 2027 00:00:00 GMT", rule-id="tidy"'

    def expiring(connection: Connection) -> Any:
        client = connect(connection)
        client.meta.events.register(
            "before-parse.s3.GetObject",
            lambda response_dict, **_: response_dict["headers"].update({"x-amz-expiration": rule}),
        )
        return client

    monkeypatch.setattr(Connection, "_connect", expiring)
    with closing(S3Store(url)) as store:
        with pytest.raises(Refused, match=r'a lifecycle rule deletes objects here .*rule-id="tidy"'):
            Ledger(store, "g", retry_timeout_s=1).acquire()
        assert store.groups() == []


class Tidied:
    """A client of a bucket with a lifecycle rule for one group only: what `S3Store` asks of boto3, kept in memory."""

    exceptions = SimpleNamespace(NoSuchKey=KeyError)
    _endpoint = SimpleNamespace(http_session=SimpleNamespace(begin=lambda: None, way=str))

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_object(self, Key: str, Body: bytes, **_: str) -> dict[str, Any]:  # noqa: N803 - boto3's names
        """See boto3."""
        if Key in self.objects:
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": 412}}, "PutObject")
        self.objects[Key] = Body
        return self.head_object(Key)

    def get_object(self, Key: str, **_: str) -> dict[str, Any]:  # noqa: N803 - as above
        """See boto3."""
        content = self.objects[Key]
        return {**self.head_object(Key), "ContentLength": len(content), "Body": BytesIO(content)}

    def head_object(self, Key: str, **_: str) -> dict[str, Any]:  # noqa: N803 - as above
        """See boto3."""
        found = {"ETag": str(hash(self.objects[Key]))}
        return {**found, "Expiration": 'rule-id="tidy"'} if Key.startswith("x/idle/") else found

    def get_paginator(self, _: str) -> Any:
        """See boto3."""
        return SimpleNamespace(paginate=self._paginate)

    def _paginate(self, Prefix: str, **_: str) -> list[dict[str, Any]]:  # noqa: N803 - as above
        return [{"IsTruncated": False, "Contents": [{"Key": key} for key in self.objects if key.startswith(Prefix)]}]

    def close(self) -> None:
        """See boto3."""


def test_a_rule_for_a_part_of_the_place_is_told_at_once_and_refuses_the_next_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The object that is tried out is not of that part, so a ledger expired in silence."""
    client = Tidied()
    monkeypatch.setattr(Connection, "_connect", lambda _: client)
    for group, told in (("busy", 0), ("idle", 1)):
        caplog.clear()
        ledger = Ledger(S3Store("s3://bucket/x"), group, retry_timeout_s=1)
        ledger.acquire()
        ledger.place({PARTITION: Position(5)})
        warned = [each.getMessage() for each in caplog.records]
        assert len(warned) == told
        assert all(
            'a lifecycle rule deletes objects here (x/idle/000000000001.json: rule-id="tidy")' in w for w in warned
        )
    before = dict(client.objects)
    with pytest.raises(Refused, match=r"\(x/idle/000000000002\.json: rule-id.*nothing was written"):
        Ledger(S3Store("s3://bucket/x"), "idle", retry_timeout_s=1).acquire()
    assert client.objects == before
    Ledger(S3Store("s3://bucket/x"), "busy", retry_timeout_s=1).acquire()


def refusal(url: str, kind: type[OffsetkeeperError], caplog: pytest.LogCaptureFixture) -> str:
    """Acquire, check the kind of error and that nothing of the secret is shown; return the message."""
    caplog.set_level("DEBUG")
    store = open_store(url)
    with pytest.raises(kind) as caught:
        Ledger(store, "g", retry_timeout_s=0.1).acquire()
    store.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text + repr(store)
    assert "s3cret" not in shown
    assert "wr0ng" not in shown
    return str(caught.value)


def test_a_wrong_secret_is_a_setting_and_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    message = refusal(url.replace(quote(SECRET, safe=""), "wr0ng"), Refused, caplog)
    assert "SignatureDoesNotMatch" in message
    assert "permissions" in message


def test_a_session_token_is_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The library logs the headers of its requests. This server refuses each such token."""
    assert "NotImplemented" in refusal(f"{url}&session_token=s3cret-token", Refused, caplog)
    assert "botocore.hooks" in caplog.text


def test_a_line_break_in_a_key_or_a_token_is_a_setting_and_never_shown(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a file with the token. The library quotes a header that has one."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "s3cret-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "s3cret-token\n")
    keys = f"{KEY}:{quote(SECRET, safe='')}@"
    for given in (url.replace(keys, ""), url.replace(KEY, "s3cret%0Ax"), f"{url}&session_token=s3cret%0A"):
        assert "has a line break" in refusal(given, SettingsError, caplog)


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_an_empty_path_of_certificates_in_the_environment_is_a_setting(
    variable: str, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it, older releases of the library check no certificate."""
    monkeypatch.setenv(variable, "")
    assert "AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or ca_bundle" in refusal(url, SettingsError, caplog)


def test_an_unknown_key_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    refusal(url.replace(KEY, "nobody"), Refused, caplog)


def test_no_credentials_at_all_are_a_setting(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert "credentials" in refusal(url.replace(f"{KEY}:{quote(SECRET, safe='')}@", ""), Refused, caplog)


def test_an_unknown_bucket_is_a_setting(url: str, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "NoSuchBucket" in refusal(url.replace(bucket, "no-such-bucket"), Refused, caplog)


def test_an_unknown_profile_is_a_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "config profile (***)" in refusal(f"{url}&profile=nobody", Refused, caplog)


def test_s3_that_nobody_serves_on_a_port_is_worth_another_try(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal(server.url(bucket, "x", port=free_port()), StoreUnavailable, caplog)


def test_tls_that_the_server_does_not_speak_is_told_in_s3(url: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_the_newest_object_is_read_by_any_client(url: str, client: Any, bucket: str, prefix: str) -> None:
    """None of our code."""
    ledger = Ledger(S3Store(url), "g", retry_timeout_s=5)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    for _ in range(3):
        ledger.commit(next_batch(ledger, 10))
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/g/")["Contents"]]
    assert keys == [f"{prefix}/g/{number:012}.json" for number in range(1, 6)]
    raw = json.loads(client.get_object(Bucket=bucket, Key=keys[-1])["Body"].read())
    assert (raw["offsets"], raw["entry"]["event"]) == ({"rivals": {"0": 30}}, "commit")
    ledger.store.close()


def test_another_programs_object_that_is_torn_is_told_and_left(client: Any, bucket: str, prefix: str, url: str) -> None:
    client.put_object(Bucket=bucket, Key=f"{prefix}/g/0.json", Body=b'{"offsets":{"a"')
    store = S3Store(url)
    with pytest.raises(CorruptStore, match=r"g/0\.json.*correct or delete"):
        Ledger(store, "g", retry_timeout_s=1).acquire()
    store.close()


def test_a_whole_bucket_may_be_the_place(server: S3Server) -> None:
    """Without a prefix."""
    store = S3Store(server.url(server.create_bucket()))
    ledger = Ledger(store, "g", retry_timeout_s=5)
    ledger.acquire()
    assert store.groups() == ["g"]
    assert store.load("g") == ledger.snapshot
    store.close()


def test_old_objects_are_deleted(url: str, client: Any, bucket: str, prefix: str) -> None:
    """A hundred are kept where nothing is set, and never many more than are wanted."""
    for query, most in (("&history=30", 33), ("", 73)):
        ledger = Ledger(S3Store(url + query), "g", retry_timeout_s=5)
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


def test_a_change_that_is_stored_is_never_said_to_be_unwritten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between program and server something takes a header out of the answer: "nothing was written", and it was."""
    store = S3Store(url)
    call = BaseClient._make_api_call

    def without_tag(client: Any, operation: str, parameters: Any) -> Any:
        answer = call(client, operation, parameters)
        return {key: value for key, value in answer.items() if (operation, key) != ("PutObject", "ETag")}

    ledger = Ledger(store, "g", retry_timeout_s=5)
    ledger.acquire()
    monkeypatch.setattr(BaseClient, "_make_api_call", without_tag)
    ledger.place({PARTITION: Position(3)})
    assert store.load("g").positions == {PARTITION: Position(3)}
    store.close()


@pytest.mark.parametrize("told", [{"StorageClass": "GLACIER"}, {}])
def test_a_ledger_that_a_rule_has_archived_is_named_so(
    url: str, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to check the credentials. The answer is S3's: the test's server has no archive."""
    call = BaseClient._make_api_call

    def archived(client: Any, operation: str, parameters: Any) -> Any:
        if operation != "GetObject":
            return call(client, operation, parameters)
        said = {"Code": "InvalidObjectState", "Message": "The operation is not valid for the object's storage class"}
        raise ClientError({"Error": {**said, **told}, "ResponseMetadata": {"HTTPStatusCode": 403}}, operation)

    with closing(S3Store(url)) as store:
        Ledger(store, "g", retry_timeout_s=5).acquire()
        monkeypatch.setattr(BaseClient, "_make_api_call", archived)
        with pytest.raises(Refused, match=r"is archived.*: restore it, .* STANDARD") as raised:
            store.load("g")
    assert ("(storage class GLACIER)" in str(raised.value)) is bool(told)
    assert "credentials" not in str(raised.value)


def test_an_object_that_is_too_large_is_not_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, checkpoint = S3Store(url), open_files(url)
    Ledger(store, "g", retry_timeout_s=5).acquire()
    assert store.load("g").version == 1
    monkeypatch.setattr("offsetkeeper.clients.url.LARGEST_STORED", 10)
    with pytest.raises(Refused, match=r"g/000000000001\.json was not read: it has \d+ bytes or more"):
        store.load("g")
    with pytest.raises(Refused, match=r"g/000000000001\.json was not read: it has \d+ bytes or more"):
        checkpoint.read("g/000000000001.json")
    checkpoint.close()
    store.close()
