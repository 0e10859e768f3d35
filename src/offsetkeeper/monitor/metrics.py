"""The newest view in Prometheus' words.

What is not known is absent: never NaN, never -1, never the number of an older poll.

The families are prometheus_client's. Its writer takes a second for the lines of 10,000 partitions, so those are written
here, after labels that are made once for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from offsetkeeper.monitor.metric_names import (
    BOUNDS,
    KAFKA_EXPORTER,
    KAFKA_EXPORTER_SUMS,
    KAFKA_EXPORTER_TOPICS,
    LAG,
    READABLE,
    TOPIC_SUM,
    Detail,
    Name,
)
from offsetkeeper.monitor.view import GroupSample, View
from offsetkeeper.operate.audit import Kind
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.status import Status

CONTENT_TYPE = CONTENT_TYPE_LATEST
Sample = tuple[Sequence[str], float | None]


def _most(sample: GroupSample) -> int | None:
    return max((lag.records for lag in sample.lags or () if lag.records is not None), default=None)


def _held(sample: GroupSample) -> float:
    return float(sample.snapshot.owner is not None)


def _committed(sample: GroupSample) -> float | None:
    return None if sample.committed_ms is None else sample.committed_ms / 1000


def _pending(sample: GroupSample) -> int:
    return 0 if sample.snapshot.pending is None else sample.snapshot.pending.size


def _total(attribute: str) -> Callable[[GroupSample], float | None]:
    """Return a function that reads an attribute of the group's total lag; None while that is unknown."""
    read = attrgetter(attribute)
    return lambda sample: None if sample.total is None else read(sample.total)


_GROUP: tuple[tuple[str, str, Callable[[GroupSample], float | None]], ...] = (
    ("kafka_consumergroup_group_sum_lag", "Offsets unread.", attrgetter("waiting")),
    ("kafka_consumergroup_group_max_lag", "Unread records of the partition that has most.", _most),
    ("kafka_consumergroup_group_max_lag_seconds", "Age of the oldest unread record.", _total("seconds")),
    ("offsetkeeper_group_undated_partitions", "Partitions with records whose age is unknown.", _total("undated")),
    ("offsetkeeper_group_held", "1 if a run holds the group.", _held),
    (
        "offsetkeeper_group_version",
        "Version of the ledger: the number of its changes.",
        attrgetter("snapshot.version"),
    ),
    ("offsetkeeper_group_pending_offsets", "Offsets in the pending batch.", _pending),
    ("offsetkeeper_group_commit_timestamp_seconds", "Time of the newest commit.", _committed),
    ("offsetkeeper_group_lost_offsets", "Offsets that retention deleted unread.", _total("lost")),
    (
        "offsetkeeper_group_without_commit_offsets",
        "Offsets in partitions that no run has begun to read.",
        _total("without_commit"),
    ),
    ("offsetkeeper_group_held_back_offsets", "Offsets behind open transactions.", _total("held_back")),
    (
        "offsetkeeper_group_held_back_seconds",
        "Age of the first record behind an open transaction.",
        _total("held_back_s"),
    ),
    (
        "offsetkeeper_group_retention_used_ratio",
        "Used share of retention: the largest of all partitions.",
        _total("retention_used"),
    ),
    (
        "offsetkeeper_group_retention_left_seconds",
        "Time until retention deletes an unread record: the least.",
        _total("seconds_left"),
    ),
    ("offsetkeeper_group_read_offsets_per_second", "Offsets committed per second.", _total("speed.processed")),
    (
        "offsetkeeper_group_written_offsets_per_second",
        "Offsets written to Kafka per second.",
        _total("speed.produced"),
    ),
    (
        "offsetkeeper_group_catch_up_seconds",
        "Time until the group has caught up, at these speeds.",
        attrgetter("catch_up_s"),
    ),
)


def exposition(view: View, detail: Detail = "partitions", *, kafka_exporter: bool = False) -> bytes:
    """Return the view as Prometheus scrapes it.

    Args:
        view: of a poll.
        detail: whether there are lines for each partition, or for groups and their topics only.
        kafka_exporter: whether there are also the names of kafka_exporter.
    """
    registry = CollectorRegistry()
    registry.register(Families(view))
    if kafka_exporter:
        registry.register(_KafkaExporter(view))
    groups = view.fresh() if detail == "partitions" else {}
    lines = [*_of_partitions(groups, LAG, BOUNDS)]
    if kafka_exporter:
        lines += _of_partitions(groups, *KAFKA_EXPORTER)
    return generate_latest(registry) + "".join(lines).encode("utf-8", "replace")


class Families(Collector):
    """All metrics but those of each partition."""

    def __init__(self, view: View) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are made at each poll."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        yield from _of_the_poll(self._view)
        reasons = {name: each.measured(self._view.at_ms).unreadable for name, each in self._view.groups.items()}
        readable = [([name], float(not reason)) for name, reason in reasons.items() if reason is not None]
        yield _family(READABLE, readable if self._view.store.up else ())
        groups = self._view.fresh()
        yield _family(TOPIC_SUM, sums_of_topics(groups, "records").items())
        yield from _of_groups(groups)


class _KafkaExporter(Collector):
    """Sums and counts by the names of kafka_exporter."""

    def __init__(self, view: View) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as `Families` does."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        groups = self._view.fresh()
        for attribute, name in KAFKA_EXPORTER_SUMS.items():
            yield _family(name, sums_of_topics(groups, attribute).items())
        partitions = {tp for sample in groups.values() for tp in sample.bounds}
        yield _family(
            KAFKA_EXPORTER_TOPICS, (([topic], count) for topic, count in Counter(tp.topic for tp in partitions).items())
        )


def _of_the_poll(view: View) -> Iterator[Metric]:
    up = [(["store"], float(view.store.up)), (["kafka"], float(view.kafka.up))]
    yield _family(
        Name(
            "offsetkeeper_up", ("part",), "1 if the store, or Kafka, answered the newest poll, and it is not too old."
        ),
        up,
    )
    polled = view.looked_ms / 1000 if view.number else None
    yield _family(Name("offsetkeeper_look_timestamp_seconds", (), "Start of the newest poll."), [((), polled)])
    yield _family(Name("offsetkeeper_look_duration_seconds", (), "Duration of the newest poll."), [((), view.took_s)])
    firing = [([alarm.key.rule, alarm.key.group], 1.0) for alarm in view.alarms]
    yield _family(Name("offsetkeeper_alarm_firing", ("rule", "group"), "1 for each alarm that is firing."), firing)


def _of_partitions(
    groups: Mapping[str, GroupSample], of_group: Mapping[str, Name], of_kafka: Mapping[str, Name]
) -> Iterator[str]:
    label = next(iter(of_group.values())).labels[0]
    lags = [(f'{{{label}="{_escaped(g)}",{_where(lag)}}} ', lag) for g, x in groups.items() for lag in x.lags or ()]
    for attribute, name in of_group.items():
        yield from _lines(name, ((labels, getattr(lag, attribute)) for labels, lag in lags))
    held = {lag.topic_partition: lag for _, lag in lags}
    for attribute, name in of_kafka.items():
        yield from _lines(name, ((f"{{{_where(lag)}}} ", getattr(lag, attribute)) for lag in held.values()))


def _lines(name: Name, values: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    yield f"# HELP {name.name} {name.help}\n# TYPE {name.name} gauge\n"
    for labels, value in values:
        if value is not None:
            yield f"{name.name}{labels}{float(value)}\n"


def _where(lag: Lag) -> str:
    return f'partition="{lag.topic_partition.partition}",topic="{_escaped(lag.topic_partition.topic)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def sums_of_topics(groups: Mapping[str, GroupSample], attribute: str) -> dict[tuple[str, str], int]:
    """Return the sums of an attribute of `Lag`, by group and topic; there is none of a topic without a known value."""
    sums: dict[tuple[str, str], int] = {}
    for group, sample in groups.items():
        for lag in sample.lags or ():
            if (value := getattr(lag, attribute)) is not None:
                key = (group, lag.topic_partition.topic)
                sums[key] = sums.get(key, 0) + value
    return sums


def _of_groups(groups: Mapping[str, GroupSample]) -> Iterator[Metric]:
    seen = groups.items()
    for name, text, read in _GROUP:
        yield _family(Name(name, ("group",), text), [([group], read(sample)) for group, sample in seen])
    states = [([g, s], float(x.status is s)) for g, x in seen if x.status is not None for s in Status]
    yield _family(
        Name(
            "offsetkeeper_group_status",
            ("group", "status"),
            "1 for the current status of the group, 0 for the others.",
        ),
        states,
    )
    found = [([g, kind, told], float(n)) for g, x in seen for (kind, told), n in _findings(x).items()]
    yield _family(
        Name(
            "offsetkeeper_group_findings",
            ("group", "kind", "explained"),
            "Findings in the history, such as gaps and overlaps.",
        ),
        found,
    )


def _family(name: Name, samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name.name, name.help, labels=name.labels)
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _findings(sample: GroupSample) -> dict[tuple[str, str], int]:
    counts = {(kind.value, told): 0 for kind in Kind for told in ("true", "false")}
    for finding in sample.findings:
        counts[finding.kind.value, str(finding.explained).lower()] += 1
    return counts
