"""Whose fault an error at an output is: the record's, the program's or the output's. The only place that judges.

It judges errors of our own, of the client libraries of databases and of Kafka, and of the system: raised here, or in a
task, of which Spark gives only the text. So it serves sinks and the functions of users alike.

Sources of the codes: see `clients.sql_codes`, and for SQLite https://www.sqlite.org/rescode.html
"""

from __future__ import annotations

import errno
import importlib
import re
import socket
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.clients.sql_codes import MYSQL_BROKEN, MYSQL_PASSING, POSTGRESQL_PASSING, is_of_mysql_client
from offsetkeeper.core.executors import our_error, raised
from offsetkeeper.errors import (
    ComputedAgain,
    MarkMoved,
    OffsetkeeperError,
    OutcomeUnknown,
    RecordUnreadable,
    Refused,
    RowMismatch,
    SinkError,
    SinkMismatch,
    StoreUnavailable,
)
from offsetkeeper.kafka.codes import FENCED, OF_RECORD, CodeVerdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Blame(Enum):
    """Whose fault an error is."""

    RECORD = "the record's: this row can never be written, others of its frame can"
    PROGRAM = "the program's: no row of this frame can be written"
    AWAY = "the output's: it is away, full or busy, and comes back by itself"
    REFUSES = "the output's: it refuses until somebody changes it: a right, a login or a table is missing"


_RAISED: Mapping[Blame, type[OffsetkeeperError]] = MappingProxyType(
    {Blame.RECORD: RowMismatch, Blame.PROGRAM: SinkMismatch, Blame.AWAY: SinkError, Blame.REFUSES: Refused}
)

# PostgreSQL. The longest prefix of the SQLSTATE counts. What is not here is a value's fault: triggers raise any state.
_SQLSTATES: Mapping[str, Blame] = MappingProxyType(
    {
        **dict.fromkeys(("08", "F0", *POSTGRESQL_PASSING), Blame.AWAY),
        **dict.fromkeys(("28", "3D", "3F", "42501", "57P04"), Blame.REFUSES),
        **dict.fromkeys(("0A", "03", "24", "26", "34", "39", "3B", "42", "428C9", "54"), Blame.PROGRAM),
        "42P01": Blame.AWAY,  # a table that is made again at this moment: the next try looks, and refuses
        "54000": Blame.RECORD,  # a row is larger than a page, or a key than a third of one
    }
)

# MySQL and MariaDB. What is not here is away if it is of the client or of the network, else a value's fault.
_MYSQL: Mapping[int, Blame] = MappingProxyType(
    {
        **dict.fromkeys(MYSQL_PASSING | MYSQL_BROKEN, Blame.AWAY),
        # beside these: files and tables that are made again or crashed, a node or a server that is not ready
        **dict.fromkeys((1016, 1023, 1026, 1030, 1036, 1047, 1077, 1078, 1079, 1080, 1105, 1146), Blame.AWAY),
        **dict.fromkeys((1194, 1195, 1412, 1615, 1874, 3032, 3100, 3101, 3168), Blame.AWAY),
        **dict.fromkeys((1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1305, 1356, 1370), Blame.REFUSES),
        **dict.fromkeys((1449, 1698, 1787, 1820, 1862, 3118, 3748, 4151), Blame.REFUSES),
        **dict.fromkeys((1054, 1064, 1110, 1136, 1364, 1442, 1906, 3105), Blame.PROGRAM),
    }
)

# The classes of Python's DB-API 2.0 (PEP 249), for errors without a code.
_CLASSES: Mapping[str, Blame] = MappingProxyType(
    {
        **dict.fromkeys(("DataError", "IntegrityError"), Blame.RECORD),
        **dict.fromkeys(("ProgrammingError", "NotSupportedError"), Blame.PROGRAM),
        **dict.fromkeys(("OperationalError", "InterfaceError", "InternalError"), Blame.AWAY),
    }
)

# SQLite, by primary code. Code 1 is general: the text decides.
_SQLITE: Mapping[int, Blame] = MappingProxyType(
    {
        **dict.fromkeys((18, 19, 20), Blame.RECORD),  # too big, a constraint, a type
        **dict.fromkeys((4, 5, 6, 7, 9, 10, 13, 15, 17), Blame.AWAY),  # locked, memory, disk
        **dict.fromkeys((3, 8, 11, 14, 23, 26), Blame.REFUSES),  # permission, read-only, damage, no database
    }
)
_NO_TABLE = "no such table"

_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, socket.herror)
_DISKS: Mapping[int | None, Blame] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE),
                *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ETIMEDOUT),
            ),
            Blame.AWAY,
        ),
        **dict.fromkeys((errno.EACCES, errno.EPERM), Blame.REFUSES),
    }
)
# Of Python's own errors and of web clients.
_NAMES_AWAY = re.compile(
    r"(?:(?:builtins|socket|http|urllib3|requests|httpx|httpcore|aiohttp|botocore)\.(?:\w+\.)*)?"
    r"(?:Connect\w*Error|ConnectTimeout\w*|BrokenPipeError|TimeoutError|gaierror|herror|ReadTimeout\w*|WriteTimeout"
    r"|PoolTimeout|NewConnectionError|MaxRetryError|ProtocolError|RemoteDisconnected|EndpointConnectionError)"
)
# Of the JVM: the class at the start of a line. A value in the text of another error may have the same words.
_JAVA = re.compile(r"^\s*(?:Caused by: )?(?:[\w$]+\.)+[\w$]+(?:\([\w.$]+\))?(?::.*)?$", re.MULTILINE)
_KIND = re.compile(r"[\w$]+(?=[:)]|$)")
_JAVA_KINDS: Mapping[str, Blame] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("ConnectException", "UnknownHostException", "NoRouteToHostException", "SocketTimeoutException"),
                *("SocketException", "ConnectTimeoutException", "SafeModeException", "StandbyException"),
                *("RetriableException", "DSQuotaExceededException", "NSQuotaExceededException"),
            ),
            Blame.AWAY,
        ),
        **dict.fromkeys(("AccessControlException", "AccessDeniedException"), Blame.REFUSES),
    }
)
_FILES = re.compile(r"\b(?:java\.io\.(?:\w*IOException|FileNotFoundException)|FSError|FileSystemException): ")
_TEXTS: Mapping[str, Blame] = MappingProxyType(
    {
        **dict.fromkeys(("No space left on device", "Disk quota exceeded", "Read-only file system"), Blame.AWAY),
        "Permission denied": Blame.REFUSES,
    }
)
_CRASHED = "Python worker exited unexpectedly"
_QUOTED = re.compile(r"""(["'(])([^"'()]{200})[^"'()]+(["')])""")
_MOST = 2000
_CODES = "sqlstate", "pgcode", "sqlite_errorcode", "errno"
_CASSANDRA_REFUSES = frozenset({"Unauthorized", "AuthenticationFailed", "ConfigurationException"})
_KAFKA_CODE = re.compile(r"KafkaError\{code=(\w+)")
_ERRNO = re.compile(r"^\[Errno (\d+)\]")
_OS_ERRORS = frozenset({"OSError", "PermissionError", "BlockingIOError", "InterruptedError"})
_NUMBER = re.compile(r"^\((\d+),")


def blame(error: BaseException) -> Blame | None:
    """Return whose fault an error is; None if that is unknown: of the record, or of the program.

    Args:
        error: as it was raised: an error of ours, of a client library, of Python or of Spark.
    """
    found = error if isinstance(error, OffsetkeeperError) else our_error(error)
    if found is not None:
        return _of_ours(found, error.__cause__)
    if (known := _of_library(_told(error))) is not None:
        return known
    if isinstance(error, _NETWORK):
        return Blame.AWAY
    if isinstance(error, OSError):
        return _DISKS.get(error.errno)
    found_in_text = _of_text(error)
    if found_in_text is None and isinstance(error, RuntimeError) and error.__cause__ is not None:
        return blame(error.__cause__)
    return found_in_text


def judged(
    error: BaseException, text: str, *, otherwise: Blame = Blame.AWAY, of_rows: bool = True
) -> OffsetkeeperError:
    """Return the error of ours for an error at an output; that of a record which could not be read, as it is.

    Args:
        error: see `blame`.
        text: what was done, where, and the words of the error.
        otherwise: whose fault it is if that is unknown.
        of_rows: whether rows were sent: otherwise it is no record's fault, whatever the error looks like.
    """
    ours = our_error(error)
    if isinstance(ours, RecordUnreadable):
        return ours
    found = blame(error) or otherwise
    return _RAISED[Blame.REFUSES if found is Blame.RECORD and not of_rows else found](text)


def told_by_system(error: BaseException) -> str:
    """Return the line of an error of Spark in which a file system or the network says why; empty if none does."""
    lines = () if raised(error) else (match[0] for match in _JAVA.finditer(str(error)))
    return next((line.strip()[:_MOST] for line in lines if _of_java(line) is not None), "")


def words(error: BaseException) -> str:
    """Return the text of an error in one line, with at most 200 characters of each quoted value."""
    return _QUOTED.sub(r"\1\2…\3", " ".join(str(error).split()))[:_MOST]


def of_sqlstate(state: str) -> Blame:
    """Return whose fault a state of PostgreSQL is."""
    prefixes = (state[:length] for length in range(len(state), 1, -1))
    return next((_SQLSTATES[each] for each in prefixes if each in _SQLSTATES), Blame.RECORD)


def of_mysql(code: int) -> Blame:
    """Return whose fault an error of MySQL or MariaDB is. An error without a number is of the connection."""
    return Blame.AWAY if is_of_mysql_client(code) else _MYSQL.get(code, Blame.RECORD)


def of_sqlite(code: int, text: str) -> Blame | None:
    """Return whose fault an error of SQLite is, by its code, extended or not; None if that is unknown."""
    primary = code & 0xFF
    if primary == 1:
        return Blame.AWAY if _NO_TABLE in text else Blame.PROGRAM
    return _SQLITE.get(primary)


def of_kafka(error: Any) -> Blame | None:
    """Return whose fault an error of Kafka or its client is: a `confluent_kafka.KafkaError`, or its name."""
    name = error if isinstance(error, str) else error.name()
    verdict = judge(error)
    if name in OF_RECORD:
        return Blame.RECORD
    if verdict.passes or name in FENCED:
        return Blame.AWAY
    if verdict in {CodeVerdict.REFUSED, CodeVerdict.UNKNOWN_TOPIC}:
        return Blame.REFUSES
    return Blame.PROGRAM if verdict is CodeVerdict.INVALID else None


class _Told(NamedTuple):
    """What an error of a library tells: the library, its classes, a code (None if it has none) and its text."""

    library: str
    names: tuple[str, ...]
    code: Any
    text: str


def _of_ours(error: OffsetkeeperError, cause: BaseException | None) -> Blame:
    if isinstance(error, RowMismatch | RecordUnreadable):
        return Blame.RECORD
    if type(error) in {SinkError, Refused} and cause is not None and _of_library(_told(cause)) is Blame.RECORD:
        return Blame.RECORD  # such as a constraint that is put off until the commit
    if isinstance(error, SinkMismatch):
        return Blame.PROGRAM
    passing = isinstance(error, SinkError | StoreUnavailable | OutcomeUnknown)
    return Blame.AWAY if passing and not isinstance(error, MarkMoved | ComputedAgain) else Blame.REFUSES


def _of_text(error: BaseException) -> Blame | None:
    """Return whose fault it is by the text alone: of an error of Spark, which has that of the task in it."""
    found, text = raised(error), str(error)
    if found is not None:
        return _of_library(_told_by_text(*found)) or _of_python(*found)
    if _CRASHED in text:
        return None  # whatever Java says of the connection to the worker: a record may crash it
    module = type(error).__module__
    name = type(error).__name__ if module == "builtins" else f"{module}.{type(error).__name__}"
    lines = (_of_java(match[0]) for match in _JAVA.finditer(text))
    return _of_python(name, text) or next(filter(None, lines), None)


def _of_python(name: str, message: str) -> Blame | None:
    """Return whose fault an error of Python or of a web client is, by its name or the number of a system's error."""
    if _NAMES_AWAY.fullmatch(name):
        return Blame.AWAY
    number = _ERRNO.match(message) if name in _OS_ERRORS else None
    return _DISKS.get(int(number[1])) if number else None


def _of_java(line: str) -> Blame | None:
    """Return whose fault a line of a Java error is: by a class at its start, or by what a file system says."""
    head = line.strip().removeprefix("Caused by: ")
    for part in head.split(": "):
        kinds = [_JAVA_KINDS.get(kind) for kind in _KIND.findall(part)] if "." in part and " " not in part else None
        if kinds is None:
            break
        if found := next(filter(None, kinds), None):
            return found
    if not _FILES.search(line):
        return None
    return next((each for mark, each in _TEXTS.items() if mark in line), None)


def _of_library(told: _Told) -> Blame | None:
    """Return whose fault an error of a client library is; None if it is of none that is known here."""
    known = _LIBRARIES.get(told.library)
    return None if known is None else known(told)


def _told(error: BaseException) -> _Told:
    first: Any = error.args[0] if error.args else None
    named = next((found for name in _CODES if (found := getattr(error, name, None))), None)
    code = first if isinstance(first, int) or hasattr(first, "name") else named  # PyMySQL has a number and a state
    kinds = type(error).__mro__
    return _Told(kinds[0].__module__.partition(".")[0], tuple(each.__name__ for each in kinds), code, str(error))


def _told_by_text(name: str, message: str) -> _Told:
    module, _, kind = name.rpartition(".")
    number, code = _NUMBER.match(message), _KAFKA_CODE.search(message)
    state = _state_of(module, kind) if module.startswith("psycopg") else None
    return _Told(module.partition(".")[0], (kind,), int(number[1]) if number else code[1] if code else state, message)


def _state_of(module: str, kind: str) -> str | None:
    """Return the state of an error of psycopg by the name of its class; None if it has none."""
    try:
        return getattr(getattr(importlib.import_module(module), kind, None), "sqlstate", None)
    except ImportError:  # the driver may lack what executors have
        return None


def _of_psycopg(told: _Told) -> Blame | None:
    return of_sqlstate(told.code) if isinstance(told.code, str) else _of_classes(told)


def _of_pymysql(told: _Told) -> Blame:
    return of_mysql(told.code if isinstance(told.code, int) else 0)


def _of_sqlite3(told: _Told) -> Blame | None:
    if isinstance(told.code, int):
        return of_sqlite(told.code, told.text)
    found = _of_classes(told)
    if found is not Blame.AWAY:
        return found
    return Blame.PROGRAM if "column" in told.text or "syntax" in told.text else Blame.AWAY


def _of_cassandra(told: _Told) -> Blame:
    if told.names[0] == "InvalidRequest":
        return Blame.RECORD
    return Blame.REFUSES if told.names[0] in _CASSANDRA_REFUSES else Blame.AWAY


def _of_confluent(told: _Told) -> Blame | None:
    return None if told.code is None else of_kafka(told.code)


def _of_classes(told: _Told) -> Blame | None:
    return next((_CLASSES[name] for name in told.names if name in _CLASSES), None)


_LIBRARIES: Mapping[str, Callable[[_Told], Blame | None]] = MappingProxyType(
    {
        **dict.fromkeys(("psycopg", "psycopg2"), _of_psycopg),
        **dict.fromkeys(("pymysql", "MySQLdb", "mysql"), _of_pymysql),
        **dict.fromkeys(("confluent_kafka", "cimpl"), _of_confluent),
        "sqlite3": _of_sqlite3,
        "cassandra": _of_cassandra,
    }
)
