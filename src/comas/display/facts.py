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
    line = Text()
    latest = {measured.name: measured.found.mean for measured in board.measured}
    if "before" in latest:
        line.append(f"before {latest['before']:.3f}   ")
    validation = [mean for _, mean in _validation(board)]
    if validation:
        bars = "" if plain else sparkline(validation, SPARK, 0.0, 1.0) + " "
        line.append(f"validation {bars}{validation[-1]:.3f}   ")
    if "after" in latest:
        line.append(f"after {latest['after']:.3f}", "bold")
    return line if line else Text(EMPTY)


def _validation(board: Board) -> Points:
    """(step, accuracy) of each validation."""
    found = [measured for measured in board.measured if measured.name == "validation"]
    return [(float(measured.step), measured.found.mean) for measured in found]


def _rewards(board: Board, width: int, plain: bool) -> Text:
    """Per role the last reward, and as many bars as there is room for."""
    line = Text()
    names = sum(len(role_name(role)) for role in board.rewards)
    room_each = (width - names) // max(1, len(board.rewards))
    bars_each = min(SPARK, room_each - len("  +0.00  "))
    for role, points in board.rewards.items():
        values = [value for _, value in points]
        line.append_text(role_name(role))
        bars = ""
        if not plain and bars_each >= 2:
            bars = sparkline(values, bars_each, *_range(values)) + " "
        line.append(f" {bars}{values[-1]:+.2f}  ")
    return line if line else Text(EMPTY)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The scale of rewards: from 0 to 1, wider where there are others."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def _lost(board: Board) -> Text:
    replies = board.metrics.get("replies", ())
    found = lost(replies)
    if found:
        return Text(clean("   ".join(found)), "yellow")
    turns = sum(row["turns"] for row in replies)
    return Text(f"{turns}: none cut, none unreadable")


def _tokens(board: Board) -> Text:
    """Tokens, and near-ties where there are more than chance explains."""
    near = ties(board.metrics) if board.metrics else ""
    parts = [*_pace(board), near] if near else _pace(board)
    return Text("   ".join(parts))


def _pace(board: Board) -> list[str]:
    parts = [f"{board.tokens:,}"]
    if board.pace is not None:
        parts.append(f"{board.pace:,.0f}/s with learning")
    return parts


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
    accuracy = Group(_accuracy_curve(board, width - 4, tall, plain), *agents)
    rewards = _reward_curves(board, width - 4, each, plain)
    lost_replies = Group(*replies, *_token_lines(board))
    return Group(
        Panel(accuracy, title="accuracy", title_align="left"),
        Panel(rewards, title="mean reward per role", title_align="left"),
        Panel(lost_replies, title="replies of the last step", title_align="left"),
    )


def _token_lines(board: Board) -> list[Text]:
    tokens = Text(f"tokens {'   '.join(_pace(board))}")
    near = ties(board.metrics, always=True) if board.metrics else ""
    return [tokens, Text(near)] if near else [tokens]


def _accuracy_curve(board: Board, width: int, height: int, plain: bool) -> RenderableType:
    """Validation over steps; what was measured on the test questions stands beside
    it, not in it.
    """
    last = None
    tests: list[str] = []
    for measured in board.measured:
        if measured.name == "validation":
            last = measured.found
        else:
            tests.append(f"{measured.name} {measured.found}")
    lines = [
        Text(f"test questions   {'   '.join(tests) or EMPTY}"),
        Text(f"validation       {EMPTY if last is None else last}"),
    ]
    points = _validation(board)
    if plain or not points:
        return Group(*lines)
    high = max(0.1, *(accuracy for _, accuracy in points))
    return Group(*lines, _graph(points, width, height, 0.0, high, "cyan"))


def _graph(points: Points, width: int, height: int, low: float, high: float, colour: str) -> Text:
    """A curve with its scale on the left."""
    graph = Text(no_wrap=True)
    lines = curve(points, max(4, width - 7), height, low, high)
    last = len(lines) - 1
    scale = {last: f"{low:5.2f}", 0: f"{high:5.2f}"}
    for place, line in enumerate(lines):
        graph.append(f"{scale.get(place, ''):>5} ", "dim")
        graph.append(line, colour)
        graph.append("\n" if place < last else "")
    return graph


def _agents(board: Board) -> list[Text]:
    """List the latest accuracy of each agent, for every kind of measurement."""
    latest = {measured.name: measured.agents for measured in board.measured if measured.agents}
    names = sorted({agent for agents in latest.values() for agent in agents})
    if not names:
        return []
    rows = [[Text(name, "dim") for name in ("agent", *latest)]]
    for name in names[:AGENTS]:
        shares = [agents.get(name) for agents in latest.values()]
        cells = [Text("" if share is None else f"{share:.3f}") for share in shares]
        rows.append([Text(clean(name, 16), "bold"), *cells])
    lines = _columns(rows, len(rows[0]))
    if len(names) > AGENTS:
        lines.append(Text(f"and {len(names) - AGENTS} more", "dim"))
    return lines


def _columns(rows: Sequence[Sequence[Text]], left: int) -> list[Text]:
    """Rows as lines: the first `left` columns begin below one another, the others end so."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
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
        name = role_name(role)
        colour = str(name.style)
        title = name.append(f" {values[-1]:+.2f}", "default")
        signal = board.metrics.get("signal", {}).get(role)
        if signal is not None and signal["groups"]:
            flat = f"{signal['flat']:.0f} of {signal['groups']:.0f} groups"
            title.append(f"   all equal in {flat}", "dim")
        parts.append(title)
        if not plain and height > 1:
            low, high = _range(values)
            parts.append(_graph(points, width, height - 1, low, high, colour))
    return Group(*parts)


def _replies(board: Board, rows: int) -> list[Text]:
    """Cut and unreadable replies: per agent and role where there is room, otherwise per role."""
    replies = list(board.metrics.get("replies") or [])
    if len(replies) + 1 > rows:
        roles = by_role(replies)
        replies = [{"agent": "all", "role": role, **row} for role, row in roles.items()]
    if not replies:
        return [Text(EMPTY)]
    names = ("agent", "role", "replies", "paid", "cut", "unreadable")
    table = [[Text(name, "dim") for name in names], *map(_reply_row, replies)]
    return _columns(table, left=2)


def _reply_row(row: Mapping[str, Any]) -> list[Text]:
    return [
        Text(clean(row["agent"], 16), "bold"),
        role_name(row["role"]),
        Text(str(row["turns"])),
        Text(str(row["paid"])),
        _of(row["cut"], row),
        _of(row["unreadable"], row),
    ]


def _of(count: int | None, row: Mapping[str, Any]) -> Text:
    """A count with its share; nothing where the game does not say."""
    if count is None:
        return Text("-", "dim")
    share = count / row["turns"] if row["turns"] else 0.0
    colour = "yellow" if count else "dim"
    return Text(f"{count} ({share:.0%})", "red" if share >= 0.5 else colour)
