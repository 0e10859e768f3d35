"""The store in MySQL or MariaDB."""

from offsetkeeper.stores.mysql.store import MySQLStore

__all__ = ["MySQLStore"]
