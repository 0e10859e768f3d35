"""The URLs of stores: what they name, what is refused, and that no password is ever shown."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from offsetkeeper.core.urls import without_credentials
from offsetkeeper.errors import SettingsError, UnknownScheme
from offsetkeeper.stores import open_store
from offsetkeeper.stores.sqlite import SQLiteStore


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://user:s3cret@host:5432/db?password=s3cret", "postgresql://host:5432/db"),
        ("postgresql://us%40er:s3%2Fcr%40et@host/db", "postgresql://host/db"),
        ("postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("memory://", "memory://"),
    ],
)
def test_an_address_has_no_user_no_password_and_no_query(url: str, address: str) -> None:
    assert without_credentials(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret/x@host/db",
        "postgresql://user:1/s3cret@host/db",
        "postgresql://user:1?s3cret@host/db",
        "postgresql://user:1#s3cret@host/db",
        "postgresql://user:s3cret@x@host/db",
        "postgresql://user:x@s3cret@host/db",
        "postgresql://user:s3cret",
        "postgresql://user:[s3cret@host/db",
        "postgresql://user:s3cret℀@host/db",
        "postgresql://user:s3cret%zz@host/db",
        "postgresql://user:s3cret@host/db?history=none",
        "postgresql://user:s3cret@host/db?history=0",
        "postgresql://user:s3cret@host/db?timeout=never",
        "postgresql://user:s3cret@host/db?timeout=nan",
        "postgresql://user:s3cret@host/db?schema=",
        "postgresql://user:s3cret@host/db?table=100%25",
        "postgresql://user:s3cret@host/db?table=" + "t" * 51,
        "postgresql://user:s3cret@host/db?tabel=t",
        "postgresql://user:s3cret@host/db?table=a&table=b",
        "postgresql://host/db?password=s3cret&histroy=1",
        "kafka://user:s3cret@host:9092?message.max.bytes=1MB",
        "kafka://user:s3cret@host:9092?message.max.bytes=1000²",
        "kafka://user:s3cret@host:9092?message.max.bytes=999",
        "zookeeper://user:s3cret@host:2181/a%00b",
        "host=db password=s3cret dbname=x",
        "host=db password=s3cret:x dbname=x",
        "postgressql://user:s3cret@host/db",
        "PASSWORD=s3cret",
    ],
)
def test_a_wrong_url_is_refused_before_anything_is_opened_and_shows_no_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    shown = "".join(traceback.format_exception(caught.value)).replace(url, "") + repr(caught.value) + caplog.text
    assert "s3cret" not in shown


def test_an_unknown_scheme_is_told_with_those_known() -> None:
    with pytest.raises(UnknownScheme, match=r"ftp://.*memory://.*postgresql://.*sqlite://"):
        open_store("ftp://host/offsets")


def test_an_unknown_setting_is_told_by_the_known_ones_and_the_one_alike() -> None:
    with pytest.raises(SettingsError, match=r"did you mean table\?.*table, history, timeout"):
        open_store("sqlite:///x.db?tabel=t")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db?table=offsetkeeper",
        "sqlite:///x.db?table=OffsetKeeper",
        "postgresql://host/db?table=offsetkeeper",
        "mysql://host/db?table=offsetkeeper",
    ],
)
def test_a_table_whose_companions_would_be_those_of_the_usual_one_is_refused(url: str) -> None:
    """With one control record for two tables of positions, a run of the second moved the first, and rows came twice."""
    with pytest.raises(SettingsError, match=r"kafka_offsets, offsetkeeper_groups, .*share ledgers.*rename the tables"):
        open_store(url)


def test_a_table_that_is_the_usual_one_in_capitals_is_refused_where_these_are_one() -> None:
    """They shared the positions, but each had control records of its own. What to rename is other than above."""
    with pytest.raises(SettingsError, match=r"same table of positions.*Kafka_Offsets_groups to offsetkeeper_groups"):
        open_store("sqlite:///x.db?table=Kafka_Offsets")


@pytest.mark.parametrize("table", ["OffsetKeeper", "Kafka_Offsets"])
def test_capitals_make_another_table_where_the_server_says_so(table: str) -> None:
    open_store(f"postgresql://host/db?table={table}").close()


@pytest.mark.parametrize("url", ["sqlite://x.db", "sqlite://", "sqlite:///", "sqlite:///x.db#y"])
def test_a_sqlite_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:///relative"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["file", "sqlite", "checkpoint"])
def test_a_path_that_no_file_can_have_is_refused(scheme: str) -> None:
    with pytest.raises(SettingsError, match="has %00 in its path"):
        open_store(f"{scheme}:///a%00b")


@pytest.mark.parametrize("scheme", ["file", "sqlite", "checkpoint"])
@pytest.mark.parametrize("path", ["a%ff", "%ff", "a%C3", "\udcff"])
def test_a_path_that_is_not_utf_8_is_refused(scheme: str, path: str) -> None:
    """Python reads each such byte as the same sign, so that two paths would be one file, with a name nobody gave."""
    with pytest.raises(SettingsError, match="not UTF-8") as caught:
        open_store(f"{scheme}:///{path}")
    str(caught.value).encode()  # it can be printed


def test_a_setting_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(SettingsError, match="not UTF-8"):
        open_store("sqlite:///x.db?table=%ff")


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = SQLiteStore("sqlite:///my%20offsets.db")
    absolute = SQLiteStore(f"sqlite:///{tmp_path}/my%20offsets.db")
    assert relative.path == absolute.path == tmp_path / "my offsets.db"
    assert relative.identity() == absolute.identity()
    for store in (relative, absolute):
        store.close()


def test_the_repr_shows_no_password() -> None:
    store = open_store("postgresql://user:s3cret@host/db?sslmode=disable")
    assert repr(store) == "PostgreSQLStore('postgresql://host/db')"
    assert store.address == "postgresql://host/db"


def test_a_url_of_jdbc_is_told_what_to_leave_out() -> None:
    with pytest.raises(UnknownScheme, match="leave out 'jdbc:'"):
        open_store("jdbc:postgresql://user:secret@host/shop")
