"""What all commands take, and where it comes from: the command line, else the environment, else one TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple

import typer

from offsetkeeper import stores
from offsetkeeper.cli.output import complain
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.outside import load_toml, read_text, shown_name, unknown_setting
from offsetkeeper.core.published import Difference, told
from offsetkeeper.core.store import Store as OpenStore
from offsetkeeper.errors import Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import check_isolation
from offsetkeeper.operate.published import edited

_RETRY_TIMEOUT_S = 10.0
_ISOLATION = "isolation.level"  # librdkafka has it as a setting, and so has the command

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

    store: str = field(default="", repr=False)
    brokers: str = field(default="", repr=False)
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] = ()
    alerts: dict[str, Any] = field(default_factory=dict, repr=False)


def settings(store: str = "", brokers: str = "", kafka: list[str] | None = None) -> Settings:
    """Return what was given, filled up from the TOML file: `OFFSETKEEPER_CONFIG`, or offsetkeeper.toml here.

    Raises:
        SettingsError: the file is not there, or wrong.
    """
    file = _read_file(os.environ.get("OFFSETKEEPER_CONFIG", ""))
    options = {**file.get("kafka", {}), **dict(pair("--kafka", each) for each in kafka or [])}
    return Settings(
        store or file.get("store", ""),
        brokers or file.get("brokers", ""),
        options,
        (*file.get("topics", ()),),
        file.get("alerts", {}),
    )


@contextmanager
def open_group(chosen: Settings, group: str) -> Iterator[Ledger]:
    """Lend the ledger of a group that is only read, loaded.

    Raises:
        SettingsError: no store was given, its URL is wrong, or it is not there; or nothing is stored of the group.
        StoreUnavailable, CorruptStore: see `Ledger.load`.
    """
    with open_ledger(chosen, group, read_only=True) as ledger:
        ledger.load()
        check_stored(ledger)
        yield ledger


def check_stored(ledger: Ledger) -> None:
    """Check that something is stored of a group whose ledger was loaded: a name that is mistyped is not healthy.

    Raises:
        Refused: nothing is.
    """
    if nothing := nothing_stored(ledger):
        raise Refused(f"{nothing}. Check the name: offsetkeeper groups lists all")


def nothing_stored(ledger: Ledger) -> str:
    """Return, in a sentence, that nothing is stored of a group whose ledger was loaded; empty where something is."""
    found = ledger.snapshot
    known = found.version or found.positions
    return "" if known else f"nothing is stored of group {ledger.group!r} in {ledger.store.address}"


def say_edited(ledger: Ledger) -> Sequence[Difference]:
    """Return what other programs see that is not the ledger's, and say it beside what the command prints."""
    found = edited(ledger)
    if found:
        complain(told(ledger.group, found))
    return found


@contextmanager
def open_ledger(chosen: Settings, group: str, *, read_only: bool = False) -> Iterator[Ledger]:
    """Lend the ledger of a group, not loaded yet.

    Args:
        chosen: settings.
        group: its name.
        read_only: whether nothing is to be written; see `open_store`.

    Raises:
        SettingsError: no store was given, its URL is wrong, or it is not there.
    """
    with open_store(chosen, read_only=read_only) as store:
        yield Ledger(store, group, retry_timeout_s=_RETRY_TIMEOUT_S)


def missing_file(store: OpenStore) -> Path | None:
    """Return the file of this machine that a store is in, where it is not there: the first request would make it."""
    path = getattr(store, "path", None)
    return path if isinstance(path, Path) and not os.path.exists(path) else None  # noqa: PTH110 - it never raises


@contextmanager
def open_store(chosen: Settings, *, read_only: bool = False) -> Iterator[OpenStore]:
    """Lend the store.

    Args:
        chosen: settings.
        read_only: whether nothing is to be written: then the store must be there.

    Raises:
        SettingsError: none was given, its URL is wrong, or it is not there.
    """
    if not chosen.store:
        raise SettingsError("no store: give --store, set OFFSETKEEPER_STORE, or write `store = …` in offsetkeeper.toml")
    store = stores.open_store(chosen.store)
    if read_only and (path := missing_file(store)):
        raise SettingsError(f"{store.address}: there is no file {path}. Check the path; a run makes it as it starts")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def open_cluster(chosen: Settings) -> Iterator[KafkaCluster]:
    """Lend the cluster.

    Raises:
        SettingsError: no brokers were given, or a setting is wrong.
    """
    if not chosen.brokers:
        raise SettingsError(
            "no brokers: give --brokers, set OFFSETKEEPER_BROKERS, or write `brokers = …` in offsetkeeper.toml"
        )
    others = {name: value for name, value in chosen.kafka.items() if name != _ISOLATION}
    isolation = check_isolation(chosen.kafka.get(_ISOLATION, "read_committed"))
    with KafkaCluster(chosen.brokers, others, isolation=isolation, timeout_s=_RETRY_TIMEOUT_S) as cluster:
        yield cluster


def pair(option: str, text: str) -> tuple[str, str]:
    """Return name and value of an option `name=value`.

    Raises:
        SettingsError: it has no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"{option}: write name=value, with a = between them; what was given has none")
    return name, value


class _Wanted(NamedTuple):
    """A setting: its type, that of its items where it is a list, and how it is written."""

    kind: type | UnionType
    items: type[object] | None
    write: str

    def fits(self, value: Any) -> bool:
        items = value if isinstance(value, list) else ()
        return isinstance(value, self.kind) and (self.items is None or all(type(each) is self.items for each in items))


_SETTINGS = {
    "store": _Wanted(str, None, 'a text, as store = "sqlite:///offsets.db"'),
    "brokers": _Wanted(str, None, 'a text, as brokers = "kafka:9092"'),
    "topics": _Wanted(list, str, 'a list of texts, as topics = ["orders"]'),
    "kafka": _Wanted(dict, None, 'librdkafka\'s settings below [kafka], as "security.protocol" = "SSL"'),
    "alerts": _Wanted(dict, None, 'webhook = "https://…" below [alerts], and each rule below [[alerts.rules]]'),
}
_ALERTS = {
    "webhook": _Wanted(str, None, 'a text, as webhook = "https://…"'),
    "rules": _Wanted(list, dict, "each rule below [[alerts.rules]]"),
}
_OPTION = _Wanted(
    str | int,  # and so true and false
    None,
    'the name in quotes, and a text, a whole number, true or false, as "security.protocol" = "SSL"',
)


def _read_file(named: str) -> dict[str, Any]:
    """Return the settings of a file, each of the type that is wanted; librdkafka's as texts.

    Args:
        named: its path; empty for offsetkeeper.toml in the current folder, which need not be there.

    Raises:
        SettingsError: it cannot be read, or a setting is unknown or of another type; the message names both.
    """
    path = Path(named or "offsetkeeper.toml")
    if not named and not path.is_file():
        return {}
    found = load_toml(read_text(path), str(path))
    _check(str(path), found, _SETTINGS)
    _check(f"{path}, [kafka]", found.get("kafka", {}), dict.fromkeys(found.get("kafka", {}), _OPTION), free=True)
    _check(f"{path}, [alerts]", found.get("alerts", {}), _ALERTS)
    return found | {"kafka": {name: _text(value) for name, value in found.get("kafka", {}).items()}}


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(where: str, found: Mapping[str, Any], known: Mapping[str, _Wanted], *, free: bool = False) -> None:
    if error := unknown_setting(where, found, sorted(known)):
        raise error
    for key, value in found.items():
        if not known[key].fits(value):
            told = "a table" if isinstance(value, dict) else "of another type"  # its value may be a password
            raise SettingsError(f"{where}: {shown_name(key) if free else key} is {told}: write {known[key].write}")
