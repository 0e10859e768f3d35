"""The commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import select
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from offsetkeeper import __version__
from offsetkeeper.cli import (
    check_trace,
    checkpoint,
    doctor,
    forget,
    holds,
    init,
    inspect,
    lag,
    modify,
    replay,
    reset,
    serve,
)
from offsetkeeper.cli.output import complain, log_to_stderr
from offsetkeeper.errors import OffsetkeeperError

_DISK_IS_FULL = errno.ENOSPC, errno.EDQUOT
_NO_READER = 128 + 13  # as a shell shows what SIGPIPE has ended

app = typer.Typer(name="offsetkeeper", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


class DemoStore(StrEnum):
    """The store of the demo: it has the offsets and the table."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if wanted:
        typer.echo(f"offsetkeeper {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Write log messages to stderr. Put --verbose before the command name.")
    ] = False,
) -> None:
    """Keep the offsets of pipelines that read Kafka with Spark."""
    del version  # its callback has printed the version
    if verbose:
        log_to_stderr(logging.INFO)


class DemoSink(StrEnum):
    """The sink of the demo's orders."""

    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    DELTA = "delta"
    ICEBERG = "iceberg"


@app.command()
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

    from offsetkeeper.demo.display import Display  # noqa: PLC0415 - each command loads only what it needs
    from offsetkeeper.demo.run import Demo  # noqa: PLC0415

    with Display(Console(stderr=as_json)) as display:
        result = Demo(store.value, sink.value, kills=kills, rate=rate, display=display, poison=poison).run()
    display.summary(result)
    if as_json:
        typer.echo(json.dumps(result))
    if not result["ok"]:
        raise typer.Exit(1)


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(inspect.groups, inspect.show, inspect.plan, lag.lag, inspect.history, inspect.verify),
    holds.holds,
    *(doctor.doctor, replay.replay, reset.reset, modify.rewind, modify.undo),
    *(modify.fence, forget.forget, modify.adopt, modify.copy),
    serve.serve,
    check_trace.check_trace,
    init.init,
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(checkpoint.app, help="Inspect, verify and change the checkpoint of a streaming query.")


def main() -> None:
    """Run the command. An error of offsetkeeper, or a full disk for the output, gives one line and exit code 2.

    If the reader of the output ends before the command, as `head` does, it ends too, without a word and with exit code
    141: that of SIGPIPE, as of other tools. Exit code 1 would be a verdict. Any other broken pipe is an error.
    """
    logging.lastResort = logging.NullHandler()  # stderr is for the one message
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")  # a change that is made must not end in a traceback
    try:
        _run()
    except (BrokenPipeError, SystemExit) as end:
        broken = end.__context__ if isinstance(end, SystemExit) and end.code == 1 else end  # typer makes 1 of it
        if not isinstance(broken, BrokenPipeError):
            raise
        _end_if_nobody_reads()
        complain(f"failed: {broken}")
        sys.exit(2)


def _run() -> None:
    try:
        app()
    except OffsetkeeperError as error:
        complain(error)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _DISK_IS_FULL:
            raise
        _write_no_more(1)
        complain(f"cannot write the output: {error.strerror}")
        sys.exit(2)


def _end_if_nobody_reads() -> None:
    """End if the reader of the output is gone; return if another pipe broke, such as one of the user's function."""
    outputs = select.poll()
    outputs.register(1, 0)
    outputs.register(2, 0)
    if outputs.poll(0):  # only errors are asked for, such as a closed reader
        _write_no_more(1)
        _write_no_more(2)
        sys.exit(_NO_READER)


def _write_no_more(descriptor: int) -> None:
    """Lead an output nowhere: else Python tries again to write the rest as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
