"""The task of an executor, in a Python of its own in which offsetkeeper cannot be imported."""

import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest

from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.sinks import few, limits, postgresql
from offsetkeeper.sinks.postgresql import task
from offsetkeeper.sinks.postgresql.database import PostgreSQLDatabase

Connection = psycopg.Connection[Any]
Query = Callable[..., list[Any]]
SECRET = "hunter2"
EXECUTOR = """
import pickle, sys
import pyarrow as pa
for name in ["offsetkeeper", *sys.argv[2:]]:
    sys.modules[name] = None  # now it cannot be imported
write = pickle.load(open(sys.argv[1], "rb"))
batches = [pa.record_batch({"id": pa.array(ids, pa.int64())}) for ids in ([], [1, 2], [3])]
assert list(write(iter([]))) == []
print([batch.to_pylist() for batch in write(iter(batches))])
"""


def run_on_executor(folder: Path, url: str, without: Sequence[str] = (), most: few.Few = few.NONE) -> Any:
    """Return the process that has run the task as an executor would."""
    cloudpickle: Any = import_module("pyspark.cloudpickle")
    database = PostgreSQLDatabase(url)
    statements = task.Statements("select 1", "copy staged from stdin (format binary)")
    kept = [limits.Limits("id", "bigint", nullable=False)]
    arguments = (database.executors, database.address, statements, kept, most)
    write = ship(task.copy_rows, arguments, postgresql._SHIPPED)
    file = folder / "task"
    file.write_bytes(cloudpickle.dumps(write))
    command = [sys.executable, "-c", EXECUTOR, str(file), *without]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def staged(connection: Connection) -> Connection:
    """A connection to a database with a staging table."""
    connection.execute("create table staged (attempt bigint, c0 bigint)")
    return connection


@pytest.mark.usefixtures("staged")
def test_rows_are_copied_and_the_number_of_their_attempt_is_told(tmp_path: Path, database: str, rows: Query) -> None:
    done = run_on_executor(tmp_path, database)
    assert rows("select c0 from staged order by c0") == [(1,), (2,), (3,)], done.stderr
    [[number]] = rows("select distinct attempt from staged")
    assert done.stdout == f"[[{{'attempt': {number}, 'rows': 3, 'few': []}}]]\n"


def test_few_rows_come_with_the_answer_and_need_no_server(tmp_path: Path) -> None:
    done = run_on_executor(tmp_path, "postgresql://nobody@127.0.0.1:9/shop", most=few.LIMIT)
    array = struct.pack(">iiiii", 1, 0, 20, 3, 1) + b"".join(struct.pack(">iq", 8, each) for each in (1, 2, 3))
    assert f"'rows': 3, 'few': [{array!r}]" in done.stdout, done.stderr


def test_a_missing_client_library_is_told(tmp_path: Path, database: str) -> None:
    done = run_on_executor(tmp_path, database, without=["psycopg"])
    assert "offsetkeeper.errors.MissingExtra: the executors lack psycopg: install" in done.stderr


def test_a_failure_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, database: str, staged: Connection, rows: Query
) -> None:
    staged.execute("alter table staged add check (c0 < 3)")
    done = run_on_executor(tmp_path, database)
    assert "offsetkeeper.errors.RowMismatch: postgresql://127.0.0.1" in done.stderr
    assert "violates check constraint" in done.stderr
    assert rows("select * from staged") == []


def test_a_server_that_refuses_is_told_without_the_password(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database) as connection:
        port = connection.info.port
    done = run_on_executor(tmp_path, f"postgresql://nobody:{SECRET}@127.0.0.1:{port}/shop")
    assert 'role "nobody" does not exist' in done.stderr
    assert SECRET not in done.stderr
