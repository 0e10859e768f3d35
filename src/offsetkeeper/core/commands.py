"""Commands that messages print, for a shell. Pure."""

from __future__ import annotations

import shlex


def command(name: str, group: str, options: str = "", *arguments: str) -> str:
    """Return a command on a group as it is typed in a shell: a name that begins with `-` comes last, after `--`.

    Args:
        name: name of the command, such as `reset`.
        group: the consumer group.
        options: the options, quoted already.
        arguments: what follows the group.
    """
    words = " ".join(map(shlex.quote, (group, *arguments)))
    if group.startswith("-"):
        words, options = "", f"{options} -- {words}".lstrip()
    return " ".join(filter(None, ("offsetkeeper", name, words, options)))
