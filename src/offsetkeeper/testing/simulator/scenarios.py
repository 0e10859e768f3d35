"""The scenarios: every guarantee with every kind of output, alone and among what operators and Kafka do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import RuleError
from offsetkeeper.testing.simulator.edits import move, take_back, truncate
from offsetkeeper.testing.simulator.kafka import TOPIC, ModelPlace, ModelTopic
from offsetkeeper.testing.simulator.operators import adopt, copy_away, rewind, rewind_forced, rewind_one, undo
from offsetkeeper.testing.simulator.runs import owner, query
from offsetkeeper.testing.simulator.world import GOING_ON, Scenario, World

TWO = MappingProxyType({"A": owner, "B": owner})
THREE = MappingProxyType({"A": owner, "B": owner, "C": owner})
QUERIES = MappingProxyType({"A": query, "B": query})
THREE_QUERIES = MappingProxyType({"A": query, "B": query, "C": query})
_TWO_TRIES_S = 0.01  # seconds that are over after the first pause


class _Kind(NamedTuple):
    """A guarantee, the kind of each output, and that of the dead letters where records fail: see `Scenario`."""

    guarantee: Guarantee
    outputs: Mapping[str, str]
    dead_letters: str = ""


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "at most once": _Kind(Guarantee.AT_MOST_ONCE, {"": "apart"}),
        "at least once": _Kind(Guarantee.AT_LEAST_ONCE, {"": "apart"}),
        "at least once, two outputs": _Kind(Guarantee.AT_LEAST_ONCE, {"one": "apart", "two": "apart"}),
        "exactly once, in the transaction": _Kind(Guarantee.EXACTLY_ONCE, {"": "joined"}),
        "exactly once, keyed": _Kind(Guarantee.EXACTLY_ONCE, {"": "keyed"}),
        "exactly once, keyed and in the transaction": _Kind(Guarantee.EXACTLY_ONCE, {"one": "keyed", "two": "joined"}),
        "exactly once, two keyed and one in the transaction": _Kind(
            Guarantee.EXACTLY_ONCE,
            {"one": "keyed", "two": "keyed", "three": "joined"},
        ),
        "exactly once, marked": _Kind(Guarantee.EXACTLY_ONCE, {"": "marked"}),
        "exactly once, two marked": _Kind(Guarantee.EXACTLY_ONCE, {"one": "marked", "two": "marked"}),
        "exactly once, marked, keyed and in the transaction": _Kind(
            Guarantee.EXACTLY_ONCE,
            {"one": "marked", "two": "keyed", "three": "joined"},
        ),
        "at least once, marked and apart": _Kind(Guarantee.AT_LEAST_ONCE, {"one": "marked", "two": "apart"}),
    }
)


def restore(world: World) -> None:
    """Put a backup of the store back: as it was before its newest commit, or empty."""
    state = world.store.state
    while state.before is not None:
        committed = state.entry is not None and state.entry.event == "commit"
        state = state.before
        if committed:
            break
    world.store.state = state
    world.repeats = True


def remake(world: World) -> None:
    """Delete the ledger."""
    while world.store.state.before is not None:
        world.store.state = world.store.state.before
    world.repeats = True


def restore_outputs(world: World) -> None:
    """Put backups of the outputs back, also in the middle of a run."""
    world.restore_outputs()
    world.repeats = True


def remake_outputs(world: World) -> None:
    """Delete the targets of the outputs and make them again, also in the middle of a run; their marks stay."""
    world.remake_outputs()
    world.repeats = True


def lead_outputs_elsewhere(world: World) -> None:
    """Let the names of the outputs lead to other targets, such as a schema that shadows theirs; or back again."""
    world.lead_outputs_elsewhere()
    world.repeats = True


def grow(world: World) -> None:
    """Write a record to each partition."""
    topic = world.cluster.topics[TOPIC]
    topic.partitions = [(beginning, stable + 1, end + 1) for beginning, stable, end in topic.partitions]


def add_partition(world: World) -> None:
    """Add a partition with a record."""
    world.cluster.topics[TOPIC].partitions.append((0, 1, 1))


def add_topic(world: World) -> None:
    """Make a topic that the pattern finds, with records."""
    world.cluster.topics.setdefault(f"{TOPIC}-new", ModelTopic("new", [(0, 2, 2)]))


def open_transaction(world: World) -> None:
    """Write a record in a transaction that stays open."""
    topic = world.cluster.topics[TOPIC]
    topic.partitions = [(beginning, stable, end + 1) for beginning, stable, end in topic.partitions]


def delete_old(world: World) -> None:
    """Let retention delete the first record of each partition."""
    topic = world.cluster.topics[TOPIC]
    topic.partitions = [(min(beginning + 1, stable), stable, end) for beginning, stable, end in topic.partitions]


def recreate(world: World) -> None:
    """Delete the topic, and make it again with as many records."""
    topic = world.cluster.topics[TOPIC]
    world.cluster.topics[TOPIC] = ModelTopic(topic.topic_id + "1", [(0, 2, 2) for _ in topic.partitions])


def lead_elsewhere(world: World) -> None:
    """Let the brokers' name lead to another cluster, which has a topic of that name. Clients stay where they are."""
    topic = world.cluster.topics[TOPIC]
    there = ModelTopic(f"{topic.topic_id} of B", [(0, 3, 3) for _ in topic.partitions])
    world.cluster.place = ModelPlace("B", {TOPIC: there})


def cut(world: World) -> None:
    """Let a partition lose its last record, as an unclean election of a leader does."""
    topic = world.cluster.topics[TOPIC]
    beginning, stable, _ = topic.partitions[0]
    end = max(beginning, stable - 1)
    topic.partitions[0] = (beginning, end, end)
    world.repeats = world.rewound = True


def elect(world: World) -> None:
    """Elect a leader of a partition, which has all records; one more is written."""
    _elect(world, lost=0)


def elect_uncleanly(world: World) -> None:
    """Elect a leader that lacks the last record of a partition; another one gets that offset, and one more comes."""
    _elect(world, lost=1)


def _elect(world: World, lost: int) -> None:
    topic = world.cluster.topics[TOPIC]
    topic.elect(0, lost)
    beginning, stable, end = topic.partitions[0]
    topic.partitions[0] = (beginning, stable + lost + 1, end + lost + 1)


def careless(world: World) -> None:
    """Ask the ledger for what must be refused, as a program with a defect does, and see each of it refused."""
    ledger = world.ledger()
    if ledger.load().owner is not None:
        pending = ledger.snapshot.pending
        ranges = _next(ledger.snapshot) if pending is None else pending.ranges
        _refused(world, ledger, rules.Commit(ranges) if ranges else rules.Abandon())
    found = ledger.acquire("careless")
    _refused(world, ledger, rules.Acquire(Owner("careless", found.epoch)))
    for ranges in _wrong(found):
        _refused(world, ledger, rules.Commit(ranges))
    if found.pending is not None:
        _refused(world, ledger, rules.Begin(found.pending.ranges))
        for name in found.pending.written:
            _refused(world, ledger, rules.Written(name))
    elif ranges := _next(found):
        try:
            ledger.commit(replace(ledger.batch(ranges), sequence=found.sequence + 2))
        except RuleError:
            pass
        else:
            world.schedule.violate("(r) a batch is committed under an id that is not the next one")
    ledger.release("careless")


def _next(found: Snapshot) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*tp, at.offset, at.offset + 1) for tp, at in sorted(found.positions.items()))


def _wrong(found: Snapshot) -> list[tuple[OffsetRange, ...]]:
    """Return ranges that may not be committed: some do not begin at the positions, others are not the pending ones."""
    fitting = _next(found)
    ahead = tuple(each._replace(start=each.start + 1, end=each.end + 1) for each in fitting)
    pending = found.pending.ranges if found.pending else ()
    mine = [] if found.pending is None else [fitting, fitting[:1]]
    return [each for each in (ahead, *mine) if each and each != pending]


def _refused(world: World, ledger: Ledger, event: rules.Event) -> None:
    author = rules.Author(ledger.owner_id, "careless", 0, "careless")
    try:
        rules.decide(ledger.snapshot, event, author)
    except RuleError:
        return
    world.schedule.violate(f"(r) {event} is not refused of {ledger.snapshot}")


EVENTS: Mapping[str, Callable[[World], None]] = MappingProxyType(
    {
        "a backup of the store is restored": restore,
        "the ledger is deleted": remake,
        "records arrive": grow,
        "a partition is added": add_partition,
        "a transaction begins": open_transaction,
        "retention deletes": delete_old,
        "the topic is made again": recreate,
        "a partition loses a record": cut,
    }
)


_ORDINARY = ("a backup of the store is restored", "the ledger is deleted", "records arrive", "a partition is added")
_OPERATORS = MappingProxyType(
    {"operator": rewind, "night operator": rewind_forced, "careful operator": rewind_one, "undoer": undo}
)
_EDITORS = MappingProxyType({"mover": move, "truncater": truncate, "second truncater": truncate, "undoer": take_back})


def _in_place(events: Mapping[str, Callable[[World], None]]) -> dict[str, Callable[[World], None]]:
    """Return the events that can be noticed even if topics have no ids, or positions depend on the clock."""
    return {name: event for name, event in events.items() if event not in {restore, remake, recreate, cut}}


_APPEARING: Mapping[str, Any] = MappingProxyType(
    {"pattern": True, "events": {"a topic appears": add_topic, **{name: EVENTS[name] for name in _ORDINARY[2:]}}}
)

# Each is tried with every guarantee and kind of output: these exhaustively, two owners each,
_CORE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "": {"actors": TWO},
        "impatient": {"actors": TWO, "retry_timeout_s": 0.0},
        "query": {"actors": QUERIES},
        "query with state": {"actors": QUERIES, "stateful": True},
        "query with state, a checkpoint each": {"actors": QUERIES, "stateful": True, "own_checkpoints": True},
    }
)
# and these at random.
_WIDE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "three owners": {"actors": THREE},
        "impatient, with a short history": {"actors": THREE, "retry_timeout_s": _TWO_TRIES_S, "history": 2},
        "events": {"actors": THREE, "events": EVENTS},
        "operators": {"actors": {**THREE, **_OPERATORS}},
        "an adoption": {
            "actors": {**TWO, "adopter": adopt, "second adopter": adopt},
            "events": {name: EVENTS[name] for name in ("a backup of the store is restored", "the ledger is deleted")},
        },
        "a copy": {"actors": {**TWO, "copier": copy_away, "second copier": copy_away}},
        "a careless program": {"actors": {**TWO, "careless": careless}},
        "from the latest": {"actors": THREE, "start": "latest", "events": _in_place(EVENTS)},
        "by a pattern, from the latest": {"actors": THREE, "start": "latest", **_APPEARING},
        "queries by a pattern, from the latest": {"actors": THREE_QUERIES, "start": "latest", **_APPEARING},
        "topics without ids": {"actors": THREE, "topic_ids": False, "events": _in_place(EVENTS)},
        "three queries": {"actors": THREE_QUERIES},
        "three queries with state": {"actors": THREE_QUERIES, "stateful": True},
        "three queries, connector": {"actors": THREE_QUERIES, "packed": False},
        "three queries with state, connector": {"actors": THREE_QUERIES, "packed": False, "stateful": True},
        "slow looks": {"actors": QUERIES, "slow_looks": True},
        "with state, slow looks": {"actors": QUERIES, "stateful": True, "slow_looks": True},
        "three queries, slow looks": {"actors": THREE_QUERIES, "slow_looks": True},
        "three queries with state, slow looks": {"actors": THREE_QUERIES, "stateful": True, "slow_looks": True},
        "queries and operators": {"actors": {**QUERIES, **_OPERATORS}},
        "queries with state and operators": {"actors": {**QUERIES, **_OPERATORS}, "stateful": True},
    }
)
_LED: Mapping[str, Any] = MappingProxyType({"events": {"the name leads elsewhere": lead_elsewhere}})
_ELSEWHERE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "another cluster": {"actors": TWO, **_LED},
        "another cluster, without ids": {"actors": TWO, "topic_ids": False, **_LED},
        "another cluster, connector": {"actors": TWO, "packed": False, "topic_ids": False, **_LED},
        "another cluster, queries": {"actors": QUERIES, "topic_ids": False, **_LED},
        "another cluster, queries, connector": {"actors": QUERIES, "packed": False, "topic_ids": False, **_LED},
    }
)
_ELECTED: Mapping[str, Any] = MappingProxyType(
    {
        "leader_epochs": True,
        "policies": replace(GOING_ON, cut="common"),
        "events": {
            "a leader is elected": elect,
            "a leader that lacks a record is elected": elect_uncleanly,
            "another leader that lacks a record is elected": elect_uncleanly,
            "records arrive": grow,
        },
    }
)
# All that elections do, at random, and a single one, which can be exhausted.
_ELECTION: dict[str, Any] = {**_ELECTED, "events": {"a leader that lacks a record is elected": elect_uncleanly}}
_ELECTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"elections": {"actors": TWO, **_ELECTED}, "an election": {"actors": TWO, **_ELECTION}}
)
_UNSEEN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "connector": {"actors": TWO, "packed": False},
        "queries": {"actors": QUERIES},
        "queries, connector": {"actors": QUERIES, "packed": False},
    }
)
_ELECTIONS_UNSEEN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        f"{name}, {reader}": {**how, **events}
        for name, events in (("elections", _ELECTED), ("an election", _ELECTION))
        for reader, how in _UNSEEN.items()
    }
)
# Their tasks compare no epochs: at most once, rows that are read after the commit may be of either log.
_COMPARED_KINDS = {name: kind for name, kind in _KINDS.items() if kind.guarantee is not Guarantee.AT_MOST_ONCE}
# Only outputs that keep marks show that they were restored.
_RESTORED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "outputs are restored": {
            "actors": {**TWO, "adopter": adopt},
            "events": {"backups of the outputs are restored": restore_outputs},
        },
        # Without an operator meanwhile: whoever adopts a mark accepts the target that is there then.
        "outputs are made again": {
            "actors": TWO,
            "events": {"the targets of the outputs are made again": remake_outputs},
        },
        "outputs are elsewhere": {
            "actors": TWO,
            "events": {
                "the names of the outputs lead elsewhere": lead_outputs_elsewhere,
                "the names of the outputs lead back": lead_outputs_elsewhere,
            },
        },
    }
)
_RESTORED_KINDS = {name: kind for name, kind in _KINDS.items() if "marked" in kind.outputs.values()}
# Edits of a checkpoint know nothing of outputs: a few kinds do.
_SOME = {name: _KINDS[name] for name in ("at least once", "exactly once, in the transaction", "exactly once, marked")}
_EDITED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "queries and edits": {"actors": {**THREE_QUERIES, **_EDITORS}},
        "queries, connector, and edits": {"actors": {**THREE_QUERIES, **_EDITORS}, "packed": False},
        "queries with state and edits": {"actors": {**THREE_QUERIES, **_EDITORS}, "stateful": True},
    }
)
# Two programs on a group, which take batches over from each other; a run of each also waits for the other one.
_BESIDE = partial(owner, program=1)
_TAKING = partial(owner, pending="finish")
_BESIDE_TAKING = partial(owner, program=1, pending="finish")
_PROGRAMS: Mapping[str, Any] = MappingProxyType({"programs": {"a": owner, "b": _BESIDE}})
_REPLACED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "another program": {"actors": {"A": owner, "B": _BESIDE_TAKING}, **_PROGRAMS},
        "another program, and back": {
            "actors": {"A": owner, "B": _BESIDE_TAKING, "A again": _TAKING, "B again": _BESIDE},
            **_PROGRAMS,
        },
        "another program and operators": {
            "actors": {"A": owner, "B": _BESIDE_TAKING, "A again": _TAKING, **_OPERATORS},
            **_PROGRAMS,
        },
    }
)
# A redeploy that has renamed the outputs, and back again: a run of each also waits for the other one.
_RENAMING, _RENAMING_QUERY = partial(owner, renamed=True), partial(query, renamed=True)
_AT = MappingProxyType({"a": owner})
_RENAMED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "renamed": {"actors": {"A": owner, "B": _RENAMING}, "programs": _AT},
        "renamed, and back": {
            "actors": {"A": owner, "B": _RENAMING, "A again": owner, "B again": _RENAMING},
            "programs": _AT,
        },
        "renamed, and operators": {"actors": {"A": owner, "B": _RENAMING, **_OPERATORS}, "programs": _AT},
    }
)
_RENAMED_QUERY: Mapping[str, Any] = MappingProxyType(
    {"actors": {"A": query, "B": _RENAMING_QUERY, "A again": query}, "programs": {"a": query}}
)
_RENAMED_QUERIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "renamed, queries": _RENAMED_QUERY,
        "renamed, queries with state": {**_RENAMED_QUERY, "stateful": True},
    }
)
# Slots matter only to the output that has them.
_SLOTTED_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "exactly once, slots": _Kind(Guarantee.EXACTLY_ONCE, {"": "slotted"}),
        "exactly once, slots and marked": _Kind(Guarantee.EXACTLY_ONCE, {"one": "slotted", "two": "marked"}),
    }
)
_SLOTTED = {
    name: _WIDE[name]
    for name in (
        "three owners",
        "impatient, with a short history",
        "events",
        "operators",
        "an adoption",
        "three queries",
        "queries with state and operators",
    )
}
# Of each of these some records cannot be processed.
_POISONED_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "at least once, quarantine": _Kind(Guarantee.AT_LEAST_ONCE, {"": "apart"}, "apart"),
        "exactly once, in the transaction, quarantine": _Kind(Guarantee.EXACTLY_ONCE, {"": "joined"}, "joined"),
        "exactly once, marked, quarantine": _Kind(Guarantee.EXACTLY_ONCE, {"": "marked"}, "marked"),
        "exactly once, marked, quarantine in the transaction": _Kind(Guarantee.EXACTLY_ONCE, {"": "marked"}, "joined"),
        "exactly once, slots, quarantine": _Kind(Guarantee.EXACTLY_ONCE, {"": "slotted"}, "marked"),
        "exactly once, two marked, quarantine": _Kind(
            Guarantee.EXACTLY_ONCE, {"one": "marked", "two": "marked"}, "marked"
        ),
        "exactly once, marked and in the transaction, quarantine": _Kind(
            Guarantee.EXACTLY_ONCE, {"one": "marked", "two": "joined"}, "joined"
        ),
        "exactly once, in the transaction, quarantine marked": _Kind(Guarantee.EXACTLY_ONCE, {"": "joined"}, "marked"),
    }
)
_REPLACED_KINDS = {
    name: {**_KINDS, **_POISONED_KINDS}[name]
    for name in ("exactly once, marked", "exactly once, two marked", "exactly once, marked, quarantine")
}
_RENAMED_KINDS = {
    name: _KINDS[name]
    for name in (
        "at least once, two outputs",
        "exactly once, marked",
        "exactly once, two marked",
        "exactly once, marked, keyed and in the transaction",
    )
}
_RENAMED_POISONED_KINDS = {name: _POISONED_KINDS[name] for name in ("exactly once, two marked, quarantine",)}
_RESTORED_POISONED_KINDS = {
    name: kind
    for name, kind in _POISONED_KINDS.items()
    if "marked" in {*kind.outputs.values(), kind.dead_letters} and "slotted" not in kind.outputs.values()
}
_POISONED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "three owners": {"actors": THREE, "attempts": 1},
        "events": {"actors": THREE, "events": {name: EVENTS[name] for name in _ORDINARY}},
        "operators": {"actors": {**THREE, **_OPERATORS}},
    }
)


def core() -> list[Scenario]:
    """Return the scenarios of two owners without events: each guarantee and kind of output."""
    return _with_kinds(_CORE, _KINDS) + _with_kinds({"": {"actors": TWO}}, {**_SLOTTED_KINDS, **_POISONED_KINDS})


def wide() -> list[Scenario]:
    """Return the scenarios that are tried at random: three owners, operators, and all that can happen to Kafka."""
    several = (
        (_WIDE, _KINDS),
        (_RESTORED, _RESTORED_KINDS),
        (_EDITED, _SOME),
        (_ELSEWHERE, _SOME),
        (_ELECTIONS, _KINDS),
        (_ELECTIONS_UNSEEN, _COMPARED_KINDS),
        (_SLOTTED, _SLOTTED_KINDS),
        (_POISONED, _POISONED_KINDS),
        (_RESTORED, _RESTORED_POISONED_KINDS),
        (_REPLACED, _REPLACED_KINDS),
        (_RENAMED, {**_RENAMED_KINDS, **_RENAMED_POISONED_KINDS}),
        (_RENAMED_QUERIES, _RENAMED_KINDS),
    )
    return [each for casts, kinds in several for each in _with_kinds(casts, kinds)]


def scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name."""
    return {each.name: each for each in (*core(), *wide())}


def _with_kinds(casts: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, _Kind]) -> list[Scenario]:
    return [
        Scenario(
            f"{name}; {cast}" if cast else name,
            kind.guarantee,
            kind.outputs,
            dead_letters=kind.dead_letters,
            **settings,
        )
        for cast, settings in casts.items()
        for name, kind in kinds.items()
    ]
