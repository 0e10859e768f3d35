"""Help, examples and completion of every command, and how errors leave the program."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from offsetkeeper.cli.main import app

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
PROGRAM = str(Path(sys.executable).with_name("offsetkeeper"))
WITHOUT_JSON = {"init", "serve"}  # it has nothing to tell; it answers in a browser


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with the words that call it."""
    command = command.make_context("offsetkeeper", [], resilient_parsing=True).command  # that is, loaded
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from walk(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(walk(get_command(app)))


def example_of(command: Any) -> list[str]:
    [example] = re.findall(r"^ *Example: offsetkeeper (.+)$", command.help, re.MULTILINE)
    return shlex.split(example)


def test_all_commands_are_known() -> None:
    assert {path[0] for path in COMMANDS} >= {
        *("groups", "show", "plan", "lag", "history", "verify", "doctor", "replay"),
        *("reset", "rewind", "undo", "copy", "checkpoint", "serve", "demo"),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_an_example_that_can_be_typed_and_json(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    words = example_of(command)
    assert tuple(words[: len(path)]) == path
    command.make_context(path[-1], words[len(path) :])  # raises where an option or argument is wrong
    options = {option for each in command.params for option in each.opts}
    assert "--json" in options or path[0] in WITHOUT_JSON
    assert all(each.help for each in command.params)
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Example: offsetkeeper" in shown.stdout


def test_help_names_no_page_that_an_installed_command_lacks() -> None:
    """A page of the docs is named by its address."""
    [docs] = re.findall(r'^Documentation = "(.+?)/tree/', PYPROJECT.read_text("utf-8"), re.MULTILINE)
    for path, command in COMMANDS.items():
        said = " ".join([command.help or "", *(each.help or "" for each in command.params)])
        assert "docs/" not in said.replace(f"{docs}/blob/main/docs/", ""), path


def test_the_list_of_commands_says_what_each_does() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    listed = shown[shown.index("Commands:") :].splitlines()[1:]
    assert not [line for line in listed if len(line.split()) == 1]


@pytest.mark.parametrize("name", sorted({path[0] for path in COMMANDS}))
def test_the_list_has_the_first_sentence_of_each_commands_own_help(name: str) -> None:
    """The list is written apart, as no command is loaded for it."""
    listed = get_command(app).commands[name]  # type: ignore[attr-defined]
    loaded = listed.make_context(name, [], resilient_parsing=True).command
    assert loaded is not listed
    assert listed.help.partition(". ")[0].rstrip(".") == loaded.help.partition("\n\n")[0].partition(". ")[0].rstrip(".")


def test_docs_name_the_commands_that_take_brokers() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text("utf-8")
    [named] = re.findall(r"take `--brokers`: (.+?)\. ", text, re.DOTALL)
    taking = {
        " ".join(path) for path, command in COMMANDS.items() if any("--brokers" in p.opts for p in command.params)
    }
    assert {*re.findall(r"`(.+?)`", named)} == taking


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_error_is_told_in_its_own_words_with_exit_code_2(tmp_path: Path) -> None:
    done = run("show", "shop", "--store", f"sqlite:///{tmp_path}/x/y.db")
    assert done.returncode == 2
    assert done.stderr.startswith("offsetkeeper: ")
    assert "Traceback" not in done.stderr
    assert run("nothing").returncode == 2
    assert run("--version").stdout.startswith("offsetkeeper ")


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offsetkeeper", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == run("--version").stdout


BASH = """
source /dev/stdin <<< "$(_OFFSETKEEPER_COMPLETE=source_bash "$1")"
COMP_WORDS=(offsetkeeper "$2") COMP_CWORD=1
function_of=$(complete -p offsetkeeper | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$function_of "$1"
echo "${COMPREPLY[@]}"
"""


def test_bash_completes_commands() -> None:
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", PROGRAM, "re"],  # noqa: S607 - the shell of whoever has one
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["replay", "reset", "rewind"]


def test_zsh_is_given_commands_with_what_they_do() -> None:
    assert "#compdef offsetkeeper" in run(_OFFSETKEEPER_COMPLETE="source_zsh").stdout
    told = run(_OFFSETKEEPER_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="offsetkeeper doc").stdout
    assert '"doctor":"Find what is wrong' in told


def test_options_are_completed_too() -> None:
    told = run(_OFFSETKEEPER_COMPLETE="complete_bash", COMP_WORDS="offsetkeeper lag --che", COMP_CWORD="2").stdout
    assert told.split() == ["--checkpoint"]
