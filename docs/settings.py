"""The reference page of settings, made from signatures, docstrings and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import typer

from offsetkeeper import OnMismatch, Pipeline, Policies
from offsetkeeper.cli import options
from offsetkeeper.cli.main import app
from offsetkeeper.clients.url import UrlSettings
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, IcebergTable, Table, Topic

ARGUMENTS: dict[str, Callable[..., Any]] = {
    "Pipeline": Pipeline,
    "Pipeline.run": Pipeline.run,
    "Pipeline.start": Pipeline.start,
    "Policies": Policies,
    "OnMismatch": OnMismatch,
    "Table": Table,
    "Topic": Topic,
    "Files": Files,
    "DeltaTable": DeltaTable,
    "IcebergTable": IcebergTable,
    "Cassandra": Cassandra,
}


def page() -> str:
    """Return the page."""
    lines = [
        "# Settings",
        "",
        "Each argument, its default and what it does. An argument without a default is required.",
        "",
    ]
    for name, called in ARGUMENTS.items():
        lines += [f"## {name}", "", *_table(("argument", "default", "what it does"), arguments(called)), ""]
    lines += [
        "## Store URLs",
        "",
        "Settings that stores share. [Stores](../stores.md) says which store has more of its own.",
        "",
        *_table(("setting", "default", "what it does"), arguments(UrlSettings)),
        "",
        "## offsetkeeper.toml",
        "",
        "A setting that is not in these tables is an error. [Operating](../operating.md) explains the file.",
        "",
        *_table(("setting", "how it is written"), toml()),
        "",
        "[The page on alarms](../serve.md#alarms-without-prometheus) has what a rule can say.",
        "",
        "## offsetkeeper serve",
        "",
        *_table(("option", "default", "environment", "what it does"), serve()),
        "",
    ]
    return "\n".join(lines)


def arguments(called: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """Return name, default and text of each argument.

    Raises:
        ValueError: signature and docstring name other arguments.
    """
    parameters = {name: one for name, one in inspect.signature(called).parameters.items() if name != "self"}
    texts = _texts(inspect.getdoc(called) or "", parameters)
    if list(texts) != list(parameters):
        raise ValueError(f"{called}: the docstring describes {list(texts)}, the arguments are {list(parameters)}")
    return [(f"`{name}`", _default(one.default), texts[name]) for name, one in parameters.items()]


def toml() -> list[tuple[str, str]]:
    """Return each setting of the file, and how it is written."""
    found = {**options._SETTINGS, **{f"alerts.{name}": wanted for name, wanted in options._ALERTS.items()}}
    return [(f"`{name}`", wanted.write) for name, wanted in found.items()]


def serve() -> list[tuple[str, str, str, str]]:
    """Return option, default, environment variable and text of each option of the server."""
    command: Any = typer.main.get_command(app).commands["serve"]
    context = command.make_context("serve", [], resilient_parsing=True)
    return [
        (f"`{each.opts[0]}`", _default(each.default), f"`{each.envvar}`" if each.envvar else "", each.help or "")
        for each in context.command.params
        if each.name != "help"
    ]


def _texts(doc: str, parameters: Iterable[str]) -> dict[str, str]:
    """Return what a docstring in Google's style says of each argument; attributes of a data class are arguments."""
    section = re.search(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", doc, re.DOTALL | re.MULTILINE)
    entries = re.findall(
        r"^    ([\w, ]+): (.*?)(?=^    \w|\Z)", section[1] if section else "", re.DOTALL | re.MULTILINE
    )
    return {
        name: " ".join(text.split()) for names, text in entries for name in names.split(", ") if name in {*parameters}
    }


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f"`{value}`" if isinstance(value, Enum) else f"`{value!r}`"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    shown = [heads, ("---",) * len(heads), *(map(_markdown, row) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in shown]


def _markdown(text: str) -> str:
    """Return a text with quoted words as code, names of pages as links, and signs of Markdown as they are."""
    parts = text.split("`")  # every second one is code
    for number in range(0, len(parts), 2):
        plain = re.sub(r"([*<\[])", r"\\\1", parts[number])
        plain = re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", plain)
        parts[number] = re.sub(r'("[^"]*")', lambda found: f"`{found[0].replace(chr(92), '')}`", plain)
    return "`".join(parts).replace("|", "\\|")
