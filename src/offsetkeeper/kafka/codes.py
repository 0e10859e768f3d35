"""The meaning of each error code of Kafka and of its client library, and the error that is raised for it.

This table is the only place that judges codes. Tasks on executors and the store in Kafka use it too.

The names are those of librdkafka's `rdkafka.h`. There are two kinds:

* Codes of the protocol come from a broker. The protocol's own table of errors, column "Retriable", says whether they
  pass: https://kafka.apache.org/protocol.html#protocol_error_codes (here of Kafka 4.3). `JUDGED` has the few codes with
  a more definite meaning here, each with its reason. librdkafka has older names for some of them, such as
  `INVALID_MSG` for `CORRUPT_MESSAGE`; the number counts.
* Local codes start with an underscore. They come from librdkafka itself, and Kafka has no table of them: `JUDGED`
  has every one, each with its reason.

Tests compare the table with the installed librdkafka, and `RETRIABLE` with Kafka's own table.

For a request that writes there is a second question: may it be written? Only two verdicts say no, see
`CodeVerdict.unwritten`. With all others the outcome is unknown, even if the code passes: the code is that of the last
try, and an earlier try may have been appended.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from offsetkeeper.errors import BrokerError, BrokerUnavailable, NotAuthorized, UnknownTopic

if TYPE_CHECKING:
    from collections.abc import Mapping


class CodeVerdict(Enum):
    """What an error code means for the request that it answers."""

    AWAY = "no broker can be reached now: ask again, within the patience"
    PASSES = "a broker or the client is not ready now: ask again, within the patience"
    NOT_SEEN = (
        "the client has not seen the topic, the partition or its leader yet: look whether it exists, then as PASSES"
    )
    UNKNOWN_TOPIC = "the topic or partition does not exist, as far as the broker knows"
    GONE = "Kafka does not hold the offset"
    REFUSED = "the credentials are wrong or lack a permission; no waiting helps"
    INVALID = "the cluster does not take such a request; no waiting helps"
    FATAL = "no waiting helps"
    NOTHING = "not a failure of anything done here"

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self in {CodeVerdict.AWAY, CodeVerdict.PASSES, CodeVerdict.NOT_SEEN}

    @property
    def unwritten(self) -> bool:
        """Whether a request that writes has surely written nothing; with other verdicts this is unknown."""
        return self in {CodeVerdict.REFUSED, CodeVerdict.INVALID}


_V = CodeVerdict

JUDGED: Mapping[str, tuple[CodeVerdict, str]] = MappingProxyType(
    {
        # Codes of the protocol with a more definite meaning here than "Retriable".
        "NO_ERROR": (_V.NOTHING, "it is success"),
        "UNKNOWN_TOPIC_OR_PART": (
            _V.UNKNOWN_TOPIC,
            "retriable for brokers that lag; who reads looks at the whole topic",
        ),
        "UNKNOWN_TOPIC_ID": (_V.UNKNOWN_TOPIC, "retriable for brokers that lag; the topic may be deleted too"),
        "OFFSET_OUT_OF_RANGE": (_V.GONE, "retention or a deletion was faster, or the topic was made again"),
        "BROKER_NOT_AVAILABLE": (_V.PASSES, "the leader is down; not retriable, as only tools should ever see it"),
        "TOPIC_AUTHORIZATION_FAILED": (_V.REFUSED, "a permission is missing"),
        "GROUP_AUTHORIZATION_FAILED": (_V.REFUSED, "a permission is missing"),
        "CLUSTER_AUTHORIZATION_FAILED": (_V.REFUSED, "a permission is missing"),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (_V.REFUSED, "a permission is missing"),
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED": (_V.REFUSED, "a permission is missing"),
        "SASL_AUTHENTICATION_FAILED": (_V.REFUSED, "the credentials are wrong"),
        "UNSUPPORTED_SASL_MECHANISM": (_V.REFUSED, "the credentials are of a kind that the broker does not take"),
        "MSG_SIZE_TOO_LARGE": (_V.INVALID, "the record is larger than the topic takes"),
        "POLICY_VIOLATION": (_V.INVALID, "a policy of the cluster forbids it"),
        "INVALID_CONFIG": (_V.INVALID, "the cluster does not take the topic's settings"),
        "INVALID_REPLICATION_FACTOR": (_V.INVALID, "there are fewer brokers than replicas"),
        # Local codes: no broker can be reached.
        "_TRANSPORT": (_V.AWAY, "a connection broke or was refused"),
        "_ALL_BROKERS_DOWN": (_V.AWAY, "all connections broke or were refused"),
        "_RESOLVE": (_V.AWAY, "a broker's name has no address now, as while a container moves"),
        # Local codes: the client or the cluster is not ready.
        "_DESTROY_BROKER": (_V.PASSES, "the client has dropped a broker; the next try asks another"),
        "_NODE_UPDATE": (_V.PASSES, "a broker has a new address; the next try goes there"),
        "_UNKNOWN_BROKER": (_V.PASSES, "the broker is not in the cluster now; one that restarts comes back"),
        "_FAIL": (_V.PASSES, "talking to a broker failed"),
        "_SSL": (
            _V.PASSES,
            "a handshake failed, which may be a cut; of a wrong certificate there is a report of its own",
        ),
        "_TIMED_OUT": (_V.PASSES, "no answer in time"),
        "_TIMED_OUT_QUEUE": (_V.PASSES, "not even sent in time"),
        "_MSG_TIMED_OUT": (_V.PASSES, "no acknowledgement in time"),
        "_WAIT_CACHE": (_V.PASSES, "the client is still asking for the cluster's brokers and topics"),
        "_WAIT_COORD": (_V.PASSES, "the client is still looking for the group's coordinator"),
        "_NOENT": (_V.NOT_SEEN, "no leader is known yet"),
        "_UNKNOWN_TOPIC": (_V.NOT_SEEN, "a client forgets topics while their brokers are away"),
        "_UNKNOWN_PARTITION": (_V.NOT_SEEN, "a client forgets partitions while their brokers are away"),
        "_IN_PROGRESS": (_V.PASSES, "the same is still under way"),
        "_PREV_IN_PROGRESS": (_V.PASSES, "an earlier call is still under way"),
        "_OUTDATED": (_V.PASSES, "the answer belongs to an earlier question"),
        "_PARTIAL": (_V.PASSES, "only a part of the answer came; the client asks for the rest again"),
        "_RETRY": (_V.PASSES, "the client itself says so"),
        "_INTR": (_V.PASSES, "a signal interrupted the wait"),
        "_QUEUE_FULL": (_V.PASSES, "the client's queue empties while it sends"),
        "_ISR_INSUFF": (_V.PASSES, "too few replicas are in sync now, as with NOT_ENOUGH_REPLICAS"),
        # Local codes: definite answers.
        "_AUTO_OFFSET_RESET": (_V.GONE, "the offset is out of range, and we allow no jump to another"),
        "_NO_OFFSET": (_V.GONE, "no offset to read from exists, and we allow no jump to another"),
        "_LOG_TRUNCATION": (_V.GONE, "a new leader does not have records that the old one has shown"),
        "_AUTHENTICATION": (_V.REFUSED, "the credentials are wrong"),
        "_PARTITION_EOF": (_V.NOTHING, "the end of a partition is reached: an event that we request"),
        "_MAX_POLL_EXCEEDED": (_V.NOTHING, "it concerns members of a group; we join none"),
        # Local codes: no waiting helps.
        "_BAD_MSG": (_V.FATAL, "an answer or record batch is damaged; to read on could pass over records"),
        "_BAD_COMPRESSION": (_V.FATAL, "a record batch cannot be unpacked; to read on would pass over records"),
        "_UNDERFLOW": (_V.FATAL, "an answer is shorter than it says; to read on could pass over records"),
        "_DESTROY": (_V.FATAL, "our own client is being closed"),
        "_CRIT_SYS_RESOURCE": (_V.FATAL, "this machine has no thread or memory left"),
        "_FS": (_V.FATAL, "a file of this machine cannot be used"),
        "_INVALID_ARG": (_V.FATAL, "the call or a setting is wrong"),
        "_UNKNOWN_GROUP": (_V.FATAL, "the group does not exist"),
        "_EXISTING_SUBSCRIPTION": (_V.FATAL, "we subscribe to nothing"),
        "_ASSIGN_PARTITIONS": (_V.FATAL, "it concerns members of a group; we join none"),
        "_REVOKE_PARTITIONS": (_V.FATAL, "it concerns members of a group; we join none"),
        "_ASSIGNMENT_LOST": (_V.FATAL, "it concerns members of a group; we join none"),
        "_CONFLICT": (_V.FATAL, "two settings or calls exclude each other"),
        "_STATE": (_V.FATAL, "the client cannot do this any more, for example as it is closed"),
        "_UNKNOWN_PROTOCOL": (_V.FATAL, "a broker's address has a protocol that the client does not know"),
        "_NOT_IMPLEMENTED": (_V.FATAL, "the client cannot do it"),
        "_NOT_CONFIGURED": (_V.FATAL, "the client is not set up for it"),
        "_UNSUPPORTED_FEATURE": (_V.FATAL, "the brokers are too old for it"),
        "_KEY_SERIALIZATION": (_V.FATAL, "we use no serializers"),
        "_VALUE_SERIALIZATION": (_V.FATAL, "we use no serializers"),
        "_KEY_DESERIALIZATION": (_V.FATAL, "we use no deserializers"),
        "_VALUE_DESERIALIZATION": (_V.FATAL, "we use no deserializers"),
        "_READ_ONLY": (_V.FATAL, "the call is wrong"),
        "_INVALID_TYPE": (_V.FATAL, "the call is wrong"),
        "_PURGE_QUEUE": (_V.FATAL, "a transaction was aborted, and its messages with it"),
        "_PURGE_INFLIGHT": (_V.FATAL, "a transaction was aborted, and its messages with it"),
        "_FATAL": (_V.FATAL, "the client says that it is of no more use"),
        "_INCONSISTENT": (_V.FATAL, "the client says that it contradicts itself"),
        "_GAPLESS_GUARANTEE": (_V.FATAL, "a transaction has lost a message; the producer is of no more use"),
        "_FENCED": (_V.FATAL, "another producer has taken the transactional id"),
        "_INVALID_DIFFERENT_RECORD": (_V.FATAL, "another record of the batch is wrong, and would be again"),
        "_APPLICATION": (_V.FATAL, "code of an application has failed inside the client"),
        "_NOOP": (_V.FATAL, "the client has done nothing, and will not"),
    }
)

RETRIABLE = frozenset(
    {
        "INVALID_MSG",
        "UNKNOWN_TOPIC_OR_PART",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_CONTROLLER",
        "CONCURRENT_TRANSACTIONS",
        "KAFKA_STORAGE_ERROR",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "UNSTABLE_OFFSET_COMMIT",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "SHARE_SESSION_NOT_FOUND",
        "INVALID_SHARE_SESSION_EPOCH",
        "SHARE_SESSION_LIMIT_REACHED",
    }
)
"""Codes of the protocol that Kafka's own table calls retriable, by librdkafka's names."""

NO_GROUP_NEEDED = "GROUP_AUTHORIZATION_FAILED"
"""The report to a consumer that may not use its group; a consumer that only reads needs no group."""
NO_REASON = "_ALL_BROKERS_DOWN"
"""A report without a cause; other reports have the cause."""
LOG_TRUNCATED = "_LOG_TRUNCATION"
PARTITION_END = "_PARTITION_EOF"
LOGIN_FAILED = "_AUTHENTICATION"
"""The report to a client without valid credentials, also if its token provider failed."""
CERTIFICATE = "the certificate of "
"""How the text of a report begins that says why a broker's certificate is not accepted."""
NO_CONSUMER_GROUP = "GROUP_ID_NOT_FOUND"
"""The answer to a commit for a name that a group of another type has, such as a share group."""
TOPIC_EXISTS = "TOPIC_ALREADY_EXISTS"
TOO_FEW_BROKERS = "INVALID_REPLICATION_FACTOR"
FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
"""Another producer has taken the transactional id, or the broker has ended a transaction that took too long."""
PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
"""A message was given up because its transaction has failed; the message does not have the cause."""
TOO_LONG = "INVALID_TRANSACTION_TIMEOUT"
LONG_TEXT = "OFFSET_METADATA_TOO_LARGE"
TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE"})
OF_RECORD = TOO_LARGE | {"INVALID_RECORD", "INVALID_TIMESTAMP", "_INVALID_DIFFERENT_RECORD"}
"""Refusals of a request that one message alone causes; the last is what its neighbours get."""


def judge(error: Any) -> CodeVerdict:
    """Return the meaning of an error.

    A code that is not in this file is fatal, unless it is local: then it is from a newer librdkafka than the tests
        know.
    It is retried: this costs at most the timeout, while a wrong end would cost the run.

    Args:
        error: a `confluent_kafka.KafkaError`, or its name.
    """
    name = error if isinstance(error, str) else error.name()
    if name in JUDGED:
        return JUDGED[name][0]
    if name in RETRIABLE or name.startswith("_") or (error is not name and error.retriable()):
        return CodeVerdict.PASSES
    return CodeVerdict.FATAL


def broker_error(error: Any, text: str, what: str, brokers: str) -> BrokerError:
    """Return the error to raise.

    Args:
        error: a `confluent_kafka.KafkaError`, its name, or the verdict on it.
        text: text of the error, without secrets.
        what: the object of the request, such as "topic orders".
        brokers: addresses of the brokers.
    """
    verdict = error if isinstance(error, CodeVerdict) else judge(error)
    if verdict is CodeVerdict.UNKNOWN_TOPIC:
        return UnknownTopic(f"{what}: it does not exist in the cluster at {brokers}. Check the topic's name")
    if text.startswith(CERTIFICATE):
        return NotAuthorized(f"{what}: the brokers at {brokers} were asked nothing: {text}")
    if verdict is CodeVerdict.REFUSED:
        return NotAuthorized(f"{what}: the brokers at {brokers} refuse ({text}). Check the credentials and permissions")
    if verdict.passes:
        return BrokerUnavailable(
            f"{what}: no answer from {brokers} in time ({text}). "
            "Check that the brokers run, that their addresses can be reached from here, and the security settings"
        )
    name = error if isinstance(error, str) else error.name()
    return BrokerError(f"{what}: the brokers at {brokers} failed with {name} ({text})")
