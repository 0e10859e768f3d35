"""The store in HBase: what only it can meet while connections break and its servers are killed or frozen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fixtures.hbase import TABLE, HBaseMedium
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import StoreUnavailable, VersionConflict
from offsetkeeper.stores.hbase import HBaseStore
from offsetkeeper.testing.conformance.served import GROUP, commit_of
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import free_port

PUBLISH = b"mutateRows"
OTHER = TopicPartition("other", 0)


class _Preceded:
    """A Thrift client that lets something else happen right before it changes a ledger."""

    def __init__(self, client: Any, happen: Callable[..., object]) -> None:
        self._client = client
        self._happen = happen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def checkAndPut(self, *arguments: Any) -> Any:  # noqa: N802 - Thrift's name
        self._happen(self._client, *arguments)
        return self._client.checkAndPut(*arguments)


def precede(store: Store, happen: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `happen` with a client, and what this is about to be asked, right before each change of a ledger."""
    assert isinstance(store, HBaseStore)
    lend = store._connections.lend

    @contextmanager
    def preceded(*lost: Any) -> Iterator[Any]:
        with lend(*lost) as client:
            yield _Preceded(client, happen)

    monkeypatch.setattr(store._connections, "lend", preceded)


class TestHBaseFaults(HBaseMedium):
    """On the same tables as the suites."""

    def test_what_was_not_published_is_with_the_next_change(
        self, ledger: Ledger, proxy: TcpProxy, url: str, cut: Cut, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whichever topic that one moves."""
        ledger.place({OTHER: Position(0)})
        with proxy.cut(cut, PUBLISH):
            ledger.commit(next_batch(ledger, 10))
        assert "published with the next change" in caplog.text
        assert self.stored(url) == (0 if cut is Cut.REQUEST else 10, 4)
        ledger.commit(ledger.batch([OffsetRange(*OTHER, 0, 1)]))
        assert self.stored(url) == (10, 5)

    def test_what_a_crash_left_unpublished_is_with_the_next_runs_first_change(
        self, ledger: Ledger, proxy: TcpProxy, url: str
    ) -> None:
        """Acquiring the group is a change."""
        with proxy.cut(Cut.REQUEST, PUBLISH):
            ledger.commit(next_batch(ledger, 10))
        assert self.stored(url) == (0, 3)
        again = Ledger(HBaseStore(url), GROUP)
        again.acquire()
        assert self.stored(url) == (10, 4)
        again.store.close()

    def test_a_change_that_the_thrift_server_tried_twice_is_made(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As HBase's own client in it does: the second try is refused for what the first one wrote."""
        with self.holding(url) as ledger:
            precede(ledger.store, lambda client, *asked: client.checkAndPut(*asked), monkeypatch)
            change = commit_of(ledger)
            ledger.store.apply(change)
            assert ledger.load() == change.after
            assert self.stored(url) == (10, 3)

    def test_a_change_that_another_writer_made_in_between_is_a_conflict(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the look and the write."""
        rival = HBaseStore(url)
        with self.holding(url) as ledger:
            precede(ledger.store, lambda *_: rival.apply(commit_of(ledger)), monkeypatch)
            with pytest.raises(VersionConflict, match="it is at version 3, not 2"):
                ledger.rewind({PARTITION: Position(5)}, "mistake", force=True)
        assert self.stored(url) == (10, 3)
        rival.close()

    def test_an_earlier_try_that_lands_late_is_published_in_hbase(
        self, url: str, server: HBaseServer, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was given up, so nobody publishes it but the next try, which is refused for it."""
        earlier = HBaseStore(self.through(url, server, proxy))
        with self.holding(url) as ledger:
            change = commit_of(ledger)

            def land(*_: Any) -> None:
                with proxy.cut(Cut.REQUEST, PUBLISH):
                    earlier.apply(change)

            precede(ledger.store, land, monkeypatch)
            ledger.commit(next_batch(ledger, 10))
            assert self.stored(url) == (10, 3)
        earlier.close()

    def test_of_several_thrift_servers_one_that_is_there_is_taken(self, url: str) -> None:
        """The others may be down."""
        several = url.replace("//", f"//127.0.0.1:{free_port()},")
        with self.holding(several) as ledger:
            assert self.stored(url) == (0, 2)
            assert ledger.store.load(GROUP) == ledger.snapshot

    def test_a_kept_connection_that_the_server_closed_is_not_used(self, server: HBaseServer, url: str) -> None:
        """As it closes those that are idle for a minute: the next change does not find out the hard way."""
        with self.holding(url) as ledger:
            server.restart()
            ledger.store.apply(commit_of(ledger))
            assert self.stored(url) == (10, 3)

    def test_a_late_answer_is_not_taken_for_that_to_the_next_question(self, server: HBaseServer, url: str) -> None:
        """The server wakes up while the next question waits for its answer."""
        with self.holding(f"{url}&timeout=2") as ledger:
            other = Ledger(ledger.store, "nobody")  # which asks again, where the server wakes up slowly
            nobody = other.load()
            server.pause()
            back = threading.Timer(0.5, server.resume)
            try:
                with pytest.raises(StoreUnavailable, match="no answer came for 2 s"):
                    ledger.store.load(GROUP)
            finally:
                back.start()
            assert other.load() == nobody
            back.join()

    def test_a_framed_and_compact_server_is_spoken_to(self, server: HBaseServer, url: str) -> None:
        """Whoever forgets to say so is not left hanging."""
        port, folder = free_port(), server.folder / "framed"
        options = ("start", "-p", str(port), "-b", "127.0.0.1", "--framed", "--compact")
        folder.mkdir()
        process = ServerProcess(server._java("256m", "thrift.ThriftServer", *options), folder=folder)
        framed = f"{server.url(port=port)}?table={TABLE}&timeout=5"
        try:
            with self.holding(f"{framed}&transport=framed&protocol=compact") as ledger:
                ledger.commit(next_batch(ledger, 10))
                committed = ledger.snapshot
                assert ledger.load() == committed
            assert self.stored(url) == (10, 3)
            for settings in ("", "&protocol=compact", "&transport=framed"):
                store = HBaseStore(framed + settings)
                with pytest.raises(StoreUnavailable, match="transport="):
                    store.load(GROUP)
                store.close()
        finally:
            process.kill()
