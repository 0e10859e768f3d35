"""What each of the hostile schedules gets: processes to kill, records to count, and a store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from chaos.children import Children
from chaos.driver import Mode
from chaos.scene import Place, Scene, Topic
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """The processes of one file of tests."""
    with Children(tmp_path_factory.mktemp("children")) as children:
        yield children


@pytest.fixture(scope="session")
def records(kafka_server: KafkaServer) -> Topic:
    """Three partitions with committed and aborted records; no partition ends with an aborted one."""
    kafka_server.create_topic("chaos", 3)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": "chaos"})
    producer.init_transactions()
    found: dict[Place, str] = {}
    for number in range(6):
        aborted = number in {1, 4}
        producer.begin_transaction()
        for each in range(6):
            value = f"{'aborted' if aborted else 'record'} {number}.{each}"
            producer.produce("chaos", value, partition=each % 3, on_delivery=None if aborted else _note(found))
        producer.flush()
        (producer.abort_transaction if aborted else producer.commit_transaction)()
    ends = {p: 1 + max(place.offset for place in found if place.partition == p) + 1 for p in range(3)}
    return Topic(kafka_server.bootstrap, "chaos", found, ends)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, store: str, mode: Mode, records: Topic, children: Children, tmp_path: Path
) -> Scene:
    """Return the scene of a store and a mode."""
    return Scene(records, children, tmp_path, mode, _url(request, store, tmp_path))


def _url(request: pytest.FixtureRequest, store: str, folder: Path) -> str:
    """Return the URL of an empty store on the run's server; "" for SQLite, where each group has a file."""
    own, get = f"chaos-{secrets.token_hex(6)}", request.getfixturevalue
    match store:
        case "folder":
            url = f"file://{folder / own}"
            FolderStore(url).init()
        case "kafka":
            url = f"kafka://{get('kafka_server').bootstrap}?prefix={own}-"
        case "mysql":
            server = get("mariadb_server")
            url = f"{server.url(server.create_database())}?ssl_disabled=true"  # so that a proxy sees what is said
        case "postgresql":
            url = get("database")
        case "redis":
            url = get("redis_url")
        case "zookeeper":
            url = get("zookeeper_server").url(own)
        case _:
            url = ""
    return url


def _note(found: dict[Place, str]) -> Callable[[object, Message], None]:
    def on_delivery(_: object, message: Message) -> None:
        place = Place(message.partition() or 0, message.offset() or 0)
        found[place] = (message.value() or b"").decode()

    return on_delivery


@pytest.fixture(autouse=True)
def is_traced(traces: Path) -> Path:
    """Let each test write traces, which are checked at its end."""
    return traces
