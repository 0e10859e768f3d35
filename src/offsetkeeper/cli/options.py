"""Options that all commands share. Values come from the command line, else the environment, else one TOML file."""

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
from offsetkeeper.cli.output import complain, shown
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.outside import load_toml, read_text, shown_name, unknown_setting
from offsetkeeper.core.published import Difference, no_offsets, told
from offsetkeeper.core.store import Store as OpenStore
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import check_isolation
from offsetkeeper.kafka.trusted import refuse_code
from offsetkeeper.operate import published

_RETRY_TIMEOUT_S = 10.0
_ISOLATION = "isolation.level"  # a setting of librdkafka that the command also sets

Group = Annotated[str, typer.Argument(help="Name of the consumer group, as in Kafka (group.id).")]
Store = Annotated[
    str, typer.Option(envvar="OFFSETKEEPER_STORE", help="URL of the store, such as sqlite:///offsets.db.")
]
Brokers = Annotated[str, typer.Option(envvar="OFFSETKEEPER_BROKERS", help="Kafka's brokers, as host:port,host:port.")]
Kafka = Annotated[list[str] | None, typer.Option(help="A setting of librdkafka, as name=value; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _whole(topics: list[str] | None) -> list[str] | None:
    for part in topics or ():
        if ":" in part:
            topic = part.partition(":")[0]
            raise SettingsError(f"--topic {part}: this command takes whole topics, so give --topic {topic}")
    return topics


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", callback=_whole, help="Name of a topic that the group reads; may be repeated."),
]


@dataclass(frozen=True)
class Settings:
    """The settings of one command call."""

    store: str = field(default="", repr=False)
    brokers: str = field(default="", repr=False)
    kafka: dict[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] = ()
    alerts: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def clients(self) -> dict[str, str]:
        """Librdkafka's settings without the isolation, which is an argument of its own."""
        return {name: value for name, value in self.kafka.items() if name != _ISOLATION}


def settings(store: str = "", brokers: str = "", kafka: list[str] | None = None) -> Settings:
    """Return the given settings, completed from the TOML file: `OFFSETKEEPER_CONFIG`, or offsetkeeper.toml here.

    Raises:
        SettingsError: the file does not exist, or is wrong.
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
    """Lend the loaded ledger of a group, for reading only.

    Raises:
        SettingsError: no store was given, its URL is wrong, or its file does not exist.
        Refused: the store has nothing of the group.
        StoreUnavailable, CorruptStore: see `Ledger.load`.
    """
    with open_ledger(chosen, group, read_only=True) as ledger:
        ledger.load()
        check_stored(ledger)
        yield ledger


def check_stored(ledger: Ledger) -> None:
    """Check that the store has something of a loaded group: a mistyped name must not look healthy.

    Raises:
        Refused: the store has nothing of the group.
    """
    if nothing := nothing_stored(ledger):
        raise Refused(f"{nothing}. Check the name: offsetkeeper groups lists all groups")


def nothing_stored(ledger: Ledger) -> str:
    """Return a sentence if the store has nothing of a loaded group, else an empty text."""
    found = ledger.snapshot
    known = found.version or found.positions
    return "" if known else f"group {ledger.group!r} is not in {ledger.store.address}{no_offsets(ledger.store)}"


def say_edited(ledger: Ledger) -> Sequence[Difference]:
    """Return the offsets that other programs see differently, and print them to stderr."""
    found = published.edited(ledger)
    if found:
        complain(told(ledger.group, found))
    return found


def check_unedited(ledger: Ledger, *, force: bool) -> None:
    """Check that no other program has moved the offsets of a group; with `force` only print what differs.

    Raises:
        OffsetkeeperError: see `operate.published.check_unedited`; none with `force`.
    """
    if not force:
        published.check_unedited(ledger)
        return
    try:
        say_edited(ledger)
    except OffsetkeeperError as error:
        complain(f"group {shown(ledger.group)}: offsets that other programs see were not compared: {error}")


@contextmanager
def open_ledger(chosen: Settings, group: str, *, read_only: bool = False) -> Iterator[Ledger]:
    """Lend the ledger of a group, not loaded yet.

    Args:
        chosen: settings.
        group: its name.
        read_only: whether the command only reads; see `open_store`.

    Raises:
        SettingsError: no store was given, its URL is wrong, or its file does not exist.
    """
    with open_store(chosen, read_only=read_only) as store:
        yield Ledger(store, group, retry_timeout_s=_RETRY_TIMEOUT_S)


def missing_file(store: OpenStore) -> Path | None:
    """Return the local file of a store if it does not exist yet: the first request would create it."""
    path = getattr(store, "path", None)
    return path if isinstance(path, Path) and not os.path.exists(path) else None  # noqa: PTH110 - it never raises


@contextmanager
def open_store(chosen: Settings, *, read_only: bool = False) -> Iterator[OpenStore]:
    """Lend the store.

    Args:
        chosen: settings.
        read_only: whether the command only reads: then the store must exist.

    Raises:
        SettingsError: no store was given, its URL is wrong, or its file does not exist.
    """
    if not chosen.store:
        raise SettingsError("no store: give --store, set OFFSETKEEPER_STORE, or write `store = …` in offsetkeeper.toml")
    store = stores.open_store(chosen.store)
    if read_only and (path := missing_file(store)):
        raise SettingsError(
            f"{store.address}: file {path} does not exist. Check the path; the first run creates the file"
        )
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
    isolation = check_isolation(chosen.kafka.get(_ISOLATION, "read_committed"))
    with KafkaCluster(chosen.brokers, chosen.clients, isolation=isolation, timeout_s=_RETRY_TIMEOUT_S) as cluster:
        yield cluster


def pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and the value of an option `name=value`.

    Raises:
        SettingsError: it has no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"{option}: write name=value; the given text has no =")
    return name, value


class _Wanted(NamedTuple):
    """A setting: its type, the type of its items if it is a list, and an example of how to write it."""

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
    """Return the settings of a file, each of the right type; librdkafka's settings as texts.

    Args:
        named: its path; empty for offsetkeeper.toml in the current folder, which is optional.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown or has a wrong type; the message names both.
    """
    path = Path(named or "offsetkeeper.toml")
    if not named and not os.path.lexists(path):
        return {}
    found = load_toml(read_text(path, private=True, own=not named), str(path))
    _check(str(path), found, _SETTINGS)
    _check(f"{path}, [kafka]", found.get("kafka", {}), dict.fromkeys(found.get("kafka", {}), _OPTION), free=True)
    _check(f"{path}, [alerts]", found.get("alerts", {}), _ALERTS)
    kafka = {name: _text(value) for name, value in found.get("kafka", {}).items()}
    refuse_code(kafka, f"{path}, [kafka]")
    return found | {"kafka": kafka}


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(where: str, found: Mapping[str, Any], known: Mapping[str, _Wanted], *, free: bool = False) -> None:
    if error := unknown_setting(where, found, sorted(known)):
        raise error
    for key, value in found.items():
        if not known[key].fits(value):
            told = "a table" if isinstance(value, dict) else "of another type"  # its value may be a password
            raise SettingsError(f"{where}: {shown_name(key) if free else key} is {told}: write {known[key].write}")
