"""The commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import select
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from offsetkeeper import __version__
from offsetkeeper.cli.output import complain, log_to_stderr
from offsetkeeper.errors import OffsetkeeperError

_DISK_IS_FULL = errno.ENOSPC, errno.EDQUOT
_NO_READER = 128 + 13  # as a shell shows what SIGPIPE has ended

app = typer.Typer(name="offsetkeeper", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


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


class Later(TyperCommand):
    """A command that is known by its first sentence, and loaded from its module when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the loaded command, which typer calls next."""
        assert self.callback is not None  # noqa: S101 - each is made with one, below
        return self.callback().make_context(info_name, args, parent, **extra)


# Each command in the order of the help: module and name, and the first sentence of its own help.
_COMMANDS = {
    "demo": ("demo.demo", "Kill a pipeline again and again, and prove that no record is lost or doubled."),
    "groups": ("inspect.groups", "List the groups of a store."),
    "show": (
        "inspect.show",
        "Show one group: its owner, its positions, its pending batch and, if brokers are given, its lag.",
    ),
    "plan": ("inspect.plan", "Show where a run would start now, and why."),
    "lag": (
        "lag.lag",
        "Show the lag of a group in records and seconds, its speed, how near retention is, and its status.",
    ),
    "history": ("inspect.history", "Show the newest changes of a group: time, event, who made it, and why."),
    "verify": (
        "inspect.verify",
        "Check the history of a group for gaps, overlaps, deleted positions and missing changes.",
    ),
    "holds": ("holds.holds", "Show which offsets an output holds, by its own metadata, with gaps and overlaps."),
    "doctor": ("doctor.doctor", "Find what is wrong or slow in a pipeline's set-up, and say what to do."),
    "replay": (
        "replay.replay",
        "Read records again without touching the group: no position moves, and no run is disturbed.",
    ),
    "reset": ("reset.reset", "Set the positions of a group."),
    "rewind": (
        "modify.rewind",
        "Set positions back to an earlier version of the ledger: all of them, or those of --topic.",
    ),
    "undo": ("modify.undo", "Undo the newest reset or forget and all commits since."),
    "fence": ("modify.fence", "Fence the run that holds a group: it can commit nothing more, and ends."),
    "forget": ("forget.forget", "Take positions out of a group, such as of a topic that it never read."),
    "adopt": (
        "modify.adopt",
        "Accept the mark of an output after its database or the store was restored from a backup.",
    ),
    "copy": ("modify.copy", "Copy a group into another store: positions, pending batch, history."),
    "serve": (
        "serve.serve",
        "Serve a page of all groups, a JSON API and Prometheus metrics, and send alerts to a webhook.",
    ),
    "check-trace": (
        "check_trace.check_trace",
        "Check traces of runs: whether each change, landing and write is one that the rules allow.",
    ),
    "init": ("init.init", "Make a folder a store, before its first use."),
    "checkpoint": ("checkpoint.app", "Inspect, verify and change the checkpoint of a streaming query."),
}


def _add(name: str, place: str, sentence: str) -> None:
    module, _, found = place.partition(".")

    def load() -> Any:
        command = getattr(importlib.import_module(f"offsetkeeper.cli.{module}"), found)
        if isinstance(command, typer.Typer):
            return get_command(command)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(command)
        return get_command(alone)

    app.command(name, cls=Later, help=sentence)(load)


for _name, (_place, _sentence) in _COMMANDS.items():
    _add(_name, _place, _sentence)


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
