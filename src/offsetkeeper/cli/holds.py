"""The command `holds`: which offsets an output holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import complain, counted, say, say_exactly, say_json, say_table, shown
from offsetkeeper.core.batch import DEAD_LETTERS
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.store import EVERY_ENTRY
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.holds import (
    Kind,
    compare,
    compare_with,
    ends_for_reset,
    held_in,
    held_in_topic,
    newer_names,
    spreads,
)
from offsetkeeper.sinks.held import Held
from offsetkeeper.sinks.sink import MarkKey

_SHOWN = 20


def holds(
    place: Annotated[
        str,
        typer.Argument(
            help="A path or URI of a Delta table, a path of a folder of Files, or the name of an Iceberg table or of a"
            " topic."
        ),
    ],
    *,
    catalog: Annotated[str, typer.Option(help="Name of the catalog of an Iceberg table, as pyiceberg knows it.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(help="A storage option of deltalake, or a property of the catalog, as name=value; repeatable."),
    ] = None,
    brokers: Annotated[str, typer.Option(help="Kafka's brokers, as host:port,host:port, if it is a topic.")] = "",
    kafka: options.Kafka = None,
    prefix: Annotated[str, typer.Option(help="The prefix of Topic(…), if it has another one.")] = "offsetkeeper",
    group: Annotated[str, typer.Option(help="Show only this consumer group.")] = "",
    output: Annotated[str, typer.Option(help="Show only the output of this name.")] = "",
    batches: Annotated[bool, typer.Option("--batches", help="List each batch.")] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the end of each partition as CSV, for reset --from-file.")
    ] = False,
    store: options.Store = "",
    as_json: options.AsJson = False,
) -> None:
    """Show which offsets an output holds, by its own metadata, with gaps and overlaps.

    A topic tells of its last batch alone: give --brokers and --group, and --output if there are several.

    With a store, they are compared with the group's ledger too. Exit code 1 if something does not fit. The meaning of
    each finding: https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper holds /data/orders --store sqlite:///offsets.db
    """
    chosen = options.settings(store, brokers, kafka)
    given = dict(options.pair("--option", each) for each in option or [])
    if brokers:
        _check_topic(group, catalog, export=export)

    def look() -> Held:
        if brokers:
            return held_in_topic(place, MarkKey(group, output), brokers, chosen.clients, prefix)
        return held_in(place, catalog, given)

    if export and not (chosen.store and group):
        raise SettingsError("--export needs the group's ledger: give --group and --store")
    known: dict[str, tuple[Snapshot, Sequence[Entry]]] = {}
    if chosen.store:  # the ledger, then the output, then the ledger: a run may go on meanwhile
        groups = {group} if group else {each.group for each in look().batches}
        known = {name: _ledger(chosen, name) for name in groups}
    held = look()
    some = [each for each in held.batches if group in {"", each.group} and output in {"", each.output}]
    owners = sorted({(each.group, each.output) for each in some}) or [(name, output) for name in known]
    parts = []
    for owner in owners:
        own = held._replace(batches=tuple(each for each in some if (each.group, each.output) == owner))
        parts.append(_Part(*owner, own, known.get(owner[0]), chosen))
    if export:
        _export(parts, held._replace(batches=tuple(each for each in held.batches if each.group == group)))
    elif as_json:
        about = {"place": place, "lacks": held.lacks, "changed": held.changed}
        say_json({**about, "outputs": [each.fields() for each in parts]})
    else:
        _say(place, held, parts, batches=batches)
    if any(each.findings for each in parts):
        raise typer.Exit(1)


def _check_topic(group: str, catalog: str, *, export: bool) -> None:
    if catalog or not group:
        raise SettingsError("--brokers is for a topic: give --group too, and no --catalog")
    if export:
        raise SettingsError("--export: a topic tells of its last batch alone. Ask its rows for their offsets")


def _say(place: str, held: Held, parts: Sequence[_Part], *, batches: bool) -> None:
    if not held.batches:
        say(f"{shown(place)} tells of no batch")
    if held.lacks:
        complain(f"older batches may be missing here: {held.lacks}")
    if held.changed:
        complain(f"others may have deleted or replaced rows of these batches: {held.changed}")
    for each in parts:
        each.say(batches=batches)


def _export(parts: Sequence[_Part], held: Held) -> None:
    """Print the ends of one output; of several, that which has the others' batches as those of its old names."""
    last = [each for each in parts if len(parts) == 1 or not newer_names(held.batches, each.output)]
    if len(last) != 1:
        named = ", ".join(listed_name(each.output) for each in last)
        raise SettingsError(f"--export needs one output of the group, and there are {named}: give --output")
    for (topic, partition), end in last[0].ends(held).items():
        say_exactly(f"{topic},{partition},{end}")
    for each in last[0].findings:
        complain(each)


def _ledger(chosen: options.Settings, group: str) -> tuple[Snapshot, Sequence[Entry]]:
    with options.open_group(chosen, group) as ledger:
        return ledger.snapshot, ledger.history(EVERY_ENTRY)


class _Part:
    """What one output of a group has in the place."""

    def __init__(
        self,
        group: str,
        output: str,
        held: Held,
        known: tuple[Snapshot, Sequence[Entry]] | None,
        chosen: options.Settings,
    ) -> None:
        self.group, self.output, self._held, self._known = group, output, held, known
        self.positions: dict[TopicPartition, int] = {}
        if output == DEAD_LETTERS:
            self.findings = [each for each in compare(held.batches) if each.kind is Kind.OVERLAP]
        elif known is None:
            self.findings = compare(held.batches)
        else:
            after, _ = _ledger(chosen, group)
            self.positions = {tp: at.offset for tp, at in after.positions.items()}
            self.findings = compare_with(known[0], after, known[1], held)

    def ends(self, held: Held) -> dict[TopicPartition, int]:
        """Return the ends for a reset; `held` has the batches of all outputs of the group."""
        assert self._known is not None  # noqa: S101 - an export has a ledger
        return ends_for_reset(*self._known, held, self.output)

    def fields(self) -> dict[str, Any]:
        rows = [each.as_dict() for each in self._held.batches]
        findings = [each.as_dict() for each in self.findings]
        return {"group": self.group, "output": self.output, "batches": rows, "findings": findings}

    def say(self, *, batches: bool) -> None:
        held = self._held.batches
        dropped = sum(each.dropped for each in held)
        unknown = sum(each.ranges is None for each in held)
        counts = [f"{len(held) - dropped} batches", *([f"{dropped} dropped"] if dropped else [])]
        counts += [f"{unknown} without offsets"] if unknown else []
        title = f"group {shown(self.group)}, {listed_name(shown(self.output))}: {', '.join(counts)}"
        if batches:
            lines = [(b.place, b.batch, *r) for b in held for r in b.ranges or ()]
            say_table(("place", "batch", "topic", "partition", "start", "end"), lines, title, spare=("place",))
        else:
            found = spreads(held)
            columns = ("topic", "partition", "start", "end", "batches", "position")
            say_table(columns, [(*tp, *found[tp], self.positions.get(tp)) for tp in found], title, spare=("batches",))
        for each in self.findings[:_SHOWN]:
            say(str(each))
        more = f"; the first {_SHOWN} are shown, --json prints all" if len(self.findings) > _SHOWN else ""
        say(f"{counted(len(self.findings), 'finding')}{more}")
