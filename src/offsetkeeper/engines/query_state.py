"""How far before the watermark the state of a query reaches, from Spark's text of its plan. Pure.

Spark says of a query what it will do only as text: the analyzed plan of `explain`. A state can be built again from the
records whose event time is at most this far before the watermark. Only two kinds of state are known to end there: a
count or another aggregation by windows of a fixed length, and `dropDuplicates` with the event time among its columns.
Whatever is not known to be right is refused by name.

    ~Aggregate [topic#2, window#8-T60000ms], [topic#2, window#8-T60000ms, count(1) AS count#3L]
    +- ~Project [named_struct(start, …, end, … + 60000000), LongType, TimestampType))) AS window#8-T60000ms, …]
       +- ~EventTimeWatermark <uuid>, timestamp#0: timestamp, 1 minutes
          +- ~StreamingRelationV2 …, [key#5, value#1, topic#2, …, timestamp#0, …]

The source: the plans of Spark 4.0 to 4.3. A column with a watermark has its delay after its id: `-T60000ms`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from offsetkeeper.errors import SettingsError, listed

_NODE = re.compile(r"[\s:|+-]*~?([A-Z]\w*)\b ?(.*)")
_EVENT_TIME = re.compile(r"[^\s()]+#\d+-T\d+ms")
_WATERMARK = re.compile(r"(?:[0-9a-f]{8}-[0-9a-f-]{27}, )?(.+?)#(\d+): ")
_LENGTH = re.compile(r"\) \+ (\d+)\), LongType, TimestampType\)")
_STATELESS = {"Project", "Filter", "SubqueryAlias", "Expand", "Generate"}
_STATELESS |= {"MapInPandas", "MapInArrow", "PythonMapInArrow"}
_WITH_STATE = {"Aggregate", "Deduplicate"}
_STRANGE = re.compile(
    r"\b(?:current_timestamp|current_date|current_time\(|localtimestamp|now\(|rand\(|randn\(|random\(|randstr\(|uniform\("
    r"|uuid\(|shuffle\(|monotonically_increasing_id|spark_partition_id|input_file_name|input_file_block_\w+"
    r"|reflect\(|try_reflect\(|java_method\()",
    re.IGNORECASE,  # Spark writes SPARK_PARTITION_ID()
)
LIST_LENGTH = "spark.sql.debug.maxToStringFields"
"""Spark's setting of how many columns or arguments a list in its text has; of the others it says how many they are."""
_LEFT_OUT = re.compile(r"\.\.\. \d+ more fields")
_SOURCES = {"StreamingRelation", "StreamingRelationV2", "StreamingDataSourceV2Relation"}
_ELSE = (
    "Start with a new checkpoint and offsets= to build new state from there, or with OnMismatch(state='empty') to "
    "begin with empty state"
)


@dataclass(frozen=True, slots=True)
class QueryState:
    """What is known of a query's state.

    Attributes:
        reach_s: how far before the watermark it reaches, in seconds: the length of its windows; None if Spark's text
            does not tell it.
        in_kafka: whether its event time is the timestamp of the record in Kafka.
        at_once: whether it emits a result when the first record of it comes, in each output mode.
    """

    reach_s: float | None
    in_kafka: bool
    at_once: bool = False


def query_state(explained: str) -> QueryState:
    """Return what is known of the state of a query.

    Args:
        explained: the text of Spark's `explain("extended")`.

    Raises:
        SettingsError: it is not known from where on such a state can be built again.
    """
    nodes = _plan_nodes(explained)
    keeps = [(name, rest) for name, rest in nodes if name in _WITH_STATE]
    marks = [rest for name, rest in nodes if name == "EventTimeWatermark"]
    sources = [rest for name, rest in nodes if name in _SOURCES]
    others = {name for name, _ in nodes} - _STATELESS - _WITH_STATE - _SOURCES - {"EventTimeWatermark"}
    if any("session_window#" in rest for _, rest in nodes):
        others.add("session windows")
    if others:
        raise _refused(f"it has {listed(sorted(others), ', ')}")
    if [len(keeps), len(marks), len(sources)] != [1, 1, 1]:
        raise _refused(
            "only one aggregation by windows, or one dropDuplicates, of one frame of records with one watermark can "
            f"be rebuilt; it has {len(keeps)} of the first, {len(marks)} watermarks and {len(sources)} sources"
        )
    below = [rest for _, rest in nodes[next(i for i, (name, _) in enumerate(nodes) if name in _WITH_STATE) :]]
    if strange := sorted({name.lower() for rest in below for name in _STRANGE.findall(rest)}):
        raise _refused(f"what is in its state depends on more than the records: {listed(strange, ', ')}")
    if any(_LEFT_OUT.search(rest) for rest in below):
        raise _refused(f"Spark leaves out columns in the text of its plan: set {LIST_LENGTH} to more than they are")
    if "spark_grouping_id" in keeps[0][1]:
        raise _refused("it has groups of several sizes (rollup, cube)")
    if sum(bool(_LENGTH.search(rest)) for rest in below) > 1 or any("window_time(" in rest for rest in below):
        raise _refused("it has windows of windows")
    timed = [key for key in _keys(keeps[0][1]) if _EVENT_TIME.fullmatch(key)]
    if not timed:
        raise _refused("its state has no end: there is no window and no event time among its keys")
    found = _WATERMARK.match(marks[0])
    event_time = found.groups() if found else ("", "")
    column = "#".join(event_time)
    in_kafka = event_time[0] == "timestamp" and f"timestamp#{event_time[1]}," in f"{sources[0]},"
    alone = timed[0].partition("-T")[0] == column
    if alone and not in_kafka and not any(f"isnotnull({column}" in rest for rest in below):
        raise _refused(f"a row without {event_time[0]} stays in its state for ever: filter these out")
    return QueryState(0.0 if alone else _window_s(timed[0], below), in_kafka, keeps[0][0] == "Deduplicate")


def _plan_nodes(explained: str) -> list[tuple[str, str]]:
    """Return name and content of each node of the analyzed plan."""
    plan = explained.partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0].strip("\n")
    _, *lines = plan.split("\n")  # the first one has the columns
    found = [match.groups() for match in map(_NODE.fullmatch, lines) if match]
    if not found:
        raise _refused("Spark does not show its plan")
    return [(str(name), str(rest)) for name, rest in found]


def _keys(content: str) -> list[str]:
    """Return the keys of a node with state: what stands in its first brackets, apart."""
    found, depth = [""], 0
    for char in content:
        depth += (char in "[(") - (char in "])")
        if depth == 0:
            break
        if char == "," and depth == 1:
            found.append("")
        else:
            found[-1] += char
    return [key.strip(" [") for key in found]


def _window_s(key: str, nodes: list[str]) -> float | None:
    """Return the length of the windows that are a key, in seconds; None if the nodes do not tell it."""
    made = [rest for rest in nodes if f" AS {key}" in rest or f"], [{key}" in rest]
    lengths = [int(length) for rest in made for length in _LENGTH.findall(rest)]
    return max(lengths) / 1_000_000 if lengths else None


def _refused(why: str) -> SettingsError:
    return SettingsError(f"OnMismatch(state='rebuild') cannot rebuild the state of this query: {why}. {_ELSE}")
