r"""The parts of a mathematical answer: lists, tuples, sets, intervals, matrices, equations,
inequalities, congruences, quantities, words; the same grammar for references and answers.

`parse` gives nodes, which are lists that JSON can hold:

| node | what it is |
|---|---|
| `["value", latex, writing]` | a formula; `latex` is None where it holds what is no formula |
| `["percent", node]` | a number of hundredths |
| `["list", nodes]` | several answers, in any order |
| `["tuple", brackets, nodes]` | in their order; an interval too |
| `["set", nodes]`, `["sets", sign, nodes]` | braces; a union, an intersection, a difference |
| `["matrix", rows]` | rows of nodes |
| `["named", names, node]` | an answer with what it is the value of |
| `["equal", nodes]` | an equation or a calculation, without a name for its value |
| `["relation", sign, left, right]` | an inequality that is no interval |
| `["congruence", unknown or None, residue, modulus]` | |
| `["numeral", digits, base]`, `["time", parts, half]`, `["ratio", nodes]`, `["words", text]` | |

A part is read whole or has no value; then it is equal only to the same writing. Pure functions.
Leaves out: values (`maths_worker`), sets that are given by other conditions than bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from comas.answers import units
from comas.answers.notation import BOX, tokens, writing

Node = list[Any]
DEPTH = 12
"""Brackets and separators within each other that are read."""
_OPEN = {"(": ")", "[": "]", r"\{": r"\}", "{": "}"}
_MIRRORED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_RELATIONS = {"=", *_MIRRORED, r"\ne", r"\approx", r"\in", r"\equiv"}
_AND, _OR = r"\text{and}", r"\text{or}"
_SETS = {r"\cup", r"\cap", r"\backslash"}
_MATRICES = r"\\begin\{[pbB]?matrix\}"
_ROWS = r"\\begin\{(?:aligned|align\*?|cases|gathered|gather\*?|array|split)\}"


@lru_cache(maxsize=4096)
def parse(text: str) -> Node:
    """The node of an answer, which nobody changes: in a vote each answer is compared with every
    other one.
    """
    signs = tokens(text)
    return ["value", None, text.strip()] if signs is None else _parse(signs, DEPTH)


_WORDS = re.compile(r"(?:\\text\{[^{}]*\}|[a-z])+")


def trails_off(text: str) -> bool:
    """Whether `and` or `or` joins a number with words that are no second answer (`5 or so`).

    One letter may be one (`2 or n`).
    """
    signs = tokens(re.sub(BOX, r" \1 ", text)) or []
    pieces = ["".join(piece).strip(" ,;") for piece in _split(signs, {_AND, _OR})]
    words = [len(piece) > 1 and _WORDS.fullmatch(piece) is not None for piece in pieces]
    return any(words) and any(re.search("[0-9]", piece) for piece in pieces)


def _parse(signs: list[str], depth: int) -> Node:
    if depth == 0 or not signs:
        return _unread(signs)
    if signs[0] == "{" and _closing(signs) == len(signs) - 1:
        inside = signs[1:-1]
        return _parse([r"\{", *inside, r"\}"] if len(_split(inside, {","})) > 1 else inside, depth)
    if signs[0] in ("(", "[") and signs[1:2] == [r"\begin{array}"] and len(signs) > 4:
        signs = [r"\begin{pmatrix}", *signs[2:-2], r"\end{pmatrix}"]
    if signs[0].startswith(r"\begin") and signs[-1] == signs[0].replace("begin", "end"):
        inside = signs[1:-1]
        if re.fullmatch(_MATRICES, signs[0]):
            rows = [_split(row, {"&"}) for row in _split(inside, {r"\\"}) if row]
            return ["matrix", [[_parse(cell, depth - 1) for cell in row] for row in rows]]
        if re.fullmatch(_ROWS, signs[0]):
            return _list([sign for sign in inside if sign != "&"], depth)
    return _list(signs, depth)


def _list(signs: list[str], depth: int) -> Node:
    """A node of parts that separators part; the one part where there is none."""
    separators = {",", ";", r"\\", _AND, _OR}
    pieces = [piece for piece in _split(signs, separators) if piece]
    if len(pieces) > 1 and not _is_all_words(signs):
        nodes = [_parse(piece, depth - 1) for piece in pieces]
        joined = {sign for sign in (_AND, _OR) if sign in signs}
        if len(joined) == 1 and "," not in signs and all(map(_is_bounded, nodes)):
            return _joined(nodes, r"\cup" if _OR in joined else r"\cap")
        return ["list", [part for node in nodes for part in _listed(node)]]
    if r"\pm" in signs or r"\mp" in signs:
        upper = [{r"\pm": "+", r"\mp": "-"}.get(sign, sign) for sign in signs]
        lower = [{r"\pm": "-", r"\mp": "+"}.get(sign, sign) for sign in signs]
        both = [_parse(_without_plus(some), depth - 1) for some in (upper, lower)]
        return ["list", [part for node in both for part in _listed(node)]]
    return _related(pieces[0] if len(pieces) == 1 else signs, depth)


def _without_plus(signs: list[str]) -> list[str]:
    """Tokens without a plus sign that stands before a part."""
    before = ["(", *signs]
    opening = {*_OPEN, ",", ";", "=", "&"}
    return [s for b, s in zip(before, signs, strict=False) if s != "+" or b not in opening]


def _listed(node: Node) -> list[Node]:
    """The parts of a list; a name before one is that of each of them (`x = \\pm 1`)."""
    if node[0] == "list":
        return node[1]
    if node[0] == "named" and node[2][0] == "list":
        return [["named", node[1], part] for part in node[2][1]]
    return [node]


# --- relations


def _related(signs: list[str], depth: int) -> Node:
    """A part by its relations: an equation, bounds, a congruence."""
    if any(sign in (r"\pmod", r"\equiv") for sign in signs):
        return _congruence(signs, depth)
    sides = _split(signs, _RELATIONS)
    relations = [sign for sign in _top(signs) if sign in _RELATIONS]
    if not relations:
        return _set_or_part(signs, depth)
    if not all(sides):
        labelled = relations in (["="], [r"\approx"]) and sides[1]
        return _parse(sides[1], depth - 1) if labelled and not sides[0] else _unread(signs)
    if set(relations) <= {"=", r"\approx"}:
        return _equation(sides, relations, depth)
    if relations == [r"\in"]:
        node = _parse(sides[1], depth - 1)
        return ["named", [writing(sides[0])], node] if _is_name(sides[0]) else _unread(signs)
    if bounds := _bounds(sides, relations, depth):
        return bounds
    if len(relations) == 1 and relations[0] in (*_MIRRORED, r"\ne"):
        left, right = (_parse(side, depth - 1) for side in sides)
        if relations[0] in (">", r"\ge"):
            left, right, relations = right, left, [_MIRRORED[relations[0]]]
        return ["relation", relations[0], left, right]
    return _unread(signs)


def _equation(sides: list[list[str]], relations: list[str], depth: int) -> Node:
    """An equation without what its value is only rounded to, and without names."""
    exact = sides[:1]
    for relation, side in zip(relations, sides[1:], strict=True):
        if relation == "=" or (len(exact) == 1 and _is_name(exact[0])):
            exact.append(side)
    if len(exact) == 1:
        return _parse(exact[0], depth - 1)
    names = [side for side in exact if _is_name(side)]
    values = [side for side in exact if not _is_name(side)]
    if not values:
        names, values = exact[:-1], exact[-1:]
    nodes = [_parse(side, depth - 1) for side in values]
    value = nodes[0] if len(nodes) == 1 else ["equal", nodes]
    return ["named", [writing(name) for name in names], value] if names else value


def _congruence(signs: list[str], depth: int) -> Node:
    """A residue and its modulus, with the unknown where there is one."""
    left, relation, right = _partition(signs, r"\equiv")
    if not relation:
        left, right = [], signs
    if r"\pmod" not in right and r"\mod" in right:
        if right[-1] == ")" and (at := right.index(r"\mod")) and right[at - 1] == "(":
            right = [*right[: at - 1], r"\pmod", *right[at + 1 : -1]]
        else:
            right = [r"\pmod" if sign == r"\mod" else sign for sign in right]
    residue, relation, modulus = _partition(right, r"\pmod")
    if not relation or not residue or not modulus or (signs[0] == r"\equiv"):
        return _unread(signs)
    unknown = _parse(left, depth - 1) if left else None
    return ["congruence", unknown, _parse(residue, depth - 1), _parse(modulus, depth - 1)]


def _bounds(sides: list[list[str]], relations: list[str], depth: int) -> Node | None:
    """The interval of an unknown that stands between bounds, or beside one."""
    names = list(map(_is_name, sides))
    if relations == [r"\ne"] and any(names) and not all(names):
        name, other = sides if names[0] else sides[::-1]
        bound = _parse(other, depth - 1)
        return ["named", [writing(name)], ["sets", r"\cup", [
            ["tuple", "()", [_infinite("-"), bound]],
            ["tuple", "()", [bound, _infinite("")]],
        ]]]  # fmt: skip
    if not set(relations) <= set(_MIRRORED) or len(sides) > 3:
        return None
    if len({_MIRRORED[relation] in ("<", r"\le") for relation in relations}) > 1:
        return None
    if relations[0] in (">", r"\ge"):
        sides, relations = sides[::-1], [_MIRRORED[relation] for relation in relations[::-1]]
    names = list(map(_is_name, sides))
    at = 1 if len(sides) == 3 else names.index(True) if any(names) else -1
    if at < 0 or not names[at]:
        return None
    low = _parse(sides[at - 1], depth - 1) if at else _infinite("-")
    high = _parse(sides[at + 1], depth - 1) if at + 1 < len(sides) else _infinite("")
    opening = "[" if at and relations[at - 1] == r"\le" else "("
    closing = "]" if at < len(relations) and relations[at] == r"\le" else ")"
    return ["named", [writing(sides[at])], ["tuple", opening + closing, [low, high]]]


def _infinite(sign: str) -> Node:
    return ["value", sign + r"\infty ", sign + r"\infty"]


def _is_infinite(node: Node) -> bool:
    return node[0] == "value" and r"\infty" in (node[1] or "")


def _is_bounded(node: Node) -> bool:
    """Whether a node is a set of numbers with bounds, with the name of its unknown or without."""
    node = node[2] if node[0] == "named" else node
    return node[0] == "sets" or (node[0] == "tuple" and len(node[2]) == 2)


def _joined(nodes: list[Node], sign: str) -> Node:
    """A union or an intersection of sets, of the unknown that all of them are about."""
    names = [node[1] for node in nodes if node[0] == "named"]
    sets = [node[2] if node[0] == "named" else node for node in nodes]
    if not names:
        return ["list", nodes]
    node = ["sets", sign, sets]
    return ["named", names[0], node] if all(name == names[0] for name in names) else ["list", nodes]


# --- names

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi"
    "|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell"
)
_ONE = (
    rf"(?:\\(?:angle|triangle))?(?:[A-Za-z]|m\\angle[A-Z]+|[A-Z]{{2,}}|\\(?:{_GREEK})|\\text\{{[^{{}}]*\}}"
    r"|\\(?:max|min|deg|gcd|lcm|det)"
    r"|\\(?:overline|vec|hat|bar|mathbf|mathcal|angle|widehat|overrightarrow)\{[A-Za-z]+\}|\[[A-Z]+\]|\|[A-Z]{2}\|)"
    r"(?:_\{[^{}]*\})?'*(?:\^\{-1\})?(?:\([^()]*\))?"
)
_TRIGONOMETRIC = rf"(?:\\(?:sin|cos|tan|cot|sec|csc)\(?{_ONE}\)?)"
_SEGMENT = r"(?:\[?[A-Z]{2,}\]?(?:_\{[^{}]*\})?)"
_NAME = re.compile(
    rf"{_ONE}|{_TRIGONOMETRIC}|{_SEGMENT}(?:(?:\\cdot|/|\+){_SEGMENT})+"
    rf"|\\frac\{{{_SEGMENT}\}}\{{{_SEGMENT}\}}|\\frac\{{d{_ONE}?\}}\{{d{_ONE}\}}"
    rf"|{_ONE}(?::{_ONE})+|\((?:{_ONE},)+{_ONE}\)|\\\{{(?:{_ONE},)*{_ONE}\\\}}"
    rf"|\\lim_\{{[^{{}}]*\}}{_ONE}"
)
"""Terms that an equation may say the value of: `x`, `f(2)`, `AB\\cdot CD`, `\\tan\\theta`,
`(p,q)`.
"""


def _is_name(signs: list[str]) -> bool:
    """Whether tokens name a value and are none."""
    return _NAME.fullmatch("".join(s for s in signs if s != " ")) is not None


# --- sets, brackets, leaves


def _set_or_part(signs: list[str], depth: int) -> Node:
    """A part without relations."""
    operands = _split(signs, _SETS)
    if len(operands) > 1:
        operators = [sign for sign in _top(signs) if sign in _SETS]
        if not all(operands) or len(set(operators)) > 1:
            return _unread(signs)
        return ["sets", operators[0], [_parse(operand, depth - 1) for operand in operands]]
    if signs[0] in _OPEN and _closing(signs) == len(signs) - 1:
        return _bracketed(signs, depth)
    return _leaf(signs, depth)


def _bracketed(signs: list[str], depth: int) -> Node:
    """Parse what stands in brackets: a set, a tuple, an interval, one part."""
    opening, inside, closing = signs[0], signs[1:-1], signs[-1]
    if opening == r"\{" and closing == r"\}":
        condition = _split(inside, {"|", ":"})
        if len(condition) == 2 and (_is_name(condition[0]) or r"\in" in condition[0]):
            return _parse(condition[1], depth - 1)
        node = _parse(inside, depth - 1) if inside else ["list", []]
        return ["set", node[1] if node[0] == "list" else [node]]
    parts = _split(inside, {",", ";"})
    if len(parts) > 1 and all(parts):
        return _tuple(opening + closing, [_parse(part, depth - 1) for part in parts])
    return _parse(inside, depth - 1) if (opening, closing) == ("(", ")") else _leaf(signs, depth)


def _tuple(brackets: str, nodes: list[Node]) -> Node:
    """A tuple, or one for each of two signs where a part of it has both."""
    lists = [node[1] for node in nodes if node[0] == "list"]
    if not lists:
        return ["tuple", brackets, nodes]
    if any(len(one) != len(lists[0]) for one in lists):
        return ["value", None, str(nodes)]
    chosen = [
        [node[1][i] if node[0] == "list" else node for node in nodes] for i in range(len(lists[0]))
    ]
    return ["list", [["tuple", brackets, some] for some in chosen]]


_CLOCK = re.compile(
    r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?:\\text\{([ap])\.?m\.?\}|([ap])\.?m\.?)?", re.I
)
_NUMERAL = re.compile(r"([0-9][0-9A-Za-z]*)_\{\(?([0-9]+)\)?\}")


def _leaf(signs: list[str], depth: int) -> Node:
    """A part without separators: a time, a ratio, a numeral, a quantity, words, a formula."""
    text = "".join(signs)
    if clock := _CLOCK.fullmatch(text.replace(" ", "")):
        half = (clock[4] or clock[5] or "").lower()
        return ["time", [int(clock[i] or 0) for i in (1, 2, 3)], half]
    if ":" in signs and all(ratio := _split(signs, {":"})):
        return ["ratio", [_parse(part, depth - 1) for part in ratio]]
    if numeral := _NUMERAL.fullmatch(text):
        return ["numeral", numeral[1].lstrip("0"), int(numeral[2])]
    if _is_all_words(signs):
        return ["words", " ".join(_words(sign) or "" for sign in signs).casefold()]
    amount, scale = _amount(signs)
    if amount is None:
        return _unread(signs)
    if amount and amount[-1] == "%":
        inner = ["value", formula(amount[:-1]), writing(amount[:-1])]
        return ["percent", inner] if inner[1] else _unread(signs)
    latex = formula(amount)
    if latex is not None and scale != 1:
        latex = rf"{scale} \cdot ({latex})"
    return ["value", latex, writing(signs)]


def _unread(signs: list[str]) -> Node:
    return ["value", None, writing(signs)]


def _is_all_words(signs: list[str]) -> bool:
    """Whether all tokens are text boxes."""
    return bool(signs) and all(_words(sign) is not None for sign in signs)


def _words(sign: str) -> str | None:
    return sign[6:-1] if sign.startswith(r"\text{") else None


_BARE_UNIT = re.compile(
    r"(?:[cmk]?m|in|ft|yd|mi|[mk]?g|lbs?|oz|m?[lL]|[gh]?al|min|s|hrs?|h|mph|[kM]?W|[kM]?J|[kM]?N|[kM]?V|Hz|k?Pa|K|C|F|A)"
)
_BOX = r"\\text\{[^{}]*\}"
_POWER = r"(?:\^\{-?[0-9]\})?"
_UNITS = re.compile(
    r"(?: ?\\degree(?:[CF]|\\text\{[CF]\})?)?"
    rf"(?:(?: ?(?:\\(?:mu|Omega|AA)(?:{_BOX})*|(?:{_BOX})+){_POWER}"
    rf"| {_BARE_UNIT.pattern}(?:\^\{{-?[0-9]\}}|[23])?|(?:/|\\cdot){_BOX}{_POWER})"
    rf"(?:(?:/|\\cdot)(?:{_BOX}|{_BARE_UNIT.pattern}){_POWER})*)?"
)
"""Text that may stand behind a number: degrees, boxes of words, units as letters behind a space."""
_UNIT_BOX = re.compile(
    r"[^\W\d_]+(?:\^?\{?-?[0-9]\}?)?(?:[ /·*.]+[^\W\d_]+(?:\^?\{?-?[0-9]\}?)?)*\.?"
)


def _amount(signs: list[str]) -> tuple[list[str] | None, int]:
    """The tokens of a number without its unit, and what words multiply it by; None where words
    make another number of it, or stand among formulas.
    """
    signs = [sign for sign in signs if sign not in (r"\$", "$")]
    text = "".join(signs)
    starts = [0, *accumulate(map(len, signs))]
    end = next(i for i, start in enumerate(starts) if _UNITS.fullmatch(text, start))
    if not end or (signs[end:] == [r"\degree"] and not _TRIG.isdisjoint(signs)):
        return signs, 1
    number = signs[:end]
    boxes = [words for sign in signs if (words := _words(sign)) is not None]
    if any(_words(sign) is not None for sign in number):
        return None, 1
    scale = 1
    if boxes:
        first, _, rest = boxes[0].partition(" ")
        singular = first.lower().removesuffix("s")
        if singular in units.SCALES:
            scale = units.SCALES[singular]
            boxes = [*([rest] if rest else []), *boxes[1:]]
    if any(units.alters(words) or units.is_symbol(words) for words in boxes):
        return None, 1
    if any(re.search("[0-9]", words) and not _UNIT_BOX.fullmatch(words) for words in boxes):
        return None, 1
    return number, scale


# --- formulas

_COMMANDS = (
    "frac sqrt binom cdot times pi infty sin cos tan cot sec csc arcsin arccos arctan arccot sinh"
    " cosh tanh ln log exp lim to sum prod int gcd lcm max min mod lfloor rfloor lceil rceil"
    " emptyset overline vec hat bar mathbb " + _GREEK.replace("|", " ")
)
_READ = {"\\" + name for name in _COMMANDS.split() if name != "ell"}
"""Commands that the grammar of formulas reads for what they mean."""
_TRIG = {"\\" + name for name in ("sin", "cos", "tan", "cot", "sec", "csc")}
_PLAIN = {*"+-/!|()[]{}^_=,", " "}
_DERIVATIVE = re.compile(r"\\frac\{d[a-zA-Z]?\}\{d[a-zA-Z]\}")
_TRANSPOSED = re.compile(r"\^\{(?:T|'|\\top)\}")
_CALLED = re.compile(r"(?<![a-zA-Z])[fghFGHP](?:_\{[^{}]*\})?\((?![a-zA-Z]\))")
_BOUNDED = {r"\sum", r"\prod", r"\int", r"\lim"}


def formula(signs: list[str]) -> str | None:
    """Tokens as the LaTeX that the checker reads whole; None where one of them is no part of a
    formula, or is one whose meaning it would lose.
    """
    text = "".join(signs)
    if not signs or _DERIVATIVE.search(text) or _TRANSPOSED.search(text) or _CALLED.search(text):
        return None
    is_bounded = not _BOUNDED.isdisjoint(signs)
    for sign in signs:
        simple = sign in _PLAIN or sign in _READ or sign[0].isdigit() or sign[0] == "."
        if sign == r"\degree" or (len(sign) == 1 and sign.isascii() and sign.isalpha()):
            continue
        if not simple or (sign in "=," and not is_bounded and sign == "="):
            return None
    if " " in signs:
        at = signs.index(" ")
        if signs[at + 1][0].isdigit():
            return None
    for one, other in pairwise(signs):
        if (one[0].isdigit() and other == "_") or one == other == "!":
            return None
    if r"\vec" in signs and r"\times" in signs:
        return None
    return _rendered([sign for sign in signs if sign != " "])


def _rendered(signs: list[str]) -> str:
    """Formula tokens as LaTeX, with the products that the checker's grammar needs written out."""
    in_degrees = not _TRIG.isdisjoint(signs)
    out: list[str] = []
    for i, sign in enumerate(signs):
        before = signs[i - 1] if i else ""
        if sign == r"\degree":
            if in_degrees and out:
                out[-1] = rf"\frac{{{out[-1]} \cdot \pi }}{{180}}"
            continue
        follows_number = before[:1].isdigit() and sign in ("(", r"\binom")
        follows_power = before == "}" and sign[0].isdigit() and not _bounds_end(signs, i)
        if follows_number or follows_power or (before == ")" and sign in ("(",)):
            out.append(r" \cdot ")
        if (
            sign == r"\sqrt"
            and signs[i + 1 : i + 2] == ["["]
            and signs[i + 4 : i + 6] == ["{", "-"]
        ):
            degree = signs[i + 2]
            if degree.isdigit() and int(degree) % 2:  # the real root of a negative number
                signs[i + 5] = ""
                out.append("-")
        out.append(sign + " " if sign.startswith("\\") and sign[-1].isalpha() else sign)
    return "".join(out)


def _bounds_end(signs: list[str], i: int) -> bool:
    """Whether the group before an index is a bound of a sum or an integral, or an argument."""
    depth = 0
    for at in range(i - 1, -1, -1):
        depth += (signs[at] == "}") - (signs[at] == "{")
        if depth == 0:
            if signs[at - 1] not in ("^", "_") or at < 2:
                return at >= 1 and signs[at - 1] != "}"
            base = signs[at - 2]
            if base == "}":
                return _bounds_end(signs, at - 1)
            return base in _BOUNDED or base == r"\log" or base in _TRIG
    return False


# --- splitting


def _depths(signs: list[str]) -> Iterator[tuple[int, str]]:
    """Each token with the number of brackets around it; intervals may close as they like."""
    depth = 0
    for sign in signs:
        opens = sign in _OPEN or sign.startswith(r"\begin")
        closes = sign in _OPEN.values() or sign.startswith(r"\end")
        depth -= closes
        yield depth, sign
        depth += opens


def _top(signs: list[str]) -> list[str]:
    """The tokens that stand in no brackets."""
    return [sign for depth, sign in _depths(signs) if depth <= 0]


def _split(signs: list[str], separators: set[str]) -> list[list[str]]:
    """The runs between separators that stand in no brackets."""
    runs: list[list[str]] = [[]]
    for depth, sign in _depths(signs):
        if depth <= 0 and sign in separators:
            runs.append([])
        else:
            runs[-1].append(sign)
    return [[s for i, s in enumerate(run) if s != " " or 0 < i < len(run) - 1] for run in runs]


def _partition(signs: list[str], separator: str) -> tuple[list[str], str, list[str]]:
    at = signs.index(separator) if separator in signs else len(signs)
    return signs[:at], separator if at < len(signs) else "", signs[at + 1 :]


def _closing(signs: list[str]) -> int:
    """The index of the token that closes the first."""
    for i, (depth, _) in enumerate(_depths(signs)):
        if i and depth <= 0:
            return i
    return -1


# --- comparing

Same = Callable[[Node, Node], bool]


def same(gold: Node, answer: Node, same_value: Callable[[str, Node, Node], bool]) -> bool:
    """Whether two nodes are the same answer.

    `same_value(kind, gold, answer)` compares what only mathematics can: two formulas (`value`), two
    equations (`equal`), two inequalities (`relation`), two sets (`sets`). The reference is the
    stricter of the two in one thing: where it is a tuple, a list without brackets is read as one.
    """

    def compare(one: Node, other: Node) -> bool:
        return same(one, other, same_value)

    if gold == answer:
        return True
    kinds = gold[0], answer[0]
    if kinds == ("named", "named"):
        if gold[1] != answer[1]:
            return _is_equation(gold) and _is_equation(answer) and same_value("equal", gold, answer)
        return compare(gold[2], answer[2])
    if "named" in kinds and not ("equal" in kinds and same_value("equal", gold, answer)):
        return compare(*(node[2] if node[0] == "named" else node for node in (gold, answer)))
    if "named" in kinds:
        return True
    if kinds == ("equal", "equal"):
        return same_value("equal", gold, answer)
    if "equal" in kinds:
        sides, value = (gold[1], answer) if kinds[0] == "equal" else (answer[1], gold)
        return all(compare(side, value) for side in sides)
    if "percent" in kinds:
        return _same_percent(gold, answer, same_value)
    if kinds == ("tuple", "list"):
        if gold[1] != "()" or any(map(_is_infinite, gold[2])):
            return False  # an interval, of which a list has the ends alone
        return len(gold[2]) == len(answer[1]) and all(map(compare, gold[2], answer[1]))
    if kinds == ("tuple", "tuple") and gold[1] == answer[1]:
        return len(gold[2]) == len(answer[2]) and all(map(compare, gold[2], answer[2]))
    if kinds[0] == "set" or kinds[1] == "set":
        members = [_members(node) for node in (gold, answer)]
        if None not in members and "tuple" not in kinds:
            return _same_members(*members, compare, distinct=True)  # type: ignore[arg-type]
    elif "list" in kinds and "tuple" not in kinds:
        one, other = (_members(node) or [node] for node in (gold, answer))
        return _same_members(one, other, compare, distinct=False)
    if "sets" in kinds:
        return same_value("sets", gold, answer)
    if kinds[0] != kinds[1]:
        return _same_numeral(gold, answer)
    match kinds[0]:
        case "value" | "relation":
            return same_value(kinds[0], gold, answer)
        case "matrix":
            shapes = [[len(row) for row in node[1]] for node in (gold, answer)]
            cells = [[cell for row in node[1] for cell in row] for node in (gold, answer)]
            return shapes[0] == shapes[1] and all(map(compare, *cells))
        case "congruence":
            return same_value("congruence", gold, answer)
        case "time":
            return gold[1] == answer[1] and not (gold[2] and answer[2])
        case "ratio":
            return len(gold[1]) == len(answer[1]) and same_value("ratio", gold[1], answer[1])
        case _:
            return False


def _is_equation(node: Node) -> bool:
    """Whether a name and its value are an equation between formulas."""
    return node[2][0] == "value"


def _members(node: Node) -> list[Node] | None:
    """The members of a list or a set; a single answer is a list of one."""
    if node[0] in ("list", "set"):
        return node[1]
    if node == ["value", r"\emptyset ", r"\emptyset"]:
        return []
    return [node] if node[0] in ("value", "percent", "tuple", "named", "words") else None


def _same_members(gold: list[Node], answer: list[Node], compare: Same, distinct: bool) -> bool:
    """Whether each part of one list has its own in the other; with `distinct` several parts that
    are equal are one.
    """
    left = list(answer)
    for one in gold:
        at = next((i for i, other in enumerate(left) if compare(one, other)), None)
        if at is not None:
            left.pop(at)
        elif not distinct or not any(compare(one, other) for other in answer):
            return False
    return not left or (distinct and all(any(compare(o, g) for o in gold) for g in left))


def _same_percent(gold: Node, answer: Node, same_value: Any) -> bool:
    """A percentage is its number of hundredths, and the number before its sign."""
    if gold[0] == answer[0]:
        return same(gold[1], answer[1], same_value)
    percent, plain = (gold, answer) if gold[0] == "percent" else (answer, gold)
    if plain[0] != "value" or plain[1] is None:
        return False
    hundredth = ["value", rf"\frac{{{percent[1][1]}}}{{100}}", ""]
    return any(same_value("value", one, plain) for one in (percent[1], hundredth))


def _same_numeral(gold: Node, answer: Node) -> bool:
    """Digits without a base count as those of the reference's; else as decimal ones."""
    if gold[0] == "numeral" and answer[0] == "value":
        return answer[2].lstrip("0") == gold[1]
    if answer[0] == "numeral" and gold[0] == "value":
        return answer[1:] == [gold[2].lstrip("0"), 10]
    return False


_DECIMAL = re.compile(r"-?[0-9]{1,60}(?:\.[0-9]{1,60})?|-?\.[0-9]{1,60}")


def decimals(gold: Node, answer: Node) -> tuple[str, str] | None:
    """The digits of two nodes that are plain decimal numbers; None for all others."""
    texts = [node[1] if node[0] == "value" else None for node in (gold, answer)]
    if all(text is not None and _DECIMAL.fullmatch(text) for text in texts):
        return texts[0], texts[1]  # type: ignore[return-value]
    return None
