"""Literal values as JSON: all that a program and its tests can tell each other.

Builds builtin values only, whatever the other side says. Leaves out: objects of other classes,
which do not cross.
"""

from __future__ import annotations

import binascii

TYPE_CHECKING = False  # see `inside`
if TYPE_CHECKING:
    from typing import Any

DEPTH = 60
ITEMS = 1_000_000
"""Nesting and number of values that cross at once."""
LONG = 1 << 63
"""Whole numbers from here on cross in hexadecimal: Python reads and writes only so many decimal
digits.
"""


EXACT = {"fractions": "Fraction", "decimal": "Decimal"}
"""Modules, and their numbers, which cross as they are written. Imported only where one comes: each
takes milliseconds of a sandbox's start.
"""


VIEWS = {"dict_keys": "keys", "dict_values": "values", "dict_items": "items"}
"""Kinds of what a dict shows of itself, and the methods that make them."""


class NotLiteral(TypeError):
    """A value that is not made of numbers, texts and containers."""


def encode(value: Any, depth: int = DEPTH, count: list[int] | None = None) -> Any:
    """A literal value as JSON: containers become lists that begin with their kind. An iterator is
    used up: what it gives crosses.

    Raises NotLiteral.
    """
    count = count if count is not None else [0]
    count[0] += 1
    if depth == 0 or count[0] > ITEMS:
        raise NotLiteral("too deep or too large")
    if isinstance(value, int) and abs(value) >= LONG:
        return ["int", hex(value)]
    if value is None or isinstance(value, bool):
        return value
    kind: Any
    for kind in (int, float, str):
        if isinstance(value, kind):  # of the kind itself, whatever a subclass says
            return kind(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", binascii.b2a_base64(value, newline=False).decode()]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", *[[encode(part, depth - 1, count) for part in pair] for pair in pairs]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):  # by the kind's own iterator, whatever a subclass says
            return [kind.__name__, *[encode(x, depth - 1, count) for x in kind.__iter__(value)]]
    items: Any = value
    of_class: Any = type(value)
    kind = of_class.__name__
    if of_class is range:
        return ["range", *[encode(part) for part in (items.start, items.stop, items.step)]]
    if EXACT.get(of_class.__module__) == kind:
        return [kind, str(value)]
    if kind in VIEWS and of_class.__module__ == "builtins":
        return [kind, *[encode(x, depth - 1, count) for x in items]]
    if hasattr(of_class, "__next__"):
        return ["iterator", *[encode(x, depth - 1, count) for x in items]]
    raise NotLiteral(f"a {type(value).__name__} is no literal value")


def decode(encoded: Any, depth: int = DEPTH) -> Any:
    """The inverse of `encode`; builds builtin values only. Raises NotLiteral."""
    if not isinstance(encoded, list):
        if isinstance(encoded, dict):
            raise NotLiteral("a bare object")
        return encoded
    kind, *parts = encoded
    if depth == 0:
        raise NotLiteral("too deep")
    if kind == "int":
        return int(parts[0], 16)
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return binascii.a2b_base64(parts[0])
    if kind == "dict":
        return {decode(k, depth - 1): decode(v, depth - 1) for k, v in parts}
    for module, name in EXACT.items():
        if kind == name:
            return getattr(__import__(module), name)(parts[0])
    if kind == "range":
        return range(*map(decode, parts))
    if kind in VIEWS:
        items = [decode(x, depth - 1) for x in parts]
        shown = {"keys": dict.fromkeys, "values": lambda x: dict(enumerate(x)), "items": dict}
        return getattr(shown[VIEWS[kind]](items), VIEWS[kind])()
    if kind == "iterator":
        return iter([decode(x, depth - 1) for x in parts])
    collection = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}.get(kind)
    if collection is None:
        raise NotLiteral(f"no kind of value: {str(kind)[:20]}")
    return collection(decode(x, depth - 1) for x in parts)


def plain(value: Any) -> Any:
    """Convert a literal so that equal values are equal texts as JSON.

    Numbers are rounded to ten digits; sets and dicts get one order.
    """
    if isinstance(value, dict):
        return ["dict", *sorted(([plain(k), plain(v)] for k, v in value.items()), key=repr)]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(map(plain, value), key=repr)]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, int):
        # hex: of any length
        return ["number", str(int(value)) if abs(value) < 2**53 else hex(value)]
    if isinstance(value, float):
        is_whole = value.is_integer() and abs(value) < 2**53
        return ["number", str(int(value)) if is_whole else f"{value:.10g}"]
    if type(value).__module__ in EXACT and abs(value) < 2**53:
        return plain(float(value))
    if hasattr(type(value), "__next__"):
        return ["iterator", *map(plain, value)]
    return repr(value)
