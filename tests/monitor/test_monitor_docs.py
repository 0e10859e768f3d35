"""What the docs query is what is exported, and what is exported is in the docs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from monitor.scene import LIMIT_S, Served
from offsetkeeper.monitor import otlp_points
from offsetkeeper.monitor.alerts import read_rules
from offsetkeeper.monitor.metric_names import KAFKA_EXPORTER, KAFKA_EXPORTER_SUMS, KAFKA_EXPORTER_TOPICS
from offsetkeeper.testing.server import wait_until

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\b(?:kafka|offsetkeeper)_[a-z_]+")
LABELS = re.compile(r"((?:kafka|offsetkeeper)_[a-z_]+)\{([^}]*)\}")


def queries() -> dict[str, str]:
    """All queries of dashboard and rules, by where they stand."""
    dashboard = json.loads((DOCS / "grafana" / "dashboard.json").read_text("utf-8"))
    found = {f"panel {p['title']}, {t['refId']}": t["expr"] for p in dashboard["panels"] for t in p["targets"]}
    found |= {f"variable {each['name']}": each.get("definition", "") for each in dashboard["templating"]["list"]}
    rules = (DOCS / "prometheus-alerts.yml").read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)\n +expr: (.+)\n", rules)
    assert len(alerts) == rules.count("- alert:")
    return found | {f"alert {name}": expr for name, expr in alerts}


@pytest.fixture(scope="module")
def exported(served: Served) -> dict[str, set[str]]:
    """The labels of each metric there is."""
    wait_until(lambda: "read_offsets_per_second{" in served.text("/metrics"), "speed was measured", LIMIT_S)
    text = served.text("/metrics")
    found: dict[str, set[str]] = {name: set() for name in re.findall(r"# TYPE (\S+)", text)}
    for name, labels in LABELS.findall(text):
        found[name] |= set(re.findall(r"(\w+)=", labels))
    return found


def test_every_query_asks_for_what_is_exported(exported: dict[str, set[str]]) -> None:
    found = queries()
    assert len(found) > 15
    asked = {where: NAME.findall(expr) for where, expr in found.items() if where != "variable source"}
    assert [where for where, names in asked.items() if not names] == []
    assert {where: set(names) - exported.keys() for where, names in asked.items() if set(names) - exported.keys()} == {}


def test_every_query_uses_labels_that_are_exported(exported: dict[str, set[str]]) -> None:
    for where, expr in queries().items():
        for name, labels in LABELS.findall(expr):
            assert set(re.findall(r"(\w+)=", labels)) <= exported[name], where


def test_statuses_in_queries_are_statuses(served: Served) -> None:
    known = set(re.findall(r'status="([^"]+)"', served.text("/metrics")))
    words = [re.findall(r'status=~?"([^"]+)"', expr) for expr in queries().values()]
    asked = {word for each in words for pattern in each for word in pattern.split("|")}
    assert asked
    assert asked <= known


def test_the_page_on_serve_names_every_metric(exported: dict[str, set[str]]) -> None:
    rows = [line for line in (DOCS / "serve.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in NAME.findall(row.split("|")[1])} == set(exported)


def test_the_page_on_serve_has_each_name_that_other_tools_have_for_a_metric() -> None:
    table = (DOCS / "serve.md").read_text("utf-8").partition("| here | kafka_exporter | OTLP |")[2].partition("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert {row[1] for row in rows} - {"-"} == {
        name.name for name in (*KAFKA_EXPORTER[0].values(), *KAFKA_EXPORTER[1].values(), *KAFKA_EXPORTER_SUMS.values())
    } | {KAFKA_EXPORTER_TOPICS.name}
    assert {here: other for here, _, other in rows if here != "-"} == {
        name: kind.name for name, kind in otlp_points._FIELD.items()
    }


def test_the_rules_of_the_page_are_rules() -> None:
    [block] = re.findall(r"```toml\n(.*?)```", (DOCS / "serve.md").read_text("utf-8"), re.DOTALL)
    settings: dict[str, Any] = tomllib.loads(block)
    assert [rule.name for rule in read_rules(settings["alerts"]["rules"], "docs")] == [
        "far behind",
        "data at risk",
        "losing data",
        "down",
        "cannot be read",
    ]
