"""The newest view in OpenTelemetry's words: names, units and labels. Pure.

Names are those of the collector's receiver `kafkametrics` where they mean the same. Ours are such that what turns them
into Prometheus' words, as collectors do, gets the names of `metric_names` again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import Gauge, Metric, NumberDataPoint

from offsetkeeper.monitor.metric_names import BOUNDS, LAG, Detail
from offsetkeeper.monitor.metrics import Families, sums_of_topics
from offsetkeeper.monitor.view import View
from offsetkeeper.operate.lag import Lag

Labels = Mapping[str, str | int]


class Kind(NamedTuple):
    """Name and unit of a metric in OpenTelemetry's words."""

    name: str
    unit: str

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers; a metric always has one type."""
        return self.unit in {_OFFSETS, ""} or self.name.startswith("kafka.")


_OFFSETS, _SECONDS, _ONE = "{offset}", "s", "1"
_FIELD = {  # those of the collector's own receiver for Kafka, where they mean the same
    "kafka_consumergroup_group_offset": Kind("kafka.consumer_group.offset", _ONE),
    "kafka_consumergroup_group_lag": Kind("kafka.consumer_group.lag", _ONE),
    "kafka_consumergroup_group_topic_sum_lag": Kind("kafka.consumer_group.lag_sum", _ONE),
    "kafka_partition_latest_offset": Kind("kafka.partition.current_offset", _ONE),
    "kafka_partition_earliest_offset": Kind("kafka.partition.oldest_offset", _ONE),
    "kafka_consumergroup_group_lag_seconds": Kind("offsetkeeper.partition.lag_age", _SECONDS),
    "kafka_consumergroup_group_sum_lag": Kind("offsetkeeper.group.lag", _OFFSETS),
    "kafka_consumergroup_group_max_lag": Kind("offsetkeeper.group.max_lag", _OFFSETS),
    "kafka_consumergroup_group_max_lag_seconds": Kind("offsetkeeper.group.max_lag_age", _SECONDS),
}
_SUFFIXES = {"_per_second": f"{_OFFSETS}/s", "_seconds": _SECONDS, "_ratio": _ONE}
_OFFSET_SUM = Kind("kafka.consumer_group.offset_sum", _ONE)


def kind_of(name: str) -> Kind:
    """Return name and unit in OpenTelemetry's words; what turns them into Prometheus' words gets our name again.

    Args:
        name: in Prometheus' words.
    """
    if name in _FIELD:
        return _FIELD[name]
    dotted = ".".join(name.split("_", 2))
    for suffix, unit in _SUFFIXES.items():
        if dotted.endswith(suffix):
            return Kind(dotted.removesuffix(suffix), unit)
    return Kind(dotted, _OFFSETS if dotted.endswith("offsets") else "")


def metrics_of(view: View, detail: Detail) -> Iterator[Metric]:
    """Yield all metrics of a view; what is not known is absent.

    Args:
        view: of a poll.
        detail: whether there are points of each partition, or of groups and their topics only.
    """
    for family in Families(view).collect():
        samples = ((sample.labels, sample.value) for sample in family.samples)
        yield from _metric(view, kind_of(family.name), family.documentation, samples)
    groups = view.fresh()
    sums = sums_of_topics(groups, "position").items()
    values = [({"group": group, "topic": topic}, value) for (group, topic), value in sums]
    yield from _metric(view, _OFFSET_SUM, "Next offsets of the group in the topic, of all partitions.", values)
    if detail != "partitions":
        return
    lags = [({"group": name, **_where(lag)}, lag) for name, sample in groups.items() for lag in sample.lags or ()]
    held = {lag.topic_partition: (_where(lag), lag) for _, lag in lags}
    for table, found in ((LAG, lags), (BOUNDS, list(held.values()))):
        for attribute, name in table.items():
            pairs = ((labels, getattr(lag, attribute)) for labels, lag in found)
            yield from _metric(view, kind_of(name.name), name.help, pairs)


def _metric(view: View, kind: Kind, text: str, values: Iterable[tuple[Labels, float | None]]) -> Iterator[Metric]:
    number, at_ns = int if kind.whole else float, view.at_ms * 1_000_000
    points = [NumberDataPoint(_shown(labels), 0, at_ns, number(v)) for labels, v in values if v is not None]
    if points:
        yield Metric(kind.name, text, kind.unit, Gauge(points))


def _where(lag: Lag) -> Labels:
    return {"topic": lag.topic_partition.topic, "partition": lag.topic_partition.partition}


def _shown(labels: Labels) -> Labels:
    """Return labels that UTF-8 can write: a group may have a name of bytes that are no text."""
    return {
        name: each.encode("utf-8", "replace").decode() if isinstance(each, str) else each
        for name, each in labels.items()
    }
