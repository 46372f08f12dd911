"""The numbers of a run's display: accuracy, rewards, lost replies and tokens; in lines, or in
curves and tables.

Leaves out: where on the screen (`display.layout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from comas.display.board import Board
from comas.display.curves import Points, curve, sparkline
from comas.display.discussions import clean, role_name
from comas.display.lines import by_role, lost, ties

SPARK = 24
"""Bars of a line of bars, at most."""
AGENTS = 6
"""Agents that are listed."""
EMPTY = "…"


def facts(board: Board, width: int, plain: bool) -> RenderableType:
    """Accuracy, rewards, lost replies and tokens, a line each."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=min(11, width // 3))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_row("accuracy", _accuracies(board, plain))
    table.add_row("mean reward", _rewards(board, width - 13, plain))
    if board.metrics.get("replies"):
        table.add_row("replies", _lost(board))
    table.add_row("tokens", _tokens(board))
    return table


def _accuracies(board: Board, plain: bool) -> Text:
    """Those before and after on the test questions, and the validation's in a curve of its own."""
    said = Text()
    named = {m.name: m.found.mean for m in board.measured}
    if "before" in named:
        said.append(f"before {named['before']:.3f}   ")
    validation = [m.found.mean for m in board.measured if m.name == "validation"]
    if validation:
        bars = "" if plain else sparkline(validation, SPARK, 0.0, 1.0) + " "
        said.append(f"validation {bars}{validation[-1]:.3f}   ")
    if "after" in named:
        said.append(f"after {named['after']:.3f}", "bold")
    return said if said else Text(EMPTY)


def _rewards(board: Board, width: int, plain: bool) -> Text:
    """Per role the last reward, and as many bars as there is room for."""
    said = Text()
    names = sum(len(role_name(role)) for role in board.rewards)
    bars_each = min(
        SPARK, (width - names) // max(1, len(board.rewards)) - len(" bars +0.00  ") + len("bars")
    )
    for role, points in board.rewards.items():
        values = [value for _, value in points]
        said.append_text(role_name(role))
        bars = "" if plain or bars_each < 2 else sparkline(values, bars_each, *_range(values)) + " "
        said.append(f" {bars}{values[-1]:+.2f}  ")
    return said if said else Text(EMPTY)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The scale of rewards: from 0 to 1, wider where there are others."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def _lost(board: Board) -> Text:
    found = lost(board.metrics.get("replies", ()))
    if not found:
        return Text(
            f"{sum(row['turns'] for row in board.metrics['replies'])}: none cut, none unreadable"
        )
    return Text(clean("   ".join(found)), "yellow")


def _tokens(board: Board) -> Text:
    """Tokens, and near-ties where there are more than chance explains."""
    near = ties(board.metrics) if board.metrics else ""
    return Text("   ".join([*_pace(board), *([near] if near else [])]))


def _pace(board: Board) -> list[str]:
    made = [f"{board.tokens:,}"]
    return [*made, f"{board.pace:,.0f}/s with learning"] if board.pace is not None else made


def numbers(board: Board, width: int, rows: int, plain: bool) -> RenderableType:
    """Accuracy, rewards and replies, whose curves share the lines that the tables leave."""
    agents = _agents(board)
    replies = _replies(board, rows // 3)
    roles = max(1, len(board.rewards))
    # with two lines of accuracy, two of tokens and near-ties
    tables = len(agents) + 2 + len(replies) + 2
    for_curves = max(0, rows - tables - 6)  # and the frames of three panels
    tall = min(10, max(3, for_curves // 3))
    each = min(5, max(2, (for_curves - tall) // roles))
    accuracy = Panel(
        Group(_accuracy_curve(board, width - 4, tall, plain), *agents),
        title="accuracy",
        title_align="left",
    )
    rewards = Panel(
        _reward_curves(board, width - 4, each, plain),
        title="mean reward per role",
        title_align="left",
    )
    lost_replies = Panel(
        Group(*replies, *_token_lines(board)), title="replies of the last step", title_align="left"
    )
    return Group(accuracy, rewards, lost_replies)


def _token_lines(board: Board) -> list[Text]:
    near = ties(board.metrics, always=True) if board.metrics else ""
    return [Text(line) for line in (f"tokens {'   '.join(_pace(board))}", near) if line]


def _accuracy_curve(board: Board, width: int, height: int, plain: bool) -> RenderableType:
    """Validation over steps; what was measured on the test questions stands beside
    it, not in it.
    """
    points = [(float(m.step), m.found.mean) for m in board.measured if m.name == "validation"]
    tests = [f"{m.name} {m.found}" for m in board.measured if m.name != "validation"]
    said = [Text(f"test questions   {'   '.join(tests) if tests else EMPTY}")]
    last = next((m.found for m in reversed(board.measured) if m.name == "validation"), None)
    said.append(Text(f"validation       {last if last is not None else EMPTY}"))
    if plain or not points:
        return Group(*said)
    return Group(
        *said, _graph(points, width, height, 0.0, max(0.1, *(y for _, y in points)), "cyan")
    )


def _graph(points: Points, width: int, height: int, low: float, high: float, colour: str) -> Text:
    """A curve with its scale on the left."""
    graph = Text(no_wrap=True)
    lines = curve(points, max(4, width - 7), height, low, high)
    for place, line in enumerate(lines):
        scale = f"{high:5.2f}" if place == 0 else f"{low:5.2f}" if place == len(lines) - 1 else ""
        graph.append(f"{scale:>5} ", "dim")
        graph.append(line, colour)
        graph.append("\n" if place < len(lines) - 1 else "")
    return graph


def _agents(board: Board) -> list[Text]:
    """List the latest accuracy of each agent, for every kind of measurement."""
    latest = {m.name: m.agents for m in board.measured if m.agents}
    names = sorted({agent for agents in latest.values() for agent in agents})
    if not names:
        return []
    rows = [[Text("agent", "dim"), *(Text(name, "dim") for name in latest)]]
    for name in names[:AGENTS]:
        cells = (f"{agents[name]:.3f}" if name in agents else "" for agents in latest.values())
        rows.append([Text(clean(name, 16), "bold"), *(Text(cell) for cell in cells)])
    more = [Text(f"and {len(names) - AGENTS} more", "dim")] if len(names) > AGENTS else []
    return [*_columns(rows, len(rows[0])), *more]


def _columns(rows: Sequence[Sequence[Text]], left: int) -> list[Text]:
    """Rows as lines: the first `left` columns begin below one another, the others end so."""
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]))]
    lines: list[Text] = []
    for row in rows:
        line = Text(no_wrap=True, overflow="ellipsis")
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell.cell_len)
            line.append("" if place < left else space)
            line.append_text(cell)
            line.append((space if place < left else "") + "  ")
        lines.append(line)
    return lines


def _reward_curves(board: Board, width: int, height: int, plain: bool) -> RenderableType:
    if not board.rewards:
        return Text("no step is finished yet", "dim")
    parts: list[RenderableType] = []
    for role, points in board.rewards.items():
        values = [value for _, value in points]
        title = role_name(role)
        title.append(f" {values[-1]:+.2f}", "default")
        signal = board.metrics.get("signal", {}).get(role)
        if signal is not None and signal["groups"]:
            title.append(
                f"   all equal in {signal['flat']:.0f} of {signal['groups']:.0f} groups", "dim"
            )
        parts.append(title)
        if not plain and height > 1:
            parts.append(
                _graph(
                    points, width, height - 1, *_range(values), colour=str(role_name(role).style)
                )
            )
    return Group(*parts)


def _replies(board: Board, rows: int) -> list[Text]:
    """Cut and unreadable replies: per agent and role where there is room, otherwise per role."""
    given = board.metrics.get("replies") or []
    each = len(given) + 1 <= rows
    listed = (
        list(given)
        if each
        else [{"agent": "all", "role": r, **row} for r, row in by_role(given).items()]
    )
    if not listed:
        return [Text(EMPTY)]
    table = [
        [Text(name, "dim") for name in ("agent", "role", "replies", "paid", "cut", "unreadable")]
    ]
    for row in listed:
        counts = (
            Text(str(row["turns"])),
            Text(str(row["paid"])),
            _of(row["cut"], row),
            _of(row["unreadable"], row),
        )
        table.append([Text(clean(row["agent"], 16), "bold"), role_name(row["role"]), *counts])
    return _columns(table, left=2)


def _of(count: int | None, row: Mapping[str, Any]) -> Text:
    """A count with its share; nothing where the game does not say."""
    if count is None:
        return Text("-", "dim")
    share = count / row["turns"] if row["turns"] else 0.0
    return Text(f"{count} ({share:.0%})", "red" if share >= 0.5 else "yellow" if count else "dim")
