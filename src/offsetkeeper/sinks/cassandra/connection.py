"""Connections to Cassandra, on the driver and in tasks: their settings and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from offsetkeeper.core.tls import Tls, may_be_objection, of_all, spoken_hint, unspoken_hint
from offsetkeeper.errors import MissingExtra, OutcomeUnknown, Refused, SinkError
from offsetkeeper.sinks.cassandra.nodes import named_nodes

_PROTOCOL = 5  # of Cassandra 4 and newer


@dataclass(frozen=True)
class Place:
    """The address of a cluster, and the settings of its connections.

    Attributes:
        address: the URL without credentials, for messages.
        hosts: names and ports of some of its nodes.
        user, password: may be empty.
        timeout: seconds that one request may take.
        local: whether a majority of the replicas in the nodes' own data centre is enough.
        tls: which certificates of nodes are accepted; None without TLS.
    """

    address: str
    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str = field(repr=False)
    timeout: float
    local: bool
    tls: Tls | None

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Lend a session for rows and close it at the end. If a node fails, the next node is asked.

        Raises:
            MissingExtra: cassandra-driver is not installed here.
            SinkError: no node could be reached.
            SettingsError: a file for TLS is missing or wrong.
            Refused: user or password are wrong, or the nodes' certificates are.
        """
        session = self.open(again=True)
        try:
            yield session
        finally:
            session.cluster.shutdown()

    def open(self, *, again: bool = False) -> Any:
        """Return a new session; the caller must shut its cluster down. It raises the same errors as `session`.

        Args:
            again: whether a failed request may be sent again. If not, an error before the request was sent is
                recognised.
        """
        try:
            from cassandra import ConsistencyLevel, cluster, policies, query  # noqa: PLC0415 - loaded on use
            from cassandra.auth import PlainTextAuthProvider  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("the executors lack cassandra-driver: install it there too") from error
        profile = cluster.ExecutionProfile(
            load_balancing_policy=policies.DCAwareRoundRobinPolicy(),  # the data centre of the given hosts
            consistency_level=ConsistencyLevel.LOCAL_QUORUM if self.local else ConsistencyLevel.QUORUM,
            serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL if self.local else ConsistencyLevel.SERIAL,
            request_timeout=self.timeout,
            retry_policy=policies.RetryPolicy() if again else policies.FallthroughRetryPolicy(),
            row_factory=query.tuple_factory,
        )
        named = named_nodes(self.hosts) if self.tls else None
        there = cluster.Cluster(
            list(named.given if named else self.hosts),
            endpoint_factory=named,
            auth_provider=PlainTextAuthProvider(self.user, self.password) if self.user else None,
            protocol_version=_PROTOCOL,
            connect_timeout=self.timeout,
            control_connection_timeout=self.timeout,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
            ssl_context=None if self.tls is None else self.tls.context(),
        )
        try:
            with translated(self):
                return there.connect()
        except BaseException:
            there.shutdown()
            raise

    def hint(self, why: str) -> str:
        """Return the end of a message that says that only one side speaks TLS; else empty."""
        if self.tls is not None:
            return unspoken_hint(why)
        return "".join(spoken_hint(*each, "add ssl=true and ssl_ca to the URL") for each in self.hosts[:1])

    def objection(self) -> str:
        """Return why no certificate of the given nodes is accepted; empty if one may be. See `Tls.objection`."""
        if self.tls is None:
            return ""
        objections = (
            self.tls.objection(each.ssl_options["server_hostname"], each.port, address=each.address)
            for each in named_nodes(self.hosts).given
            if not isinstance(each, tuple)
        )
        return of_all(objections)


@contextmanager
def translated(place: Place, *, decides: bool = False) -> Iterator[None]:
    """Turn errors of the client library in the block into errors of offsetkeeper.

    Args:
        place: address of the cluster.
        decides: whether the block changes a mark: without an answer, the change may still be done.

    Raises:
        Refused: Cassandra refuses the statement or the user, or no node has a certificate that is accepted.
        OutcomeUnknown: the mark may be changed, now or later.
        SinkError: nothing was changed, or the change does not matter because it is repeated.
    """
    import cassandra  # noqa: PLC0415 - loaded on use
    from cassandra.cluster import NoHostAvailable  # noqa: PLC0415
    from cassandra.connection import ConnectionException  # noqa: PLC0415
    from cassandra.protocol import ErrorMessage  # noqa: PLC0415

    try:
        yield
    except NoHostAvailable as error:  # without a retry, it was sent to no node
        if may_be_objection(str(error)) and (why := place.objection()):
            raise Refused(f"{place.address}: nothing was written: {why}") from None
        why = "; ".join(dict.fromkeys(_line(each) for each in error.errors.values())) or _line(error)
        wrong = any(isinstance(each, cassandra.AuthenticationFailed) for each in error.errors.values())
        hint = "" if wrong else place.hint(why)
        raise (Refused if wrong else SinkError)(f"{place.address} cannot be reached: {why}{hint}") from None
    except (cassandra.RequestValidationException, cassandra.AuthenticationFailed) as error:
        raise Refused(f"{place.address} refused the request: {_line(error)}") from error
    except (cassandra.DriverException, ConnectionException, ErrorMessage) as error:
        if decides:
            raise OutcomeUnknown(f"{place.address}: the mark may be changed or not: {_line(error)}") from error
        raise SinkError(f"{place.address}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
