"""What the words mean that people see, and what to do at night. docs/words.md and docs/night.md say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offsetkeeper.core.commands import command
from offsetkeeper.core.plan import Verdict
from offsetkeeper.operate.audit import Kind
from offsetkeeper.operate.status import Status

_COMMAND = re.compile(r"offsetkeeper ([a-z-]+) orders\b(.*)")
MEANINGS: Mapping[Status, str] = {
    Status.LOSING_DATA: (
        "retention has deleted unread records, or the first unread one has used 90 % of its time in Kafka"
    ),
    Status.REFUSED: "no run could start: see the verdicts",
    Status.TOPIC_GONE: (
        "a topic or a partition with a position is not in Kafka any more, and others are: its unread records, if "
        "it had any, are lost"
    ),
    Status.REWOUND: (
        "resets have moved positions back, and nothing was committed since; a run that began since may be "
        "failing or stalled"
    ),
    Status.FAILING: (
        "records wait, also in a partition that was added, and the newest three runs ended without a commit; of a "
        "scheduled job, the newest one"
    ),
    Status.STOPPED: (
        "records wait, also in a partition that was added, and no run holds the group; a scheduled job is not stopped "
        "between two runs"
    ),
    Status.OUTPUT_AWAY: (
        "the run that holds the group waits for an output that cannot be reached or takes nothing now; the "
        "newest line of the history says since when"
    ),
    Status.STALLED: (
        "records wait, also in a partition that was added, and the run that holds the group has committed nothing for "
        "three usual commit intervals"
    ),
    Status.HELD_BACK: "a transaction has been open for 15 minutes; the records behind it cannot be read",
    Status.GROWING: "the number of waiting records rose over four commit intervals in a row",
    Status.BEHIND: "the first unread record is older than three usual commit intervals",
    Status.OK: "no rule above holds: no problem was found",
}

NEXT: Mapping[Status, str] = {
    Status.LOSING_DATA: (
        "raise `retention.ms` of the topic now (and `retention.bytes`, if it is set), and start the job if it is "
        "stopped (if the store was restored, compare first); if it runs, make it faster (size of batches). If the "
        "start is refused because records are gone already, `offsetkeeper plan orders` shows which; go on with "
        "`Policies(below_beginning='beginning')`"
    ),
    Status.REFUSED: "`offsetkeeper plan orders` shows each partition with its verdict; choose a policy, or reset",
    Status.TOPIC_GONE: (
        "find out who deleted the topic; the last lag in your metrics says whether all of it was read, as the history "
        "does not; then forget its positions, or make the topic again"
    ),
    Status.REWOUND: (
        "`offsetkeeper history orders` says who reset it, and why; `offsetkeeper undo orders` takes a wrong reset "
        "back; where the output appends, delete its rows from the new positions on, as they come again; then start the "
        "job, if none runs"
    ),
    Status.FAILING: "read the job's log and errors; bad records go into dead letters",
    Status.STOPPED: (
        "start the job (if the store was restored, compare first); `offsetkeeper history orders` shows its last "
        "changes, and the class of an error that ended it"
    ),
    Status.OUTPUT_AWAY: (
        "`offsetkeeper history orders` says since when, and what the output answers (of a function only the class of "
        "the error: its text is in the job's log); the run goes on by itself when it is back, and ends with its error "
        "after `retry_timeout_s`; if its process is gone, start the job"
    ),
    Status.STALLED: (
        "stop the run (SIGTERM) and start it again, or only start it if its process is gone: it takes over; "
        "`offsetkeeper show orders` names host and process, and its log may say why"
    ),
    Status.HELD_BACK: "`offsetkeeper doctor orders` names the open transaction, and Kafka's command that ends it",
    Status.GROWING: (
        "`offsetkeeper lag orders --watch 5` compares read/s with written/s; `offsetkeeper doctor orders` finds "
        "slow set-ups"
    ),
    Status.BEHIND: (
        "`offsetkeeper lag orders --watch 5` compares read/s with written/s; `offsetkeeper doctor orders` finds "
        "slow set-ups"
    ),
}

WENT_BACK = "do not start the job at once: compare the ledger with the outputs first (docs/recover.md)"
"""What to do where a store went back, whatever the status is."""

VERDICTS: Mapping[Verdict, str] = {
    Verdict.RESUME: "Kafka holds the stored position",
    Verdict.FIRST_RUN: "no position of this topic is stored",
    Verdict.NEW: "the topic is known, and the partition is new",
    Verdict.NEW_TOPIC: "a pattern found the topic after the group had begun",
    Verdict.MISSING: "the ledger had a position of this partition, and another program has deleted it from the store",
    Verdict.REMOVED: "the partition or the topic is gone",
    Verdict.CUT: "an election made a replica the leader that lacked records which were read",
    Verdict.BELOW_BEGINNING: "retention has deleted unread records",
    Verdict.BEYOND_END: "the stored position is past the end of the partition",
    Verdict.ELSEWHERE: "the brokers are of another Kafka cluster than the position",
    Verdict.RECREATED: "the topic was deleted and made again",
    Verdict.GIVEN: "you gave the offset",
    Verdict.GIVEN_AGAIN: "you gave the same offsets to an earlier start, and batches were committed since",
}

EVENTS: Mapping[str, str] = {
    "acquire": "a run took the group; an older run is fenced",
    "release": "a run gave the group back; the reason has the class of an error that ended it",
    "place": "a start set positions: a first run, new partitions, offsets by hand, or a policy",
    "begin": "the ranges of a batch were stored; the batch is pending",
    "mark": "one of several outputs has the pending batch",
    "wait": (
        "a run waits for an output that is away; the reason says since when and why; of an error of your function only "
        "its class"
    ),
    "commit": "the batch is done, and the positions moved",
    "abandon": "the pending batch was dropped",
    "settle": "the batch that a reset had dropped can no longer land",
    "rewind": "an operator moved positions: `reset`, `rewind` or `undo`",
    "forget": "an operator took positions out of the ledger",
    "adopt": "an operator accepted the mark of an output",
    "copy": "the ledger was copied from another store, or from a checkpoint",
}

FINDINGS: Mapping[Kind, str] = {
    Kind.GAP: "no batch has committed these offsets",
    Kind.OVERLAP: "these offsets were committed more than once, or will be",
    Kind.MAYBE_TWICE: (
        "a batch with these offsets was dropped or taken over by another program, and a later batch has or gets "
        "them. An output that could not be asked may have them more than once, or outputs of both programs have "
        "them"
    ),
    Kind.CUT: (
        "these offsets were committed, and an election has cut their records from the log; others may have the "
        "offsets now"
    ),
    Kind.VANISHED: "the history has a position that is no longer stored, and that nobody has forgotten",
    Kind.TOPIC_ID: "the stored topic id differs from the one in the history",
    Kind.MISSING: "the history, or the ledger, lacks changes",
}


class Piece(NamedTuple):
    """A part of a text; `code` is typed as it stands."""

    text: str
    code: bool


def pieces(text: str, group: str = "") -> Sequence[Piece]:
    """Return the parts of a text of these tables.

    Args:
        text: with code between back quotes, in which the group is `orders`.
        group: that the code is for instead, quoted for a shell.
    """
    parts = enumerate(text.split("`"))
    return [Piece(_for(part, group), code=True) if n % 2 else Piece(part, code=False) for n, part in parts if part]


def plain(text: str, group: str) -> str:
    """Return a text of these tables without marks, its code for a group."""
    return "".join(piece.text for piece in pieces(text, group))


def first_step(status: Status | None, group: str) -> Sequence[Piece]:
    """Return the first thing to do, for a list; nothing where all is well or nothing is known."""
    step = NEXT.get(status, "") if status else ""
    return pieces(step.partition(";")[0], group)


def next_step(status: Status | None, group: str) -> str:
    """Return what to do, in a line without marks; empty where all is well or nothing is known."""
    return plain(NEXT.get(status, "") if status else "", group)


def _for(code: str, group: str) -> str:
    found = _COMMAND.fullmatch(code) if group else None
    return command(found[1], group, found[2].strip()) if found else code
