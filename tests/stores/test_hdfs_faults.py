"""The store in HDFS: connections that break, a NameNode killed, frozen or starting, and what it refuses."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from offsetkeeper import rules
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Change, Position
from offsetkeeper.stores import open_store
from offsetkeeper.stores.hdfs import HDFSStore
from offsetkeeper.testing.hdfs import HDFSServer
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import free_port, wait_until

Arm = Callable[[TcpProxy, bytes], Fault]
Stored = Callable[[], tuple[int, int]]
CUTS: dict[str, Arm] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
CREATE, RENAME, STATUS, LIST, OPEN = (
    f"op={name}".encode() for name in ("CREATE", "RENAME", "GETFILESTATUS", "LISTSTATUS", "OPEN")
)


@pytest.fixture(scope="module")
def server(hdfs_server: HDFSServer) -> HDFSServer:
    """The run's server: killed and frozen here, and each time brought back."""
    return hdfs_server


@pytest.fixture
def folder() -> str:
    """A folder of the test's own."""
    return f"store/{secrets.token_hex(6)}"


@pytest.fixture
def url(server: HDFSServer, folder: str) -> str:
    """URL of the test's folder."""
    return server.url(folder)


@pytest.fixture
def proxy(server: HDFSServer) -> Iterator[TcpProxy]:
    """A proxy in front of the NameNode."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


def holding(url: str, *, patience_s: float = 60) -> Ledger:
    """Return a ledger that holds the group, at offset 0."""
    ledger = Ledger(HDFSStore(url), "g", patience_s=patience_s)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    return ledger


@pytest.fixture
def ledger(server: HDFSServer, folder: str, proxy: TcpProxy) -> Iterator[Ledger]:
    """A ledger that reaches the NameNode through the proxy."""
    ledger = holding(server.url(folder, port=proxy.port))
    yield ledger
    ledger.store.close()


@pytest.fixture
def ask(server: HDFSServer, folder: str) -> Iterator[Callable[[str, str], Any]]:
    """Ask without store and proxy; a DataNode may not know yet that its NameNode is back."""
    with httpx.Client(timeout=20, follow_redirects=True) as client:

        def get(path: str, operation: str) -> Any:
            place = f"{server.http}/webhdfs/v1/{folder}/{path}"
            answers: list[httpx.Response] = []

            def answered() -> bool:
                answers.append(client.get(place, params={"op": operation}))
                return answers[-1].is_success

            wait_until(answered, f"{operation} of {path} is answered", 60)
            return answers[-1].json()

        yield get


@pytest.fixture
def names(ask: Callable[[str, str], Any]) -> Callable[[str], list[str]]:
    """List a subfolder."""
    return lambda path: [each["pathSuffix"] for each in ask(path, "LISTSTATUS")["FileStatuses"]["FileStatus"]]


@pytest.fixture
def stored(ask: Callable[[str, str], Any], names: Callable[[str], list[str]]) -> Stored:
    """Look at offset and version of the newest file."""

    def look() -> tuple[int, int]:
        raw = ask(f"g/{max(names('g'))}", "OPEN")
        return raw["offsets"]["rivals"]["0"], raw["version"]

    return look


def commit_of(ledger: Ledger) -> Change:
    return ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm
) -> None:
    """Wherever the rename is cut, the store does not guess. What was done can be read back."""
    change = commit_of(ledger)
    with cut(proxy, RENAME), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert stored() == ((10, 3) if done else (0, 2))
    assert (ledger.store.load("g") == change.after) == done


@cuts
def test_a_cut_before_the_rename_is_surely_not_written(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm
) -> None:
    """A file of another name does not count."""
    with cut(proxy, CREATE), pytest.raises(StoreUnavailable):
        ledger.store.apply(commit_of(ledger))
    assert stored() == (0, 2)


@cuts
def test_a_look_that_is_lost_after_the_rename_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm
) -> None:
    with cut(proxy, STATUS), pytest.raises(OutcomeUnknown):
        ledger.store.apply(commit_of(ledger))
    assert stored() == (10, 3)


@cuts
@pytest.mark.parametrize("at", [CREATE, RENAME, STATUS])
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm, at: bytes
) -> None:
    for number in (1, 2):
        with cut(proxy, at):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (number * 10, 2 + number)


@cuts
@pytest.mark.parametrize("at", [LIST, STATUS, OPEN])
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm, at: bytes) -> None:
    with cut(proxy, at), pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    with cut(proxy, at):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(ledger: Ledger, proxy: TcpProxy, stored: Stored) -> None:
    proxy.refuse()
    for act in (lambda: ledger.store.load("g"), lambda: ledger.store.apply(commit_of(ledger))):
        with pytest.raises(StoreUnavailable, match="cannot be connected"):
            act()
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert stored() == (10, 3)


def test_what_was_acknowledged_survives_the_namenode(server: HDFSServer, url: str, stored: Stored) -> None:
    """It is killed in the middle of commits and started again; while it starts, it is waited for."""
    batches, acknowledged = 30, threading.Semaphore(0)
    ledger = holding(url, patience_s=90)

    def work() -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(10):
        assert acknowledged.acquire(timeout=60)
    server.kill()
    server.restart()
    worker.join(120)
    assert not worker.is_alive()
    last = ledger.snapshot
    assert ledger.load() == last
    assert stored() == (batches * 10, batches + 2)
    ledger.store.close()


def test_no_wait_is_endless_while_the_namenode_is_frozen(server: HDFSServer, url: str, stored: Stored) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    ledger = holding(f"{url}&timeout=0.5" if "?" in url else f"{url}?timeout=0.5")
    server.pause()
    try:
        began = time.monotonic()
        for act in (lambda: ledger.store.load("g"), lambda: ledger.store.apply(commit_of(ledger))):
            with pytest.raises(StoreUnavailable, match=r"no answer came for 0\.5 s|cannot be connected"):
                act()
        assert time.monotonic() - began < 10
    finally:
        server.resume()
    ledger.commit(next_batch(ledger, 10))
    wait_until(lambda: stored() == (10, 3), "what was given up on is done with", 20)
    assert ledger.store.load("g") == ledger.snapshot
    ledger.store.close()


def test_of_several_namenodes_the_active_one_is_found(server: HDFSServer, folder: str) -> None:
    """One of them is down."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    store = HDFSStore(f"webhdfs://hdfs@{hosts}/{folder}")
    ledger = Ledger(store, "g", patience_s=5)
    ledger.acquire()
    assert store.load("g") == ledger.snapshot
    assert store.address == f"webhdfs://{hosts}/{folder}"
    store.close()


def refusal(url: str, kind: type[OffsetkeeperError]) -> str:
    store = open_store(url)
    with pytest.raises(kind) as caught:
        Ledger(store, "g", patience_s=0.1).acquire()
    store.close()
    return str(caught.value)


def test_a_user_who_may_not_write_is_told(server: HDFSServer) -> None:
    server.make_folder("guarded", "755")
    message = refusal(server.url("guarded/offsets", user="nobody"), SettingsError)
    assert "AccessControlException" in message
    assert "what the user may do" in message


def test_a_port_that_nobody_listens_on_is_worth_another_try(server: HDFSServer, folder: str) -> None:
    refusal(server.url(folder, port=free_port()), StoreUnavailable)


def test_the_port_for_java_clients_is_told_from_the_right_one(server: HDFSServer, folder: str) -> None:
    """The two are often mixed up; this one answers with a sentence."""
    assert "9870" in refusal(server.url(folder, port=server._ports[0]), SettingsError)


def test_tls_that_the_server_does_not_speak_is_told(url: str) -> None:
    assert "SSL" in refusal(url.replace("webhdfs://", "swebhdfs://"), OffsetkeeperError)


def test_a_namenode_in_safe_mode_is_waited_for() -> None:
    """As after its start, until enough blocks are known. A fake, as a real one is in it too shortly to be met."""
    answer = {"RemoteException": {"exception": "SafeModeException", "message": "Name node is in safe mode."}}
    assert "safe mode" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)
    answer = {"RemoteException": {"exception": "EOFException", "message": "a DataNode has lost its NameNode"}}
    assert "has lost" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)
    answer = {"RemoteException": {"exception": "StandbyException", "message": "not supported in state standby"}}
    assert "standby" in refusal(_answering(403, json.dumps(answer)), StoreUnavailable)


def _answering(status: int, text: str) -> str:
    """Return the URL of a server that always answers so, for some seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(text)}"

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
def test_a_url_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_the_repr_shows_no_user() -> None:
    assert repr(open_store("webhdfs://user@host:9870/folder")) == "HDFSStore('webhdfs://host:9870/folder')"


def test_nothing_temporary_is_left_by_writers_that_lose(url: str, names: Callable[[str], list[str]]) -> None:
    one = holding(url)
    two = HDFSStore(url)
    two.load("g")
    change = commit_of(one)
    one.commit(next_batch(one, 10))
    with pytest.raises(OffsetkeeperError, match="another writer made version 3 first"):
        two.apply(change)
    assert names(".tmp") == []
    one.store.close()
    two.close()


def test_another_programs_file_that_is_torn_is_told(server: HDFSServer, folder: str, url: str) -> None:
    """One that is being written is there without content."""
    place = f"http://127.0.0.1:{server.port}/webhdfs/v1/{folder}/g/0.json"
    first = httpx.put(place, params={"op": "CREATE", "user.name": "hdfs"}, timeout=20)
    httpx.put(first.headers["Location"], content=b"", timeout=20)
    store = HDFSStore(url)
    with pytest.raises(CorruptStore, match=r"g/0\.json.*mend or delete"):
        Ledger(store, "g", patience_s=1).acquire()
    store.close()
