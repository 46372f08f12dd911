"""What each monitor reads in a step, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comas.monitors import late_fall, rejections, unreadable
from comas.monitors.evidence import highest_mean
from comas.monitors.monitor import Seen
from comas.types import COMMON_KINDS, Episode, Question, Turn


def question(name: str) -> Question:
    return Question(id=name, prompt=f"prompt of {name}")


def turn(name: str, role: str, text: str = "hi", **more: Any) -> Turn:
    agent = more.pop("agent", "a0")
    return Turn(
        name,
        agent,
        f"home/{agent}",
        role,
        "p",
        text,
        more.pop("finished", True),
        0,
        **more,
        kind=COMMON_KINDS.get(role, "other"),
    )


def game(name: str, *turns: Turn) -> Episode:
    return Episode(f"0/{name}/0", question(name), list(turns))


def judged(name: str, *scores: int | None, author: str = "a0", judge: str = "a1") -> Episode:
    work = turn(f"{name}/s", "solution", agent=author)
    scorings = [
        turn(f"{name}/j{i}", "scoring", about=work.id, agent=judge, info={"score": score})
        for i, score in enumerate(scores)
    ]
    return game(name, work, *scorings)


def test_rejections_are_shares_of_readable_verdicts_per_question() -> None:
    seen = Seen(0, [judged("q", 1, 1, 3, None), judged("r", None), judged("s", 2)])
    assert list(rejections.watch().read(seen)["rejected"].values) == pytest.approx([2 / 3, 0.0])


def test_rejections_are_one_minus_beliefs_where_work_is_weighed() -> None:
    """All beliefs may lie below a half: cut there, everything was rejected from the start."""
    work = turn("q/s", "solution", agent="a0")
    beliefs = [0.1, 0.4]
    scorings = [
        turn(f"q/j{i}", "scoring", about=work.id, agent="a1", info={"score": 1.0, "belief": belief})
        for i, belief in enumerate(beliefs)
    ]
    seen = Seen(0, [game("q", work, *scorings)])
    assert list(rejections.watch().read(seen)["rejected"].values) == pytest.approx([0.75])


def test_unreadable_and_cut_replies_are_shares_per_question() -> None:
    lost = turn("q/a", "scoring", info={"score": None})
    cut = turn("q/b", "solution", finished=False, info={"readable": True})
    readings = unreadable.watch().read(Seen(0, [game("q", lost, cut)]))
    assert list(readings["unreadable"].values) == [0.5]
    assert list(readings["cut"].values) == [0.5]


def test_a_fall_is_measured_from_the_lower_end_of_the_best() -> None:
    monitor = late_fall.watch()
    assert monitor.read(Seen(0, [])) == {}
    good = [1.0] * 80 + [0.0] * 20
    first = monitor.read(Seen(19, [], validated=good))["fallen"]
    assert first.start == 1.0
    second = monitor.read(Seen(39, [], validated=[0.0] * 100))["fallen"]
    assert second.start is not None
    assert 0.3 < second.start < 0.4
    assert sum(second.values) == 100
    third = monitor.read(Seen(59, [], validated=good))["fallen"]
    assert third.start == second.start


def test_limits_of_a_run_share_its_error() -> None:
    monitor = late_fall.watch()
    good = [1.0] * 80 + [0.0] * 20
    for step, shares in enumerate(([0.0] * 100, good)):
        monitor.read(Seen(step, [], validated=shares))
    third = monitor.read(Seen(2, [], validated=good))["fallen"]
    of_second = late_fall.ERROR * 6 / math.pi**2 / 4
    assert third.start == pytest.approx(highest_mean(0.2, 100, of_second))
