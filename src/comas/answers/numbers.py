r"""Numbers in answers: the exact value of a text that is one number, and the value of a physical
quantity.

Leaves out: converting units. A quantity is compared in the unit that the question asks for.
"""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction

from comas.answers import maths, notation
from comas.answers.boxed import last_box
from comas.answers.pool import WorkerFailed
from comas.answers.units import alters, is_symbol
from comas.types import Question, UserMistake, Verdict

DIGITS = 60
"""Longest number and largest exponent that are read: beyond that a reply is noise, and exact
arithmetic is slow.
"""

_WRAP = re.compile(
    r"\\(?:text|math|mbox)(?:bf|it|rm|sf)?\s*\{\s*([-+$\\]*[0-9][^{}]*)\}|\*\*([^*]*)\*\*|\(([^()]*)\)"
)
_DEGREES = re.compile(
    r"(?:\{ *\})? *\^ *(?:\{ *\\circ *\}|\\circ(?![a-zA-Z])|°)|\\degree(?![a-zA-Z])"
)
_BOXED_UNIT = (
    r"\\(?:text|math|mbox)(?:bf|it|rm|sf)?\s*+\{[ ~]*+[^{}0-9]*+\}(?:\^(?:\{-?[0-9]\}|[0-9]))?"
)
_UNIT = re.compile(rf"(?<=[0-9.%}}])\s*+°?\s*+((?:/?\s*+{_BOXED_UNIT}\s*+)+|[CF])?\Z")
"""Text behind a number up to the end: degrees, then boxes of words, each with an exponent."""
_GLUED = "(?:st|nd|rd|th|[cmk]m|in|ft|yd|mi|[mk]g|lbs?|oz|m[lL]|gal|min|hrs?|mph|sec)(?![A-Za-z])"
"""Units that may stand behind a number without a space, where `5k` is another number."""
_WORD = re.compile(
    rf"(?<=[0-9.%])(?:(?: +|(?={_GLUED}))([A-Za-z][A-Za-z .]*+(?:/[A-Za-z .]++)*+)"
    r"(?:[²³]|\^(?:[0-9]|\{[0-9]\}))?|"
    r" *[€£¥₹¢])\Z"
)
"""Words behind a number: `km/h`, `m^2`, `apples per day`; or the sign of a currency."""
_AMOUNTS = re.compile(r"[KMBT]|mil")
"""Thousands and millions, where no physical unit is asked for."""
_NAMED = re.compile(r"\A[A-Za-z]\w* ?=(?=[^=]*\Z)|\A(?:\\approx|≈)")
_WIDE = re.compile(r"\\[,;: ]|~|\s+")
_END = re.compile(r"(?<!\\);\Z")
_GROUPS = re.compile(r"\A[-+−–$€£¥₹¢\\\s]*+[1-9][0-9]{0,2}(?:\s[0-9]{3})+(?![0-9]| ?/|\s[0-9])")
"""`1 500`; but `1 100/200` may be one and a half."""
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}\Z")
_POWER = re.compile(r"(?:\\times|\\cdot|×|\*)10\^(?:\{([+-]?[0-9]+)\}|([+-]?[0-9]+))\Z")
_NUMBER = re.compile(
    rf"([+-]?)[$€£¥₹]?([+-]?)((?:{notation.THOUSANDS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE]([+-]?[0-9]+))?%?\.?"
)


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number and nothing else; None for anything else, NaN
    and infinity included.

    Understands `1,000`, `1 000`, `$5`, `50%` (fifty: percent signs are dropped), `.5`, `3.0`,
    `-7`, `3/4`, `\\frac{3}{4}`, `1e3`, `2 \\times 10^3`, LaTeX spaces, `x = 3`, and a unit
    behind it, in words or in `\\text{...}`.
    """
    if len(text) > 4 * DIGITS:
        return None
    text = notation.bare(text.translate(notation.WIDE))
    text = _END.sub("", text.strip().strip("$").strip())
    text = notation.ungrouped(text.replace("\\left", "").replace("\\right", ""))
    text = _WIDE.sub(" ", text.replace("\\!", ""))
    if whole := _WRAP.fullmatch(text):
        text = next(part for part in whole.groups() if part is not None)
    bare = _bare_number(_NAMED.sub("", _DEGREES.sub("°", text)).strip())
    if bare is None:
        return None
    text = bare
    for mark, plain in (("{,}", ","), ("\\$", "$"), ("\\%", "%"), ("−", "-"), ("–", "-")):
        text = text.replace(mark, plain)
    text = _GROUPS.sub(lambda match: re.sub(r"\s", "", match[0]), text)
    if re.search(r"[0-9] [0-9]", text):  # `3 4` is two numbers, and what `1 1/2` means is a guess
        return None
    text = text.replace(" ", "")
    if match := _FRACTION.match(text):
        text = f"{match[1]}{match[2]}/{match[3]}"
    text = _POWER.sub(lambda match: f"e{match[1] or match[2]}", text)
    above, slash, below = text.partition("/")
    top = _plain(above)
    bottom = _plain(below) if slash else Fraction(1)
    return top / bottom if top is not None and bottom else None


def _bare_number(text: str) -> str | None:
    """A number without the unit behind it; None where what stands there may make another number of
    it (`5 million`).
    """
    boxes = _UNIT.search(text)
    text = text[: boxes.start()] if boxes else text
    words = _WORD.search(text)
    beside = [(boxes[1] or "") if boxes else "", (words[1] or "") if words else ""]
    names = [
        name for part in beside for name in re.findall(r"[A-Za-z]+", re.sub(r"\\[a-z]+", " ", part))
    ]
    if any(alters(part) for part in beside) or any(
        is_symbol(n) or _AMOUNTS.fullmatch(n) for n in names[:1]
    ):
        return None
    return (text[: words.start()] if words else text).strip()


def _plain(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or (match[1] and match[2]):
        return None
    digits = match[3].replace(",", "")
    power = match[4] or "0"
    if len(digits) > DIGITS or len(power) > 4 or abs(int(power)) > DIGITS:
        return None
    value = Fraction(Decimal(f"{digits}e{power}"))
    return -value if "-" in (match[1], match[2]) else value


def canonical(value: Fraction) -> str:
    """`72`, `-0.75` where the decimals end, otherwise `1/3`."""
    if 10 ** (8 * DIGITS) % value.denominator or value.denominator == 1:
        return str(value)
    with localcontext(prec=8 * DIGITS):
        return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"


def as_canonical(text: str | None) -> str | None:
    """The canonical writing of a text that is one number; None for anything else."""
    value = number(text) if text is not None else None
    return canonical(value) if value is not None else None


def written(value: float | str) -> str:
    """A number of a JSON file as people write it: `0.00001` and not `1e-05`, `3` and not `3.0`.

    Texts stay, without outer spaces.
    """
    if isinstance(value, str):
        return value.strip()
    exact = Decimal(repr(value))
    text = f"{exact.to_integral_value() if exact == exact.to_integral_value() else exact:f}"
    return text if len(text) <= DIGITS else repr(value)


_LEADING = re.compile(
    rf"(?P<sign>[+-]?)(?P<digits>(?:{notation.THOUSANDS}|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<e>[+-]?[0-9]+)|(?:x|X|\*|×|⋅|·|\\times|\\cdot)10(?:\^|\*\*)?(?:\{(?P<braced>[+-]?[0-9]+)\}|\(?(?P<bare>[+-]?[0-9]+)\)?))?"
)
_BARE_POWER = re.compile(r"([+-]?)10(?:\^|\*\*)(?:\{([+-]?[0-9]+)\}|\(?([+-]?[0-9]+)\)?)")
_BOX_OF_TEXT = re.compile(
    r"\\(?:text|mathrm|mathbf|textbf|mbox|operatorname|rm)\b\s*|[{}$]|\\(?:[,;:!"
    r" ]|left|right|quad)|~|\\(?=%)"
)
_SYMBOL = re.compile(
    r"\\(?:pi|sqrt|frac|dfrac|tfrac|ln|log|exp|sinh?|cosh?|tanh?|arc(?:sin|cos|tan)|infty|overline)(?![a-zA-Z])|(?<![1-9.,]10)(?<=[1-9])\^|[π√]|"
    r"(?<![a-zA-Z])e\^|\)\(|/[0-9]|(?:(?<!\*)\*|×|⋅|·|\\times|\\cdot)(?!10)[0-9(]"
)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RELATION = re.compile(r"=|≈|≃|\\(?:approx|simeq|cong|sim)(?![a-zA-Z])")
_NAME = re.compile(r"\\?[^\W\d_]+")
_UNITS = re.compile(
    r"(?!\^)(?:\\?+[^\W\d_]++|[°º%'\"]|(?<=[^\W\d_)])\^[+-]?+[0-9]++"
    r"|(?<=[^\W\d_])[+-]?+[0-9](?![0-9.])|[/·⋅*.^()\\-]|(?<=[^\W\d_]) )*+\Z"
)
"""Letters, exponents, signs between units; no number that stands by itself."""
_IN_UNITS = re.compile(
    r"\\(?:mu|Omega|ohm|AA|mathring|degree|textdegree|circ|celsius|hat|vec|bar|prime|ell|hbar|cdot|alpha|beta|gamma|per)"
)
_ABOUT = re.compile(
    r"\A\s*(?:\\text\s*\{\s*)?(?:about|approximately|approx\.?|roughly|around|nearly|circa|ca\.)"
    r"(?![a-zA-Z])[\s~]*\}?",
    re.IGNORECASE,
)
_INEQUALITY = re.compile(r"[<>≤≥≠±]|\\(?:[lg]eq?(?:slant)?|[lg]t|neq?|pm|mp)(?![a-zA-Z])")
_PER_CENT = re.compile(r"%| ?per ?cent(?![a-z])", re.IGNORECASE)


def quantity(text: str, percent: bool = True) -> float | None:
    r"""The number in a physical quantity, whatever its unit: `-3.8 \times 10^{-8} \text{ C/m}^2` is
    -3.8e-08.

    Powers of ten as `3e5`, `3 x 10^5`, `3·10⁵`, `3*10**5`, `3\times10^{5}`, `10^5`; `v = 3 m/s` is
    3; `5\%` is .05. Other expressions (`\sqrt{2}/3`, `2\pi`) are left to the checker of
    mathematics. None where there is not exactly one number. With `percent` off, 5 % is 5: where
    percent is the unit that was asked for. Raises WorkerFailed.
    """
    if _INEQUALITY.search(text):
        return None
    amount = _ABOUT.sub("", _RELATION.split(text)[-1])
    flat = _flat(notation.ungrouped(amount))
    if len(flat) > 4 * DIGITS or not flat:
        return None
    match = _LEADING.match(flat) if not _SYMBOL.search(flat) else None
    power = _BARE_POWER.match(flat)
    if power and (match is None or match.end() < power.end()):
        mantissa = power[1] + "1"
        exponent = int(power[2] or power[3])
        rest = flat[power.end() :]
    elif match:
        mantissa = match["sign"] + match["digits"].replace(",", "")
        exponent = int(match["e"] or match["braced"] or match["bare"] or 0)
        rest = flat[match.end() :]
    else:
        return maths.value(amount) if not alters(flat) else None
    if abs(exponent) > 300 or not _is_unit(rest):
        return None
    value = float(f"{mantissa}e{exponent}")
    return value / 100 if percent and _PER_CENT.match(rest) else value


def _is_unit(rest: str) -> bool:
    """Whether what stands behind a number may be its unit: no words that change it, no letter that
    is a number, no relation.
    """
    names = _NAME.findall(rest)
    commands = [name for name in names if name.startswith("\\")]
    if any(not _IN_UNITS.match(name) for name in commands) or any(
        is_symbol(name) for name in names[:1]
    ):
        return False
    return _UNITS.match(rest) is not None and not alters(rest)


def _flat(text: str) -> str:
    """Normalise a text for reading: drop LaTeX boxes and write superscripts as `^`.

    One space stays between two words, and `_` before a number.
    """
    out = text.replace("−", "-").replace("–", "-").replace("{,}", ",")
    out = _RAISED.sub(lambda run: "^" + run[0].translate(_LOWERED), out)
    out = re.sub(r"\^\{([+-]?[0-9]+)\}", r"^\1", _DEGREES.sub("°", out))
    out = _BOX_OF_TEXT.sub(" ", out)
    out = re.sub(r"(?<=[0-9])\s+(?=[0-9])", "_", out.strip())  # two numbers, not one
    out = re.sub(r"(?<=[^\W\d_])(?<!\\times)(?<!\\cdot)(?<![^a-zA-Z][xX])\s+(?=[0-9])", "_", out)
    return re.sub(r"(?<![^\W\d_])\s+|\s+(?![^\W\d_])", "", re.sub(r"\s+", " ", out))


def power_of(unit: str) -> int:
    r"""The power of ten that a unit begins with: 0, or -8 for `$10^{-8} \mathrm{C}$`."""
    match = re.match(r"(?:x|×|\\times)?10\^([+-]?[0-9]+)", _flat(unit))
    return int(match[1]) if match else 0


def near(value: float, gold: float) -> bool:
    """Whether a value is the reference within 5 % of it; for 0 only 0 is."""
    return abs(value - gold) <= 0.05 * abs(gold)


def extract(question: Question, text: str) -> str | None:
    """The boxed quantity in six digits; None where it is not one number. Raises HostFailure."""
    try:
        inside = last_box(text)
        value = quantity(inside) if inside is not None else None
    except WorkerFailed:
        maths.check_works()
        return None
    return f"{value:.6g}" if value is not None else None


def same(a: str, b: str) -> bool:
    """Whether two quantities are the same within the tolerance of the verifier."""
    return near(float(a), float(b)) or near(float(b), float(a))


def reference(text: str, where: str) -> str:
    """A reference quantity as it is. Raises UserMistake where it is not one number."""
    question = Question(id="reference", prompt="", kind="science", answer=text)
    if verify(question, rf"\boxed{{{text}}}") != "right":
        raise UserMistake(f"{where}: expected one number as the answer, got {text[:60]!r}")
    return text


def verify(question: Question, text: str) -> Verdict:
    """Right if the boxed number is within 5 % of the reference; failed where the reference is no
    number or the checker broke down.

    Where the asked unit begins with a power of ten (`meta["power"]`), the number may be given with
    it or without it.
    """
    in_percent = "%" in (question.answer or "") or question.meta.get("percent", False)
    try:
        gold = quantity(question.answer or "", not in_percent)
    except WorkerFailed:
        return "failed"
    if gold is None:
        return "failed"
    try:
        inside = last_box(text)
        value = quantity(inside, not in_percent) if inside is not None else None
    except WorkerFailed:
        return "wrong" if maths.works() else "failed"
    golds = {gold, gold * 10.0 ** question.meta.get("power", 0)}
    return "right" if value is not None and any(near(value, g) for g in golds) else "wrong"
