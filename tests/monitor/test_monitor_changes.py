"""Changes through requests: previewed, then done by the digest, by whoever has the token and from nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from monitor.scene import LIMIT_S, TOKEN, Scene, Served
from offsetkeeper import Ledger, OffsetRange, TopicPartition
from offsetkeeper.errors import Fenced
from offsetkeeper.testing.server import wait_until


class Till:
    """Group `shop` at 4 and 10 of ten records, and a server that may change it."""

    def __init__(self, scene: Scene, server: Served, topic: str) -> None:
        self.scene = scene
        self.server = server
        self.topic = topic
        self.store = scene.open()

    def offsets(self) -> list[int]:
        """Where the group stands."""
        return [at.offset for _, at in sorted(self.store.load("shop").positions.items())]

    def has_status(self, group: str, status: str) -> bool:
        """Whether a group is shown with this status."""
        return bool(self.server.json(f"/api/lag/{group}").get("status") == status)

    def preview(self, action: str = "reset", **body: Any) -> dict[str, Any]:
        """Ask what would change."""
        answer = self.server.post(f"/api/{action}/shop", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        assert not found["executed"]
        return found

    def execute(self, digest: str, code: int = 200, **body: Any) -> dict[str, Any]:
        """Have a preview done."""
        answer = self.server.post("/api/execute/shop", {"digest": digest, **body})
        assert answer.status_code == code, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="module")
def changing(kafka_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Served, str]]:
    """One server for all tests of this file."""
    with Scene(kafka_server, f"sqlite:///{tmp_path_factory.mktemp('changes')}/offsets.db") as scene:
        topic = scene.topic(2, 10)
        scene.group("shop", topic, [4, 10])
        with Served(scene.store, kafka_server.bootstrap, token=TOKEN) as server:
            yield scene, server, topic


@pytest.fixture
def till(changing: tuple[Scene, Served, str]) -> Till:
    """The group, where it stands at the beginning of each test."""
    found = Till(*changing)
    if found.offsets() != [4, 10]:
        found.execute(
            found.preview(offsets=[[found.topic, 0, 4], [found.topic, 1, 10]])["digest"], force=True, reason="back"
        )
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"to": "earliest", "all_topics": True}, [0, 0]),
        ({"to": "latest", "all_topics": True}, [10, 10]),
        ({"to": 3, "all_topics": True}, [3, 3]),
        ({"shift": -2, "all_topics": True}, [2, 8]),
        ({"to": "2000-01-01T00:00:00+00:00", "all_topics": True}, [0, 0]),
    ],
    ids=str,
)
def test_a_reset_is_shown_first_and_done_by_its_digest(till: Till, body: dict[str, Any], expected: list[int]) -> None:
    found = till.preview(**body)
    assert till.offsets() == [4, 10]
    moved = {step["partition"]: step["new"] for step in found["steps"]}
    assert [moved.get(number, old) for number, old in enumerate([4, 10])] == expected
    done = till.execute(found["digest"], reason="because")
    assert done["executed"]
    assert done["notes"] == found["notes"]
    assert "streaming queries of this group" in found["notes"][0]
    assert till.offsets() == expected
    entry = till.store.history("shop", 1)[0]
    assert entry.event == "rewind"
    assert entry.reason == "because; through serve, from 127.0.0.1"


def test_a_preview_counts_by_the_history(till: Till) -> None:
    """What was skipped has not been read."""
    till.execute(till.preview(offsets=[[till.topic, 0, 8]])["digest"])
    [step] = till.preview(offsets=[[till.topic, 0, 0]])["steps"]
    assert (step["old"], step["replayed"]) == (8, 4)


def test_the_scope_may_be_a_partition(till: Till) -> None:
    assert [step["partition"] for step in till.preview(to="earliest", partitions=[[till.topic, 1]])["steps"]] == [1]
    assert len(till.preview(to="earliest", topics=[till.topic])["steps"]) == 2


def test_a_partition_that_does_not_exist_is_not_left_out_in_silence(till: Till) -> None:
    answer = till.server.post("/api/reset/shop", {"to": "earliest", "partitions": [[till.topic, 0], [till.topic, 99]]})
    assert (answer.status_code, f"{till.topic} 99 does not exist" in answer.json()["error"]) == (409, True)


def test_an_undo_may_be_of_one_partition_and_a_rewind_too(till: Till) -> None:
    till.execute(till.preview(to="earliest", all_topics=True)["digest"])
    version = till.store.load("shop").version
    till.execute(till.preview("undo", partitions=[[till.topic, 0]])["digest"])
    assert till.offsets() == [4, 0]
    till.execute(till.preview("rewind", version=version, topics=[till.topic])["digest"])
    assert till.offsets() == [0, 0]


def test_a_preview_tells_what_is_dropped_and_how_near_retention_is(till: Till) -> None:
    ledger = till.scene.ledgers["shop"]
    ledger.acquire()
    ledger.begin(batch := ledger.batch([OffsetRange(till.topic, 0, 4, 6)]))
    found = till.preview(to="earliest", all_topics=True)
    again = [[till.topic, 0, 4, 6]]
    assert (found["drops"], found["left"]) == (
        {"batch": batch.id, "written": [], "lands_in": [], "again": again, "stays": [], "unasked": []},
        [],
    )
    assert "is dropped" in found["notes"][0]
    assert 0 < found["steps"][0]["retention_used"] < 0.01
    till.execute(found["digest"], force=True)


def test_an_undo_leads_back(till: Till) -> None:
    till.execute(till.preview(to="earliest", all_topics=True)["digest"], reason="oops")
    found = till.preview("undo")
    assert till.offsets() == [0, 0]
    till.execute(found["digest"])
    assert till.offsets() == [4, 10]
    assert "undo of version" in till.store.history("shop", 1)[0].reason
    assert found["notes"][0].startswith("this takes back version ")
    assert ": oops; through serve" in found["notes"][0]
    once_more = till.server.post("/api/undo/shop", {})
    assert (once_more.status_code, "took back version" in once_more.json()["error"]) == (409, True)
    assert till.offsets() == [4, 10]
    till.execute(till.preview("undo", again=True)["digest"])
    assert till.offsets() == [0, 0]


def test_what_retention_has_deleted_is_clipped_on_request_and_counted(till: Till) -> None:
    """The error advises --clip, and no request could say so."""
    topic = till.scene.topic(1, 10)
    till.scene.group("cut", topic, [4])
    admin = till.scene.server.admin()
    [cut] = admin.delete_records([KafkaPartition(topic, 0, 7)]).values()
    assert cut.result(LIMIT_S).low_watermark == 7
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("reset", {"to": 2, "topics": [topic]}, 2),
        ("rewind", {"version": 2}, 0),
    ]
    for action, body, to in asked:
        refused = till.server.post(f"/api/{action}/cut", body)
        assert (refused.status_code, "--clip takes the nearest one" in refused.json()["error"]) == (409, True)
        [step] = till.server.post(f"/api/{action}/cut", {**body, "clip": True}).json()["steps"]
        assert (step["new"], step["lost"]) == (7, 7 - to)


def test_a_rewind_leads_to_a_version(till: Till) -> None:
    till.execute(till.preview("rewind", version=2)["digest"])
    assert till.offsets() == [0, 0]


def test_what_moved_in_between_is_refused(till: Till) -> None:
    found = till.preview(to="earliest", all_topics=True)
    till.execute(till.preview(to=5, all_topics=True)["digest"])
    assert "has changed" in till.execute(found["digest"], 409)["error"]
    assert till.offsets() == [5, 5]


def test_a_preview_is_done_once(till: Till) -> None:
    digest = till.preview(to=5, all_topics=True)["digest"]
    till.execute(digest)
    assert "no preview" in till.execute(digest, 409)["error"]


def test_a_preview_of_another_group_is_not_done(till: Till) -> None:
    digest = till.preview(to=5, all_topics=True)["digest"]
    refused = till.server.post("/api/execute/other", {"digest": digest})
    assert (refused.status_code, "no preview" in refused.text) == (409, True)
    assert till.offsets() == [4, 10]


def test_a_run_is_moved_only_by_force(till: Till) -> None:
    ledger = till.scene.ledgers["shop"]
    ledger.acquire()
    digest = till.preview(to="earliest", all_topics=True)["digest"]
    assert "is held by" in till.execute(digest, 409)["error"]
    assert till.offsets() == [4, 10]
    till.execute(digest, force=True)
    assert till.offsets() == [0, 0]


class Busy(threading.Thread):
    """A run that commits one record every 100 ms, from 5 to 10 over and over, until it is fenced.

    It is never at 3 or 4, where the tests put it: a change names no partition that is already there.
    """

    def __init__(self, till: Till) -> None:
        super().__init__(daemon=True)
        self._topic = till.topic
        self._ledger = Ledger(till.scene.open(), "shop", name="busy:1")
        self._ended = threading.Event()
        self.fenced = False
        self.commits = 0

    def __enter__(self) -> Self:
        self._ledger.acquire("start")
        self.start()
        wait_until(lambda: self.commits > 1, "the run commits", LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(LIMIT_S)

    def run(self) -> None:
        """Commit; where all is read it places itself at 5 again."""
        at = TopicPartition(self._topic, 0)
        try:
            while not self._ended.wait(0.1):
                here = self._ledger.snapshot.positions[at]
                if here.offset == 10:
                    self._ledger.place({at: here._replace(offset=5)})
                else:
                    self._ledger.commit(self._ledger.batch([OffsetRange(*at, here.offset, here.offset + 1)]))
                self.commits += 1
        except Fenced:
            self.fenced = True


@pytest.mark.parametrize(
    ("action", "body"),
    [("reset", {"to": 3, "all_topics": True}), ("undo", {}), ("rewind", {"version": 2})],
    ids=["reset", "undo", "rewind"],
)
def test_a_busy_group_is_fenced_previewed_and_changed(till: Till, action: str, body: dict[str, Any]) -> None:
    till.execute(till.preview(to=7, all_topics=True)["digest"])  # something to undo
    with Busy(till) as run:
        stale = till.preview(action, **body)
        assert stale["held_by"] == "busy:1"
        before = run.commits
        wait_until(lambda: run.commits > before + 1, "the run has moved on", LIMIT_S)
        assert "has changed" in till.execute(stale["digest"], 409, force=True)["error"]
        assert not run.fenced
        found = till.preview(action, **body, fence=True)
        assert found["held_by"] is None
        till.execute(found["digest"], reason="bad release")
        wait_until(lambda: run.fenced, "the run is fenced", LIMIT_S)
    assert till.offsets() == [step["new"] for step in found["steps"]]
    rewound, _, fenced = till.store.history("shop", 3)
    assert (rewound.event, fenced.event, fenced.reason) == (
        "rewind",
        "acquire",
        "to stop the run; through serve, from 127.0.0.1",
    )


def test_a_change_that_is_refused_fences_nobody(till: Till) -> None:
    with Busy(till) as run:
        here = {"to": "current", "all_topics": True}  # nothing to do
        for body in ({"to": 11, "all_topics": True}, {"to": 1, "topics": ["no-such-topic"]}, {"to": 1}, here):
            assert till.server.post("/api/reset/shop", {**body, "fence": True}).status_code in {400, 409}
        before = run.commits
        wait_until(lambda: run.commits > before, "the run goes on", LIMIT_S)
        assert not run.fenced


def test_the_page_shows_a_change_at_once(till: Till) -> None:
    till.execute(till.preview(to="earliest", all_topics=True)["digest"])
    wait_until(lambda: till.server.json("/api/lag/shop")["status"] == "rewound", "the look after it", LIMIT_S)


def test_a_reset_that_was_undone_is_not_shown(till: Till) -> None:
    till.scene.group("undone", till.topic, [10, 10])
    for action, body, status in (("reset", {"to": 3, "all_topics": True}, "rewound"), ("undo", {}, "ok")):
        digest = till.server.post(f"/api/{action}/undone", body).json()["digest"]
        assert till.server.post("/api/execute/undone", {"digest": digest}).status_code == 200
        wait_until(partial(till.has_status, "undone", status), status, LIMIT_S)


@pytest.mark.parametrize(
    ("code", "token", "headers"),
    [
        (401, "", {}),
        (401, "another-token-altogether", {}),
        (401, TOKEN + "x", {}),
        (401, "", {"authorization": TOKEN}),
        (403, TOKEN, {"origin": "http://evil.example"}),
        (403, TOKEN, {"origin": "null"}),
        (403, TOKEN, {"sec_fetch_site": "cross-site"}),
        (403, TOKEN, {"sec_fetch_site": "same-site"}),
        (421, TOKEN, {"host": "evil.example"}),
        (400, TOKEN, {"content_type": "text/plain"}),
        (400, TOKEN, {"content_type": "application/x-www-form-urlencoded"}),
    ],
    ids=str,
)
def test_whoever_may_not_change_changes_nothing(till: Till, code: int, token: str, headers: dict[str, str]) -> None:
    digest = till.preview(to="earliest", all_topics=True)["digest"]
    for action, body in (("execute", {"digest": digest}), ("reset", {"to": 0, "all_topics": True})):
        assert till.server.post(f"/api/{action}/shop", body, token=token, **headers).status_code == code
    assert till.offsets() == [4, 10]


def test_our_own_page_may_change(till: Till) -> None:
    body = {"to": "earliest", "all_topics": True}
    answer = till.server.post("/api/reset/shop", body, origin=till.server.url, sec_fetch_site="same-origin")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"to": "earliest"}, "say which partitions to reset"),
        ({"all_topics": True}, "exactly one of to, shift and offsets"),
        ({"to": "earliest", "shift": 1, "all_topics": True}, "exactly one of"),
        ({"to": "yesterday", "all_topics": True}, "is not a target"),
        ({"to": "2026-01-31T12:00:00", "all_topics": True}, "no time zone"),
        ({"to": -1, "all_topics": True}, "offset"),
        ({"to": "earliest", "all_topics": "false"}, "all_topics must be true or false"),
        ({"to": "earliest", "all_topics": 1}, "all_topics must be true or false"),
        ({"to": "earliest", "all_topics": None}, "all_topics must be true or false"),
        ({"to": "earliest", "all_topics": True, "fence": "false"}, "fence must be true or false"),
        ({"to": "earliest", "all_topics": True, "topic": "x"}, "an unknown setting: did you mean topics?"),
        ({"to": 1, "topics": "", "partitions": [["x", 0]]}, "topics must be a list"),
        ({"to": 1, "topics": ["x"], "partitions": 0}, "partitions must be a list"),
        ({"shift": 10**300, "all_topics": True}, "shift must be"),
        ({"to": True, "all_topics": True}, "to must be"),
        ({"to": [1], "all_topics": True}, "to must be"),
        ({"shift": "1", "all_topics": True}, "shift must be"),
        ({"to": 1, "topics": "x"}, "topics must be a list"),
        ({"to": 1, "topics": ["<script>"]}, "not a topic name"),
        ({"to": 1, "partitions": [["x"]]}, "partitions must be"),
        ({"to": 1, "partitions": [["x", "0"]]}, "is not a partition of"),
        ({"offsets": [["x", 0]]}, "offsets must be"),
        ({"offsets": [["x", 0, 1], ["x", 0, 9]]}, "offsets has x 0 twice"),
        ({"offsets": []}, "no offsets were given"),
        ({"to": 1, "topics": ["x"], "all_topics": True}, "not both"),
        ({"offsets": {"x": 0}}, "offsets must be"),
        ([], "must be a JSON object"),
        ("text", "must be a JSON object"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_words(till: Till, body: Any, told: str) -> None:
    answer = till.server.client.post("/api/reset/shop", json=body, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 400
    assert told in answer.json()["error"]
    assert till.offsets() == [4, 10]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"to": 11, "all_topics": True}, "outside the offsets that Kafka holds"),
        ({"to": 1, "topics": ["no-such-topic"]}, "does not exist"),
        ({"to": "earliest", "partitions": [["no-such-topic", 0]]}, "no-such-topic 0 does not exist in Kafka"),
    ],
    ids=str,
)
def test_what_kafka_does_not_hold_is_a_conflict(till: Till, body: Any, told: str) -> None:
    answer = till.server.client.post("/api/reset/shop", json=body, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 409
    assert told in answer.json()["error"]
    assert till.offsets() == [4, 10]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"digest": 1}, "digest must be a text"),
        ({"force": "false"}, "force must be true or false"),
        ({"reason": ["x"]}, "reason must be a text"),
        ({"fence": True}, "an unknown setting"),
    ],
    ids=str,
)
def test_what_is_no_preview_by_its_type_is_refused(till: Till, body: dict[str, Any], told: str) -> None:
    digest = till.preview(to="earliest", all_topics=True)["digest"]
    answer = till.server.post("/api/execute/shop", {"digest": digest, **body})
    assert (answer.status_code, told in answer.text) == (400, True)
    assert till.offsets() == [4, 10]


def test_too_much_is_refused(till: Till) -> None:
    with closing(HTTPConnection(till.server.client.base_url.host, till.server.client.base_url.port)) as client:
        length = {"content-length": "2000000", "content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        client.request("POST", "/api/reset/shop", headers=length)  # the body is not awaited: one that comes is not read
        answer = client.getresponse()
        assert (answer.status, b"bytes" in answer.read()) == (413, True)
    broken = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    assert till.server.client.post("/api/reset/shop", content=b"{", headers=broken).status_code == 400
    assert till.server.client.post("/api/reset/shop", content=b"[" * 100_000, headers=broken).status_code == 400


def test_nothing_to_move_is_told(till: Till) -> None:
    answer = till.server.post("/api/reset/shop", {"offsets": [[till.topic, 0, 4]]})
    assert (answer.status_code, "is already at these offsets" in answer.text) == (409, True)


@pytest.mark.parametrize(("trusted", "named"), [("127.0.0.1", "198.51.100.7"), ("10.0.0.7", "127.0.0.1")])
def test_who_asks_is_told_by_the_proxy_that_is_trusted_alone(scene: Scene, trusted: str, named: str) -> None:
    """What the asker itself wrote into the header stands left of what the proxy adds."""
    scene.group("shop", scene.topic(1, 2), [1])
    with Served(scene.store, scene.server.bootstrap, "--trust-proxy", trusted, token=TOKEN) as server:
        digest = server.post("/api/reset/shop", {"to": 0, "all_topics": True}).json()["digest"]
        forged = {"x_forwarded_for": "203.0.113.9, 198.51.100.7", "x_forwarded_proto": "https"}
        assert server.post("/api/execute/shop", {"digest": digest}, **forged).status_code == 200
        assert scene.open().history("shop", 1)[0].reason == f"through serve, from {named}"


def test_by_default_no_header_names_who_asks(till: Till) -> None:
    digest = till.preview(to="earliest", all_topics=True)["digest"]
    answer = till.server.post("/api/execute/shop", {"digest": digest}, x_forwarded_for="198.51.100.7")
    assert answer.status_code == 200
    assert till.store.history("shop", 1)[0].reason == "through serve, from 127.0.0.1"


def test_the_token_may_lie_in_a_file_and_is_never_told(scene: Scene, tmp_path: Path) -> None:
    scene.group("shop", scene.topic(1, 2), [1])
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", "utf-8")
    with Served(scene.store, scene.server.bootstrap, "--allow-changes", "--token-file", str(file)) as server:
        assert server.post("/api/reset/shop", {"to": 0, "all_topics": True}).status_code == 200
        pages = [server.text(path) for path in ("/", "/groups/shop", "/metrics", "/api/health")]
    assert TOKEN not in "".join(pages) + server.output
