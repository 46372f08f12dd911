"""Out of memory, in one line that says which keys of a host help.

Leaves out: trying again by itself with less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from comas.types import UserMistake

SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""What torch's allocators and libraries say, in the text of a RuntimeError: there is a class of its
own for GPUs only.
"""


@contextmanager
def in_memory(host: str, doing: str, remedy: str) -> Iterator[None]:
    """What is done in here; `remedy` may name the host's keys as `{host}.context`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in SIGNS):
            raise
        reason = " ".join(str(error).split())[:120]
        said = f" ({reason})" if reason else ""
        raise UserMistake(
            f"host {host}: out of memory while {doing}{said}: {remedy.format(host=f'hosts.{host}')}"
        ) from error
