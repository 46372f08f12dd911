"""Discussions as people read them: who said what in which role, what the game read in it, what it
was paid.

Model text is hostile: it is shown as text, never as markup, and without control characters. Leaves
out: where on the screen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from comas.types import Episode, Turn

LONGEST = 400
"""Characters of a turn that are shown at most."""
BRIEF = 24
"""Characters of an answer that was read in a turn, and of a role."""
COLOURS = {"solution": "cyan", "evaluation": "yellow", "scoring": "magenta"}


def clean(text: str, limit: int = LONGEST) -> str:
    """Printable text on one line: no control, format or private characters."""
    seen = text[: 10 * limit]  # of a megabyte no more is looked at
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


def read_as(turn: Turn) -> str:
    """What the game read in a turn, the reason of payments: `score 3`, `no answer`; empty where it
    says nothing of the kind.
    """
    for fact in ("score", "answer"):
        if fact in turn.info:
            value = turn.info[fact]
            if value is None:
                return f"no {fact}"
            return f"{fact} {clean(str(value), BRIEF)}"
    return "no answer" if turn.info.get("readable") is False else ""


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
        role = Text(clean(turn.role, BRIEF), COLOURS.get(turn.role, "white"))
        said = Text(clean(turn.text, limit) + ("" if turn.finished else " [cut]"))
        pay = Text("unpaid", "dim")
        if turn.reward is not None:
            colour = "green" if turn.reward > 0 else "red" if turn.reward < 0 else "dim"
            pay = Text(f"{turn.reward:+.2f}", colour)
        table.add_row(agent, role, said, pay)
    return Group(Text(clean(question), "bold"), table)


def print_episode(
    console: Console,
    episode: Episode,
    limit: int = LONGEST,
    judge: Callable[[str], str] | None = None,
) -> None:
    """Print a discussion, what the game read in each turn, and how it ended: with an answer and the
    verdict that `judge` then gives, without one, or by a failure.
    """
    console.print(discussion(episode.question.prompt, episode.turns, limit))
    for turn in episode.turns:
        if read := read_as(turn):
            who = f"{clean(turn.agent)} {clean(turn.role)}"
            console.print(Text(f"{who}: {read}", "dim"), soft_wrap=True)
    end = "answer: none"
    if episode.error:
        end = f"failed: {clean(episode.error)}"
    elif episode.answer is not None:
        end = f"answer: {clean(episode.answer)}"
        end += f" ({judge(episode.answer)})" if judge else ""
    console.print(Text(end, "bold"))
