"""What a server of SQL answers when it cannot serve now: surely rolled back, and worth another try.

Sources:

* PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
* MySQL: https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
* MariaDB: https://mariadb.com/docs/server/reference/error-codes/mariadb-error-code-reference
"""

from __future__ import annotations

POSTGRESQL_PASSING = ("25", "40", "53", "55", "57", "58", "XX")
"""Prefixes of SQLSTATE: read-only for now, serialization and deadlock, resources, locks, cancelled, the system."""

MYSQL_BROKEN = frozenset({1053, 1180, 1317, 1927, 3100})
"""The last error before the server broke the connection, or one half-way in a commit: shutdown, killed, replication."""

MYSQL_PASSING = frozenset(
    {
        *(1020, 1021, 1037, 1038, 1040, 1041, 1047, 1114, 1129, 1135, 1158, 1159, 1160, 1161, 1203, 1205, 1206, 1213),
        *(1223, 1226, 1290, 1297, 1614, 1637, 1792, 1836, 1969, 3024, 3101, 3572),
    }
)
"""Disk, memory, number of connections, locks, read-only for now, resources.

1047 is also a node of Galera that is not ready; 3101 a transaction that Group Replication has rolled back.
"""


def is_of_mysql_client(code: int) -> bool:
    """Whether an error is of the client or of the connection, not of the server; 0 if it has no number."""
    return code == 0 or 2000 <= code < 3000  # noqa: PLR2004 - the range of the client's own errors
