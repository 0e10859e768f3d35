"""The errors that are raised for librdkafka's; `codes` says what those mean. Tasks on executors use this file too."""

from __future__ import annotations

from typing import Any

from offsetkeeper.errors import BrokerError, BrokerUnavailable, NotAuthorized, UnknownTopic
from offsetkeeper.kafka.codes import Verdict, judge


def broker_error(error: Any, text: str, what: str, brokers: str) -> BrokerError:
    """Return the error to raise.

    Args:
        error: a `confluent_kafka.KafkaError`, or its name.
        text: of the same, with no secrets in it.
        what: what was asked for, such as "topic orders".
        brokers: the addresses asked.
    """
    verdict = judge(error)
    if verdict is Verdict.UNKNOWN_TOPIC:
        return UnknownTopic(f"{what}: it does not exist in the cluster at {brokers}. Check the topic's name")
    if verdict is Verdict.REFUSED:
        return NotAuthorized(f"{what}: the brokers at {brokers} refuse ({text}). Check the credentials and permissions")
    if verdict.passes:
        return BrokerUnavailable(
            f"{what}: no answer from {brokers} in time ({text}). "
            "Check that the brokers run, that their addresses can be reached from here, and the security settings"
        )
    name = error if isinstance(error, str) else error.name()
    return BrokerError(f"{what}: the brokers at {brokers} failed with {name} ({text})")
