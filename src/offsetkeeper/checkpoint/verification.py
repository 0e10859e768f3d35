"""All problems of a checkpoint, each with its remedy.

No remedy deletes files that Spark would start from: tests start Spark on each of these checkpoints, before and after.
"""

from __future__ import annotations

from offsetkeeper.checkpoint.contents import read_checkpoint
from offsetkeeper.checkpoint.file_lists import file_source_problems
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_problems import log_problems
from offsetkeeper.checkpoint.problems import Problem
from offsetkeeper.checkpoint.start_problems import problems_at_start
from offsetkeeper.checkpoint.state_problems import state_problems


def verify(files: Files) -> list[Problem]:
    """Return the problems, in the order in which to correct them.

    Raises:
        Refused: the checkpoint does not exist, or may not be read.
        StoreUnavailable: the checkpoint could not be read.
    """
    found = read_checkpoint(files)
    if found.barrier:
        what = "a change was interrupted; Spark refuses to start a query from here"
        return [Problem(found.barrier, what, "Undo the change")]
    problems = [*file_source_problems(found, files), *log_problems(found, files)]
    if all(each.harmless for each in problems):
        problems += [*problems_at_start(found, files), *state_problems(found, files)]
    return problems
