"""Out of memory, in one line that says which keys of a host help.

Leaves out: going on with less (`hosts.local_host` for sampling, `learners.step` for learning).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from comas.seams import out_of_memory
from comas.types import UserMistake


@contextmanager
def in_memory(host: str, doing: str, remedy: str) -> Iterator[None]:
    """What is done in here; `remedy` may name the host's keys as `{host}.context`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:120]
        said = f" ({reason})" if reason else ""
        raise UserMistake(
            f"host {host}: out of memory while {doing}{said}: {remedy.format(host=f'hosts.{host}')}"
        ) from error
