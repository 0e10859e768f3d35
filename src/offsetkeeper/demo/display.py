"""The output of the demo: lines with events and, on a terminal, a live table of counts below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from offsetkeeper.demo.orders import Producer

_LABELS = {
    "produced": "orders produced",
    "rows": "rows in the output",
    "lost": "lost",
    "doubled": "doubled",
    "wrong": "wrong",
    "bad": "bad orders produced",
    "dead_letters": "dead letters",
    "wrong_letters": "bad orders that are not there once, unchanged",
    "misfits": "offsets in the output that do not fit",
    "kills": "drivers killed",
    "fenced": "stale drivers fenced",
    "seconds": "seconds",
}


class Display:
    """Shows the demo on a console; as a context manager, it updates live on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._producer: Producer | None = None
        self._kills = 0
        self._batches = 0
        self._committed = 0
        self._last = ""
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, line: str) -> None:
        """Show a line about the current step."""
        self._console.print(f"• {line}", highlight=False)

    def watch(self, producer: Producer) -> None:
        """Show the count of the producer."""
        self._producer = producer

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Count an event of a driver."""
        if event["event"] == "batch":
            self._batches += 1
            self._committed += event["offsets"]
            self._last = f"{event['id']}, {event['offsets']} orders in {event['seconds']} s, {event['left']} left"

    def killed(self, where: str) -> None:
        """Show that a driver was killed, and at which point."""
        self._kills += 1
        self._console.print(f"[red]✗ SIGKILL[/red] number {self._kills}: {where}", highlight=False)

    def summary(self, result: Mapping[str, object]) -> None:
        """Show the result."""
        table = Table(title="Every order, counted", show_header=False)
        for name, label in _LABELS.items():
            if name in result:
                table.add_row(label, f"{result[name]}")
        self._console.print(table)
        if result["ok"]:
            self._console.print("[bold green]Nothing lost, nothing doubled.[/bold green]")
        else:
            self._console.print(f"[bold red]This must not happen: {dict(result)}[/bold red]")

    def _table(self) -> Table:
        table = Table(show_header=False)
        table.add_row("orders produced", str(len(self._producer.acknowledged) if self._producer else 0))
        table.add_row("offsets committed, as reported", str(self._committed))
        table.add_row("batches", str(self._batches))
        table.add_row("last batch", self._last)
        table.add_row("drivers killed", str(self._kills))
        return table
