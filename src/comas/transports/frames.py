"""Frames over a stream of bytes: eight bytes of length, then as many.

Leaves out: what is in them.
"""

from __future__ import annotations

import struct
from typing import IO

LENGTH = struct.Struct("<Q")
LONGEST = 2**40
"""Bytes. What claims more is no frame."""


class Cut(Exception):
    """A stream that ended within a frame, or carries something else."""


def write_frame(stream: IO[bytes], frame: bytes) -> None:
    """Write a frame whole."""
    stream.write(LENGTH.pack(len(frame)))
    stream.write(frame)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None where the stream has ended between two. Raises Cut."""
    head = stream.read(LENGTH.size)
    if not head:
        return None
    if len(head) < LENGTH.size:
        raise Cut("its messages were cut within a length")
    (length,) = LENGTH.unpack(head)
    if length > LONGEST:
        raise Cut(f"it sent what is no message ({head!r})")
    frame = stream.read(length)
    if len(frame) < length:
        raise Cut(f"its messages were cut: {len(frame)} of {length} bytes came")
    return frame
