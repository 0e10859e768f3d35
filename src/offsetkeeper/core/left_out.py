"""Outputs that batches were committed without: a release has left one out, and the next one may have it again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from offsetkeeper.core.batch import DEAD_LETTERS, Output
from offsetkeeper.core.commands import command
from offsetkeeper.core.mark import named
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.errors import listed


def gone(before: Mapping[str, Output], here: Mapping[str, Output]) -> list[str]:
    """Return the outputs of the run before that a program has no more.

    A new one with the same kind and target is the old one with another name. Dead letters get no batch of records.

    Args:
        before: what the run before wrote to, see `Snapshot.outputs`.
        here: what the program writes to.
    """
    new = {each.target for name, each in here.items() if name not in before}
    left = {name: each.target for name, each in before.items() if name not in here and name != DEAD_LETTERS}
    return [name for name, target in left.items() if target not in new]


def missed(
    ledger: Snapshot, here: Mapping[str, Output], last: Mapping[str, int], entries: Sequence[Entry]
) -> dict[str, list[Entry]]:
    """Return of each output the commits of batches that it has not got, oldest first; not of one that has them all.

    What has landed under a name that the program does not have may be in an output that had that name. One that joins
    the ledger's transaction has no note in the ledger, so what the run before had under such a name has every batch.

    Args:
        ledger: the ledger, with the outputs of the run before.
        here: what the program writes to.
        last: the sequence of the last batch of each output, as a mark or the ledger's note of one says it.
        entries: the newest history, newest first.
    """
    commits = [each for each in reversed(entries) if each.event == "commit" and not each.is_of_letters]

    def known(output: str) -> int:
        target = here[output].target if output in here else ""
        others = {*ledger.landed, *ledger.outputs} - {*here, DEAD_LETTERS}
        same = [name for name in others if ledger.outputs.get(name, Output(target)).target == target]
        every = [ledger.landed[name].sequence if name in ledger.landed else ledger.sequence for name in same]
        return max([last[output], *every])

    found = {name: [each for each in commits if each.sequence > known(name)] for name in last if last[name]}
    return {name: each for name, each in found.items() if each and name != DEAD_LETTERS}


def gone_text(group: str, outputs: Collection[str]) -> str:
    """Return the warning for outputs that the run before had and the program does not have."""
    names = listed(map(named, outputs), ", ")
    return (
        f"group {group!r}: the run before wrote to {names}, and this program does not. Batches are committed without "
        "it from now on, and nothing brings them there later. If this is a mistake, stop, and start with the release "
        "that has it"
    )


def missed_text(group: str, output: str, commits: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """Return the warning for an output that lacks batches. It says which, and how they get there.

    Args:
        group: the consumer group.
        output: name of the output.
        commits: the commits of these batches, oldest first.
        entries: the history that they were found in, newest first.
    """
    ranges = listed([f"version {each.version}: {r}" for each in commits for r in each.ranges], "; ")
    first, last = commits[0].sequence, commits[-1].sequence
    batches = f"batch {first}" if first == last else f"batches from {first} to {last}"
    whole = entries[-1].version == 1 or any(each.event == "commit" and each.sequence < first for each in entries)
    older = "" if whole else f"The history begins there: batches before {first} may be missing too. "
    replay = command("replay", group, f"--version {commits[0].version} --process module:function")
    return (
        f"group {group!r}: {named(output)} has no mark of {batches}. A release committed them without this output, or "
        "had it under another name or without its mark. If such a release wrote them there, do nothing. Else they are "
        f"missing, and nothing brings them: {ranges}. {older}A replay of each version writes its records by a function "
        f"of yours: {replay}. A reset to before them brings them to each output, and so again to those that have them"
    )
