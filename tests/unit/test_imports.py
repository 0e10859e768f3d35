"""What importing the package costs: no client library, and nothing of Spark. And who imports what of the stores."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import offsetkeeper

CLIENTS = {
    *(
        "boto3",
        "cassandra",
        "confluent_kafka",
        "deltalake",
        "happybase",
        "httpx",
        "kazoo",
        "numpy",
        "pandas",
        "psycopg",
        "pyarrow",
        "pyiceberg",
    ),
    *("py4j", "pymysql", "pyspark", "redis", "rich", "typer"),
}


@pytest.mark.parametrize(
    "module", ["", ".kafka", ".readers", ".sinks", ".stores", ".stores.sqlite", ".engines.loop", ".checkpoint"]
)
def test_a_client_library_is_loaded_only_when_it_is_used(module: str) -> None:
    """A user of one store needs the client of that store and no other, and a tool that looks at lag needs no Spark."""
    code = f"import sys; before = set(sys.modules); import offsetkeeper{module}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "offsetkeeper" in loaded
    assert not loaded & CLIENTS


def loaded_by(code: str) -> set[str]:
    """Return the modules of a new process that has run some code."""
    code = f"import sys; {code}; print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.rpartition("loaded")[2].split())


def ours(loaded: set[str]) -> set[str]:
    """Return our own modules, without the packages around them."""
    return {name for name in loaded if name.startswith("offsetkeeper.")} - {"offsetkeeper.cli", "offsetkeeper.core"}


def test_a_bare_import_loads_the_errors_alone() -> None:
    loaded = loaded_by("import offsetkeeper")
    assert ours(loaded) == {"offsetkeeper.errors"}
    assert not loaded & {"asyncio", "dataclasses", "json", "logging", "multiprocessing", "ssl"}


def test_help_loads_no_command() -> None:
    """Help, completion and errors are there at once: a command is loaded when it is called."""
    loaded = loaded_by("from offsetkeeper.cli.main import app; app(['--help'], standalone_mode=0)")
    assert ours(loaded) == {f"offsetkeeper.{name}" for name in ("cli.main", "cli.output", "core.duration", "errors")}
    assert "typer" in loaded
    assert not loaded & {"asyncio", "multiprocessing", "rich", "ssl"}


def test_no_command_loads_a_client_before_it_is_used() -> None:
    """Tables, servers and clients are loaded by who uses them."""
    commands = [f"offsetkeeper.cli.{path.stem}" for path in Path(offsetkeeper.__file__).parent.glob("cli/[!_]*.py")]
    loaded = loaded_by(f"import {', '.join(commands)}")
    assert set(commands) <= loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & (CLIENTS - {"typer"} | {"jinja2", "prometheus_client", "sqlite3", "starlette", "uvicorn"})


def test_each_public_name_is_loaded_from_where_type_checkers_see_it() -> None:
    tree = ast.parse(Path(offsetkeeper.__file__).read_text("utf-8"))
    seen = {
        each.name: str(node.module).removeprefix("offsetkeeper.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("offsetkeeper.")
        for each in node.names
    }
    assert seen.keys() == set(offsetkeeper.__all__) <= set(dir(offsetkeeper))
    lazy = {name: home for name, home in seen.items() if home != "errors"}
    assert vars(offsetkeeper)["_HOMES"] == lazy
    for name, home in lazy.items():
        assert getattr(offsetkeeper, name) is getattr(importlib.import_module(f"offsetkeeper.{home}"), name)


def test_a_package_of_the_public_face_needs_no_import_of_its_own() -> None:
    code = "import offsetkeeper as o; o.sinks.Table, o.readers.open_reader, o.stores.open_store, o.checkpoint.verify"
    assert {f"offsetkeeper.{name}" for name in ("sinks", "readers", "stores", "checkpoint")} <= loaded_by(code)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'offsetkeeper' has no attribute 'Pipelin'"):
        _ = offsetkeeper.Pipelin  # type: ignore[attr-defined]


def imported(path: Path) -> Iterator[str]:
    """Yield the full names of what a file imports: of modules, and of what is in them."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_a_stores_folder_is_known_outside_of_it_by_its_name_alone() -> None:
    """What others need is what its `__init__` exports; how it is split is its own affair."""
    package = Path(offsetkeeper.__file__).parent
    stores = package / "stores"
    parts = {path: path.parent for path in stores.glob("*/*.py") if path.stem != "__init__"}
    assert {"mysql", "redis", "zookeeper", "hbase", "kafka"} <= {folder.name for folder in parts.values()}
    inside = {f"offsetkeeper.stores.{folder.name}.{path.stem}": folder for path, folder in parts.items()}
    wrong = [
        f"{path.relative_to(package)} imports {name}"
        for path in package.rglob("*.py")
        for name in imported(path)
        for module, folder in inside.items()
        if (name == module or name.startswith(f"{module}.")) and folder not in path.parents
    ]
    assert wrong == []
