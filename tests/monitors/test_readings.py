"""What each monitor reads in a step, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comas.monitors import (
    distinct,
    flips,
    geometry,
    late_fall,
    rejections,
    role_shares,
    unreadable,
    verdict_entropy,
)
from comas.monitors.monitor import Seen
from comas.types import Episode, Question, Turn


def question(name: str) -> Question:
    return Question(id=name, prompt=f"prompt of {name}")


def turn(name: str, role: str, text: str = "hi", **more: Any) -> Turn:
    agent = more.pop("agent", "a0")
    return Turn(
        name, agent, f"home/{agent}", role, "p", text, more.pop("finished", True), 0, **more
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


def test_a_judge_that_spares_one_author_stands_out() -> None:
    games = [judged(f"x{i}", 3, author="a0", judge="a1") for i in range(10)]
    games += [judged(f"y{i}", 1, author="a0", judge="a2") for i in range(30)]
    reading = rejections.watch().read(Seen(0, games))["favours"]
    assert list(reading.values) == [pytest.approx(1 - 10 / 40)]


def test_favour_is_not_read_from_a_few_verdicts() -> None:
    games = [judged("x", 3, judge="a1"), *[judged(f"y{i}", 1, judge="a2") for i in range(30)]]
    assert "favours" not in rejections.watch().read(Seen(0, games)) or list(
        rejections.watch().read(Seen(0, games))["favours"].values
    ) == [pytest.approx(1 / 31)]


def test_unreadable_and_cut_replies_are_shares_per_question() -> None:
    lost = turn("q/a", "scoring", info={"score": None})
    cut = turn("q/b", "solution", finished=False, info={"readable": True})
    readings = unreadable.watch().read(Seen(0, [game("q", lost, cut)]))
    assert list(readings["unreadable"].values) == [0.5]
    assert list(readings["cut"].values) == [0.5]


def test_verdicts_that_are_all_the_same_have_no_entropy() -> None:
    alike = verdict_entropy.watch().read(Seen(0, [judged("q", 3, 3, 3)]))["alike"]
    mixed = verdict_entropy.watch().read(Seen(0, [judged("q", 1, 2, 3)]))["alike"]
    assert list(alike.values) == [1.0]
    assert list(mixed.values) == [pytest.approx(0.0)]
    assert verdict_entropy.watch().read(Seen(0, [judged("q", None)])) == {}


def test_answers_to_one_question_are_compared() -> None:
    three = [turn(f"q/{i}", "solution", text) for i, text in enumerate(("4", "4", "5"))]
    seen = Seen(0, [game("q", *three), game("r", turn("r/0", "solution"))])
    assert list(distinct.watch().read(seen)["alike"].values) == [0.5]


def test_a_majority_that_stays_counts_from_the_second_time() -> None:
    monitor = flips.watch()
    votes = [turn(f"q/{i}", "solution", text) for i, text in enumerate(("4", "4", "5"))]
    others = [turn(f"q/{i}", "solution", text) for i, text in enumerate(("5", "4", "5"))]
    assert monitor.read(Seen(0, [game("q", *votes)])) == {}
    assert list(monitor.read(Seen(1, [game("q", *votes)]))["locked"].values) == [1.0]
    assert list(monitor.read(Seen(2, [game("q", *others)]))["locked"].values) == [0.0]


def test_answers_that_the_game_has_read_are_compared_and_not_their_words() -> None:
    monitor = flips.watch()
    for step, texts in enumerate([("It is 16.", "So 16."), ("The answer: 16", "= 16")]):
        votes = [turn(f"q/{text}", "solution", text, info={"answer": "16"}) for text in texts]
        unread = turn("q/none", "solution", "I cannot say.", info={"answer": None})
        seen = Seen(step, [game("q", *votes, unread)])
        assert list(distinct.watch().read(seen)["alike"].values) == [0.5]
        locked = monitor.read(seen)
    assert list(locked["locked"].values) == [1.0]


def test_the_role_with_most_advantage_is_named_by_its_share() -> None:
    one = turn("q/a", "solution", tokens=10, info={"advantage": -1.5})
    two = turn("q/b", "scoring", tokens=5, info={"advantage": 1.0})
    reading = role_shares.watch().read(Seen(0, [game("q", one, two)]))["captured"]
    assert list(reading.values) == [pytest.approx(15 / 20)]
    assert role_shares.watch().read(Seen(0, [game("q", one)])) == {}


def test_a_fall_is_measured_from_the_lower_end_of_the_best() -> None:
    monitor = late_fall.watch()
    assert monitor.read(Seen(0, [])) == {}
    good = [1.0] * 80 + [0.0] * 20
    first = monitor.read(Seen(19, [], validated=good))["fallen"]
    assert first.start == 1.0
    second = monitor.read(Seen(39, [], validated=[0.0] * 100))["fallen"]
    assert second.start is not None
    assert 0.2 < second.start < 0.32
    assert sum(second.values) == 100
    third = monitor.read(Seen(59, [], validated=good))["fallen"]
    assert third.start == second.start


def test_geometry_says_what_has_risen() -> None:
    monitor = geometry.watch()

    def at(step: int, kl: float, logprob: float, norm: float) -> Seen:
        said = turn("q/a", "solution", tokens=4, logprob=logprob, info={"kl": kl})
        return Seen(step, [game("q", said)], {"home/a0": {"grad_norm": norm}})

    assert monitor.read(at(0, 0.1, -4.0, 1.0)) == {}
    assert monitor.read(at(1, 9.0, -9.0, 9.0)) == {}
    readings = monitor.read(at(5, 0.2, -2.0, 0.5))
    assert {name: list(reading.values) for name, reading in readings.items()} == {
        "kl": [1.0],
        "entropy": [1.0],
        "updates": [0.0],
    }
    assert all(reading.start == 0.5 for reading in readings.values())


def test_evenness_of_three_equal_scores_is_one() -> None:
    assert verdict_entropy.evenness(["1", "2", "3"]) == pytest.approx(1.0)
    assert verdict_entropy.evenness(["1", "1", "3", "3"]) == pytest.approx(
        math.log(2) / math.log(3)
    )
