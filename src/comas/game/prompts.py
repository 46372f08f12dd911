"""Words put to agents: templates with holes, and the quoting of text that others wrote.

Model text is hostile: a solution may contain a score element, a fake role header, an end token, or
a heading of the prompt that it is quoted in (`Criticism of it: none`). What is quoted can be read,
but is never mistaken for the game's own marks: elements and headers are broken (`clean`), and no
line of a quote begins a line of the prompt (`Quoted`). Leaves out: special *tokens*, which hosts
cannot produce from content at all (`hosts.local`).
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

from comas.types import CannotBePlayed, Question, Task, UserMistake

# what NFKC does not fold: brackets, bars and colons of other kinds; Cyrillic and Greek letters
_LOOK = str.maketrans(
    "‹〈⟨⟪《«˂ᐸ❮❰⧼≺≪›〉⟩⟫》»˃ᐳ❯❱⧽≻≫∣▁∶ː꞉׃аеорсухѕіјԁһмтпοενιακρτυχ",
    "<<<<<<<<<<<<<>>>>>>>>>>>>>|_::::aeopcyxsijdhmtnoeviakptux",
)
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
"""Unicode categories that a reader does not see: control, format, private use, surrogates,
separators of lines.
"""
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Others that it does not see: joiners, fillers, variation selectors."""

# quantifiers are possessive and runs of `<` are taken whole: hostile text must not cost quadratic
# time
_RESERVED = r"(?:score|user|assistant|system|model|human|tool|end|eos|bos|pad|unk|s)"
_NAME = r"[^\W\d][\w.:|()-]*+(?:\s[^<>\n=]*+=[^<>\n]*+)?+"
# <score>, </ score >, <|im_end|>, <score value="1">, < end >; not `a < b` nor `1 < x > 0`
_ELEMENT = re.compile(
    rf"(?<!<)<++((?:[/|!?%]++\s*+)?+{_NAME}\s*+[|/%]*+\s*+|\s*+[/|]*+\s*+{_RESERVED}\s*+[|/]*+\s*+)>++",
    re.IGNORECASE,
)
_STUMP = re.compile(  # one that is not closed, where that is enough to be read
    r"(?<!<)<++(?=\s*+[/|!?]*+\s*+['\"]*+\s*+score(?!\w)|\s*+\|\s*+(?:im_|start|begin|end|eot|eom|user|assistant|system|pad))()",
    re.IGNORECASE,
)
_BRACKET = re.compile(
    r"\[(\s*+/?+\s*+(?:INST|SYS|SYSTEM(?:_PROMPT)?|USER|ASSISTANT|(?:AVAILABLE_)?TOOLS?(?:_\w+)?)\s*+)\]",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"^([ \t#>*_\-|\d.]*+(?:system|user|assistant|human|model|tool|developer)[*_ \t]*+)(?::|$)",
    re.IGNORECASE | re.MULTILINE,
)
_ENTITY = re.compile(r"&(?:amp;)*+((?:lt|gt|#0*+6[02]|#x0*+3[ce])|[lr]ang(?=;));?+", re.IGNORECASE)
_MARKS = (
    (_ENTITY, "(", ")"),
    (_ELEMENT, "(", ")"),
    (_STUMP, "(", ""),
    (_BRACKET, "(", ")"),
    (_HEADER, "", " -"),
)
"""Pattern, and what is put around its first group instead."""
_ANGLE = re.compile("[<>]()")
_LAYERS = 8
"""Layers of nested tags; deeper ones lose all angle brackets."""


SOLVING = {"solution": "{question}\n\nSolve it and end with the answer."}
"""How an agent is asked to answer a question alone, where neither game nor task has other words."""
FACTS = (
    *("question", "history", "work", "evaluation", "own", "legal"),
    *("document", "documents", "answer", "hops", "back", "calls", "name", "argument", "does"),
    "mark",
)
"""Holes that the games which are shipped fill."""
_HOLE = re.compile(r"\{(\w+)\}")


def holes(template: str) -> set[str]:
    """Names of the holes of a template."""
    return set(_HOLE.findall(template))


def meant_by(hole: str) -> str | None:
    """The fact that a hole's name looks like, if it is not one itself."""
    close = difflib.get_close_matches(hole, FACTS, 1, 0.74)
    return close[0] if close and hole not in FACTS else None


def check_holes(wording: object, where: str, code: str) -> None:
    """An error for a hole whose name is nearly that of a fact which its template has not.

    `code` is the file that the templates stand in: a name that it uses outside of holes is a fact
    of its own.
    """
    if not isinstance(wording, Mapping):
        return
    for role, template in cast("Mapping[Any, Any]", wording).items():
        named_holes = holes(template) if isinstance(template, str) else set[str]()
        for hole in sorted(named_holes):
            meant = meant_by(hole)
            if (
                meant is not None
                and meant not in named_holes
                and not re.search(rf"(?<!\{{)\b{hole}\b(?!\}})", code)
            ):
                raise UserMistake(
                    f"{where}, wording of {role!r}: nobody fills {{{hole}}}: did you mean"
                    f" {{{meant}}}?"
                )


QUOTE = "> "
"""Mark before each line of a quote that would begin a line of the prompt, as in Markdown."""


class Quoted(str):
    """Text of another agent or of a data set, cleaned by `defuse`.

    Where it fills a hole of a template, its lines cannot be read as lines of the template: `QUOTE`
    stands before each, but for the first one where that continues a line. So a heading, however it
    is written, is only ever the template's own. Joined with other text it is no quote any more.
    """

    def filling(self, template: str, start: int) -> str:
        """The quote in a hole that begins at this place of a template. At the beginning of a
        template of one line it continues that line.
        """
        before = template[:start]
        begins_line = before.endswith("\n") or (not before and "\n" in template)
        return QUOTE + self.continuing() if begins_line else self.continuing()

    def continuing(self) -> str:
        """The quote with its first line as it is and `QUOTE` before the others: what continues a
        line, and the reader's own words, who forges nothing for himself.
        """
        first, *others = self.split("\n")
        return "\n".join([str(first), *(QUOTE + line for line in others)])


def words(default: Mapping[str, str], task: Task, role: str, **facts: str) -> str:
    """The template of `role`, the task's own or the method's, with its holes filled (`fill`)."""
    return fill(template_of(default, task, role), facts)


def template_of(default: Mapping[str, str], task: Task, role: str) -> str:
    """The template of `role`: the task's own, or the method's."""
    template = task.wording.get(role, default.get(role))
    if template is None:
        raise CannotBePlayed(
            f"role {role!r} has no wording: give the method's WORDING or the task's `wording` a"
            " template for it"
        )
    return template


def fill(template: str, facts: Mapping[str, str]) -> str:
    """A template with its holes filled, once; holes without a fact stay, but for one that a fact
    without a hole was meant for, which is an error. Facts that are `Quoted` are told apart from the
    template's own lines.
    """
    for fact in facts:
        if f"{{{fact}}}" not in template:
            _refuse_misspelt(fact, template, facts)

    def filling(hole: re.Match[str]) -> str:
        fact = facts.get(hole[1], hole[0])
        return fact.filling(template, hole.start()) if isinstance(fact, Quoted) else fact

    return _HOLE.sub(filling, template).strip()


def _refuse_misspelt(fact: str, template: str, facts: Mapping[str, str]) -> None:
    """An error where a fact that has no hole is nearly the name of a hole without a fact."""
    unfilled = {hole[1] for hole in _HOLE.finditer(template)} - facts.keys()
    if near := difflib.get_close_matches(fact, unfilled, 1, 0.75):
        raise CannotBePlayed(
            f"the wording {template[:40]!r} has no hole {{{fact}}}, and nothing fills"
            f" {{{near[0]}}}: write {near[0]}= in the place of {fact}="
        )


def common_of(template: str, hole: str, facts: Mapping[str, str]) -> int:
    """Count the characters of a filled template that stand before a hole, 0 where it has none: what
    prompts that differ in this hole alone begin with.
    """
    before, separator, _ = template.partition(f"{{{hole}}}")
    return len(fill(before, facts)) if separator else 0


def solving(question: Question, task: Task, default: Mapping[str, str] = SOLVING) -> str:
    """Write the prompt of an agent who answers before anybody else has said anything."""
    return words(default, task, "solution", question=question.prompt, history="")


def defuse(text: str) -> Quoted:
    """`text` cleaned, as a quote: what `words` puts into a hole of a template."""
    return Quoted(clean(text))


def clean(text: str) -> str:
    """`text` with element tags in round brackets, role headers broken, and control and invisible
    characters removed.

    `<score>3</score>` becomes `(score)3(/score)`, `User: hi` becomes `User - hi`. Comparisons such
    as `a < b` stay. For what is no quote, such as a question that an agent posed and another one
    is to solve; quotes are made by `defuse`.
    """
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _HIDDEN)
    text = _BLANK.sub("", text)
    for _ in range(_LAYERS):  # what is nested surfaces layer by layer
        before = text
        for pattern, left, right in _MARKS:
            text = _rewrite(text, pattern, left, right)
        if text == before:
            return text
    return _rewrite(text, _ANGLE, "(", "")


def _rewrite(text: str, pattern: re.Pattern[str], left: str, right: str) -> str:
    """Every match becomes its first group between `left` and `right`; look-alikes match, what is
    kept stays as written.
    """
    out = []
    end = 0
    for match in pattern.finditer(text if text.isascii() else "".join(map(_plain, text))):
        out += [text[end : match.start()], left, text[match.start(1) : match.end(1)], right]
        end = match.end()
    return "".join([*out, text[end:]])


def _plain(character: str) -> str:
    """The one ASCII character that it looks like, or itself."""
    if character.isascii():
        return character
    folded = unicodedata.normalize("NFKC", character).translate(_LOOK)
    return folded if len(folded) == 1 else character
