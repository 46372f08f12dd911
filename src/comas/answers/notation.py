r"""What can be said of two mathematical answers from their writing alone, and LaTeX as math-verify
reads it without mistakes.

To a parser of formulas `east` is a product, `1 1/2` is two numbers and `5 \text{ million}` is 5.
Such texts are decided or rewritten here, before they get there. Pure functions of the texts. Leaves
out: mathematics.
"""

from __future__ import annotations

import re
import unicodedata

from comas.answers import forms
from comas.answers.forms import SCALES, alters, is_symbol

_THIN = re.compile(r"(?<!\\)\\[,!]")
_WIDE = re.compile(r"(?<!\\)\\[;: ]|~|\s+|\\q?quad(?![a-zA-Z])")
_LOOSE = re.compile(r"(?<![0-9]) | (?![0-9])")
"""A space that does not stand between two digits."""
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|operatorname|emph)\s*\{([^{}]*)\}"
)


_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–－", "-"),
        "∞": r"\infty ",
        "×": r"\times ",
        "·": r"\cdot ",
        "°": r"^\circ ",
        "π": r"\pi ",
        "∅": r"\emptyset ",
        **dict.fromkeys("€£¥₹¢", ""),
    }
)
"""Characters for which LaTeX has a command."""
_SAME_SIGN = (
    (re.compile(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\[lr]angle(?![a-zA-Z])\s*"), lambda found: "(" if found[0][1] == "l" else ")"),
    (re.compile(r"\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"(?<=[0-9])\{,\}(?=[0-9]{3})"), ""),
    (re.compile(r"\A\s*\*\*(.*)\*\*\s*\Z", re.DOTALL), r"\1"),
    (re.compile(r"\A\s*\\text\s*\{[^{}]*:\s*\}"), ""),
    (re.compile(r"(?:\{\})?_\{?([0-9]+)\}?\s*C_\{?([0-9]+)\}?"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\sqrt\[([0-9]*[13579])\]\{-([0-9.]+)\}"), r"-\\sqrt[\1]{\2}"),
)
"""Ways to write one thing: the empty set, vectors, degrees, thousands, bold, a label in front,
binomials, the odd root of a negative number.
"""
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"√\s*(?:([0-9]+|[a-zA-Z])|\(([^()]*)\))")
_LOOKS = re.compile(
    r"\\(?:text)?color\s*\{[^{}]*\}|\\(?:underline|boldsymbol|bm|checkmark)(?![a-zA-Z])"
)


def in_latex(text: str) -> str:
    r"""A text with LaTeX's commands for characters (`√2`, `x²`, `½`), without colours and lines
    that change nothing.
    """
    out = _LOOKS.sub("", text)
    for sign, usual in _SAME_SIGN:
        out = sign.sub(usual, out)
    if out.isascii():
        return out
    out = "".join(str(unicodedata.decimal(sign, sign)) for sign in out)
    out = _VULGAR.sub(_as_fraction, out)
    out = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}", out)
    out = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", out)
    return out.translate(_CHARACTERS)


def _as_fraction(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def plain(text: str) -> str:
    """LaTeX without what changes only its look: spaces, sizes, text boxes, display fractions,
    dollar signs around it.

    A space between two digits stays: `1 2` is not `12`.
    """
    bare = _TEXT.sub(r"\1", _SIZES.sub("", in_latex(text).strip().strip("$")))
    bare = _LOOSE.sub("", _WIDE.sub(" ", _THIN.sub("", bare)).strip())
    bare = re.sub(r"\\[dt]frac", r"\\frac", bare)
    return bare[:-1] if bare.endswith(".") and not bare.endswith("..") else bare


def decided(gold: str, answer: str) -> bool | None:
    """Whether two answers are the same, as far as their writing tells; None where only mathematics
    can.
    """
    one = plain(gold)
    other = plain(answer)
    if one == other:
        return True
    if (same_names := _same_names(gold, answer)) is not None:
        return same_names
    if (numerals := _same_numerals(one, other)) is not None:
        return numerals
    if (by_form := forms.decided(one, other)) is not None:
        return by_form
    if readable(gold) is None or readable(answer) is None:
        return False
    return None


# --- names: what is written in letters and is no formula

_MATHEMATICS = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|sqrt|abs|max|min|gcd|lcm|mod|deg|det|frac|binom|floor|ceil|inf|infty|infinity|oo"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|rho|sigma|tau|phi|psi|omega",
    re.IGNORECASE,
)
"""Letters that a formula may hold as one name."""
_FORMULA = re.compile(r"[\\{}^_=+*<>|\[\]]")
_RUN = re.compile(r"[^\W\d_]{2,}")
_GLUED = re.compile(r"[^\W\d_][0-9]")
_DATE = re.compile(r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4}")
_SCIENTIFIC = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+")
_COUNTED = re.compile(r"[-+$]*[0-9.][0-9.,/ ]*+[^0-9]*+")
"""A number, with words behind it or without."""


def _same_names(gold: str, answer: str) -> bool | None:
    """Whether two names are the same words, whatever their case; None where the reference may be a
    formula.
    """
    inside = _TEXT.fullmatch(gold.strip().strip("$"))
    boxed = (
        inside is not None
        and re.fullmatch(r"\(?[^\W\d_](?:[^\W\d_]|[' -])*\)?", inside[1].strip()) is not None
    )
    name = _bare(gold)
    if not boxed and name is None:
        return None
    surely, perhaps = (True, True) if boxed or name is None else _is_name(name)
    other = _bare(answer) if perhaps else None
    letters = other is not None and all(s.isalpha() or s in " '’.-()" for s in other)
    if surely or letters:
        return _skeleton(gold) == _skeleton(answer)
    return None


def _bare(text: str) -> str | None:
    """A text without LaTeX's text boxes; None where it holds signs of a formula."""
    out = _SIZES.sub("", text.strip().strip("$"))
    out = _WIDE.sub(" ", _THIN.sub("", _TEXT.sub(r"\1", out))).strip()
    return None if _FORMULA.search(out) else out


def _is_name(bare: str) -> tuple[bool, bool]:
    """Whether a text without signs of a formula is surely a name, and whether it may be one (`no`,
    but also `xy`).
    """
    if _SCIENTIFIC.fullmatch(bare) or _COUNTED.fullmatch(bare):
        return bool(_DATE.fullmatch(bare)), False
    runs = [run for run in _RUN.findall(bare) if not _MATHEMATICS.fullmatch(run)]
    surely = len(runs) > 1 or any(len(run) > 3 for run in runs) or _GLUED.search(bare) is not None
    return surely or _DATE.fullmatch(bare) is not None, bool(runs)


def _skeleton(text: str) -> str:
    """The letters and digits of a name, as they follow each other: `H_{2}O` is `h2o`."""
    return unicodedata.normalize("NFC", re.sub(r"[_{}\s]", "", plain(text)).strip("()")).casefold()


# --- numerals of another base

_BASED = re.compile(r"([0-9][0-9A-Za-z]*)_(?:\{\(?([0-9]+)\)?\}|([0-9]+))")


def _same_numerals(one: str, other: str) -> bool | None:
    """Whether two numerals have the same digits in the same base; None where none of them names a
    base.

    Digits without a base count as those of the reference's.
    """
    gold = _numeral(one)
    answer = _numeral(other)
    if gold is not None and answer is not None:
        return gold == answer
    if gold is not None:
        return other.lstrip("0") == gold[0]
    if answer is not None and one.isdigit():
        return answer == (one.lstrip("0"), 10)
    return None


def _numeral(text: str) -> tuple[str, int] | None:
    """The digits and the base of `204_5`; None for anything else (`x_1`, `A_4`)."""
    match = _BASED.fullmatch(text)
    return (match[1].lstrip("0"), int(match[2] or match[3])) if match else None


# --- what math-verify is given

_DIGIT_FRACTION = re.compile(r"\\([dt]?(?:frac|binom))\s*([0-9])\s*([0-9])(?![0-9])")
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9]| [0-9])")
_THOUSANDS = re.compile(r"(?<![0-9.,(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_MIXED = re.compile(r"(?<![0-9./])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9./])")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*(?:\{([0-9]+)\}|([0-9]))")
_GOING_ON = re.compile(r"([0-9]*)\.([0-9]*?)([0-9]{1,6}?)\3{2,}(?:\.\.\.|…|\\[lc]?dots)")
_DOTS = re.compile(r"[0-9](?:\.\.+|…|\\[lc]?dots)\s*\Z")
_CHANGED = re.compile(r"\\[bx]?cancel(?![a-zA-Z])|\\sout|[0-9] ?(?:'|_ ?\{? ?\\?[a-zA-Z])")
"""What is struck out, and digits with a prime or with a name below them."""
_OPENING = r"(?:\\(?:text|mbox|mathrm)\s*\{\s*)?"
_SCALED = re.compile(
    rf"([-+]?(?:\\?\$)?[0-9][0-9.,]*)\s*({_OPENING})({'|'.join(SCALES)})s?(?![a-zA-Z])(.*)",
    re.IGNORECASE | re.DOTALL,
)
_LETTERS = re.compile(r"(?<!\\)(?<![a-zA-Z\\])[a-zA-Z]{3,}")
_UNIT_POWER = re.compile(r"[^\W\d_]+[23]")
_BARE_NAMES = re.compile(r"(?<![\\a-zA-Z{])(pi|sin|cos|tan|cot|ln|log)(?![a-zA-Z])")
_RAISED_DIGIT = re.compile(r"\^\{?([0-9]+)\}? (?=[0-9])")
_LOG_BASE = re.compile(r"\\log ?_ ?([0-9]+) ?(?=[0-9({\\a-z])")
_CALL = re.compile(r"(?<![\\a-zA-Z])(sqrt|exp|abs)\(([^()]*)\)")
_CALLED = {"sqrt": r"\sqrt{%s}", "exp": "e^{%s}", "abs": "|%s|"}


def _in_code(text: str) -> str:
    """A text without the signs of program code: `sqrt(2)`, `x**2`, `x^(1/4)`, `oo`."""
    out = re.sub(r"(?<![\\a-zA-Z])oo(?![a-zA-Z])", r"\\infty ", text.replace("**", "^"))
    calls = 1
    while calls:
        out, calls = _CALL.subn(lambda call: _CALLED[call[1]] % call[2], out)
    return re.sub(r"\^\(([^()]*)\)", r"^{\1}", out)


def readable(text: str) -> str | None:
    """Rewrite LaTeX so that math-verify reads what it says.

    None where it is no mathematical object (`1 2`, `5 (not 6)`).
    """
    out = _WIDE.sub(" ", in_latex(text).strip().strip("$")).strip()
    if _CHANGED.search(out):
        return None
    whole = _TEXT.fullmatch(out)
    out = whole[1].strip() if whole else out
    out = _SIZES.sub("", out) if "," not in out else out
    out = _DIGIT_FRACTION.sub(r"\\\1{\2}{\3}", out)
    if _SCIENTIFIC.fullmatch(out):
        digits, _, power = out.lower().partition("e")
        return rf"{digits} \cdot 10^{{{int(power)}}}" if len(power) < 6 else None
    out = _in_code(_RAISED_DIGIT.sub(r"^{\1} \\cdot ", _LOG_BASE.sub(r"\\log_{\1} ", out)))
    out = _MIXED.sub(r"\1\\frac{\2}{\3}", out)
    out = _GROUPED.sub(lambda match: match[0].replace(" ", ""), out)
    out = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), out)
    if re.search(r"[0-9] [0-9]", out):
        return None
    out = _REPEATING.sub(lambda match: _endless(match[1], match[2], match[3] or match[4]), out)
    if match := _GOING_ON.fullmatch(out):
        return _endless(match[1], match[2], match[3])
    if _DOTS.search(out):
        return None
    return _with_its_words(_BARE_NAMES.sub(r"\\\1 ", out))


def _with_its_words(text: str) -> str | None:
    """A text whose words do not change its numbers: those that scale are multiplied out."""
    if not re.search("[0-9]", text):
        return text
    out = text
    if match := _SCALED.fullmatch(text):
        rest = match[2] + match[4] if match[2] else match[4]
        out = rf"{match[1]} \cdot {SCALES[match[3].lower()]} {rest}"
    boxes = _TEXT.findall(out)
    if any(alters(words, joined=True) or is_symbol(words) for words in boxes):
        return None
    if any(
        re.search("[0-9]", words) and not _UNIT_POWER.fullmatch(words.strip()) for words in boxes
    ):
        return None
    if any(alters(word, joined=True) for word in _LETTERS.findall(_TEXT.sub("", out))):
        return None
    return _TEXT.sub(lambda match: match[0] if match[1].strip() else "", out)


def _endless(whole: str, first: str, period: str) -> str:
    """The fraction that a repeating decimal is."""
    nines = int("9" * len(period)) * 10 ** len(first)
    value = int((whole + first + period) or "0") - int((whole + first) or "0")
    return rf"\frac{{{value}}}{{{nines}}}"


_BOUNDS = re.compile(r"(?:([^<>=]+?)(<=|<|>=|>))??[a-zA-Z](?:(<=|<|>=|>)([^<>=]+))?")
"""An unknown between two bounds, or beside one."""
_OR = re.compile(r"\\(?:text|mbox)\s*\{\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])|\bor\b")


def as_interval(text: str) -> str:
    """Write inequalities as intervals: `[1,2)` for `1 <= x < 2`, a union for two with `or`.

    Any other text stays as it is.
    """
    parts = [_interval(part) for part in _OR.split(text)]
    return r"\cup".join(part for part in parts if part) if all(parts) else text


def _interval(text: str) -> str | None:
    out = re.sub(
        r"\\(leq?|geq?)(?:slant)?(?![a-zA-Z])",
        lambda match: "<=" if match[1][0] == "l" else ">=",
        text,
    )
    out = out.replace("≤", "<=").replace("≥", ">=").replace(r"\lt", "<").replace(r"\gt", ">")
    out = re.sub(r"\s", "", out)
    match = _BOUNDS.fullmatch(out)
    if match is None:
        return None
    low, left, right, high = match.groups()
    relations = {relation[0] for relation in (left, right) if relation}
    if len(relations) != 1:
        return None
    if ">" in relations:
        low, left, right, high = high, right, left, low
    opening = "[" if "=" in (left or "") else "("
    closing = "]" if "=" in (right or "") else ")"
    return opening + (low or r"-\infty") + "," + (high or r"\infty") + closing
