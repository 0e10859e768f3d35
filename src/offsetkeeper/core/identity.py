"""Compares topics and clusters by the ids that Kafka gives them. Pure. Executors use it too."""

from __future__ import annotations


def is_recreated(known: str | None, now: str | None) -> bool:
    """Whether two ids of a topic show that it was created again; an unknown id shows nothing."""
    return None not in {known, now} and known != now


def is_elsewhere(known: str | None, now: str | None) -> bool:
    """Whether two ids of a cluster show that it is another one; an unknown id shows nothing."""
    return None not in {known, now} and known != now
