"""The command serve: page, JSON API, metrics and alerts, from one process."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import LOG_FORMAT, complain
from offsetkeeper.core.outside import read_text
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.monitor.access import check_proxy, check_token, is_loopback
from offsetkeeper.monitor.alerts import read_rules

_TOKEN = "OFFSETKEEPER_SERVE_TOKEN"  # noqa: S105 - where it is looked for
_WEBHOOK = "OFFSETKEEPER_WEBHOOK"
_EXTRA = "offsetkeeper[serve]"


class Detail(StrEnum):
    """What metrics there are of; see docs/serve.md."""

    PARTITIONS = "partitions"
    GROUPS = "groups"


def serve(
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8117,
    name: Annotated[list[str] | None, typer.Option(help="A name it is reached under; may be repeated.")] = None,
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 5.0,
    trust_proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a proxy that tells who asks; may be repeated.")
    ] = None,
    metrics: Annotated[
        Detail, typer.Option(help="Metrics of each partition, or of groups and their topics only.")
    ] = Detail.PARTITIONS,
    allow_changes: Annotated[bool, typer.Option("--allow-changes", help="Let who has the token reset groups.")] = False,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the token; else {_TOKEN} has it.")] = None,
) -> None:
    """Serve a page of all groups, a JSON API and Prometheus metrics, and tell a webhook of alarms.

    Needs the extra `serve`. Read-only, and for this machine only, unless told otherwise.

    Example: offsetkeeper serve --store sqlite:///offsets.db --brokers localhost:9092
    """
    try:
        from offsetkeeper.monitor import server  # noqa: PLC0415 - the libraries of an extra, and slow to load
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        raise MissingExtra(f"serve needs the library {error.name!r}: pip install '{_EXTRA}'") from error

    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    chosen = options.settings(store, brokers, kafka)
    token = check_token(_token(token_file)) if allow_changes else ""
    rules = read_rules(chosen.alerts.get("rules", []), "alerts")
    proxies = [check_proxy(each) for each in trust_proxy or ()]
    webhook = os.environ.get(_WEBHOOK) or chosen.alerts.get("webhook", "")
    settings = server.Serving(host, port, frozenset(name or ()), every, token, rules, webhook, proxies, metrics.value)
    if not is_loopback(host):
        may = "see all groups, and who has the token may change them" if token else "see all groups"
        complain(f"WARNING: whoever reaches {host} may {may}; put it behind a proxy with TLS")
    with options.open_store(chosen) as opened, options.open_cluster(chosen) as cluster:
        server.serve(opened, cluster, settings, lambda url: typer.echo(f"Serving at {url}, until interrupted"))


def _token(file: Path | None) -> str:
    if file is None:
        if not os.environ.get(_TOKEN):
            raise SettingsError(f"--allow-changes needs a token: set {_TOKEN}, or give --token-file")
        return os.environ[_TOKEN]
    return read_text(file, "--token-file")
