"""A text or a time that nobody can show hides itself alone: every page, and the metrics of all groups, are answered."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from importlib import resources
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest

from monitor.scene import TOKEN, Scene, Served
from monitor.test_monitor_served import Tags
from offsetkeeper import Position, TopicPartition
from offsetkeeper.monitor.pages import slug
from offsetkeeper.operate.status import Status
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer

ANY = [
    "shop",
    "team/orders:v2",
    ".",
    "..",
    "a/../b",
    "/a",
    "a//b",
    "a/",
    "a\nb\n",
    "a\rb",
    " a ",
    "a%2Fb",
    ":%2E",
    "?x#y",
]
TIMES = [10**6 * 31_557_600_000, 2**63, -(2**63), -1, 0, 1e300, 2.5]


def answers(server: Served, *groups: str, unreadable: Iterable[str] = ()) -> str:
    """Ask for all there is of all groups, and return it; each of them is answered, and `shop` is in it.

    Of a group whose ledger cannot be read, the lag has the error, and what else is asked of it is refused.
    """
    paths = ["/", "/metrics", "/api/groups", "/api/health"]
    of_group = ("/groups/", "/api/show/", "/api/lag/", "/api/plan/", "/api/history/", "/api/verify/")
    paths += [f"{path}{quote(group)}" for group in ("shop", *groups) for path in of_group]
    found = {path: server.client.get(path) for path in paths}
    refused = {f"/api/{of}/{quote(name)}": 503 for name in unreadable for of in ("show", "plan", "history", "verify")}
    assert {path: answer.status_code for path, answer in found.items() if answer.status_code != 200} == refused
    assert server.metrics()['kafka_consumergroup_group_sum_lag{group="shop"}'] == 3
    assert "shop" in found["/"].text
    return "".join(answer.text for answer in found.values())


@pytest.mark.parametrize("at_ms", TIMES, ids=str)
def test_an_absurd_time_in_the_history_hides_nothing(scene: Scene, at_ms: float) -> None:
    topic = scene.topic(1, 5)
    for name in ("shop", "odd"):
        scene.group(name, topic, [2])
    with closing(sqlite3.connect(scene.store.removeprefix("sqlite:///"))) as connection, connection:
        for version, entry in connection.execute(
            "SELECT version, entry FROM offsetkeeper_history WHERE group_id = 'odd'"
        ).fetchall():
            edited = json.dumps({**json.loads(entry), "at_ms": at_ms}, separators=(",", ":"))
            row = (edited, version)
            connection.execute("UPDATE offsetkeeper_history SET entry = ? WHERE group_id = 'odd' AND version = ?", row)
    with Served(scene.store, scene.server.bootstrap) as server:
        answers(server, "odd")
        assert server.metrics()['kafka_consumergroup_group_sum_lag{group="odd"}'] == 3
        assert [entry["event"] for entry in server.json("/api/history/odd")] == [
            "release",
            "commit",
            "place",
            "acquire",
        ]


def test_bytes_that_are_no_text_hide_only_what_has_them(scene: Scene) -> None:
    """Rows that another program wrote into the store's tables, each with bytes of Latin-1."""
    topic = scene.topic(1, 5)
    for name in ("shop", "of entry", "of history", "of control", "of topic"):
        scene.group(name, topic, [2])
    with closing(sqlite3.connect(scene.store.removeprefix("sqlite:///"))) as connection, connection:
        spoilt = "CAST(CAST({} AS BLOB) || x'e4' AS TEXT)".format
        for table, column, group in (
            ("offsetkeeper_history", "entry", "of history"),
            ("offsetkeeper_groups", "control", "of control"),
            ("kafka_offsets", "topic", "of topic"),
        ):
            statement = f"UPDATE {table} SET {column} = {spoilt(column)} WHERE group_id = ?"  # noqa: S608 - ours
            connection.execute(statement, [group])
        latin = "CAST(replace(CAST(entry AS BLOB), CAST('start' AS BLOB), x'6772fc6e') AS TEXT)"
        connection.execute(f"UPDATE offsetkeeper_history SET entry = {latin} WHERE group_id = 'of entry'")  # noqa: S608
        values = "CAST(x'636166e9' AS TEXT), ?, 0, 1"
        connection.execute(
            f"INSERT INTO kafka_offsets (group_id, topic, partition, 'offset') VALUES ({values})",  # noqa: S608 - ours
            [topic],
        )
    with Served(scene.store, scene.server.bootstrap) as server:
        lost = ("of control", "of topic")
        told = answers(server, "of entry", "of history", *lost, unreadable=lost)
        assert "gr\ufffdn" in told
        found = server.metrics()
        readable = {name: found[f'offsetkeeper_group_readable{{group="{name}"}}'] for name in scene.ledgers}
        assert readable == {"shop": 1, "of entry": 1, "of history": 0, "of control": 0, "of topic": 0}
        # A history that cannot be read is no reason not to know how far the group is.
        assert found['kafka_consumergroup_group_sum_lag{group="of history"}'] == 3


def test_a_reason_in_another_encoding_is_kept_as_far_as_it_can_be_shown(scene: Scene) -> None:
    """Python makes lone surrogates of what is typed in Latin-1."""
    topic = scene.topic(1, 5)
    ledger = scene.group("shop", topic, [2], who="h\udcf6st:1")
    ledger.rewind({TopicPartition(topic, 0): Position(1, scene.ids[topic])}, "gr\udcfcn")
    ledger.rewind({TopicPartition(topic, 0): Position(2, scene.ids[topic])}, "back")
    with Served(scene.store, scene.server.bootstrap, token=TOKEN) as server:
        told = answers(server)
        assert "gr?n" in told
        assert "h?st:1" in told
        half = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        for action, body in (("execute", '{"digest": "x", "reason": "\\ud800"}'), ("reset", '{"to": "\\udcff"}')):
            answer = server.client.post(f"/api/{action}/shop", content=body.encode(), headers=half)
            assert answer.status_code == 400
        assert server.client.get("/groups/%ff").status_code == 404
        assert server.client.get("/api/lag/%ed%a0%80").status_code == 404
        answers(server)


def test_a_folder_whose_name_is_not_utf8_hides_no_other(kafka_server: KafkaServer, tmp_path: Path) -> None:
    FolderStore(f"file://{tmp_path}").init()
    with Scene(kafka_server, f"file://{tmp_path}") as scene:
        scene.group("shop", scene.topic(1, 5), [2])
        shutil.copytree(tmp_path / "shop", tmp_path / os.fsdecode(b"caf\xe9"))
        assert scene.open().groups() == ["shop"]
        with Served(scene.store, scene.server.bootstrap) as server:
            answers(server)


def test_each_status_has_a_colour_of_its_kind() -> None:
    """Without one, a status that needs somebody looks like one that is unknown."""
    style = resources.files("offsetkeeper.monitor").joinpath("static/page.css").read_text("utf-8")
    toned = {name for rule in re.findall(r"^(.+) \{ --tone:", style, re.MULTILINE) for name in rule.split(", ")}
    assert {f".{slug(word)}" for word in Status} - toned == set()


def test_a_group_of_any_name_has_its_page_its_answers_and_its_changes(scene: Scene) -> None:
    """By the links of the page, as a browser follows them: it drops `..`, and a slash would begin another part."""
    topic = scene.topic(1, 5)
    for name in ANY:
        scene.group(name, topic, [2])
    with Served(scene.store, scene.server.bootstrap, token=TOKEN) as server:
        tags = Tags(server.text("/")).tags
        links = {each["href"] or "" for tag, each in tags if tag == "a" and (each["href"] or "").startswith("/groups/")}
        found = {}
        for link in links:
            assert str(urljoin("http://host/", link)) == f"http://host{link}"
            path = link.removeprefix("/groups/")
            assert server.client.get(link).status_code == 200
            found[server.json(f"/api/show/{path}")["group"]] = path
            assert f'data-path="{path}"' in server.text(link)
        assert sorted(found) == sorted(ANY)
        for name, path in found.items():
            plan = server.post(f"/api/reset/{path}", {"all_topics": True, "to": "earliest"}).json()
            assert server.post(f"/api/execute/{path}", {"digest": plan["digest"]}).json()["group"] == name
        with closing(scene.open()) as store:
            assert all([at.offset for at in store.load(name).positions.values()] == [0] for name in ANY)
        assert 'kafka_consumergroup_group_sum_lag{group="a\\nb\\n"}' in server.metrics()
