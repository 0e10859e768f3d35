"""A standby of PostgreSQL that lags behind: what it holds never passes for the ledger."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from failover.postgresql_pair import PostgreSQLPair
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.stores.postgresql import PostgreSQLStore
from offsetkeeper.testing.postgresql import PostgreSQLServer

AT = TopicPartition("orders", 0)


def test_a_standby_is_refused_and_of_several_hosts_the_primary_is_taken(stopped_postgresql: PostgreSQLServer) -> None:
    """It lacks the last commit: a copy, a preview or an owner that reads it would begin with older offsets."""
    with PostgreSQLPair(stopped_postgresql, synchronous=False) as pair:
        name = pair.create()
        ledger = Ledger(open_store(pair.primary.url(name)), "group")
        ledger.acquire()
        ledger.place({AT: Position(5)})
        pair.hold()
        ledger.place({AT: Position(9)})
        with pytest.raises(StoreUnavailable, match="the server is a standby, which may lag behind"):
            open_store(pair.standby.url(name)).load("group")
        hosts = f"127.0.0.1:{pair.standby.port},127.0.0.1:{pair.primary.port}"
        both = open_store(f"postgresql://postgres@{hosts}/{name}")
        assert both.load("group").positions == {AT: Position(9)}
        both.close()
        ledger.store.close()


def test_a_connection_that_a_pooler_leads_to_a_standby_later_shows_no_older_ledger(
    stopped_postgresql: PostgreSQLServer,
) -> None:
    """It was opened to the primary, and outlived a failover; the standby lacks the last commits, or a whole group."""
    with PostgreSQLPair(stopped_postgresql, synchronous=False) as pair, ExitStack() as at_end:
        name = pair.create()
        store = PostgreSQLStore(pair.primary.url(name))
        at_end.callback(store.close)
        ledger = Ledger(store, "group", retry_timeout_s=1)
        ledger.acquire()
        ledger.place({AT: Position(5)})
        pair.hold()
        ledger.place({AT: Position(9)})

        def lead_to_standby() -> Connection:
            while store._connections._idle:
                store._connections._idle.pop().close()
            led = Connection.connect(pair.standby.url(name), autocommit=True, prepare_threshold=None)
            store._connections._idle.append(led)
            return led

        looks: list[Callable[[], object]] = [
            lambda: store.load("group"),
            lambda: store.load("new"),
            lambda: store.history("group"),
            store.groups,
        ]
        for look in looks:
            led = lead_to_standby()
            with pytest.raises(StoreUnavailable, match="the server is a standby, which may lag behind"):
                look()
            assert led.closed
        lead_to_standby()
        assert ledger.load().positions == {
            AT: Position(9)
        }  # tried again on a new connection, which reaches the primary
