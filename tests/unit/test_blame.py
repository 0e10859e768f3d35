"""Whose fault an error at an output is, by the error itself and by its text from an executor."""

from __future__ import annotations

import asyncio
import errno
import http.client
import smtplib
import socket
import sqlite3
import ssl
import traceback
import urllib.error
from contextlib import closing
from email.message import Message
from typing import Any

import botocore.exceptions
import cassandra
import httpx
import psycopg
import pymysql
import pytest
import redis
import requests
import urllib3
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import PySparkException, PythonException

from offsetkeeper import errors
from offsetkeeper.core.executors import our_error, raised, raised_in_turn
from offsetkeeper.engines.quarantine import text_of
from offsetkeeper.readers import reading_error, task_error
from offsetkeeper.sinks.blame import Blame, blame, judged, kept, told_by_system, words

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


def answered(status: int) -> requests.HTTPError:
    """Return the error of a service's answer, as `requests` raises it."""
    answer = requests.Response()
    answer.status_code, answer.url, answer.reason = status, "http://localhost/items", "words"
    with pytest.raises(requests.HTTPError) as told:
        answer.raise_for_status()
    return told.value


def answered_to_httpx(status: int) -> httpx.HTTPStatusError:
    """Return the same error of `httpx`."""
    with pytest.raises(httpx.HTTPStatusError) as told:
        httpx.Response(status, request=httpx.Request("GET", "http://localhost/items")).raise_for_status()
    return told.value


def of_module(module: str, name: str, *bases: type[BaseException]) -> Any:
    """Return the class of an error as a library that is not installed has it."""
    return type(name, bases or (Exception,), {"__module__": module})


def handling(before: Exception, error: Exception) -> Exception:
    """Return an error as it is if it was raised while another one was handled."""
    error.__context__ = before
    return error


_GOOGLE = of_module("google.api_core.exceptions", "ServiceUnavailable")
_GOOGLE.code = 503
_BY_NAME = [
    ("aiohttp.client_exceptions", "ServerDisconnectedError", AWAY),
    ("aiohttp.client_exceptions", "InvalidURL", None),
    ("elastic_transport", "ConnectionTimeout", AWAY),
    ("opensearchpy.exceptions", "ConnectionError", AWAY),
    ("pymongo.errors", "AutoReconnect", AWAY),
    ("pymongo.errors", "ServerSelectionTimeoutError", AWAY),
    ("pymongo.errors", "NotPrimaryError", AWAY),
    ("pymongo.errors", "WriteError", None),  # of which DuplicateKeyError is one
    ("app.errors", "ConnectionStringMissing", None),
]

SERVICES = [
    (requests.ConnectionError("words"), AWAY),
    (requests.exceptions.SSLError("words"), AWAY),
    (requests.ReadTimeout("words"), AWAY),
    (requests.Timeout("words"), AWAY),
    (requests.exceptions.ChunkedEncodingError("words"), AWAY),
    (requests.exceptions.InvalidURL("words"), None),
    (requests.exceptions.InvalidJSONError("words"), None),
    *((answered(status), AWAY) for status in (408, 429, 500, 502, 503)),
    *((answered(status), REFUSES) for status in (401, 403, 407)),
    *((answered(status), None) for status in (400, 404, 409, 413, 422)),
    (answered_to_httpx(503), AWAY),
    (answered_to_httpx(403), REFUSES),
    (answered_to_httpx(422), None),
    (httpx.ConnectError("words"), AWAY),
    (httpx.ReadError("words"), AWAY),
    (httpx.RemoteProtocolError("words"), AWAY),
    (httpx.LocalProtocolError("words"), None),
    (urllib.error.HTTPError("http://localhost", 503, "words", Message(), None), AWAY),
    (urllib.error.HTTPError("http://localhost", 403, "words", Message(), None), REFUSES),
    (urllib.error.HTTPError("http://localhost", 400, "words", Message(), None), None),
    (urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "words")), AWAY),
    (urllib.error.URLError(socket.gaierror(socket.EAI_NONAME, "words")), AWAY),
    (urllib.error.URLError(TimeoutError("timed out")), AWAY),
    (urllib.error.URLError("unknown url type: x"), None),
    (urllib3.exceptions.ReadTimeoutError(None, "/", "words"), AWAY),  # type: ignore[arg-type]  # no pool
    (http.client.IncompleteRead(b""), AWAY),
    (smtplib.SMTPServerDisconnected("words"), AWAY),
    (smtplib.SMTPConnectError(421, "words"), AWAY),
    (smtplib.SMTPDataError(451, b"words"), AWAY),
    (smtplib.SMTPDataError(554, b"words"), None),
    (smtplib.SMTPRecipientsRefused({}), None),
    (smtplib.SMTPAuthenticationError(535, b"words"), REFUSES),
    (botocore.exceptions.EndpointConnectionError(endpoint_url="http://localhost"), AWAY),
    (botocore.exceptions.ReadTimeoutError(endpoint_url="http://localhost"), AWAY),
    (redis.ConnectionError("words"), AWAY),
    (redis.TimeoutError("words"), AWAY),
    (redis.ReadOnlyError("words"), AWAY),
    (redis.AuthenticationError("words"), REFUSES),
    (redis.exceptions.NoPermissionError("words"), REFUSES),
    (redis.ResponseError("WRONGTYPE"), None),
    (_GOOGLE("503 words"), AWAY),
    (ssl.SSLEOFError(8, "words"), AWAY),
    *((of_module(module, name)("words"), expected) for module, name, expected in _BY_NAME),
]

CAUSES = [
    *SERVICES,
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


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError])
def test_a_service_that_is_away_is_found_behind_any_error(kind: type[Exception]) -> None:
    assert blame(handling(requests.ConnectionError("words"), kind("no answer"))) is AWAY
    assert blame(kind(ConnectionResetError("by peer"))) is AWAY
    hidden = of_module("app", "Wrapped")("words")
    hidden.reason = socket.gaierror(socket.EAI_AGAIN, "words")
    assert blame(hidden) is AWAY
    hidden.__cause__ = hidden.reason = hidden
    assert blame(hidden) is None


@pytest.mark.parametrize(
    "between",
    [
        "During handling of the above exception, another exception occurred",
        "The above exception was the direct cause of the following exception",
    ],
)
def test_so_it_is_in_the_text_of_a_task(between: str) -> None:
    task = (
        'It failed\nTraceback (most recent call last):\n  File "x.py"\nrequests.exceptions.ConnectionError: words\n\n'
        f'{between}:\n\nTraceback (most recent call last):\n  File "x.py"\nKeyError: 1\n\n\tat'
    )
    assert blame(PythonException(task)) is AWAY
    assert blame(PythonException(task.replace("requests.exceptions.ConnectionError", "ValueError"))) is None


def grouped(*causes: Exception) -> ExceptionGroup[Exception]:
    """Return what a `TaskGroup` raises of tasks that fail with these errors."""

    async def fail(cause: Exception) -> None:
        raise cause

    async def every() -> None:
        async with asyncio.TaskGroup() as group:
            for cause in causes:
                group.create_task(fail(cause))

    with pytest.raises(ExceptionGroup) as told:
        asyncio.run(every())
    return told.value


def from_a_task(error: Exception) -> PythonException:
    """Return what Spark raises of an error in a task."""
    with pytest.raises(type(error)) as told:
        raise error
    text = "".join(traceback.format_exception(told.value))
    return PythonException(f"Job aborted: org.apache.spark.api.python.PythonException: {text}\n\tat org.apache")


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "words")


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([REFUSED], AWAY),
        ([ValueError("bad"), REFUSED], AWAY),
        ([grouped(REFUSED)], AWAY),
        ([answered(503)], AWAY),
        ([answered(403)], REFUSES),
        ([state("23505")], RECORD),
        ([errors.RowMismatch("words")], RECORD),
        ([ValueError("bad"), KeyError("worse")], None),
    ],
    ids=str,
)
def test_an_error_in_a_group_counts_as_it_does_alone(causes: list[Exception], expected: Blame | None) -> None:
    """Also of a group that a function wraps, and in the text of a task."""
    group = grouped(*causes)
    wrapped = RuntimeError("the service")
    wrapped.__cause__ = group
    assert [blame(each) for each in (group, wrapped)] == [expected] * 2
    assert blame(from_a_task(group)) is expected
    if expected in {AWAY, None}:  # of what is behind an error in a text, only that counts
        assert blame(from_a_task(wrapped)) is expected


def test_of_a_group_the_errors_in_it_are_told() -> None:
    group = grouped(ValueError("no number"), errors.SinkError("full"))
    home = from_a_task(group)
    assert raised(home) == ("ValueError", "no number")
    assert [*raised_in_turn(home)] == [("ValueError", "no number"), ("offsetkeeper.errors.SinkError", "full")]
    assert type(our_error(home)) is errors.SinkError
    cause = RuntimeError("closed")
    cause.__cause__ = REFUSED
    assert {each.name for each in raised_in_turn(from_a_task(grouped(cause)))} == {
        "RuntimeError",
        "ConnectionRefusedError",
    }
    bare = "Exception Group Traceback (most recent call last):\n  |   File\n  | ExceptionGroup: cut (1 sub-exception)\n"
    assert raised(PythonException(f"  + {bare}")) == ("ExceptionGroup", "cut (1 sub-exception)")


def test_outside_of_a_group_a_second_traceback_is_of_a_value() -> None:
    lines = "Traceback (most recent call last):\n  x\nConnectionError: gone"
    assert blame(from_a_task(ValueError(f"the record says: {lines}"))) is None


def test_an_error_that_was_taken_out_of_its_group_has_the_group_behind_it() -> None:
    """Which has the error in it."""
    group = grouped(ValueError("bad"))
    [cause] = group.exceptions
    cause.__cause__ = group
    assert blame(cause) is None


def test_what_a_function_does_without_a_service_may_be_a_record_s_fault_all_the_same() -> None:
    """An error that was handled decides nothing but that something is away."""
    assert blame(handling(PermissionError(errno.EACCES, "words"), ValueError("bad"))) is None


def test_a_worker_that_crashed_is_not_away() -> None:
    crashed = "Python worker exited unexpectedly (crashed)\nCaused by: java.net.SocketException: Connection reset"
    assert blame(PySparkException(crashed)) is None
    assert blame(PySparkException("Caused by: java.net.ConnectException: Connection refused")) is AWAY


def test_a_traceback_may_follow_a_class_of_spark() -> None:
    lost = "Lost task 0.0 (driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last)"
    assert raised(PySparkException(f'{lost}:\n  File "a.py"\nValueError: bad\n\n\tat')) == ("ValueError", "bad")


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
    assert raised(PySparkException(text)) == ("app.Wrong", "no  value")
    assert raised(PySparkException("no traceback")) is None


def test_an_error_whose_text_cannot_be_made_is_judged_as_one_without_a_text() -> None:
    def fail(_: object) -> str:
        raise LookupError

    odd = type("Odd", (Exception,), {"__str__": fail, "__module__": "app"})()
    assert blame(odd) is None
    assert blame(handling(REFUSED, odd)) is AWAY
    assert (words(odd), kept(odd)) == ("<the text of Odd cannot be made>", "app.Odd: see the log of the run")
    assert (our_error(odd), raised(odd), task_error(odd), reading_error(odd)) == (None,) * 4
    assert text_of(odd) == "Odd: <the text of Odd cannot be made>"


def test_words_are_one_line_with_short_values() -> None:
    text = words(ValueError(f'invalid input for uuid: "{"x" * 500}"\nLINE 1'))
    assert text == f'invalid input for uuid: "{"x" * 200}…" LINE 1'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.SinkError("db.local: the server is read-only"), "db.local: the server is read-only"),
        (requests.ConnectionError("/services/SECRET"), "requests.exceptions.ConnectionError: see the log of the run"),
        (TimeoutError("SECRET"), "TimeoutError: see the log of the run"),
        (
            PythonException("x\nTraceback (most recent call last):\n  SECRET\napp.Away: SECRET\n\n\tat"),
            "app.Away: see the log of the run",
        ),
        (
            PythonException(
                "x\nTraceback (most recent call last):\n  SECRET\noffsetkeeper.errors.SinkError: full\n\n\tat"
            ),
            "full",
        ),
    ],
    ids=str,
)
def test_of_a_foreign_error_only_the_class_is_kept(error: BaseException, expected: str) -> None:
    assert kept(error) == expected


PLACE = "orders 0: the record at offset 5 has the time 1 ms"
DAMAGED = "org.apache.kafka.common.errors.CorruptRecordException: Record for partition orders-3 at offset 17 is invalid"
BAD_TIME = (
    "org.apache.spark.sql.kafka010.KafkaIllegalArgumentException: Record at topic orders partition 0 offset 5 has "
    "timestamp value 9 that overflows"
)
REFUSED_TRACE = "java.net.ConnectException: Connection refused\n\tat a.B.c(B.java:1)"
VALUES = [
    "Permission denied",
    "No space left on device",
    "java.io.IOException: No space left on device",
    "java.net.ConnectException: refused",
    "offsetkeeper.errors.SinkError: gone",
    "Traceback (most recent call last):\n  x\nConnectionError: x",
    REFUSED_TRACE,
    f"ERROR cannot reach\n{REFUSED_TRACE}",
    f"ERROR cannot reach\napp.Failed: x\n\tat a.B.c(B.java:1)\nCaused by: {REFUSED_TRACE}\n\t... 3 more",
    "ERROR\norg.apache.hadoop.security.AccessControlException: Permission denied: user=x",
    "ERROR\nTraceback (most recent call last):\n  x\nConnectionError: x",
    "ERROR\noffsetkeeper.errors.SinkError: gone",
    "ERROR\noffsetkeeper.errors.MarkAhead: gone",
    "ERROR\noffsetkeeper.errors.RangeGone: gone",
    f"ERROR\noffsetkeeper.errors.RecordUnreadable: {PLACE}",
    f"ERROR\nTraceback (most recent call last):\n  x\noffsetkeeper.errors.RecordUnreadable: {PLACE}",
    f"ERROR\nCaused by: org.apache.spark.SparkRuntimeException: offsetkeeper.errors.RecordUnreadable: {PLACE}",
    f"{DAMAGED}, cause: CRC",
    f"ERROR\nCaused by: {DAMAGED}, cause: CRC",
    "Record for partition orders-3 at offset 17 is invalid, cause: CRC",
    "Received exception when fetching the next record from orders-3. If needed, please seek past the record",
    f"ERROR\n{BAD_TIME}",
    f"ERROR\nCaused by: {BAD_TIME}",
]
JVM_TRACE = "\n\tat org.apache.spark.sql.x(X.scala:1)\n\nDriver stacktrace:\n\tat org.apache.spark.y(Y.scala:1)"
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage "
    "1.0 (TID 1) (localhost executor driver): "
)


class Java:
    """An error of the JVM, as py4j gives it."""

    def __init__(self, *said: str) -> None:
        """Take what it and its causes say."""
        self.said = said

    def toString(self) -> str:  # noqa: N802 - Java's name
        """Return the class and the message."""
        return self.said[0]

    def getCause(self) -> Java | None:  # noqa: N802 - Java's name
        """Return the cause."""
        return Java(*self.said[1:]) if self.said[1:] else None


def of_spark(text: str, *said: str) -> PySparkException:
    """Return what Spark raises, with the errors of its JVM, if the driver has one."""
    error = PySparkException(text)
    if said:
        error._origin = Java(*said)  # type: ignore[attr-defined]
    return error


def quoting(value: str) -> list[Exception]:
    """Return errors of a record, each with its value: of Python's functions, and of Spark with and without a JVM."""
    task = f'Traceback (most recent call last):\n  File "x.py"\nValueError: no price in {value}\n'
    cast = f'[CAST_INVALID_INPUT] The value \'{value}\' of the type "STRING" cannot be cast to "INT"'
    malformed = f"[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected: {value}. Parse Mode"
    told = [cast, malformed, f"[USER_RAISED_EXCEPTION] no price in {value}"]
    java = [f"org.apache.spark.SparkRuntimeException: {each}" for each in told]
    old = f"java.lang.RuntimeException: {value}"  # `raise_error` of Spark 3.5
    return [
        ValueError(f"no price in {value}"),
        ValueError(value),
        PythonException(f"It failed\n{task}\n\tat"),
        of_spark(f"[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] It failed: {task}"),
        *map(of_spark, (*told, *java)),
        *(of_spark(f"{LOST}{each}{JVM_TRACE}") for each in java),
        *(of_spark(f"An error occurred while calling o1.x.\n: {each}{JVM_TRACE}\nCaused by: {each}") for each in java),
        *(of_spark(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {each}") for each in told),
        *(of_spark(each, f"org.apache.spark.SparkRuntimeException: {each}") for each in told),
        of_spark(f"{LOST}{old}{JVM_TRACE}\nCaused by: {old}", f"org.apache.spark.SparkException: {LOST}{old}", old),
    ]


@pytest.mark.parametrize("value", VALUES)
def test_words_in_a_value_decide_nothing(value: str) -> None:
    """Topics of logs have such values, of several lines too."""
    with pytest.raises(ValueError, match="invalid literal") as told:
        int(value)
    errors_of_it = [told.value, *quoting(value)]
    assert [blame(each) for each in errors_of_it] == [None] * len(errors_of_it)
    assert [task_error(each) for each in errors_of_it] == [None] * len(errors_of_it)
    assert {told_by_system(each) for each in errors_of_it} == {""}


def test_our_error_of_a_task_has_its_own_lines_and_none_of_what_spark_writes_behind() -> None:
    line = "offsetkeeper.errors.MarkAhead: first\n  second\n  third"
    task = f'Traceback (most recent call last):\n  File "x.py"\n{line}\n\n\tat org.apache.spark.x(X.scala:1)\n'
    nested = f'Traceback (most recent call last):\n  File "f.py"\npyspark.errors.PythonException: It failed:\n{task}'
    hidden = "An exception was thrown from the Python worker"
    for error in (
        PythonException(f"{hidden}:\n{task}Caused by: x"),
        of_spark(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {nested}"),
        PythonException(f"\n  {hidden}. Please see the stack trace below.\n{line}\n"),
        PythonException(f"{hidden}: {line}\n"),
        of_spark("x", f"org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] {hidden}: {line}\n"),
    ):
        ours = task_error(error)
        assert (type(ours), str(ours)) == (errors.MarkAhead, "first\n  second\n  third")


def test_what_the_files_say_of_a_value_is_our_error_with_and_without_a_jvm() -> None:
    """Spark raises it, by `raise_error`: any value of a user may be there too, and is its record's fault."""
    ours = "offsetkeeper.errors.RowMismatch: orders 3 offset 12: column at"
    failed = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x"
    for before in ("org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION]", "java.lang.RuntimeException:"):
        for error in (of_spark("x", failed, f"{before} {ours}\n"), of_spark(f"{LOST}{before} {ours}\n{JVM_TRACE}")):
            assert (type(task_error(error)), str(task_error(error))) == (errors.RowMismatch, ours.partition(": ")[2])
            assert blame(error) is RECORD


def test_an_outage_is_told_by_the_jvm_where_it_can_be_asked() -> None:
    full, away = "java.io.IOException: No space left on device", "java.net.ConnectException: Connection refused"
    failed = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x"
    assert blame(of_spark("x", failed, f"org.apache.hadoop.fs.FSError: {full}", full)) is AWAY
    assert told_by_system(of_spark("x", failed, full)) == full
    assert blame(of_spark(f"{failed}\n\tat org.apache.spark.x\nCaused by: {full}")) is AWAY
    lost = f"org.apache.spark.SparkException: {LOST}"
    assert blame(of_spark("x", lost, away)) is AWAY
    assert blame(of_spark(f"{LOST}{away}{JVM_TRACE}")) is AWAY
    barrier = "Could not recover from a failed barrier ResultStage. The task finished unsuccessfully.\n"
    aborted = f"org.apache.spark.SparkException: Job aborted due to stage failure: {barrier}{away}{JVM_TRACE}"
    assert blame(of_spark(f"An error occurred while calling o1.x.\n: {aborted}", aborted)) is AWAY
    gone = of_spark(f"An error occurred while calling o1.x.\n: {failed}\n\tat x\nCaused by: {full}")
    gone._origin = object()  # type: ignore[attr-defined]  # as a JVM that does not answer
    assert blame(gone) is AWAY


def test_a_full_disk_is_away_wherever_it_is_told() -> None:
    full = "java.io.IOException: No space left on device"
    for line in (full, f"org.apache.hadoop.fs.FSError: {full}"):
        assert blame(PySparkException(f"Job aborted\nCaused by: {line}\n\tat x")) is AWAY
    remote = "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): Cannot"
    assert blame(PySparkException(remote)) is AWAY
    task = 'x\nTraceback (most recent call last):\n  File "x"\nOSError: [Errno 28] No space'
    assert blame(PythonException(task)) is AWAY
