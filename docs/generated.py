"""The reference pages that are made from the code at each build, so that they cannot drift."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import settings
import typer

from offsetkeeper import errors
from offsetkeeper.cli.main import app

_COLUMNS = 112
"""So many are shown on a screen of 1440 pixels, see _static/site.css."""
_MODULES = ("offsetkeeper", "offsetkeeper.sinks", "offsetkeeper.core.store")


def write(folder: Path) -> None:
    """Write the pages into the folder; one that is as it should be stays untouched."""
    folder.mkdir(exist_ok=True)
    pages = {"api": _api(), "errors-api": _errors(), "commands": _commands(), "settings": settings.page()}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def foreign(folder: Path) -> list[str]:
    """Return what built pages load from other hosts; there must be nothing."""
    found = re.compile(
        r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//[^"']*|(?:@import|url\()\s*["']?(?:https?:)?//[^"')]*"""
    )
    pages = [*folder.rglob("*.html"), *folder.rglob("*.css")]
    return [f"{page.name}: {text}" for page in pages for text in found.findall(page.read_text("utf-8"))]


def _directive(kind: str, name: str, *options: str) -> str:
    return "\n".join(["```{eval-rst}", f".. auto{kind}:: {name}", *(f"   :{option}:" for option in options), "```", ""])


def _api() -> str:
    lines = [
        "# API",
        "",
        "Every public name, from its docstring. Errors have [a page of their own](errors-api.md).",
        "",
    ]
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        lines += [f"## {module_name}", ""]
        for name in _public(module):
            value = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, errors.OffsetkeeperError):
                lines.append(_directive("class", f"{module_name}.{name}", "members"))
            elif inspect.isfunction(value):
                lines.append(_directive("function", f"{module_name}.{name}"))
    return "\n".join(lines)


def _public(module: ModuleType) -> list[str]:
    """Return the names that a module exports, or else those of its own classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted(getattr(module, "__all__", [name for name in own if name[0] != "_"]))


def _errors() -> str:
    found = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.OffsetkeeperError)
    ]
    lines = ["# Classes of errors", "", "What to do about each is in [one table](../errors.md).", ""]
    return "\n".join(
        lines + [_directive("exception", f"offsetkeeper.errors.{name}", "show-inheritance") for name in found]
    )


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "What `--help` prints, of every command. [Operating](../operating.md) explains their use.",
        "",
    ]
    _describe(typer.main.get_command(app), ["offsetkeeper"], lines)
    return "\n".join(lines)


def _describe(command: Any, path: list[str], lines: list[str]) -> None:
    """Append a command, its options and its commands."""
    context = command.make_context(path[-1], [], resilient_parsing=True)
    command = context.command  # the one that is listed may not be loaded yet
    lines += [f"## {' '.join(path)}", "", "```text"]
    lines += [
        f"{' '.join(path)} {' '.join(command.collect_usage_pieces(context))}",
        "",
        inspect.cleandoc(command.help or ""),
        "",
    ]
    for parameter in command.params:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
        if not getattr(parameter, "hidden", False):
            text = f"  {names}: {getattr(parameter, 'help', None) or ''}".rstrip(": ")
            lines += textwrap.wrap(text, _COLUMNS, subsequent_indent="      ", break_long_words=False)
    lines += ["```", ""]
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            _describe(child, [*path, name], lines)


if __name__ == "__main__":
    sys.exit("\n".join(foreign(Path(sys.argv[1]))) or None)
