"""Connections to Cassandra, on the driver and in tasks: what the URL says of them, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from offsetkeeper.errors import MissingExtra, OutcomeUnknown, Refused, SettingsError, SinkError

_PROTOCOL = 5  # of Cassandra 4 and newer


@dataclass(frozen=True)
class Place:
    """Where a cluster is, and how it is asked.

    Attributes:
        address: the URL without credentials, for messages.
        hosts: names and ports of some of its nodes.
        user, password: may be empty.
        timeout: seconds that one request may take.
        local: whether a majority of the replicas in the nodes' own data centre is enough.
        ca: path of a file with the certificates to trust; "" for those of the system, None where there is no TLS.
    """

    address: str
    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str = field(repr=False)
    timeout: float
    local: bool
    ca: str | None

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Lend a session for rows, which is closed at the end: what a node fails to do is asked of the next one.

        Raises:
            MissingExtra: cassandra-driver is not installed here.
            SinkError: no node could be reached.
            Refused: user or password are wrong.
        """
        session = self.open(again=True)
        try:
            yield session
        finally:
            session.cluster.shutdown()

    def open(self, *, again: bool = False) -> Any:
        """Return a new session; whoever has it shuts its cluster down. It raises what `session` does.

        Args:
            again: whether a request that failed may be sent again. Without it, what failed before it was sent is known.
        """
        try:
            from cassandra import ConsistencyLevel, cluster, policies, query  # noqa: PLC0415 - loaded on use
            from cassandra.auth import PlainTextAuthProvider  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("cassandra-driver is not on the executors: install it there too") from error
        profile = cluster.ExecutionProfile(
            load_balancing_policy=policies.DCAwareRoundRobinPolicy(),  # the data centre of the hosts that are given
            consistency_level=ConsistencyLevel.LOCAL_QUORUM if self.local else ConsistencyLevel.QUORUM,
            serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL if self.local else ConsistencyLevel.SERIAL,
            request_timeout=self.timeout,
            retry_policy=policies.RetryPolicy() if again else policies.FallthroughRetryPolicy(),
            row_factory=query.tuple_factory,
        )
        there = cluster.Cluster(
            list(self.hosts),
            auth_provider=PlainTextAuthProvider(self.user, self.password) if self.user else None,
            protocol_version=_PROTOCOL,
            connect_timeout=self.timeout,
            control_connection_timeout=self.timeout,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
            ssl_context=self._tls(),
        )
        try:
            with translated(self):
                return there.connect()
        except BaseException:
            there.shutdown()
            raise

    def _tls(self) -> Any:
        import ssl  # noqa: PLC0415 - only where it is used

        if self.ca is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise SettingsError(f"{self.address}: the file of ssl_ca cannot be read: {error.strerror}") from None
        context.check_hostname = False  # nodes name one another by address
        return context


@contextmanager
def translated(place: Place, *, decides: bool = False) -> Iterator[None]:
    """Turn what the client library raises within the block into errors of ours.

    Args:
        place: of the cluster.
        decides: whether the block changes a mark, which may be done although no answer came.

    Raises:
        Refused: Cassandra refuses the statement or the user.
        OutcomeUnknown: the mark may be changed, now or later.
        SinkError: nothing was changed; or it does not matter, as it is written again.
    """
    import cassandra  # noqa: PLC0415 - it is there, as a session is
    from cassandra.cluster import NoHostAvailable  # noqa: PLC0415
    from cassandra.connection import ConnectionException  # noqa: PLC0415
    from cassandra.protocol import ErrorMessage  # noqa: PLC0415

    try:
        yield
    except NoHostAvailable as error:  # without a further try it was sent to none
        why = "; ".join(dict.fromkeys(_line(each) for each in error.errors.values())) or _line(error)
        wrong = any(isinstance(each, cassandra.AuthenticationFailed) for each in error.errors.values())
        raise (Refused if wrong else SinkError)(f"{place.address} cannot be reached: {why}") from None
    except (cassandra.RequestValidationException, cassandra.AuthenticationFailed) as error:
        raise Refused(f"{place.address} refuses: {_line(error)}") from error
    except (cassandra.DriverException, ConnectionException, ErrorMessage) as error:
        if decides:
            raise OutcomeUnknown(f"{place.address}: the mark may be changed or not: {_line(error)}") from error
        raise SinkError(f"{place.address}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
