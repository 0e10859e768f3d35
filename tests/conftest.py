"""Fixtures that every test may use; each kind has a file of its own."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["fixtures.servers", "fixtures.spark", "fixtures.s3", "fixtures.hdfs", "fixtures.zookeeper", "fixtures.redis_server", "fixtures.mysql_server"]

# No test is timed: on a busy machine hypothesis's own limits would fail one that is right.
settings.register_profile("offsetkeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offsetkeeper")
