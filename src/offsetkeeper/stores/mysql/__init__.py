"""The store in MySQL or MariaDB. The sink for tables there uses the same kind of connections."""

from offsetkeeper.stores.mysql.connections import Connection, Connections, code_of, read_url
from offsetkeeper.stores.mysql.settings import server_settings
from offsetkeeper.stores.mysql.store import MySQLStore, database_identity
from offsetkeeper.stores.mysql.tables import check_engine, triggers

__all__ = [
    "Connection",
    "Connections",
    "MySQLStore",
    "check_engine",
    "code_of",
    "database_identity",
    "read_url",
    "server_settings",
    "triggers",
]
