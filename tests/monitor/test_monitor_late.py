"""A poll that hangs is told by all that Prometheus, a probe or a person looks at, and so is its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import httpx
import pytest

from fixtures.foul import FOUL, SECRET
from monitor.scene import LIMIT_S, Scene, Served
from offsetkeeper.core import environment
from offsetkeeper.core.store import Store
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor import app
from offsetkeeper.monitor.app import Site
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer

EVERY_S, LATE_S = 5.0, 120.0
PATHS = ("/healthz", "/metrics", "/api/health", "/", "/groups/shop", "/api/groups", "/api/lag/shop")
UP = [f'offsetkeeper_up{{part="{part}"}} ' for part in ("store", "kafka")]


class Later(environment.Environment):
    """The machine's clock, some seconds ahead."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        """See `Environment.now_ms`."""
        return super().now_ms() + int(self.ahead_s * 1000)

    def monotonic(self) -> float:
        """See `Environment.monotonic`."""
        return super().monotonic() + self.ahead_s


class Gated:
    """A store whose groups can be asked for while the gate is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        assert self.gate.wait(LIMIT_S)
        return self._store.groups()


def test_a_poll_that_hangs_is_told_and_so_is_its_end(scene: Scene) -> None:
    scene.group("shop", scene.topic(1, 5), [2])
    store: Any = Gated(scene.open())
    later = Later()
    with KafkaCluster(scene.server.bootstrap) as cluster, environment.using(later):
        poller = Poller(Collector(store, cluster), EVERY_S, print)
        site = Site(poller, Pages("store", "brokers", every_s=EVERY_S, changes=False), []).app()

        async def told() -> dict[str, httpx.Response]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://localhost") as client:
                return {path: await client.get(path) for path in PATHS}

        async def look() -> None:
            poller.start()
            assert await poller.next(LIMIT_S)
            fresh = await told()
            store.gate.clear()
            poller.poll_now()
            later.ahead_s = LATE_S - 20
            late = await told()
            later.ahead_s = LATE_S
            hung = await told()
            again = await told()
            store.gate.set()
            assert await poller.next(LIMIT_S)
            healed = await told()
            poller.stop()
            _judge(fresh, late, hung, again, healed)

        _run(look)
        poller.wait(LIMIT_S)


def test_polls_that_are_slow_and_end_are_no_poll_that_hangs(scene: Scene) -> None:
    store: Any = Gated(scene.open())
    later = Later()
    with KafkaCluster(scene.server.bootstrap) as cluster, environment.using(later):
        poller = Poller(Collector(store, cluster), EVERY_S, print)

        async def look() -> None:
            store.gate.clear()
            poller.start()
            later.ahead_s = LATE_S - 1
            assert poller.alive
            store.gate.set()
            assert await poller.next(LIMIT_S)
            store.gate.clear()
            poller.poll_now()
            later.ahead_s = 2 * LATE_S - 20  # since the first poll began; it has ended just now
            assert poller.alive
            assert poller.age_s > LATE_S
            later.ahead_s = 2 * LATE_S
            assert not poller.alive
            store.gate.set()
            poller.stop()

        _run(look)
        poller.wait(LIMIT_S)


def test_an_open_page_hears_that_polls_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page fetches its content where an event has another id than the one before."""
    monkeypatch.setattr(app, "_HEARTBEAT_S", 0.01)
    later, collector = Later(), Collector(None, None)  # type: ignore[arg-type] # neither is asked

    async def look() -> None:
        poller = Poller(collector, EVERY_S, print)
        listener = app._Events(poller)
        app._Events.listening.append(listener)
        told = listener._stream(poller)
        first = await anext(told)
        later.ahead_s = LATE_S
        parts = [await anext(told) for _ in range(5)]
        app._Events.listening.remove(listener)
        await told.aclose()  # type: ignore[attr-defined]
        [hung] = [part for part in parts if part.startswith("id: ")]  # told once; the others are heartbeats
        assert "no look has ended for 120 s" in hung
        assert hung.splitlines()[0] != first.splitlines()[0]

    with environment.using(later):
        _run(look)


def _run(look: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(look())


def _judge(
    fresh: dict[str, httpx.Response],
    late: dict[str, httpx.Response],
    hung: dict[str, httpx.Response],
    again: dict[str, httpx.Response],
    healed: dict[str, httpx.Response],
) -> None:
    for well in (fresh, late, healed):
        assert well["/healthz"].status_code == 200
        assert all(f"{line}1.0" in well["/metrics"].text for line in UP)
        assert 'kafka_consumergroup_group_sum_lag{group="shop"} 3.0' in well["/metrics"].text
        assert (well["/api/lag/shop"].json()["status"], well["/api/groups"].json()[0]["error"]) == ("stopped", None)
    assert 100 <= late["/api/health"].json()["age_s"] < LATE_S
    assert (hung["/healthz"].status_code, "no look has ended for 120 s" in hung["/healthz"].text) == (503, True)
    assert all(f"{line}0.0" in hung["/metrics"].text for line in UP)
    assert 'kafka_consumergroup_group_sum_lag{group="shop"}' not in hung["/metrics"].text
    assert "no look has ended for 120 s" in hung["/"].text
    assert "no look has ended for 120 s" in hung["/groups/shop"].text
    assert hung["/api/lag/shop"].status_code == 503
    assert {*hung["/api/lag/shop"].json()} == {"error"}
    for answer in (hung["/api/lag/shop"].json(), *hung["/api/groups"].json()):
        assert "no look has ended for 120 s" in answer["error"]
    health = hung["/api/health"].json()
    assert (health["store"]["up"], health["kafka"]["up"], health["age_s"] >= LATE_S) == (False, False, True)
    assert health["at_ms"] == fresh["/api/health"].json()["at_ms"]  # of the newest look, also where it is old
    looked = [line for line in hung["/metrics"].text.splitlines() if line.startswith("offsetkeeper_look_timestamp")]
    assert looked == [line for line in fresh["/metrics"].text.splitlines() if line.startswith(looked[0].split()[0])]
    assert hung["/metrics"].text == again["/metrics"].text  # made once


@pytest.mark.parametrize("what", FOUL)
def test_what_lies_in_the_folder_hangs_no_look_and_is_the_error_of_its_group(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    folder = tmp_path_factory.mktemp("foul") / "store"
    FolderStore(f"file://{folder}").init()
    with Scene(kafka_server, f"file://{folder}") as scene:
        topic = scene.topic(1, 5)
        for group in ("shop", "well"):
            scene.group(group, topic, [2])
        FOUL[what](folder / "shop" / "000000000099.json")
        with KafkaCluster(scene.server.bootstrap) as cluster:
            collector = Collector(scene.open(), cluster)
            collector.poll()
        view = collector.view
    assert (view.store.up, view.kafka.up, view.took_s < LIMIT_S / 2) == (True, True, True)
    assert (view.groups["well"].waiting, view.groups["well"].error) == (3, "")
    assert "000000000099.json" in view.groups["shop"].error
    assert SECRET not in view.groups["shop"].error


def test_a_server_shows_the_other_groups_of_such_a_folder(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("foul") / "store"
    FolderStore(f"file://{folder}").init()
    with Scene(kafka_server, f"file://{folder}") as scene:
        topic = scene.topic(1, 5)
        for group in ("fifo", "secret", "well"):
            scene.group(group, topic, [2])
        FOUL["a FIFO"](folder / "fifo" / "000000000099.json")
        FOUL["a link to a secret"](folder / "secret" / "000000000099.json")
        with Served(scene.store, scene.server.bootstrap) as server:
            pages = [server.text(path) for path in ("/", "/groups/secret", "/api/groups", "/api/lag/secret")]
            found = server.metrics()
            errors = {each["group"]: each["error"] for each in server.json("/api/groups")}
            assert server.client.get("/healthz").status_code == 200
    assert SECRET not in "".join(pages) + server.output
    assert (errors["well"], "is a link" in errors["secret"], "is not a regular file" in errors["fifo"]) == (
        None,
        True,
        True,
    )
    assert found['offsetkeeper_up{part="store"}'] == 1
    readable = {name: found[f'offsetkeeper_group_readable{{group="{name}"}}'] for name in ("fifo", "secret", "well")}
    assert readable == {"fifo": 0, "secret": 0, "well": 1}
