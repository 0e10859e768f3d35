"""Whose certificate is not accepted: of several servers one that may be is enough, and nobody waits for long."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pymysql
import pytest

from offsetkeeper.clients.mysql_tls import connectable
from offsetkeeper.clients.postgresql import _is_hopeless
from offsetkeeper.core import tls
from offsetkeeper.core.tls import Tls, of_all
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.kafka import clients
from offsetkeeper.kafka.clients import library

FAILED = 'connection to server at "{}", port 5432 failed: '
WRONG = "SSL error: certificate verify failed"
DOWN = "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?\n"
SEVERAL = "Multiple connection attempts failed. All failures were:\n- host: 'a': connection failed: "


DAYS = b"\x17\x0d270131000000Z\x18\x0f20510228000000Z"
"""The days of a certificate in DER: from 2027-01-31 to 2051-02-28."""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param(9, "the certificate of db:5432 is valid only from 2027-01-31 on", id="not yet valid"),
        pytest.param(10, "the certificate of db:5432 expired on 2051-02-28", id="expired"),
    ],
)
def test_the_day_that_a_certificate_begins_or_ends_is_told(code: int, told: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    assert Tls("ca")._told(error, "db", 5432, DAYS).startswith(told)


def test_of_several_servers_one_that_may_be_accepted_is_enough() -> None:
    assert of_all(iter(["expired", "foreign"])) == "expired"
    assert not of_all(iter(["expired", "", "foreign"]))
    assert not of_all(iter([]))


@pytest.mark.parametrize(
    ("text", "hopeless"),
    [
        (FAILED.format("a") + WRONG, True),
        (FAILED.format("a") + DOWN, False),
        ("connection failed: " + FAILED.format("b") + DOWN + SEVERAL + FAILED.format("a") + WRONG, False),
        ("connection failed: " + FAILED.format("b") + WRONG + SEVERAL + FAILED.format("a") + WRONG, True),
        ("FATAL: no pg_hba.conf entry for host", True),
    ],
)
def test_postgresql_is_tried_again_unless_each_server_refuses(text: str, *, hopeless: bool) -> None:
    assert _is_hopeless(text) is hopeless


def test_a_broker_that_is_not_accepted_is_final_if_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def objection(text: str, _: Any, known: dict[str, str]) -> str:
        known[text] = f"{text} expired"
        return known[text]

    reports: list[Any] = []
    monkeypatch.setattr(clients, "objection", objection)
    report = clients._logged(reports.append, None, {}, "one:9093,two")
    for broker in ("one:9093", "one:9093", "elsewhere:9093", "two:9092"):
        report(library().KafkaError(library().KafkaError._SSL, broker))
    assert [(each.name(), each.str()) for each in reports] == [
        ("_SSL", "one:9093 expired"),
        ("_SSL", "one:9093 expired"),
        ("_SSL", "elsewhere:9093 expired"),
        ("_AUTHENTICATION", "two:9092 expired"),
    ]


def test_a_server_that_says_a_byte_at_times_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def wait_for_more(_: socket.socket) -> None:
        done.wait(30)
        raise OSError

    monkeypatch.setattr(tls, "_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        assert not Tls("ca").objection("127.0.0.1", server.getsockname()[1], wait_for_more)
        assert time.monotonic() - begin < 20
    done.set()


def test_a_server_that_resets_the_connection_shows_no_certificate_and_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset(connection: socket.socket) -> None:
            taken, _ = server.accept()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.close()
            select.select([connection], [], [])  # until the reset is here

        asked = tls._Asked("127.0.0.1", server.getsockname()[1], reset, "127.0.0.1")

        assert asked.certificate() == b""
        gc.collect()  # the suite fails where this finds a socket that is open


def test_a_pymysql_that_goes_on_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql, "VERSION", (1, 1, 2, "final"))
    assert connectable({"host": "db", "tls": None})["host"] == "db"
    with pytest.raises(MissingExtra, match=r"PyMySQL 1\.2 or newer"):
        connectable({"host": "db", "tls": Tls("ssl_ca")})


def test_a_folder_of_authorities_is_refused_only_if_it_is_none(tmp_path: Path) -> None:
    Tls("ca", folder=str(tmp_path)).check()
    with pytest.raises(SettingsError, match="is not a folder on"):
        Tls("ca", folder=str(tmp_path / "missing")).check()
