"""Fenced blocks of a text, read line by line as Markdown has them: backticks or tildes, indented,
with any language behind them.

More than Markdown: a block may begin and end within a line, since models write so. Leaves out:
blocks made by indentation alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHORTEST = 3
"""Signs of a fence."""
_LANGUAGE = re.compile(r"\{?\s*\.?([A-Za-z][\w+#-]*)?")
_PYTHON = re.compile(r"(?:i?python|py)[0-9]*", re.IGNORECASE)
_ONE_LINE = re.compile(r"(?:i?python|py)[0-9.]*[ \t]+(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

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


def blocks(text: str) -> list[Block]:
    """All fenced blocks in their order; the last one may lack its end."""
    out: list[Block] = []
    fence: _Fence | None = None
    inside: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if fence is None:
            within = _within_a_line(line)
            fence = _opened(line) if within is None else None
            out.extend([within] if within is not None else [])
            inside = []
            continue
        code = _before_the_end(line, fence)
        inside.append(line if code is None else code)
        if code is not None:
            out.append(_block(inside, fence, closed=True))
            fence = None
    if fence is not None:
        out.append(_block(inside, fence, closed=False))
    return out


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
    found = _LANGUAGE.match(behind.strip())
    return (found[1] or "") if found else ""


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
    found = _ONE_LINE.fullmatch(line[first + SHORTEST : last])
    return (
        Block(found[1].strip(), "python", closed=True)
        if found is not None and "```" not in found[1]
        else None
    )
