"""Fixtures that every test may use; each kind has a file of its own."""

import pytest
from hypothesis import HealthCheck, settings

from fixtures import archives

archives.use()

pytest_plugins = [
    "fixtures.tiers",
    "fixtures.servers",
    "fixtures.guarded",
    "fixtures.certificates",
    "fixtures.nobody",
    "fixtures.spark",
    "fixtures.s3",
    "fixtures.hdfs",
    "fixtures.zookeeper",
    "fixtures.redis_server",
    "fixtures.mysql_server",
    "fixtures.hbase",
    "fixtures.cassandra_server",
    "fixtures.browser",
]

# No test is timed: on a busy machine hypothesis's own limits would fail one that is right.
settings.register_profile("offsetkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offsetkeeper")

LONGEST = ("test_kafka", "test_hdfs", "test_zookeeper", "test_hbase", "test_cassandra", "test_structured_connect")
"""Groups that take long and would come late: they begin, so that no process ends long before the other."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, and all files on a store's server too, so that it is started once.

    A test that names its group itself is kept with that one. The longest groups come first.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(named_group(item), len(LONGEST)))


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of a test that names none."""
    if item.path.parent.name == "stores":
        return "_".join(item.path.stem.split("_")[:2])
    callspec = getattr(item, "callspec", None)
    for server in ("hdfs", "s3"):
        if callspec and server in callspec.params.values():
            return f"test_{server}"
    return item.path.stem


def named_group(item: pytest.Item) -> str:
    """Return the name of the group that a test is in."""
    marker = item.get_closest_marker("xdist_group")
    return str(marker.args[0]) if marker else ""
