"""A report as blocks, written as Markdown, as one HTML page, and its tables as LaTeX.

Leaves out: what stands in it (`studies.report`), drawing (`studies.charts`).
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

MARKDOWN = re.compile(r"([\\`*_|<>\[\]])")
"""What Markdown would take for markup; `|` would end a cell of a table."""
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ddd;
  vertical-align: top }
th { border-bottom: 2px solid #888 }
figure { margin: 1rem 0; overflow-x: auto }
figcaption { color: #555 }
"""


@dataclass(frozen=True)
class Heading:
    """Of a part."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of texts under headings."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A drawing, which is also a file of its own."""

    name: str
    svg: str
    caption: str

    @property
    def file(self) -> str:
        """From the report's folder."""
        return f"pictures/{self.name}.svg"


Block = Heading | Text | Table | Picture


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """The report as Markdown; pictures are files beside it."""
    parts = [f"# {_plain(title)}", *map(_markdown, blocks)]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_plain(text)}"
        case Text(text):
            return _plain(text)
        case Table(title, headings, rows):
            rule = "|".join("---" for _ in headings)
            lines = [_line(headings), f"|{rule}|", *map(_line, rows)]
            return f"{_plain(title)}:\n\n" + "\n".join(lines)
        case Picture():
            return f"![{_plain(block.caption)}]({block.file})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    return MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def page(title: str, blocks: Sequence[Block]) -> str:
    """The report as one file, which needs no other and no network."""
    name = html.escape(title)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{name}</title><style>{STYLE}</style></head><body>",
            f"<h1>{name}</h1>",
            *map(_html, blocks),
            "</body></html>\n",
        ]
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Text(text):
            return f"<p>{html.escape(text)}</p>"
        case Table(title, headings, rows):
            head = _cells("th", headings)
            body = "\n".join(_cells("td", row) for row in rows)
            return f"<p>{html.escape(title)}:</p>\n<table>\n{head}\n{body}\n</table>"
        case Picture():
            caption = f"<figcaption>{html.escape(block.caption)}</figcaption>"
            return f"<figure>\n{block.svg}\n{caption}</figure>"


def _cells(tag: str, texts: Sequence[str]) -> str:
    cells = "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
    return f"<tr>{cells}</tr>"


def latex(blocks: Sequence[Block]) -> str:
    """The tables, for `\\input`; no package is needed."""
    tables = [block for block in blocks if isinstance(block, Table)]
    return "\n".join(map(_latex, tables))


def _latex(table: Table) -> str:
    columns = "l" * len(table.headings)
    head = [_latex_row(table.headings), r"\hline"]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{_escaped(table.title)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\hline",
            *head,
            *map(_latex_row, table.rows),
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text)
