"""Commands that only read: groups, show, plan, history, verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Annotated, cast

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.lag_table import usual_top
from offsetkeeper.cli.output import complain, counted, say, say_json, say_table, seconds, shown
from offsetkeeper.cli.targets import parse_datetime
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.duration import time_text
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.model import Entry, Guarantee, Snapshot, check_group
from offsetkeeper.core.offsets import Positions, TopicPartition, topics_of
from offsetkeeper.core.plan import Policies
from offsetkeeper.core.store import EVERY_ENTRY, Store
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import BrokerError, CorruptStore, Refused, SettingsError, listed
from offsetkeeper.kafka.start_plan import Start, Subscription, ask_plan, check_offsets, unreadable_ranges
from offsetkeeper.operate.audit import audit, up_to
from offsetkeeper.operate.json_view import (
    audit_fields,
    edited_fields,
    group_fields,
    history_fields,
    ledger_fields,
    plan_fields,
)
from offsetkeeper.operate.lag import Lag, group_lag, topics_read, total
from offsetkeeper.operate.outlook import Outlook, outlook

_PENDING, _UNSETTLED = "is pending (begun, not committed)", "was dropped by a reset (unsettled)"
Limit = Annotated[int, typer.Option(min=1, max=EVERY_ENTRY, help="Show this many entries, the newest first.")]


def groups(*, store: options.Store = "", as_json: options.AsJson = False) -> None:
    """List the groups of a store. Exit code 1 if a group cannot be read.

    Example: offsetkeeper groups --store sqlite:///offsets.db
    """
    errors: dict[str, str] = {}
    with options.open_store(options.settings(store), read_only=True) as opened:
        names = opened.groups()
        found = [_loaded(opened, name, errors) for name in names]
    rows = [
        group_fields(snapshot) if snapshot else {"group": name} for name, snapshot in zip(names, found, strict=True)
    ]
    if as_json:
        say_json([row | {"error": errors.get(row["group"])} for row in rows])
    else:
        columns = ("group", "version", "held by", "generation", "topics", "partitions")
        shown = [row | {"topics": ", ".join(row.get("topics", ()))} for row in rows]
        cells = [tuple(row.get(name.replace(" ", "_")) for name in columns) for row in shown]
        say_table(columns, cells, spare=("generation", "version"), wrap=("topics",))
    for error in () if as_json else errors.values():
        complain(error)
    if errors:
        raise typer.Exit(1)


def show(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show all partitions. Of many, a terminal shows a line for each topic without it."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show one group: its owner, its positions, its pending batch and, if brokers are given, its lag.

    Example: offsetkeeper show orders
    """
    chosen = options.settings(store, brokers, kafka)
    with options.open_group(chosen, group) as ledger:
        found = ledger.snapshot
        differing = options.say_edited(ledger)
    lags = _lags(found, chosen)
    if as_json:
        say_json(ledger_fields(found, lags) | edited_fields(differing))
        return
    held = found.owner.name if found.owner else "nobody"
    say(
        f"group {shown(group)}: held by {held}, version {found.version} (number of changes), "
        f"epoch {found.epoch} (number of runs that took the group), generation {found.generation} (number of rewinds)"
    )
    if found.pending is not None:
        say(_told(found.pending, _PENDING))
    if found.unsettled is not None:
        ahead = Outlook(None, None, "", found.positions, found.unsettled)
        say(f"{_told(found.unsettled, _UNSETTLED)}\n{ahead.settling}")
    for output, (target, mode) in sorted(found.outputs.items()):
        say(f"{listed_name(output)} is {target}{f', {mode}' if mode else ''}")
    for output, (sequence, _) in found.landed.items():
        has = f"has all committed batches, up to {sequence}" if sequence else "has no batch yet"
        say(f"{listed_name(output)} {has}")
    if found.missing:
        say(f"the store has lost the positions of {listed(sorted(found.missing), ', ')}: the next start is refused")
    for query, batch in sorted(found.queries.items()):
        say(f"streaming query {query}: its batches before {batch} are done")
    if found.watermark_ms is not None:
        at = time_text(found.watermark_ms)
        say(f"the last batch ran with the watermark {at}: a lost state can be built again from there")
    _say_lags(found.positions, lags, None if every else usual_top(len(found.positions)))


def _say_lags(positions: Positions, lags: Mapping[TopicPartition, Lag], worst: int | None) -> None:
    """Show all partitions; if only some are wanted, a line for each topic, and those that need a look."""
    if worst is None:
        _say_positions(positions, lags)
        return
    _say_topics(positions, lags)
    odd = sorted(tp for tp in positions if tp in lags and lags[tp].remark)[:worst]
    if odd:
        _say_positions({tp: positions[tp] for tp in odd}, lags)
    typer.echo(f"{len(positions)} partitions. --all shows each; offsetkeeper lag shows the worst", err=True)


def _say_positions(positions: Positions, lags: Mapping[TopicPartition, Lag]) -> None:
    columns = ("topic", "partition", "offset", *(("end", "records behind", "age") if lags else ()))
    rows = [(*tp, at.offset, *(_behind(lags[tp]) if lags else ())) for tp, at in sorted(positions.items())]
    say_table(columns, rows)


def _say_topics(positions: Positions, lags: Mapping[TopicPartition, Lag]) -> None:
    """Show a line for each topic."""
    rows = []
    for topic in sorted(topics_of(positions)):
        offsets = [at.offset for tp, at in positions.items() if tp.topic == topic]
        of = total([lag for tp, lag in lags.items() if tp.topic == topic], {})
        behind = (of.waiting, "~ " * of.estimated + seconds(of.seconds)) if lags else ()
        rows.append((topic, len(offsets), min(offsets), max(offsets), *behind))
    names = ("topic", "partitions", "lowest offset", "highest offset")
    say_table((*names, *(("records behind", "age") if lags else ())), rows, spare=("lowest offset", "highest offset"))


def plan(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    start: Annotated[
        str,
        typer.Option(
            help="Where a topic without stored positions starts: earliest, latest, or a time with its time zone."
        ),
    ] = "earliest",
    offset: Annotated[
        list[str] | None,
        typer.Option(help="Start a partition at this offset, as topic:partition=offset; may be repeated."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy of the pipeline, such as beyond_end=beginning; may be repeated.")
    ] = None,
    guarantee: Annotated[Guarantee, typer.Option(help="The guarantee of the pipeline.")] = Guarantee.AT_LEAST_ONCE,
    as_json: options.AsJson = False,
) -> None:
    """Show where a run would start now, and why. Exit code 1 if the start would be refused.

    Give the same values that the pipeline has: --start, --offset and --policy are its start, offsets and policies. If
    a batch is pending, the command first shows what the start does with it, and then plans from the positions after
    that. If a reset has dropped a batch, it also shows what depends on the answers of its outputs. The meaning of each
    verdict: https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper plan orders --topic orders --brokers localhost:9092
    """
    begin, policies, given = _start(start), _policies(policy or []), _offsets(offset or [])
    chosen = options.settings(store, brokers, kafka)
    with options.open_ledger(chosen, group) as ledger, options.open_cluster(chosen) as cluster:
        if not options.missing_file(ledger.store):
            ledger.load()
        if nothing := options.nothing_stored(ledger):
            typer.echo(f"{nothing}: this would be the first start", err=True)
        differing = () if options.missing_file(ledger.store) else options.say_edited(ledger)
        pending = ledger.snapshot.pending
        problems = unreadable_ranges(cluster, pending, ledger.snapshot.positions).reasons if pending else []
        reads = tuple(topic or chosen.topics or ())
        ahead = outlook(ledger.snapshot, problems, guarantee, policies, reads)
        topics = reads or tuple(sorted(topics_read(replace(ledger.snapshot, positions=ahead.positions))))
        asked = Subscription(Topics.of(topics), begin, policies)
        chosen_offsets = check_offsets(given, asked.topics)
        made = ask_plan(cluster, asked, replace(ledger.snapshot, positions=ahead.positions), chosen_offsets)
    if as_json:
        say_json(plan_fields(made, ahead) | edited_fields(differing))
    else:
        if pending:
            say(f"{_told(pending, _PENDING)}\n{ahead.why}")
        if ahead.unsettled:
            say(f"{_told(ahead.unsettled, _UNSETTLED)}\n{ahead.settling}")
        say("\n".join(filter(None, (made.text(), made.remedy))))
    if any(row.stops for row in made.rows) or ahead.refused:
        raise typer.Exit(1)


def history(
    group: options.Group, *, store: options.Store = "", limit: Limit = 20, as_json: options.AsJson = False
) -> None:
    """Show the newest changes of a group: time, event, who made it, and why.

    Example: offsetkeeper history orders --limit 100 --json
    """
    with options.open_group(options.settings(store), group) as ledger:
        entries = ledger.history(limit)
    if as_json:
        say_json(history_fields(entries))
        return
    rows = [
        (e.version, _time(e.at_ms), e.event, e.actor, sum(r.size for r in e.ranges) or None, _moved(e) + e.reason)
        for e in entries
    ]
    say_table(("version", "time", "event", "by", "offsets", "why"), rows, spare=("by",), wrap=("by", "why"))


def _moved(entry: Entry) -> str:
    """Return where a reset has moved positions from and to; of many only the first ones."""
    if entry.event != "rewind" or not entry.moves:
        return ""
    moves = (f"{tp} {'-' if m.before is None else m.before.offset} → {m.after.offset}" for tp, m in entry.moves.items())
    return f"{listed(sorted(moves), ', ', 3)}{'; ' * bool(entry.reason)}"


def verify(group: options.Group, *, store: options.Store = "", as_json: options.AsJson = False) -> None:
    """Check the history of a group for gaps, overlaps, deleted positions and missing changes.

    Exit code 1 if the history does not explain one of them, as a reset does. The meaning of each finding:
    https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper verify orders
    """
    with options.open_ledger(options.settings(store), group, read_only=True) as ledger:
        found, entries = ledger.load(), ledger.history(EVERY_ENTRY)
        if not entries:
            options.check_stored(ledger)
        entries = up_to(found, entries, ledger.load)
    findings = audit(entries[::-1], found)
    if as_json:
        say_json(audit_fields(group, entries, findings))
    else:
        for each in findings:
            say(str(each))
        say(f"{counted(len(entries), 'change')} checked, {counted(len(findings), 'finding')}")
    if any(not each.explained for each in findings):
        raise typer.Exit(1)


def _loaded(store: Store, name: str, errors: dict[str, str]) -> Snapshot | None:
    """Return a group's ledger; None if it cannot be read. The error is put into `errors`."""
    found: Snapshot | None = None
    try:
        found = store.load(name)
        check_group(name)
    except (CorruptStore, Refused, SettingsError) as error:
        errors[name] = str(error)
    return found


def _start(text: str) -> Start:
    if text in {"earliest", "latest"}:
        return cast("Start", text)
    try:
        return parse_datetime(text, "--start")
    except SettingsError as error:
        raise SettingsError(f"{error}; or give earliest or latest") from error


def _policies(texts: list[str]) -> Policies:
    named = dict(options.pair("--policy", each) for each in texts)
    known = [field.name for field in fields(Policies)]
    if unknown := sorted(named.keys() - known):
        raise SettingsError(f"--policy {unknown[0]}: unknown policy; use one of {', '.join(known)}")
    return Policies(**named)  # type: ignore[arg-type]  # Policies checks the words


def _told(batch: Batch, what: str) -> str:
    had = [f"{listed_name(name)} has it" for name in batch.written]
    had += [f"it was begun by a program that {batch.program}"] if batch.program else []
    had += [f"output {name} may have it" for name in batch.lands_in if name and name not in batch.written]
    return "\n".join([f"batch {batch.id} {what}:", batch.lines(), *had])


def _offsets(texts: list[str]) -> dict[TopicPartition, int]:
    given = {}
    for name, number in (options.pair("--offset", each) for each in texts):
        topic, _, partition = name.rpartition(":")
        try:
            given[TopicPartition(topic, int(partition))] = int(number)
        except ValueError as error:
            raise SettingsError(f"--offset {name}={number}: write topic:partition=offset") from error
    return given


def _lags(found: Snapshot, chosen: options.Settings) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition; empty if no brokers are given. Print a message if they do not answer."""
    if not chosen.brokers:
        return {}

    try:
        with options.open_cluster(chosen) as cluster:
            return {lag.topic_partition: lag for lag in group_lag(found, cluster)}
    except BrokerError as error:
        typer.echo(f"the lag is not known: {error}", err=True)
        return {}


def _behind(lag: Lag) -> tuple[object, ...]:
    return (lag.end, lag.remark or lag.records, "~ " * lag.estimated + seconds(lag.seconds))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds")
