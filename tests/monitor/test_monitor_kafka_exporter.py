"""The names of kafka_exporter, on request: dashboards that ask for them go on working."""

from __future__ import annotations

import pytest

from monitor.gallery import group, view
from monitor.scene import Scene, Served
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.monitor.metrics import exposition

THEIRS = ("kafka_consumergroup_lag", "kafka_consumergroup_current_offset", "kafka_topic_partition")


@pytest.mark.parametrize("detail", ["partitions", "groups"])
def test_lag_has_the_names_and_labels_of_kafka_exporter_too(shop: Scene, detail: str) -> None:
    topic = next(iter(shop.ids))
    with Served(shop.store, shop.server.bootstrap, "--kafka-exporter", "--metrics", detail) as served:
        found = served.metrics()
    of = f'consumergroup="shop",partition="0",topic="{topic}"'
    wanted = {f"kafka_consumergroup_lag{{{of}}}": 6.0, f"kafka_consumergroup_current_offset{{{of}}}": 4.0}
    wanted |= {
        f'kafka_topic_partition_{name}_offset{{partition="0",topic="{topic}"}}': value
        for name, value in (("current", 10.0), ("oldest", 0.0))
    }
    assert {name: found.get(name) for name in wanted} == (wanted if detail == "partitions" else dict.fromkeys(wanted))
    sums = f'{{consumergroup="shop",topic="{topic}"}}'
    assert found[f"kafka_consumergroup_lag_sum{sums}"] == 6
    assert found[f"kafka_consumergroup_current_offset_sum{sums}"] == 14
    assert found[f'kafka_topic_partitions{{topic="{topic}"}}'] == 2
    assert found['kafka_consumergroup_group_sum_lag{group="shop"}'] == 6  # ours stay


def test_without_the_request_no_name_is_there_twice() -> None:
    text = exposition(view(group("shop", [3]))).decode()
    assert not [name for name in THEIRS if f"\n{name}" in text]


def test_what_kafka_exporter_gives_as_minus_one_is_absent() -> None:
    sample = group("shop", [3, 0], bounds={1: Bounds(0, 10, "id")})  # beyond the end: how much is unread is not known
    text = exposition(view(sample), kafka_exporter=True).decode()
    assert 'kafka_consumergroup_lag{consumergroup="shop",partition="0",topic="orders"} 3.0' in text
    assert 'kafka_consumergroup_lag{consumergroup="shop",partition="1"' not in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="shop",topic="orders"} 3.0' in text
