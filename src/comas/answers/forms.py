r"""What the form of two answers says: clock times, ratios, grouped digits, equations, lists, and
units behind a number, with the words that make another number of it.

English has few words that change a number (`million`, `half`, `squared`, `less than`) and any
number that name what is counted, so the few are listed.

A checker of formulas takes `12:00` for a quotient, `x + y = 5` for 5 and `10 dollars` for a
product. Pure functions of texts as `notation.plain` gives them. Leaves out: converting and
comparing units; lists with dots (`1, 2, \ldots`) that differ in their writing, which are different.
"""

from __future__ import annotations

import re
from fractions import Fraction

# --- what may stand beside a number

SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
    "lakh": 10**5,
    "crore": 10**7,
}
"""Words that multiply the number before them."""

_SMALL = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    "|(?:thir|four|fif|six|seven|eigh|nine)teen"
)
_TENS = "(?:twen|thir|for|fif|six|seven|eigh|nine)ty|tens"
_PARTS = (
    "half|halves|thirds?"
    "|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|million|billion|trillion)ths?"
    "|(?:thir|four|fif|six|seven|eigh|nine)teenths?|(?:twen|thir|for|fif|six|seven|eigh|nine)tieths?"
)
"""Parts of a whole. `second` and `quarter` are a unit and a coin as well, and stay one."""
_SIGNS = "squared|cubed|factorial|minus|plus|negative|below|over|divided|multiplied"
_RELATIONS = "than|not|nor|or|and|to|versus|vs|isn't|unless|except"
_SHORT_SCALES = "(?-i:k)|bn|mn|mln|grand"
_ALTERING = re.compile(
    rf"(?<![^\W\d_])(?:(?:{'|'.join(SCALES)})s?|{_SMALL}|{_TENS}|{_PARTS}|{_SIGNS}|{_RELATIONS}|{_SHORT_SCALES})(?![^\W\d_])",
    re.IGNORECASE,
)
_JOINING = re.compile(r"or|and", re.IGNORECASE)
_SYMBOLS = re.compile(r"\s*(?:[ijknxyz]|\\(?:alpha|beta|gamma))\s*")
"""Letters that stand for numbers and for no unit."""


def alters(words: str, joined: bool = False) -> bool:
    """Whether words beside a number may make another number of it, or two; with `joined`, `and` and
    `or` may.
    """
    return any(not (joined and _JOINING.fullmatch(match[0])) for match in _ALTERING.finditer(words))


def is_symbol(words: str) -> bool:
    """Whether the words are one letter that stands for a number (`5x`, `2i`) rather than for a
    unit.
    """
    return _SYMBOLS.fullmatch(words) is not None


# --- forms

_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?([ap]\.?m\.?)?", re.IGNORECASE)
_RATIO = re.compile(r"[0-9]+(?:\.[0-9]+)?(?::[0-9]+(?:\.[0-9]+)?)+")
_ANY_GROUPS = re.compile(r"[0-9]{1,3}(?:([,. '])[0-9]{2,3})(?:\1[0-9]{2,3})*(?<=[0-9]{3})")
_DOTS = re.compile(r"\\[lc]?dots|…|\.\.\.")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_NAME = re.compile(
    r"m?(?:\\(?:angle|triangle|overline|vec|hat|bar|mathbf|mathcal)\s*)?"
    r"\{?(?:[A-Za-z]|[A-Z]{2,}|[A-Za-z]{3,}|\\[a-zA-Z]+|\[[A-Z]+\])\}?"
    r"(?:_(?:\w|\{[^{}]*\}))?'*(?:\^(?:-1|\{-1\}))?(?:\([^()]*\))?"
)
"""One unknown: `x`, `AB`, `x_1`, `f(2)`, `\\angle A`, `Total`."""
_COUNTED = re.compile(
    r"([-+]?(?:\\?\$)?[0-9][0-9.,]*)\s+"
    r"([A-Za-z]{3,}[A-Za-z .]*|[A-Za-z]{1,3}/[A-Za-z]+"
    r"|(?:[cmk]?m|in|ft|yd)(?:\^(?:[23]|\{[23]\})|[23]))"
)


def decided(gold: str, answer: str) -> bool | None:
    """Whether two plain texts are the same by their form; None where it does not say."""
    if ":" in gold or ":" in answer:
        return _same_with_colons(gold, answer)
    if _DOTS.search(gold) and _DOTS.search(answer) and "," in gold + answer:
        return False
    if gold.isdigit() and _ANY_GROUPS.fullmatch(answer):
        return int(gold) == int(re.sub(r"[^0-9]", "", answer))
    # a list without its brackets is read as the reference has it; with other brackets it is not
    if (_kind(gold), _kind(answer)) in (("tuple", "set"), ("set", "tuple"), ("list", "tuple")):
        return False
    equations = [text for text in (gold, answer) if _EQUALS.search(text)]
    if len(equations) == 1 and value_of(equations[0]) is None:
        return False
    return None


def _same_with_colons(gold: str, answer: str) -> bool | None:
    """Times are the same where hours, minutes and seconds are, and `am` or `pm` where both say it;
    ratios where they are proportional. A reference of two digits behind a colon is a time.
    """
    times = [_CLOCK.fullmatch(text) for text in (gold, answer)]
    if times[0]:
        if not times[1]:
            return False
        halves = [(time[4] or "").replace(".", "").lower() for time in times if time]
        parts = [[int(part or 0) for part in time.groups()[:3]] for time in times if time]
        return parts[0] == parts[1] and (halves[0] == halves[1] or not all(halves))
    if _RATIO.fullmatch(gold) and _RATIO.fullmatch(answer):
        one, other = ([Fraction(part) for part in text.split(":")] for text in (gold, answer))
        return len(one) == len(other) and all(
            a * other[0] == b * one[0] for a, b in zip(one, other, strict=True)
        )
    return None


def _kind(text: str) -> str:
    """`set` for braces around a list, `tuple` for other brackets, `list` for none, else empty."""
    inside = text.rpartition(r"\in")[2]
    depth = 0
    commas: set[int] = set()
    for sign in inside.replace(r"\{", "{").replace(r"\}", "}"):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == ",":
            commas.add(depth)
    if 0 in commas:
        return "" if _ANY_GROUPS.fullmatch(inside) else "list"
    if 1 not in commas:
        return ""
    if inside.startswith((r"\{", "{")) and inside.endswith("}"):
        return "set"
    return "tuple" if inside.startswith(("(", "[")) and inside.endswith((")", "]")) else ""


def value_of(text: str) -> str | None:
    """What a plain text says that one unknown is: `5` of `x=5` and of `5=x`.

    The text itself where it is no equation or more than one; None where it is another equation
    (`x+y=5`).
    """
    sides = _EQUALS.split(text)
    if len(sides) != 2:
        return text
    left, right = (side.strip() for side in sides)
    if _NAME.fullmatch(left):
        return right
    return left if _NAME.fullmatch(right) else None


def without_unit(text: str) -> str:
    """A text without the words behind its number (`10 dollars`, `10 km/h`, `10 m^2`).

    Words that make another number of it stay (`10 million`), and so do one or two letters, which
    may be unknowns.
    """
    match = _COUNTED.fullmatch(text.strip())
    if match is None or alters(match[2]) or is_symbol(match[2].split("/")[0]):
        return text
    return match[1]
