"""What must hold of the marks of one output, whoever writes it: no batch lands twice, and no void one lands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.operate.traces.judge import Judge
from offsetkeeper.operate.traces.lines import Line


class _Landed(NamedTuple):
    line: Line
    mark: OutputMark
    before: OutputMark | None
    asked: Line  # the look that the landing builds on


def check_landings(lines: Sequence[Line], judge: Judge) -> None:
    """Check the landings of all runs in each output. The lines are ordered by their time."""
    outputs: dict[tuple[Any, ...], list[_Landed]] = {}
    looks: dict[tuple[Any, ...], Line] = {}
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for line in lines:
        if line.event == "outputs":
            known[line.stream] = {**known.get(line.stream, {}), **line.about["outputs"]}
        elif line.event == "look":
            looks[line.stream, line.output] = line
        elif line.event == "landed" and line.about["outcome"] == "done":
            about = known.get(line.stream, {}).get(line.output, {})
            place = (
                line.place.group,
                about.get("target"),
                about.get("place"),
                _table(line.about["target"]),
                line.output,
            )
            mark, asked = line.mark(), looks.get((line.stream, line.output), line)
            if mark is not None:
                outputs.setdefault(place, []).append(_Landed(line, mark, line.mark("before"), asked))
    for place, landed in outputs.items():
        _check_output(place[-1], landed, judge)


def _table(target: Any) -> str:
    """Return the part of a target's identity that stays: not the version or the snapshot that each landing makes."""
    first, _, _ = str(target or "").partition(" ")
    return "" if first.isdecimal() else first


def _check_output(name: str, landed: Sequence[_Landed], judge: Judge) -> None:
    followed: dict[OutputMark | None, _Landed] = {}
    rows: dict[tuple[int, str], _Landed] = {}
    for each in landed:
        other = followed.get(each.before)
        if other is not None and not _is_later(each, other):
            what = f"two landings in {name!r} build on the mark {each.before}"
            judge.holds("mark", what, other.line, each.line, ok=False)
        elif other is not None:
            judge.note(f"output {name!r} went back: it was restored, or made again", other.line, each.line)
            rows.clear()
        judge.holds("mark", "", ok=True)
        followed[each.before] = each
        if not each.line.about["rows"]:
            continue
        batch = each.mark.sequence, each.mark.token
        twice = rows.get(batch)
        partly = each.before is not None and each.before.partly
        lines = (twice.line, each.line) if twice else (each.line,)
        judge.holds("once", f"batch {batch[0]} lands twice in {name!r}", *lines, ok=twice is None or partly)
        rows[batch] = each


def _is_later(each: _Landed, other: _Landed) -> bool:
    """Whether a landing builds on a look at the output after the other landing was done, which did not show that."""
    return each.asked.moment[0] >= other.line.moment[0] and each.asked.mark() == each.before
