"""The command reset: sets the positions of groups, with a preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.changes import Execute, Force, Reason, signed, tell
from offsetkeeper.cli.output import complain, say_exactly, say_json, shown
from offsetkeeper.cli.targets import (
    Clip,
    DryRun,
    Targets,
    TopicOption,
    check_execute,
    dump_csv,
    only,
    parse_scope,
    taking_targets,
    write_text,
)
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.outside import LARGEST_TABLE, read_text
from offsetkeeper.errors import Fenced, Refused, SettingsError, listed
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.reset import apply_reset, check_reset, known_history, plan_reset
from offsetkeeper.operate.reset_plan import ResetPlan, load_plan
from offsetkeeper.operate.scope import Scope, check_none_lost

Groups = Annotated[
    list[str] | None, typer.Argument(help="Names of the consumer groups, as in Kafka (group.id); usually one.")
]


@taking_targets
def reset(
    groups: Groups = None,
    *,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Reset all groups of the store.")] = False,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: TopicOption = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics of the group and the topics in offsetkeeper.toml.")
    ] = False,
    targets: Targets,
    clip: Clip = False,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as a CSV for --from-file.")] = False,
    save: Annotated[Path | None, typer.Option(help="Save the plan to this file. Execute it later with --plan.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Use the plan that --save wrote to this file.")] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Force = False,
    reason: Reason = "",
    as_json: options.AsJson = False,
) -> None:
    """Set the positions of a group. A preview shows which records are read again and which are skipped.

    For several groups, the command plans all resets before it changes the first group; then it changes them in turn.

    Example: offsetkeeper reset orders --topic orders:0,1 --to-datetime 2026-01-31T12:00:00+00:00 --execute
    """
    check_execute(execute=execute, dry_run=dry_run)
    chosen = options.settings(store, brokers, kafka)
    moved = _moved_groups(chosen, groups or [], every=all_groups, one=plan is not None or save is not None)
    grouped = all_groups or len(moved) > 1  # CSV and JSON have the same shape, whatever the store has
    given = {group: targets.given(group, grouped=grouped) for group in moved}
    if plan is not None and (any(given.values()) or topic or all_topics):
        raise SettingsError("--plan has targets and topics already: give no others")
    to = {group: only(each) for group, each in given.items()} if plan is None else {}
    scope = _scope(topic or [], all_topics=all_topics, said=plan is not None or targets.from_file is not None)
    with ExitStack() as stack:
        ledgers = {group: stack.enter_context(options.open_ledger(chosen, group)) for group in moved}
        if export and targets.to_current and save is None and not execute:
            # An export of stored positions does not ask Kafka: it is a record for later.
            stored = {group: _stored(ledger, scope, force=force) for group, ledger in ledgers.items()}
            _export(stored, grouped=grouped)
            return
        cluster = stack.enter_context(options.open_cluster(chosen))
        if plan is not None:
            [ledger] = ledgers.values()
            made = [
                check_reset(
                    ledger, cluster, load_plan(read_text(plan, "--plan", most=LARGEST_TABLE, private=True), str(plan))
                )
            ]
        else:
            if all_topics and targets.from_file is None:
                scope = scope._replace(topics=set(chosen.topics))
            work = partial(plan_reset, clip=clip)
            made = [
                work(each.load(), each.store.address, cluster, to[group], scope, history=known_history(each))
                for group, each in ledgers.items()
            ]
            (_check_known if targets.from_file is None else _tell_unnamed)(ledgers, made)
            _check_exported(ledgers, made if export and targets.from_file is None else (), scope)
        if save is not None:
            write_text(save, made[0].dump())
        if execute:
            _apply(ledgers, cluster, made, signed(reason), force=force)
        if export:
            _export({each.group: each.offsets for each in made}, grouped=grouped)
        if execute or not export:
            how = partial(tell, cluster=cluster, execute=execute, force=force, as_json=as_json)
            found = [how(ledgers[each.group], made=each) for each in made]
            if as_json:
                say_json(found if grouped else found[0])


def _moved_groups(chosen: options.Settings, groups: Sequence[str], *, every: bool, one: bool) -> Sequence[str]:
    """Return the named groups, or all groups of the store."""
    if every and groups:
        raise SettingsError("give the names of groups, or --all-groups, not both")
    if not every and not groups:
        raise SettingsError("say which groups to reset: give their names, or --all-groups")
    if every:
        with options.open_store(chosen) as opened:
            groups = opened.groups()
        if not groups:
            raise Refused("the store has no groups: nothing was changed")
    if twice := next((group for group in groups if groups.count(group) > 1), None):
        raise SettingsError(f"group {twice!r} is named twice")
    if one and len(groups) > 1:
        raise SettingsError("--plan and --save are for one group")
    return groups


def _scope(named: list[str], *, all_topics: bool, said: bool) -> Scope:
    """Return the partitions that --topic or --all-topics names. `said`: another option names the partitions."""
    if named and all_topics:
        raise SettingsError("give --topic or --all-topics, not both")
    if not (named or all_topics or said):
        raise SettingsError("say which partitions to reset: --topic orders, --topic orders:0,1, or --all-topics")
    return parse_scope(named)._replace(all_topics=all_topics)


def _stored(ledger: Ledger, scope: Scope, *, force: bool) -> dict[TopicPartition, int]:
    snapshot = ledger.load()
    options.check_unedited(ledger, force=force)
    stored, begun = snapshot.positions, snapshot.pending or snapshot.unsettled
    if begun is not None:
        complain(
            f"group {shown(ledger.group)}: batch {shown(begun.id)} was begun and not committed, and an output may have "
            "it: another group that starts at these positions writes it again. To move a group, start its job, stop it "
            "by SIGTERM until offsetkeeper plan shows no such batch, and export again"
        )
    check_none_lost(snapshot, scope)
    kept = scope.select(stored, f"the positions of group {ledger.group!r}")
    if not kept:
        raise Refused(f"group {ledger.group!r} has no positions: there is nothing to export")
    return {tp: stored[tp].offset for tp in kept}


def _tell_unnamed(ledgers: Mapping[str, Ledger], made: Sequence[ResetPlan]) -> None:
    """Name the partitions that keep their positions, of the topics in a file: an output may have no row of them."""
    for each in made:
        topics = {tp.topic for tp in each.offsets}
        kept = sorted(tp for tp in ledgers[each.group].snapshot.positions.keys() - each.offsets if tp.topic in topics)
        if kept:
            complain(
                f"group {shown(each.group)}: not set, so their positions stay, and what is before these is not read "
                f"again: {listed(kept, ', ')}"
            )


def _check_known(ledgers: Mapping[str, Ledger], _: Sequence[ResetPlan]) -> None:
    """Check that the store has each of several groups: a word of a reason without quotes would become a group."""
    new = [shown(group) for group, ledger in ledgers.items() if options.nothing_stored(ledger)]
    if new and len(ledgers) > 1:
        [address] = {ledger.store.address for ledger in ledgers.values()}
        raise Refused(
            f"{address} has no group{'s' * (len(new) > 1)} {', '.join(new)}: nothing was changed. Quote a reason of "
            "several words. A new group is named alone, or with --from-file"
        )


def _check_free(ledgers: Mapping[str, Ledger], made: Sequence[ResetPlan]) -> None:
    """Check that no run holds one of several groups before the first group is changed."""
    owners = {each.group: ledgers[each.group].snapshot.owner for each in made if each.moves}
    held = [f"{shown(group)} by {owner.name or owner.id}" for group, owner in owners.items() if owner is not None]
    if len(made) > 1 and held:
        raise Fenced(f"nothing was changed: runs hold {', '.join(held)}. Stop these runs first, or add --force")


def _export(offsets: Mapping[str, Mapping[TopicPartition, int]], *, grouped: bool) -> None:
    for group, each in offsets.items():
        say_exactly(dump_csv(each, group if grouped else ""))


def _check_exported(ledgers: Mapping[str, Ledger], made: Sequence[ResetPlan], scope: Scope) -> None:
    """Check that each plan to export has all partitions of the scope."""
    for each in made:
        check_none_lost(ledgers[each.group].snapshot, scope, each.offsets)


def _apply(
    ledgers: Mapping[str, Ledger], cluster: KafkaCluster, made: Sequence[ResetPlan], reason: str, *, force: bool
) -> None:
    """Execute one plan after the other; if one fails, or Ctrl-C is pressed, print which groups are done."""
    if not force:
        _check_free(ledgers, made)
    done: list[str] = []
    for each in made:
        try:
            apply_reset(ledgers[each.group], cluster, each, reason, force=force)
        except BaseException:
            if done:
                complain(f"changed before this error: {', '.join(done)}")
            raise
        done += [each.group] if each.moves else []
