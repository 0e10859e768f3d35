"""What a failure of a batch uses up, an outage of the store or an attempt; and the limits that are given."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import DataFrame

from offsetkeeper.engines.failures import Course
from offsetkeeper.engines.settings import Pace
from offsetkeeper.errors import SettingsError, StoreUnavailable


def test_only_a_change_of_the_ledger_that_fails_is_an_outage_of_the_store() -> None:
    """An output may raise the same error, of a ledger of its own."""
    course, pace = Course(frame=cast("DataFrame", None)), Pace(retry_timeout_s=0)
    course.telling = True
    course.failed(StoreUnavailable("away"), pace)
    assert (course.outages, course.tried) == (1, False)
    course.failed(StoreUnavailable("of an output"), pace)
    assert (course.outages, course.tried) == (1, True)


@pytest.mark.parametrize("interval_s", [None, 1.0])
@pytest.mark.parametrize(("name", "wrong"), [("poll_interval_s", -1), ("attempts", 0), ("retry_timeout_s", -0.5)])
def test_each_limit_is_checked_with_and_without_an_interval(interval_s: float | None, name: str, wrong: float) -> None:
    with pytest.raises(SettingsError, match=f"^{name}={wrong}: use a"):
        Pace(interval_s=interval_s, **{name: wrong})  # type: ignore[arg-type] # a number of another kind is wrong too
