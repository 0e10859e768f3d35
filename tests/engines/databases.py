"""Databases that hold a ledger, as other programs reach them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pymysql


def connect(url: str) -> Any:
    """Return a connection to the database of a store's URL."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    if url.startswith("postgresql"):
        return psycopg.connect(url)
    _, _, address = url.partition("@")
    place, _, name = address.partition("/")
    host, _, port = place.partition(":")
    return pymysql.connect(host=host, port=int(port), user="root", database=name.partition("?")[0])


def do(url: str, *statements: str) -> None:
    """Execute statements, as another program does."""
    with closing(connect(url)) as connection:
        for statement in statements:
            connection.cursor().execute(statement)
        connection.commit()
