"""Offsetkeeper's own error in what Spark raises: executors report in text only."""

from __future__ import annotations

import re

from offsetkeeper import errors
from offsetkeeper.errors import BrokerUnavailable, NotAuthorized, OffsetkeeperError, RangeGone, UnknownTopic

_OURS = re.compile(r"offsetkeeper\.errors\.(?P<name>[A-Za-z]+): (?P<message>[^\r\n]*(?:\n  [^\r\n]*)*)")
# What Spark's connector and the Java client in it raise, by a mark in the text.
_THEIRS = {
    "COULD_NOT_READ_OFFSET_RANGE": RangeGone,
    "OffsetOutOfRangeException": RangeGone,
    "UnknownTopicOrPartitionException": UnknownTopic,
    "UnknownTopicIdException": UnknownTopic,
    "AuthorizationException": NotAuthorized,
    "AuthenticationException": NotAuthorized,
    "org.apache.kafka.common.errors.TimeoutException": BrokerUnavailable,
}


def reading_error(error: BaseException) -> OffsetkeeperError | None:
    """Return the error of offsetkeeper that made Spark raise `error` while a frame was read, or None.

    It is RangeGone, ReadStalled or another of the errors a reader's task raises. With the connector it is the one that
    says the same as the connector's own.
    """
    if isinstance(error, OffsetkeeperError):
        return error
    text = str(error)
    for match in reversed([*_OURS.finditer(text)]):
        kind = getattr(errors, match["name"], None)
        if isinstance(kind, type) and issubclass(kind, OffsetkeeperError):
            return kind(match["message"])
    for mark, kind in _THEIRS.items():
        line = next((line for line in text.splitlines() if mark in line), None)
        if line is not None:
            return kind(f"Spark's Kafka connector could not read the ranges: {line.strip()}")
    return None
