"""What holds for every store, call by call: it answers as its model does, from which the simulator draws its proofs."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import ClassVar

from offsetkeeper.testing.calls import STORES, Pair, run_calls
from offsetkeeper.testing.conformance.histories import HistoryConformance
from offsetkeeper.testing.conformance.medium import THOROUGH, Medium, with_setting
from offsetkeeper.testing.model_store import ModelLedgerStore

_KEPT = 5


class AnswerConformance(Medium):
    """For every store that can be written and fences.

    Attributes:
        examples: runs of the state machines that hypothesis tries; fewer where a step is slow.
    """

    examples: ClassVar[int] = 10

    def test_random_calls_get_the_answers_of_a_simple_model(self, url: str) -> None:
        """See `calls`: right, stale and foreign changes, by two writers, of several groups, and all that is read."""
        own = with_setting(url, f"history={_KEPT}") if isinstance(self, HistoryConformance) else url
        with ExitStack() as opened:
            stores = [opened.enter_context(closing(self.opener()(own))) for _ in range(STORES)]
            pair = Pair(stores, ModelLedgerStore(kept=_KEPT), _KEPT, self.rows_are_positions)
            run_calls(pair, self.examples * THOROUGH, shrink=THOROUGH > 1)
