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
from collections.abc import Callable
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
ROUNDED = 0.5000001e-6
"""How far apart decimals may be: they agree to six places."""
CLOSE = 1e-4
"""The same in proportion, since those of small numbers hold few digits."""
EXACT = 1e-20
"""The same in proportion for exact numbers: what thirty digits of evaluation may lose."""


def equal(gold: str, answer: str, begin: Callable[[], None]) -> bool:
    """Whether two answers, as `notation.readable` gives them, are the same mathematical object:
    numbers as numbers, all else by math-verify.

    Calls `begin` once the reference is read. Raises ValueError for a reference that is no
    mathematics.
    """
    from math_verify import verify

    left = _parsed(gold)
    if not left:
        raise ValueError(f"the reference {gold!r} cannot be read as mathematics")
    of_gold = _values(left[0])
    begin()
    right = _parsed(answer)
    of_answer = _values(right[0]) if right else []
    if of_gold and of_answer:
        if len(of_gold) == len(of_answer):  # of two percentages neither is read as a plain number
            of_gold, of_answer = of_gold[:1], of_answer[:1]
        return any(_near(one, other) for one in of_gold for other in of_answer)
    return bool(right) and bool(verify(left, right, timeout_seconds=None, raise_on_error=True))


def _values(parsed: Any) -> list[Any]:
    """The finite number that a formula comes to; of a percentage the number before the sign too.
    Empty for all else.
    """
    from math_verify.grader import get_pct_val
    from sympy import Expr

    if not isinstance(parsed, Expr) or parsed.free_symbols:
        return []
    before_sign = get_pct_val(parsed)
    candidates = [parsed] if before_sign is None else [parsed, before_sign]
    values = [candidate.doit() for candidate in candidates]
    finite = all(value.evalf(30).is_number and value.is_finite for value in values)
    return values if finite else []


def _near(one: Any, other: Any) -> bool:
    """Whether two numbers are equal: exact ones exactly, decimals within their rounding."""
    from sympy import Float

    apart = abs((one - other).evalf(30))
    size = max(abs(one.evalf(30)), abs(other.evalf(30)))
    if not one.has(Float) and not other.has(Float):
        return bool(apart <= EXACT * size)
    return bool(apart <= CLOSE * size and apart <= ROUNDED)


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
    equal("\\frac{1}{2}", "0.5", lambda: None)  # imports, and fills caches
    print(json.dumps({"answer": "ready"}), file=out, flush=True)

    def begin() -> None:
        """Say that what happens from here on is the answer's doing, by a blank before the reply."""
        print(" ", end="", file=out, flush=True)

    work: dict[str, Callable[..., Any]] = {"value": value, "digests": digests}
    work["equal"] = lambda gold, answer: equal(gold, answer, begin)
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
