"""What Spark's text of a plan tells of a query's state: only what is known to be right is let through."""

from __future__ import annotations

import pytest

from offsetkeeper.engines.query_state import QueryState, query_state
from offsetkeeper.errors import SettingsError

SOURCE = "StreamingRelationV2 org.Provider@1, kafka, [a=b], [key#1, value#2, topic#3, timestamp#6, timestampType#7]"
MARK = "EventTimeWatermark 444890e7-5f3a-4917-86b5-b7c5f22fda7a, timestamp#6: timestamp, 1 minutes"
STRUCT = "precisetimestampconversion(((timestamp#6-T60000ms - 0) + {}), LongType, TimestampType)"
WINDOW = (
    f"Project [named_struct(start, x, end, knownnullable({STRUCT.format(90000000)}))) AS window#8-T60000ms, value#2]"
)
SLIDING = (
    f"Expand [[named_struct(end, {STRUCT.format(90000000)}), value#2], [named_struct(end, "
    f"{STRUCT.format(70000000)}), value#2]], [window#8-T60000ms, value#2]"
)
BY_WINDOW = "Aggregate [value#2, window#8-T60000ms], [count(1) AS count#9L]"


def explained(*nodes: str, mark: str = "~") -> str:
    """Return the text of Spark for nodes of a plan, the outermost first."""
    lines = [f"{'   ' * depth}{'+- ' if depth else ''}{mark}{node}" for depth, node in enumerate(nodes)]
    plan = "\n".join(lines)
    parts = {"Parsed": "Any\n", "Analyzed": f"Join: x\n{plan}\n", "Optimized": "Join"}
    return "\n".join(f"== {name} Logical Plan ==\n{part}" for name, part in parts.items())


@pytest.mark.parametrize("mark", ["~", ""])
def test_windows_and_event_times_end(mark: str) -> None:
    known = explained("Project [count#9L]", BY_WINDOW, WINDOW, "Filter isnotnull(timestamp#6)", MARK, SOURCE, mark=mark)
    assert query_state(known) == QueryState(90.0, in_kafka=True)
    assert query_state(explained(BY_WINDOW, SLIDING, MARK, SOURCE, mark=mark)) == QueryState(90.0, in_kafka=True)
    once = explained("Deduplicate [value#2, timestamp#6-T60000ms]", MARK, SOURCE, mark=mark)
    assert query_state(once) == QueryState(0.0, in_kafka=True, at_once=True)


def test_an_event_time_of_its_own_is_not_that_of_kafka() -> None:
    own = "EventTimeWatermark at#11: timestamp, 1 minutes"
    assert not query_state(explained(BY_WINDOW, WINDOW, own, "Project [value#2]", SOURCE)).in_kafka
    renamed = "EventTimeWatermark timestamp#66: timestamp, 1 minutes"
    assert not query_state(explained(BY_WINDOW, WINDOW, renamed, "Project [value#2]", SOURCE)).in_kafka


def test_the_clock_may_be_asked_after_the_state_and_a_time_that_is_never_null_may_be_a_key() -> None:
    stamped = explained("Project [current_timestamp() AS at#1]", BY_WINDOW, WINDOW, MARK, SOURCE)
    assert query_state(stamped) == QueryState(90.0, in_kafka=True)
    wide = explained("Project [count#9L, ... 6 more fields]", BY_WINDOW, WINDOW, MARK, SOURCE)
    assert query_state(wide) == QueryState(90.0, in_kafka=True)
    own = ("EventTimeWatermark at#9: timestamp, 1 m", "Filter isnotnull(at#9)", SOURCE)
    assert query_state(explained("Deduplicate [value#2, at#9-T60000ms]", *own)) == QueryState(
        0.0, in_kafka=False, at_once=True
    )


def test_a_length_that_is_not_told_is_not_guessed() -> None:
    assert query_state(explained(BY_WINDOW, "Project [f(x) AS window#8-T60000ms]", MARK, SOURCE)).reach_s is None


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ((BY_WINDOW, "Union", MARK, SOURCE), "it has Union"),
        (("TransformWithStateInPySpark [x]", MARK, SOURCE), "it has TransformWithStateInPySpark"),
        (("Aggregate [session_window#8-T6ms], [x]", MARK, SOURCE), "session windows"),
        ((BY_WINDOW, BY_WINDOW, WINDOW, MARK, SOURCE), "it has 2 of the first"),
        ((BY_WINDOW, WINDOW, MARK, MARK, SOURCE), "2 watermarks"),
        ((BY_WINDOW, WINDOW, MARK, SOURCE, SOURCE), "2 sources"),
        (("Filter x", MARK, SOURCE), "it has 0 of the first"),
        (("Aggregate [date_trunc(hour, timestamp#6-T60000ms, Some(UTC))], [x]", MARK, SOURCE), "its state has no end"),
        (("Aggregate [value#2], [max(timestamp#6-T60000ms), window#8-T60000ms]", MARK, SOURCE), "its state has no end"),
        (("Deduplicate [value#2]", MARK, SOURCE), "its state has no end"),
        (
            (BY_WINDOW, WINDOW, "Filter (timestamp#6 > (current_timestamp() - 1))", MARK, SOURCE),
            "more than the records",
        ),
        ((BY_WINDOW, WINDOW, MARK, "Project [rand(7) AS value#2]", SOURCE), "more than the records"),
        ((BY_WINDOW, WINDOW, WINDOW.replace("#8", "#9"), MARK, SOURCE), "windows of windows"),
        ((BY_WINDOW, WINDOW, "Project [window_time(m#9)]", MARK, SOURCE), "windows of windows"),
        (("Aggregate [spark_grouping_id#9L, window#8-T60000ms], [x]", WINDOW, MARK, SOURCE), "groups of several sizes"),
        (
            ("Deduplicate [value#2, at#9-T60000ms]", "EventTimeWatermark at#9: timestamp, 1 m", SOURCE),
            "without at stays",
        ),
        ((BY_WINDOW, WINDOW, MARK, "Project [value#2, ... 6 more fields]", SOURCE), "maxToStringFields"),
        ((), "does not show its plan"),
    ],
)
def test_what_may_reach_further_is_refused_by_name(nodes: tuple[str, ...], why: str) -> None:
    with pytest.raises(SettingsError, match=f"cannot rebuild the state of this query: .*{why}"):
        query_state(explained(*nodes))
