"""What a run's display looks like: on a wide, tall terminal two columns, elsewhere one; never more lines than there are.

Leaves out: gathering what is shown (`live_train`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from comas.curves import Points, curve, sparkline
from comas.discussions import LONGEST, clean, discussion, legend, role_name, span
from comas.live_lines import amount, by_role, lost, speed, ties
from comas.stats import Interval
from comas.types import Question, Turn
from comas.watch import Progress, Stage

WIDE = 110
TALL = 32
"""Columns and lines from which there are two columns."""
SPARK = 24
"""Bars of a line of bars, at most."""
LABEL = 17
"""Columns of what the bars at the bottom stand for."""
EMPTY = "…"
STAGES: dict[Stage, str] = {
    "loading": "loading models",
    "before": "accuracy before",
    "playing": "playing",
    "learning": "learning",
    "validation": "validation",
    "after": "accuracy after",
    "saving": "saving",
}


@dataclass
class Shown:
    """A discussion in view."""

    question: Question | None
    turns: list[Turn] = field(default_factory=list[Turn])
    paid: bool = False
    """Whether its turns have been paid."""
    error: str | None = None
    answers: dict[str, str] = field(default_factory=dict[str, str])
    """Turn id -> the canonical answer in it."""


@dataclass(frozen=True)
class Measured:
    """An accuracy, and that of each agent."""

    name: str
    step: int
    found: Interval
    agents: dict[str, float]


@dataclass
class Board:
    """All that is shown."""

    progress: Progress = field(default_factory=lambda: Progress("loading"))
    ended: str = ""
    """`done` or `stopped`, at the end."""
    steps: int = 0
    done: int = 0
    """Steps that are written."""
    tokens: int = 0
    seconds: float = 0.0
    """Since the display began."""
    left: float | None = None
    """Seconds that the remaining steps may take."""
    pace: float | None = None
    """Tokens per second over all steps of this process, learning included."""
    discussions: int = 0
    """Of a step."""
    shown: list[Shown] = field(default_factory=list[Shown])
    measured: list[Measured] = field(default_factory=list[Measured])
    rewards: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """Role -> its mean reward after each step."""
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the last step."""
    pays: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> for what it is paid."""


@dataclass
class Cropped:
    """The first lines of something (or, with `end`, the last), at most `rows`."""

    whole: RenderableType
    rows: int
    end: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.whole, options.update(height=None), pad=False)
        rows = max(0, self.rows)
        kept = lines[max(0, len(lines) - rows) :] if self.end else lines[:rows]
        for line in kept:
            yield from line
            yield Segment.line()


def draw(board: Board, width: int, height: int, console: Console) -> RenderableType:
    """The display for a terminal of this size: at most `height` - 1 lines, so that nothing scrolls."""
    rows = height - 1
    plain = console.options.ascii_only  # without curves where the encoding has no signs for them
    if width >= WIDE and height >= TALL:
        foot = _lines_of(_foot(board, width), console, width)
        body = _two_columns(board, width, rows - foot, plain, console)
        return Group(Cropped(body, rows - foot), Cropped(_foot(board, width), rows, end=True))
    facts = Group(_facts(board, width, plain), _foot(board, width))
    below = min(rows, _lines_of(facts, console, width))
    above = _left(board, width, rows - below, console, most=max(1, (rows - below) // 14))
    return Group(Cropped(above, rows - below), Cropped(facts, rows, end=True))


def _lines_of(part: RenderableType, console: Console, width: int) -> int:
    return len(console.render_lines(part, console.options.update(width=width, height=None), pad=False))


def _left(board: Board, width: int, rows: int, console: Console, most: int) -> RenderableType:
    """Discussions, and below them who is paid for what, where there is room for both."""
    key = legend(board.pays) if board.pays else None
    for_key = _lines_of(key, console, width) if key is not None else 0
    room = rows - for_key if rows - for_key >= 9 else rows
    panels = _discussions(board, width, room, most, console)
    if key is None or room == rows:
        return Group(*panels)
    return Group(*panels, key)


def _discussions(board: Board, width: int, rows: int, most: int, console: Console) -> list[RenderableType]:
    """As many discussions as there is room for; each gets an equal part, and leaves to the next what it does not need."""
    panels: list[RenderableType] = []
    wanted = min(most, len(board.shown), max(1, rows // 8))
    for place, shown in enumerate(board.shown[:wanted]):
        part = rows // (wanted - place)
        if part < 3:
            break
        panel = _panel(shown, width, part, f"discussion {place + 1} of {max(board.discussions, place + 1)}")
        panel = Cropped(panel, part)
        panels.append(panel)
        rows -= _lines_of(panel, console, width)
    return panels


def _panel(shown: Shown, width: int, rows: int, title: str) -> RenderableType:
    """A discussion in about `rows` lines: turns get shorter, then the last ones are left out and counted."""
    question = shown.question.prompt if shown.question is not None else ""
    inner = max(10, width - 4)
    for_question = min(max(1, (rows - 2) // 3), 1 + len(question) // inner)
    room = max(1, rows - 2 - for_question)
    turns = shown.turns
    kept = turns if len(turns) <= room else turns[: max(1, room - 1)]
    per_line = max(16, inner - 44)  # beside agent, role, what was read, and pay
    limit = min(LONGEST, max(1, room // max(1, len(kept))) * per_line - 6)
    parts: list[RenderableType] = [
        discussion(clean(question, for_question * inner - 2), kept, shown.paid, max(8, limit), shown.answers)
    ]
    if len(kept) < len(turns):
        parts.append(Text(f"and {len(turns) - len(kept)} more turns", "dim"))
    if shown.error is not None:
        parts.append(Text(f"lost: {clean(shown.error, inner - 6)}", "red"))
    elif not turns:
        parts.append(Text("nobody has answered yet", "dim"))
    return Panel(Group(*parts), title=title, title_align="left")


def _facts(board: Board, width: int, plain: bool) -> RenderableType:
    """Accuracy, rewards, lost replies and tokens, a line each."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, min_width=min(11, width // 3))
    facts.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    facts.add_row("accuracy", _accuracies(board, plain))
    facts.add_row("mean reward", _rewards(board, width - 13, plain))
    if board.metrics.get("replies"):
        facts.add_row("replies", _lost(board))
    facts.add_row("tokens", _tokens(board))
    return facts


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
    bars_each = min(SPARK, (width - names) // max(1, len(board.rewards)) - len(" bars +0.00  ") + len("bars"))
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
    found = lost(board.metrics["replies"])
    if not found:
        return Text(f"{sum(row['turns'] for row in board.metrics['replies'])}: none cut, none unreadable")
    return Text(clean("   ".join(found)), "yellow")


def _tokens(board: Board) -> Text:
    """Tokens, and near-ties where there are more than chance explains."""
    near = ties(board.metrics) if board.metrics else ""
    return Text("   ".join([*_pace(board), *([near] if near else [])]))


def _pace(board: Board) -> list[str]:
    made = [f"{board.tokens:,}"]
    return [*made, f"{board.pace:,.0f}/s with learning"] if board.pace is not None else made


def _foot(board: Board, width: int) -> RenderableType:
    """How far the run is, and how far its present stage."""
    progress = board.progress
    foot = Table.grid(padding=(0, 1))
    foot.add_column(no_wrap=True, overflow="ellipsis", width=min(LABEL, width // 2))
    foot.add_column(no_wrap=True, width=max(4, width // 6))
    foot.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    left = f"   left {span(board.left)}" if board.left is not None and not board.ended else ""
    bar = ProgressBar(total=max(1, board.steps), completed=board.done)
    steps = f"step {board.done}/{board.steps}" if board.steps else ""
    foot.add_row(Text(steps, "bold"), bar, Text(f"time {span(board.seconds)}{left}"))
    if board.ended:
        foot.add_row(Text(board.ended, "bold"), Text(""), Text(""))
        return foot
    name = STAGES[progress.stage]
    if progress.stage in ("playing", "learning"):
        name = f"{name} step {progress.step + 1}"
    done, whole = _part(progress)
    stage_bar = ProgressBar(total=whole, completed=done) if whole else Text("")
    told = [part for part in (amount(progress), speed(progress), _rest(progress)) if part]
    foot.add_row(Text(name), stage_bar, Text(", ".join(told)))
    return foot


def _part(progress: Progress) -> tuple[int, int]:
    """How much of how much of a stage is done; 0 of 0 where nobody counts."""
    if progress.stage == "learning":
        return progress.rows_learnt, progress.rows_due
    return progress.replies, progress.expected or 0


def _rest(progress: Progress) -> str:
    """The time that a measurement may still take."""
    if progress.stage not in ("before", "validation", "after") or not progress.replies or progress.seconds < 1:
        return ""
    missing = (progress.expected or 0) - progress.replies
    return f"left {span(missing * progress.seconds / progress.replies)}"


def _two_columns(board: Board, width: int, rows: int, plain: bool, console: Console) -> RenderableType:
    """Discussions on the left; curves and tables on the right."""
    right = min(76, 2 * width // 5)
    left = width - right - 1
    table = Table.grid(padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column(width=left)
    table.add_column(width=right)
    discussions = Cropped(_left(board, left, rows, console, most=len(board.shown)), rows)
    table.add_row(discussions, Cropped(_numbers(board, right, rows, plain), rows))
    return table


def _numbers(board: Board, width: int, rows: int, plain: bool) -> RenderableType:
    """Accuracy, rewards and replies, whose curves share the lines that the tables leave."""
    agents = _agents(board)
    replies = _replies(board, rows // 3)
    roles = max(1, len(board.rewards))
    tables = agents.row_count + 3 + replies.row_count + 1 + 2 + 1  # with headings and the frames of three panels
    for_curves = max(0, rows - tables - 6)
    tall = min(10, max(3, for_curves // 3))
    each = min(5, max(2, (for_curves - tall) // roles))
    accuracy = Panel(Group(_accuracy_curve(board, width - 4, tall, plain), agents), title="accuracy", title_align="left")
    rewards = Panel(_reward_curves(board, width - 4, each, plain), title="mean reward per role", title_align="left")
    facts = Panel(Group(replies, *_token_lines(board)), title="replies of the last step", title_align="left")
    return Group(accuracy, rewards, facts)


def _token_lines(board: Board) -> list[Text]:
    near = ties(board.metrics, always=True) if board.metrics else ""
    return [Text(line) for line in (f"tokens {'   '.join(_pace(board))}", near) if line]


def _accuracy_curve(board: Board, width: int, height: int, plain: bool) -> RenderableType:
    """Validation over steps; what was measured on the test questions stands beside it, not in it."""
    points = [(float(m.step), m.found.mean) for m in board.measured if m.name == "validation"]
    tests = [f"{m.name} {m.found}" for m in board.measured if m.name != "validation"]
    said = [Text(f"test questions   {'   '.join(tests) if tests else EMPTY}")]
    last = next((m.found for m in reversed(board.measured) if m.name == "validation"), None)
    said.append(Text(f"validation       {last if last is not None else EMPTY}"))
    if plain or not points:
        return Group(*said)
    return Group(*said, _graph(points, width, height, 0.0, max(0.1, *(y for _, y in points)), "cyan"))


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


def _agents(board: Board) -> Table:
    """The latest accuracy of each agent, of every kind of measurement."""
    latest = {m.name: m.agents for m in board.measured if m.agents}
    names = sorted({agent for agents in latest.values() for agent in agents})
    table = Table.grid(padding=(0, 2))
    for _ in range(1 + len(latest)):
        table.add_column(no_wrap=True)
    if not names:
        return table
    table.add_row(Text("agent", "dim"), *(Text(name, "dim") for name in latest))
    for name in names[:6]:
        cells = (f"{agents[name]:.3f}" if name in agents else "" for agents in latest.values())
        table.add_row(Text(clean(name, 16), "bold"), *(Text(cell) for cell in cells))
    if len(names) > 6:
        table.add_row(Text(f"and {len(names) - 6} more", "dim"))
    return table


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
            title.append(f"   all equal in {signal['flat']:.0f} of {signal['groups']:.0f} groups", "dim")
        parts.append(title)
        if not plain and height > 1:
            parts.append(_graph(points, width, height - 1, *_range(values), colour=str(role_name(role).style)))
    return Group(*parts)


def _replies(board: Board, rows: int) -> Table:
    """Cut and unreadable replies: per agent and role where there is room, otherwise per role."""
    table = Table.grid(padding=(0, 2))
    given = board.metrics.get("replies") or []
    each = len(given) + 1 <= rows
    listed = list(given) if each else [{"agent": "all", "role": r, **row} for r, row in by_role(given).items()]
    for column in range(6):
        table.add_column(no_wrap=True, justify="left" if column < 2 else "right")
    if not listed:
        table.add_row(Text(EMPTY))
        return table
    table.add_row(*(Text(name, "dim") for name in ("agent", "role", "replies", "paid", "cut", "unreadable")))
    for row in listed:
        counts = (str(row["turns"]), str(row["paid"]), _of(row["cut"], row), _of(row["unreadable"], row))
        table.add_row(Text(clean(row["agent"], 16), "bold"), role_name(row["role"]), *counts)
    return table


def _of(count: int | None, row: Mapping[str, Any]) -> Text:
    """A count with its share; nothing where the game does not say."""
    if count is None:
        return Text("-", "dim")
    share = count / row["turns"] if row["turns"] else 0.0
    return Text(f"{count} ({share:.0%})", "red" if share >= 0.5 else "yellow" if count else "dim")
