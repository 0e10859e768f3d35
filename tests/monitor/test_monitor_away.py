"""What is away is said, nothing crashes, and nobody waits for it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from monitor.scene import LIMIT_S, Scene, Served
from offsetkeeper import Ledger, Position, TopicPartition
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.model import Snapshot
from offsetkeeper.errors import NotAuthorized
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor import kafka_poll
from offsetkeeper.monitor.alerts import Rule, read_rules
from offsetkeeper.monitor.app import group_json
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.formatting import clock
from offsetkeeper.monitor.metrics import exposition
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.operate.fence import fence
from offsetkeeper.operate.status import Status
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import wait_until


def up(server: Served, part: str) -> float:
    """What the metric says of the store, or of Kafka."""
    return server.metrics()[f'offsetkeeper_up{{part="{part}"}}']


def test_a_store_that_is_away_is_said_and_comes_back(
    kafka_server: KafkaServer, postgresql_server: PostgreSQLServer
) -> None:
    database = postgresql_server.create_database()
    with TcpProxy("127.0.0.1", postgresql_server.port) as proxy:
        url = postgresql_server.url(database, port=proxy.port)
        with Scene(kafka_server, url) as scene:
            scene.group("shop", scene.topic(1, 5), [2])
        with Served(url, kafka_server.bootstrap) as server:
            assert up(server, "store") == 1
            proxy.refuse()
            wait_until(lambda: up(server, "store") == 0, "the store is away", LIMIT_S)
            assert "The store is away" in server.text("/")
            assert "shop" in server.text("/")  # as it was last seen
            assert "The store is away" in server.text("/groups/shop")
            assert not [name for name in server.metrics() if 'group="shop"' in name]
            assert server.client.get("/healthz").status_code == 200
            for command in ("show", "lag", "plan", "history", "verify"):  # what was last known is not how it is
                answer = server.client.get(f"/api/{command}/shop")
                assert (answer.status_code, {*answer.json()}) == (503, {"error"})
                assert answer.json()["error"].startswith("postgresql://")
            [listed] = server.json("/api/groups")
            assert (listed["group"], listed["error"][:13]) == ("shop", "postgresql://")
            proxy.heal()
            wait_until(lambda: up(server, "store") == 1, "the store is back", LIMIT_S)
            assert "is away" not in server.text("/")
            assert server.metrics()['kafka_consumergroup_group_sum_lag{group="shop"}'] == 3
            assert (server.json("/api/lag/shop")["records"], server.json("/api/groups")[0]["error"]) == (3, None)
        assert server.output.count("the store is away") == server.output.count("the store answers again") == 1
        assert "postgres@" not in server.output


def test_a_store_whose_folder_is_a_fifo_is_said_and_comes_back(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """To open a FIFO may wait for ever, and a poll that waits says nothing."""
    root, aside = tmp_path / "store", tmp_path / "aside"
    FolderStore(f"file://{root}").init()
    with Scene(kafka_server, f"file://{root}") as scene:
        scene.group("shop", scene.topic(1, 5), [2])
    with Served(f"file://{root}", kafka_server.bootstrap) as server:
        assert up(server, "store") == 1
        root.rename(aside)
        os.mkfifo(root)
        wait_until(lambda: up(server, "store") == 0, "the store is away", LIMIT_S)
        assert "shop" in server.text("/")  # as it was last seen
        assert server.client.get("/healthz").status_code == 200
        root.unlink()
        aside.rename(root)
        wait_until(lambda: up(server, "store") == 1, "the store is back", LIMIT_S)
        assert server.metrics()['kafka_consumergroup_group_sum_lag{group="shop"}'] == 3


def test_kafka_that_is_away_is_said_while_the_store_is_shown(scene: Scene) -> None:
    topic = scene.topic(1, 5)
    scene.group("shop", topic, [2])
    with scene.server.proxy() as proxy, Served(scene.store, proxy.address) as server:
        assert server.metrics()['kafka_consumergroup_group_sum_lag{group="shop"}'] == 3
        proxy.refuse()
        wait_until(lambda: up(server, "kafka") == 0, "Kafka is away", LIMIT_S)
        assert up(server, "store") == 1
        page = server.text("/groups/shop")
        assert "Kafka is away" in page
        assert "Lag and plan are as last known, at" in page
        assert '<td class="n strong" data-label="Waiting">3</td>' in page
        assert f"""<span class="sub">at {clock(server.json("/api/health")["kafka"]["since_ms"])[:3]}""" in server.text(
            "/"
        )
        found = server.metrics()
        assert found['offsetkeeper_group_version{group="shop"}'] == 4
        assert not [name for name in found if name.startswith("kafka_")]
        assert server.json("/api/lag/shop")["status"] is None
        assert server.json("/api/plan/shop") is None
        assert server.json("/api/history/shop")[0]["event"] == "release"
        for path in ("/", "/groups/shop", "/metrics", "/healthz", "/api/groups", "/api/show/shop"):
            assert server.client.get(path).status_code == 200
        proxy.heal()
        wait_until(lambda: up(server, "kafka") == 1, "Kafka is back", LIMIT_S)
        assert server.metrics()['kafka_consumergroup_group_sum_lag{group="shop"}'] == 3


def test_a_store_that_was_never_there_is_said(kafka_server: KafkaServer, tmp_path: Path) -> None:
    with Served(f"sqlite:///{tmp_path}/no-such-folder/offsets.db", kafka_server.bootstrap) as server:
        assert "The store is away" in server.text("/")
        assert up(server, "store") == 0
        assert [server.client.get(f"/api/{path}").status_code for path in ("lag/shop", "groups")] == [503, 503]


def test_a_group_whose_positions_are_lost_is_refused_and_one_whose_ledger_is_damaged_answers_nothing_old(
    scene: Scene,
) -> None:
    topic = scene.topic(1, 5)
    for name in ("lost", "damaged"):
        scene.group(name, topic, [2])
    with Served(scene.store, scene.server.bootstrap) as server:
        assert server.json("/api/lag/lost")["status"] == "stopped"
        assert len(server.json("/api/plan/damaged")["partitions"]) == 1
        with closing(sqlite3.connect(scene.store.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("DELETE FROM kafka_offsets WHERE group_id = 'lost'")
            connection.execute("UPDATE offsetkeeper_groups SET control = 'x' WHERE group_id = 'damaged'")
        wait_until(lambda: server.json("/api/lag/lost")["status"] == "refused", "it is refused", LIMIT_S)
        assert server.json("/api/lag/lost")["records"] is None
        for command in ("show", "plan", "history", "verify"):
            answer = server.client.get(f"/api/{command}/damaged")
            assert (answer.status_code, "is not a control record" in answer.json()["error"]) == (503, True)


def test_a_topic_that_kafka_refuses_to_describe_is_not_readable_again_while_kafka_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {name: scene.topic(1, 5) for name in ("shop", "orders")}
    for name, topic in topics.items():
        scene.group(name, topic, [2])
    describe = KafkaCluster.describe

    def refuse(self: KafkaCluster, asked: Iterable[str]) -> dict[str, TopicDescription]:
        if topics["orders"] in (names := list(asked)):
            raise NotAuthorized("no right to orders")
        return describe(self, names)

    monkeypatch.setattr(KafkaCluster, "describe", refuse)
    readable = "offsetkeeper_group_readable"
    with scene.server.proxy() as proxy, KafkaCluster(proxy.address, timeout_s=3) as cluster:
        collector = Collector(scene.open(), cluster, read_rules([{"name": "spoilt", "unreadable": True}], "here"))
        assert [each.state for each in collector.poll()] == ["fired"]
        assert f'{readable}{{group="orders"}} 0.0' in exposition(collector.view).decode()
        proxy.refuse()
        assert collector.poll() == []
        assert not collector.view.kafka.up
        assert f"{readable}{{" not in exposition(collector.view).decode()
        assert [alarm.key for alarm in collector.view.alarms] == [("spoilt", "orders")]
        proxy.heal()
        assert collector.poll() == []
        assert f'{readable}{{group="orders"}} 0.0' in exposition(collector.view).decode()
        assert f'{readable}{{group="shop"}} 1.0' in exposition(collector.view).decode()
        monkeypatch.undo()
        monkeypatch.setattr(kafka_poll, "_DESCRIBED_S", 0.0)
        assert [each.state for each in collector.poll()] == ["resolved"]


def test_a_store_that_was_emptied_resolves_nothing_and_is_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    topic = scene.topic(1, 5)
    for name in ("shop", "till"):
        scene.group(name, topic, [2])
    rules = read_rules(
        [{"name": "down", "status": "stopped", "groups": ["shop"]}, {"name": "far", "records": 9}], "here"
    )
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster, rules)
        assert [(each.state, *each.key) for each in collector.poll()] == [("fired", "down", "shop")]
        with sqlite3.connect(scene.store.removeprefix("sqlite:///")) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f"DELETE FROM {name}")  # noqa: S608 - ours
        connection.close()
        told = [(each.state, *each.key) for each in collector.poll()]
        assert told == [("gone", "down", "shop"), ("gone", "far", "till")]
        assert collector.poll() == []
        assert list(collector.view.gone) == ["shop", "till"]
        assert [alarm.key for alarm in collector.view.alarms] == [("down", "shop")]
        page = Pages("store", "kafka", every_s=5, changes=False).groups(collector.view)
        assert "Gone from the store: <bdi>shop</bdi>, <bdi>till</bdi>" in page
        assert "no groups yet" not in page
        scene.group("shop", topic, [5])
        assert [(each.state, *each.key) for each in collector.poll()] == [("resolved", "down", "shop")]
        assert list(collector.view.gone) == ["till"]
    assert [text for text in caplog.messages if "no more" in text] == [
        f"the store has the ledger of group {name!r} no more" for name in ("shop", "till")
    ]


def test_a_store_that_went_back_is_told_until_its_version_is_past_the_old_one(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    topic = scene.topic(1, 9)
    scene.group("shop", topic, [2], held=True)
    file = Path(scene.store.removeprefix("sqlite:///"))
    with sqlite3.connect(file) as connection, closing(sqlite3.connect(f"{file}.backup")) as backup:
        connection.backup(backup)
    scene.commit("shop", topic, [4])
    pages = Pages("store", "kafka", every_s=5, changes=False)
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster, read_rules([{"name": "far", "records": 100}], "here"))
        assert collector.poll() == []
        newest = collector.view.groups["shop"].snapshot.version
        with closing(sqlite3.connect(f"{file}.backup")) as backup, closing(sqlite3.connect(file)) as connection:
            backup.backup(connection)
        assert collector.poll() == []  # one answer may be an old one
        [back] = collector.poll()
        here = collector.view.groups["shop"].snapshot.version
        said = f"the store went back: it has version {here} of the ledger, and had {newest}"
        assert (back.state, back.key.group) == ("back", "shop")
        assert back.as_dict()["text"].startswith(f"back: far, group shop: {said}. Next: do not start the job at once")
        assert "do not start at once" in pages.groups(collector.view)
        assert f"{said[1:]}.</strong>" in pages.group(collector.view, "shop")
        assert "Next:" not in pages.group(collector.view, "shop")
        assert collector.poll() == []
        collector.not_told(back._replace(at_ms=back.at_ms - 60_000))
        assert [each.state for each in collector.poll()] == ["back"]
        ledger = Ledger(scene.open(), "shop", name="host:2")
        while ledger.snapshot.version <= newest:
            ledger.acquire("start")
            ledger.release("end")
        assert collector.poll() == []
        assert "went back" not in pages.group(collector.view, "shop")
    assert [said in text for text in caplog.messages if "went back" in text] == [True, True]


def restored_to_first(scene: Scene, collector: Collector, topic: str, *, held: bool = False) -> Path:
    """Let a collector see a group, put back an older copy of its store, and let it say so; return the store's file."""
    scene.group("shop", topic, [2], held=held)
    file = Path(scene.store.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(f"{file}.backup")) as backup:
        connection.backup(backup)
    ledger = Ledger(scene.open(), "shop", name="host:2")
    for _ in range(9):
        ledger.acquire("start")
        ledger.release("end")
    assert collector.poll() == []
    with closing(sqlite3.connect(f"{file}.backup")) as backup, closing(sqlite3.connect(file)) as connection:
        backup.backup(connection)
    collector.poll()
    collector.poll()
    assert collector.view.groups["shop"].went_back
    return file


@pytest.mark.parametrize("how", ["holds", "has committed and ended"])
def test_a_store_that_went_back_is_not_told_any_more_once_a_run_has_begun(scene: Scene, how: str) -> None:
    """It was dealt with, and the page said "do not start at once" until thousands of batches were committed."""
    topic = scene.topic(1, 9)
    pages = Pages("store", "kafka", every_s=5, changes=False)
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        restored_to_first(scene, collector, topic, held=True)
        fence(Ledger(scene.open(), "shop", name="an operator"), "restored")
        collector.poll()
        assert "do not start at once" in pages.groups(collector.view)
        scene.ledgers["shop"] = ledger = Ledger(scene.open(), "shop", name="host:3")
        ledger.acquire("start")
        if "committed" in how:
            scene.commit("shop", topic, [4])
            ledger.release("end")
        collector.poll()
        assert "do not start at once" not in pages.groups(collector.view)
        assert 'id="went-back"' not in pages.group(collector.view, "shop")


def test_a_group_that_is_gone_and_made_again_did_not_go_back(scene: Scene) -> None:
    topic = scene.topic(1, 9)
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        file = restored_to_first(scene, collector, topic)
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f"DELETE FROM {table} WHERE group_id = 'shop'")  # noqa: S608 - ours
        collector.poll()
        assert list(collector.view.gone) == ["shop"]
        scene.group("shop", topic, [2])
        for _ in range(2):
            assert not collector.poll()
            assert not collector.view.groups["shop"].went_back


def test_one_ledger_that_cannot_be_read_hides_no_other(scene: Scene) -> None:
    topic = scene.topic(1, 5)
    for name in ("broken", "shop"):
        scene.group(name, topic, [2])
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
        with sqlite3.connect(scene.store.removeprefix("sqlite:///")) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            [groups] = [name for name in tables if "group" in name]
            connection.execute(f"UPDATE {groups} SET control = 'x' WHERE group_id = 'broken'")  # noqa: S608 - ours
        connection.close()
        collector.poll()
        fresh = Collector(scene.open(), cluster)
        fresh.poll()
    view = collector.view
    assert view.store.up
    never_read = group_json("broken", fresh.view.groups["broken"])
    assert never_read == {"group": "broken", "error": fresh.view.groups["broken"].error}
    listed = {name: group_json(name, sample) for name, sample in view.groups.items()}
    assert (listed["shop"]["error"], listed["shop"]["version"]) == (None, 4)
    assert (listed["broken"]["error"], listed["broken"]["version"]) == (never_read["error"], 4)  # as it was last seen
    assert "is not a control record" in view.groups["broken"].error
    assert view.groups["broken"].waiting == 3  # as it was last seen
    assert view.groups["shop"].status is Status.STOPPED
    assert list(view.fresh()) == ["shop"]
    scraped = exposition(view).decode()
    assert 'offsetkeeper_group_readable{group="broken"} 0.0' in scraped
    assert 'offsetkeeper_group_readable{group="shop"} 1.0' in scraped


def test_one_group_with_what_nobody_thought_of_hides_no_other(scene: Scene) -> None:
    """A text that no client can decode, a number that no clock has: whatever it raises, it is this group's alone."""
    topic = scene.topic(1, 5)
    for name in ("broken", "shop"):
        scene.group(name, topic, [2])
    store = scene.open()

    class Odd:
        """The store, with one group that it fails on."""

        address = store.address
        groups = store.groups
        history = store.history

        def load(self, group: str) -> Snapshot:
            if group == "broken":
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "secret")
            return store.load(group)

    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(Odd(), cluster)  # type: ignore[arg-type] # as a client of somebody's own
        collector.poll()
    view = collector.view
    assert view.store.up
    assert view.groups["shop"].status is Status.STOPPED
    assert "UnicodeDecodeError" in view.groups["broken"].error
    assert "secret" not in view.groups["broken"].error


def test_a_rule_for_a_group_that_is_not_there_is_told_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is mistyped would never raise an alarm, and nobody would know."""
    scene.group("shop", scene.topic(1, 5), [2])
    rules = (Rule("all", "records"), Rule("some", "records", groups=("shop", "sh*", "shpo", "till-*")))
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster, rules)
        collector.poll()
        first = [text for text in caplog.messages if text.startswith("rule ")]
        collector.poll()
    assert first == [
        f"rule 'some' of the alarms is for {pattern!r}: the store has no such group yet"
        for pattern in ("shpo", "till-*")
    ]
    assert [text for text in caplog.messages if text.startswith("rule ")] == first


def test_a_topic_that_a_rule_on_retention_cannot_judge_is_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of retention that is used is unknown or too small there, so the rule would never raise an alarm."""
    by_size = {"retention.bytes": "1000000"}
    configs = {
        "usual": {},
        "for ever": {"retention.ms": "-1"},
        "compacted": {"cleanup.policy": "compact", **by_size},
        "by size": {"retention.ms": "-1", **by_size},
        "by both": by_size,
        "hidden": {},
    }
    topics = {name: scene.topic(1, 5, config) for name, config in configs.items()}
    for name, topic in topics.items():
        scene.group(name, topic, [2])
    settings = KafkaCluster.settings

    def hide(self: KafkaCluster, kind: Literal["topic"], names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: each for name, each in settings(self, kind, names).items() if name != topics["hidden"]}

    monkeypatch.setattr(KafkaCluster, "settings", hide)
    monkeypatch.setattr(kafka_poll, "_DESCRIBED_S", 0.0)
    rules = [Rule("data at risk", "retention", limit=0.8), Rule("far", "records", limit=9)]
    with KafkaCluster(scene.server.bootstrap) as cluster:
        for each in (rules[1:], rules):
            collector = Collector(scene.open(), cluster, each)
            collector.poll()
            collector.poll()
        lags = {name: sample.lags for name, sample in collector.view.groups.items()}
    sized = ", ".join(sorted(topics[name] for name in ("by size", "by both")))
    told = "'data at risk' of the alarms may miss deleted records of"
    assert [text for text in caplog.messages if "may miss" in text] == [
        f"{told} {topics['hidden']}: their settings may not be read (allow DESCRIBE_CONFIGS)",
        f"{told} {sized}: they delete records by size too (retention.bytes)",
    ]
    used = {name: each[0].retention_used is not None for name, each in lags.items() if each}
    assert used == {name: name in {"usual", "by both"} for name in topics}


def test_many_topics_that_cannot_be_judged_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector(None, None, [Rule("old", "retention")])  # type: ignore[arg-type] # neither is asked
    for count in (7, 8):
        collector._tell_unjudged({f"t{number}": "they hide" for number in range(count)})
    told = "'old' of the alarms may miss deleted records of"
    assert caplog.messages == [f"{told} t0, t1, t2, t3, t4 and 2 more: they hide", f"{told} t7: they hide"]


def test_a_topic_that_is_gone_is_said_and_no_number_is_made_up(scene: Scene) -> None:
    topic = scene.topic(1, 5)
    scene.group("shop", topic, [2])
    scene.server.delete_topic(topic)
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
    sample = collector.view.groups["shop"]
    assert (sample.error, sample.waiting, sample.status) == ("", None, Status.REFUSED)
    assert [lag.remark for lag in sample.lags or ()] == ["gone"]
    assert sample.plan is not None
    assert sample.plan.counts()["removed"] == 1


def test_what_is_no_error_of_ours_is_no_crash(scene: Scene) -> None:
    """A store of somebody's own may raise anything."""

    class Broken:
        address = "broken://"

        def groups(self) -> list[str]:
            raise KeyError("secret")

    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(Broken(), cluster)  # type: ignore[arg-type]
        collector.poll()
    assert not collector.view.store.up
    assert "KeyError" in collector.view.store.error
    assert "secret" not in collector.view.store.error


def test_history_is_read_on_from_where_it_was(scene: Scene) -> None:
    """Only new entries are asked for; a ledger that was made anew under the same name is read whole."""
    topic = scene.topic(1, 50)
    scene.group("shop", topic, [2], held=True)
    store = scene.open()
    asked: list[int] = []
    original = store.history
    store.history = lambda group, limit=100: asked.append(limit) or original(group, limit)  # type: ignore[method-assign, func-returns-value]
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(store, cluster)
        collector.poll()
        collector.poll()
        assert asked == [20]  # there were no more
        for end in range(3, 40):
            scene.commit("shop", topic, [end])
        collector.poll()
        assert asked == [20, 57]
        sample = collector.view.groups["shop"]
        assert list(sample.entries) == list(original("shop", 1000))
        assert sample.findings == []
        with sqlite3.connect(scene.store.removeprefix("sqlite:///")) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                connection.execute(f"DELETE FROM {name}")  # noqa: S608 - ours
        connection.close()
        scene.group("shop", topic, [2], held=True)
        for end in range(3, 45):
            scene.commit("shop", topic, [end])
        collector.poll()
        assert list(collector.view.groups["shop"].entries) == list(original("shop", 1000))


def test_a_reset_is_no_speed(scene: Scene) -> None:
    """Nobody has read what a reset to the end skips."""
    topic = scene.topic(1, 50)
    ledger = scene.group("shop", topic, [2])
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
        ledger.rewind({TopicPartition(topic, 0): Position(50, scene.ids[topic])}, "skip")
        collector.poll()
    total = collector.view.groups["shop"].total
    assert total is not None
    assert not total.speed.processed
