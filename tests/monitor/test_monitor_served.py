"""What is served while all is well: API as the commands, metrics, pages, events; names are text, never markup."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from monitor.scene import HOSTILE, LIMIT_S, Scene, Served
from offsetkeeper.cli.main import app
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.app import Site
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.testing.server import wait_until

MOVING = {"at_ms", "seconds", "retention_used", "seconds_left", "processed_per_s", "produced_per_s", "catch_up_s"}


def still(value: object) -> object:
    """What a command printed, without what changes from one moment to the next."""
    if isinstance(value, dict):
        return {name: still(each) for name, each in value.items() if name not in {*MOVING, "error"}}
    return [still(each) for each in value] if isinstance(value, list) else value


def printed(shop: Scene, *arguments: str) -> object:
    """What a command prints with --json."""
    brokers = ["--brokers", shop.server.bootstrap] if arguments[0] in {"plan", "lag", "show"} else []
    result = CliRunner().invoke(app, [*arguments, "--store", shop.store, *brokers, "--json"])
    return still(json.loads(result.stdout))


def events(text: Iterator[str]) -> Iterator[dict[str, object]]:
    """The data of server-sent events."""
    for line in text:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


class Tags(HTMLParser):
    """All tags of a page, each with its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.text += data


@pytest.mark.parametrize("group", ["shop", "begun", "dropped"])
@pytest.mark.parametrize("command", ["show", "plan", "lag", "history", "verify"])
def test_the_api_answers_what_the_command_prints(served: Served, shop: Scene, command: str, group: str) -> None:
    assert still(served.json(f"/api/{command}/{group}")) == printed(shop, command, group)


def test_the_api_lists_what_the_command_lists(served: Served, shop: Scene) -> None:
    assert still(served.json("/api/groups")) == printed(shop, "groups")
    assert len(served.json("/api/history/shop?limit=2")) == 2


def test_no_browser_and_no_scraper_asks_store_or_kafka(shop: Scene) -> None:
    """All are answered from the poll there was, also after store and Kafka are closed."""
    with KafkaCluster(shop.server.bootstrap) as cluster:
        collector = Collector(shop.open(), cluster)
        collector.poll()
        collector._store = collector._cluster = None  # type: ignore[assignment]
    poller = Poller(collector, 5, print)
    site = Site(poller, Pages("store", "brokers", every_s=5, changes=False), []).app()  # nothing polls: no lifespan

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://localhost") as client:
            commands = ("show", "lag", "plan", "history", "verify")
            paths = ["/", "/groups/shop", "/metrics", "/healthz", "/api/groups", *(f"/api/{c}/shop" for c in commands)]
            return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(ask()) == [200] * 10


def test_metrics_have_the_names_that_known_exporters_use(served: Served, shop: Scene) -> None:
    topic = next(iter(shop.ids))
    found = served.metrics()
    of = f'group="shop",partition="0",topic="{topic}"'
    assert found[f"kafka_consumergroup_group_offset{{{of}}}"] == 4
    assert found[f"kafka_consumergroup_group_lag{{{of}}}"] == 6
    assert 5 < found[f"kafka_consumergroup_group_lag_seconds{{{of}}}"] < 300
    assert found[f'kafka_consumergroup_group_topic_sum_lag{{group="shop",topic="{topic}"}}'] == 6
    assert found['kafka_consumergroup_group_sum_lag{group="shop"}'] == 6
    assert found['kafka_consumergroup_group_max_lag{group="shop"}'] == 6
    assert found[f'kafka_partition_latest_offset{{partition="0",topic="{topic}"}}'] == 10
    assert found[f'kafka_partition_earliest_offset{{partition="0",topic="{topic}"}}'] == 0
    assert found['offsetkeeper_group_status{group="shop",status="stopped"}'] == 1
    assert found['offsetkeeper_group_status{group="shop",status="ok"}'] == 0
    assert found['offsetkeeper_up{part="store"}'] == found['offsetkeeper_up{part="kafka"}'] == 1
    assert all(math.isfinite(value) and value >= 0 for value in found.values())


def test_a_hostile_name_is_one_metric_and_no_more(served: Served) -> None:
    quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    assert served.metrics()[f'kafka_consumergroup_group_sum_lag{{group="{quoted}"}}'] == 0


@pytest.mark.parametrize("path", ["/", f"/groups/{quote(HOSTILE, safe='')}"])
def test_names_are_text_and_never_markup(served: Served, path: str) -> None:
    answer = served.client.get(path)
    page = Tags(answer.text)
    assert answer.status_code == 200
    assert HOSTILE in page.text
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"src": "/static/page.js", "type": "module"}
    ]
    assert ("<b>host</b>" in page.text) is (path != "/")
    assert "<b>host" not in answer.text
    assert not [name for _, attributes in page.tags for name in attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("path", ["/", "/groups/shop", "/words"])
def test_nothing_leads_to_other_hosts_and_nothing_runs_inline(served: Served, path: str) -> None:
    page = Tags(served.text(path))
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in {"src", "href"}]
    assert "/words" in sources  # the meaning of the words too
    assert all(value is not None and value[0] in "/#" and not value.startswith("//") for value in sources)
    policy = served.client.get(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    for name in ("page.js", "page.css", "icon.svg"):
        answer = served.client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)[a-z]", answer.text.replace("// ", ""))


def test_the_page_of_a_group_has_all_of_it(served: Served, shop: Scene) -> None:
    page = Tags(served.text("/groups/shop")).text
    for expected in (
        "stopped",
        next(iter(shop.ids)),
        "Lag over time",
        "Batches",
        "resume",
        "None in 4 changes",
        "commit",
    ):
        assert expected in page


def test_the_page_names_a_batch_that_a_reset_has_dropped_and_what_may_count_as_done(
    served: Served, shop: Scene
) -> None:
    page, topic = Tags(served.text("/groups/dropped")).text, next(iter(shop.ids))
    assert "was dropped by a reset: 4 offsets of 2 ranges; the next start asks its outputs whether they have it" in page
    assert f"these ranges count as done, and are not read again: {topic} 0 3 5. If not, it reads from the" in page


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/groups/nobody", 404),
        ("/api/lag/nobody", 404),
        ("/nothing", 404),
        ("/static/../page.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/api/history/shop?limit=x", 200),
        ("/api/history/shop?limit=99999999999999999999", 200),
        pytest.param("/api/history/shop?limit=" + "9" * 5000, 200, id="a limit of 5,000 digits"),
        ("/groups/", 404),
    ],
)
def test_what_is_not_there_is_told(served: Served, path: str, code: int) -> None:
    assert served.client.get(path).status_code == code


@pytest.mark.parametrize("path", ["/api/show/", "/groups/"])
def test_a_name_that_is_too_long_for_a_group_is_not_repeated(served: Served, path: str) -> None:
    """Answers are kept for a while, and many would take all memory while the store is away."""
    for name, repeated in [("x" * 249, True), ("x" * 250, False), ("\U0001f600" * 63, False)]:
        answer = served.client.get(path + name)
        assert answer.status_code == 404
        assert (name in answer.text) is repeated


def test_names_in_a_page_that_is_not_there_are_text_too(served: Served) -> None:
    page = Tags(served.client.get("/groups/%3Cimg%20src=x%20onerror=alert(1)%3E").text)
    assert "<img src=x onerror=alert(1)>" in page.text
    assert [attributes["src"] for tag, attributes in page.tags if tag == "img"] == ["/static/icon.svg"]


def test_a_host_that_is_not_ours_is_refused(served: Served) -> None:
    """A page elsewhere, whose name its DNS points here, gets nothing."""
    port = served.url.rpartition(":")[2]
    for path in ("/", "/metrics", "/api/groups", "/static/page.js", "/events"):
        refused = served.client.get(path, headers={"host": f"evil.example:{port}"})
        assert refused.status_code == 421
        assert "shop" not in refused.text
    assert served.client.get("/", headers={"host": f"localhost:{port}"}).status_code == 200


def test_read_only_refuses_every_change(served: Served) -> None:
    for action in ("reset", "rewind", "undo", "execute"):
        refused = served.post(f"/api/{action}/shop", {"to": "earliest", "all_topics": True})
        assert (refused.status_code, "read-only" in refused.json()["error"]) == (403, True)
        assert served.client.get(f"/api/{action}/shop").status_code == 405
    assert "Preview" not in served.text("/groups/shop")


def test_health_is_told(served: Served) -> None:
    assert served.client.get("/healthz").text.startswith("ok, ")


def test_events_follow_a_commit(scene: Scene) -> None:
    """A page hears of a poll, then finds the new commit in it."""
    topic = scene.topic(1, 20)
    scene.group("live", topic, [3], held=True)
    with Served(scene.store, scene.server.bootstrap) as server:
        with server.client.stream("GET", "/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            told = events(stream.iter_lines())
            numbers = [int(str(next(told)["look"]))]
            scene.commit("live", topic, [13])
            while server.json("/api/lag/live")["records"] != 7:
                numbers.append(int(str(next(told)["look"])))
        assert numbers == sorted(set(numbers))
        assert server.json("/api/history/live")[0]["event"] == "commit"
        assert "Held by" in server.text("/groups/live")


def test_a_signal_ends_it_though_pages_listen(scene: Scene) -> None:
    scene.group("live", scene.topic(1, 1), [1])
    with Served(scene.store, scene.server.bootstrap) as server, server.client.stream("GET", "/events") as stream:
        told = events(stream.iter_lines())  # kept: the connection ends with it
        assert next(told)["look"]
        errors = server.stop()
    assert server.code == 0
    assert errors == ""


def test_a_new_group_appears_and_one_with_many_partitions_is_shown_in_part(scene: Scene) -> None:
    topic = scene.topic(250, 2)
    with Served(scene.store, scene.server.bootstrap) as server:
        assert "The store has no groups yet" in server.text("/")
        scene.group("wide", topic, [index % 2 for index in range(250)])
        wait_until(lambda: "wide" in server.text("/"), "the group appeared", LIMIT_S)
        rows = '<th scope="row" class="n"'  # of partitions, and of the four changes, which a poll may see in part
        wait_until(lambda: server.text("/groups/wide").count(rows) == 200 + 4, "all changes are seen", LIMIT_S)
        page = server.text("/groups/wide")
        assert "Show all 250" in page
        assert server.text("/groups/wide?all").count(rows) == 250 + 4
