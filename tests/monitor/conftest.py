"""A scene for each file: two groups of one topic, and the server that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.scene import HOSTILE, Scene, Served
from offsetkeeper import OffsetRange, Position, TopicPartition
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture
def scene(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[Scene]:
    """Nothing yet."""
    with Scene(kafka_server, f"sqlite:///{tmp_path}/offsets.db") as found:
        yield found


@pytest.fixture(scope="module")
def shop(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Group `shop` with 6 of 10 records unread; one with a batch under way; one with a dropped one; a hostile name."""
    with Scene(kafka_server, f"sqlite:///{tmp_path_factory.mktemp('shop')}/offsets.db") as found:
        topic = found.topic(2, 10)
        found.group("shop", topic, [4, 10])
        begun = found.group("begun", topic, [3, 3], held=True)
        begun.begin(begun.batch([OffsetRange(topic, 0, 3, 5)]))
        dropped = found.group("dropped", topic, [3, 3], held=True)
        dropped.begin(dropped.batch([OffsetRange(topic, n, 3, 5) for n in (0, 1)]), lands_in=[""])
        dropped.rewind({TopicPartition(topic, 1): Position(9)}, "skip", force=True)
        found.group(HOSTILE, topic, [10, 10], who="<b>host</b>")
        yield found


@pytest.fixture(scope="module")
def served(shop: Scene) -> Iterator[Served]:
    """The server that shows `shop`, read-only."""
    with Served(shop.store, shop.server.bootstrap) as server:
        yield server
