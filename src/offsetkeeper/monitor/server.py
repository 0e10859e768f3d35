"""The server: one process that polls, serves pages and sends alarms, until a signal."""

from __future__ import annotations

import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import uvicorn

from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.alerts import Rule
from offsetkeeper.monitor.app import Site
from offsetkeeper.monitor.changes import Changes, routes
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.connections import Connection
from offsetkeeper.monitor.gate import Gate
from offsetkeeper.monitor.metric_names import Detail
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.monitor.webhook import teller

_GRACE_S = 3
_AT_ONCE = 16  # connections that are let in before others have their turn
_WAITING = 1024  # connections that wait to be let in; the network lets a client ask again after a second, or three
_FILES = 2048  # those of all connections, of the store and of Kafka; macOS gives 256
_SWITCH_S = 0.001  # between threads: else a page waits long for the poll that is under way


@dataclass(frozen=True, slots=True)
class Serving:
    """Settings of a server.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        names: under which it may be reached, besides localhost and all addresses.
        every_s: seconds between two polls.
        token: allows changes to whoever has it; empty allows none.
        rules: of the alarms.
        webhook: URL to send them to; empty sends none.
        proxies: addresses or networks of proxies whose word on who asks is taken.
        base: path under which browsers reach the server behind a proxy; empty for `/`.
        metrics: whether there are metrics of each partition, or of groups and their topics only.
        kafka_exporter: whether there are also those with the names of kafka_exporter.
        otlp: whether metrics are sent to a collector too, as the variables OTEL_… say.
    """

    host: str = "127.0.0.1"
    port: int = 8117
    names: frozenset[str] = frozenset()
    every_s: float = 5.0
    token: str = field(default="", repr=False)
    rules: Sequence[Rule] = ()
    webhook: str = field(default="", repr=False)
    proxies: Sequence[str] = ()
    base: str = ""
    metrics: Detail = "partitions"
    kafka_exporter: bool = False
    otlp: bool = False


def serve(store: Store, cluster: KafkaCluster, settings: Serving, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        store: the ledgers.
        cluster: Kafka.
        settings: of the server.
        ready: called with the URL once it can be opened.

    Raises:
        SettingsError: the address cannot be listened on, or a setting is wrong.
    """
    for name in ("offsetkeeper.kafka", "offsetkeeper.core.retry"):  # an outage is logged once, not at each try
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # else strangers who go away fill the log
    sys.setswitchinterval(_SWITCH_S)
    _ask_for_files()
    collector = Collector(store, cluster, settings.rules)
    poller = Poller(collector, settings.every_s, teller(settings.webhook, collector.not_told))
    changes = Changes(store, cluster, poller.poll_now)
    base, changing = settings.base, bool(settings.token)
    pages = Pages(store.address, cluster.brokers, every_s=settings.every_s, changes=changing, base=base)
    more = routes(changes, settings.token)
    site = Site(poller, pages, more, settings.metrics, kafka_exporter=settings.kafka_exporter)
    app = Gate(site.app(), frozenset(name.lower() for name in settings.names), base)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="error",  # bad requests of strangers do not matter
        proxy_headers=bool(settings.proxies),  # anybody else could write them, and the audit names who asked
        forwarded_allow_ips=[*settings.proxies],
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_AT_ONCE,
        loop="asyncio",  # for others this number has another meaning
    )
    with _listen(settings.host, settings.port) as listener, _sending(poller, settings):
        ready(_url(listener))
        _Server(config, poller).run([listener])
    poller.wait(_GRACE_S)


@contextmanager
def _sending(poller: Poller, settings: Serving) -> Iterator[None]:
    """Send the metrics to a collector, if that is asked for."""
    if not settings.otlp:
        yield
        return
    with needing_extra("--otlp needs the library", "serve,otlp"):
        from offsetkeeper.monitor.otlp import Otlp  # noqa: PLC0415 - the libraries of an extra
    otlp = Otlp(lambda: poller.view, settings.metrics)
    otlp.start()
    try:
        yield
    finally:
        otlp.stop()


class _Server(uvicorn.Server):
    """Lets clients in by turns, and lets go of the pages that listen before it waits for its connections to end."""

    def __init__(self, config: uvicorn.Config, poller: Poller) -> None:
        super().__init__(config)
        self._poller = poller

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin. For asyncio, those that wait and those that are let in at once are one number."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_WAITING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. Uvicorn's own method would raise the signal again at the end, as after a failure."""
        del frame
        self._poller.stop()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _ask_for_files() -> None:
    """Let the process have `_FILES` open files, or as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_WAITING)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"{host} port {port} cannot be listened on: {error}. Choose with --host and --port"
        ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
