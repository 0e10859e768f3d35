"""The sink of the page on sinks passes the suite, as its reader would run it; broken, it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docs.pages import ROOT, blocks
from offsetkeeper.testing.conformance.landers import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = "\n\n".join(blocks(ROOT / "docs" / "write-a-sink.md"))


def suite(code: str) -> Any:
    """Return the class that the page's reader writes."""
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - what is under test
    return names["TestRecords"]


class TestThePage(suite(CODE)):  # type: ignore[misc] # its base is in the page
    """All of the suite."""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if self._mark(connection, key) != seen.mark:", "if False:"),
        ("(*key, str(mark))", '(key.group, "", str(mark))'),
    ],
)
def test_broken_it_fails(right: str, wrong: str, spark: SparkSession, tmp_path: Path) -> None:
    broken = CODE.replace(right, wrong)
    assert broken != CODE
    tested = suite(broken)()
    tested.path = tmp_path

    def writes(once: Any, batch: Any) -> None:
        once.write(tested.frame(spark, records(batch)), batch)

    def tries() -> None:
        tested.test_what_was_seen_before_another_change_is_refused(spark, tested._made())
        tested.test_outputs_of_two_names_and_groups_keep_a_mark_each(tested._made(), writes)

    with pytest.raises((pytest.fail.Exception, AssertionError)):
        tries()
