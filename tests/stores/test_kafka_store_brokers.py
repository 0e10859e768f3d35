"""The store in Kafka on three brokers, of which one is killed, and another, and two at once."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic  # type: ignore[attr-defined]

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.operate.doctor.collect import examine
from offsetkeeper.operate.doctor.rules import diagnose
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.rivals import PARTITION, next_batch, rival
from offsetkeeper.testing.server import wait_until

TOPIC, OFFSETS = "offsetkeeper", "__consumer_offsets"
ALL = {1, 2, 3}
LIMIT = 90.0
SOME = 5  # commits, to see that they go on


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaServers]:
    """Three brokers of this file's own, with the store's topic on them."""
    with KafkaServers() as cluster:
        create(cluster, PARTITION.topic, [1, 2, 3], {})
        Ledger(KafkaStore(f"kafka://{cluster.bootstrap}"), "first").acquire()
        yield cluster


@pytest.fixture
def group() -> str:
    """A group of this test's own."""
    return f"group-{secrets.token_hex(6)}"


@pytest.fixture
def url(cluster: KafkaServers) -> str:
    """Of the store on all brokers, for a long history."""
    return f"kafka://{cluster.bootstrap}?history=1000000"


def create(cluster: KafkaServers, topic: str, replicas: Sequence[int], config: dict[str, str]) -> None:
    """Create a topic of one partition on some brokers, the first its leader, and wait until all brokers know it."""
    admin = cluster.admin()
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)], config=config)])[topic].result(LIMIT)
    wait_until(lambda: all(topic in broker.topics() for broker in cluster.brokers.values()), "all knew it", LIMIT)


def rewind(snapshot: Snapshot, offset: int, change_id: str = "id") -> Change:
    return rules.decide(
        snapshot, rules.Rewind({PARTITION: Position(offset)}, force=True), rules.Author("me", "me", 0, change_id)
    )


def own_settings(cluster: KafkaServers, topic: str) -> dict[str, str]:
    """Return what is set for a topic, and not by its brokers."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin: Any = cluster.admin()
    [found] = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in found.result(LIMIT).items() if not entry.is_default}


def all_in_sync(cluster: KafkaServers) -> bool:
    return all(cluster.in_sync(topic) == ALL for topic in (TOPIC, OFFSETS, PARTITION.topic))


@contextmanager
def restored(cluster: KafkaServers, *numbers: int) -> Iterator[None]:
    """Start brokers again at the end that were killed meanwhile, and wait until they have caught up."""
    try:
        yield
    finally:
        cluster.restart(*numbers)
        wait_until(lambda: all_in_sync(cluster), "all replicas were in sync", LIMIT)


class Busy:
    """Does one thing again and again in a thread of its own; `busy` starts one.

    Attributes:
        done: how often it was done.
        failed: what it raised; then it does nothing any more.
    """

    def __init__(self, step: Callable[[], object]) -> None:
        self.done = 0
        self.failed: BaseException | None = None
        self._step, self._over = step, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._step()
                self.done += 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failed = error

    def end(self) -> None:
        """Let it do no more."""
        self._over.set()
        self._thread.join(LIMIT)


def go_on(*those: Busy) -> None:
    """Wait until each was done again, and the first of them some times; or one has failed."""
    goals = [each.done + 1 for each in those]
    goals[0] += SOME

    def done() -> bool:
        failed = any(each.failed for each in those)
        return failed or all(each.done >= goal for each, goal in zip(those, goals, strict=True))

    wait_until(done, "commits went on", LIMIT)
    assert [each.failed for each in those] == [None] * len(those)


@contextmanager
def busy(step: Callable[[], object]) -> Iterator[Busy]:
    started = Busy(step)
    try:
        yield started
    finally:
        started.end()


def watcher(pipe: Connection, url: str, group: str) -> None:
    """Look at a group until told to stop; say "looks", then the first two versions in the wrong order, and the last."""
    store, seen, wrong = KafkaStore(url), 0, None
    while not pipe.poll():
        try:
            version = store.load(group).version
        except StoreUnavailable:
            continue
        wrong = wrong or ((seen, version) if version < seen else None)
        if not seen:
            pipe.send("looks")
        seen = version
    pipe.send((wrong, seen))


class Racer:
    """Changes a group against others.

    Attributes:
        won: the change ids of acknowledged versions.
        doubtful: ids of changes that may be made.
    """

    def __init__(self, url: str, group: str, name: str) -> None:
        self.won: dict[int, str] = {}
        self.doubtful: set[str] = set()
        self._store, self._group, self._name = KafkaStore(url), group, name

    def win(self) -> None:
        """Change it, whoever else does."""
        while not self._tries():
            pass

    def _tries(self) -> bool:
        try:
            found = self._store.load(self._group)
        except StoreUnavailable:
            return False
        change_id = f"{self._name}-{secrets.token_hex(4)}"
        change = rewind(found, found.version + 1, change_id)
        try:
            self._store.apply(change)
        except (VersionConflict, StoreUnavailable):
            return False
        except OutcomeUnknown:
            self.doubtful.add(change_id)
            return False
        self.won[change.after.version] = change_id
        return True


def test_the_topic_is_on_three_brokers_and_two_must_have_a_commit(cluster: KafkaServers) -> None:
    wait_until(lambda: cluster.in_sync(TOPIC) == ALL, "all have it", LIMIT)
    assert own_settings(cluster, TOPIC)["min.insync.replicas"] == "2"
    assert own_settings(cluster, TOPIC)["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize(
    ("replicas", "least", "rule", "told"),
    [
        (1, "1", "one-replica", "has only one replica.*raise its replication factor to 3"),
        (2, "1", "few-replicas", "has 2 replicas on 3 brokers.*raise its replication factor to 3"),
        (3, "1", "min-insync-low", "set min.insync.replicas=2"),
        (3, "3", "min-insync-high", "with one broker down, nothing can be written"),
        (3, "2", None, None),
    ],
)
def test_a_topic_that_a_lost_broker_ends_is_told_of_once(
    cluster: KafkaServers,
    url: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
    replicas: int,
    least: str,
    rule: str | None,
    told: str | None,
) -> None:
    """Somebody else has made it. It is used all the same, and the doctor says so as well."""
    own = f"topic-{group}"
    create(cluster, own, sorted(ALL)[:replicas], {"cleanup.policy": "compact", "min.insync.replicas": least})
    store = KafkaStore(f"{url}&topic={own}")
    with caplog.at_level(logging.WARNING, "offsetkeeper"):
        for each in (group, f"{group}-2"):
            store.apply(rewind(Snapshot(each), 1))
    found = diagnose(examine(Ledger(store, group), None))
    assert [finding.rule for finding in found if finding.where == f"topic {own}"] == ([rule] if rule else [])
    said = [record.getMessage() for record in caplog.records if record.name == "offsetkeeper.stores.kafka.store"]
    assert len(said) == (told is not None)
    assert re.search(f"topic {own} .*{told or ''}", "".join(said)) or not said


@pytest.mark.parametrize(
    "led",
    [
        pytest.param([TOPIC], id="leader"),
        pytest.param([TOPIC, OFFSETS, TOPIC], id="leader, coordinator, leader", marks=pytest.mark.soak),
    ],
)
def test_commits_go_on_while_brokers_are_killed(
    cluster: KafkaServers, url: str, group: str, led: Sequence[str]
) -> None:
    """The topic's leader of the moment; the groups' coordinator, and again the leader."""
    ledger = Ledger(KafkaStore(url), group)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    acknowledged: dict[int, int] = {}
    race = f"{group}-race"
    racers = [Racer(url, race, name) for name in ("one", "two")]

    def commit() -> None:
        ledger.commit(next_batch(ledger, 10))
        acknowledged[ledger.snapshot.version] = ledger.snapshot.positions[PARTITION].offset

    def shown() -> bool:
        commit()  # what could not be shown comes with the next one
        offset = ledger.snapshot.positions[PARTITION].offset
        return cluster.brokers[1].group_offsets(group, [PARTITION]) == {PARTITION: offset}

    def look_anew() -> None:
        newest = max(acknowledged, default=0)
        store = KafkaStore(url)
        try:
            assert store.load(group).version >= newest
        except StoreUnavailable:
            pass
        finally:
            store.close()

    with (
        rival(watcher, url, group) as reader,
        busy(commit) as writer,
        busy(racers[0].win) as one,
        busy(racers[1].win) as two,
        busy(look_anew) as looker,
    ):
        assert reader.hear() == "looks"
        for topic in led:
            go_on(writer, one, two, looker)
            leader = cluster.leader(topic)
            with restored(cluster, leader):
                cluster.kill(leader)
                go_on(writer, one, two, looker)
        go_on(writer, one, two, looker)
        reader.go_on()
        wrong, seen = reader.hear()
    assert [each.failed for each in (writer, one, two, looker)] == [None] * 4
    assert wrong is None
    assert seen >= 3 * SOME

    fresh = Ledger(KafkaStore(url), group)
    assert fresh.load() == ledger.snapshot
    entries = fresh.history(10**6)
    assert [entry.version for entry in entries] == list(range(ledger.snapshot.version, 0, -1))
    offsets = {entry.version: entry.ranges[0].end for entry in entries if entry.event == "commit"}
    assert offsets == acknowledged
    wait_until(shown, "the group's offset was shown by Kafka", LIMIT)

    raced = Ledger(KafkaStore(url), race)
    winners = {entry.version: entry.change_id for entry in raced.history(10**6)}
    assert sorted(winners) == list(range(1, raced.load().version + 1))
    for racer in racers:
        assert len(racer.won) > SOME
        assert racer.won.items() <= winners.items()
    told = set.union(*({*racer.won.values(), *racer.doubtful} for racer in racers))
    assert set(winners.values()) <= told


def patiently(store: KafkaStore, change: Change) -> None:
    """Apply a change until it is not merely refused, as by a client that has just lost its broker."""
    while True:
        with suppress(StoreUnavailable):
            return store.apply(change)


def test_nothing_that_may_be_written_is_called_unwritten(cluster: KafkaServers, url: str, group: str) -> None:
    """One broker is dead, and a topic asks for all; then two are. Each answer comes in time, and all goes on after."""
    replicas = {"strict": ((1, 2, 3), "3"), "led": ((1, 2, 3), "2"), "headless": ((2, 1, 3), "2")}
    stores = {name: KafkaStore(f"{url}&timeout=3&topic={name}-{group}") for name in (*replicas, "late")}
    for name, (brokers, least) in replicas.items():
        create(cluster, f"{name}-{group}", brokers, {"cleanup.policy": "compact", "min.insync.replicas": least})
        Ledger(stores[name], group).record(rewind(Snapshot(group), 1))
    changes = {name: rewind(store.load(group), 2) for name, store in stores.items()}

    def stays_in_doubt(name: str) -> None:
        with pytest.raises(OutcomeUnknown, match="not acknowledged"):
            patiently(stores[name], changes[name])
        assert Ledger(stores[name], group).load() == changes[name].before

    with restored(cluster, 2, 3):
        cluster.kill(3)
        wait_until(lambda: cluster.alive() == {1, 2}, "one was gone", LIMIT)
        stays_in_doubt("strict")  # refused, and asked again; whether an earlier try was appended nobody tells
        Ledger(stores["late"], group).record(changes["late"])
        cluster.kill(2)
        stays_in_doubt("led")
        since = time.monotonic()
        with pytest.raises(StoreUnavailable):
            stores["headless"].load(group)
        with pytest.raises(StoreUnavailable):
            stores["headless"].apply(changes["headless"])
        assert time.monotonic() - since < LIMIT
    for name, store in stores.items():
        ledger = Ledger(store, group)
        ledger.record(changes[name])
        anew = Ledger(KafkaStore(f"{url}&topic={name}-{group}"), group)
        assert ledger.load() == anew.load() == changes[name].after
    wait_until(lambda: cluster.in_sync(f"late-{group}") == ALL, "it was on the one that was dead", LIMIT)


def test_a_look_that_fails_forgets_nothing(url: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on from what was seen, wherever it is led: it sees that or newer."""
    store = KafkaStore(url)
    store.apply(rewind(store.load(group), 1))
    starts: list[object] = []

    def away(*arguments: object) -> None:
        starts.append(arguments[-1])
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with monkeypatch.context() as patch:
        patch.setattr(store._clients.consumers, "read", away)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.load(group)
    assert starts == [store._seen[group].last] * 2
