"""The mark of a group and output as transactions of an application in a table's log. Pure.

A table's log keeps the last number of each application for ever, also after checkpoints and after old commits are
deleted. It keeps only numbers. So the sequence is the number of one application, and the rest of the mark is cut into
pieces of seven bytes, which are the numbers of other applications. All change in one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.errors import MarkError
from offsetkeeper.sinks.sink import MarkKey

_BYTES = 7  # a number has 63 bits
_END = b"\0"


def transactions(key: MarkKey, mark: OutputMark) -> dict[str, int]:
    """Return the number of each application of the mark: of the sequence, and of pieces, which add `/0` and so on."""
    name = key.path
    text = str(mark).partition(" ")[2].encode() + _END
    pieces = [text[at : at + _BYTES].ljust(_BYTES, _END) for at in range(0, len(text), _BYTES)]
    return {name: mark.sequence, **{f"{name}/{n}": int.from_bytes(piece) for n, piece in enumerate(pieces)}}


def read(number: Callable[[str], int | None], key: MarkKey) -> OutputMark | None:
    """Return the mark, or None if there is none.

    Args:
        number: returns the number of an application; None if the table has none.
        key: key of the mark.

    Raises:
        MarkError: another program has written these applications.
    """
    name = key.path
    sequence = number(name)
    if sequence is None:
        return None
    text = b""
    for n in count():
        piece = number(f"{name}/{n}")
        if piece is None or not 0 <= piece < 1 << 8 * _BYTES:
            raise MarkError(f"transaction {name}/{n} is {piece}, but offsetkeeper never writes this value")
        text += piece.to_bytes(_BYTES)
        if text.endswith(_END):
            break
    return OutputMark.parse(f"{sequence} {text.rstrip(_END).decode(errors='replace')}")
