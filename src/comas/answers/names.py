r"""Answers that are names: `Paris`, `\text{east}`, `H_2O`, `2024-01-05`, which are no formulas.

To a parser of formulas `east` is a product, and so is `teas`. Names are compared by their letters
and digits, whatever their case, spaces and boxes. Pure functions. Leaves out: synonyms.
"""

from __future__ import annotations

import re
import unicodedata

from comas.answers.notation import BOX, in_latex

_TEXT = re.compile(BOX)
_LOOKS = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|q?quad)(?![a-zA-Z])|\\[,!;: ]|~|\s+"
)
_MATHEMATICS = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|sqrt|abs|max|min|gcd|lcm|mod|deg|det|frac|binom|floor|ceil|inf|infty|infinity|oo"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|rho|sigma|tau|phi|psi|omega|and|or",
    re.IGNORECASE,
)
"""Letters that a formula may hold as one name, and words that join answers."""
_FORMULA = re.compile(r"[\\{}^_=+*<>|\[\];]")
_RUN = re.compile(r"[^\W\d_]{2,}")
_GLUED = re.compile(r"[^\W\d_][0-9]")
_DATE = re.compile(r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4}")
_SCIENTIFIC = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+")
_COUNTED = re.compile(r"[-+$]*[0-9.][0-9.,/ ]*+[^0-9]*+")
"""A number, with words behind it or without."""
_BOXED_NAME = re.compile(r"\(?[^\W\d_](?:[^\W\d_]|[' -])*\)?")


def same_names(gold: str, answer: str) -> bool | None:
    """Whether two names are the same words, whatever their case; None where the reference may be a
    formula.
    """
    inside = _TEXT.fullmatch(gold.strip().strip("$"))
    boxed = inside is not None and _BOXED_NAME.fullmatch(inside[1].strip()) is not None
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
    out = _LOOKS.sub(" ", _TEXT.sub(r"\1", in_latex(text.strip().strip("$"))))
    out = " ".join(_LOOKS.sub(" ", out).split())
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
    bare = _LOOKS.sub("", _TEXT.sub(r"\1", in_latex(text.strip().strip("$"))))
    bare = re.sub(r"[_{}\s]", "", _LOOKS.sub("", bare)).strip("()").removesuffix(".")
    return unicodedata.normalize("NFC", bare.strip("()")).casefold()
