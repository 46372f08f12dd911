"""Many answers checked side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from comas.machine import usable_cpus
from comas.types import Question, Verdict


def verdicts(
    verify: Callable[[Question, str], Verdict], pairs: Iterable[tuple[Question, str]]
) -> list[Verdict]:
    """A verdict per pair, in their order; checkers that work in processes of their own are asked
    side by side.
    """
    with ThreadPoolExecutor(2 * usable_cpus()) as threads:
        return list(threads.map(lambda pair: verify(*pair), pairs))
