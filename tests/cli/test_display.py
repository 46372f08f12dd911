"""What is printed of a run while it goes on: lines, and on a terminal a live one below them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from comas import hooks
from comas.display import Display, Lines, amount, discussion, left_of, lost, read_as, speed
from comas.hooks import Progress
from comas.stats import Interval
from comas.types import COMMON_KINDS, Meter, Turn

EVIL = "[bold red]x[/]\x1b[2J\x1b]0;title\x07\u202e\u200b 数学の問題 👩‍👩‍👧 [/] \x9b31m <score>"


def turn(
    place: str = "0/q0/0/solution0", role: str = "solution", text: str = "1 + 2 = 3", **facts: Any
) -> Turn:
    return Turn(
        place,
        "a0",
        "home/a0",
        role,
        "p",
        text,
        True,
        0,
        **facts,
        kind=COMMON_KINDS.get(role, "other"),
    )


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
        **more,
    }


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
        "step 1/3, playing: at most 0:30 left, 10 of at most 40 replies, 100 tokens, 10/s; 0:10",
        "step 1/3, playing: at most 0:20 left, 20 of at most 40 replies, 200 tokens, 10/s; 0:20",
    ]
    lines.step(metrics(0), [])  # the first step is told at once
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("step 1/3: 0:24, 1,000 tokens")
    assert "scoring 6 of 32 cut, 12 of 32 unreadable" in last
    lines.step(metrics(1), [])
    assert len(out.getvalue().splitlines()) == 3


def test_markup_and_control_characters_of_models_are_text() -> None:
    out = StringIO()
    terminal = Console(file=out, width=100, force_terminal=True)
    terminal.print(discussion(EVIL, [turn(text=EVIL, role=EVIL)]))
    said = out.getvalue()
    assert "[bold red]x[/]" in said
    for command in ("\x1b[2J", "\x1b]0", "\x07", "\u202e", "\x9b"):
        assert command not in said


def test_a_terminal_has_a_line_per_step_and_a_live_one_of_the_stage() -> None:
    out = StringIO()
    with Display(Console(file=out, width=120, force_terminal=True, _environ={})) as display:
        display.total = 5
        display.working(Progress("loading"))
        display.bars.refresh()
        assert "loading the models" in out.getvalue()
        display.working(Progress("playing", 0, 3.0, 12, 20, "at most", 3412, 48.0))
        display.bars.refresh()
        assert "step 1/5, playing" in out.getvalue()
        assert "at most 0:02 left" in out.getvalue()
        assert "12 of at most 20 replies, 3,412 tokens" in out.getvalue()
        display.working(Progress("learning", 0, rows_due=12, rows_learnt=5))
        display.bars.refresh()
        assert "5 of 12 rows learnt" in out.getvalue()
        (task,) = display.bars.tasks
        assert (task.completed, task.total) == (5, 12)
        for number in range(3):
            display.step(metrics(number, seconds=30.0), [])
        display.working(Progress("saving", 3))
        display.bars.refresh()
        assert "about 1:00 for the other steps" in out.getvalue()
        display.working(Progress("playing", 3))
        display.bars.refresh()
        assert "about 0:30 for the steps after it" in out.getvalue()
        display.step(metrics(3, seconds=30.0), [])
        shown = len(out.getvalue())
        display.working(Progress("playing", 4))
        display.bars.refresh()
        assert "step 5/5, playing" in out.getvalue()[shown:]
        assert "for the" not in out.getvalue()[shown:].split("step 5/5, playing")[-1]
        display.measured("after", 5, Interval(0.5, 0.4, 0.6, 9))
    for said in ("step 1/5: 0:00, 1,000 tokens", "step 3/5", "accuracy after 0.500"):
        assert said in out.getvalue()


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress("playing", 0, 60.0, 32, 128, "about"), "about 3:00 left"),
        (Progress("asking", 0, 60.0, 32, 128, "at most"), "at most 3:00 left"),
        (Progress("learning", 0, 90.0, rows_due=12, rows_learnt=9), "about 0:30 left"),
        (Progress("before", 0, 100.0, 1, 100), "about 2:45:00 left"),
        (Progress("before", 0, 100.0, 100, 100), "about 0:00 left"),
        (Progress("before", 0, 100.0, 0, 100), ""),
        (Progress("playing", 0, 0.1, 32, 128), ""),
        (Progress("playing", 0, 60.0, 32), ""),
        (Progress("saving", 0, 60.0), ""),
    ],
)
def test_it_is_said_how_long_the_rest_of_a_stage_takes(progress: Progress, said: str) -> None:
    assert left_of(progress) == said


@pytest.mark.parametrize("width", [80, 66])
def test_a_narrow_terminal_cuts_neither_bar_nor_time(width: int) -> None:
    out = StringIO()
    with Display(Console(file=out, width=width, force_terminal=True, _environ={})) as display:
        display.total = 12
        display.later = "about 1:00 for the steps after it"
        display.working(Progress("playing", 9, 60.0, 83, 128, "about", 14_130, 95.0))
        display.bars.refresh()
    line = next(x for x in out.getvalue().splitlines() if "playing" in x)
    for said in ("step 10/12, playing", "━", "about 0:32 left", "0:00:00"):
        assert said in line
    assert ("83 of about 128" in line) == (width == 80)


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_first_lines_name_the_method_and_what_is_paid_to_whom(
    tmp_path: Path, evaluate: bool
) -> None:
    """A method without presets stands alone, and nothing is rewarded who is never asked."""
    said: list[str] = []
    for preset in ("stable", None):
        out = StringIO()
        config = SimpleNamespace(
            method="mine.py",
            preset=preset,
            steps=1,
            tokens=None,
            options={"evaluate": evaluate},
            max_tokens=512,
        )
        method = SimpleNamespace(rewards={"solution": "its score", "evaluation": "the opposite"})
        plan = SimpleNamespace(room={"evaluation": 64})
        team = SimpleNamespace(config=config, method=method, members=[1, 2], plan=plan)
        lines = Lines(Console(file=out, width=200))
        lines.begin(cast(Any, SimpleNamespace(path=tmp_path)), cast(Any, team), 0)
        lengths = {"solution": 27.4, "evaluation": 3.0, "scoring": None}
        metrics = {"step": 0, "seconds": 1.0, "tokens": 9, "step_tokens": 9, "lengths": lengths}
        lines.step(metrics, [])
        said.append(out.getvalue())
    assert all("tokens a reply solution 27 of 512, evaluation 3 of 64\n" in text for text in said)
    assert said[0].startswith("2 agents, mine.py/stable, in ")
    assert said[1].startswith("2 agents, mine.py, in ")
    assert all("solution is rewarded with its score" in text for text in said)
    assert all(("is rewarded with the opposite" in text) == evaluate for text in said)


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
    assert read_as(turn(info={"readable": False})) == "no answer"
    assert read_as(turn(info={"readable": True})) == ""
    assert read_as(turn()) == ""


def test_an_evaluation_says_what_it_does_before_its_first_game_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = StringIO()
    lines = Lines(Console(file=output, width=200), every=-1.0)
    lines.working(Progress("loading"))
    lines.planned(Path("evals/x"), 40, 0)
    lines.cell("tiny", "pick", "single")
    meter = Meter()

    async def play() -> None:
        pulse = hooks.Pulse(lines, {"home": cast(Any, Seat(meter))})
        pulse.turn_to("playing")
        with pulse.beating():
            meter.tokens = 1234
            await asyncio.sleep(0.05)

    monkeypatch.setattr(hooks, "EVERY", 0.01)
    asyncio.run(play())
    told = output.getvalue().splitlines()
    assert told[0] == "loading the models"
    assert any(line.startswith("tiny pick single: 0/40 games, 1,234 tokens") for line in told)


@dataclass
class Seat:
    meter: Meter


def test_an_evaluation_says_how_long_it_takes_once_it_knows() -> None:
    output = StringIO()
    lines = Lines(Console(file=output, width=200), every=-1.0)
    lines.planned(Path("evals/x"), 40, 0)
    lines.cell("tiny", "pick", "single")
    for _ in range(20):
        lines.game({"verdict": "right", "turns": []})
        lines.working(Progress("playing", seconds=1.0))
    told = [line for line in output.getvalue().splitlines() if " left, " in line]
    assert told[0].startswith("tiny pick single: about 0:00 left, 16/40 games")
    assert len(told) == 5


def test_an_evaluation_says_while_it_goes_on_that_replies_are_cut() -> None:
    output = StringIO()
    lines = Lines(Console(file=output, width=200), every=-1.0)
    lines.planned(Path("evals/x"), 40, 0)
    lines.cell("tiny", "pick", "single")
    for finished in (True, False, False):
        lines.game({"verdict": "wrong", "turns": [{"finished": finished}, {"finished": True}]})
        lines.working(Progress("playing", seconds=1.0))
    assert "3/40 games, 2 replies cut; 0:00" in output.getvalue()
    assert "1/40 games; 0:00" in output.getvalue()
