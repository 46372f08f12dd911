r"""The process that compares values of mathematical answers with sympy: JSON lines in, JSON lines
out.

Formulas are read by the grammar of latex2sympy2_extended, whole or not at all. Numbers are compared
as numbers; formulas with unknowns at some points, since identities of formulas hold everywhere or
almost nowhere. Runs apart from everything else, because sympy may take for ever or all memory on a
few hostile characters; whoever asks kills it at a limit. Leaves out: the parts of an answer
(`parts`).
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from comas.answers.parts import Node, same

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
"""Relative difference that decimals may have, since those of small numbers hold few digits."""
EXACT = 1e-20
"""Relative difference that exact numbers which are no fractions may have: what thirty digits of
evaluation may lose.
"""
POINTS = 12
"""Places at which formulas with unknowns are compared."""
NEEDED = 3
"""Places, of `POINTS`, that have to give numbers on both sides."""


def equal(gold: Node, answer: Node, begin: Callable[[], None]) -> bool:
    """Whether two answers, as nodes of `parts`, are the same. Calls `begin` once the reference is
    evaluated.
    """
    for latex in _formulas(gold):
        _value(latex)
    begin()
    return same(gold, answer, _same_value)


def _formulas(node: Any) -> Iterator[str]:
    """The formulas in a node."""
    if isinstance(node, list):
        if node[:1] == ["value"] and isinstance(node[1], str):
            yield node[1]
        for part in node[1:] if node and isinstance(node[0], str) else node:
            yield from _formulas(part)


def _same_value(kind: str, gold: Any, answer: Any) -> bool:
    if kind == "ratio":
        pairs = [[_parsed_node(node) for node in nodes] for nodes in (gold, answer)]
        if any(part is None for part in pairs[0] + pairs[1]):
            return False
        (one, *ones), (other, *others) = pairs
        return all(_same_formula(a * other, b * one) for a, b in zip(ones, others, strict=True))
    if kind == "congruence":
        return _same_congruence(gold, answer)
    if kind == "sets":
        one, other = _as_set(gold), _as_set(answer)
        return one is not None and other is not None and bool(one == other)
    if kind == "value":
        one, other = _parsed_node(gold), _parsed_node(answer)
        if one is None or other is None:
            return False
        return _same_object(*_in_one_case([one, other]))
    return _same_relation(kind, gold, answer)


# --- formulas


@lru_cache(maxsize=4096)
def _parsed(latex: str) -> Any:
    """The sympy object of a formula; None where the grammar does not read all of it."""
    from antlr4 import Token
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
    from sympy import Basic, I

    # R and r are two radii
    reader = _Latex2Sympy(is_real=True, config=ConversionConfig(lowercase_symbols=False))
    try:
        parser = reader.create_parser(latex)
        parser.math()
        following = parser.getCurrentToken()
        if following is None or following.type != Token.EOF:
            return None
        parsed = reader.parse(latex)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - the library raises Exception itself where it cannot read
        return None
    if not isinstance(parsed, Basic):
        return parsed
    return parsed.subs({symbol: I for symbol in parsed.free_symbols if str(symbol) == "i"})


def _parsed_node(node: Node) -> Any:
    return _parsed(node[1]) if node[0] == "value" and node[1] is not None else None


def _in_one_case(formulas: list[Any]) -> list[Any]:
    """Formulas with all names in small letters, unless one of them tells `R` from `r`."""
    from sympy import Basic, Symbol

    renamed: dict[Any, Any] = {}
    for formula in formulas:
        symbols = formula.free_symbols if isinstance(formula, Basic) else set()
        small = {symbol: Symbol(str(symbol).lower(), real=symbol.is_real) for symbol in symbols}
        if len(set(small.values())) < len(symbols):
            return formulas
        renamed |= small
    return [f.xreplace(renamed) if isinstance(f, Basic) else f for f in formulas]


@lru_cache(maxsize=4096)
def _value(latex: str) -> Any:
    """The finite number that a formula comes to; None for all else."""
    return _number(_parsed(latex))


def _number(parsed: Any) -> Any:
    from sympy import Expr

    if not isinstance(parsed, Expr) or parsed.free_symbols:
        return None
    value = parsed.doit()
    return value if value.evalf(30).is_number and value.is_finite else None


def _same_object(one: Any, other: Any) -> bool:
    """Whether two parsed formulas are the same: numbers, formulas with unknowns, infinity."""
    from sympy import Expr

    numbers = _number(one), _number(other)
    if numbers[0] is not None and numbers[1] is not None:
        return _near(*numbers)
    if isinstance(one, Expr) and isinstance(other, Expr):
        return bool(one == other) or (
            bool(one.free_symbols | other.free_symbols) and _same_formula(one, other)
        )
    return bool(one == other)


def _near(one: Any, other: Any) -> bool:
    """Whether two numbers are equal: exact ones exactly, decimals within their rounding."""
    from sympy import Float

    if one.is_Rational and other.is_Rational and not one.has(Float) and not other.has(Float):
        return bool(one == other)
    apart = abs((one - other).evalf(30))
    size = max(abs(one.evalf(30)), abs(other.evalf(30)))
    if not one.has(Float) and not other.has(Float):
        return bool(apart <= EXACT * size)
    return bool(apart <= CLOSE * size and apart <= ROUNDED)


def _same_formula(one: Any, other: Any) -> bool:
    """Whether two formulas have the same value at all points where both have a real one; where
    there are none, at all where both have one.
    """
    if (numbers := (_number(one), _number(other))) and None not in numbers:
        return _near(*numbers)
    pairs = _at_points([one, other])
    real = [pair for pair in pairs if all(value.is_real for value in pair)]
    compared = real if len(real) >= NEEDED else pairs
    return len(compared) >= NEEDED and all(
        abs(a - b) <= 1e-12 * max(abs(a), abs(b)) for a, b in compared
    )


def _at_points(formulas: list[Any]) -> list[list[Any]]:
    """The values of formulas at points where each of them has one: of both signs, small fractions,
    and whole numbers where they count something.
    """
    from sympy import Integral, Limit, Product, Rational, Sum, Symbol, binomial, factorial
    from sympy.core.function import AppliedUndef

    done = [f.doit() if f.has(Sum, Product, Integral, Limit) else f for f in formulas]
    called = {call for formula in done for call in formula.atoms(AppliedUndef)}
    names = {call: Symbol(f"value of {call}") for call in called}
    done = [formula.xreplace(names) for formula in done]
    symbols = sorted({s for formula in done for s in formula.free_symbols}, key=str)
    counts = any(formula.has(factorial, binomial, Sum, Product) for formula in done)
    rows: list[list[Any]] = []
    for point in range(POINTS):
        where = {}
        for i, symbol in enumerate(symbols):
            size = Fraction(3 + (7 * point + 11 * i * i + 5 * i) % 23, 2 + (5 * point + 3 * i) % 11)
            sign = -1 if (point >> (i % 3)) & 1 else 1
            whole = 2 + (3 * point + 5 * i + point * i) % 11
            where[symbol] = whole if counts else Rational(sign * size.numerator, size.denominator)
        values = [formula.subs(where).evalf(25) for formula in done]
        if all(value.is_number and value.is_finite for value in values):
            rows.append(values)
    return rows


# --- equations, inequalities, congruences, sets


def _same_relation(kind: str, gold: Node, answer: Node) -> bool:
    """Whether two equations or inequalities are proportional: what they say is zero, less than zero
    or not zero differs by a factor, which for `<` and `\\le` is positive.
    """
    differences = [_differences(node) for node in (gold, answer)]
    if None in differences or len(differences[0]) != len(differences[1]):
        return False
    if kind == "relation" and gold[1] != answer[1]:
        return False
    is_directed = kind == "relation" and gold[1] != r"\ne"
    count = len(differences[0])
    both = _in_one_case([*differences[0], *differences[1]])
    differences = [both[:count], both[count:]]
    return all(_proportional(a, b, is_directed) for a, b in zip(*differences, strict=True))


def _differences(node: Node) -> Any:
    """The differences of the sides of an equation or an inequality; None where one has no value."""
    if node[0] == "named":
        sides = [["value", name, name] for name in node[1]] + [node[2]]
    else:
        sides = node[2:] if node[0] == "relation" else node[1]
    parsed = [_parsed_node(side) for side in sides]
    if any(part is None for part in parsed):
        return None
    from sympy import Expr

    if not all(isinstance(part, Expr) for part in parsed):
        return None
    return [left - right for left, right in pairwise(parsed)]


def _proportional(one: Any, other: Any, is_directed: bool) -> bool:
    if not one.free_symbols and not other.free_symbols:
        return bool(one == other)
    pairs = [pair for pair in _at_points([one, other]) if pair[1] != 0]
    if len(pairs) < NEEDED:
        return False
    factors = [a / b for a, b in pairs]
    first = factors[0]
    if first == 0 or (is_directed and not first.is_positive):
        return False
    return all(abs(factor - first) <= 1e-12 * abs(first) for factor in factors)


def _same_congruence(gold: Node, answer: Node) -> bool:
    """Whether unknown and modulus are the same, and the residues for that modulus."""
    unknowns = gold[1], answer[1]
    if None not in unknowns and unknowns[0] != unknowns[1]:
        return False
    parsed = [_parsed_node(node) for node in (gold[3], answer[3], gold[2], answer[2])]
    if any(part is None for part in parsed):
        return gold[2:] == answer[2:]
    modulus, modulus_2, residue, residue_2 = parsed
    if not _same_object(modulus, modulus_2):
        return False
    if modulus.is_Integer and residue.is_Integer and residue_2.is_Integer:
        return bool((residue - residue_2) % modulus == 0)
    return _same_object(residue, residue_2)


def _as_set(node: Node) -> Any:
    """The sympy set of a node; None where it is none."""
    from sympy import Complement, FiniteSet, Intersection, Interval, Set, Union

    if node[0] == "value":
        parsed = _parsed_node(node)
        return parsed if isinstance(parsed, Set) else None
    if node[0] == "set":
        members = [_parsed_node(member) for member in node[1]]
        return None if any(member is None for member in members) else FiniteSet(*members)
    if node[0] == "tuple" and len(node[2]) == 2:
        low, high = (_parsed_node(bound) for bound in node[2])
        if low is None or high is None or not (low.is_extended_real and high.is_extended_real):
            return None
        return Interval(low, high, node[1][0] in "()", node[1][-1] in "()")
    if node[0] == "sets":
        sets = [_as_set(part) for part in node[2]]
        if any(part is None for part in sets):
            return None
        return {r"\cup": Union, r"\cap": Intersection, r"\backslash": Complement}[node[1]](*sets)
    return None


# --- the process


def value(node: Node) -> float | None:
    """The number that a node comes to; None if it does not come to a finite real one."""
    number = _value(node[1]) if node[0] == "value" and node[1] is not None else None
    if number is None or not number.is_real:
        return None
    as_float = float(number)
    return as_float if math.isfinite(as_float) else None


def digests(node: Node) -> bool:
    """Evaluate an answer, to see whether the checker can handle it at all."""
    for latex in _formulas(node):
        _value(latex)
    return True


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
    _value(r"\frac{1}{2}")  # imports, and fills caches
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
