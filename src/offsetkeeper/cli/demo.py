"""The command demo: a pipeline is killed, and each record is counted."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class DemoStore(StrEnum):
    """The store of the demo: it has the offsets and the table."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class DemoSink(StrEnum):
    """The sink of the demo's orders."""

    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    DELTA = "delta"
    ICEBERG = "iceberg"


def demo(
    *,
    store: Annotated[DemoStore, typer.Option(help="The store that keeps the offsets.")] = DemoStore.SQLITE,
    sink: Annotated[
        DemoSink,
        typer.Option(
            help="The output for the orders: a table in the store's database, a topic, files, a Delta or Iceberg table."
        ),
    ] = DemoSink.TABLE,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How many times a Spark driver is killed.")] = 5,
    rate: Annotated[int, typer.Option(min=10, max=20_000, help="Orders produced per second.")] = 500,
    poison: Annotated[
        bool, typer.Option("--poison", help="Mix bad orders of each kind among them: they go into the dead letters.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON; progress goes to stderr.")] = False,
) -> None:
    """Kill a pipeline again and again, and prove that no record is lost or doubled.

    The demo starts its own Kafka broker. Exit code 1 if a record is lost or doubled.

    Example: offsetkeeper demo --store postgresql
    """
    from rich.console import Console  # noqa: PLC0415 - slow to load

    from offsetkeeper.demo.display import Display  # noqa: PLC0415 - it needs rich
    from offsetkeeper.demo.run import Demo  # noqa: PLC0415

    with Display(Console(stderr=as_json)) as display:
        result = Demo(store.value, sink.value, kills=kills, rate=rate, display=display, poison=poison).run()
    display.summary(result)
    if as_json:
        typer.echo(json.dumps(result))
    if not result["ok"]:
        raise typer.Exit(1)
