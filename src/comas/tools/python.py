"""Programs in Python, run behind the walls of the sandbox: what they print comes back.

A last line that is an expression is printed as in a notebook, and an error's last line is what its
writer reads. Leaves out: state between calls, files, the network.
"""

from __future__ import annotations

import math
import os
import re

from comas import sandbox
from comas.sandbox.jail import Broken, Limits
from comas.types import Count, HostFailure, Tool, ToolFailure

_FENCE = re.compile(r"\A```(?:python|py)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL)


def run(program: str, seconds: float = 10.0) -> str:
    """Return what a program prints; ToolFailure, with that, where it raises or ends by an exit code
    that is not 0, and where it runs into a limit; HostFailure where the sandbox breaks down.
    """
    fenced = _FENCE.match(program.strip())
    source = fenced[1] if fenced else program
    try:
        ran = sandbox.run(source, limits=Limits(seconds=seconds, cpu=math.ceil(seconds)))
    except Broken as error:
        raise HostFailure(f"the sandbox broke down: {error}") from error
    if ran.why:
        raise ToolFailure(ran.why)
    printed = ran.printed.strip()
    if ran.raised:
        raise ToolFailure(printed or "the program ended with an exit code that is not 0")
    return printed or "(nothing was printed)"


def make(*, seconds: Count = 10) -> Tool:
    """Python with a time limit per call."""
    return Tool(
        name="python",
        does="runs a Python program, and gives back what it prints",
        argument="program",
        run=lambda program: run(program, seconds),
        # starting and ending the walls takes its own time, on a busy machine much of it
        seconds=seconds + 60.0,
        at_once=2 * (os.cpu_count() or 2),
    )
