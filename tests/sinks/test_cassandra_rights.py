"""The permissions on the page are enough for a user of Cassandra, and each is needed; who lacks one is told."""

from __future__ import annotations

import secrets

import pytest

from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import granted
from offsetkeeper.operate.doctor.outputs import server_facts
from offsetkeeper.testing.conformance.landers import batch_of
from sinks.cassandra_tables import Shop

pytestmark = pytest.mark.xdist_group("test_cassandra")

SECRET = RightsSuite.secret
ROWS = rows("Cassandra")
THERE = "output, its marks are there"


def try_without(shop: Shop, task: str, lacking: Lacking | None) -> None:
    """Write a batch, with the rights of a task but for one, all of them by default."""
    user = f"user_{secrets.token_hex(8)}"
    shop.execute(f"CREATE ROLE {user} WITH PASSWORD = '{SECRET}' AND LOGIN = true")
    if task == THERE:
        shop.lander()
    for right, on in granted(ROWS, task, lacking):
        shop.execute(f"GRANT {right} ON {on.replace('shop', '{}')} TO {user}")
    way = shop.lander(shop.url(user=user, password=SECRET))
    shop.write(batch_of(1), [("tea", 1.0, "")], way=way)
    assert shop.orders() == {"tea": [1.0, ""]}


class TestCassandra(RightsSuite):
    """A keyspace's user."""

    headings = ("Cassandra",)
    tasks = (THERE, "output that makes its marks")

    @pytest.fixture
    def try_without(self, cassandra_shop: Shop) -> TryWithout:
        """See `RightsSuite`."""
        return lambda _, task, lacking: try_without(cassandra_shop, task, lacking)


def test_the_doctor_tells_what_it_may_not_see(cassandra_shop: Shop) -> None:
    """The replicas of a keyspace anyone may see; how a node writes its log, not everyone."""
    user = f"user_{secrets.token_hex(8)}"
    cassandra_shop.execute(f"CREATE ROLE {user} WITH PASSWORD = '{SECRET}' AND LOGIN = true")
    found = server_facts(cassandra_shop.url(user=user, password=SECRET))
    assert (found.error, dict(found.settings), found.hidden) == ("", {"replication_factor": "1"}, ("commitlog_sync",))
