"""What importing the package costs: no client library, and nothing of Spark. And who imports what of the stores."""

from __future__ import annotations

import ast
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


def test_the_command_starts_without_what_only_some_commands_need() -> None:
    """Help, completion and errors are there at once: tables, servers and clients are loaded by who uses them."""
    code = "import sys; from offsetkeeper.cli.main import app; app(['--help'], standalone_mode=0); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split("Commands")[-1].split()}
    assert "typer" in loaded
    assert not loaded & (CLIENTS - {"typer"} | {"jinja2", "prometheus_client", "sqlite3", "starlette", "uvicorn"})


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
