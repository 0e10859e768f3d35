"""What importing the package costs: no client library, and nothing of Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENTS = {
    *("boto3", "confluent_kafka", "happybase", "httpx", "kazoo", "numpy", "pandas", "psycopg", "pyarrow", "py4j"),
    *("pymysql", "pyspark", "redis", "rich", "typer"),
}


@pytest.mark.parametrize(
    "module", ["", ".kafka", ".readers", ".sinks", ".stores", ".stores.sqlite", ".engines.direct", ".checkpoint"]
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
