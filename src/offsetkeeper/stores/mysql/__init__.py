"""The store in MySQL or MariaDB."""

from offsetkeeper.stores.mysql.store import MySQLStore, database_identity

__all__ = ["MySQLStore", "database_identity"]
