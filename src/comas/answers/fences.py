"""Fenced blocks of a text, read line by line as Markdown has them: backticks or tildes, indented,
with any language behind them.

More than Markdown: a block may begin and end within a line, since models write so. Leaves out:
blocks made by indentation alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SHORTEST = 3
"""Signs of a fence."""
FENCES_INSIDE = 5
"""Closing fences at which a block of Python is tried to be whole."""
_LANGUAGE = re.compile(r"\{?\s*\.?([A-Za-z][\w+#-]*)?")
_PYTHON = re.compile(r"(?:i?python|py)[0-9]*", re.IGNORECASE)
_ONE_LINE = re.compile(r"(?:i?python|py)[0-9.]*[ \t]+(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Text between two fences."""

    text: str
    language: str
    """As it is written, without a version; empty where there is none."""
    closed: bool

    @property
    def is_python(self) -> bool:
        """Whether it says so."""
        return _PYTHON.fullmatch(self.language) is not None


@dataclass(frozen=True)
class _Fence:
    sign: str
    length: int
    language: str


def blocks(text: str, is_whole: Callable[[str], bool] | None = None) -> list[Block]:
    """All fenced blocks in their order; the last one may lack its end.

    A block of Python ends at the first closing fence, or, where the code up to there is not whole
    (`is_whole`), at a later one at which it is: a docstring may hold fences.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    out: list[Block] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        within = _within_a_line(line)
        if within is not None:
            out.append(within)
        elif (fence := _opened(line)) is not None:
            ends = _ends(lines, number, fence)
            candidates = [
                (_block([*lines[number:end], code], fence, closed=True), end + 1)
                for end, code in itertools.islice(ends, FENCES_INSIDE if is_whole else 1)
            ]
            if not candidates:
                out.append(_block(lines[number:], fence, closed=False))
                break
            parsing = (m for m in candidates if is_whole and m[0].is_python and is_whole(m[0].text))
            block, number = next(parsing, candidates[0])
            out.append(block)
    return out


def _ends(lines: list[str], place: int, fence: _Fence) -> Iterator[tuple[int, str]]:
    """Lines from `place` on that may close a fence, with the code before the closing signs."""
    for end in range(place, len(lines)):
        code = _before_the_end(lines[end], fence)
        if code is not None:
            yield end, code


def _block(lines: list[str], fence: _Fence, closed: bool) -> Block:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return Block(
        "\n".join(line[margin:] for line in lines).strip("\n").rstrip(), fence.language, closed
    )


def _opened(line: str) -> _Fence | None:
    """The fence that begins in a line: tildes at its start, backticks also behind other text."""
    bare = line.strip()
    if bare.startswith("~~~"):
        length = len(bare) - len(bare.lstrip("~"))
        return _Fence("~", length, _language(bare[length:]))
    end = bare.rfind("`") + 1
    length = end - len(bare[:end].rstrip("`"))
    spans = re.findall("`+", bare[: end - length])
    if length < SHORTEST or len(spans) % 2:  # it ends a piece of code within the line
        return None
    return _Fence("`", length, _language(bare[end:]))


def _language(behind: str) -> str:
    match = _LANGUAGE.match(behind.strip())
    return (match[1] or "") if match else ""


def _before_the_end(line: str, fence: _Fence) -> str | None:
    """Return what stands before the closing fence in its line; None where the block goes on."""
    bare = line.rstrip()
    code = bare.rstrip(fence.sign)
    length = len(bare) - len(code)
    if length < fence.length or (code.strip() and (fence.sign == "~" or length > fence.length)):
        return None
    return code


def _within_a_line(line: str) -> Block | None:
    """Return a block of Python that begins and ends in one line."""
    first = line.find("```")
    last = line.rfind("```")
    if last - first < SHORTEST:
        return None
    match = _ONE_LINE.fullmatch(line[first + SHORTEST : last])
    return (
        Block(match[1].strip(), "python", closed=True)
        if match is not None and "```" not in match[1]
        else None
    )
