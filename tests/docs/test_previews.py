"""Previews in operating.md and recover.md are output of commands; OFFSETKEEPER_WRITE_PREVIEWS=1 writes them anew."""

from __future__ import annotations

import re
import secrets
import shlex
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner

from docs.pages import ROOT, hold
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S = 30
DAY_MS = 86_400_000
WEEK = {"retention.ms": str(7 * DAY_MS), "message.timestamp.before.max.ms": str(30 * DAY_MS)}
RECORDS = 100
WIDTH = 110
DIED = "host:4711"


class Shop:
    """A group `orders` that has read a topic of two partitions, as version 5 of its ledger; nobody holds it.

    Its topics have other names in the broker; what is shown has those of the page.
    """

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.names = {name: f"{name}-{secrets.token_hex(6)}" for name in ("orders", "oders")}
        for name in self.names.values():
            self.produce(name)
        self.ledger = Ledger(open_store(f"sqlite:///{folder}/offsets.db"), "orders", name=DIED)
        self.ledger.acquire("run")
        with KafkaCluster(server.bootstrap) as cluster:
            found = cluster.describe([self.topic])[self.topic]
            at = {p: cluster.bounds_of_topics([self.topic])[self.partition(p)] for p in (0, 1)}
        self.ledger.place({self.partition(p): Position(0, found.topic_id, at[p].cluster_id) for p in (0, 1)})
        self.ledger.commit(self.ledger.batch([self.range(0, 0, 40), self.range(1, 0, 50)]))
        self.ledger.commit(self.ledger.batch([self.range(0, 40, 60)]))
        self.ledger.release()

    @property
    def topic(self) -> str:
        """The name of `orders` in the broker."""
        return self.names["orders"]

    def produce(self, name: str) -> None:
        """Make a topic whose records are three and a half days old, and half an hour."""
        self.server.create_topic(name, 2, WEEK)
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        at = time.time_ns() // 1_000_000 - DAY_MS * 7 // 2 - DAY_MS // 48
        for number in range(RECORDS):
            for partition in (0, 1):
                producer.produce(name, b"x", partition=partition, timestamp=at + number)
        assert producer.flush(LIMIT_S) == 0

    def partition(self, number: int) -> TopicPartition:
        """Return a partition of the topic."""
        return TopicPartition(self.topic, number)

    def range(self, number: int, start: int, end: int) -> OffsetRange:
        """Return a range of the topic."""
        return OffsetRange(self.topic, number, start, end)

    def dies_in_a_batch(self) -> None:
        """Let a run begin a batch of both partitions, and die."""
        self.ledger.acquire("run")
        self.ledger.begin(self.ledger.batch([self.range(0, 60, 80), self.range(1, 50, 70)]), lands_in=("",))
        self.ledger.release()

    def run(self, line: str) -> str:
        """Run a command; return what it prints, for a page."""
        words = shlex.split(line)[1:]
        for name, real in self.names.items():
            words = [re.sub(rf"^{name}(?=$|:)", real, word) if at > 1 else word for at, word in enumerate(words)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        text = done.stdout
        for name, real in self.names.items():
            text = text.replace(real, name)
        text = text.replace(f"sqlite:///{self.folder}/", "sqlite:///")
        text = re.sub(r"orders/[0-9a-f]{16,}/", "orders/9f86d081884c7d65/", text)
        text = re.sub(r" by [\w.-]+:\d+ at \d{4}[\dT:-]+\+00:00", f" by {DIED} at 2026-01-31T12:00:00+00:00", text)
        return f"$ {line}\n{aligned(text)}"


def aligned(text: str) -> str:
    """Return output with its tab-separated lines as columns, and each other line whole."""
    lines = text.splitlines()
    cells = [line.split("\t") for line in lines if "\t" in line]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line.split("\t"), widths, strict=True)).rstrip()
        if "\t" in line
        else textwrap.fill(line, WIDTH, subsequent_indent="      ", break_on_hyphens=False, break_long_words=False)
        for line in lines
    )


@pytest.fixture
def shop(kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", f"sqlite:///{tmp_path}/offsets.db")
    monkeypatch.setenv("OFFSETKEEPER_BROKERS", kafka_server.bootstrap)
    monkeypatch.setenv("LOGNAME", "ann")
    return Shop(kafka_server, tmp_path)


def reset(shop: Shop) -> list[str]:
    """A batch under way: one of its partitions moves."""
    shop.dies_in_a_batch()
    return [shop.run("offsetkeeper reset orders --topic orders:0 --to-offset 10")]


def skip_and_undo(shop: Shop) -> list[str]:
    """What was skipped is not read again, but read."""
    shop.run("offsetkeeper reset orders --topic orders --to-latest --reason 'only new ones' --execute")
    return [shop.run("offsetkeeper undo orders")]


def rewind_clipped(shop: Shop) -> list[str]:
    """Retention has deleted a part of what the way back would read."""
    admin = shop.server.admin()
    [cut] = admin.delete_records([KafkaPartition(shop.topic, 0, 30)]).values()
    assert cut.result(LIMIT_S).low_watermark == 30
    return [shop.run("offsetkeeper rewind orders --version 2 --clip")]


def typo_and_forget(shop: Shop) -> list[str]:
    """A topic that the group never read."""
    shown = shop.run("offsetkeeper reset orders --topic oders:0 --to-latest")
    shop.run("offsetkeeper reset orders --topic oders:0 --to-latest --execute")
    return [shown, shop.run("offsetkeeper forget orders oders")]


def copy_back(shop: Shop) -> list[str]:
    """A target that has a ledger keeps its history; what the source has forgotten goes out."""
    other = f"--to sqlite:///{shop.folder}/other.db"
    shop.run(f"offsetkeeper copy orders {other} --execute")
    shop.run("offsetkeeper reset orders --topic orders:0 --to-latest --execute")
    shop.run("offsetkeeper forget orders orders:1 --execute")
    shown = shop.run(f"offsetkeeper copy orders {other} --overwrite")
    return [shown.replace(str(shop.folder) + "/", "")]


def rows_of_a_backup(shop: Shop) -> list[str]:
    """A ledger that is older than the rows of its output."""
    (shop.folder / "offsets.csv").write_text(f"{shop.topic},0,80\n{shop.topic},1,45\n", "utf-8")
    return [shop.run("offsetkeeper reset orders --from-file offsets.csv")]


def bad_release(shop: Shop) -> list[str]:
    """Back to before the batches of a bad release."""
    return [shop.run("offsetkeeper rewind orders --version 3")]


PREVIEWS: dict[str, tuple[str, Callable[[Shop], list[str]]]] = {
    "preview of a reset": ("operating.md", reset),
    "preview of an undo": ("operating.md", skip_and_undo),
    "preview of a rewind": ("operating.md", rewind_clipped),
    "preview of a forget": ("operating.md", typo_and_forget),
    "preview of a copy": ("operating.md", copy_back),
    "preview of a reset to the rows of a backup": ("recover.md", rows_of_a_backup),
    "preview of a rewind to before a release": ("recover.md", bad_release),
}


@pytest.mark.parametrize("name", PREVIEWS)
def test_a_preview_on_a_page_is_output_of_the_command(shop: Shop, name: str) -> None:
    page, act = PREVIEWS[name]
    text = "\n\n".join(act(shop))
    hold(ROOT / "docs" / page, name, f"```text\n{text}\n```", "OFFSETKEEPER_WRITE_PREVIEWS")
