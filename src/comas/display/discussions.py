"""Discussions as people read them: who said what in which role, what the game read in it, what it
was paid.

Model text is hostile: it is shown as text, never as markup, and without control characters. Leaves
out: where on the screen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from comas.types import Turn

LONGEST = 400
"""Characters of a turn that are shown at most."""
BRIEF = 24
"""Characters of an answer that was read in a turn."""
COLOURS = {"solution": "cyan", "evaluation": "yellow", "scoring": "magenta"}


def clean(text: str, limit: int = LONGEST) -> str:
    """Printable text on one line: no control, format or private characters."""
    seen = text[: 10 * limit]  # of a megabyte no more is looked at: this runs at every redraw
    flat = "".join(
        c if c.isprintable() else " "
        for c in seen
        if unicodedata.category(c) not in ("Cf", "Co", "Cs")
    )
    flat = " ".join(flat.split())
    if len(flat) <= limit and len(seen) == len(text):
        return flat
    return flat[:limit] + " …"


def span(seconds: float) -> str:
    """`75` -> `1:15`."""
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def read_as(turn: Turn, answer: str | None = None) -> str:
    """What the game read in a turn, the reason of payments: `score 3`, `no answer`; empty where it
    says nothing of the kind.

    `answer` is the canonical answer, where the game notes only that there is one.
    """
    for fact in ("score", "answer"):
        if fact in turn.info:
            value = turn.info[fact]
            if value is None:
                return f"no {fact}"
            return f"{fact} {clean(str(value), BRIEF)}"
    if turn.info.get("readable") is False:
        return "no answer"
    return f"answer {clean(answer, BRIEF)}" if answer is not None else ""


def readings(turns: Sequence[Turn]) -> Iterator[Text]:
    """A line for each turn in which the game read something: `a1 scoring: score 3`."""
    for turn in turns:
        if read := read_as(turn):
            who = f"{clean(turn.agent)} {clean(turn.role)}"
            yield Text(f"{who}: {read}", "dim")


def discussion(question: str, turns: Sequence[Turn], limit: int = LONGEST) -> RenderableType:
    """A discussion as a table: who said what in which role (of each turn `limit` characters), and
    what it was paid.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for turn in turns:
        agent = Text(clean(turn.agent), "bold")
        table.add_row(agent, role_name(turn.role), _said(turn, limit), _pay(turn))
    return Group(Text(clean(question), "bold"), table)


def brief_discussion(
    question: str,
    turns: Sequence[Turn],
    paid: bool,
    answers: Mapping[str, str],
    width: int,
    limit: int,
) -> RenderableType:
    """The same for a display that is drawn again and again: `width` columns, of each turn `limit`
    characters, with what the game read in it (`answers`: turn id -> canonical answer), and with its
    pay once it is `paid`.
    """
    agents = [Text(clean(turn.agent, BRIEF), "bold") for turn in turns]
    roles = [role_name(turn.role) for turn in turns]
    texts = [_said(turn, limit) for turn in turns]
    answered = [Text(read_as(turn, answers.get(turn.id)), "dim") for turn in turns]
    pays = [_pay(turn) if paid else Text("") for turn in turns]
    beside = sum(map(_widest, (agents, roles, answered, pays)))
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    # widths are known, so that rich need not find them out, which takes most of the time
    table.add_column(width=_widest(agents), no_wrap=True)
    table.add_column(width=_widest(roles), no_wrap=True)
    table.add_column(width=max(8, width - 4 - beside), overflow="fold")
    table.add_column(width=_widest(answered), no_wrap=True)
    table.add_column(width=_widest(pays), no_wrap=True, justify="right")
    for row in zip(agents, roles, texts, answered, pays, strict=True):
        table.add_row(*row)
    return Group(Text(clean(question), "bold"), table)


def _widest(cells: Sequence[Text]) -> int:
    return max((cell.cell_len for cell in cells), default=0)


def _said(turn: Turn, limit: int) -> Text:
    return Text(clean(turn.text, limit) + ("" if turn.finished else " [cut]"))


def _pay(turn: Turn) -> Text:
    if turn.reward is None:
        return Text("unpaid", "dim")
    colour = "green" if turn.reward > 0 else "red" if turn.reward < 0 else "dim"
    return Text(f"{turn.reward:+.2f}", colour)


def role_name(role: str) -> Text:
    """A role in its colour."""
    return Text(clean(role, BRIEF), COLOURS.get(role, "white"))


def legend(pays: Mapping[str, str]) -> Table:
    """Who is paid for what, a role per row."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for role, what in pays.items():
        table.add_row(role_name(role), Text(f"is paid {clean(what)}", "dim"))
    return table
