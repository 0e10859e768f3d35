"""The store in HBase: what only it can meet while connections break and its servers are killed or frozen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fixtures.hbase import TABLE, HBaseMedium
from offsetkeeper.errors import StoreUnavailable, VersionConflict
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import OffsetRange, Position, TopicPartition
from offsetkeeper.stores.hbase import HBaseStore
from offsetkeeper.testing.conformance.served import GROUP, commit_of
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import next_batch
from offsetkeeper.testing.server import free_port

PUBLISH = b"mutateRows"
OTHER = TopicPartition("other", 0)


class _Repeating:
    """A Thrift client that asks twice and forgets the first answer, as HBase's own client in the Thrift server does."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def checkAndPut(self, *arguments: Any) -> Any:  # noqa: N802 - Thrift's name
        self._client.checkAndPut(*arguments)
        return self._client.checkAndPut(*arguments)


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
        with proxy.cut_request(PUBLISH):
            ledger.commit(next_batch(ledger, 10))
        assert self.stored(url) == (0, 3)
        again = Ledger(HBaseStore(url), GROUP)
        again.acquire()
        assert self.stored(url) == (10, 4)
        again.store.close()

    def test_a_change_that_the_thrift_server_tried_twice_is_made(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second try is refused for what the first one wrote. What another writer wrote is a conflict, as ever."""
        rival = HBaseStore(url)
        with self.holding(url) as ledger:
            store, change = ledger.store, commit_of(ledger)
            assert isinstance(store, HBaseStore)
            lend = store._connections.lend

            @contextmanager
            def repeating(*lost: Any) -> Iterator[Any]:
                with lend(*lost) as client:
                    yield _Repeating(client)

            monkeypatch.setattr(store._connections, "lend", repeating)
            store.apply(change)
            assert ledger.load() == change.after
            assert self.stored(url) == (10, 3)
            rival.apply(commit_of(ledger))
            with pytest.raises(VersionConflict, match="another writer"):
                store.apply(commit_of(ledger))
        rival.close()

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
            nobody = ledger.store.load("nobody")
            server.pause()
            back = threading.Timer(2.5, server.resume)
            back.start()
            try:
                with pytest.raises(StoreUnavailable, match="no answer came for 2 s"):
                    ledger.store.load(GROUP)
                assert ledger.store.load("nobody") == nobody
            finally:
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
                assert ledger.store.load(GROUP) == ledger.snapshot
            assert self.stored(url) == (10, 3)
            for settings in ("", "&protocol=compact", "&transport=framed"):
                store = HBaseStore(framed + settings)
                with pytest.raises(StoreUnavailable, match="transport="):
                    store.load(GROUP)
                store.close()
        finally:
            process.kill()
