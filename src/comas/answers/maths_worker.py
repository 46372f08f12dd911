r"""The process that checks mathematics with math-verify (sympy underneath): JSON lines in, JSON
lines out.

Runs apart from everything else, because sympy may take for ever or all memory on a few hostile
characters; whoever asks kills it at a limit. Its own timeouts are off: they need the main thread
and hide what happened. Leaves out: reading boxes.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space; beyond, a request fails with MemoryError."""
ORPHAN = 60
"""Seconds after which a process that nobody killed ends itself."""
COMPUTING = 5.0
"""Seconds of computing for one request, however many pass on the clock: a busy machine changes no
verdict.
"""
CLOSE = 1e-4
"""How far apart, in proportion, decimals may be that agree to six places: those of small numbers
hold few digits.
"""

EXACT = 1e-20
"""The same for numbers without decimals: what thirty digits of evaluation may lose."""


def equal(gold: str, answer: str) -> bool:
    """Whether two answers, as `notation.readable` gives them, are the same mathematical object."""
    from math_verify import verify

    left = _parsed(gold)
    right = _parsed(answer)
    if not left:
        raise ValueError(f"the reference {gold!r} cannot be read as mathematics")
    return (
        bool(right)
        and bool(verify(left, right, timeout_seconds=None, raise_on_error=True))
        and not _far(left[0], right[0])
    )


def _far(gold: Any, answer: Any) -> bool:
    """Whether two numbers differ: exact ones at all, decimals by more than their rounding.

    The checker itself compares six decimal places, so that any two tiny numbers are one to it.
    """
    from sympy import Expr, Float

    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    if gold.free_symbols or answer.free_symbols:
        return False
    rounded = gold.has(Float) or answer.has(Float)
    size = abs(gold.evalf(30))
    apart = abs((gold - answer).evalf(30))
    if not size.is_number or not apart.is_number or not size.is_finite:
        return False
    return bool(apart > (CLOSE if rounded else EXACT) * size)


def digests(text: str) -> bool:
    """Parse a text and compare it with 1, to see whether the checker can handle it at all."""
    from math_verify import verify

    parsed = _parsed(text)
    if parsed:
        verify(_parsed("1"), parsed, timeout_seconds=None, raise_on_error=True)
        verify(parsed, _parsed("1"), timeout_seconds=None, raise_on_error=True)
    return True


def value(text: str) -> float | None:
    """The number that an expression comes to; None if it does not come to a finite real one."""
    from sympy import Expr

    for parsed in _parsed(text):
        if not isinstance(parsed, str):
            if not isinstance(parsed, Expr) or parsed.free_symbols:
                return None
            try:
                number = float(parsed.evalf())  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                return None
            return number if math.isfinite(number) else None
    return None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    parsed = parse(f"\\boxed{{{text}}}", extraction_config=kinds, parsing_timeout=None)  # type: ignore[arg-type]
    return [_with_unit_i(part) for part in parsed]


def _with_unit_i(part: Any) -> Any:
    """A formula in which the letter i is the imaginary unit."""
    from sympy import Basic, I

    if not isinstance(part, Basic):
        return part
    return part.subs({symbol: I for symbol in part.free_symbols if str(symbol) == "i"})


def main() -> None:
    """Answer until stdin ends."""
    # whatever a library prints is not an answer
    out = sys.stdout
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not on this system: the limit in seconds is left
    logging.disable(logging.CRITICAL)
    equal("\\frac{1}{2}", "0.5")  # imports, and fills caches
    print(json.dumps({"answer": "ready"}), file=out, flush=True)
    work = {"equal": equal, "value": value, "digests": digests}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(ORPHAN)
            signal.setitimer(signal.ITIMER_PROF, COMPUTING)
        try:
            reply = {"answer": work[name](*arguments)}
        except (Exception, RecursionError) as error:  # noqa: BLE001 - it is the asker's to count
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        if hasattr(signal, "alarm"):
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)  # idle: it ends with its stdin
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
