"""A standby of PostgreSQL that lags behind: what it holds never passes for the ledger."""

from __future__ import annotations

import pytest

from failover.postgresql_pair import PostgreSQLPair
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.errors import StoreUnavailable
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
