"""Fixtures that every test may use; each kind has a file of its own."""

from hypothesis import HealthCheck, settings

from fixtures import archives

archives.use()

pytest_plugins = [
    "fixtures.spread",
    "fixtures.tiers",
    "fixtures.crashes",
    "fixtures.servers",
    "fixtures.guarded",
    "fixtures.certificates",
    "fixtures.nobody",
    "fixtures.traces",
    "fixtures.spark",
    "fixtures.s3",
    "fixtures.hdfs",
    "fixtures.iceberg",
    "fixtures.zookeeper",
    "fixtures.redis_server",
    "fixtures.mysql_server",
    "fixtures.hbase",
    "fixtures.cassandra_server",
    "fixtures.browser",
    "fixtures.sanitized",
]

# No test is timed: on a busy machine hypothesis's own limits would fail one that is right.
settings.register_profile("offsetkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offsetkeeper")


def pytest_report_header() -> str:
    """See `fixtures.archives`."""
    return archives.told()
