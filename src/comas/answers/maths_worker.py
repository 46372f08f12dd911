r"""The process that checks mathematics with math-verify (sympy underneath): JSON lines in, JSON lines out.

Runs apart from everything else, because sympy may take for ever or all memory on a few hostile characters; whoever asks kills
it at a limit. Its own timeouts are off: they need the main thread and hide what happened. Leaves out: reading boxes.
"""

from __future__ import annotations

import json
import logging
import math
import re
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space; beyond, a request fails with MemoryError."""
ORPHAN = 60
"""Seconds after which a process that nobody killed ends itself."""

_SPACES = re.compile(r"\\[,!;: ]|~|\s+|\\q?quad\b")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"\(?[A-Za-z][A-Za-z' -]*\)?\Z")


def plain(text: str) -> str:
    """LaTeX without what changes only its look: spaces, sizes, text boxes, display fractions, dollar signs around it."""
    text = _TEXT.sub(r"\1", _SIZES.sub("", text.strip().strip("$")))
    return _SPACES.sub("", re.sub(r"\\[dt]frac", r"\\frac", text)).rstrip(".")


def equal(gold: str, answer: str) -> bool:
    """Whether two answers are the same mathematical object; words (`\\text{east}`, `(C)`) only if they are the same words."""
    one, other = plain(gold), plain(answer)
    if one == other:
        return True
    if _is_words(gold):  # to sympy `east` and `teas` are one product
        return one.strip("()").casefold() == other.strip("()").casefold()
    from math_verify import verify

    left, right = _parsed(gold), _parsed(answer)
    if not left:
        raise ValueError(f"the reference {gold!r} cannot be read as mathematics")
    return bool(right) and bool(verify(left, right, timeout_seconds=None, raise_on_error=True))


def value(text: str) -> float | None:
    """The number that an expression comes to; None if it does not come to a finite real one."""
    from sympy import Basic

    for found in _parsed(text):
        if isinstance(found, Basic) and not found.free_symbols:
            try:
                number = float(found.evalf())  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                return None
            return number if math.isfinite(number) else None
    return None


def _is_words(gold: str) -> bool:
    inside = _TEXT.fullmatch(gold.strip().strip("$"))
    return inside is not None and _WORDS.match(inside[1].strip()) is not None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    kinds = (LatexExtractionConfig(), ExprExtractionConfig())
    return parse(f"\\boxed{{{text}}}", extraction_config=kinds, parsing_timeout=None)  # type: ignore[arg-type]


def main() -> None:
    """Answer until stdin ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is not an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not on this system: the limit in seconds is left
    logging.disable(logging.CRITICAL)
    equal("\\frac{1}{2}", "0.5")  # imports, and fills caches
    print(json.dumps({"answer": "ready"}), file=out, flush=True)
    work = {"equal": equal, "value": value}
    for line in sys.stdin:
        name, *given = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(ORPHAN)
        try:
            told = {"answer": work[name](*given)}
        except (Exception, RecursionError) as error:  # noqa: BLE001 - it is the asker's to count
            told = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()
