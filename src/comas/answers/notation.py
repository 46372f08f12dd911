r"""LaTeX of answers as tokens in one writing: `\dfrac12` and `\frac{1}{2}` are the same list.

Characters, commands of the same sign, spaces and sizes, grouped digits, program code, repeating
decimals, and arguments without braces. Every token of a text is in its list, so that whoever reads
it can account for all of them. Pure functions, linear in the length of a text. Leaves out: what the
tokens mean (`parts`).
"""

from __future__ import annotations

import re
import unicodedata

BOX = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|operatorname"
    r"|emph|num|unit)\s*\{([^{}]*)\}"
)
"""A text box and what it holds."""

# --- characters

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–", "-"),
        "∞": r"\infty ",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": "/",
        "°": r"\degree ",
        "º": r"\degree ",
        "π": r"\pi ",
        "μ": r"\mu ",
        "µ": r"\mu ",
        "θ": r"\theta ",
        "∅": r"\emptyset ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "≡": r"\equiv ",
        "±": r"\pm ",
        "∓": r"\mp ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "…": r"\ldots ",
        "′": "'",
        **dict.fromkeys("€£¥₹¢✓✔", ""),
    }
)
"""Characters for which LaTeX has a command."""
WIDE = {0xFF01 + i: chr(0x21 + i) for i in range(94)} | str.maketrans("。、", ".,")
"""Full-width characters and their ASCII."""
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_ROOT = re.compile(r"√\s*(?:([0-9]+|[a-zA-Z])|\(([^()]*)\))")


def narrow(text: str) -> str:
    """A text with ASCII for full-width characters and for digits of all scripts."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(sign, sign)) for sign in text.translate(WIDE))


def in_latex(text: str) -> str:
    """A text with LaTeX's commands for characters (`√2`, `x²`, `½`)."""
    if text.isascii():
        return text
    out = _VULGAR.sub(_as_fraction, narrow(text))
    out = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}", out)
    out = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", out)
    return out.translate(_CHARACTERS)


def _as_fraction(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


# --- numbers and program code, as texts

THOUSANDS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+"
"""Digits in groups; behind a leading zero the comma is another sign (`0,005`)."""
_SEPARATOR = r"(?:\{,\}|\\,|,\\!)\s?"
_SET_GROUPS = re.compile(
    rf"(?<![0-9.,])(?!0[0-9]*{_SEPARATOR})[0-9.]*[0-9](?:{_SEPARATOR}[0-9]{{3}}(?![0-9]))+"
)
"""Digits that LaTeX's thin spaces and braced commas group, behind the point too."""
_GROUPED = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9]| [0-9])")
_THOUSANDS = re.compile(
    rf"(?<![0-9.,(\[{{])(?:{THOUSANDS}|[1-9][0-9]?(?:,[0-9]{{2}})+,[0-9]{{3}})(?![0-9]|,[0-9])"
)
_POINTS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}(?![0-9.,])")
_MIXED = re.compile(r"(?<![0-9./])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9./])")
_QUOTIENT = re.compile(r"(?<![0-9a-zA-Z.}/)^_])([0-9]+)/([0-9]+)(?![0-9.a-zA-Z/({\\!^])")
_REPEATING = re.compile(
    r"([0-9]*)\.([0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))|\(([0-9]+)\))"
)
_GOING_ON = re.compile(
    r"(?<![0-9.])([0-9]*)\.([0-9]*?)([0-9]{1,6}?)\3{2,}(?:\.\.\.|\\[lc]?dots)\s*\Z"
)
_SCIENTIFIC = re.compile(
    r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))[eE]([+-]?[0-9]{1,5})(?![0-9.])(\s*(?:\\[,;: ]|~)?"
    r"(?:\s[a-zA-Z°µμΩ]|\\(?:text|math|mbox|degree|mu|Omega)|%).*|\s*)",
    re.DOTALL,
)
"""A number as programs write it, alone or before its unit: else `e` is Euler's number."""
_TIMES_TEN = re.compile(r"(?<=[0-9])\s+x\s+(?=10\s*\^)")
_BARE_NAMES = re.compile(
    r"(?<![\\a-zA-Z{])(pi|sin|cos|tan|cot|sec|csc|ln|log|infty|arcsin|arccos|arctan)(?![a-zA-Z])"
)
_INFINITY = re.compile(r"(?<![\\a-zA-Z])(?:oo|infinity)(?![a-zA-Z])", re.IGNORECASE)
_CALL = re.compile(r"(?<![\\a-zA-Z])(sqrt|exp|abs)\(([^()]*)\)")
_CALLED = {"sqrt": r"\sqrt{%s}", "exp": "e^{%s}", "abs": "|%s|"}
_BINOMIAL = re.compile(r"(?:\{\})?_\{?([0-9]+)\}?\s*C_\{?([0-9]+)\}?")
_WRAPPED = re.compile(r"\s*(?:\$+|\\[(\[])(.*?)(?:\$+|\\[)\]])\s*", re.DOTALL)
_LOOKS = re.compile(
    r"\\(?:text)?color\s*\{[^{}]*\}|\\(?:underline|boldsymbol|bm|checkmark|rm|bf|it|Large|large"
    r"|normalsize|displaystyle|textstyle|limits|left\s*\.|right\s*\.|left|right|middle|[bB]igg?[lrm]?)"
    r"(?![a-zA-Z])|\\[!]|(?<!\\)\$"
)
"""Signs that change nothing but the look of others."""
_SPACE = re.compile(r"(?<!\\)\\[;: ]|~|\s+|\\q?quad(?![a-zA-Z])")
_LABEL = re.compile(rf"\s*(?:{BOX[:-12]}\s*\{{[^{{}}]*:\s*\}}|\*\*(?=.*\*\*\s*\Z))", re.DOTALL)


def ungrouped(text: str) -> str:
    r"""A text without LaTeX's separators of thousands: `1\,500` and `1{,}500` are `1500`."""
    return _SET_GROUPS.sub(lambda match: re.sub(_SEPARATOR, "", match[0]), text)


def prepared(text: str) -> str:
    """A text whose numbers and calls are written as LaTeX has them, and without its looks."""
    out = ungrouped(in_latex(text))
    if whole := _WRAPPED.fullmatch(out):
        out = whole[1]
    out = without_label(out)
    out = re.sub(r"\\(?:boldsymbol|bm)\{([a-z])\}", r"\\mathbf{\1}", out)
    out = out.rstrip("\\ ") if out.count("\\") == 1 else out
    out = _LOOKS.sub(" ", re.sub(r"\bUS\s*\\?\$", "", out)).strip()
    if match := _SCIENTIFIC.fullmatch(out):
        out = rf"{match[1]} \cdot 10^{{{int(match[2])}}}{match[3]}"
    out = _SPACE.sub(" ", out.replace(r"\,", " ")).strip()
    out = _TIMES_TEN.sub(r" \\times ", _INFINITY.sub(r"\\infty ", out.replace("**", "^")))
    calls = 1
    while calls:
        out, calls = _CALL.subn(lambda call: _CALLED[call[1]] % call[2], out)
    out = _BINOMIAL.sub(r"\\binom{\1}{\2}", _BARE_NAMES.sub(r"\\\1 ", out))
    out = _MIXED.sub(r"\1\\frac{\2}{\3}", out)
    out = _QUOTIENT.sub(r"\\frac{\1}{\2}", out)
    for pattern, sign in ((_GROUPED, " "), (_THOUSANDS, ","), (_POINTS, ".")):
        out = pattern.sub(lambda match, sign=sign: match[0].replace(sign, ""), out)
    out = _GOING_ON.sub(lambda match: _endless(match[1], match[2], match[3]), out)
    out = _REPEATING.sub(lambda m: _endless(m[1], m[2], m[3] or m[4] or m[5]), out)
    return _without_stop(out)


def bare(text: str) -> str:
    """A text without a label before it, math signs around it, commands for its looks, and the stop
    of a sentence.
    """
    whole = _WRAPPED.fullmatch(text)
    return _without_stop(_LOOKS.sub(" ", without_label(whole[1] if whole else text)).strip())


def _without_stop(text: str) -> str:
    """A text without a full stop, comma or semicolon at its end."""
    ends = text.endswith((".", ",", ";")) and text[-2:] not in ("..", "\\,", "\\;")
    return text[:-1].rstrip() if ends else text


def without_label(text: str) -> str:
    """A text without stars around it, and without a box of words with a colon before it."""
    label = _LABEL.match(text)
    return text[label.end() :].rstrip().removesuffix("**") if label else text


def _endless(whole: str, first: str, period: str) -> str:
    """The fraction that a repeating decimal is."""
    nines = int("9" * len(period)) * 10 ** len(first)
    value = int((whole + first + period) or "0") - int((whole + first) or "0")
    return rf"\frac{{{value}}}{{{nines}}}"


# --- tokens

_TOKEN = re.compile(
    rf"{BOX}|\\begin\s*\{{[a-zA-Z]+\*?\}}(?:\{{[lcr|]*\}})?|\\end\s*\{{[a-zA-Z]+\*?\}}"
    r"|\\\\(?:\[[0-9. a-z]*\])?|\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\.\.+|[<>!:=]=|\s+|.",
    re.DOTALL,
)
_SAME = {
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac", r"\nicefrac", r"\sfrac"), r"\frac"),
    **dict.fromkeys((r"\dbinom", r"\tbinom"), r"\binom"),
    **dict.fromkeys((r"\leq", r"\leqslant", "<="), r"\le"),
    **dict.fromkeys((r"\geq", r"\geqslant", ">="), r"\ge"),
    **dict.fromkeys((r"\neq", "!="), r"\ne"),
    **dict.fromkeys((r"\lt",), "<"),
    **dict.fromkeys((r"\gt",), ">"),
    **dict.fromkeys(("*", r"\ast"), r"\cdot"),
    **dict.fromkeys((r"\varnothing",), r"\emptyset"),
    **dict.fromkeys((r"\langle",), "("),
    **dict.fromkeys((r"\rangle",), ")"),
    **dict.fromkeys((r"\lbrace",), r"\{"),
    **dict.fromkeys((r"\rbrace",), r"\}"),
    **dict.fromkeys((r"\lvert", r"\rvert", r"\vert", r"\mid"), "|"),
    **dict.fromkeys((r"\ldots", r"\dots", r"\cdots", r"\dotsc"), "..."),
    **dict.fromkeys((r"\land", r"\wedge"), r"\text{and}"),
    **dict.fromkeys((r"\lor", r"\vee"), r"\text{or}"),
    **dict.fromkeys((r"\simeq", r"\thickapprox"), r"\approx"),
    **dict.fromkeys((r"\rightarrow",), r"\to"),
    **dict.fromkeys((r"\bmod",), r"\mod"),
    **dict.fromkeys((r"\lg",), r"\log"),
    **dict.fromkeys((r"\setminus",), r"\backslash"),
    r"\cr": r"\\",
    r"\div": "/",
    r"\colon": ":",
    r"\%": "%",
    r"\prime": "'",
    r"\varphi": r"\phi",
    r"\varepsilon": r"\epsilon",
}
"""Commands that are another writing of one sign."""
_FUNCTIONS = (
    "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|lim"
    "|gcd|lcm|max|min|mod|det|deg"
)
_WORD = re.compile(
    rf"(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|[^\W\d_]{{4,}}|(?:{_FUNCTIONS})(?![a-zA-Z])"
)
_OPEN = {"(", "[", "{", r"\{"}
_CLOSE = {")", "]", "}", r"\}"}
_TWO = {r"\frac", r"\binom"}
_NO_ARGUMENT = {*_OPEN, *_CLOSE, *"^_=<>,;:|&", " ", r"\\", "+"} - {"{", "("}


def tokens(text: str) -> list[str] | None:
    """The tokens of a text in their one writing; None where braces do not match or a command lacks
    its argument.

    A space stays between two numbers only, which it keeps apart.
    """
    signs: list[str] = []
    for match in _TOKEN.finditer(prepared(text)):
        sign = match[0]
        if match[1] is not None:
            signs += _box(match[1], sign, signs)
            continue
        elif sign.isspace():
            sign = " "
        elif sign.startswith((r"\\", r"\begin", r"\end")):
            sign = re.sub(r"\[.*|\s|(?<=\})\{.*", "", sign).replace("smallmatrix", "pmatrix")
        elif sign.startswith(".."):
            sign = "..."
        signs.append(_SAME.get(sign, sign))
    signs = _with_words(signs)
    units: list[list[str]] = []
    for sign in reversed(signs):
        unit = _unit(sign, units)
        if unit is None:
            return None
        units.append(unit)
    out = [sign for unit in reversed(units) for sign in unit]
    if "}" in [unit[0] for unit in units]:
        return None
    return _without_spaces(_degrees(out))


_POWER_OF_TEN = re.compile(r"10\^\{-?[0-9]+\}\Z")
_SYMBOLS = "deijknxyz"
"""Letters that stand for numbers, whatever box they are in."""


def _box(words: str, box: str, before: list[str]) -> list[str]:
    """A text box: words, a function, a vector, or one letter or number as itself. A letter behind a
    number is a unit.
    """
    bare = " ".join(_SPACE.sub(" ", words).split()).lstrip("\\$")
    if not bare or re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", bare):
        return [bare or " "]
    if re.fullmatch(_FUNCTIONS, bare):
        return ["\\" + bare]
    if re.fullmatch("[a-zA-Z]", bare):
        last = next((sign for sign in reversed(before) if sign != " "), "")
        behind_unit = before[-2:-1] and before[-2].startswith(r"\text{") and last == r"\cdot"
        behind_number = last[:1].isdigit() or last in (r"\mu", "/", r"\degree")
        behind_number = behind_number or _POWER_OF_TEN.search("".join(before[-7:]).rstrip())
        apart = before[-1:] == [" "] or words[:1].isspace()
        behind_number = behind_number or (apart and last in ("}", ")", r"\pi", r"\infty"))
        if bare not in _SYMBOLS and (behind_number or behind_unit):
            return [rf"\text{{{bare}}}"]
        return (
            [r"\vec", "{", bare, "}"] if box.startswith(r"\mathbf") and bare.islower() else [bare]
        )
    return [rf"\text{{{bare}}}"]


def _with_words(signs: list[str]) -> list[str]:
    """Tokens in which runs of letters that are words are one text box each."""
    out: list[str] = []
    run = ""
    for sign in [*signs, " "]:
        if len(sign) == 1 and sign.isalpha():
            run += sign
            continue
        if run:
            word = _WORD.fullmatch(run)
            counted = len(run) == 3 and out[-1:] == [" "] and out[-2:-1] and out[-2][0].isdigit()
            word = (word or counted) and not (run.isupper() and not counted)
            is_function = word and re.fullmatch(_FUNCTIONS, run)
            out += ["\\" + run] if is_function else [rf"\text{{{run}}}"] if word else list(run)
        run = ""
        out.append(sign)
    return out[:-1]


def _unit(sign: str, units: list[list[str]]) -> list[str] | None:
    """A token with its arguments, which stand on the stack of those behind it."""
    if sign == "{":
        group: list[str] = []
        while units and units[-1] != ["}"]:
            group += units.pop()
        if not units:
            return None
        units.pop()
        return ["{", *group, "}"]
    if sign in _TWO:
        arguments = [_argument(units), _argument(units)]
        if arguments[0] is None or arguments[1] is None:
            return None
        return [sign, *arguments[0], *arguments[1]]
    if sign == r"\sqrt":
        while units and units[-1] == [" "]:
            units.pop()
        index = _up_to("]", units) if units and units[-1] == ["["] else []
        argument = _argument(units)
        return None if argument is None else [sign, *index, *argument]
    if sign in ("^", "_"):
        argument = _argument(units, whole=True)
        return None if argument is None else [sign, *argument]
    return [sign]


def _up_to(closing: str, units: list[list[str]]) -> list[str]:
    """Take the units up to one that closes what the first opens."""
    out = list(units.pop())
    depth = 1
    while units and depth:
        unit = units.pop()
        depth += (unit == [out[0]]) - (unit == [closing])
        out += unit
    return out


def _argument(units: list[list[str]], whole: bool = False) -> list[str] | None:
    """Take the next argument, in braces: a group, a command with its arguments, a letter, a digit;
    with `whole` also a number, with a sign, and what stands in parentheses.
    """
    while units and units[-1] == [" "]:
        units.pop()
    signs: list[str] = []
    if whole and units and units[-1] in (["-"], ["+"]):
        signs = units.pop()
    if not units or units[-1][0] in _NO_ARGUMENT:
        return None
    if units[-1] == ["("]:
        inside = _up_to(")", units)
        return ["{", *inside[1:-1], "}"] if whole else ["{", *inside, "}"]
    unit = units.pop()
    if unit[0] == "{":
        return unit if not signs else ["{", *signs, *unit[1:-1], "}"]
    if not whole and unit[0].isdigit() and len(unit[0]) > 1:
        units.append([unit[0][1:]])
        unit = [unit[0][0]]
    return ["{", *signs, *unit, "}"]


def _degrees(signs: list[str]) -> list[str]:
    """Tokens in which raised circles are degrees and raised primes are primes."""
    text = "\0".join(signs)
    for raised, sign in ((r"\circ", r"\degree"), ("'", "'"), ("'\0'", "'\0'")):
        text = text.replace(f"^\0{{\0{raised}\0}}", sign)
    out = text.split("\0") if text else []
    return [r"\degree" if sign == r"\circ" else sign for sign in out]


def _without_spaces(signs: list[str]) -> list[str]:
    """Tokens without the spaces that do not keep two numbers apart, or a number from letters."""
    out: list[str] = []
    for i, sign in enumerate(signs):
        if sign != " ":
            out.append(sign)
        elif out and i + 1 < len(signs):
            behind = signs[i + 1]
            is_letter = len(behind) == 1 and behind.isalpha()
            is_digit = out[-1][0].isdigit() and behind[0].isdigit()
            ends_number = out[-1][0].isdigit() or _POWER_OF_TEN.search("".join(out[-6:]))
            if is_digit or (is_letter and ends_number):
                out.append(" ")
    return out


def writing(signs: list[str]) -> str:
    """Tokens as one text, by which what has no value is compared."""
    return re.sub(
        r"(?<=\\text)\{([^{}]*)\}", lambda box: f"{{{box[1].casefold()}}}", "".join(signs)
    )
