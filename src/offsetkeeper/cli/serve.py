"""The command serve: page, JSON API, metrics and alerts, from one process."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import complain, log_to_stderr
from offsetkeeper.core.outside import read_text
from offsetkeeper.core.store import needing_extra
from offsetkeeper.errors import SettingsError
from offsetkeeper.monitor.access import check_base, check_proxy, check_token, is_loopback
from offsetkeeper.monitor.alerts import read_rules

_TOKEN = "OFFSETKEEPER_SERVE_TOKEN"  # noqa: S105 - the name of a variable
_WEBHOOK = "OFFSETKEEPER_WEBHOOK"


class Detail(StrEnum):
    """How detailed metrics are; see docs/serve.md."""

    PARTITIONS = "partitions"
    GROUPS = "groups"


def serve(
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    host: Annotated[str, typer.Option(help="IP address or host name to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")] = 8117,
    name: Annotated[
        list[str] | None, typer.Option(help="Host name under which browsers reach the page; may be repeated.")
    ] = None,
    every: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Seconds between two polls of store and Kafka.")
    ] = 5.0,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address of a proxy whose X-Forwarded-For header is trusted; may be repeated."),
    ] = None,
    base_path: Annotated[
        str, typer.Option(help="Path under which browsers reach the page behind a proxy, such as /offsetkeeper.")
    ] = "",
    metrics: Annotated[
        Detail, typer.Option(help="Detail of the metrics: for each partition, or only for groups and their topics.")
    ] = Detail.PARTITIONS,
    kafka_exporter: Annotated[
        bool,
        typer.Option("--kafka-exporter", help="Also export kafka_exporter's names, such as kafka_consumergroup_lag."),
    ] = False,
    otlp: Annotated[
        bool,
        typer.Option(
            "--otlp",
            help="Send the metrics to the collector at OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra otlp.",
        ),
    ] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Allow resets of groups to everyone who has the token.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the token. Without it, {_TOKEN} must have the token.")
    ] = None,
) -> None:
    """Serve a page of all groups, a JSON API and Prometheus metrics, and send alerts to a webhook.

    The command needs the extra `serve`. By default it is read-only and listens on this machine only. The meaning of
    each status: https://github.com/offsetkeeper/offsetkeeper/blob/main/docs/words.md

    Example: offsetkeeper serve --store sqlite:///offsets.db --brokers localhost:9092
    """
    with needing_extra("serve needs the library", "serve"):
        from offsetkeeper.monitor import server  # noqa: PLC0415 - the libraries of an extra, and slow to load

    log_to_stderr(logging.WARNING)
    chosen = options.settings(store, brokers, kafka)
    token = check_token(_token(token_file)) if allow_changes else ""
    rules = read_rules(chosen.alerts.get("rules", []), "alerts")
    proxies = [check_proxy(each) for each in trust_proxy or ()]
    base = check_base(base_path)
    webhook = os.environ.get(_WEBHOOK) or chosen.alerts.get("webhook", "")
    settings = server.Serving(
        host,
        port,
        frozenset(name or ()),
        every,
        token,
        rules,
        webhook,
        proxies,
        base,
        metrics.value,
        kafka_exporter,
        otlp,
    )
    if not is_loopback(host):
        may = "see all groups, and everyone with the token can change them" if token else "see all groups"
        complain(f"WARNING: everyone who reaches {host} can {may}; put the server behind a proxy with TLS")
    if rules and not webhook:
        complain("WARNING: no webhook is set: alarms are only on the page, and in the metric offsetkeeper_alarm_firing")
    if webhook and not rules:
        complain("WARNING: a webhook is set and no rule: it hears only of outages. Write [[alerts.rules]]")
    with options.open_store(chosen) as opened, options.open_cluster(chosen) as cluster:
        server.serve(opened, cluster, settings, lambda url: typer.echo(f"Serving at {url}, until interrupted"))


def _token(file: Path | None) -> str:
    if file is None:
        if not os.environ.get(_TOKEN):
            raise SettingsError(f"--allow-changes needs a token: set {_TOKEN}, or give --token-file")
        return os.environ[_TOKEN]
    return read_text(file, "--token-file", private=True)
