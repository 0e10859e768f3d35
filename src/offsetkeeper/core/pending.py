"""What becomes of a batch that was begun and is not committed: a table for each occasion. Pure.

In each table the first line that fits decides. The words are explained below the tables.

at a start, of the pending batch of an earlier run:
    a name has gone from one output to another                      StartRefused
    a new name, and several outputs are in its place; exactly once  StartRefused
    pending="drop", its marked outputs are others than those here   StartRefused
    the policy pending="drop"                                       DROP
    another program began it, and the policy is pending="own"       StartRefused
    it was begun for a marked output; none here has that name       StartRefused
    an output is noted to have it, and none here is that one        StartRefused
    by a mark, it is in another target than those here              StartRefused
    it is for marked dead letters, and others are here              StartRefused
    its positions were edited from outside                          StartRefused
    this run is at most once                                        COUNT
    it is for marked dead letters, and they have it                 COUNT
    it is for marked dead letters                                   DROP
    a run without state began it, and all outputs have it           COUNT
    it is lost, this run is exactly once, an output may have it     StartRefused
    it is lost                                                      DROP
    a run without state began it, and one starts                    FINISH
    its query with state starts, with offsets given for it          CheckpointMismatch
    its query with state starts                                     WAIT
    another query with state began it, or starts                    CheckpointMismatch

at a start, of an unsettled batch, which a reset has dropped:
    a name has gone from one output to another                      StartRefused
    a new name, and several outputs are in its place; exactly once  StartRefused
    not "drop", begun for a marked output; none here has that name  StartRefused
    not "drop", its marked outputs are others than those here       StartRefused
    not "drop", one has it, and one in another target than here     StartRefused
    all outputs have it, and no query with state starts             COUNT
    anything else                                                   DROP

after a failure, before the next attempt of a run without a query:
    its records can be read                                         FINISH
    begun, exactly once, and all outputs have it                    COUNT
    begun, exactly once, and only some outputs have it, or may      StartRefused
    anything else                                                   DROP

when a record fails, before the quarantine cuts the batch:
    begun, exactly once, not pending="drop"; only some have it      KEEP
    anything else                                                   DROP

when one of the tables above drops a pending batch, or the quarantine cuts a batch:
    it was begun, and all outputs have it                           COUNT
    begun, exactly once, not pending="drop", and a mark shows it    StartRefused
    anything else                                                   DROP

when a query runs a batch, and one is pending:
    it is the same batch                                            FINISH
    it is another one                                               CheckpointMismatch

**What a table says.** FINISH: the batch is processed, with the same ranges and the same id. An output that has it, by
its mark or by the ledger's note, is left out; one that keeps no mark may get it twice. COUNT: it is committed, and
nothing is written. DROP: it is given up, and its records are read again in other batches. An output that has it keeps
it, and gets these records twice. WAIT: a query with state runs it again from its own checkpoint. KEEP: the run ends
with the error of the record, and a mended program finishes the batch.

An error changes nothing: the batch stays pending or unsettled, and the next start looks again. The same holds for a run
that was killed, or that ended with another error, such as that of its last attempt. The texts of the errors say what an
operator can do. Mostly that is to start the program that began the batch, or to drop the batch.

**Which outputs have it.** An output is marked if it keeps a mark, see `core.mark`, and the mark tells whether it has
the batch. An unmarked one has it if the ledger has noted so, as it does when one of several is written; else it may
have it. An output in the store's own transaction surely lacks the batch. The tables know this only beside marked
outputs; alone, it may have the batch. A part of the batch counts like the batch, except where all outputs must have it.
A marked output of the batch that is not here may lack it: then not all outputs have it. A batch is lost if Kafka no
longer holds all of its records, or if a mark says that a run has dropped it. A run without state is a run without a
query, or a query without state.

**Names and targets.** A mark in a database is of a name: outputs of one name in one schema share it, whatever table
they write to. So do topics with one `mark_topic`. So such a mark also says in which target the batch is. If that is
another one than here, the output here lacks the batch, and cannot get it under this id: the start is refused, unless it
drops the batch. An unsettled batch is refused only if another output has it. The tables that are asked in a run take
such a batch for one that an output has. A mark of release 0.2 does not name its target, and counts as here; but not in
another program, with "finish".

**Renamed outputs.** The ledger knows the place of each output that a batch was begun for. If an output there has
another name now, it keeps the old one for this batch: it is that one's mark that tells whether it has the batch, and
changes when it gets it. So the batch lands once, also if a run of the old program still lives, and either program can
finish it. Only the next batch is begun under the new name. In the tables, a name is always the name in the batch. An
output that does not tell its place is not found, and counts as a new one. It is refused, whatever the policy is, if a
name has gone from one output to another; with exactly once also if an output has a new name in a place that several
outputs have: nothing tells which of them it was. Names that change places among those of one place are not noticed. An
output that a redeploy has added gets the batch too: a start that finishes the batch first notes it in the ledger, by a
second `begin`.

**Before the table of a start** all marks are compared with the ledger. If the store was restored to before a batch that
an output has, the start raises `MarkAhead`. A mark that is too old is `MarkBehind`. One of another batch with the same
number is `MarkMismatch`. Each refuses the start until the restore is undone, or `adopt` accepts the mark. An output
without a mark cannot show this. Outputs of another program lack batches, and that is right. So a start asks these
lines before it compares marks: the one of "own", and in both tables those of names and of marked outputs that are
others.

**The plan.** A start plans where it reads on before it does what the table says. FINISH and COUNT: it plans from the
end of the batch. DROP and WAIT: from the positions, so from the start of the batch. If a policy for positions stops the
plan, the start is refused, and nothing has changed. By default it is refused if retention has deleted records of a
batch that is to be dropped (`below_beginning`), or if an election cut the log below the place where it plans from
(`cut`). A cut within a batch that is dropped stops no plan: its records are read again from its start. After a failure
a run plans too before it drops a batch: if the plan stops, the run ends with `StartRefused`, no void mark is made, and
the batch stays pending. A pending batch is finished also if some of its topics are no longer read.

**Void marks.** Before a pending batch is dropped, or an unsettled one settled, void marks keep it out of the marked
outputs of this program that do not have it. What they find decides: of a pending batch in the table before the last, of
an unsettled one in its own. After a COUNT the plan is made again, from the end of the batch.

**At most once** knows no marks: each output of such a run is unmarked, a table too. So a batch that it began gets
COUNT. One that a run with another guarantee began for marked outputs is refused, as here no output is marked.

**A reset** drops the pending batch if it moves one of its partitions, and always if it is of a query with state;
otherwise the batch stays pending. See `core.rules`. If marked outputs may have a dropped batch, it is unsettled, and
the next start asks the second table, and no other. COUNT then covers only the partitions that no reset named. A named
partition is read from where the reset put it, even if the reset did not move it. A dropped batch without marked outputs
is gone.

**Queries.** A query without state gives its pending batch to a run, by the table of a start, before the query starts.
For one with state (WAIT) the batch must be the next one of its checkpoint, with the same ranges, else
`CheckpointMismatch`; no policy lets another run or query finish it. A query's batch is tried again as often as the pace
allows, and no table is asked after a failure. If its log was cut meanwhile, the query ends with `RangeGone`, and the
batch stays pending for the next start.

**Dead letters.** After the quarantine has dropped a batch, its records are tried again, in smaller batches. A batch for
unmarked dead letters looks like any other to the ledger until it is noted to be there: a start finishes it with the
function.

**Programs.** `Policies(pending=…)` is about the batch of an earlier run. "own", the default, finishes a batch that this
program began. "finish" also finishes one of another program. "drop" drops it. With "drop", a run also drops a batch of
its own that some outputs have. It is another program if the two share no topic, or no output of the same kind and
target. An output that does not tell its target, such as a function, could be any. If all outputs are others, what has
landed under their names has landed elsewhere. Then "finish" begins the batch again for this program, and writes it into
each output that does not have it by its own mark: what the ledger has noted of the old ones does not count. The old
ones may have the batch, so one that is lost is refused, unless all outputs here have it. While it is pending, it is
this program's, and a start of the other one is refused, unless that one takes it back with "finish". A run of the other
one that still lives may land it there too; it cannot commit it. After the commit the other program may start, and its
outputs lack the batch. "finish" needs outputs of the same names. If all outputs are others, it is also refused if an
unmarked output of the other program is noted to have the batch, or if a mark shows it in another target, or if it is
for marked dead letters. If all outputs of the first program have got it after all, taking it back only counts it, where
their marks name a target; else it is refused. Outputs of records are compared with outputs of records, and dead letters
with dead letters. "drop" is refused if the other outputs keep marks, as a void mark here would not keep the batch out
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from offsetkeeper.core.batch import Batch, Kind, Program
from offsetkeeper.core.commands import command
from offsetkeeper.core.mark import Landing, named
from offsetkeeper.core.model import Guarantee, Having
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import CheckpointMismatch, OffsetkeeperError, StartRefused, listed

_HAVING = frozenset({Landing.LANDED, Landing.PARTLY, Landing.CUT})
"""The landings that mean that an output has a batch or a part of it."""
_SHOWN = _HAVING | {Landing.ELSEWHERE}
"""The landings that mean that an output, or one with the same mark, has a batch or a part of it."""
_VOID = frozenset({Landing.VOID, Landing.CUT})
_LACKING = frozenset({Landing.ABSENT, Landing.VOID})
"""The landings that mean that an output surely has nothing of a batch, if no run can land it any more."""
_DROP = "Policies(pending='drop') drops the batch: its records are read again as other batches"
_DROP_LOST = (
    "Policies(pending='drop') drops the batch: those of its records that Kafka still holds are read again as other "
    "batches. For those that retention has deleted, give a policy below_beginning, too"
)


class Fate(Enum):
    """What becomes of a batch."""

    FINISH = auto()
    """It is processed, with the same ranges and the same id."""
    WAIT = auto()
    """The query that began it runs it again, from its own checkpoint."""
    COUNT = auto()
    """It counts as done: it is or may be written, and must not be written twice."""
    DROP = auto()
    """It is abandoned; outputs that have it keep it."""
    KEEP = auto()
    """It is not cut into pieces. The run ends with its error, and the batch stays pending for a mended program."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that decides what becomes of a batch.

    Attributes:
        batch: the batch.
        positions: the ledger's positions.
        problems: why Kafka no longer holds its records, see `unreadable`; empty if it holds them.
        guarantee: the guarantee of the run that starts, or that works on the batch.
        policies: the policies of that run.
        outputs: names of the program's outputs, with the dead letters if it has them. They are those that the batch
            has for them, see "Renamed outputs".
        landings: what the marks of outputs say of the batch; outputs without a mark are not among them.
        marked: names of the outputs that keep a mark; None if that is not known.
        query: id of the query with state that starts, empty if its checkpoint is empty; None for a run without state.
        begun: whether the ledger has the batch as pending.
        program: what the program that starts reads and writes; None if that is not known.
        failure: why a run gives the batch up that Kafka still holds: a record that fails.
        given: the partitions that get an offset by hand with this start.
        planned: the batch that a query is about to run; None if none is.
        called: how messages call that one.
        joined: names of the outputs in the store's own transaction.
    """

    batch: Batch
    positions: Positions
    problems: Sequence[str]
    guarantee: Guarantee
    policies: Policies
    outputs: Sequence[str]
    landings: Mapping[str, Landing] = field(default_factory=dict)
    marked: Collection[str] | None = None
    query: str | None = None
    begun: bool = True
    program: Program | None = None
    failure: str = ""
    given: Collection[TopicPartition] = ()
    planned: Batch | None = None
    called: str = "the batch that the query runs"
    joined: Collection[str] = ()

    @property
    def exactly(self) -> bool:
        """Whether the run promises exactly once."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def once(self) -> bool:
        """Whether the batch was begun, and its rows may not come twice."""
        return self.begun and self.exactly and self.policies.pending != "drop"

    @property
    def had(self) -> bool | None:
        """Whether the outputs of the batch have it: True if all have it, False if surely none has, else None."""
        found = has(self._known, self._outputs, self.landings)
        away = {*self.batch.lands_in, *self.batch.written} - {*self.outputs}
        return None if (self.anew and found is False) or (away and found) else found

    @property
    def having(self) -> list[str]:
        """The outputs that have the batch, or a part of it."""
        known = {*self._known.written, *(name for name, each in self.landings.items() if each in _HAVING)}
        return [name for name in self._outputs if name in known and name not in self.diverted]

    @property
    def diverted(self) -> list[str]:
        """The outputs that have the batch by their mark, but in another target than that of this program."""
        return [name for name in self._outputs if self.landings.get(name) is Landing.ELSEWHERE]

    @property
    def held(self) -> Having:
        """Which outputs have the batch, or a part of it, as far as that is known; also of those that are not here."""
        if self.had or self.having or self.batch.written:
            return Having.ALL if self.had else Having.SOME
        lacks = {*self.joined, *(name for name, each in self.landings.items() if each in _LACKING)}
        return Having.NONE if lacks.issuperset(self.every) else Having.MAYBE

    @property
    def every(self) -> list[str]:
        """The outputs that may have the batch: those that it was begun for, and those of the program."""
        began = self.batch.program.outputs if self.batch.program else ()
        known = dict.fromkeys([*self.batch.lands_in, *self.batch.written, *self.landings, *self.outputs, *began])
        return [name for name in known if self.batch.goes_into(name)]

    @property
    def losses(self) -> list[str]:
        """Why the batch is lost, a reason a line."""
        void = [name for name in self._outputs if self.landings.get(name) in _VOID]
        return [*self.problems, *(f"{named(name)} has the mark of a run that dropped it" for name in void)]

    @property
    def unmarked(self) -> list[str]:
        """The outputs that may have the batch by their mark, and that the program lacks."""
        return [] if self.marked is None else sorted({*self.batch.lands_in} - {*self.marked})

    @property
    def lacking(self) -> list[str]:
        """The outputs of the batch that the program lacks. It has others elsewhere, whatever their names are."""
        there = {*self.batch.written, *self.batch.lands_in} - {*self.outputs}
        return sorted(there | {*self.batch.written_unmarked} if self.elsewhere else there)

    @property
    def named_here(self) -> list[str]:
        """The names of the program's outputs, as it has them."""
        now = {old: name for name, old in self.batch.old_names(self.program).items()}
        return [now.get(name, name) for name in self.outputs]

    @property
    def taken(self) -> dict[str, str]:
        """The renamed outputs whose name another one had, or has now: by their name, the old one."""
        began, here = (each.outputs if each else {} for each in (self.batch.program, self.program))
        renamed = self.batch.old_names(self.program)
        return {name: old for name, old in renamed.items() if old in here or name in began}

    @property
    def unclear(self) -> list[str]:
        """The outputs that the batch was begun for that may have another name here, and nothing tells which."""
        return self.batch.unclear(self.program) if self.exactly else []

    @property
    def foreign(self) -> bool:
        """Whether another program began the batch: one with no topic in common, or no output of a kind and target."""
        began, here = self.batch.program, self.program
        if began is None or here is None:
            return False
        # Those of the batch are among them. A pattern that has found nothing yet names none.
        if began.topics and {*began.topics}.isdisjoint(here.topics):
            return True
        return self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether the program has no output of the kind and target of one that the batch was begun for."""
        if self.batch.program is None or self.program is None:
            return False
        letters = self.batch.kind is Kind.DEAD_LETTERS
        began, here = (each.writes(letters=letters) for each in (self.batch.program, self.program))
        tell = all(" " in each for each in began | here)  # a function does not tell its target
        return bool(began and here) and tell and began.isdisjoint(here)

    @property
    def anew(self) -> bool:
        """Whether the batch is to be finished in other outputs than those that it was begun for."""
        return self.elsewhere and self.policies.pending == "finish"

    @property
    def astray(self) -> bool:
        """Whether a void mark of this program would not keep the batch out of the outputs that may have it."""
        return self.elsewhere and bool(self.batch.lands_in)

    @property
    def refused(self) -> bool:
        """Whether another program began the batch, and the policy lets it wait for that one."""
        return self.foreign and self.policies.pending == "own"

    @property
    def moved(self) -> list[str]:
        """The partitions whose position is not at the start of the batch; only an edit from outside causes this."""
        starts = {r.topic_partition: r.start for r in reversed(self.batch.ranges)}
        stored = {tp: self.positions[tp].offset if tp in self.positions else None for tp in starts}
        return [
            f"{tp}: the batch starts at {start}, the store has {'no position' if stored[tp] is None else stored[tp]}"
            for tp, start in sorted(starts.items())
            if stored[tp] != start
        ]

    @property
    def _known(self) -> Batch:
        """The batch, with the outputs of the program that the ledger knows to have it."""
        return replace(self.batch, written=()) if self.anew else self.batch

    @property
    def _outputs(self) -> list[str]:
        """The outputs that the batch goes into: the dead letters, or all others of the program."""
        return [name for name in self.outputs if self.batch.goes_into(name)]


def at_start(found: Situation) -> Fate:
    """Return what a start does with the pending batch of an earlier run.

    Raises:
        StartRefused: the batch cannot be finished exactly once, or not at all: another program began it, one of its
            outputs is not here, its positions were changed from outside, or it is lost.
        CheckpointMismatch: a query with state began the batch and this is another run; or a run without state began it
            and this is a query with state.
    """
    return _decide(AT_START, found)


def check_program(found: Situation) -> None:
    """Refuse the pending batch of another program, as `at_start` does, before marks are compared with the ledger.

    The outputs of another program lack what has landed in those of this group, which would look like a loss.

    Raises:
        StartRefused: another program began the batch, and the policy is pending="own"; or it is pending="drop", and the
            outputs that may have the batch are not those of this program.
    """
    _refuse_early(AT_START, found)


def check_unsettled(found: Situation) -> None:
    """Refuse a batch that a reset has dropped, as `when_unsettled` does, before marks are compared with the ledger.

    Raises:
        StartRefused: another program began the batch, and its marked outputs are others than those of this one.
    """
    _refuse_early(WHEN_UNSETTLED, found)


def when_unsettled(found: Situation) -> Fate:
    """Return what a start does with a batch that a reset dropped, if `landings` is what its void marks found.

    Without `landings`, before void marks are made, it only tells whether the start is possible.

    Raises:
        StartRefused: it is unknown whether an output has the batch: the program lacks it, or has others elsewhere.
    """
    return _decide(WHEN_UNSETTLED, found)


def when_planned(found: Situation) -> Fate:
    """Return what a query does with the pending batch if it is about to run a batch.

    Raises:
        CheckpointMismatch: that is another batch.
    """
    return _decide(WHEN_PLANNED, found)


def after_failure(found: Situation) -> Fate:
    """Return what a run does with a batch after an attempt that failed.

    Raises:
        StartRefused: the batch cannot be read again, so it cannot be finished exactly once.
    """
    return _decide(AFTER_FAILURE, found)


def when_given_up(found: Situation) -> Fate:
    """Return what a run does with a batch that is to be dropped.

    Its void marks are made, and `landings` is what they found.

    Raises:
        StartRefused: some outputs have the batch, and with exactly once only a policy can allow to drop it.
    """
    return _decide(WHEN_GIVEN_UP, found)


def when_poisoned(found: Situation) -> Fate:
    """Return whether a batch with a record that fails is dropped, to be read in pieces, or kept as it is.

    If one of several outputs has it, the others must get the same ranges.
    """
    return _decide(WHEN_POISONED, found)


class Line(NamedTuple):
    """A line of a table.

    Attributes:
        words: the words of the docstring.
        fits: whether it decides in a situation.
        then: the fate; or the error that is raised.
        early: whether the error is raised also before marks are compared with the ledger.
    """

    words: str
    fits: Callable[[Situation], object]
    then: Fate | Callable[[Situation], OffsetkeeperError]
    early: bool = False


def _decide(table: Sequence[Line], found: Situation) -> Fate:
    then = next(line.then for line in table if line.fits(found))
    if isinstance(then, Fate):
        return then
    raise then(found)


def _refuse_early(table: Sequence[Line], found: Situation) -> None:
    for line in table:
        if line.early and not isinstance(line.then, Fate) and line.fits(found):
            raise line.then(found)


def _both(found: Situation) -> str:
    return f"That one {found.batch.program}. This one {found.program}"


def _finishing(found: Situation) -> str:
    """Return how another program may finish the batch; empty if it may not."""
    if found.batch.kind is Kind.DEAD_LETTERS or (found.elsewhere and found.batch.written_unmarked):
        return ""
    names = {*found.batch.written, *found.batch.lands_in} - {*found.outputs}
    under = f" Give its outputs the same names for that: {listed(map(repr, sorted(names)), ', ')}." if names else ""
    return (
        " If it is the same program with new topics or outputs, Policies(pending='finish') finishes the batch with the "
        f"function and the outputs that it has now.{under}"
    )


def _gone(found: Situation) -> str:
    """Return how the batch is dropped if the program that began it is gone: no position is moved in the end."""
    group = found.batch.group
    if found.batch.ranges:
        first = found.batch.ranges[0]
        scope = f"--topic {first.topic}:{first.partition}"
        ways = (command("reset", group, f"{scope} --to-offset {at} --execute") for at in (first.end, first.start))
        way = "; then ".join(ways)
    else:  # of a query with state, which had no records
        way = f"{command('reset', group, '--topic TOPIC:PARTITION --shift-by -1 --execute')}; then --shift-by 1"
    return (
        f"If that program is gone, drop the batch by a reset, and go back by a second one, not by undo: {way}. Then "
        "start with Policies(pending='drop'). If that start misses batches of the old outputs, `offsetkeeper adopt` "
        "accepts the new ones"
    )


def _drop_there(found: Situation) -> str:
    return (
        "Start that program once with Policies(pending='drop') to drop the batch: its marks keep it out for good. "
        + _gone(found)
    )


def _dropping(found: Situation) -> str:
    """Return how the batch can be dropped."""
    return _drop_there(found) if found.astray else _DROP_LOST if found.problems else _DROP


def _is_taken(found: Situation) -> StartRefused:
    name, old = next(iter(found.taken.items()))
    return StartRefused(
        f"batch {found.batch.id} was begun for output {old!r}, which is {name!r} here, and a name has gone from one "
        "output to another. A batch is finished under the names with which it was begun. Give the outputs their old "
        "names, or names that no output had before"
    )


def _is_unclear(found: Situation) -> StartRefused:
    return StartRefused(
        f"batch {found.batch.id} was begun for output {found.unclear[0]!r}, and several outputs have its place, so "
        "nothing tells which of them it is here. Give the outputs their old names"
    )


def _is_foreign(found: Situation) -> StartRefused:
    return StartRefused(
        f"batch {found.batch.id} is pending, and another program began it. {_both(found)}. A group is for one program: "
        f"give this one a group of its own.{_finishing(found)} {_dropping(found)}"
    )


def _is_astray(found: Situation) -> StartRefused:
    return StartRefused(
        f"batch {found.batch.id} is pending, and another program began it. {_both(found)}. So this program cannot drop "
        "the batch: an older run of that program may still land it there, and the mark that forbids this would be "
        f"here. {_drop_there(found)}.{_finishing(found)}"
    )


def _is_unsettled_elsewhere(found: Situation) -> StartRefused:
    return StartRefused(
        f"batch {found.batch.id} was dropped by a reset, and another program began it. {_both(found)}. An older run of "
        "that program may still land it there, and the mark that forbids this would be here. Start that program once: "
        "its marks keep it out for good. Or start with Policies(pending='drop'), but then it stays unknown whether "
        "those outputs have the batch. If that start misses batches of the old outputs, `offsetkeeper adopt` accepts "
        "the new ones"
    )


def _is_diverted(found: Situation) -> StartRefused:
    why = "is pending" if found.begun else "was dropped by an operator"
    if found.elsewhere:
        why += f", and another program began it. {_both(found)}"
        way = f"Start that program once, to finish the batch. {_gone(found)}"
    else:
        way = (
            "If this program had another output under that name, start it once with that one. If another program has "
            f"landed the batch after this one had taken it over: {_DROP}, and the outputs here that have it get them "
            "twice"
        )
    return StartRefused(
        f"batch {found.batch.id} {why}. By its mark, {named(found.diverted[0])} has the batch, but in "
        f"another target than here: outputs of one name in one schema share a mark. {way}"
    )


def _lacks_mark(found: Situation) -> StartRefused:
    return StartRefused(lacking_text(found, found.unmarked))


def _lacks_output(found: Situation) -> StartRefused:
    name, batch = found.lacking[0], found.batch
    may = "has" if name in batch.written else "may have"
    if name in found.outputs:
        why = "but the program that began it wrote it there, and this one writes elsewhere under that name"
        return StartRefused(f"batch {batch.id} is pending, and output {name!r} {may} it, {why}. {_dropping(found)}")
    twice = "" if found.astray else ", and outputs that have it get its records twice"
    return StartRefused(
        f"batch {batch.id} is pending, and output {name!r} {may} it, but the program has no output with that name, "
        f"only {', '.join(map(repr, found.named_here))}. Rename the output back. {_dropping(found)}{twice}"
    )


def _is_moved(found: Situation) -> StartRefused:
    return StartRefused(
        f"batch {found.batch.id} is pending and cannot be committed, because its positions were "
        f"changed in the store from outside:\n  {listed(found.moved)}\nSet them back to the start of the batch. "
        f"{_dropping(found)}"
    )


def _is_lost(found: Situation) -> StartRefused:
    return _may_come_twice(found, found.losses)


def _is_somewhere(found: Situation) -> StartRefused:
    having = [f"{named(name)} has it, or a part of it" for name, each in found.landings.items() if each in _SHOWN]
    return _may_come_twice(found, [*found.problems, *([found.failure] if found.failure else []), *having])


def _may_come_twice(found: Situation, why: Sequence[str]) -> StartRefused:
    batch = found.batch
    had = f"; {', '.join(map(named, batch.written))} has it" if batch.written else ""
    return StartRefused(
        f"batch {batch.id} was begun, may be in its outputs{had}, and cannot be finished exactly once:\n"
        f"  {listed(why)}\n"
        f"These ranges may come twice:\n  {listed(batch.ranges)}\n"
        f"If you can, remove the batch's rows from the outputs first. {_dropping(found)}"
    )


def _is_of_another(found: Situation) -> CheckpointMismatch:
    began = found.batch.query or "a run without state"
    return CheckpointMismatch(
        f"batch {found.batch.id} is pending. Only {began}, which began it, can finish it:\n"
        f"  {listed(found.batch.ranges)}\n"
        f"Start the program that began it, with its own checkpoint. {_dropping(found)}"
    )


def _offset_is_given(found: Situation) -> CheckpointMismatch:
    taken = sorted(found.batch.partitions.intersection(found.given))
    return CheckpointMismatch(
        f"an offset is given for {taken[0]}, which is in the pending batch {found.batch.id}. The query's "
        "checkpoint runs this batch again. First start without offsets; or start with a new checkpoint and "
        "Policies(pending='drop')"
    )


def _is_another(found: Situation) -> CheckpointMismatch:
    planned = "" if found.planned is None else found.planned.lines()
    return CheckpointMismatch(
        f"batch {found.batch.id} was begun, and {found.called} has other ranges:\n{found.batch.lines()}\n"
        f"compared with\n{planned}\nStart the pipeline again: it first deals with the pending batch"
    )


def _runs_its_query(found: Situation) -> bool:
    return found.batch.query is not None and found.batch.query.query == found.query


_TAKEN = Line("a name has gone from one output to another", lambda s: s.taken, _is_taken, early=True)
_UNCLEAR = Line(
    "a new name, and several outputs are in its place; exactly once", lambda s: s.unclear, _is_unclear, early=True
)
AT_START = (
    _TAKEN,
    _UNCLEAR,
    Line(
        'pending="drop", its marked outputs are others than those here',
        lambda s: s.policies.pending == "drop" and s.astray,
        _is_astray,
        early=True,
    ),
    Line('the policy pending="drop"', lambda s: s.policies.pending == "drop", Fate.DROP),
    Line(
        'another program began it, and the policy is pending="own"',
        lambda s: s.refused,
        _is_foreign,
        early=True,
    ),
    Line("it was begun for a marked output; none here has that name", lambda s: s.unmarked, _lacks_mark),
    Line("an output is noted to have it, and none here is that one", lambda s: s.lacking, _lacks_output),
    Line("by a mark, it is in another target than those here", lambda s: s.diverted, _is_diverted),
    Line(
        "it is for marked dead letters, and others are here",
        lambda s: s.batch.kind is Kind.DEAD_LETTERS and s.astray,
        _is_astray,
    ),
    Line("its positions were edited from outside", lambda s: s.moved, _is_moved),
    Line("this run is at most once", lambda s: s.guarantee is Guarantee.AT_MOST_ONCE, Fate.COUNT),
    Line(
        "it is for marked dead letters, and they have it",
        lambda s: s.batch.kind is Kind.DEAD_LETTERS and s.had,
        Fate.COUNT,
    ),
    Line("it is for marked dead letters", lambda s: s.batch.kind is Kind.DEAD_LETTERS, Fate.DROP),
    Line(
        "a run without state began it, and all outputs have it", lambda s: s.batch.query is None and s.had, Fate.COUNT
    ),
    Line(
        "it is lost, this run is exactly once, an output may have it",
        lambda s: s.losses and s.exactly and s.had is not False,
        _is_lost,
    ),
    Line("it is lost", lambda s: s.losses, Fate.DROP),
    Line(
        "a run without state began it, and one starts", lambda s: s.batch.query is None and s.query is None, Fate.FINISH
    ),
    Line(
        "its query with state starts, with offsets given for it",
        lambda s: _runs_its_query(s) and not s.batch.partitions.isdisjoint(s.given),
        _offset_is_given,
    ),
    Line("its query with state starts", _runs_its_query, Fate.WAIT),
    Line("another query with state began it, or starts", lambda _: True, _is_of_another),
)
WHEN_UNSETTLED = (
    _TAKEN,
    _UNCLEAR,
    Line(
        'not "drop", begun for a marked output; none here has that name',
        lambda s: s.policies.pending != "drop" and s.unmarked,
        _lacks_mark,
    ),
    Line(
        'not "drop", its marked outputs are others than those here',
        lambda s: s.policies.pending != "drop" and s.astray,
        _is_unsettled_elsewhere,
        early=True,
    ),
    Line(
        'not "drop", one has it, and one in another target than here',
        lambda s: s.policies.pending != "drop" and s.diverted and s.having,
        _is_diverted,
    ),
    Line("all outputs have it, and no query with state starts", lambda s: s.had and s.query is None, Fate.COUNT),
    Line("anything else", lambda _: True, Fate.DROP),
)
AFTER_FAILURE = (
    Line("its records can be read", lambda s: not s.problems, Fate.FINISH),
    Line("begun, exactly once, and all outputs have it", lambda s: s.begun and s.exactly and s.had, Fate.COUNT),
    Line(
        "begun, exactly once, and only some outputs have it, or may",
        lambda s: s.begun and s.exactly and s.had is None,
        _is_somewhere,
    ),
    Line("anything else", lambda _: True, Fate.DROP),
)
WHEN_GIVEN_UP = (
    Line("it was begun, and all outputs have it", lambda s: s.begun and s.had, Fate.COUNT),
    Line(
        'begun, exactly once, not pending="drop", and a mark shows it',
        lambda s: s.once and _SHOWN.intersection(s.landings.values()),
        _is_somewhere,
    ),
    Line("anything else", lambda _: True, Fate.DROP),
)
WHEN_POISONED = (
    Line(
        'begun, exactly once, not pending="drop"; only some have it',
        lambda s: s.once and (s.having or s.diverted) and not s.had,
        Fate.KEEP,
    ),
    Line("anything else", lambda _: True, Fate.DROP),
)

WHEN_PLANNED = (
    Line("it is the same batch", lambda s: s.planned == s.batch, Fate.FINISH),
    Line("it is another one", lambda _: True, _is_another),
)


def has(batch: Batch, outputs: Collection[str], landings: Mapping[str, Landing]) -> bool | None:
    """Return whether outputs have a batch: True if all have it, False if surely none has, else None.

    Args:
        batch: the batch that was begun.
        outputs: names of outputs.
        landings: what the marks of outputs say about the batch; without marks, or outputs, the answer is None.
    """
    if not landings or not outputs:
        return None
    noted = {name: Landing.LANDED for name in batch.written if landings.get(name) is not Landing.ELSEWHERE}
    says = [{**landings, **noted}.get(name) for name in outputs]
    if all(each is Landing.LANDED for each in says):
        return True
    return None if any(each is None or each in _SHOWN for each in says) else False


def told(fate: Fate, found: Situation) -> str:
    """Return what a start does with the pending batch, as a sentence for operators."""
    if fate is Fate.FINISH:
        marks = ", except into outputs whose mark says that they have it" if found.batch.lands_in else ""
        return f"the next start finishes it first, with the same ranges and the same id{marks}"
    if fate is Fate.WAIT:
        return f"only query {found.query} can finish it, from its own checkpoint"
    if fate is Fate.COUNT:
        why = "its outputs have it" if found.had else "it may have been written"
        return f"the next start counts it as done, because {why}"
    unless = "; if its outputs turn out to have it, it counts as done" if found.batch.lands_in else ""
    return f"the next start drops it: {dropped_text(found)}{unless}"


def lacking_text(found: Situation, lacking: Sequence[str]) -> str:
    """Return why no start is possible without an output that keeps a mark and may have a batch."""
    name, others = lacking[0], ", ".join(map(named, found.named_here))
    if name in found.outputs:
        here = "this program has it without a mark"
    else:
        here = f"the program has no such output, only {others}"
    way = (
        f". {_drop_there(found)}"
        if found.astray
        else "; or with Policies(pending='drop'), but then it stays unknown whether that output has the batch"
    )
    may = f"batch {found.batch.id} may be in {named(name)}, which keeps a mark"
    return f"{may}, but {here}. Start once with that output{way}"


def dropped_text(found: Situation) -> str:
    """Return why a batch is dropped and which outputs have it, for the log and the history."""
    if found.problems:
        why = listed(found.problems, "; ")
    elif found.policies.pending == "drop":
        why = "by policy pending='drop'"
    elif found.failure:
        why = found.failure
    elif found.batch.kind is Kind.DEAD_LETTERS:
        why = "its record is tried again"
    elif not _VOID.isdisjoint(found.landings.values()):
        why = "a mark says that a run dropped it"
    else:
        why = "Kafka did not show all of its records"
    if found.landings and found.batch.lands_in:
        return f"{why}; {landed_text(found)}"
    written = ", ".join(map(repr, found.batch.written))
    had = f"its outputs {written} have it" if written else "no output is marked to have it"
    return f"{why}; {had}, one that was being written may have it too"


def landed_text(found: Situation) -> str:
    """Return which outputs have a dropped batch, for the log and the history."""
    says = {
        Landing.LANDED: "has it",
        Landing.ELSEWHERE: "has it in another target",
        Landing.VOID: "does not have it",
        Landing.CUT: "has a part of it, and will not get the rest",
    }

    def told(name: str) -> str:
        if name in found.landings:
            return f"{named(name)} {says.get(found.landings[name], 'may have it')}"
        if name in found.batch.written:
            return f"{named(name)} has it"
        if name not in found.outputs:
            return f"whether output {name!r} has it is unknown: the program has no such output"
        return f"{named(name)} may have it, and keeps no mark"

    return "; ".join(told(name) for name in found.every if name not in found.joined)
