"""Collects what the doctor's rules need of a pipeline's outputs: servers of tables, and topics; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from types import MappingProxyType

from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.store import needing_extra
from offsetkeeper.core.urls import scheme_of
from offsetkeeper.errors import BrokerError, NotAuthorized, Refused, SettingsError, SinkError, StoreError
from offsetkeeper.kafka.cluster import KafkaCluster
from offsetkeeper.kafka.replication import KafkaFacts, Refusal, TopicFacts
from offsetkeeper.operate.doctor.facts import ServerFacts

Told = Mapping[str, str | None]
_OWN_TOPICS = ("__consumer_offsets", "__transaction_state")  # a mark is an offset, committed in a transaction


def shown(told: Told) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings that a server shows, and the names of those that it hides."""
    hidden = tuple(name for name, value in told.items() if value is None)
    return {name: value for name, value in told.items() if value is not None}, hidden


def server_facts(url: str) -> ServerFacts:
    """Return the facts about the server of an output.

    Args:
        url: URL of a database: `postgresql://`, `mysql://`, `mariadb://` or `cassandra://…/keyspace`.

    Raises:
        SettingsError: the URL is wrong, or of another kind of output.
        MissingExtra: its client library is not installed.
    """
    scheme = scheme_of(url).removesuffix("://")
    if scheme not in _KINDS:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise SettingsError(f"--output: give the URL of a database ({known}), or the name of a topic on the brokers")
    with needing_extra(f"{scheme}:// needs the library", "mysql" if scheme == "mariadb" else scheme):
        address, ask = _KINDS[scheme](url)
    try:
        settings, hidden = shown(ask())
    except (StoreError, SinkError, Refused) as error:
        return ServerFacts(address, error=str(error))
    return ServerFacts(address, settings=settings, hidden=hidden)


def written_topics(cluster: KafkaCluster, names: Collection[str]) -> KafkaFacts:
    """Return the facts about topics that a pipeline writes, and about Kafka's own that the marks in them need.

    Args:
        cluster: Kafka.
        names: names of the topics.
    """
    refused: list[Refusal] = []
    try:
        nodes = {f"{host}:{port}": "" for host, port in cluster.nodes().values()}
        described = describe(cluster, names, refused)
        described |= {name: own for name, own in describe(cluster, _OWN_TOPICS, refused, needed=False).items() if own}
        settings = cluster.settings("topic", [name for name, about in described.items() if about])
    except BrokerError as error:
        return KafkaFacts(cluster.brokers, error=str(error))
    hidden = [name for name, about in described.items() if about and name not in settings]
    refused += [Refusal(f"see the settings of topic {name} (DESCRIBE_CONFIGS)", needed=False) for name in hidden]
    topics = [
        TopicFacts(name, replicas=about.replicas, in_sync=about.in_sync, settings=settings.get(name, {}), read=False)
        if about
        else TopicFacts(name, exists=False, partitions=0, read=False)
        for name, about in described.items()
    ]
    return KafkaFacts(cluster.brokers, nodes=nodes, topics=topics, refused=refused)


def describe(
    cluster: KafkaCluster, names: Iterable[str], refused: list[Refusal], *, needed: bool = True
) -> dict[str, TopicDescription | None]:
    """Return the description of each topic, None if it does not exist; a topic we may not see is left out.

    Args:
        cluster: Kafka.
        names: names of the topics.
        refused: gets the missing permissions.
        needed: whether every run needs them.
    """
    found = {}
    for name in names:
        try:
            found[name] = cluster.describe([name]).get(name)
        except NotAuthorized:
            refused.append(Refusal(f"see topic {name} (DESCRIBE)", needed=needed))
    return found


def _postgresql(url: str) -> tuple[str, Callable[[], Told]]:
    from offsetkeeper.clients import postgresql, postgresql_server  # noqa: PLC0415 - loads the client library

    read, libpq = postgresql.read_url(url)

    def ask() -> Told:
        connections = postgresql.Connections(read, libpq, lambda _: None)
        with closing(connections), connections.lend() as connection, connections.request(connection):
            return postgresql_server.server_settings(connection)

    return read.address, ask


def _mysql(url: str) -> tuple[str, Callable[[], Told]]:
    from offsetkeeper.clients import mysql, mysql_server  # noqa: PLC0415 - as above

    read, library = mysql.read_url(url)

    def ask() -> Told:
        connections = mysql.Connections(read, library, lambda _: None, several=False)
        with closing(connections), connections.lend() as connection, connections.request(connection):
            return mysql_server.server_settings(connection)

    return read.address, ask


def _cassandra(url: str) -> tuple[str, Callable[[], Told]]:
    from offsetkeeper.sinks.cassandra.schema import server_settings  # noqa: PLC0415 - as above
    from offsetkeeper.sinks.cassandra.session import Session  # noqa: PLC0415
    from offsetkeeper.sinks.cassandra.url import read_place  # noqa: PLC0415

    place, keyspace = read_place(url)
    if not keyspace:
        raise SettingsError("--output: the cassandra:// URL has no keyspace: write cassandra://host/keyspace")
    return place.address, lambda: server_settings(Session(place), keyspace)


_KINDS: Mapping[str, Callable[[str], tuple[str, Callable[[], Told]]]] = MappingProxyType(
    {"postgresql": _postgresql, "postgres": _postgresql, "mysql": _mysql, "mariadb": _mysql, "cassandra": _cassandra}
)
