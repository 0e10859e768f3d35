"""A webhook is told once of each change, in order, also when it is away for a while; its URL stays a secret."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.certificates import Certificates
from fixtures.tls_gate import TlsGate
from monitor.scene import LIMIT_S, Scene, Served
from offsetkeeper.core import environment
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor import outages
from offsetkeeper.monitor import webhook as webhook_module
from offsetkeeper.monitor.alerts import Key, Notice, Rule
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.outages import Outages
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.monitor.view import Health, View
from offsetkeeper.monitor.webhook import Webhook, teller
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from stores.test_foreign_answers import Listener, little

SECRET = "T0P/s3cret"


class Receiver(http.server.ThreadingHTTPServer):
    """A webhook on loopback: answers with the codes it is given, then 200, and keeps what it took."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes: list[int] = []
        self.taken: list[dict[str, Any]] = []
        self.tries = 0

    @property
    def url(self) -> str:
        """Where it is told."""
        return f"http://127.0.0.1:{self.server_address[1]}/{SECRET}?token={SECRET}"

    def told(self) -> list[str]:
        """What it took, in short."""
        return [f"{each['state']} {each['rule']} {each['group']}" for each in self.taken]


class Handler(http.server.BaseHTTPRequestHandler):
    """Takes one notice."""

    server: Receiver

    def do_POST(self) -> None:
        """Answer."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.tries += 1
        code = self.server.codes.pop(0) if self.server.codes else 200
        if code == 200:
            self.server.taken.append(json.loads(body))
        self.send_response(code)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Listens."""
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def notice(number: int) -> Notice:
    """One of several."""
    return Notice("fired", Key("far", f"g{number}"), Rule("far", "records", limit=1), number, 5)


def test_alarms_are_told_when_they_fire_and_when_they_are_resolved(
    scene: Scene, receiver: Receiver, tmp_path: Path
) -> None:
    topic = scene.topic(1, 10)
    scene.group("shop", topic, [2], held=True)
    config = f'[alerts]\nwebhook = "{receiver.url}"\n[[alerts.rules]]\nname = "far"\nrecords = 5\n'
    (tmp_path / "offsetkeeper.toml").write_text(config, "utf-8")
    with Served(scene.store, scene.server.bootstrap, folder=tmp_path) as server:
        wait_until(lambda: receiver.told() == ["fired far shop"], "the alarm was told", LIMIT_S)
        assert receiver.taken[0]["value"] == 8
        assert 'offsetkeeper_alarm_firing{group="shop",rule="far"}' in server.metrics()
        assert ">1 group far<" in server.text("/")
        scene.commit("shop", topic, [10])
        wait_until(lambda: len(receiver.taken) > 1, "the end was told", LIMIT_S)
        assert receiver.told() == ["fired far shop", "resolved far shop"]
        assert 'id="alarms"' not in server.text("/")
        pages = "".join(server.text(path) for path in ("/", "/metrics", "/groups/shop"))
    assert SECRET not in server.output + pages
    assert len(receiver.taken) == 2


def test_what_is_not_taken_is_told_again_in_order(receiver: Receiver) -> None:
    receiver.codes = [500, 503, 429]
    webhook = Webhook(receiver.url)
    webhook.start()
    for number in range(3):
        webhook.put(notice(number))
    wait_until(lambda: len(receiver.taken) == 3, "all were taken", LIMIT_S)
    assert [each["group"] for each in receiver.taken] == ["g0", "g1", "g2"]
    assert receiver.tries == 6


def test_a_refusal_is_not_repeated_and_the_next_is_told(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.codes = [404]
    webhook = Webhook(receiver.url)
    webhook.start()
    webhook.put(notice(0))
    webhook.put(notice(1))
    wait_until(lambda: len(receiver.taken) == 1, "the second was taken", LIMIT_S)
    assert receiver.tries == 2
    assert "it answered 404" in caplog.text
    assert SECRET not in caplog.text


def test_an_alarm_that_was_refused_is_told_again_while_it_holds(
    scene: Scene, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password that somebody mends an hour later, or a restart of the other side: the alarm must not be lost."""
    scene.group("shop", scene.topic(1, 10), [2], held=True)
    clock_ms = environment.now_ms()
    receiver.codes = [403, 404]
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster, [Rule("far", "records", limit=5)])
        tell = teller(receiver.url, collector.not_told)

        def poll(after_s: int) -> int:
            monkeypatch.setattr(environment, "now_ms", lambda: clock_ms + after_s * 1000)
            for each in (notices := collector.poll()):
                tell(each)
            return len(notices)

        assert poll(0) == 1
        wait_until(lambda: caplog.text.count("was not told") == 1, "it was refused", LIMIT_S)
        assert [poll(after_s) for after_s in (5, 59, 60)] == [0, 0, 1]
        wait_until(lambda: caplog.text.count("was not told") == 2, "it was refused again", LIMIT_S)
        assert [poll(after_s) for after_s in (119, 120)] == [0, 1]
        wait_until(lambda: receiver.told() == ["fired far shop"], "it was taken", LIMIT_S)
        assert poll(300) == 0
    assert receiver.tries == 3


def test_a_group_that_is_gone_is_told_again_where_that_was_refused(scene: Scene) -> None:
    scene.group("shop", scene.topic(1, 10), [2])
    store = scene.open()
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(store, cluster, [Rule("far", "records", limit=50)])
        assert collector.poll() == []
        store.groups = list  # type: ignore[method-assign] # as one that was emptied
        [gone] = collector.poll()
        assert collector.poll() == []
        collector.not_told(gone._replace(at_ms=gone.at_ms - 60_000))
        assert [each.state for each in collector.poll()] == ["gone"]
        assert collector.poll() == []


def test_what_is_away_for_too_long_is_given_up_and_said(caplog: pytest.LogCaptureFixture) -> None:
    webhook = Webhook(f"http://127.0.0.1:9/{SECRET}", retry_timeout_s=0.5)
    webhook.start()
    webhook.put(notice(0))
    wait_until(lambda: "was not told" in caplog.text, "it was given up", LIMIT_S)
    assert "127.0.0.1: no answer (ConnectError)" in caplog.text
    assert SECRET not in caplog.text + repr(webhook)


def test_a_certificate_is_checked_and_what_is_wrong_with_it_is_said(
    receiver: Receiver, certificates: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair, ca, told in (
        (certificates.expired, certificates.ca, "expired on 20"),
        (certificates.elsewhere, certificates.ca, "is for the host elsewhere.example, 192.0.2.7, not 127.0.0.1"),
        (certificates.right, certificates.foreign, "is signed by no CA that SSL_CERT_FILE has"),
        (certificates.right, certificates.ca, ""),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        with TlsGate(pair, receiver.server_address[1]) as gate:
            webhook = Webhook(f"https://127.0.0.1:{gate.port}/{SECRET}", retry_timeout_s=0)
            webhook.start()
            webhook.put(notice(0))
            text = f"no answer (the certificate of 127.0.0.1:{gate.port} {told}"
            wait_until(lambda: bool(receiver.taken) or text in caplog.text, told or "it was taken", LIMIT_S)  # noqa: B023 - at once
        assert len(receiver.taken) == (not told)
    assert SECRET not in caplog.text


def test_of_too_many_that_wait_the_oldest_are_dropped_and_it_is_said(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the other side is away for days, thousands may come; the newest tell how things are."""
    monkeypatch.setattr(webhook_module, "MOST", 3)
    dropped: list[Notice] = []
    webhook = Webhook(receiver.url, dropped.append)
    for number in range(5):
        webhook.put(notice(number))
    webhook.start()
    wait_until(lambda: len(receiver.taken) == 3, "the others were taken", LIMIT_S)
    assert [each["group"] for each in receiver.taken] == ["g2", "g3", "g4"]
    assert caplog.text.count("was not told to 127.0.0.1: more than 3 wait") == 2
    assert dropped == [notice(0), notice(1)]
    assert "group g0" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("url", ["hooks.example/x", "ftp://hooks.example", "http:///s3cret", "http://[x", "/s3cret"])
def test_a_webhook_that_is_no_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingsError, match="http:// or https://") as raised:
        Webhook(url)
    assert url not in str(raised.value)


@pytest.mark.timeout(30)
def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    """The server may be anything: its status is all that is asked for."""
    with Listener(b"HTTP/1.1 200 OK\r\n\r\n", more=True) as listener, little():
        Webhook(f"http://127.0.0.1:{listener.port}/{SECRET}")._post(notice(1))


def test_an_outage_is_told_once_without_any_rule_and_so_is_its_end(
    kafka_server: KafkaServer, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rule can be judged meanwhile: who had only the webhook heard nothing."""
    monkeypatch.setattr(outages, "_LONG_MS", 1)
    file = tmp_path / "offsets.db"
    with Scene(kafka_server, f"sqlite:///{file}") as scene, KafkaCluster(kafka_server.bootstrap) as cluster:
        scene.group("shop", scene.topic(1, 5), [2])
        poller = Poller(Collector(scene.open(), cluster), 0.2, teller(receiver.url, lambda _: None))

        async def look() -> None:
            poller.start()
            await poller.next(LIMIT_S)
            file.rename(tmp_path / "aside")
            await heard(poller, receiver, 1)
            (tmp_path / "aside").rename(file)
            await heard(poller, receiver, 2)
            poller.stop()

        asyncio.run(look())
        poller.wait(LIMIT_S)
    assert [(each["state"], each["what"], each["rule"]) for each in receiver.taken] == [
        ("away", "store", None),
        ("answers", "store", None),
    ]
    assert receiver.taken[0]["text"].startswith("away: the store is away, so no group is measured and no other alarm ")
    assert receiver.taken[0]["value"] in receiver.taken[0]["text"]
    assert receiver.taken[1]["text"] == "answers: the store answers again"


async def heard(poller: Poller, receiver: Receiver, count: int) -> None:
    """Wait for messages, and for three polls after them: none may come twice."""
    end_s = environment.monotonic() + LIMIT_S
    while len(receiver.taken) < count:
        assert environment.monotonic() < end_s
        await poller.next(LIMIT_S)
    for _ in range(3):
        await poller.next(LIMIT_S)


def test_an_outage_of_less_than_a_minute_is_not_told() -> None:
    told = Outages()
    up, view = Health(up=True, since_ms=0), View(1, 0, 0.1, Health(up=True, since_ms=0), Health(up=True, since_ms=0))
    for at_s, error, states in ((5, "x", []), (64, "x", []), (65, "", []), (70, "y", []), (130, "y", ["away"])):
        up = up.after(error, at_s * 1000)
        view = replace(view, at_ms=at_s * 1000, kafka=up)
        assert [each.state for each in told.of(view)] == states
    assert [(each.part, each.error) for each in told.of(replace(view, kafka=Health(up=True, since_ms=1)))] == [
        ("kafka", "")
    ]
