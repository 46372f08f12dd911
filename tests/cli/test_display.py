"""The display of a run: within its bounds at every size, true about the stage, with the question
from the start.
"""

from __future__ import annotations

import time
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from comas.display import Display, Lines
from comas.display.board import Board, Measured, Shown
from comas.display.curves import BARS, curve, sparkline
from comas.display.discussions import read_as
from comas.display.layout import draw
from comas.display.lines import amount, lost, speed, ties
from comas.display.train import HOLD
from comas.hooks import Progress
from comas.stats import Interval
from comas.types import Episode, Question, Turn

SIZES = [
    (20, 4),
    (40, 8),
    (60, 15),
    (80, 24),
    (80, 60),
    (109, 40),
    (110, 32),
    (120, 33),
    (160, 50),
    (250, 90),
]
EVIL = "[bold red]x[/]\x1b[2J\x1b]0;title\x07\u202e\u200b 数学の問題 👩‍👩‍👧 [/] \x9b31m <score>"


def turn(
    place: str = "0/q0/0/solution0", role: str = "solution", text: str = "1 + 2 = 3", **facts: Any
) -> Turn:
    return Turn(place, "a0", "home/a0", role, "p", text, True, 0, **facts)


def metrics(step: int = 0, **more: Any) -> dict[str, Any]:
    replies = [
        {
            "agent": f"a{i}",
            "role": role,
            "turns": 8,
            "paid": 8,
            "cut": i,
            "unreadable": None if role == "evaluation" else 2 * i,
        }
        for i in range(4)
        for role in ("evaluation", "scoring", "solution")
    ]
    return {
        "step": step,
        "tokens": 1000 * (step + 1),
        "step_tokens": 1000,
        "rewards": {"solution": 0.1 * step, "scoring": -0.5},
        "seconds": 0.1,
        "replies": replies,
        "signal": {"solution": {"groups": 4, "flat": 1, "spread": 0.2}},
        "counts": {"near_ties": 40},
        "policies": {"home/a0": {"near_ties_expected": 2.5}},
        **more,
    }


def board(text: str = EVIL, agents: int = 4, turns: int = 9) -> Board:
    """Everything that there is to show, in amounts that leave no room."""
    progress = Progress("playing", 7, 3.0, 12, 20, "at most", 3412, 48.0)
    full = Board(progress, steps=40, done=7, tokens=120_000, left=200.0, pace=830.0)
    full.discussions = 128
    full.shown = [
        Shown(
            Question(id=f"q{i}", prompt=text * 20),
            [turn(f"0/q{i}/0/solution{n}", text=text * 30, reward=1.0) for n in range(turns)],
        )
        for i in range(4)
    ]
    shares = {f"agent number {i} {text}": i / agents for i in range(agents)}
    found = Interval(0.5, 0.4, 0.6, 9)
    full.measured = [
        Measured("before", 0, found, shares),
        *(Measured("validation", s, found, shares) for s in range(1, 8)),
    ]
    full.rewards = {
        role: [(float(s), s / 7) for s in range(8)]
        for role in ("solution", "evaluation", "scoring", text)
    }
    full.metrics = metrics(7)
    full.pays = dict.fromkeys(("solution", "evaluation", "scoring"), f"{text} for work")
    return full


def lines_of(shown: Board, width: int, height: int, **console: Any) -> list[str]:
    out = StringIO()
    terminal = Console(file=out, width=width, height=height, **console)
    terminal.print(draw(shown, width, height, terminal), end="")
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    ("text", "agents", "turns"), [(EVIL, 4, 9), ("x", 40, 0), ("y " * 200, 1, 60), ("", 0, 0)]
)
def test_a_display_stays_within_its_terminal(
    width: int, height: int, text: str, agents: int, turns: int
) -> None:
    lines = lines_of(board(text, agents, turns) if agents else Board(), width, height)
    assert 0 < len(lines) < height
    assert max(cell_len(line) for line in lines) <= width
    assert all(c.isprintable() for line in lines for c in line)


def test_a_terminal_without_signs_for_curves_gets_numbers() -> None:
    class Ascii(StringIO):
        encoding = "ascii"

    out = Ascii()
    terminal = Console(file=out, width=160, height=50)
    terminal.print(draw(board("x"), 160, 50, terminal))
    assert not set(out.getvalue()) & {*BARS, *map(chr, range(0x2800, 0x2900))}
    assert "0.500" in out.getvalue()


def test_room_is_used_where_there_is_some() -> None:
    small = "\n".join(lines_of(board("x"), 80, 24))
    wide = "\n".join(lines_of(board("x"), 160, 50))
    assert small.count("discussion ") == 1
    assert wide.count("discussion ") == 4
    only_there = [
        "mean reward per role",
        "all equal in 1 of 4 groups",
        "near-ties 40, expected 2.5",
        "agent number 3",
    ]
    everywhere = [
        "12 of at most 20 replies",
        "3,412 tokens, 48/s",
        "playing step 8",
        "step 7/40",
        "is paid x for work",
    ]
    assert [said for said in only_there + everywhere if said not in wide] == []
    assert [said for said in everywhere if said not in small] == []


def test_markup_and_control_characters_of_models_are_text() -> None:
    for width, height in ((80, 24), (160, 50)):
        out = StringIO()
        terminal = Console(file=out, width=width, height=height, force_terminal=True)
        terminal.print(draw(board(), width, height, terminal))
        said = out.getvalue()
        assert "[bold red]x[/]" in said
        for command in ("\x1b[2J", "\x1b]0", "\x07", "\u202e", "\x9b"):
            assert command not in said


def display(width: int = 100, height: int = 30) -> Display:
    shown = Display(Console(file=StringIO(), width=width, height=height))
    shown.config = SimpleNamespace(samples=1, steps=5, tokens=None)
    shown.board.steps = 5
    return shown


def text_of(shown: Display) -> str:
    out = StringIO()
    size = shown.console.size
    Console(file=out, width=size.width, height=size.height).print(shown.render())
    return out.getvalue()


def test_the_question_is_shown_before_anybody_answers() -> None:
    shown = display()
    question = Question(id="q0", prompt="What is six times seven?")
    shown.working(Progress("playing", 0, questions=(question,)))
    assert "What is six times seven?" in text_of(shown)
    assert "nobody has answered yet" in text_of(shown)
    shown.turn(turn(text="forty-two"))
    assert "forty-two" in text_of(shown)
    assert "unpaid" not in text_of(shown)
    shown.working(Progress("learning", 0))
    assert "unpaid" in text_of(shown)


def test_what_was_paid_stays_in_view_and_then_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = display()
    first = Question(id="q0", prompt="the first question")
    second = Question(id="q1", prompt="the second question")
    shown.working(Progress("playing", 0, questions=(first,)))
    shown.turn(turn(reward=0.75))
    shown.step(metrics(), [Episode("0/q0/0", first, [turn(reward=0.75)])])
    shown.working(Progress("playing", 1, questions=(second,)))
    assert "the first question" in text_of(shown)
    assert "+0.75" in text_of(shown)
    later = time.monotonic() + HOLD + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert "the second question" in text_of(shown)


def test_a_discussion_that_is_played_again_is_shown_once() -> None:
    shown = display()
    shown.working(Progress("playing", 0, questions=(Question(id="q0", prompt="q"),)))
    for said in ("lost with its machine", "said again"):
        shown.turn(turn(text=said))
    assert "said again" in text_of(shown)
    assert "lost with its machine" not in text_of(shown)


def test_the_curves_of_test_questions_and_of_validation_are_apart() -> None:
    shown = board("x")
    shown.measured = [Measured("before", 0, Interval(0.9, 0.8, 1.0, 9), {})]
    shown.measured += [
        Measured("validation", s, Interval(0.1 * s, 0.0, 1.0, 9), {}) for s in range(3)
    ]
    (line,) = [line for line in lines_of(shown, 80, 24) if line.startswith("accuracy ")]
    assert "before 0.900" in line
    assert f"validation {sparkline([0.0, 0.1, 0.2], 9, 0, 1)} 0.200" in line


STAGES = [
    (Progress("playing", 0, 1.0, 3), "3 replies"),
    (Progress("playing", 0, 1.0, 3, 20, "at most"), "3 of at most 20 replies"),
    (Progress("before", 0, 1.0, 3, 512), "3 of 512 answers"),
    (Progress("learning", 0, rows_due=12, rows_read=8), "0 of 12 rows learnt, 8 read"),
    (Progress("learning", 0, rows_due=12, rows_read=12, rows_learnt=5), "5 of 12 rows learnt"),
    (Progress("learning", 0), ""),
    (Progress("saving", 0), ""),
]


@pytest.mark.parametrize(("progress", "said"), STAGES)
def test_progress_is_told_in_words(progress: Progress, said: str) -> None:
    assert amount(progress) == said


def test_speed_is_told_once_it_is_known() -> None:
    assert speed(Progress("playing")) == ""
    assert speed(Progress("playing", tokens=1200)) == "1,200 tokens"
    assert speed(Progress("playing", tokens=1200, speed=48.4)) == "1,200 tokens, 48/s"


def test_lines_come_within_a_long_step_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    out = StringIO()
    lines = Lines(Console(file=out, width=200), every=10.0)
    lines.total = 3
    for second in range(25):
        clock[0] = 100.0 + second
        lines.working(Progress("playing", 0, second, second, 40, "at most", 10 * second, 10.0))
    assert out.getvalue().splitlines() == [
        "step 1/3, playing: 10 of at most 40 replies, 100 tokens, 10/s; 0:10",
        "step 1/3, playing: 20 of at most 40 replies, 200 tokens, 10/s; 0:20",
    ]
    lines.step(metrics(0), [])  # the first step is told at once
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("step 1/3: 0:24, 1,000 tokens")
    assert "scoring 6 of 32 cut, 12 of 32 unreadable" in last
    assert "near-ties 40, expected 2.5" in last
    lines.step(metrics(1), [])
    assert len(out.getvalue().splitlines()) == 3


def test_near_ties_are_told_where_chance_does_not_explain_them() -> None:
    assert ties(metrics()) == "near-ties 40, expected 2.5"
    quiet = metrics(counts={"near_ties": 19}, policies={"home/a0": {"near_ties_expected": 18.2}})
    assert ties(quiet) == ""
    assert ties(quiet, always=True) == "near-ties 19, expected 18.2"
    assert ties(metrics(policies={"script/a0": {}}), always=True) == ""


def test_nothing_lost_is_nothing_told() -> None:
    assert (
        lost(
            [
                {
                    "agent": "a",
                    "role": "solution",
                    "turns": 3,
                    "paid": 3,
                    "cut": 0,
                    "unreadable": None,
                }
            ]
        )
        == []
    )


def test_what_the_game_read_is_told() -> None:
    assert read_as(turn(info={"score": 3})) == "score 3"
    assert read_as(turn(info={"score": None})) == "no score"
    assert read_as(turn(info={"answer": "7\x1b[2J"})) == "answer 7 [2J"
    assert read_as(turn(info={"readable": False}), "7") == "no answer"
    assert read_as(turn(info={"readable": True}), "3 7 12") == "answer 3 7 12"
    assert read_as(turn()) == ""


def test_curves_rise_where_values_do() -> None:
    assert curve([], 3, 2, 0, 1) == ["⠀⠀⠀"] * 2
    assert curve([(0, 0.0), (1, 0.0)], 2, 1, 0, 1) == ["⣀⣀"]
    assert curve([(0, 1.0), (1, 1.0)], 2, 2, 0, 1) == ["⠉⠉", "⠀⠀"]
    assert curve([(0, 0.0), (1, 1.0)], 2, 1, 0, 1) == ["⡠⠊"]
    assert curve([(5, 2.0)], 2, 1, 0, 1) == ["⠁⠀"]
    assert sparkline([0.0, 0.5, 1.0, 7.0], 3, 0, 1) == "▅██"
    assert sparkline([1.0], 0, 0, 1) == ""


def test_a_curve_of_many_steps_ends_with_the_last() -> None:
    rising = [(float(s), float(s > 800)) for s in range(1000)]
    (line,) = curve(rising, 10, 1, 0, 1)
    assert line[0] == "⣀"
    assert line[-1] == "⠉"
