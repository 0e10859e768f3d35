"""Whether the query that committed last has read every record from an offset on, by the ledger's history. Pure.

A state that is built again must have the records that the lost state had, and no others. So the walk goes back from the
positions through the commits of that query. Where the query or a partition began, the state began too: no record
before that counts. A position that was set, a run without state or another query breaks the walk; and so does a query
that was taken over with its state, as by `OnMismatch(hole="follow")`: the history does not show what it had read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import listed

REBUILDS = "a new checkpoint builds the state"
"""How the reason begins of the entry that counts a query whose state is built again from that of the one before."""
Offsets = Mapping[TopicPartition, int]


class Unbroken(NamedTuple):
    """What the history shows.

    Attributes:
        starts: the first offset of each partition that the state may have, at or after the wanted one.
        why: why it is not shown that all records from there on are in the state; empty if it is.
        short: whether only the history is too short.
    """

    starts: Offsets
    why: str = ""
    short: bool = False


def unbroken(history: Iterable[Entry], starts: Offsets, ends: Offsets) -> Unbroken:
    """Return from where on the query has read everything up to the positions.

    Args:
        history: the ledger's history, newest first.
        starts: the first offset of each partition that is wanted.
        ends: the positions.
    """
    walk = _Walk(starts, ends)
    for entry in history:
        if not walk.at:
            break
        if why := walk.back(entry):
            return Unbroken(starts, f"{why} (version {entry.version} of the ledger)")
    left = listed((f"{tp} from {walk.starts[tp]}" for tp in sorted(walk.at)), ", ")
    why = f"the history is too short to show who read {left}" if left else ""
    return Unbroken(walk.starts, why, short=bool(why))


class _Walk:
    """Where the walk is in each partition that is not done."""

    def __init__(self, starts: Offsets, ends: Offsets) -> None:
        self.starts = dict(starts)
        self.at = {tp: end for tp, end in ends.items() if starts[tp] < end}
        self._query = ""  # the one whose commits the walk is in
        self._moved: set[TopicPartition] = set()

    def back(self, entry: Entry) -> str:
        """Go back before an entry; return what breaks the walk, or an empty text."""
        if entry.event == "commit":
            return self._commit(entry)
        if forgot := sorted(entry.forgot.keys() & self.at.keys()):
            return f"{forgot[0]} was forgotten"
        if entry.event == "copy":
            return "the ledger was copied from another store"
        for tp, move in sorted(entry.moves.items()):
            if tp not in self.at or (move.before and move.before.offset == move.after.offset):
                continue
            if entry.event != "place" or move.before is not None or move.after.offset != self.at[tp]:
                return f"the position of {tp} was set to {move.after.offset}"
            self.starts[tp] = self.at.pop(tp)  # it began there
        return self._counted(entry)

    def _counted(self, entry: Entry) -> str:
        """Go back before an entry that may begin to count the query; return as `back`."""
        began = entry.counts.get(self._query) if self._query else None
        if began is None or began.before is not None:
            return ""
        if not began.after:
            return self._begin(self._query)
        if not entry.reason.startswith(REBUILDS):
            return f"the query {self._query} was taken over at its batch {began.after}"
        self._query = ""  # its state was built again from that of the query before
        return ""

    def _commit(self, entry: Entry) -> str:
        query = next(iter(entry.counts), "")
        if not query:
            touched = {r.topic_partition for r in entry.ranges} & self.at.keys()
            return f"a run without state has read {min(touched)}" if touched else ""
        if self._query and query != self._query:
            return self._begin(self._query)
        self._query = query
        for r in sorted(entry.ranges, key=lambda each: each.end, reverse=True):
            tp = r.topic_partition
            if tp in self.at:
                if r.end != self.at[tp]:
                    return f"{tp} was read up to {r.end}, and not up to {self.at[tp]}"
                self.at[tp] = r.start
                self._moved.add(tp)
                if r.start <= self.starts[tp]:
                    del self.at[tp]
        return ""

    def _begin(self, query: str) -> str:
        """Say that the state of a query began here, empty."""
        if others := sorted(self.at.keys() - self._moved):
            return f"another query than {query}, which committed last, has read {others[0]}"
        self.starts |= self.at
        self.at = {}
        return ""
