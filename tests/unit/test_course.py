"""What a failure of a batch uses up: an outage of the store, or an attempt."""

from __future__ import annotations

from typing import cast

from pyspark.sql import DataFrame

from offsetkeeper.engines.failures import Course
from offsetkeeper.engines.settings import Pace
from offsetkeeper.errors import StoreUnavailable


def test_only_a_change_of_the_ledger_that_fails_is_an_outage_of_the_store() -> None:
    """An output may raise the same error, of a ledger of its own."""
    course, pace = Course(frame=cast("DataFrame", None)), Pace(retry_timeout_s=0)
    course.telling = True
    course.failed(StoreUnavailable("away"), pace)
    assert (course.outages, course.tried) == (1, False)
    course.failed(StoreUnavailable("of an output"), pace)
    assert (course.outages, course.tried) == (1, True)
