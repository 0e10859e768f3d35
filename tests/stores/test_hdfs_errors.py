"""The store in HDFS: what it or its servers refuse."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from contextlib import closing, nullcontext
from urllib.parse import urlsplit

import httpx
import pytest

from fixtures.certificates import Certificates
from fixtures.tls_gate import TlsGate
from offsetkeeper.checkpoint.folder import open_files
from offsetkeeper.clients.hdfs import OWN, WebHdfs
from offsetkeeper.clients.url import read_url
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
)
from offsetkeeper.stores import open_store
from offsetkeeper.stores.hdfs import HDFSStore, _Folder
from offsetkeeper.testing.conformance.served import commit_of
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import free_port


@pytest.fixture
def server(hdfs_server: HDFSServer) -> HDFSServer:
    """The run's server."""
    return hdfs_server


@pytest.fixture
def folder() -> str:
    """A folder of the test's own."""
    return f"store/{secrets.token_hex(6)}"


@pytest.fixture
def url(server: HDFSServer, folder: str) -> str:
    """URL of the test's folder."""
    return server.url(folder)


def test_of_several_namenodes_the_active_one_is_found(server: HDFSServer, folder: str) -> None:
    """One of them is down."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    store = HDFSStore(f"webhdfs://hdfs@{hosts}/{folder}")
    ledger = Ledger(store, "g", retry_timeout_s=5)
    ledger.acquire()
    assert store.load("g") == ledger.snapshot
    assert store.address == f"webhdfs://{hosts}/{folder}"
    store.close()


def refusal(url: str, kind: type[OffsetkeeperError]) -> str:
    store = open_store(url)
    with pytest.raises(kind) as caught:
        Ledger(store, "g", retry_timeout_s=0.1).acquire()
    store.close()
    return str(caught.value)


def test_a_user_who_may_not_write_is_told(server: HDFSServer) -> None:
    server.make_folder("guarded", "755")
    message = refusal(server.url("guarded/offsets", user="nobody"), Refused)
    assert "AccessControlException" in message
    assert "what the user may do" in message


def test_the_port_for_java_clients_is_told_from_the_right_one(server: HDFSServer, folder: str) -> None:
    """The two are often mixed up; this one answers with a sentence."""
    assert "9870" in refusal(server.url(folder, port=server._ports[0]), Refused)


def test_tls_that_the_server_does_not_speak_is_told_in_hdfs(url: str) -> None:
    assert "SSL" in refusal(url.replace("webhdfs://", "swebhdfs://"), OffsetkeeperError)


def test_a_namenode_in_safe_mode_is_waited_for() -> None:
    """As after its start, until enough blocks are known. A fake, as a real one is in it too shortly to be met."""
    answer = {"RemoteException": {"exception": "SafeModeException", "message": "Name node is in safe mode."}}
    assert "safe mode" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)
    answer = {"RemoteException": {"exception": "EOFException", "message": "a DataNode has lost its NameNode"}}
    assert "has lost" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)
    answer = {"RemoteException": {"exception": "StandbyException", "message": "not supported in state standby"}}
    assert "standby" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)


@pytest.mark.parametrize(("told", "outcome"), [("false", ""), ("1", OutcomeUnknown), ("true", OutcomeUnknown)])
def test_what_httpfs_says_of_a_rename_counts(told: str, outcome: str | type[OffsetkeeperError]) -> None:
    """A NameNode says nothing if it has renamed. After `true` this server has no status of the file."""
    folder = _Folder(WebHdfs(read_url(_answering(200, f'{{"boolean": {told}}}'), (), OWN)))
    with closing(folder), nullcontext() if outcome == "" else pytest.raises(outcome):  # type: ignore[arg-type]
        assert folder.create("shop", "1.json", b"{}") == outcome


def test_an_answer_that_cannot_be_read_after_a_rename_leaves_its_outcome_unknown() -> None:
    url = _answering(200, "{}\r\n", "Content-Encoding: gzip\r\n")
    with closing(WebHdfs(read_url(url, (), OWN))) as client, pytest.raises(OutcomeUnknown):
        client.call("RENAME", "/a", lost=OutcomeUnknown)


def _answering(status: int, text: str, more: str = "") -> str:
    """Return the URL of a server that always answers so, for as long as somebody asks now and then."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)
    head = f"HTTP/1.1 {status} X\r\n{more}Content-Type: application/json\r\nConnection: close\r\n"
    head += f"Content-Length: {len(text)}"

    def serve() -> None:
        with listener:
            try:
                while True:
                    with listener.accept()[0] as connection:
                        connection.recv(65536)
                        connection.sendall(f"{head}\r\n\r\n{text}".encode())
            except TimeoutError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"webhdfs://127.0.0.1:{listener.getsockname()[1]}/store"


@pytest.mark.parametrize("operation", ["OPEN", "CREATE"])
def test_a_redirect_from_tls_to_plain_text_is_refused_and_nothing_is_sent(
    certificates: Certificates, operation: str
) -> None:
    """Whoever listens there would read the ledger, or the user's delegation token in the address."""
    with socket.create_server(("127.0.0.1", 0)) as plain:
        there = f"http://127.0.0.1:{plain.getsockname()[1]}/webhdfs/v1/store?delegation=t0ken"
        leading = urlsplit(_answering(307, "", f"Location: {there}\r\n")).port
        with TlsGate(certificates.right, leading or 0) as gate:
            url = f"swebhdfs://127.0.0.1:{gate.port}/store?ca_bundle={certificates.ca}"
            with closing(WebHdfs(read_url(url, (), OWN))) as client, pytest.raises(Refused) as caught:
                client.call(operation, "/store/1.json", content=b"{}")
        assert "leads to a DataNode without it, to which nothing was sent: set dfs.http.policy" in str(caught.value)
        assert "t0ken" not in str(caught.value)
        plain.settimeout(0)
        with pytest.raises(BlockingIOError):
            plain.accept()


@pytest.mark.parametrize(
    "url",
    [
        "webhdfs://",
        "webhdfs://host:9870",
        "webhdfs://host:9870/",
        "webhdfs:///folder",
        "webhdfs://host:9870,/folder",
        "webhdfs://host:9870/a//b",
        "webhdfs://host:9870/folder#x",
        "webhdfs://user:s3cret@host:9870/folder",
        "webhdfs://host:9870/folder?replication=1",
    ],
)
def test_a_url_that_names_no_folder_is_refused_in_hdfs(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_the_repr_shows_no_user() -> None:
    assert repr(open_store("webhdfs://user@host:9870/folder")) == "HDFSStore('webhdfs://host:9870/folder')"


def test_nothing_temporary_is_left_by_writers_that_lose(server: HDFSServer, folder: str, url: str) -> None:
    one, two = Ledger(HDFSStore(url), "g"), HDFSStore(url)
    one.acquire()
    one.place({PARTITION: Position(0)})
    two.load("g")
    change = commit_of(one)
    one.commit(next_batch(one, 10))
    with pytest.raises(OffsetkeeperError, match="another writer made version 3 first"):
        two.apply(change)
    found = httpx.get(f"{server.http}/webhdfs/v1/{folder}/.tmp", params={"op": "LISTSTATUS"}, timeout=20).json()
    assert found["FileStatuses"]["FileStatus"] == []
    one.store.close()
    two.close()


def test_another_programs_file_that_is_torn_is_told(server: HDFSServer, folder: str, url: str) -> None:
    """One that is being written is there without content."""
    place = f"http://127.0.0.1:{server.port}/webhdfs/v1/{folder}/g/0.json"
    first = httpx.put(place, params={"op": "CREATE", "user.name": "hdfs"}, timeout=20)
    httpx.put(first.headers["Location"], content=b"", timeout=20)
    store = HDFSStore(url)
    with pytest.raises(CorruptStore, match=r"g/0\.json.*correct or delete"):
        Ledger(store, "g", retry_timeout_s=1).acquire()
    store.close()


def test_of_a_file_that_is_too_large_no_more_than_that_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, checkpoint = HDFSStore(url), open_files(url)
    Ledger(store, "g", retry_timeout_s=5).acquire()
    assert store.load("g").version == 1
    monkeypatch.setattr("offsetkeeper.clients.hdfs.LARGEST_STORED", 10)
    monkeypatch.setattr("offsetkeeper.clients.url.LARGEST_STORED", 10)
    with pytest.raises(Refused, match=r"g/000000000001\.json was not read: it has 11 bytes or more"):
        store.load("g")
    with pytest.raises(Refused, match=r"g/000000000001\.json was not read: it has 11 bytes or more"):
        checkpoint.read("g/000000000001.json")
    checkpoint.close()
    store.close()
