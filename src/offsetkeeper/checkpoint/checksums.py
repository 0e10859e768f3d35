"""Hadoop's checksums of local files: `.<name>.crc` beside the file, a CRC-32 of every 512 bytes or so."""

from __future__ import annotations

import struct
import zlib

_HEAD = struct.Struct(">4sI")
_MAGIC = b"crc\0"


def fits(content: bytes, checksum: bytes) -> bool:
    """Whether a checksum file is that of a file's content."""
    if len(checksum) < _HEAD.size:
        return False
    magic, size = _HEAD.unpack_from(checksum)
    if magic != _MAGIC or not size:
        return False
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    return checksum[_HEAD.size :] == b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)
