"""A team that cannot learn says so: the signs, each by hand; and what a step tells of replies,
rewards and facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comas
from comas.hooks import Hook
from comas.storage.run import Run
from comas.tasks import pick
from comas.testing import Scripted, cut, discuss
from comas.training.learning_signal import LearningSignal
from comas.training.metrics import counts, facts, replies, signal_in
from comas.training.record import StepRecord
from comas.types import COMMON_KINDS, Episode, Reply, Turn
from tests.support import runs
from tests.support.command import run as command
from tests.support.kinds import kind_of

Q = pick.make_question((1, 2, 4, 5), 7, "three")


def signs(*keys: str) -> LearningSignal:
    resolved = runs.planned(keys)
    return LearningSignal(resolved.config, resolved.method, resolved.task)


def news(watch: LearningSignal, step: int, played: list[Episode]) -> list[str]:
    alarms = watch.news(watch.signs(step, played))
    return [f"step {alarm.step + 1}: {alarm.text}" for alarm in alarms]


def turn(
    role: str, reward: float | None = None, text: str = "hi", finished: bool = True, **more: Any
) -> Turn:
    policy = more.pop("policy", "home/a0")
    return Turn(
        f"0/q/0/{role}",
        policy.split("/")[1],
        policy,
        role,
        "p",
        text,
        finished,
        0,
        reward=reward,
        **more,
        kind=COMMON_KINDS.get(role, "other"),
    )


def episodes(turns: Iterable[Turn]) -> list[Episode]:
    return [Episode("0/q/0", Q, list(turns))]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (["room.solution=96"], "room.solution (now 96 tokens)"),
        (["room.solution=96", "room.blind=40"], "room.blind (now 40 tokens)"),
    ],
)
def test_a_blind_answer_has_the_room_of_a_solution(keys: list[str], key: str) -> None:
    replies = [turn("blind", text="it is", finished=False)] * 2
    (note,) = news(signs(*keys), 0, episodes(replies))
    assert f"raise {key}" in note


def test_a_healthy_step_says_nothing() -> None:
    said = [turn("solution", float(n % 2), info={"readable": True}) for n in range(4)]
    said += [turn("evaluation", 1.0 - n % 2) for n in range(4)]
    # as scorers are paid that do their job
    said += [turn("scoring", 0.0, info={"score": 1 + n % 3}) for n in range(4)]
    assert news(signs(), 0, episodes(said)) == []


def test_scores_that_nobody_can_read() -> None:
    """Every score was cut: solutions and evaluations are never paid, and all scorers alike."""
    said = [turn("solution", info={"readable": True}) for _ in range(8)] + [
        turn("evaluation") for _ in range(8)
    ]
    said += [
        turn("scoring", -1.0, "The solution is", False, info={"score": None}) for _ in range(8)
    ]
    # that others are not paid follows from it
    (note,) = news(signs("room.scoring=8"), 0, episodes(said))
    assert note == (
        "step 1: 8 of 8 replies as scoring cannot be read, such as 'The solution is'; raise"
        " room.scoring (now 8 tokens)"
    )


def test_a_cause_is_told_once_and_what_follows_from_it_never() -> None:
    """Every reply of every role is cut: a note for each, and none of rewards."""
    said = [turn("solution", 0.0, "1 +", False, info={"readable": False}) for _ in range(40)]
    said += [turn("evaluation", None, "The", False) for _ in range(40)]
    said += [turn("scoring", -1.0, "So", False, info={"score": None}) for _ in range(40)]
    watch = signs("max_tokens=9", "room.solution=4", "room.scoring=5")
    told = news(watch, 0, episodes(said))
    assert [note.rpartition("; ")[2] for note in told] == [
        "raise room.solution (now 4 tokens)",
        f"raise room.evaluation (now {watch.task.max_tokens.get('evaluation', 9)} tokens)",
        "raise room.scoring (now 5 tokens)",
    ]
    assert news(watch, 1, episodes(said)) == []


def test_what_does_not_follow_from_another_cause_is_told() -> None:
    unpaid = [turn("evaluation") for _ in range(3)]
    (note,) = news(signs(), 0, episodes([*unpaid, turn("solution", 0.0), turn("solution", 1.0)]))
    assert (
        note == "step 1: none of 3 replies as evaluation is rewarded, so that role learns nothing"
    )


@pytest.mark.parametrize(("questions", "told"), [(4, 0), (10, 0), (11, 1)])
def test_a_few_equal_groups_are_chance(questions: int, told: int) -> None:
    """Four answers of a question compare three rewards with another; with ten questions fewer than
    COMPARED.
    """
    said = [
        turn("solution", 1.0, info={"answer": "x"}, group=f"q{n}")
        for n in range(questions)
        for _ in range(4)
    ]
    assert len(news(signs("method=ttrl"), 0, episodes(said))) == told
    alone = [turn("solution", 1.0, info={"answer": "x"}, group=f"q{n}") for n in range(100)]
    assert news(signs("method=ttrl"), 0, episodes(alone)) == []  # nothing was compared


def test_a_judge_that_does_not_keep_the_format_is_shown() -> None:
    said = [
        turn("scoring", -1.0, "I would say " + "very " * 30 + "good", info={"score": None})
        for _ in range(3)
    ]
    said += [turn("solution", 1.0), turn("solution", 0.0)]
    (note,) = news(signs(), 4, episodes(said))
    assert note.startswith("step 5: 3 of 3 replies as scoring cannot be read, such as '... ")
    assert (
        "very good'; set options.score=p_true, which reads no reply; or give the agents that take"
        in note
    )


def test_thoughts_that_fill_the_room() -> None:
    said = [
        turn("solution", 0.0, "", False, thoughts="Hmm", info={"answer": None}) for _ in range(2)
    ]
    (note,) = news(signs("method=ttrl"), 0, episodes(said))
    assert "such as an empty one; raise room.solution (now" in note
    assert note.endswith("tokens), or set hosts.home.thinking=false")


def test_cut_replies_of_a_role_that_nobody_reads() -> None:
    said = [turn("evaluation", float(n), "It is", n > 1) for n in range(4)]
    (note,) = news(signs("max_tokens=9"), 0, episodes(said))
    assert note.startswith("step 1: 2 of 4 replies as evaluation are cut, such as 'It is'; raise")


def test_rewards_are_compared_within_their_groups() -> None:
    """Every question's answers agree: the rewards of a step differ, those of no group do."""
    flat = [
        turn("solution", float(n), info={"answer": "x"}, group=f"q{n}")
        for n in (0, 1)
        for _ in range(20)
    ]
    (note,) = news(signs("method=ttrl"), 0, episodes(flat))
    assert "in every group all are equal" in note
    assert signal_in(flat) == {"solution": {"groups": 2, "flat": 2, "spread": 0.5}}
    spread = [turn("solution", float(n), info={"answer": "x"}, group="q") for n in (0, 1)]
    assert news(signs("method=ttrl"), 0, episodes(spread)) == []
    assert signal_in(spread) == {"solution": {"groups": 1, "flat": 0, "spread": 0.5}}
    apart = [turn("solution", float(n), policy=f"home/a{n}") for n in (0, 0, 1, 1)]
    assert signal_in(apart) == {"solution": {"groups": 2, "flat": 2, "spread": 0.5}}


def test_a_game_that_asks_nobody_is_told_at_once() -> None:
    (said,) = news(signs(), 0, [Episode("0/q/0", Q, [])])
    assert "nobody was asked anything in 1 discussions" in said


def test_discussions_that_machines_lost_say_nothing() -> None:
    lost = Episode("0/q/0", Q, [turn("scoring", info={"score": None})], error="unplugged")
    assert news(signs(), 0, [lost]) == []


def test_scripted_judges_that_say_too_much() -> None:
    """The game's own notes are what is read."""
    from comas.methods.comas import method

    def script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
        return {"solution": "1 + 2 = 3 + 4 = 7", "evaluation": "fine"}.get(role, "") or cut(
            "Let me think about"
        )

    found = news(signs(), 0, discuss(method, pick.task, script, [Q]))
    assert "1 of 1 replies as scoring cannot be read, such as 'Let me think about'" in found[0]


class Heard(Hook):
    """What a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_whose_judges_cannot_score_says_so_in_its_first_step_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the share, the text of one, made harmless, and what to do; the metrics keep it."""
    host = Scripted(
        {
            "solution": "1 + 2 = 3 + 4 = 7",
            "evaluation": "fine",
            "scoring": "[red]It is\x1b[2J\u202e rather\ngood[/]",
        },
        name="home",
    )
    heard = Heard()
    comas.train(
        kind=kind_of(lambda: host, tmp_path),
        hooks=[heard],
        out=str(tmp_path / "run"),
        steps=3,
        questions=8,
        agents=3,
        test_questions=0,
        eval_every=0,
        seed=1,
    )
    (note,) = [said for said in heard.notes if "cannot be read" in said]
    assert note.startswith("step 1: 8 of 8 replies as scoring cannot be read, such as ")
    assert "'[red]It is\\x1b[2J\\u202e rather good[/]'" in note
    assert "a base that keeps to the format" in note
    assert "method=sft with demonstrations of scoring" in note
    run = Run(tmp_path / "run")
    assert [len(step["notes"]) for step in run.metrics()] == [1, 1, 1]
    assert command(["report", str(run.path), "--json"], monkeypatch) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["notes"]
    assert told["first"] == [note.removeprefix("step 1: ")]


def test_shares_are_counted_per_agent_and_role() -> None:
    said = [
        turn("solution", 1.0, info={"readable": True}),
        turn("solution", None, finished=False, info={"readable": False}),
        turn("evaluation", 0.5),
        turn("solution", 0.0, policy="home/b", info={"answer": None}),
        turn("scoring", 0.0, policy="home/b", info={"score": 2, "readable": True}),
    ]
    assert replies(StepRecord([Episode("0/q/0", Q, said)], {}, pick.task)) == [
        {"agent": "a0", "role": "evaluation", "turns": 1, "paid": 1, "cut": 0, "unreadable": None},
        {"agent": "a0", "role": "solution", "turns": 2, "paid": 1, "cut": 1, "unreadable": 1},
        {"agent": "b", "role": "scoring", "turns": 1, "paid": 1, "cut": 0, "unreadable": 0},
        {"agent": "b", "role": "solution", "turns": 1, "paid": 1, "cut": 0, "unreadable": 1},
    ]


def test_failed_discussions_are_counted_too() -> None:
    said = [turn("solution", 1.0), turn("solution", finished=False)]
    failed = Episode("0/q/1", Q, said, error="gone")
    found = counts(StepRecord([Episode("0/q/0", Q, said), failed], {}, pick.task))
    assert (found["discussions"], found["failed"]) == (2, 1)
    assert (found["turns"], found["paid"], found["unfinished"]) == (2, 1, 1)


def test_numbers_that_a_game_notes_are_averaged_per_role() -> None:
    noted = [
        {
            "length": 3,
            "score": np.int64(1),
            "fine": True,
            "kl": 9.0,
            "advantage": 9.0,
            "word": "x",
            "row": [1],
        },
        {"length": 5.0, "score": None, "fine": np.bool_(False), "odd": float("nan")},
    ]
    said = [turn("solution", info=dict(info)) for info in noted] + [
        turn("scoring", info={"word": "x"})
    ]
    assert facts(StepRecord([Episode("0/q/0", Q, said)], {}, pick.task)) == {
        "solution": {"fine": 0.5, "length": 4.0, "score": 1.0}
    }


def called(failed: str | None, tool: str = "search") -> Turn:
    return turn("solution", 1.0, info={"call": {"tool": tool, "failed": failed}})


def test_a_tool_most_of_whose_calls_fail_is_told_once() -> None:
    watch = signs("method=agent0")
    talk = [called("down: x" + 500 * "y"), called("down"), called(None), called(None, "other")]
    (told,) = news(watch, 0, [Episode("0/q/0", Q, talk)])
    assert told.startswith("step 1: 2 of 3 calls of search failed, the first: down: x")
    assert len(told) < 200
    assert not news(watch, 1, [Episode("0/q/0", Q, talk)])
    assert not news(signs("method=agent0"), 0, [Episode("0/q/0", Q, [called(None), called(None)])])


@pytest.mark.parametrize(("method", "first"), [("r_zero", 12), ("ttrl", 1)])
def test_roles_that_a_method_rewards_in_turn_are_waited_for(method: str, first: int) -> None:
    watch = signs(f"method={method}")
    told = [news(watch, step, episodes([turn("solution")] * 9)) for step in range(first)]
    assert [len(notes) for notes in told] == [0] * (first - 1) + [1]


# --- policies that did not move

STILL = {"home/a0": {"grad_norm": 0.0, "loss": 0.0}}


def told_of(step: int, turns: list[Turn], policies: Any = STILL, watch: Any = None) -> list[str]:
    watch = watch or signs()
    alarms = watch.news(watch.signs(step, episodes(turns), policies))
    return [alarm.text for alarm in alarms if alarm.kind == "still"]


def test_groups_of_one_are_told_in_the_first_step() -> None:
    turns = [turn("solution", float(n % 2), group=f"q{n}") for n in range(6)]
    (text,) = told_of(0, turns)
    assert "home/a0 learns nothing of its 6 rewarded replies" in text
    assert "each group of solution has one reply" in text
    assert "samples=4" in text


def test_groups_that_are_split_by_policy_are_told_apart() -> None:
    both = ("home/a0", "home/a1")
    turns = [turn("solution", float(n), group="q", policy=p) for n, p in enumerate(both)]
    turns += [turn("solution", float(n), group="r", policy=p) for n, p in enumerate(both)]
    policies = {policy: {"grad_norm": 0.0} for policy in both}
    texts = told_of(0, turns, policies)
    assert len(texts) == 2
    assert all("replies of other policies are not compared" in text for text in texts)


def test_weighings_and_frozen_judges_need_no_reward() -> None:
    weighed = [turn("solution", n % 2) for n in range(4)]
    weighed += [turn("scoring", info={"weights": [-1.0, -0.5]}) for _ in range(4)]
    assert news(signs("options.score=p_true"), 0, episodes(weighed)) == []
    judged = [turn("solution", n % 2) for n in range(4)]
    judged += [turn("scoring", policy="home/a1") for _ in range(4)]
    (text,) = news(signs("agents=2"), 0, episodes(judged))
    assert "none of 4 replies as scoring is rewarded" in text
    assert news(signs("agents.a0.frozen=false", "agents.a1.frozen=true"), 0, episodes(judged)) == []


def test_what_was_counted_before_an_interruption_counts_after_it() -> None:
    """Each process counted from nothing: a run that stopped every other step was never told."""
    unrewarded = [turn("blind") for _ in range(8)]
    moved = {"grad_norm": 0.3}
    metrics = {
        "policies": {"home/a0": moved},
        "replies": [{"agent": "a0", "role": "blind", "turns": 8, "paid": 0}],
    }
    resumed = signs("agents=2")
    resumed.learning = ["home/a0"]
    resumed.recall(metrics)
    assert told_of(1, unrewarded, {"home/a0": moved}, resumed) == []
    resumed = signs("agents=2")
    resumed.learning = ["home/a0"]
    for _ in range(2):
        resumed.recall(metrics)
    (text,) = told_of(2, unrewarded, {"home/a0": moved}, resumed)
    assert "none of its 24 replies in 3 steps was rewarded" in text


@pytest.mark.parametrize("group", [None, "q"])
def test_equal_rewards_are_told_after_three_steps_and_once(group: str | None) -> None:
    watch = signs()
    turns = [turn("solution", 0.5, group=group) for _ in range(7)]
    assert told_of(0, turns, STILL, watch) == []
    assert told_of(1, turns, STILL, watch) == []
    (text,) = told_of(2, turns, STILL, watch)
    assert "all rewards that are compared are equal" in text
    assert told_of(3, turns, STILL, watch) == []


def test_steps_without_a_gradient_before_an_interruption_count_after_it() -> None:
    watch = signs()
    turns = [turn("solution", 0.5) for _ in range(7)]
    for _ in range(2):
        watch.recall({"policies": STILL})
    (text,) = told_of(2, turns, STILL, watch)
    assert "all rewards that are compared are equal" in text


def test_a_step_that_moved_begins_the_count_anew() -> None:
    watch = signs()
    turns = [turn("solution", 0.5) for _ in range(7)]
    moved = {"home/a0": {"grad_norm": 0.3}}
    skipped = {"home/a0": {"grad_norm": 0.0, "skipped": 1.0}}  # one of its updates is not finite
    steps = [STILL, STILL, moved, STILL, STILL, skipped, STILL, STILL]
    for step, policies in enumerate(steps):
        assert told_of(step, turns, policies, watch) == []


def test_a_method_with_groups_of_one_says_so_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each answer is its own group, so that grpo has nothing to compare it with."""
    monkeypatch.chdir(tmp_path)
    Path("alone.py").write_text(ALONE)
    keys = ["method=./alone.py", "steps=1", "questions=8", "test_questions=0", "eval_every=0"]
    assert command(["train", *keys, "agents=2", "monitors=[]", "out=run"], monkeypatch) == 0
    said = capsys.readouterr()
    assert "each group of solution has one reply" in said.out + said.err
    assert "moved 0 of 1 steps" in said.out + said.err
    (notes,) = [step["notes"] for step in Run(Path("run")).metrics()]
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", True),
        ("turn.group = None", False),
        ("turn.group = episode.question.id[:4]", False),
    ],
)
def test_a_dry_run_tells_groups_of_one(
    change: str,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alone.py").write_text(ALONE.replace("turn.group = episode.question.id", change or "0"))
    if not change:
        Path("alone.py").write_text(ALONE)
    keys = ["method=./alone.py", "steps=1", "questions=8", "test_questions=0", "agents=2"]
    assert command(["train", *keys, "--dry-run"], monkeypatch) == 0
    said = capsys.readouterr()
    assert ("nobody would learn, whatever is rewarded" in said.out + said.err) == told


def test_a_dry_run_of_samples_does_not_take_some_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alone.py").write_text(ALONE)
    keys = ["method=./alone.py", "steps=1", "questions=64", "samples=4", "agents=1"]
    assert command(["train", *keys, "test_questions=0", "--dry-run"], monkeypatch) == 0
    said = capsys.readouterr()
    assert "nobody would learn" not in said.out + said.err


def paid_alike(turns: list[Turn]) -> None:
    for one in turns:
        one.reward = 0.5


def unpaid(turns: list[Turn]) -> None:
    for one in turns:
        one.reward = None


def unread(turns: list[Turn]) -> None:
    for one in turns:
        one.reward = None
        one.info["readable"] = False


def alone(turns: list[Turn]) -> None:
    for place, one in enumerate(turns):
        one.group = f"q{place}"


def split(turns: list[Turn]) -> None:
    for place, one in enumerate(turns):
        one.group = f"q{place // 2}"
        one.policy = f"home/a{place % 2}"


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (paid_alike, "in every group all are equal"),
        (unpaid, "none of 40 replies as solution is rewarded"),
        (unread, "40 of 40 replies as solution cannot be read"),
        (alone, "each group of solution has one reply, so that"),
        (split, "each group of solution has one reply of this policy"),
    ],
)
def test_each_cause_of_a_gradient_of_zero_is_told_with_its_remedy_and_once(
    cause: Any, words: str
) -> None:
    watch = signs()
    turns = [turn("solution", float(n % 2), group="q") for n in range(40)]
    moved = {"home/a0": {"grad_norm": 0.1}}
    assert watch.news(watch.signs(0, episodes(turns), moved)) == []  # it is a healthy step
    cause(turns)
    still = {one.policy: {"grad_norm": 0.0} for one in turns}
    told = [alarm.text for alarm in watch.news(watch.signs(1, episodes(turns), still))]
    assert any(words in text for text in told), told
    assert watch.news(watch.signs(2, episodes(turns), still)) == []


ALONE = '''"""Answers that are rewarded by their length, each compared with itself."""

from comas.game.agent import choose
from comas.game.prompts import solving
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method, Role


async def play(question, agents, rng, task):
    solution = await choose(agents, rng, "solution").ask("solution", solving(question, task))
    return solution.text


def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = float(len(turn.text))
            turn.group = episode.question.id


method = Method(play, settle, grpo, clipped, roles={"solution": Role("answer", reward="length")})
'''
