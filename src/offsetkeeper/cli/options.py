"""What all commands take, and where it comes from: the command line, else the environment, else one TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetkeeper.cli.config import read_config
from offsetkeeper.errors import SettingsError

_PATIENCE_S = 10.0

Group = Annotated[str, typer.Argument(help="The consumer group.")]
Store = Annotated[
    str, typer.Option(envvar="OFFSETKEEPER_STORE", help="URL of the store, such as sqlite:///offsets.db.")
]
Brokers = Annotated[str, typer.Option(envvar="OFFSETKEEPER_BROKERS", help="host:port,… of Kafka.")]
Kafka = Annotated[list[str] | None, typer.Option(help="A setting of librdkafka, name=value; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be repeated.")]


@dataclass(frozen=True)
class Settings:
    """Settings of one call."""

    store: str = ""
    brokers: str = ""
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] = ()
    alerts: dict[str, Any] = field(default_factory=dict, repr=False)


def settings(store: str = "", brokers: str = "", kafka: list[str] | None = None) -> Settings:
    """Return what was given, filled up from the TOML file: `OFFSETKEEPER_CONFIG`, or offsetkeeper.toml here.

    Raises:
        SettingsError: the file is not there, or wrong.
    """
    file = read_config(os.environ.get("OFFSETKEEPER_CONFIG", ""))
    options = {**file.get("kafka", {}), **dict(pair("--kafka", each) for each in kafka or [])}
    return Settings(
        store or file.get("store", ""),
        brokers or file.get("brokers", ""),
        options,
        (*file.get("topics", ()),),
        file.get("alerts", {}),
    )


@contextmanager
def open_group(chosen: Settings, group: str) -> Iterator[Any]:
    """Lend the ledger of a group that is only looked at, loaded.

    Raises:
        SettingsError: no store was given, its URL is wrong, or it is not there; or nothing is stored of the group.
        StoreUnavailable, CorruptStore: see `Ledger.load`.
    """
    with open_ledger(chosen, group, looking=True) as ledger:
        ledger.load()
        check_stored(ledger)
        yield ledger


def check_stored(ledger: Any) -> None:
    """Check that something is stored of a group whose ledger was loaded: a name that is mistyped is not healthy.

    Raises:
        SettingsError: nothing is.
    """
    if nothing := nothing_stored(ledger):
        raise SettingsError(f"{nothing}. Check the name: offsetkeeper groups lists all")


def nothing_stored(ledger: Any) -> str:
    """Return, in a sentence, that nothing is stored of a group whose ledger was loaded; empty where something is."""
    found = ledger.snapshot
    known = found.version or found.positions
    return "" if known else f"nothing is stored of group {ledger.group!r} in {ledger.store.address}"


@contextmanager
def open_ledger(chosen: Settings, group: str, *, looking: bool = False) -> Iterator[Any]:
    """Lend the ledger of a group, not loaded yet.

    Args:
        chosen: settings.
        group: its name.
        looking: whether nothing is to be written; see `open_store`.

    Raises:
        SettingsError: no store was given, its URL is wrong, or it is not there.
    """
    from offsetkeeper.core.ledger import Ledger  # noqa: PLC0415 - each command loads what it needs, and no more

    with open_store(chosen, looking=looking) as store:
        yield Ledger(store, group, patience_s=_PATIENCE_S)


def missing_file(store: Any) -> Path | None:
    """Return the file of this machine that a store is in, where it is not there: the first request would make it."""
    path = getattr(store, "path", None)
    return path if isinstance(path, Path) and not os.path.exists(path) else None  # noqa: PTH110 - it never raises


@contextmanager
def open_store(chosen: Settings, *, looking: bool = False) -> Iterator[Any]:
    """Lend the store.

    Args:
        chosen: settings.
        looking: whether nothing is to be written: then the store must be there.

    Raises:
        SettingsError: none was given, its URL is wrong, or it is not there.
    """
    from offsetkeeper import stores  # noqa: PLC0415

    if not chosen.store:
        raise SettingsError("no store: give --store, set OFFSETKEEPER_STORE, or write `store = …` in offsetkeeper.toml")
    store = stores.open_store(chosen.store)
    if looking and (path := missing_file(store)):
        raise SettingsError(f"{store.address}: there is no file {path}. Check the path; a run makes it as it starts")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def open_cluster(chosen: Settings) -> Iterator[Any]:
    """Lend the cluster.

    Raises:
        SettingsError: no brokers were given, or a setting is wrong.
    """
    from offsetkeeper.kafka import Cluster  # noqa: PLC0415

    if not chosen.brokers:
        raise SettingsError(
            "no brokers: give --brokers, set OFFSETKEEPER_BROKERS, or write `brokers = …` in offsetkeeper.toml"
        )
    with Cluster(chosen.brokers, chosen.kafka, timeout_s=_PATIENCE_S) as cluster:
        yield cluster


def pair(option: str, text: str) -> tuple[str, str]:
    """Return name and value of an option `name=value`.

    Raises:
        SettingsError: it has no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"{option} {name}: write name=value")
    return name, value
