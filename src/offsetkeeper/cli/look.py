"""Commands that only look: groups, show, plan, lag, history, verify."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json, say_table, seconds
from offsetkeeper.model import kafka_positions, query_batches

Watch = Annotated[float | None, typer.Option(min=0.1, help="Measure again every so many seconds, until interrupted.")]
Limit = Annotated[int, typer.Option(min=1, help="Newest entries only.")]


def groups(*, store: options.Store = "", as_json: options.AsJson = False) -> None:
    """List the groups of a store.

    Example: offsetkeeper groups --store sqlite:///offsets.db
    """
    with options.open_store(options.settings(store)) as opened:
        found = [opened.load(name) for name in opened.groups()]
    if as_json:
        say_json([_summary(snapshot) for snapshot in found])
        return
    columns = ("group", "version", "held by", "generation", "topics", "partitions")
    say_table(columns, [tuple(_summary(snapshot)[name.replace(" ", "_")] for name in columns) for snapshot in found])


def show(group: options.Group, *, store: options.Store = "", as_json: options.AsJson = False) -> None:
    """Show a group: who holds it, its positions, the batch under way.

    Example: offsetkeeper show orders
    """
    with options.open_ledger(options.settings(store), group) as ledger:
        found = ledger.load()
    positions = [(*tp, at.offset, at.topic_id) for tp, at in sorted(kafka_positions(found.positions).items())]
    pending = (
        None if found.pending is None else {"id": found.pending.id, "ranges": [list(r) for r in found.pending.ranges]}
    )
    if as_json:
        names = ("topic", "partition", "offset", "topic_id")
        rows = [dict(zip(names, row, strict=True)) for row in positions]
        queries = query_batches(found.positions)
        say_json({**_summary(found), "positions": rows, "queries": queries, "pending": pending})
        return
    held = found.owner.name if found.owner else "nobody"
    say(f"group {group}: version {found.version}, generation {found.generation}, held by {held} (epoch {found.epoch})")
    if found.pending is not None:
        say(f"batch {found.pending.id} was begun and not committed:\n{found.pending.lines()}")
    for query, batch in query_batches(found.positions).items():
        say(f"streaming query {query}: its batches before {batch} are done")
    say_table(("topic", "partition", "offset"), [row[:3] for row in positions])


def plan(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    start: Annotated[
        str, typer.Option(help="Where a topic without positions begins: earliest or latest.")
    ] = "earliest",
    as_json: options.AsJson = False,
) -> None:
    """Show where a run would start now, and why. Exit code 1 where it would be refused.

    Example: offsetkeeper plan orders --topic orders --brokers localhost:9092
    """
    from offsetkeeper.engines.planning import Subscription, make_plan  # noqa: PLC0415 - loaded on use

    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger, options.open_cluster(chosen) as cluster:
        positions = ledger.load().positions
        topics = tuple(topic or chosen.topics or sorted({tp.topic for tp in kafka_positions(positions)}))
        made = make_plan(cluster, Subscription(topics, "latest" if start == "latest" else "earliest"), group, positions)
    if as_json:
        say_json(made.as_dict())
    else:
        say(str(made))
    if any(row.stops for row in made.rows):
        raise typer.Exit(1)


def lag(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    watch: Watch = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how far a group is behind, in records and in seconds, how near retention is, and the status in one word.

    Works also while nothing runs. Exit code 1 where unread records are lost, or about to be.

    Example: offsetkeeper lag orders --brokers localhost:9092 --watch 5
    """
    from offsetkeeper.operations import group_lag  # noqa: PLC0415 - loaded on use
    from offsetkeeper.status import Status, status  # noqa: PLC0415

    chosen = options.settings(store, brokers, kafka)
    looks: list[int] = []
    with options.open_ledger(chosen, group) as ledger, options.open_cluster(chosen) as cluster:
        while True:
            found = group_lag(ledger.load(), cluster, topic or ())
            word = status(ledger.snapshot, found, ledger.history(200), time.time_ns() // 1_000_000, looks)
            _say_lag(group, found, word, as_json=as_json)
            if watch is None:
                break
            looks = [*looks[-9:], sum(each.records or 0 for each in found)]
            time.sleep(watch)
    if word is Status.LOSING_DATA:
        raise typer.Exit(1)


def history(
    group: options.Group, *, store: options.Store = "", limit: Limit = 20, as_json: options.AsJson = False
) -> None:
    """Show the newest changes of a group: when, what, who, why.

    Example: offsetkeeper history orders --limit 100 --json
    """
    from offsetkeeper.control import entry_fields  # noqa: PLC0415 - loaded on use

    with options.open_ledger(options.settings(store), group) as ledger:
        entries = ledger.history(limit)
    if as_json:
        say_json([{"version": entry.version, **entry_fields(entry)} for entry in entries])
        return
    rows = [
        (e.version, _time(e.at_ms), e.event, e.actor, sum(r.size for r in e.ranges) or None, e.reason) for e in entries
    ]
    say_table(("version", "time", "event", "by", "offsets", "why"), rows)


def verify(group: options.Group, *, store: options.Store = "", as_json: options.AsJson = False) -> None:
    """Look for gaps and overlaps in the history. Exit code 1 where nothing in it explains one.

    Example: offsetkeeper verify orders
    """
    from offsetkeeper.audit import audit  # noqa: PLC0415 - loaded on use

    with options.open_ledger(options.settings(store), group) as ledger:
        positions = ledger.load().positions
        entries = ledger.history(1_000_000)
    findings = audit(entries[::-1], positions)
    if as_json:
        say_json({"group": group, "entries": len(entries), "findings": [each.as_dict() for each in findings]})
    else:
        for each in findings:
            say(str(each))
        say(f"{len(entries)} changes looked through, {len(findings)} gaps and overlaps found")
    if any(not each.explained for each in findings):
        raise typer.Exit(1)


def _say_lag(group: str, found: list[Any], status: str, *, as_json: bool) -> None:
    counted = [each.records for each in found if each.records is not None]
    if as_json:
        parts = [each.as_dict() for each in found]
        say_json({"group": group, "status": status, "records": sum(counted), "partitions": parts})
        return
    rows = [
        (
            *each.topic_partition,
            "no commit" if each.position is None else each.position,
            each.end,
            each.records,
            each.lost or None,
            seconds(each.seconds),
            "-" if each.retention_used is None else f"{each.retention_used:.0%}",
        )
        for each in found
    ]
    columns = ("topic", "partition", "position", "end", "records", "lost", "age", "retention used")
    say_table(columns, rows, title=f"{group}: {status}, {sum(counted)} records behind")


def _summary(snapshot: Any) -> dict[str, Any]:
    positions = kafka_positions(snapshot.positions)
    return {
        "group": snapshot.group,
        "version": snapshot.version,
        "held_by": snapshot.owner and snapshot.owner.name,
        "epoch": snapshot.epoch,
        "generation": snapshot.generation,
        "sequence": snapshot.sequence,
        "topics": ", ".join(sorted({tp.topic for tp in positions})),
        "partitions": len(positions),
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds")
