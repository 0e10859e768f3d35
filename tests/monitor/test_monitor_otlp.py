"""The metrics by OpenTelemetry's protocol: a real exporter sends them, and a real receiver parses them."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace

import pytest

from monitor.gallery import NOW, group, view
from monitor.receiver import Got, Receiver
from monitor.scene import LIMIT_S, TOKEN, Scene, Served
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.monitor import server
from offsetkeeper.monitor.otlp import Otlp
from offsetkeeper.monitor.otlp_points import kind_of
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.monitor.view import View
from offsetkeeper.testing.server import wait_until

FIELD = {  # of the collector's own receiver for Kafka: name, unit, labels
    "kafka.consumer_group.lag": ("1", {"group", "topic", "partition"}),
    "kafka.consumer_group.lag_sum": ("1", {"group", "topic"}),
    "kafka.consumer_group.offset": ("1", {"group", "topic", "partition"}),
    "kafka.consumer_group.offset_sum": ("1", {"group", "topic"}),
    "kafka.partition.current_offset": ("1", {"topic", "partition"}),
    "kafka.partition.oldest_offset": ("1", {"topic", "partition"}),
}
SECRET = "s3cret-of-the-collector"
ATTRIBUTES = "team=shop,process.command_args=p4ssw0rd"  # as older releases of the SDK say by themselves


def received(receiver: Receiver, group: str = "shop") -> Got:
    """The first request that has a group."""

    def found() -> list[Got]:
        return [got for got in receiver.got if got.value("offsetkeeper.group.lag", group=group) is not None]

    wait_until(lambda: bool(found()), "the group was sent", LIMIT_S)
    return found()[0]


def variables(receiver: Receiver, **more: str) -> dict[str, str]:
    """Of the environment: where to send, and often."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "300", **more}


def sender(monkeypatch: pytest.MonkeyPatch, shown: View, endpoint: str, **more: str) -> Otlp:
    """What sends a view, when a test says so."""
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1", **more}.items():
        monkeypatch.setenv(name, value)
    return Otlp(lambda: shown, "partitions")


@pytest.mark.parametrize("detail", ["partitions", "groups"])
def test_a_collector_gets_lag_by_the_names_of_the_field_and_ours_beside_them(shop: Scene, detail: str) -> None:
    topic = next(iter(shop.ids))
    with (
        Receiver() as receiver,
        Served(
            shop.store, shop.server.bootstrap, "--otlp", "--metrics", detail, variables=variables(receiver)
        ) as served,
    ):
        got = received(receiver)
        told = served.metrics()
    assert got.path == "/v1/metrics"
    assert got.value("kafka.consumer_group.lag_sum", group="shop", topic=topic) == 6
    assert got.value("kafka.consumer_group.offset_sum", group="shop", topic=topic) == 14
    assert got.value("offsetkeeper.group.lag", group="shop") == 6
    assert got.value("offsetkeeper.group.status", group="shop", status="stopped") == 1
    assert got.value("offsetkeeper.up", part="kafka") == 1
    each = {"group": "shop", "topic": topic, "partition": 0}
    wanted = (6, 4, 10, 0) if detail == "partitions" else (None,) * 4
    assert got.value("kafka.consumer_group.lag", **each) == wanted[0]
    assert got.value("kafka.consumer_group.offset", **each) == wanted[1]
    assert got.value("kafka.partition.current_offset", topic=topic, partition=0) == wanted[2]
    assert got.value("kafka.partition.oldest_offset", topic=topic, partition=0) == wanted[3]
    names = {name.partition("{")[0] for name in told}
    here = {name for name in names if not name.startswith(("kafka_", "python_")) and not name.endswith("_per_second")}
    ours = {name for name in map(prometheus, got.units.items()) if not name.startswith("kafka_")}
    assert {name for name in ours if not name.endswith("_per_second")} == here  # a speed needs a second look
    for name, (unit, labels) in FIELD.items():
        if name in got.units:
            assert (got.units[name], {*got.points[name][0].labels}) == (unit, labels)
            assert all(isinstance(point.value, int) for point in got.points[name])
    assert set(FIELD) - set(got.units) == (set() if detail == "partitions" else {n for n in FIELD if "_sum" not in n})


def prometheus(metric: tuple[str, str]) -> str:
    """The name that a collector gives a gauge for Prometheus: dots become lines, and the unit its ending."""
    name, unit = metric
    ending = {"s": "_seconds", "1": "_ratio", "{offset}/s": "_per_second"}.get(unit, "")
    found = f"{name.replace('.', '_')}{ending}"
    return {
        "offsetkeeper_partition_lag_age_seconds": "kafka_consumergroup_group_lag_seconds",
        "offsetkeeper_group_lag": "kafka_consumergroup_group_sum_lag",
        "offsetkeeper_group_max_lag": "kafka_consumergroup_group_max_lag",
        "offsetkeeper_group_max_lag_age_seconds": "kafka_consumergroup_group_max_lag_seconds",
    }.get(found, found)


def test_who_sends_is_named_and_no_secret_is_in_a_label(scene: Scene) -> None:
    """Not even where the resource would have the command line, in which somebody has written a password."""
    scene.group("shop", scene.topic(1, 3), [1])
    with Receiver() as receiver:
        said = variables(receiver, OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer {SECRET}")
        said |= {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process,otel", "OTEL_RESOURCE_ATTRIBUTES": ATTRIBUTES}
        more = ("--otlp", "--kafka", "client.id=p4ssw0rd-in-an-argument")
        with Served(scene.store, scene.server.bootstrap, *more, token=TOKEN, variables=said) as served:
            got = received(receiver)
    assert got.headers["authorization"] == f"Bearer {SECRET}"
    assert (got.resource["service.name"], got.resource["team"]) == ("offsetkeeper", "shop")
    for secret in (SECRET, TOKEN, "p4ssw0rd"):
        assert secret.encode() not in got.body
        assert secret not in served.output


def test_a_name_of_ones_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as receiver:
        sender(monkeypatch, view(group("shop", [3])), receiver.endpoint, OTEL_SERVICE_NAME="lag-of-shop").send()
    assert receiver.got[0].resource["service.name"] == "lag-of-shop"


def test_what_is_not_known_is_absent_and_each_view_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that cannot be read has no points but that; a point has the time of its poll."""
    late = replace(group("late", [3]), at_ms=NOW - 5_000, error="no control record")
    unknown = group("unknown", [3], bounds={0: Bounds(0, 10, "id")})  # beyond the end
    shown = view(group("shop", [3]), late, unknown)
    with Receiver() as receiver:
        otlp = sender(monkeypatch, shown, receiver.endpoint)
        otlp.send()
        otlp.send()
        [got] = receiver.got
    assert {point.at_ms for points in got.points.values() for point in points} == {NOW}
    assert got.value("offsetkeeper.group.lag", group="shop") == 3
    assert got.value("offsetkeeper.group.readable", group="late") == 0
    assert got.value("kafka.consumer_group.lag", group="unknown", topic="orders", partition=0) is None
    assert got.value("kafka.consumer_group.offset", group="unknown", topic="orders", partition=0) == 1_000_000
    of_late = {n for n, points in got.points.items() if any(p.labels.get("group") == "late" for p in points)}
    assert of_late == {"offsetkeeper.group.readable"}
    assert all(got.points.values())


def test_a_poll_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are old: neither store nor Kafka counts as up."""
    shown = [view(group("shop", [3]))]
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        otlp = Otlp(lambda: shown[-1], "groups")
        otlp.send()
        shown.append(shown[0].overdue("it hangs", NOW + 300_000))
        otlp.send()
        assert [got.value("offsetkeeper.up", part="kafka") for got in receiver.got] == [1, 0]


def test_a_header_that_is_none_is_not_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"Bearer {SECRET}")
    logging.getLogger("opentelemetry").setLevel(logging.NOTSET)
    Otlp(view, "groups")
    assert SECRET not in caplog.text


def test_nothing_is_sent_before_the_first_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as receiver:
        sender(monkeypatch, view(number=0), receiver.endpoint).send()
    assert receiver.got == []


def test_more_points_than_an_instrument_of_the_sdk_keeps_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as receiver:
        wide, patient = view(group("wide", [1] * 5000, 100)), {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}  # a busy machine
        sender(monkeypatch, wide, receiver.endpoint, **patient).send()
    lags = [point for got in receiver.got for point in got.points.get("kafka.consumer_group.lag", ())]
    assert len(lags) == len({point.labels["partition"] for point in lags}) == 5000


def test_a_collector_that_refuses_is_told_once_without_secrets_and_gets_the_next_view(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Receiver(401) as receiver:
        endpoint = receiver.endpoint.replace("//", f"//user:{SECRET}@")
        otlp = sender(monkeypatch, view(group("shop", [3])), endpoint, OTEL_EXPORTER_OTLP_HEADERS=f"x-key={SECRET}")
        otlp.send()
        otlp.send()
        receiver.code = 200
        otlp.send()
        assert len(receiver.got) == 3
    where = receiver.endpoint
    assert [each.getMessage() for each in caplog.records if each.name == "offsetkeeper.monitor.otlp"] == [
        f"metrics are not taken at {where}: it answered 401",
        f"metrics are taken at {where} again",
    ]
    assert SECRET not in caplog.text
    assert SECRET not in repr(otlp)


def test_a_collector_that_is_away_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as gone:
        endpoint = gone.endpoint
    otlp = sender(monkeypatch, view(group("shop", [3])), endpoint)
    otlp.send()
    assert f"metrics are not taken at {endpoint}: there is no answer" in caplog.text
    with Receiver(port=gone.port) as back:
        otlp.send()
        assert back.got


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "nan"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        Otlp(view, "partitions")


def test_without_the_libraries_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith(("opentelemetry.", "offsetkeeper.monitor.otlp"))]:
        monkeypatch.delitem(sys.modules, name)
    poller: Poller = Poller.__new__(Poller)
    with (
        pytest.raises(MissingExtra, match=re.escape("pip install 'offsetkeeper[serve,otlp]'")),
        server._sending(poller, server.Serving(otlp=True)),
    ):
        pass


def test_our_names_come_back_in_the_words_of_prometheus() -> None:
    for name in ("offsetkeeper_up", "offsetkeeper_group_retention_used_ratio", "offsetkeeper_look_duration_seconds"):
        assert prometheus(kind_of(name)) == name
    assert kind_of("offsetkeeper_group_read_offsets_per_second") == ("offsetkeeper.group.read_offsets", "{offset}/s")
