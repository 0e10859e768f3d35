"""A driver is killed where it hurts, with its offsets in each of the other stores; then every record is counted.

Every single step is tried on SQLite and PostgreSQL; here are those at which the stores differ, and the commit itself:
the driver is frozen as soon as its request is on the way, and killed before it arrives or after it was answered.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.children import Child
from chaos.driver import Mode
from chaos.scene import Scene
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import Cut, Fault, TcpProxy
from offsetkeeper.testing.server import Server

Point = tuple[str, int]  # name of a step, and which of the steps of this name it is
APART: list[Point] = [
    ("after begin", 1),
    ("write", 2),  # the output has the first of its partitions
    ("before commit", 1),
    ("after commit", 1),
    ("before release", 1),
]
TOGETHER: list[Point] = [
    ("before transaction", 1),
    ("before output in the transaction", 1),
    ("after output in the transaction", 1),
    ("after transaction", 1),
]
FOLDER: list[Point] = [("before link", 4), ("after link", 4)]  # acquire, place and begin are the three before a commit
MAY_DOUBLE = {"write", "before commit", "before link"}
STORES: list[tuple[str, Mode, list[Point]]] = [
    ("redis", "at_least_once", APART),
    ("kafka", "at_least_once", APART),
    ("zookeeper", "at_least_once", APART),
    ("mysql", "at_least_once", APART),
    ("mysql", "transaction", TOGETHER),
    ("folder", "at_least_once", APART + FOLDER),
]
SERVED: list[tuple[str, Mode]] = [(store, mode) for store, mode, _ in STORES if store != "folder"]
SERVERS = {"redis": "redis_server", "kafka": "kafka_server", "zookeeper": "zookeeper_server", "mysql": "mariadb_server"}
COMMITS: Mapping[str, Callable[[str], bytes]] = {
    "redis": lambda _: b'"event":"commit"',
    "kafka": lambda group: f"{group}/4/".encode(),  # the fourth change: its value is compressed
    "zookeeper": lambda _: b'"event":"commit"',
    "mysql": lambda _: b"COMMIT",
}
"""By store, what is in the request that commits a group's first batch, and in no other."""


class Freeze(Fault):
    """A cut at a request of a driver that stands still from then on, and so sees nothing of it."""

    def __init__(self, proxy: TcpProxy, cut: Cut, containing: bytes, child: Child) -> None:
        super().__init__(proxy, cut, containing)
        self._child = child
        proxy._faults.append(self)

    def matches(self, request: bytes) -> bool:
        """See `Fault.matches`."""
        found = super().matches(request)
        if found:
            os.kill(self._child.pid, signal.SIGSTOP)
        return found


@pytest.mark.parametrize(("store", "mode", "points"), STORES, ids=[f"{store}-{mode}" for store, mode, _ in STORES])
def test_a_driver_killed_at_a_step_and_again_at_that_step_keeps_its_guarantee(
    scene: Scene, points: list[Point]
) -> None:
    def killed_twice(point: Point) -> None:
        name, step = point
        group = scene.new_group()
        for _ in range(2):
            killed = scene.start(group, signal=signal.SIGKILL, only=name, step=step).wait()
            assert killed in {0, -signal.SIGKILL}, scene.children.errors()
        assert scene.steps(group)[0].name == name
        assert scene.start(group).wait() == 0, scene.children.errors()
        scene.check(group, may_double=MAY_DOUBLE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(killed_twice, points))


@pytest.mark.parametrize(
    "cut",
    [pytest.param(Cut.REQUEST, id="not arrived", marks=pytest.mark.soak), pytest.param(Cut.REPLY, id="answered")],
)
@pytest.mark.parametrize(("store", "mode"), SERVED)
def test_a_driver_killed_while_its_commit_is_on_the_way_keeps_its_guarantee(
    request: pytest.FixtureRequest, scene: Scene, store: str, mode: Mode, cut: Cut
) -> None:
    server, group = request.getfixturevalue(SERVERS[store]), scene.new_group()
    last = "after output in the transaction" if mode == "transaction" else "before commit"
    with proxy_of(server) as proxy:
        url = scene.url.replace(f":{server.port}", f":{proxy.port}")
        child = scene.start(group, signal=signal.SIGSTOP, only=last, step=1, url=url)
        assert child.wait() is None, scene.children.errors()
        freeze = Freeze(proxy, cut, COMMITS[store](group), child)
        assert child.go_on() is None, scene.children.errors()
        freeze.wait()
        child.kill()
    _, history = scene.ledger(group)
    landed = "commit" in {entry.event for entry in history}
    # Brokers answer what was asked before, while they still append; all others have done what they were asked.
    assert landed == (cut is Cut.REPLY) or (landed, store) == (False, "kafka")
    assert scene.start(group).wait() == 0, scene.children.errors()
    scene.check(group, may_double=() if landed or mode == "transaction" else MAY_DOUBLE)


def proxy_of(server: Server) -> TcpProxy:
    """Return a proxy in front of a server."""
    return server.proxy() if isinstance(server, KafkaServer) else TcpProxy("127.0.0.1", server.port)
