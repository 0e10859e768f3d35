"""What becomes of a dropped batch is counted; OFFSETKEEPER_WRITE_PREVIEWS=1 writes the table of operating.md anew."""

from __future__ import annotations

from typing import Any

from docs.pages import ROOT, hold
from offsetkeeper.core.offsets import TopicPartition
from simulator.counted import P0, P1, died

PAGE = ROOT / "docs" / "operating.md"
TIMES = {0: "never", 1: "once", 2: "twice"}
MARKED, APART = "two marked, from the earliest", "at least once, from the earliest"
ALL, SOME, IT = {"one": True, "two": True}, {"one": True, "two": False}, {"it": True}
STAYS, BACK, AHEAD = "the reset does not name it", "the reset sets it to before the batch", "… to after the batch"
CASES: list[tuple[str, str, str, dict[str, bool], Any, tuple[TopicPartition, ...]]] = [
    (STAYS, "all keep a mark and have the batch", MARKED, ALL, "latest", (P1,)),
    ("", "all keep a mark, and some have the batch", MARKED, SOME, "latest", (P1,)),
    ("", "one without a mark has it", APART, IT, "latest", (P1,)),
    (BACK, "some have the batch, with a mark or without one", MARKED, SOME, "earliest", (P0, P1)),
    ("", "one without a mark has it", APART, IT, "earliest", (P0, P1)),
    (AHEAD, "some have the batch, with a mark or without one", MARKED, SOME, "latest", (P0, P1)),
]


def outcome(group: str, has: dict[str, bool], to: Any, partitions: tuple[TopicPartition, ...]) -> str:
    """Return how often a record of the batch is in the outputs after the reset and a run."""
    with died(group, 2, **has) as found:
        had = {name: found.rows(name)[0, 1] for name in found.world.scenario.every_output}
        found.reset(to, *partitions)
        found.run()
        there, lacking = (
            {TIMES[found.rows(name)[0, 1]] for name in had if bool(had[name]) == b} for b in (True, False)
        )
    [word] = there
    return word if not lacking else f"{word} in those that have it, {lacking.pop()} in the others"


def test_what_becomes_of_a_dropped_batch_is_counted() -> None:
    lines = ["| the partition | the outputs | its records of that batch |", "|---|---|---|"]
    lines += [
        f"| {where} | {outputs} | {outcome(group, has, to, moved)} |" for where, outputs, group, has, to, moved in CASES
    ]
    hold(PAGE, "outcomes of a dropped batch", "\n".join(lines), "OFFSETKEEPER_WRITE_PREVIEWS")
