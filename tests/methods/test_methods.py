"""The games and their settlements, played by scripted agents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from comas.config.plugins import plugin_names
from comas.game.play import settle_all
from comas.methods import comas, rlvr, ttrl
from comas.tasks import pick
from comas.testing import (
    check_task,
    cut,
    discuss,
    scripted_context,
)
from comas.types import Question, Reply
from tests.support.golden import GAMES, GOLDEN, golden

RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "2 + 4 = 6 + 5 = 11"
BROKEN = "what ?"
Q = pick.make_question((1, 2, 4, 5), 7, "three")
R = pick.make_question((5, 2, 4, 1), 8, "three")


def fixed(solution: str | Reply, *scores: str):
    """Everybody says the same; scores in turn."""
    left = list(scores)

    def script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
        return {"solution": solution, "evaluation": "1 in right"}.get(role) or (
            left.pop(0) if len(left) > 1 else left[0]
        )

    return script


def test_who_is_alone_judges_its_own_work_and_so_may_who_is_told_to() -> None:
    def judged_own(options: dict, agents: int) -> list[bool]:
        setting = {"options": {"rounds": 3, "evaluations": 2, **options}, "agents": agents}
        script = fixed(RIGHT, "<score>3</score>")
        found = []
        for seed in range(10):
            (episode,) = discuss(comas.method, pick.task, script, [Q], seed=seed, **setting)
            who = {t.id: t for t in episode.turns}
            found += [t.agent == who[t.about].agent for t in episode.turns if t.about]
            found += [
                t.agent == who[who[t.about].about].agent
                for t in episode.turns
                if t.role == "scoring"
            ]
        return found

    assert all(judged_own({}, 1))
    assert any(judged_own({"avoid_self": False}, 4))


def test_history_that_does_not_fit_is_dropped_oldest_first_and_counted() -> None:
    script = fixed(RIGHT, "<score>1</score>")
    (episode,) = discuss(
        comas.method, pick.task, script, [Q], options={"rounds": 3, "kappa": 2}, room=60
    )
    solutions = [t for t in episode.turns if t.role == "solution"]
    assert [t.dropped for t in solutions] == [0, 0, 1]
    (too_long,) = discuss(comas.method, pick.task, script, [Q], room=5)
    assert "do not fit" in (too_long.error or "")
    assert all(t.reward is None for t in too_long.turns)


def test_ttrl_pays_the_majority() -> None:
    said = iter([WRONG, RIGHT, "4 + 2 = 6 + 1 = 7", BROKEN, cut(RIGHT)])
    (episode,) = discuss(
        ttrl.method, pick.task, lambda *_: next(said), [Q], options={"votes": 5}, agents=1
    )
    assert [t.reward for t in episode.turns] == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert episode.answer == RIGHT
    assert len({t.group for t in episode.turns}) == 1


def test_ttrl_without_a_readable_vote_answers_nothing() -> None:
    (episode,) = discuss(ttrl.method, pick.task, lambda *_: BROKEN, [Q])
    assert episode.answer is None
    assert {t.reward for t in episode.turns} == {0.0}


def test_rlvr_pays_the_verifier() -> None:
    said = iter([WRONG, RIGHT, cut(RIGHT)])
    (episode,) = discuss(rlvr.method, pick.task, lambda *_: next(said), [Q], options={"votes": 3})
    assert [t.reward for t in episode.turns] == [0.0, 1.0, 0.0]


def test_label_free_methods_cannot_verify() -> None:
    task = pick.task.without_labels()
    with pytest.raises(PermissionError, match="supervised=True"):
        task.verify(Q, RIGHT)
    with pytest.raises(PermissionError, match="supervised=True"):
        task.load("train")


def test_every_method_has_a_golden_transcript() -> None:
    assert {*GOLDEN, *GAMES} == {*plugin_names("method")}


@pytest.mark.parametrize("name", [*GOLDEN, *GAMES])
def test_golden_transcripts(name: str) -> None:
    """Regenerate with `python -m tests.support.golden` and read the difference."""
    if name == "comas_tests" and sys.platform != "linux":
        pytest.skip("its programs run in the sandbox, which needs Linux")
    assert golden(name) == (Path(__file__).parents[1] / "golden" / f"{name}.json").read_text(
        encoding="utf-8"
    )


def test_a_broken_machine_fails_one_discussion_and_a_bug_all() -> None:
    from comas.types import HostFailure

    def flaky(policy: str, role: str, prompt: str, seed: int) -> str:
        if "7" in prompt:
            raise HostFailure("unplugged")
        return RIGHT if role == "solution" else "<score>3</score>"

    episodes = discuss(comas.method, pick.task, flaky, [Q, R])
    assert [e.error for e in episodes] == [
        "host script, turn 0/pick-three-1.2.4.5-7/0/solution0: unplugged",
        None,
    ]
    with pytest.raises(ExceptionGroup):
        discuss(comas.method, pick.task, lambda *_: 1 / 0, [Q])


def test_settlement_can_be_repeated_under_other_rules() -> None:
    context, _ = scripted_context(comas.method, pick.task, fixed(RIGHT, "<score>3</score>"))
    episodes = discuss(
        comas.method,
        pick.task,
        fixed(BROKEN, "<score>3</score>"),
        [Q],
        options={"format_check": False},
    )
    assert episodes[0].turns[0].reward == 1.0
    settle_all(context, episodes)
    assert episodes[0].turns[0].reward == 1.0  # a score that was given stays a score


def test_task_contracts() -> None:
    check_task(pick.task)
    check_task(pick.task, form="two")


def test_label_free_games_do_not_see_labels() -> None:
    seen: list[Question] = []

    async def play(question, agents, rng, task):  # type: ignore[no-untyped-def]
        seen.append(question)
        return (await agents[0].ask("solution", "x")).text

    from dataclasses import replace

    discuss(
        replace(comas.method, play=play, settle=lambda e, t: None), pick.task, lambda *_: "x", [Q]
    )
    assert seen[0].answer is None
    assert not seen[0].meta
