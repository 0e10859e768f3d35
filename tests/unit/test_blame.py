"""Whose fault an error at an output is, by the error itself and by its text from an executor."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from typing import Any

import cassandra
import psycopg
import pymysql
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import PythonException

from offsetkeeper import errors
from offsetkeeper.core.executors import our_error, raised
from offsetkeeper.sinks.blame import Blame, blame, judged, words

RECORD, PROGRAM, AWAY, REFUSES = Blame.RECORD, Blame.PROGRAM, Blame.AWAY, Blame.REFUSES


def state(code: str) -> psycopg.Error:
    """Return PostgreSQL's error of a state."""
    return psycopg.errors.lookup(code)("the server's words")


def mysql(code: int, kind: Any = pymysql.err.OperationalError) -> Exception:
    """Return an error of MySQL."""
    error = kind(code, "the server's words")
    error.sqlstate = "HY000"  # as PyMySQL sets it
    return error  # type: ignore[no-any-return]  # its class


def sqlite(*statements: str) -> sqlite3.Error:
    """Return what SQLite raises at the last of these statements."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table t (a int not null unique check (a < 9), b int) strict")
        *before, last = statements
        for statement in before:
            connection.execute(statement)
        with pytest.raises(sqlite3.Error) as told:
            connection.execute(last)
        return told.value


def kafka(code: int) -> KafkaException:
    """Return an error of librdkafka."""
    return KafkaException(KafkaError(code))


CAUSES = [
    # PostgreSQL
    *((state(code), RECORD) for code in ("22001", "22003", "22P02", "22021", "23502", "23503", "23505", "23514")),
    *((state(code), RECORD) for code in ("23P01", "P0001", "44000", "21000", "54000")),
    *((state(code), PROGRAM) for code in ("42703", "42804", "42846", "42601", "428C9", "0A000")),
    *((state(code), AWAY) for code in ("25006", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01")),
    *((state(code), AWAY) for code in ("57P03", "58030", "08006", "XX000", "42P01")),
    *((state(code), REFUSES) for code in ("28P01", "28000", "42501", "3D000", "3F000")),
    (psycopg.OperationalError("server closed the connection unexpectedly"), AWAY),
    (psycopg.InterfaceError("the connection is closed"), AWAY),
    (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), RECORD),
    (psycopg.ProgrammingError("cannot adapt type"), PROGRAM),
    # MySQL, MariaDB
    *((mysql(code, pymysql.err.DataError), RECORD) for code in (1264, 1265, 1292, 1366, 1406, 3140)),
    *((mysql(code, pymysql.err.IntegrityError), RECORD) for code in (1048, 1062, 1451, 1452)),
    *((mysql(code), RECORD) for code in (1153, 1300, 1526, 1644, 3819, 4025)),
    *((mysql(code), PROGRAM) for code in (1054, 1136, 1364, 3105)),
    *(
        (mysql(code), AWAY)
        for code in (0, 1021, 1040, 1053, 1114, 1158, 1205, 1213, 1290, 1836, 1927, 2003, 2006, 2013)
    ),
    *((mysql(code), REFUSES) for code in (1044, 1045, 1049, 1130, 1142, 1305, 1698, 1862, 4151)),
    # SQLite
    (sqlite("insert into t (a) values (null)"), RECORD),
    (sqlite("insert into t (a) values (10)"), RECORD),
    (sqlite("insert into t (a) values ('x')"), RECORD),
    (sqlite("insert into t values (1, 1)", "insert into t values (1, 1)"), RECORD),
    (sqlite("insert into t (c) values (1)"), PROGRAM),
    (sqlite("insert into missing values (1)"), AWAY),
    (sqlite("begin", "pragma max_page_count = 2", "insert into t select 1, zeroblob(9)"), RECORD),
    # Kafka
    *((kafka(code), RECORD) for code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)),
    *((kafka(code), AWAY) for code in (KafkaError._TRANSPORT, KafkaError.NOT_ENOUGH_REPLICAS)),
    *((kafka(code), REFUSES) for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION)),
    (kafka(KafkaError.POLICY_VIOLATION), PROGRAM),
    # Cassandra
    (cassandra.InvalidRequest("Key may not be empty"), RECORD),
    (cassandra.Unauthorized("User has no MODIFY permission"), REFUSES),
    (cassandra.OperationTimedOut(), AWAY),
    # the system
    *((OSError(code, "words"), AWAY) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ECONNREFUSED)),
    (TimeoutError(), AWAY),
    (PermissionError(errno.EACCES, "words"), REFUSES),
    (FileNotFoundError(errno.ENOENT, "words"), None),
    # our own
    (errors.RowMismatch("words"), RECORD),
    (errors.SinkMismatch("words"), PROGRAM),
    *((kind("words"), AWAY) for kind in (errors.SinkError, errors.StoreUnavailable, errors.OutcomeUnknown)),
    *((kind("words"), REFUSES) for kind in (errors.Refused, errors.MarkMoved, errors.RangeGone, errors.Fenced)),
    # unknown
    *((kind("words"), None) for kind in (ValueError, KeyError, ZeroDivisionError, RuntimeError)),
]


def named(cause: Any) -> str:
    """Return the name of a case."""
    return f"{type(cause).__name__} {cause}"[:60] if isinstance(cause, BaseException) else str(cause)


@pytest.mark.parametrize(("error", "expected"), CAUSES, ids=named)
def test_an_error_is_the_record_s_the_program_s_or_the_output_s(error: BaseException, expected: Blame | None) -> None:
    assert blame(error) is expected
    told = errors.OffsetkeeperError if expected is None else errors.SinkError
    kinds = {RECORD: errors.RowMismatch, PROGRAM: errors.SinkMismatch, REFUSES: errors.Refused}
    assert type(judged(error, "words")) is kinds.get(expected, told if expected else errors.SinkError)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "expected"), [each for each in CAUSES if type(each[0]).__module__ != "builtins"], ids=named
)
def test_its_text_from_an_executor_says_the_same(error: BaseException, expected: Blame | None) -> None:
    kind = type(error)
    line = f"{kind.__module__}.{kind.__qualname__}: {error}"
    home = PythonException(
        f'An exception was thrown\nTraceback (most recent call last):\n  File "x.py"\n{line}\n\n\tat'
    )
    assert blame(home) is expected
    ours = our_error(home)
    assert (ours is not None) is isinstance(error, errors.OffsetkeeperError)
    assert ours is None or (type(ours), str(ours)) == (kind, str(error))


def test_what_put_off_until_the_commit_fails_is_the_record_s_too() -> None:
    refused = errors.SinkError("nothing was written")
    refused.__cause__ = state("23503")
    assert blame(refused) is RECORD
    refused.__cause__ = state("57P01")
    assert blame(refused) is AWAY


def test_the_error_that_another_one_was_raised_from_counts_if_that_is_unknown() -> None:
    with pytest.raises(RuntimeError) as told:
        raise RuntimeError("the service failed") from ConnectionResetError("by peer")
    assert blame(told.value) is AWAY


def test_a_worker_that_crashed_is_not_away() -> None:
    crashed = "Python worker exited unexpectedly (crashed)\nCaused by: java.net.SocketException: Connection reset"
    assert blame(RuntimeError(crashed)) is None
    assert blame(RuntimeError("Caused by: java.net.ConnectException: Connection refused")) is AWAY


def test_a_traceback_may_follow_a_class_of_spark() -> None:
    lost = "Lost task 0.0 (driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last)"
    assert raised(RuntimeError(f'{lost}:\n  File "a.py"\nValueError: bad\n\n\tat')) == ("ValueError", "bad")


def test_of_a_traceback_the_last_error_counts() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py"',
        "KeyError: 'x'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
    ]
    text = "\n".join([*lines, "Traceback (most recent call last):", '  File "b.py"', "app.Wrong: no  value", ""])
    assert raised(RuntimeError(text)) == ("app.Wrong", "no  value")
    assert raised(RuntimeError("no traceback")) is None


def test_words_are_one_line_with_short_values() -> None:
    text = words(ValueError(f'invalid input for uuid: "{"x" * 500}"\nLINE 1'))
    assert text == f'invalid input for uuid: "{"x" * 200}…" LINE 1'


@pytest.mark.parametrize(
    "value",
    [
        "Permission denied",
        "No space left on device",
        "java.net.ConnectException: refused",
        "offsetkeeper.errors.SinkError: gone",
        "Traceback (most recent call last):\n  x\nConnectionError: x",
    ],
)
def test_words_in_a_value_decide_nothing(value: str) -> None:
    """Topics of logs have such values."""
    with pytest.raises(ValueError, match="invalid literal") as told:
        int(value)
    assert blame(told.value) is None
    task = f'It failed\nTraceback (most recent call last):\n  File "x.py"\nValueError: {told.value}\n\n\tat'
    assert blame(PythonException(task)) is None
    cast = f'[CAST_INVALID_INPUT] The value \'{value}\' of the type "STRING" cannot be cast to "INT"'
    assert blame(RuntimeError(f"org.apache.spark.SparkNumberFormatException: {cast}")) is None
    assert blame(RuntimeError(cast)) is None


def test_a_full_disk_is_away_wherever_it_is_told() -> None:
    full = "java.io.IOException: No space left on device"
    for line in (full, f"org.apache.hadoop.fs.FSError: {full}"):
        assert blame(RuntimeError(f"Job aborted\nCaused by: {line}\n\tat x")) is AWAY
    remote = "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): Cannot"
    assert blame(RuntimeError(remote)) is AWAY
    task = 'x\nTraceback (most recent call last):\n  File "x"\nOSError: [Errno 28] No space'
    assert blame(PythonException(task)) is AWAY
