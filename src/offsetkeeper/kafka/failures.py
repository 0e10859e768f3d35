"""What librdkafka's error codes mean here. Tasks on executors use this file too, so it needs nothing but errors.py.

The names are those of librdkafka's `rdkafka.h`; those that begin with an underscore come from the client itself.
"""

from __future__ import annotations

from offsetkeeper.errors import BrokerError, BrokerUnavailable, NotAuthorized, UnknownTopic

UNKNOWN = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
REFUSED = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "_AUTHENTICATION",
    }
)
AWAY = frozenset({"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL"})
PASSING = AWAY | {
    "BROKER_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "LISTENER_NOT_FOUND",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "UNKNOWN_LEADER_EPOCH",
    "_NOENT",
    "_WAIT_CACHE",
}


def broker_error(name: str, text: str, what: str, brokers: str) -> BrokerError:
    """Return the error to raise.

    Args:
        name: of the `confluent_kafka.KafkaError`.
        text: of the same, with no secrets in it.
        what: what was asked for, such as "topic orders".
        brokers: the addresses asked.
    """
    if name in UNKNOWN:
        return UnknownTopic(f"{what}: it does not exist in the cluster at {brokers}. Check the topic's name")
    if name in REFUSED:
        return NotAuthorized(f"{what}: the brokers at {brokers} refuse ({text}). Check the credentials and permissions")
    if name in PASSING:
        return BrokerUnavailable(
            f"{what}: no answer from {brokers} in time ({text}). "
            "Check that the brokers run, that their addresses can be reached from here, and the security settings"
        )
    return BrokerError(f"{what}: the brokers at {brokers} failed with {name} ({text})")
