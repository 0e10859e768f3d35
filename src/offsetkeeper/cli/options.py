"""What all commands take, and where it comes from: the command line, else the environment, else one TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetkeeper.errors import SettingsError

CONFIG = "offsetkeeper.toml"
_KEYS = {"store", "brokers", "kafka", "topics", "alerts"}
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
    file = _read(os.environ.get("OFFSETKEEPER_CONFIG", ""))
    options = {**file.get("kafka", {}), **dict(pair("--kafka", each) for each in kafka or [])}
    return Settings(
        store or file.get("store", ""),
        brokers or file.get("brokers", ""),
        options,
        (*file.get("topics", ()),),
        file.get("alerts", {}),
    )


@contextmanager
def open_ledger(chosen: Settings, group: str) -> Iterator[Any]:
    """Lend the ledger of a group, not loaded yet.

    Raises:
        SettingsError: no store was given, or its URL is wrong.
    """
    from offsetkeeper.ledger import Ledger  # noqa: PLC0415 - each command loads what it needs, and no more

    with open_store(chosen) as store:
        yield Ledger(store, group, patience_s=_PATIENCE_S)


@contextmanager
def open_store(chosen: Settings) -> Iterator[Any]:
    """Lend the store.

    Raises:
        SettingsError: none was given, or its URL is wrong.
    """
    from offsetkeeper import stores  # noqa: PLC0415

    if not chosen.store:
        raise SettingsError("no store: give --store, set OFFSETKEEPER_STORE, or write `store = …` in offsetkeeper.toml")
    store = stores.open_store(chosen.store)
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


def _read(named: str) -> dict[str, Any]:
    path = Path(named or CONFIG)
    if not named and not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if unknown := sorted(found.keys() - _KEYS):
        raise SettingsError(f"{path} has an unknown setting {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    return found


def pair(option: str, text: str) -> tuple[str, str]:
    """Return name and value of an option `name=value`.

    Raises:
        SettingsError: it has no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"{option} {name}: write name=value")
    return name, value
