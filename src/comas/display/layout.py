"""What a run's display looks like: on a wide, tall terminal two columns, elsewhere one; never more
lines than there are.

Only the last lines change with every frame; the rest is drawn anew when something has happened.
Leaves out: gathering what is shown (`display.train`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from comas.display.board import Board, Shown
from comas.display.discussions import LONGEST, brief_discussion, clean, legend, read_as, span
from comas.display.facts import facts, numbers
from comas.display.lines import amount, speed
from comas.hooks import Progress, Stage

WIDE = 110
TALL = 32
"""Columns and lines from which there are two columns."""
LABEL = 17
"""Columns of what the bars at the bottom stand for."""
STAGES: dict[Stage, str] = {
    "estimating": "estimating memory",
    "loading": "loading models",
    "before": "accuracy before",
    "playing": "playing",
    "learning": "learning",
    "validation": "validation",
    "after": "accuracy after",
    "saving": "saving",
}
Drawn = list[list[Segment]]
"""Lines as a console writes them."""


@dataclass
class Ready:
    """Lines that have been drawn."""

    lines: Drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield from line
            yield Segment.line()


def draw(board: Board, width: int, height: int, console: Console) -> RenderableType:
    """The display for a terminal of this size: at most `height` - 1 lines, so that
    nothing scrolls.
    """
    rows = max(1, height - 1)
    plain = console.options.ascii_only  # without curves where the encoding has no signs for them
    foot = _lines(_foot(board, width), console, width)[-rows:]
    room = rows - len(foot)
    size = (width, room, plain)
    talk_state = (*size, *_talk(board))
    facts_state = (*size, board.changes)

    def draw_talk(columns: int, lines: int, most: int) -> Drawn:
        return _once(board, "talk", talk_state, lambda: _left(board, columns, lines, console, most))

    if width >= WIDE and height >= TALL:
        right = min(76, 2 * width // 5)
        left = width - right - 1
        talk = draw_talk(left, room, len(board.shown))

        def draw_numbers() -> Drawn:
            return _lines(numbers(board, right, room, plain), console, right)

        beside = _once(board, "numbers", facts_state, draw_numbers)
        columns = _side_by_side(talk, beside[:room], left)
        return Ready([*columns, *foot])

    def draw_facts() -> Drawn:
        return _lines(facts(board, width, plain), console, width)

    below = _once(board, "facts", facts_state, draw_facts)[:room]
    above = room - len(below)
    talk = draw_talk(width, above, max(1, above // 14))
    return Ready([*talk, *below, *foot])


def _lines(part: RenderableType, console: Console, width: int) -> Drawn:
    return console.render_lines(part, console.options.update(width=width, height=None), pad=False)


def _once(board: Board, name: str, of: tuple[object, ...], make: Callable[[], Drawn]) -> Drawn:
    """The lines of a part, drawn anew only if what they show has changed."""
    known = board.drawn.get(name)
    if known is None or known[0] != of:
        known = board.drawn[name] = (of, make())
    return known[1]


def _talk(board: Board) -> Iterable[object]:
    """All that the discussions in view depend on; games and settlements note things on turns
    without telling anybody.
    """
    yield board.changes, board.discussions
    for shown in board.shown:
        yield shown.question, shown.paid, shown.error, len(shown.answers)
        for turn in shown.turns:
            yield turn.id, turn.text, turn.reward, read_as(turn)


def _side_by_side(left: Drawn, right: Drawn, width: int) -> Drawn:
    """Two columns; the left one is `width` wide."""
    space = Segment(" ")
    joined: Drawn = []
    for line, other in zip_longest(left, right, fillvalue=[]):
        joined.append([*Segment.adjust_line_length(line, width), space, *other])
    return joined


def _left(board: Board, width: int, rows: int, console: Console, most: int) -> Drawn:
    """Discussions, and below them who is paid for what, where there is room for both."""
    key = _lines(legend(board.pays), console, width) if board.pays else []
    if rows - len(key) < 9:
        key = []
    panels = _discussions(board, width, rows - len(key), most, console)
    return [*panels, *key]


def _discussions(board: Board, width: int, rows: int, most: int, console: Console) -> Drawn:
    """As many discussions as there is room for; each gets an equal part, and leaves to the next
    what it does not need.
    """
    panels: Drawn = []
    wanted = min(most, len(board.shown), max(1, rows // 8))
    for place, shown in enumerate(board.shown[:wanted]):
        part = (rows - len(panels)) // (wanted - place)
        if part < 3:
            break
        title = f"discussion {place + 1} of {max(board.discussions, place + 1)}"
        panel = _panel(shown, width, part, title)
        panels += _lines(panel, console, width)[:part]
    return panels


def _panel(shown: Shown, width: int, rows: int, title: str) -> RenderableType:
    """A discussion in about `rows` lines: turns get shorter, then the last ones are left out and
    counted.
    """
    question = shown.question.prompt if shown.question is not None else ""
    inner = max(10, width - 4)
    question_lines = min(max(1, (rows - 2) // 3), 1 + len(question) // inner)
    room = max(1, rows - 2 - question_lines)
    turns = shown.turns
    if len(turns) > room:
        turns = turns[: max(1, room - 1)]
    per_line = max(16, inner - 44)  # beside agent, role, what was read, and pay
    lines_each = max(1, room // max(1, len(turns)))
    limit = max(8, min(LONGEST, lines_each * per_line - 6))
    asked = clean(question, question_lines * inner - 2)
    parts = [brief_discussion(asked, turns, shown.paid, shown.answers, inner, limit)]
    left_out = len(shown.turns) - len(turns)
    if left_out:
        parts.append(Text(f"and {left_out} more turns", "dim"))
    if shown.error is not None:
        parts.append(Text(f"lost: {clean(shown.error, inner - 6)}", "red"))
    elif not turns:
        parts.append(Text("nobody has answered yet", "dim"))
    return Panel(Group(*parts), title=title, title_align="left")


def _foot(board: Board, width: int) -> RenderableType:
    """How far the run is, and how far its present stage."""
    progress = board.progress
    foot = Table.grid(padding=(0, 1))
    foot.add_column(no_wrap=True, overflow="ellipsis", width=min(LABEL, width // 2))
    foot.add_column(no_wrap=True, width=max(4, width // 6))
    foot.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    steps = f"step {board.done}/{board.steps}" if board.steps else ""
    bar = ProgressBar(total=max(1, board.steps), completed=board.done)
    clock = f"time {span(board.seconds)}"
    if board.left is not None and not board.ended:
        clock += f"   left {span(board.left)}"
    foot.add_row(Text(steps, "bold"), bar, Text(clock))
    if board.ended:
        foot.add_row(Text(board.ended, "bold"), Text(""), Text(""))
        return foot
    name = STAGES[progress.stage]
    if progress.stage in ("playing", "learning"):
        name = f"{name} step {progress.step + 1}"
    done, whole = _part(progress)
    stage_bar = ProgressBar(total=whole, completed=done) if whole else Text("")
    details = (amount(progress), speed(progress), _rest(progress))
    foot.add_row(Text(name), stage_bar, Text(", ".join(filter(None, details))))
    return foot


def _part(progress: Progress) -> tuple[int, int]:
    """How much of how much of a stage is done; 0 of 0 where nobody counts."""
    if progress.stage == "learning":
        return progress.rows_learnt, progress.rows_due
    return progress.replies, progress.expected or 0


def _rest(progress: Progress) -> str:
    """The time that a measurement may still take."""
    if progress.stage not in ("before", "validation", "after"):
        return ""
    if not progress.replies or progress.seconds < 1:
        return ""
    missing = (progress.expected or 0) - progress.replies
    per_reply = progress.seconds / progress.replies
    return f"left {span(missing * per_reply)}"
