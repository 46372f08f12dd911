"""Arithmetic: numbers, + - * / // % **, brackets and a few functions; nothing else is evaluated.

Whole numbers stay exact. Leaves out: names, units, equations.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from comas.types import Tool, ToolFailure

Number = int | float
SIGNS = str.maketrans("×÷−", "*/-")
"""As people write them."""
LONGEST = 1000
"""Characters of an expression."""
EXACT = 1e15
"""Below it a float tells whole numbers apart."""
DIGITS = 300
"""To which numbers are rounded, at most."""
LARGEST = 10**300
"""Largest result that is a whole number; powers beyond it are not computed."""


def _quotient(top: Number, bottom: Number) -> Number:
    """Exact where whole numbers divide without rest."""
    if isinstance(top, int) and isinstance(bottom, int) and bottom and top % bottom == 0:
        return top // bottom
    return top / bottom


def _power(base: Number, exponent: Number) -> Number:
    """A power that is neither huge nor complex."""
    if abs(base) > 1 and exponent * math.log(abs(base)) > math.log(LARGEST):
        raise ToolFailure("the result is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ToolFailure("the result is not a real number")
    return value


def _rounded(value: Number, *digits: int) -> Number:
    """As `round`, which computes a power of ten that has as many digits."""
    if any(abs(number) > DIGITS for number in digits):
        raise ToolFailure(f"numbers are rounded to at most {DIGITS} digits")
    return round(value, *digits)


def _factorial(number: Number) -> int:
    if number > 150:
        raise ToolFailure("the result is too large")
    return math.factorial(number)  # type: ignore[arg-type]


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ToolFailure("the result is too large")
    return value


BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "max": max,
    "min": min,
    "round": _rounded,
    "sqrt": math.sqrt,
    "gcd": math.gcd,
    "factorial": _factorial,
}


def calculate(expression: str) -> str:
    """The value of an expression; ToolFailure says what is wrong with it."""
    if len(expression) > LONGEST:
        raise ToolFailure(f"the expression has more than {LONGEST} characters")
    plain = expression.replace("^", "**").translate(SIGNS)
    try:
        tree = ast.parse(plain.strip(" =\n\t"), mode="eval")
        value = _value(tree.body)
    except ToolFailure:
        raise
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ToolFailure(f"not an expression that can be computed: {expression}") from error
    except ArithmeticError as error:
        raise ToolFailure(f"{error}: {expression}") from error
    return _written(value)


def _written(value: Number) -> str:
    """A number as people write it: a float of a whole value without its point."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise ToolFailure("the result is not a finite number")
    if value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return f"{value:.12g}"


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        operation = BINARY[type(node.op)]
        return _bounded(operation(_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = FUNCTIONS.get(node.func.id)
        if function is not None:
            return _bounded(function(*map(_value, node.args)))
    raise ToolFailure(f"only numbers, + - * / // % ** and {', '.join(FUNCTIONS)} are known")


def make() -> Tool:
    """The calculator."""
    return Tool(
        name="calculator",
        does="computes an arithmetic expression such as (3 + 4) * 2 ** 5",
        argument="expression",
        run=calculate,
    )
