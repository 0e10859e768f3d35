"""Problems in a file source's lists of files that it has read, `sources/<id>/<n>`.

Spark reads the newest compact list, `<n>.compact`, which includes all lists before it, and all lists after it. If a
list is missing, no query starts; if its content is missing, files are read again. See CompactibleFileStreamLog of Spark
4.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.files import Files
from offsetkeeper.checkpoint.log_format import TooManyLines, file_list, format_version, is_file_source, lines_of
from offsetkeeper.checkpoint.problems import BACKUP, UNKNOWN_FORMAT, Problem
from offsetkeeper.core.outside import load_json
from offsetkeeper.errors import CorruptStore

_NAME = re.compile(r"([0-9]{1,18})(\.compact)?")
_LARGEST = 16 * 2**20  # bytes: the content of larger lists is not checked
_MOST_ENTRIES = 500_000  # the same for these; an entry of Spark's has a hundred bytes or more
_REMEDY = f"{BACKUP}, or begin a new checkpoint"


def file_source_problems(found: Checkpoint, files: Files) -> Iterator[Problem]:
    """Yield the places where a file source has lost lists of files that it has read."""
    for source, text in _newest_sources(found).items():
        if not is_file_source(text):
            continue
        number = file_list(text)
        if number is None:
            what = f"source {source}: the number of its list is not a number: the query fails"
            yield Problem(f"offsets/{found.offsets[-1]}", what, _REMEDY)
        elif number >= 0:
            yield from _lists(found, files, f"sources/{source}", number)


def _lists(found: Checkpoint, files: Files, folder: str, number: int) -> Iterator[Problem]:
    names = {name.removeprefix(f"{folder}/") for name in found.listed if name.startswith(f"{folder}/")}
    there: dict[int, str] = {}
    for match in filter(None, map(_NAME.fullmatch, sorted(names))):
        there[int(match[1])] = match[0]  # of both, the compact one comes later
    newest = max(there, default=-1)
    if newest < number:
        yield Problem(folder, f"the list of the files of batch {number} is gone: the query fails", _REMEDY)
        return
    first = max((n for n, name in there.items() if name.endswith(".compact")), default=0)
    sizes = {name.removeprefix(f"{folder}/"): stamp.size for name, stamp in files.stamps(folder).items()}
    if gap := next((n for n in range(first, newest) if n not in there), None):
        yield Problem(f"{folder}/{gap}", "the list is gone: the query fails", _REMEDY)
    for name in (there[n] for n in sorted(there) if n >= first):
        where = f"{folder}/{name}"
        content = (files.read(where) or b"") if sizes.get(name, 0) <= _LARGEST else None
        if content is not None and (what := _wrong(content)):
            newer = (format_version(content) or 0) > 1
            yield Problem(where, what, UNKNOWN_FORMAT if newer else _REMEDY)


def _wrong(content: bytes) -> str:
    """Return the problem of a list, or an empty text."""
    version = format_version(content)
    if version is None or version < 1:
        return "the list does not begin with the version of its format: the query fails"
    if version > 1:
        return f"the format v{version} of the list is not known here"
    try:
        entries = lines_of(content.decode(), _MOST_ENTRIES)[1:]
        for line in entries:
            load_json(line)
    except TooManyLines:
        return ""
    except (ValueError, RecursionError):
        return "the list is damaged: the query fails"
    return "" if entries else "the list has no file: Spark reads files again"


def _newest_sources(found: Checkpoint) -> Mapping[str, str | None]:
    with suppress(CorruptStore, IndexError):
        return found.offset_log(found.offsets[-1]).sources
    return {}
