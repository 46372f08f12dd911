"""Who looks on when comas is called from Python: the progress of a call that brings no hooks of its
own.

On a terminal there are lines with a live one below, in a notebook there are lines. Nothing is
printed where nobody looks on: to files and pipes, from threads and from child processes. Leaves
out: the command line, which always shows something.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from comas.hooks import Hook, hooks_of


@contextmanager
def shown(hooks: Sequence[Hook] | None) -> Iterator[Sequence[Hook]]:
    """Yield `hooks`, or where they are None one that shows progress where a person looks on;
    without any, only notes are told (as warnings).
    """
    place = None if hooks is not None else onlooker()
    if place is None:
        checked = hooks if hooks is not None else []
        hooks_of(checked)
        yield checked
        return
    from rich.console import Console

    from comas.display import Display, Lines

    if place == "notebook":
        yield [Lines(Console(file=sys.stdout, force_jupyter=False, force_terminal=False))]
        return
    # standard output is the script's own
    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield [Lines(console)]
        return
    with Display(console, redirect=sys.stdout.isatty()) as display:
        yield [display]


def onlooker() -> Literal["terminal", "notebook"] | None:
    """Where a person can be expected to look on; None where none can."""
    if (
        threading.current_thread() is not threading.main_thread()
        or multiprocessing.parent_process() is not None
    ):
        return None  # one of several, which would draw over one another
    if _kernel():
        return "notebook"
    try:
        return "terminal" if sys.stderr.isatty() else None
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return None


def _kernel() -> bool:
    """Whether this is an IPython kernel, as notebooks have them (an IPython on a terminal is a
    terminal).
    """
    ipython = sys.modules.get("IPython")
    shell = (
        ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    )
    return getattr(shell, "kernel", None) is not None
