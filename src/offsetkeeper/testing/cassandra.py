"""A real Cassandra of one node, from Maven artifacts, which needs no installation."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.java import java_command
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.server import Server, client_library, free_port

_USER = "cassandra"
_PROTOCOL = 5
_REQUEST = 30  # seconds
# Small, quick to start, and durable: acknowledged writes are on the disk.
_SETTINGS = {
    "cluster_name": "offsetkeeper",
    "num_tokens": "1",
    "allocate_tokens_for_local_replication_factor": "1",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "listen_address": "127.0.0.1",
    "rpc_address": "127.0.0.1",
    "start_native_transport": "true",
    "auto_bootstrap": "false",
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "permissions_validity": "0ms",  # else what is granted or revoked counts two seconds later
    "commitlog_sync": "batch",
    "commitlog_segment_size": "8MiB",
    "memtable_heap_space": "64MiB",
    "memtable_offheap_space": "64MiB",
    "file_cache_size": "32MiB",
    "key_cache_size": "4MiB",
    "concurrent_reads": "4",
    "concurrent_writes": "32",  # each waits for the disk
    "concurrent_counter_writes": "4",
    "concurrent_compactors": "1",
    "auto_snapshot": "false",  # of each table that is dropped
}
_FOLDERS = {
    "data_file_directories": "data",
    "commitlog_directory": "commitlog",
    "saved_caches_directory": "saved",
    "hints_directory": "hints",
    "cdc_raw_directory": "cdc",
}
_PROPERTIES = {
    "cassandra-foreground": "yes",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.ring_delay_ms": "1",
    "cassandra.superuser_setup_delay_ms": "0",
    "cassandra.native.epoll.enabled": "false",  # its library is another jar for each kind of machine
    "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",
    "io.netty.tryReflectionSetAccessible": "true",
    "jdk.attach.allowAttachSelf": "true",
}
_EXPORTED = (
    *("java.base/java.lang.ref", "java.base/jdk.internal.misc", "java.management.rmi/com.sun.jmx.remote.internal.rmi"),
    *("java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql", "jdk.unsupported/sun.misc"),
    *("jdk.attach/sun.tools.attach", "jdk.compiler/com.sun.tools.javac.file"),
)
_OPENED = (
    *(f"java.base/java.{package}" for package in ("io", "lang", "lang.module", "lang.reflect", "nio", "util")),
    *(f"java.base/java.util.concurrent{package}" for package in ("", ".atomic")),
    *(f"java.base/jdk.internal.{package}" for package in ("loader", "math", "module", "ref", "reflect", "util.jar")),
    *("java.base/sun.nio.ch", "jdk.compiler/com.sun.tools.javac", "jdk.management/com.sun.management.internal"),
)
_JVM = (
    *(f"-D{name}={value}" for name, value in _PROPERTIES.items()),
    *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED),
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
)
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %p %c: %m%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>
"""


class CassandraServer(Server):
    """A node with no keyspaces but its own, as a context manager; its data is deleted at the end.

    Users need a password, and permissions; `cassandra` with the password `cassandra` has all of them.
    Acknowledged writes survive `kill`.

    Args:
        settings: of cassandra.yaml to add or change, by their names there, as text.
        progress: called with a line of text when its jars have to be fetched.
    """

    name = "cassandra"
    defaults = _SETTINGS

    def url(self, keyspace: str = "", *, user: str = _USER, password: str = _USER, port: int | None = None) -> str:
        """Return the URL of a keyspace, `cassandra://USER:PASSWORD@127.0.0.1:PORT/KEYSPACE`.

        Args:
            keyspace: its name; by default none.
            user: who connects; by default the superuser.
            password: theirs.
            port: of a proxy in front of the server; by default the server's own.
        """
        return f"cassandra://{user}:{password}@127.0.0.1:{port or self.port}/{keyspace}"

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Lend a session of the client library, of the superuser.

        Raises:
            ToolMissing: cassandra-driver is not installed.
        """
        library = client_library("cassandra.cluster", "cassandra")
        auth = client_library("cassandra.auth", "cassandra").PlainTextAuthProvider(_USER, _USER)
        profile = library.ExecutionProfile(
            load_balancing_policy=client_library("cassandra.policies", "cassandra").RoundRobinPolicy(),
            request_timeout=_REQUEST,
        )
        cluster = library.Cluster(
            [("127.0.0.1", self.port)],
            auth_provider=auth,
            execution_profiles={library.EXEC_PROFILE_DEFAULT: profile},
            protocol_version=_PROTOCOL,
            connect_timeout=_REQUEST,
            control_connection_timeout=_REQUEST,
        )
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()

    def create_keyspace(self, name: str | None = None) -> str:
        """Create an empty keyspace, by default under a random name; return the name.

        Raises:
            ServerError: Cassandra refused.
        """
        name = name or f"test_{secrets.token_hex(6)}"
        try:
            with self.session() as session:
                replicas = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
                session.execute(f'CREATE KEYSPACE "{name}" WITH replication = {replicas}')
        except client_library("cassandra", "cassandra").DriverException as error:
            raise ServerError(f"Cassandra did not create keyspace {name}: {error}") from error
        return name

    def _prepare(self) -> None:
        for name in ("conf", "tmp"):
            (self.folder / name).mkdir()
        storage = free_port()
        seeds = f"127.0.0.1:{storage}"
        provider = "org.apache.cassandra.locator.SimpleSeedProvider"
        folders = {name: str(self.folder / folder) for name, folder in _FOLDERS.items()}
        settings = {
            **folders,
            "data_file_directories": f"[{folders['data_file_directories']}]",
            "seed_provider": f'[{{class_name: {provider}, parameters: [{{seeds: "{seeds}"}}]}}]',
            "storage_port": str(storage),
            "native_transport_port": str(self.port),
            **self._settings,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (self.folder / "conf" / "cassandra.yaml").write_text(lines, "utf-8")
        (self.folder / "conf" / "logback.xml").write_text(_LOGBACK, "utf-8")

    def _run(self) -> ServerProcess:
        places = {
            "cassandra.config": f"file://{self.folder}/conf/cassandra.yaml",
            "cassandra.storagedir": self.folder,
            "java.io.tmpdir": self.folder / "tmp",
        }
        options = [*_JVM, *(f"-D{name}={value}" for name, value in places.items())]
        jars = [self.folder / "conf", *fetch_jars("cassandra", self._progress)]
        program = "org.apache.cassandra.service.CassandraDaemon"
        return ServerProcess(java_command(jars, program, heap="512m", options=options), folder=self.folder)

    def _serves(self) -> bool:
        library = client_library("cassandra", "cassandra")
        unavailable = client_library("cassandra.cluster", "cassandra").NoHostAvailable
        try:
            with self.session() as session:
                session.execute("LIST ROLES")  # refused until the superuser is there
        except (library.DriverException, unavailable):
            return False
        return True
