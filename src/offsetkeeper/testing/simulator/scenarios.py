"""The scenarios that are tried: every guarantee with every kind of output, alone and among what operators and Kafka do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from offsetkeeper.core.model import Guarantee, TopicPartition
from offsetkeeper.operate.reset import apply_reset, plan_reset, plan_undo
from offsetkeeper.testing.simulator.kafka import ModelTopic
from offsetkeeper.testing.simulator.runs import owner, query
from offsetkeeper.testing.simulator.world import TOPIC, Scenario, World

TWO = MappingProxyType({"A": owner, "B": owner})
THREE = MappingProxyType({"A": owner, "B": owner, "C": owner})
QUERIES = MappingProxyType({"A": query, "B": query})
THREE_QUERIES = MappingProxyType({"A": query, "B": query, "C": query})
_KINDS: Mapping[str, tuple[Guarantee, Mapping[str, str]]] = MappingProxyType(
    {
        "at most once": (Guarantee.AT_MOST_ONCE, {"": "apart"}),
        "at least once": (Guarantee.AT_LEAST_ONCE, {"": "apart"}),
        "at least once, two outputs": (Guarantee.AT_LEAST_ONCE, {"one": "apart", "two": "apart"}),
        "exactly once, in the transaction": (Guarantee.EXACTLY_ONCE, {"": "joined"}),
        "exactly once, keyed": (Guarantee.EXACTLY_ONCE, {"": "keyed"}),
        "exactly once, keyed and in the transaction": (Guarantee.EXACTLY_ONCE, {"one": "keyed", "two": "joined"}),
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


def grow(world: World) -> None:
    """Write a record to each partition."""
    topic = world.cluster.topics[TOPIC]
    topic.partitions = [(beginning, stable + 1, end + 1) for beginning, stable, end in topic.partitions]


def add_partition(world: World) -> None:
    """Add a partition with a record."""
    world.cluster.topics[TOPIC].partitions.append((0, 1, 1))


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


def rewind(world: World) -> None:
    """Set the group back to the beginning, as long as nobody holds it."""
    _operate(world, force=False)


def rewind_forced(world: World) -> None:
    """Set the group back to the beginning, and fence whoever holds it."""
    _operate(world, force=True)


def undo(world: World) -> None:
    """Take the newest reset back."""
    world.repeats, ledger = True, world.ledger()
    plan, _ = plan_undo(ledger, world.cluster)
    apply_reset(ledger, world.cluster, plan, "undo", force=True)


EVENTS: Mapping[str, Callable[[World], None]] = MappingProxyType(
    {
        "a backup of the store is restored": restore,
        "the ledger is deleted": remake,
        "records arrive": grow,
        "a partition is added": add_partition,
        "a transaction begins": open_transaction,
        "retention deletes": delete_old,
        "the topic is made again": recreate,
    }
)


def core() -> list[Scenario]:
    """Return the scenarios that are exhausted: each guarantee and kind of output, two owners, no events."""
    return [
        Scenario(name if patient else f"{name}, impatient", guarantee, outputs, TWO, retry_timeout_s=60.0 * patient)
        for name, (guarantee, outputs) in _KINDS.items()
        for patient in (True, False)
    ] + [
        Scenario(f"query{' with state' * state}; {name}", guarantee, outputs, QUERIES, stateful=state)
        for name, (guarantee, outputs) in _KINDS.items()
        for state in (False, True)
    ] + [
        Scenario(f"query with state, a checkpoint each; {name}", guarantee, outputs, QUERIES, stateful=True, own_checkpoints=True)
        for name, (guarantee, outputs) in _KINDS.items()
    ]


def wide() -> list[Scenario]:
    """Return the scenarios that are tried at random: three owners, operators, and all that can happen to Kafka."""
    operators = {**THREE, "operator": rewind, "night operator": rewind_forced, "undoer": undo}
    return [
        *(Scenario(f"{name}; three owners", g, outputs, THREE) for name, (g, outputs) in _KINDS.items()),
        *(Scenario(f"{name}; events", g, outputs, THREE, _events(g)) for name, (g, outputs) in _KINDS.items()),
        *(Scenario(f"{name}; operators", g, outputs, operators) for name, (g, outputs) in _KINDS.items()),
        *(Scenario(f"query; {name}; three owners", g, outputs, THREE_QUERIES) for name, (g, outputs) in _KINDS.items()),
        *(
            Scenario(f"query{' with state' * state}, connector; {name}; three owners", g, outputs, THREE_QUERIES, packed=False, stateful=state)
            for name, (g, outputs) in _KINDS.items()
            for state in (False, True)
        ),
        *(
            Scenario(f"query with state; {name}; three owners", g, outputs, THREE_QUERIES, stateful=True)
            for name, (g, outputs) in _KINDS.items()
        ),
    ]


def scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name."""
    return {each.name: each for each in (*core(), *wide())}


def _events(guarantee: Guarantee) -> Mapping[str, Callable[[World], None]]:
    # A batch that is committed before it is written may be read from a topic that was made again since: see proof.md.
    once = guarantee is Guarantee.AT_MOST_ONCE
    return {name: event for name, event in EVENTS.items() if not (once and event is recreate)}


def _operate(world: World, *, force: bool) -> None:
    world.repeats, ledger = True, world.ledger()
    to = {TopicPartition(TOPIC, 0): 0, TopicPartition(TOPIC, 1): 0}
    plan = plan_reset(ledger.load(), ledger.store.address, world.cluster, to)
    apply_reset(ledger, world.cluster, plan, "again", force=force)
