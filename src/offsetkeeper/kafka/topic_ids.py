"""Ids of topics: a topic that is deleted and created again has the old name and old offsets. Executors use it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.core.identity import is_elsewhere, is_recreated
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import RangeGone
from offsetkeeper.kafka.clients import Admin, library
from offsetkeeper.kafka.codes import CodeVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

T = TypeVar("T")
NO_IDS: dict[str, str] = {}
"""No topic with a known id."""
_DOUBT_S = 5.0


def describe_topics(admin: Admin, names: list[str], *, required: bool) -> dict[str, Any]:
    """Return librdkafka's description of each topic; unless `required`, None for a topic that does not exist.

    Raises:
        UnknownTopic (where `required`), BrokerUnavailable, NotAuthorized: see `core.cluster.Cluster`.
    """

    def ask(some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
        return {**admin.client.describe_topics(library().TopicCollection(some), request_timeout=seconds)}

    return admin.gather(names, ask, "topic {}", absent=() if required else {CodeVerdict.UNKNOWN_TOPIC})


def topic_id(description: Any) -> str | None:
    """Return the id in librdkafka's description, in Kafka's own form; None from a broker without topic ids."""
    # librdkafka writes standard base64, Kafka itself the url-safe form. Older brokers send zeros.
    found = str(description.topic_id).replace("+", "-").replace("/", "_").rstrip("=")
    return found if found.strip("A") else None


def recreated(topic: str) -> RangeGone:
    """Return the error for a topic that has another id than expected."""
    return RangeGone(
        f"topic {topic} was deleted and created again: its offsets mean other records now. "
        "Start again; the policy decides where reading resumes"
    )


def check_cluster(wanted: str | None, now: str | None, topics: Iterable[str]) -> None:
    """Compare the cluster that the brokers are of now with the one that a batch was planned on, if both are known.

    Args:
        wanted: Kafka's id of the cluster of the plan.
        now: its id of the cluster that is read.
        topics: that are read, for the message.

    Raises:
        RangeGone: it is another cluster.
    """
    if is_elsewhere(wanted, now):
        raise RangeGone(
            f"the addresses of the brokers lead to the Kafka cluster {now} now, and led to {wanted} when the batch was "
            f"planned: there the offsets of {', '.join(sorted(topics))} mean other records. The batch is not "
            "committed. Correct the address. If the group is to read the other cluster, stop this program, and move "
            "the positions: offsetkeeper reset --to-datetime, or Policies(elsewhere=…)"
        )


def check_ids(wanted: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Compare the current ids of topics with the expected ids, if both are known.

    Raises:
        RangeGone: an id differs.
    """
    for topic, found in now.items():
        if is_recreated(wanted.get(topic), found):
            raise recreated(topic)


def with_ids(wanted: Mapping[str, str], ask: Callable[[], T], ids_of: Callable[[T], Mapping[str, str]]) -> T:
    """Return an answer of Kafka in which topics have the expected ids, as far as both are known.

    A broker with another id may be late, so Kafka is asked again for some seconds.

    Args:
        wanted: the expected ids by topic.
        ask: asks Kafka.
        ids_of: returns the ids in an answer.

    Raises:
        RangeGone: a topic was deleted and created again.
    """

    def once(_: float) -> T:
        found = ask()
        check_ids(wanted, ids_of(found))
        return found

    return retry(RangeGone, _DOUBT_S, once)


class TopicIds:
    """The expected ids of topics while they are read.

    Args:
        admin: admin client of the cluster.
        wanted: the expected ids by topic, in Kafka's own form.
        cluster_id: the expected id of the cluster, as far as it is known.

    Attributes:
        admin: admin client of the cluster.
    """

    def __init__(self, admin: Admin, wanted: Mapping[str, str], cluster_id: str | None = None) -> None:
        self.admin, self._wanted, self._cluster_id = admin, wanted, cluster_id
        # The answer is not used: the client only connects at the same time as the consumer.
        admin.client.describe_topics(library().TopicCollection(sorted(wanted)))

    def check(self, cluster_id: str | None = None) -> None:
        """Ask whether the topics are still the same, and whether the client that reads them is in the same cluster.

        A name of brokers may lead to another cluster than before, which has a topic of that name. Clients that are
        connected stay where they are, and new ones go there.

        The answer of a broker that does not know a topic does not count. Another id is doubted, see `with_ids`.

        Args:
            cluster_id: Kafka's id of the cluster that is read, if it is known.

        Raises:
            RangeGone: a topic was deleted and created again, or is read from another cluster.
            BrokerUnavailable, NotAuthorized: see `core.cluster.Cluster`.
        """
        names = sorted(self._wanted)
        here = self.admin.cluster_id(names[0])
        check_cluster(self._cluster_id, here, names)
        check_cluster(self._cluster_id or here, cluster_id, names)
        with_ids(self._wanted, lambda: describe_topics(self.admin, names, required=False), _ids_of)


def _ids_of(found: Mapping[str, Any]) -> dict[str, str]:
    ids = {name: topic_id(each) for name, each in found.items() if each is not None}
    return {name: each for name, each in ids.items() if each is not None}
