"""Programs that attack the sandbox."""

from __future__ import annotations

from comas.sandbox import Found, check
from comas.sandbox.jail import Limits


def attack(body: str, expected: str = "'contained'") -> Found:
    """Whether `f()` of a program gives what is expected; whatever is not allowed must raise OSError
    or the like inside.
    """
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    program = (
        f"import os, sys\ndef f():\n    try:\n{lines}\n    except (OSError, MemoryError,"
        " ValueError):\n"
    )
    program += "        return 'contained'\n    return 'OPEN'\n"
    return check(program, f"assert f() == {expected}", names=["f"], limits=Limits(seconds=5))
