"""Ids of topics: a topic that is deleted and made again has the old name and the old offsets. Runs on executors too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetkeeper.core.retry import retry
from offsetkeeper.errors import RangeGone
from offsetkeeper.kafka.clients import Admin, library
from offsetkeeper.kafka.codes import CodeVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

NO_IDS: dict[str, str] = {}
"""Of no topic the id is known."""
_DOUBT_S = 5.0


def describe_topics(admin: Admin, names: list[str], *, required: bool) -> dict[str, Any]:
    """Return librdkafka's description of each topic; where not `required`, None for one that a broker does not know.

    Raises:
        UnknownTopic (where `required`), BrokerUnavailable, NotAuthorized: see `core.cluster.Cluster`.
    """

    def ask(some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
        return {**admin.client.describe_topics(library().TopicCollection(some), request_timeout=seconds)}

    return admin.gather(names, ask, "topic {}", absent=() if required else {CodeVerdict.UNKNOWN_TOPIC})


def topic_id(description: Any) -> str | None:
    """Return the id in a description of librdkafka's, in Kafka's own form; None from a broker older than topic ids."""
    # librdkafka writes standard base64, Kafka itself the url-safe form. Older brokers send zeros.
    found = str(description.topic_id).replace("+", "-").replace("/", "_").rstrip("=")
    return found if found.strip("A") else None


def recreated(topic: str) -> RangeGone:
    """Return the error for a topic that has another id than its records were to come from."""
    return RangeGone(
        f"topic {topic} was deleted and made again: its offsets mean other records now. "
        "Start again, and let its policy decide where reading goes on"
    )


def check_ids(wanted: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Compare the ids that topics have now with those that they must have, where both are known.

    Raises:
        RangeGone: one is another.
    """
    for topic, found in now.items():
        if wanted.get(topic, found) != found:
            raise recreated(topic)


class TopicIds:
    """The ids that topics must have while they are read.

    Args:
        admin: of the cluster.
        wanted: the ids by topic, in Kafka's own form.
    """

    def __init__(self, admin: Admin, wanted: Mapping[str, str]) -> None:
        self._admin, self._wanted = admin, wanted
        # The answer is not used: this way the client connects while the consumer does.
        admin.client.describe_topics(library().TopicCollection(sorted(wanted)))

    def check(self) -> None:
        """Ask whether the topics are the same still.

        A broker that does not know a topic tells nothing. One that tells another id may be late, so it is asked again
        for some seconds.

        Raises:
            RangeGone: a topic was deleted and made again.
            BrokerUnavailable, NotAuthorized: see `core.cluster.Cluster`.
        """
        retry(RangeGone, _DOUBT_S, lambda _: self._check_once())

    def _check_once(self) -> None:
        found = describe_topics(self._admin, sorted(self._wanted), required=False)
        ids = {name: topic_id(each) for name, each in found.items() if each is not None}
        check_ids(self._wanted, {name: each for name, each in ids.items() if each is not None})
