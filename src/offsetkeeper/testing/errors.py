"""Errors while a real server is downloaded, started or stopped."""

from offsetkeeper.errors import OffsetkeeperError


class ServerError(OffsetkeeperError):
    """A server was not fetched, did not start, or did not do in time what a test needs."""


class ArtifactError(ServerError):
    """A jar could not be fetched, or its SHA-256 is not the expected one."""


class ToolMissing(ServerError):
    """Java, or the pyspark package, is not installed."""
