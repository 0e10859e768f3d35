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
from offsetkeeper.core.executors import OF_ANYBODY, error_text, our_error, raised, raised_in_turn, told_by_java
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
        # beside these: files and tables that are made again or crashed, a server that is not ready
        **dict.fromkeys((1016, 1023, 1026, 1030, 1036, 1077, 1078, 1079, 1080, 1105, 1146), Blame.AWAY),
        **dict.fromkeys((1194, 1195, 1412, 1615, 1874, 3032, 3168), Blame.AWAY),
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
_SYSTEM: Mapping[int | None, Blame] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE),
                *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ETIMEDOUT),
                *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
            ),
            Blame.AWAY,
        ),
        **dict.fromkeys((errno.EACCES, errno.EPERM), Blame.REFUSES),
    }
)
_OF_PYTHON = re.compile(r"(?:builtins\.)?(?:Connection\w*Error|BrokenPipeError|TimeoutError)")
# Clients of services: the name of a class, or the status of an answer. Others, such as 400, may be of a record.
_CLIENTS = frozenset(
    (
        *("aiohttp", "botocore", "elastic_transport", "elasticsearch", "google", "http", "httpcore", "httpx", "pika"),
        *("opensearchpy", "pymongo", "redis", "requests", "smtplib", "socket", "ssl", "urllib", "urllib3"),
    )
)
_CLIENT_REFUSES = re.compile(r"\w+\.\w*(?:Authenti|Authoriz|NoPermission|CertVerification)\w*")
_CLIENT_AWAY = re.compile(
    r"\w+\.(?:\w*(?:[Cc]onnect|Timeout|NotPrimary|ClusterDown|MasterDown)\w*|SSL\w*|gaierror|herror|\w*ProxyError"
    r"|NameResolutionError|MaxRetryError|RetryError|RemoteProtocolError"
    r"|ChunkedEncodingError|IncompleteRead|BadStatusLine|ClientOSError|ClientPayloadError|BusyLoadingError"
    r"|ReadOnlyError|TryAgainError|OutOfMemoryError)"
    r"|urllib3\.ProtocolError|(?:httpx|httpcore)\.(?:NetworkError|ReadError|WriteError|CloseError)"
)
_STATUSES = "status_code", "status", "code"
_WITH_STATUS = frozenset({"aiohttp", "elasticsearch", "google", "httpx", "opensearchpy", "requests", "urllib"})
_STATUS = re.compile(r"(?:HTTP Error |(?:Server|Client) error '|\w+\()?([45]\d\d)\b")
_STATUS_AWAY, _STATUS_REFUSES = frozenset({408, 425, 429, *range(500, 600)}), frozenset({401, 403, 407})
_SMTP_PASSING = range(400, 500)
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
_FILES = re.compile(r"java\.io\.(?:\w*IOException|FileNotFoundException)|(?:.*\.)?(?:FSError|FileSystemException)")
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
_ERRNO = re.compile(r"^(?:<urlopen error )?\[Errno (-?\d+)\]")
_OS_ERRORS = frozenset({"OSError", "PermissionError", "BlockingIOError", "InterruptedError", "urllib.error.URLError"})
_TIMED_OUT = "<urlopen error timed out>"
_MOST_BEHIND = 20
_NUMBER = re.compile(r"^\((\d+),")


def blame(error: BaseException) -> Blame | None:
    """Return whose fault an error is; None if that is unknown: of the record, or of the program.

    Args:
        error: as it was raised: an error of ours, of a client library, of Python or of Spark.
    """
    found = _of_one(error) or next(filter(None, map(_of_one, _behind(error))), None)
    if found is None and Blame.AWAY in map(_of_one, _behind(error, handled=True)):
        return Blame.AWAY
    return found


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
    found = next((each for each in told_by_java(error) if _of_java(each) is not None), "")
    return found.partition("\n")[0].strip()[:_MOST]


def words(error: BaseException) -> str:
    """Return the text of an error in one line, with at most 200 characters of each quoted value."""
    return _QUOTED.sub(r"\1\2…\3", " ".join(error_text(error).split()))[:_MOST]


def kept(error: BaseException) -> str:
    """Return what the history may say of an error: the words of ours, and of another one only its class.

    The text of a foreign error may have a secret, such as the URL that a user's function asked.
    """
    ours = error if isinstance(error, OffsetkeeperError) else our_error(error)
    if ours is not None:
        return words(ours)
    found, kind = raised(error), type(error)
    own = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{found.name if found else own}: see the log of the run"


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


def _of_one(error: BaseException) -> Blame | None:
    """Return whose fault an error is, whatever it was raised from."""
    found = error if isinstance(error, OffsetkeeperError) else our_error(error)
    if found is not None:
        return _of_ours(found, error.__cause__)
    if (known := _of_library(_told(error)) or _of_client(error)) is not None:
        return known
    if isinstance(error, _NETWORK):
        return Blame.AWAY
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        return _SYSTEM[error.errno]
    return _of_text(error)


def _behind(error: BaseException, *, handled: bool = False) -> list[BaseException]:
    """Return the errors that an error was raised from, or that it wraps, as a group of a `TaskGroup` does.

    Args:
        error: the error.
        handled: whether also those that were handled when it was raised.
    """
    found = [error]
    for each in found:
        before = each.__context__ if handled else None
        grouped = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        near = getattr(each, "reason", None), *each.args[:1], *grouped, each.__cause__, before
        found += [one for one in near if isinstance(one, BaseException) and one not in found][
            : _MOST_BEHIND - len(found)
        ]
    return found[1:]


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
    found = raised(error)
    if found is not None:
        known = _of_library(_told_by_text(*found)) or _of_python(*found)
        before = (_of_python(*each) for each in raised_in_turn(error))
        return known or (Blame.AWAY if Blame.AWAY in before else None)
    if _CRASHED in error_text(error):
        return None  # whatever Java says of the connection to the worker: a record may crash it
    return next(filter(None, map(_of_java, told_by_java(error))), None)


def _of_python(name: str, message: str) -> Blame | None:
    """Return whose fault an error of Python or of a client is, by its name, its status or the system's number."""
    if _OF_PYTHON.fullmatch(name) or message == _TIMED_OUT:
        return Blame.AWAY
    module, _, kind = name.rpartition(".")
    status = _STATUS.match(message)
    known = _of_client_class(module, kind)
    if status and module.partition(".")[0] in _WITH_STATUS:
        known = _of_status(int(status[1])) or known
    number = _ERRNO.match(message) if name in _OS_ERRORS else None
    return known or (_of_system(int(number[1])) if number else None)


def _of_system(number: int) -> Blame | None:
    """Return whose fault an error of the system is; a resolver of names has numbers below zero."""
    return Blame.AWAY if number < 0 else _SYSTEM.get(number)


def _of_client(error: BaseException) -> Blame | None:
    """Return whose fault an error of a service's client is, by the status of the answer or the first class it knows."""
    kinds = [(kind.__module__, kind.__name__) for kind in type(error).__mro__]
    if any(module.partition(".")[0] in _WITH_STATUS for module, _ in kinds):
        places = (getattr(error, "response", None), "status_code"), *((error, name) for name in _STATUSES)
        found = (getattr(place, name, None) for place, name in places)
        known = next((_of_status(each) for each in found if isinstance(each, int)), None)
        if known is not None:
            return known
    return next(filter(None, (_of_client_class(*kind) for kind in kinds)), None)


def _of_client_class(module: str, kind: str) -> Blame | None:
    library = module.partition(".")[0]
    if library not in _CLIENTS:
        return None
    if _CLIENT_REFUSES.fullmatch(f"{library}.{kind}"):
        return Blame.REFUSES
    return Blame.AWAY if _CLIENT_AWAY.fullmatch(f"{library}.{kind}") else None


def _of_status(status: int) -> Blame | None:
    if status in _STATUS_REFUSES:
        return Blame.REFUSES
    return Blame.AWAY if status in _STATUS_AWAY else None


def _of_java(said: str) -> Blame | None:
    """Return whose fault an error of Java is: by the classes that it begins with, or by what a file system says."""
    classes, line = [], said.partition("\n")[0].strip()
    for part in line.split(": "):
        if "." not in part or " " in part or part == OF_ANYBODY:  # whose text may be a value: its cause counts
            break
        if found := next(filter(None, map(_JAVA_KINDS.get, _KIND.findall(part))), None):
            return found
        classes.append(part)
    if not any(map(_FILES.fullmatch, classes)):
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
    return _Told(kinds[0].__module__.partition(".")[0], tuple(each.__name__ for each in kinds), code, error_text(error))


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


def _of_smtplib(told: _Told) -> Blame | None:
    return Blame.AWAY if told.code in _SMTP_PASSING else None


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
        "smtplib": _of_smtplib,
        "sqlite3": _of_sqlite3,
        "cassandra": _of_cassandra,
    }
)
