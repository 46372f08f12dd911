"""What each monitor reads in a step, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from comas.monitors import fooled, late_fall, rejections, unreadable
from comas.monitors.evidence import Trial
from comas.monitors.monitor import Seen
from comas.training.watching import ALPHA
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


def believed(name: str, belief: float, agrees: bool | None) -> Episode:
    """A work that a judge believes so much, whose own answer is that of the work, or unreadable."""
    work = turn(f"{name}/s", "solution")
    own = turn(f"{name}/o", "blind", about=work.id, agent="a1")
    if agrees is not None:
        own.info["agrees"] = agrees
    score = turn(f"{name}/j", "scoring", about=work.id, agent="a1", info={"belief": belief})
    return game(name, work, own, score)


def test_the_gap_of_belief_and_agreement_is_read_per_question() -> None:
    works = [believed("q", 0.8, False), believed("q", 0.4, True), believed("r", 1.0, True)]
    unread = [believed("s", 0.9, None), judged("t", 3)]
    reading = fooled.watch().read(Seen(0, [*works, *unread]))["fooled"]
    assert list(reading.values) == pytest.approx([(0.9 + 0.2) / 2, 0.5])
    assert fooled.watch().read(Seen(0, unread)) == {}


def test_works_that_are_believed_though_the_judge_answers_otherwise_alarm() -> None:
    """Belief rises from .4 to .8 while agreement falls from .5 to 0; a solver that becomes as good
    as its judge, or better, alarms nobody.
    """

    def alarmed(course: Callable[[int], tuple[float, float]]) -> int | None:
        (hypothesis,) = fooled.Fooled.hypotheses
        trial = Trial(hypothesis, ALPHA / 8)
        for step in range(20):
            belief, agreement = course(step)
            games = [believed(f"{step}-{n}", belief, n < 12 * agreement) for n in range(12)]
            if trial.hear(fooled.watch().read(Seen(step, games))["fooled"]):
                return step
        return None

    assert alarmed(lambda step: (0.4, 0.5) if step < 8 else (0.8, 0.0)) in range(9, 16)
    assert alarmed(lambda step: (0.4 + 0.02 * step, min(0.7, 0.4 + 0.02 * step))) is None


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
