"""The command `holds`: which offsets an output holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import complain, say, say_exactly, say_json, say_table, shown
from offsetkeeper.core.batch import DEAD_LETTERS
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import SettingsError
from offsetkeeper.operate.holds import Finding, Kind, compare, compare_with, held_in, spreads
from offsetkeeper.sinks.held import HeldBatch

_ALL = 1_000_000  # entries, more than any store keeps
_SHOWN = 20


def holds(
    place: Annotated[
        str,
        typer.Argument(
            help="A path or URI of a Delta table, a path of a folder of Files, or the name of an Iceberg table."
        ),
    ],
    *,
    catalog: Annotated[str, typer.Option(help="Name of the catalog of an Iceberg table, as pyiceberg knows it.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(help="A storage option of deltalake, or a property of the catalog, as name=value; repeatable."),
    ] = None,
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

    With a store, they are compared with the group's ledger too. Exit code 1 if something does not fit. The meaning of
    each finding: https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper holds /data/orders --store sqlite:///offsets.db
    """
    chosen = options.settings(store)
    held = held_in(place, catalog, dict(options.pair("--option", each) for each in option or []))
    batches_of = [each for each in held.batches if group in {"", each.group} and output in {"", each.output}]
    parts = [
        _Part(*key, [*each], chosen) for key, each in groupby(sorted(batches_of, key=_owner), key=_owner)
    ]  # sorted is stable: batches stay in their order
    if export:
        _export(parts)
    elif as_json:
        say_json({"place": place, "lacks": held.lacks, "outputs": [each.fields() for each in parts]})
    else:
        if not parts:
            say(f"{shown(place)} tells of no batch")
        if held.lacks:
            complain(f"older batches may be missing here: {held.lacks}")
        for each in parts:
            each.say(batches=batches)
    if any(each.findings for each in parts):
        raise typer.Exit(1)


def _export(parts: Sequence[_Part]) -> None:
    if len(parts) != 1:
        named = ", ".join(f"group {each.group!r}, {listed_name(each.output)}" for each in parts) or "none"
        raise SettingsError(f"--export needs one output, and there is {named}: give --group and --output")
    for tp, there in spreads(parts[0].batches).items():
        say_exactly(f"{tp.topic},{tp.partition},{there.end}")
    for each in parts[0].findings:
        complain(each)


def _owner(batch: HeldBatch) -> tuple[str, str]:
    return batch.group, batch.output


class _Part:
    """What one output of a group has in the place."""

    def __init__(self, group: str, output: str, batches: Sequence[HeldBatch], chosen: options.Settings) -> None:
        self.group, self.output, self.batches = group, output, batches
        self.positions: dict[TopicPartition, int] = {}
        if output == DEAD_LETTERS:
            self.findings = [each for each in compare(batches) if each.kind is Kind.OVERLAP]
        elif chosen.store:
            self.findings = self._against_ledger(chosen)
        else:
            self.findings = compare(batches)

    def _against_ledger(self, chosen: options.Settings) -> list[Finding]:
        with options.open_group(chosen, self.group) as ledger:
            self.positions = {tp: at.offset for tp, at in ledger.snapshot.positions.items()}
            return compare_with(ledger.snapshot, ledger.history(_ALL), self.batches)

    def fields(self) -> dict[str, Any]:
        rows = [each.as_dict() for each in self.batches]
        findings = [each.as_dict() for each in self.findings]
        return {"group": self.group, "output": self.output, "batches": rows, "findings": findings}

    def say(self, *, batches: bool) -> None:
        dropped = sum(each.dropped for each in self.batches)
        unknown = sum(each.ranges is None for each in self.batches)
        counts = [f"{len(self.batches) - dropped} batches", *([f"{dropped} dropped"] if dropped else [])]
        counts += [f"{unknown} of an older release, without offsets"] if unknown else []
        title = f"group {shown(self.group)}, {listed_name(shown(self.output))}: {', '.join(counts)}"
        if batches:
            lines = [(b.place, b.batch, *r) for b in self.batches for r in b.ranges or ()]
            say_table(("place", "batch", "topic", "partition", "start", "end"), lines, title, spare=("place",))
        else:
            found = spreads(self.batches)
            columns = ("topic", "partition", "start", "end", "batches", "position")
            say_table(columns, [(*tp, *found[tp], self.positions.get(tp)) for tp in found], title, spare=("batches",))
        for each in self.findings[:_SHOWN]:
            say(str(each))
        more = f"; the first {_SHOWN} are shown, --json prints all" if len(self.findings) > _SHOWN else ""
        say(f"{len(self.findings)} findings{more}")
