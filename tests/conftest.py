"""Fixtures that every test may use; each kind has a file of its own."""

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "fixtures.servers",
    "fixtures.guarded",
    "fixtures.spark",
    "fixtures.s3",
    "fixtures.hdfs",
    "fixtures.zookeeper",
    "fixtures.redis_server",
    "fixtures.mysql_server",
    "fixtures.hbase",
    "fixtures.browser",
]

# No test is timed: on a busy machine hypothesis's own limits would fail one that is right.
settings.register_profile("offsetkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offsetkeeper")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, and all files on a store's server too, so that it is started once.

    A test that names its group itself is kept with that one.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        words = 2 if item.path.parent.name == "stores" else None
        item.add_marker(pytest.mark.xdist_group("_".join(item.path.stem.split("_")[:words])))
