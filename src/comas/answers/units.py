"""Words beside numbers: those that scale it, those that make another number of it, and units.

English has few words that change a number (`million`, `half`, `squared`, `less than`) and any
number that name what is counted, so the few are listed. Pure functions. Leaves out: converting and
comparing units.
"""

from __future__ import annotations

import re

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
_SIGNS = (
    "squared|cubed|factorial|minus|plus|negative|below|over|divided|multiplied|double|twice"
    r"|(?<!\\)(?:sqrt|ln|log|pi|infinity|(?<!\.)e(?![.^{(]))"
)
_RELATIONS = "at (?:most|least)|than|not|nor|or|and|to|versus|vs|isn't|unless|except"
_SHORT_SCALES = "(?-i:k)|bn|mn|mln|grand"
_ALTERING = re.compile(
    rf"(?<![^\W\d_])(?:(?:{'|'.join(SCALES)})s?|{_SMALL}|{_TENS}|{_PARTS}|{_SIGNS}|{_RELATIONS}|{_SHORT_SCALES})(?![^\W\d_])",
    re.IGNORECASE,
)
_SYMBOLS = re.compile(r"\s*(?:[ijknxyz]|\\(?:alpha|beta|gamma))\s*")
"""Letters that stand for numbers and for no unit."""


def alters(words: str) -> bool:
    """Whether words beside a number may make another number of it, or two."""
    return _ALTERING.search(words) is not None


def is_symbol(words: str) -> bool:
    """Whether the words are one letter that stands for a number (`5x`, `2i`) rather than for a
    unit.
    """
    return _SYMBOLS.fullmatch(words) is not None
