"""The store in a Redis Cluster of two nodes, of which the URL names one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import Refused, StoreUnavailable
from offsetkeeper.stores.redis import RedisStore
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import reserve_port, wait_until

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
TAGGED = "?key=offset:{topic}:{{group}}"


def rewind(snapshot: Snapshot, offset: int) -> Change:
    positions = {A: Position(offset, "id"), B: Position(offset)}
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    """Two nodes with half of the slots each."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(new_node()) for _ in range(2)]
        clients = [stack.enter_context(redis.Redis(port=node.port)) for node in nodes]
        for client, slots in zip(clients, (range(8192), range(8192, 16384)), strict=True):
            client.cluster("ADDSLOTS", *slots)
        clients[0].cluster("MEET", "127.0.0.1", nodes[1].port)
        wait_until(lambda: all(map(ready, clients)), "the nodes know each other", 60)
        yield nodes


def new_node() -> RedisServer:
    """Return a server whose bus, 10,000 ports above, lies below the ports of outgoing connections."""
    settings = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no", "cluster-node-timeout": "60000"}
    while True:
        server = RedisServer(settings=settings, fsync=False)
        if server.port < 22_000 and reserve_port(server.port + 10_000):
            return server


def ready(client: redis.Redis) -> bool:
    """Whether a node takes requests, and knows the slots of both."""
    info = client.cluster("INFO")
    return (info["cluster_state"], info["cluster_slots_assigned"]) == ("ok", "16384")


@pytest.fixture
def groups(nodes: list[RedisServer]) -> list[str]:
    """Names of a group on each node."""
    with redis.Redis(port=nodes[0].port) as client:
        names = [f"group-{secrets.token_hex(4)}" for _ in range(64)]
        lower = [client.cluster("KEYSLOT", name) < 8192 for name in names]
    return [names[lower.index(True)], names[lower.index(False)]]


def test_groups_are_found_on_whatever_node_they_are(nodes: list[RedisServer], groups: list[str]) -> None:
    """Through either node; what others have written there is taken over, and nothing is left elsewhere."""
    for node, start in zip(nodes, (0, 10), strict=True):
        store = RedisStore(node.url() + TAGGED)
        for number, group in enumerate(groups):
            with redis.Redis(port=nodes[number].port, decode_responses=True) as client:
                if not start:
                    client.hset(f"offset:a:{{{group}}}", "0", 7)
                    assert store.load(group) == Snapshot(group, positions={A: Position(7)})
                store.apply(rewind(store.load(group), start))
                assert client.hgetall(f"offset:b:{{{group}}}") == {"0": str(start)}
                assert len(store.history(group)) == store.load(group).version
        assert set(groups) <= set(store.groups())
        store.close()


def test_topics_on_several_nodes_cannot_change_at_once_and_the_message_tells_how(nodes: list[RedisServer]) -> None:
    store = RedisStore(nodes[0].url())
    with pytest.raises(Refused, match=r"\?key=offset:\{topic\}:\{\{group\}\}"):
        store.apply(rewind(Snapshot("untagged"), 1))
    assert store.load("untagged") == Snapshot("untagged")
    store.close()


def test_a_group_whose_slot_moves_is_followed(nodes: list[RedisServer], groups: list[str]) -> None:
    """Before it has moved all of its keys, the store waits."""
    group = groups[0]
    store = RedisStore(nodes[0].url() + TAGGED)
    store.apply(rewind(Snapshot(group), 1))
    with ExitStack() as stack:
        source, target = (stack.enter_context(redis.Redis(port=node.port, decode_responses=True)) for node in nodes)
        slot = source.cluster("KEYSLOT", group)
        ids = [client.cluster("MYID") for client in (source, target)]
        target.cluster("SETSLOT", slot, "IMPORTING", ids[0])
        source.cluster("SETSLOT", slot, "MIGRATING", ids[1])
        keys = source.cluster("GETKEYSINSLOT", slot, 10)
        for key in keys:
            source.migrate("127.0.0.1", nodes[1].port, key, 0, 5000)
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            store.apply(
                rewind(Snapshot(group, version=1, change_id="id", positions={A: Position(1), B: Position(1)}), 2)
            )
        for client in (target, source):
            client.cluster("SETSLOT", slot, "NODE", ids[1])
        store.apply(rewind(store.load(group), 2))
        assert target.hgetall(f"offset:a:{{{group}}}") == {"0": "2"}
        assert len(keys) == 4
    store.close()
