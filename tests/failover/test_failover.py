"""A standby takes over under a running pipeline: no row is wrong, or an error names the cause; never in silence.

`make failover` plays many rounds. A seed draws the moments of each, and every second round holds back what is repeated.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from failover.majorities import Brokers, Ensemble
from failover.mariadb_pair import MariaDBPair
from failover.outputs import local_table, mysql_rows, mysql_table, postgresql_rows, postgresql_table, sqlite_rows
from failover.pairs import Pair
from failover.plain_topic import PlainTopic, topic_rows
from failover.postgresql_pair import PostgreSQLPair
from failover.records import Records
from failover.redis_pair import RedisPair
from failover.rounds import Outcome, Places, Round
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.zookeeper import ZooKeeperEnsemble

ROUNDS = int(os.environ.get("OFFSETKEEPER_FAILOVERS", "2"))
SEED = int(os.environ.get("OFFSETKEEPER_SEED", "0"))
ROLES = ["store", "output", "both", "beside"]
TABLES = {"postgresql": (postgresql_table, postgresql_rows), "mysql": (mysql_table, mysql_rows)}
CAUSE = ("failover", "lost changes that it acknowledged")
AWAY = ("StoreUnavailable", "OutcomeUnknown", "SinkError")
Played = Callable[[int, Path], Outcome]


def places(role: str, pair: Pair, folder: Path) -> Places:
    """Return where ledger and rows are: on the pair as `role` says, else in files."""
    name = pair.create()
    here, there = pair.url(name), pair.url(name, pair.standby)
    if role == "store":
        return Places(here, local_table(folder), sqlite_rows, promoted_store=there)
    make, rows = TABLES[here.partition(":")[0]]
    if role == "output":
        return Places(f"sqlite:///{folder}/offsets.db", make(here), rows, promoted_output=there)
    if role == "both":
        return Places(here, make(here), rows, promoted_store=there, promoted_output=there)
    other = pair.create()
    return Places(here, make(pair.url(other)), rows, there, pair.url(other, pair.standby))


def play(folder: Path, played: Played, **about: Any) -> dict[int, Outcome]:
    """Play all rounds, say what became of them, and return it by seed."""
    outcomes: dict[int, Outcome] = {}
    for seed in range(SEED, SEED + ROUNDS):
        (folder / str(seed)).mkdir()
        outcomes[seed] = played(seed, folder / str(seed))
    print(json.dumps({**about, **summary(list(outcomes.values()))}))  # noqa: T201 - `make failover` shows it
    return outcomes


def check(outcomes: dict[int, Outcome], *, kept: bool) -> None:
    """Check that no row is wrong, and that each error that ended a run, but that a server was away, names the cause.

    Args:
        outcomes: of all rounds, by seed.
        kept: whether no acknowledged change may be lost: then nobody has to act either.
    """
    for seed, outcome in outcomes.items():
        assert (outcome.lost, outcome.doubled, outcome.wrong) == (0, 0, 0), (seed, outcome)
        if kept:
            assert (outcome.lost_versions, outcome.lost_rows, outcome.acts) == (0, 0, 0), (seed, outcome)
        for name, text in zip(outcome.errors, outcome.texts, strict=True):
            assert name in AWAY or any(word in text for word in CAUSE), (seed, outcome)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the figures of all rounds."""
    return {
        "rounds": len(outcomes),
        "lacked": sum(bool(each.lost_versions or each.lost_rows) for each in outcomes),
        "versions": sum(each.lost_versions for each in outcomes),
        "rows": sum(each.lost_rows for each in outcomes),
        "errors": dict(Counter(name for each in outcomes for name in each.errors)),
        "acts": sum(each.acts for each in outcomes),
    }


def played_on(pair: Callable[[], Pair], role: str, records: Callable[[], Records]) -> Played:
    """Return how a round is played on a pair that is made for it."""

    def played(seed: int, folder: Path) -> Outcome:
        with pair() as cluster:
            where = places(role, cluster, folder)
            return Round(
                seed, records=records(), places=where, cluster=cluster, held=bool(seed % 2), folder=folder
            ).play()

    return played


@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("role", ROLES)
def test_a_standby_of_postgresql_takes_over(
    stopped_postgresql: PostgreSQLServer,
    records: Callable[[], Records],
    tmp_path: Path,
    role: str,
    synchronous: bool,  # noqa: FBT001 - a case
) -> None:
    def pair() -> Pair:
        return PostgreSQLPair(stopped_postgresql, synchronous=synchronous)

    outcomes = play(tmp_path, played_on(pair, role, records), server="PostgreSQL", synchronous=synchronous, role=role)
    check(outcomes, kept=synchronous)


@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("role", ROLES)
def test_a_replica_of_mariadb_takes_over(
    stopped_mariadb: MariaDBServer,
    records: Callable[[], Records],
    tmp_path: Path,
    role: str,
    synchronous: bool,  # noqa: FBT001 - a case
) -> None:
    def pair() -> Pair:
        return MariaDBPair(stopped_mariadb, synchronous=synchronous)

    outcomes = play(tmp_path, played_on(pair, role, records), server="MariaDB", synchronous=synchronous, role=role)
    check(outcomes, kept=synchronous)


def test_a_replica_of_redis_takes_over(records: Callable[[], Records], tmp_path: Path) -> None:
    outcomes = play(tmp_path, played_on(RedisPair, "store", records), server="Redis", synchronous=False, role="store")
    check(outcomes, kept=False)


def played_in(
    make: Callable[[], Ensemble | Brokers],
    where: Callable[[Any, Path], Places],
    records: Callable[[], Records],
    *,
    held: bool | None = None,
    least: int = 1,
) -> Played:
    """Return how a round is played on three servers, which are mended afterwards; see `Round` for the last two."""

    def played(seed: int, folder: Path) -> Outcome:
        cluster = make()
        holds = bool(seed % 2) if held is None else held
        settings: dict[str, Any] = {"places": where(cluster, folder), "cluster": cluster, "held": holds, "least": least}
        try:
            return Round(seed, records=records(), folder=folder, **settings).play()
        finally:
            cluster.mend()

    return played


def as_store(cluster: Ensemble | Brokers, folder: Path) -> Places:
    """Return that the ledger is there, and the rows are in a file."""
    return Places(cluster.url(), local_table(folder), sqlite_rows, promoted_store=cluster.url())


def as_output(cluster: Brokers, folder: Path) -> Places:
    """Return that the rows are there, and the ledger is in a file."""
    topic = cluster.place()
    return Places(f"sqlite:///{folder}/offsets.db", topic, topic_rows, promoted_output=topic, sink=PlainTopic)


def test_an_ensemble_of_zookeeper_elects_another_leader(
    ensemble: ZooKeeperEnsemble, records: Callable[[], Records], tmp_path: Path
) -> None:
    played = played_in(lambda: Ensemble(ensemble), as_store, records)
    check(play(tmp_path, played, server="ZooKeeper", synchronous=True, role="store"), kept=True)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_another_broker_leads_the_topic_of_the_store(
    brokers: KafkaServers,
    records: Callable[[], Records],
    tmp_path: Path,
    clean: bool,  # noqa: FBT001 - a case
) -> None:
    played = played_in(lambda: Brokers(brokers, clean=clean), as_store, records, held=None if clean else True)
    check(play(tmp_path, played, server="Kafka", synchronous=clean, role="store"), kept=clean)


def test_another_broker_leads_the_topic_that_is_written(
    brokers: KafkaServers, records: Callable[[], Records], tmp_path: Path
) -> None:
    played = played_in(lambda: Brokers(brokers, clean=True, output=True), as_output, records)
    check(play(tmp_path, played, server="Kafka", synchronous=True, role="output"), kept=True)


def test_rows_that_an_unclean_election_takes_from_a_topic_are_told_at_the_start_alone(
    brokers: KafkaServers, records: Callable[[], Records], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The marks are in another topic, which has lost nothing. `docs/guarantees.md` says so."""

    def made() -> Brokers:
        return Brokers(brokers, clean=False, output=True)

    played = played_in(made, as_output, records, held=True, least=12)  # a batch lands meanwhile
    outcomes = play(tmp_path, played, server="Kafka", synchronous=False, role="output").values()
    assert sum(each.lost for each in outcomes) > 0
    for each in outcomes:
        assert each.lost >= each.lost_rows  # one may have been acknowledged by the coordinator after the election
        assert (each.doubled, each.wrong, each.acts) == (0, 0, 0)
    assert "unclean.leader.election.enable" in caplog.text
