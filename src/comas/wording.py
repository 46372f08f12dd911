"""Words put to agents: templates with holes, and the defusing of text that others wrote.

Model text is hostile: a solution may contain a score element, a fake role header or an end token. What is quoted can
be read, but is never mistaken for the game's own marks. Leaves out: special *tokens*, which hosts cannot produce from
content at all (`hosts.local`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from comas.types import Task

_OPEN, _CLOSE = "<＜‹〈⟨⟪《«˂ᐸ❮❰⧼", ">＞›〉⟩⟫》»˃ᐳ❯❱⧽"
_ELEMENT = re.compile(  # an opening or closing tag, with attributes or template bars: <score>, </ score >, <|im_end|>
    rf"[{_OPEN}]+(\s*[/|!?]*\s*[A-Za-z_][\w.:|()-]*(?:\s[^{_OPEN}{_CLOSE}\n]*=[^{_OPEN}{_CLOSE}\n]*)?\s*[|/]*\s*)[{_CLOSE}]+"
)
_STUMP = re.compile(rf"[{_OPEN}](?=\s*[/|]*\s*(?:score|user|assistant|system|end|im_|\|))", re.IGNORECASE)
_BRACKET = re.compile(r"\[\s*(/?\s*(?:INST|SYS|SYSTEM|USER|ASSISTANT))\s*\]", re.IGNORECASE)
_HEADER = re.compile(
    r"^([\s#>*_\-|]*)(system|user|assistant|human|model|tool|developer)([*_ \t]*)(?::|：|$)", re.IGNORECASE | re.MULTILINE
)
_ENTITY = re.compile(r"&(?:lt|gt|#0*60|#0*62|#x0*3c|#x0*3e);?", re.IGNORECASE)
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
"""Unicode categories that a reader does not see: control, format, private use, surrogates, separators of lines."""


def words(default: Mapping[str, str], task: Task, role: str, **facts: str) -> str:
    """The template of `role`, the task's own or the method's, with its holes filled; holes are never filled twice."""
    template = task.wording.get(role, default[role])
    return re.sub(r"\{(\w+)\}", lambda hole: facts.get(hole[1], hole[0]), template).strip()


def defuse(text: str) -> str:
    """`text` with element tags in round brackets, role headers broken, and control and invisible characters removed.

    `<score>3</score>` becomes `(score)3(/score)`, `User: hi` becomes `User - hi`. Comparisons such as `a < b` stay.
    """
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _HIDDEN)
    text = _ENTITY.sub("", text)
    while (bare := _ELEMENT.sub(r"(\1)", text)) != text:  # nested tags surface layer by layer
        text = bare
    text = _STUMP.sub("(", text)
    text = _BRACKET.sub(r"(\1)", text)
    return _HEADER.sub(r"\1\2\3 -", text)
