"""The store in Redis: keys as others see and write them, templates, time to live, and what it asks of the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import Refused, SettingsError, VersionConflict
from offsetkeeper.stores.redis import RedisStore
from offsetkeeper.stores.redis.keys import Keys
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import wait_until

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
Opener = Callable[..., RedisStore]


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client beside the store's, in a database for this test alone."""
    with redis.Redis(port=redis_server.port, db=7, decode_responses=True) as client:
        client.flushdb()
        yield client


@pytest.fixture
def open_store(redis_server: RedisServer, client: redis.Redis, at_end: ExitStack) -> Opener:
    """Open stores in that database, with these settings, which are closed at the end of the test."""
    assert client.dbsize() == 0
    return lambda settings="": at_end.enter_context(closing(RedisStore(redis_server.url(7) + settings)))


def rewind(snapshot: Snapshot, positions: dict[TopicPartition, Position]) -> Change:
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


def test_the_keys_are_those_people_know(open_store: Opener, client: redis.Redis) -> None:
    store = open_store("")
    store.apply(rewind(Snapshot("shop"), {A: Position(10, "id of a"), B: Position(2**63 - 1)}))
    assert set(client.keys()) == {
        "offset:a:shop",
        "offset:b:shop",
        "offsetkeeper:control:offset:*:shop",
        "offsetkeeper:history:offset:*:shop",
    }
    assert client.hgetall("offset:a:shop") == {"0": "10"}
    assert client.hgetall("offset:b:shop") == {"3": "9223372036854775807"}
    control = client.hgetall("offsetkeeper:control:offset:*:shop")
    assert (control["version"], control["topics"]) == ("1", "a b")
    assert json.loads(control["topic_ids"]) == {"a": {"id of a": [0]}}
    assert {client.ttl(key) for key in client.scan_iter()} == {-1}


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("kafka:{topic}:{topic}:{group}", "kafka:a:a:shop"),
        ("kafka:topic:{topic}:{group}", "kafka:topic:a:shop"),
        ("offset:{topic}:{{group}}", "offset:a:{shop}"),
        ("{kafka}:offset:{topic}:{group}", "{kafka}:offset:a:shop"),
        ("{group}/{topic}", "shop/a"),
        ("offsetkeeper:{topic}:{group}", "offsetkeeper:a:shop"),
        ("[x]*?:{group}\\:{topic}:end", "[x]*?:shop\\:a:end"),
    ],
)
def test_a_template_makes_other_keys(open_store: Opener, client: redis.Redis, template: str, key: str) -> None:
    """What others have written there is taken over, and nothing is written elsewhere."""
    client.hset(key, mapping={"0": 5, "1": 6})
    client.hset("offset:a:other", "0", 7)
    store = open_store(f"?key={template.replace('?', '%3F')}")
    found = store.load("shop")
    assert found == Snapshot("shop", positions={A: Position(5), TopicPartition("a", 1): Position(6)})
    store.apply(rewind(found, {A: Position(8)}))
    assert client.hgetall(key) == {"0": "8", "1": "6"}
    assert store.load("shop").positions == {A: Position(8), TopicPartition("a", 1): Position(6)}
    assert store.groups() == ["shop"]
    assert client.hgetall("offset:a:other") == {"0": "7"}


@pytest.mark.parametrize(
    "template",
    [
        "offsetkeeper:control:{topic}:{group}",
        "offsetkeeper:history:{topic}:{group}",
        "",
        "offset",
        "offset:{topic}",
        "{group}",
        "{topic}{group}",
        "{topic}-{group}",
        "{topic}:{group}\n",
    ],
)
def test_a_template_that_names_keys_ambiguously_is_refused(template: str) -> None:
    with pytest.raises(SettingsError, match=r"\{topic\}.*\{group\}"):
        Keys(template)


@pytest.mark.parametrize("group", ["g*", "g?", "g[ab]", "g\\", "{topic}", "{group}"])
def test_a_group_with_special_characters_takes_over_its_own_offsets_only(
    open_store: Opener, client: redis.Redis, group: str
) -> None:
    for name, offset in ((group, 1), ("ga", 2), ("g", 3), ("a", 4), ("gab", 5)):
        client.hset(f"offset:a:{name}", "0", offset)
    store = open_store("")
    assert store.load(group).positions == {A: Position(1)}
    assert store.groups() == sorted([group, "ga", "g", "a", "gab"])


def test_keys_of_others_are_no_groups(open_store: Opener, client: redis.Redis) -> None:
    for key in ("offset:no topic:g", "offset:a", "offset:a:", "xoffset:a:g", b"offset:a:\xff"):
        client.hset(key, "0", 1)
    store = open_store("")
    assert store.groups() == []
    assert store.load("g") == Snapshot("g")


def test_many_keys_of_others_are_no_hindrance(open_store: Opener, client: redis.Redis) -> None:
    """They are looked through only where a group has no control record."""
    with client.pipeline() as pipeline:
        for number in range(5000):
            pipeline.set(f"other:{number}", "x")
        for partition in range(20):
            pipeline.hset(f"offset:t{partition}:g", "0", 1)
        pipeline.execute()
    store = open_store("")
    found = store.load("g")
    assert len(found.positions) == 20
    store.apply(rewind(found, {}))
    client.config_resetstat()
    assert store.load("g").positions == found.positions
    assert "cmdstat_scan" not in client.info("commandstats")


def test_a_topic_that_another_program_adds_is_a_conflict_that_says_how_to_go_on(
    open_store: Opener, client: redis.Redis
) -> None:
    store = open_store("")
    store.apply(rewind(Snapshot("g"), {A: Position(1)}))
    client.hset("offset:b:g", "3", 30)
    seen = store.load("g")
    with pytest.raises(VersionConflict, match=r"'offset:b:g'.*`topics` of 'offsetkeeper:control:offset:\*:g'"):
        store.apply(rewind(seen, {B: Position(0)}))
    assert client.hgetall("offset:b:g") == {"3": "30"}
    client.hset("offsetkeeper:control:offset:*:g", "topics", "a b")
    assert store.load("g").positions == {A: Position(1), B: Position(30)}
    store.apply(rewind(store.load("g"), {B: Position(40)}))
    assert client.hgetall("offset:b:g") == {"3": "40"}


def test_a_time_to_live_is_renewed_by_each_change_for_all_topics_and_never_for_the_ledger(
    open_store: Opener, client: redis.Redis
) -> None:
    store = open_store("?ttl=1000")
    store.apply(rewind(Snapshot("g"), {A: Position(1), B: Position(2)}))
    for key in ("offset:a:g", "offset:b:g"):
        assert 0 < client.ttl(key) <= 1000
        client.expire(key, 500)
    store.apply(rewind(store.load("g"), {A: Position(3)}))
    assert min(client.ttl("offset:a:g"), client.ttl("offset:b:g")) > 500
    assert client.ttl("offsetkeeper:control:offset:*:g") == client.ttl("offsetkeeper:history:offset:*:g") == -1


def test_without_a_time_to_live_one_set_by_another_program_ends(open_store: Opener, client: redis.Redis) -> None:
    """What is taken over does not expire under the ledger."""
    for topic in ("a", "b"):
        client.hset(f"offset:{topic}:g", "3", 1)
        client.expire(f"offset:{topic}:g", 100)
    store = open_store("")
    store.apply(rewind(store.load("g"), {B: Position(3)}))
    assert client.ttl("offset:a:g") == client.ttl("offset:b:g") == -1


def test_offsets_that_have_expired_are_told_and_the_ledger_never_looks_new(
    open_store: Opener, client: redis.Redis
) -> None:
    store = open_store("?ttl=1000")
    store.apply(rewind(Snapshot("g"), {A: Position(1), B: Position(2)}))
    seen = store.load("g")
    client.pexpire("offset:b:g", 1)
    wait_until(lambda: not client.exists("offset:b:g"), "the offsets have expired", 60)
    assert store.load("g").missing == {B}
    with pytest.raises(VersionConflict):
        store.apply(rewind(seen, {B: Position(9)}))
    client.hset("offset:b:g", "3", 2)
    assert store.load("g") == seen
    client.delete("offset:b:g")
    store.apply(rewind(store.load("g"), {B: Position(0)}))
    assert store.load("g").positions == {A: Position(1), B: Position(0)}


def test_a_group_whose_control_key_was_deleted_begins_anew_without_a_history(
    open_store: Opener, client: redis.Redis
) -> None:
    """As a message about a spoilt one advises. The positions stay; the history is that of the new ledger."""
    store = open_store("")
    for offset in (1, 2, 3):
        store.apply(rewind(store.load("g"), {A: Position(offset)}))
    client.delete("offsetkeeper:control:offset:*:g")
    assert store.load("g") == Snapshot("g", positions={A: Position(3)})
    assert list(store.history("g")) == []
    change = rewind(store.load("g"), {A: Position(4)})
    store.apply(change)
    assert store.load("g") == change.after
    assert list(store.history("g")) == [change.entry]


def test_topic_ids_change_with_their_positions(open_store: Opener) -> None:
    store = open_store("")
    for id_ in ("old", None, "new", "new"):
        change = rewind(store.load("g"), {A: Position(1, id_), B: Position(1, "b")})
        store.apply(change)
        assert store.load("g") == change.after


@pytest.mark.parametrize("count", [1, 1000])
def test_a_change_is_one_request_on_a_kept_connection(open_store: Opener, client: redis.Redis, count: int) -> None:
    positions = {TopicPartition("a", partition): Position(1, "id") for partition in range(count)}
    store = open_store("")
    store.apply(rewind(Snapshot("g"), positions))
    made = client.info("stats")["total_connections_received"]
    for _ in range(5):
        change = rewind(store.load("g"), positions)
        client.config_resetstat()
        store.apply(change)
        stats = client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 1
        assert not {"cmdstat_eval", "cmdstat_multi", "cmdstat_script|load"} & set(stats)
    assert client.info("stats")["total_connections_received"] == 0, "of those since the last reset"
    assert made


def test_scripts_that_the_server_has_forgotten_are_sent_again(open_store: Opener, client: redis.Redis) -> None:
    store = open_store("")
    for offset in (1, 2):
        client.script_flush()
        store.apply(rewind(store.load("g"), {A: Position(offset)}))
    assert client.hgetall("offset:a:g") == {"0": "2"}


def test_the_history_does_not_grow_with_the_ledgers_age(open_store: Opener, client: redis.Redis) -> None:
    """Also when fewer entries are to be kept than before."""
    for kept in (10, 3):
        store = open_store(f"?history={kept}")
        for _ in range(kept + 2):
            store.apply(rewind(store.load("g"), {A: Position(secrets.randbelow(100))}))
        assert client.llen("offsetkeeper:history:offset:*:g") == kept
        assert len(store.history("g")) == kept


def test_a_long_history_is_read_in_pages_and_a_change_in_between_shifts_nothing(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand entries in one answer would be too much of a ledger of many partitions."""
    store = open_store("")
    for _ in range(120):
        store.apply(rewind(store.load("g"), {A: Position(secrets.randbelow(100))}))
    assert [entry.version for entry in store.history("g", 1000)] == list(range(120, 0, -1))
    assert [entry.version for entry in store.history("g", 70)] == list(range(120, 50, -1))
    page = store._page

    def moves_on(*place: Any) -> Any:
        found = page(*place)
        store.apply(rewind(store.load("g"), {A: Position(secrets.randbelow(100))}))
        return found

    monkeypatch.setattr(store, "_page", moves_on)
    assert [entry.version for entry in store.history("g", 110)] == list(range(120, 10, -1))


def test_a_group_with_colons_is_read_where_others_write_it(open_store: Opener, client: redis.Redis) -> None:
    """A topic has no colon, so the rest of the key is the group."""
    for key, offset in (("offset:a:team", 1), ("offset:a:team:x", 2), ("offset:team:x", 3)):
        client.hset(key, "0", offset)
    store = open_store()
    assert store.groups() == ["team", "team:x", "x"]
    found = {group: store.load(group).positions for group in store.groups()}
    assert {group: [(tp.topic, at.offset) for tp, at in each.items()] for group, each in found.items()} == {
        "team": [("a", 1)],
        "team:x": [("a", 2)],
        "x": [("team", 3)],
    }


def test_our_own_keys_are_no_groups_by_a_template_that_begins_with_the_topic(open_store: Opener) -> None:
    store = open_store("?key={topic}:{group}")
    store.apply(rewind(store.load("shop"), {A: Position(8)}))
    assert store.groups() == ["shop"]


def test_a_group_whose_key_would_be_another_groups_control_record_is_refused() -> None:
    keys = Keys("{topic}:{group}")
    assert keys.control("shop") == "offsetkeeper:control:*:shop"
    with pytest.raises(Refused, match=r"'offsetkeeper:control:\*:shop' is reserved\. Nothing was written"):
        keys.positions("control:*:shop", "offsetkeeper")
