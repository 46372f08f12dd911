"""Metrics of a step that say how good pay, judges, answers and posed questions were: each against
figures by hand, and nothing where nothing applies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from comas.game.judgements import accepts
from comas.stats import auc, pass_at
from comas.storage.records import without_truth
from comas.tasks import pick
from comas.training.metrics import METRICS, at_frontier, balanced, summarise
from comas.training.record import StepRecord, note_truth
from comas.types import COMMON_KINDS, Episode, Learned, Question, Task, Turn

Q = pick.make_question((1, 2, 4, 10), 7, "three")
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "1 + 2 = 3 + 10 = 13"
NAMES = ("pay", "judges", "variety", "posed")


def turn(name: str, text: str = "", reward: float | None = None, **more: Any) -> Turn:
    """A turn whose id is `name`, and whose role is the part of it before the first digit."""
    role = more.pop("role", name.rstrip("0123456789"))
    finished = more.pop("finished", True)
    agent = more.pop("agent", "a0")
    return Turn(
        name,
        agent,
        f"home/{agent}",
        role,
        "p",
        text,
        finished,
        0,
        reward=reward,
        **more,
        kind=COMMON_KINDS.get(role, "other"),
    )


def record(*turns: Turn, question: Question = Q, task: Task = pick.task) -> StepRecord:
    return StepRecord([Episode("0/q/0", question, list(turns))], {}, task)


def metrics(step: StepRecord) -> dict[str, Any]:
    line = summarise(step, {name: METRICS[name] for name in NAMES})
    return {name: line[name] for name in NAMES if name in line}


def test_a_step_that_nobody_was_paid_in_has_none() -> None:
    found = metrics(record(turn("evaluation", "well")))
    nothing = dict.fromkeys(("accuracy", "precision", "recall", "auc"))
    assert found == {"pay": {"n": 0, **nothing}}


@pytest.mark.parametrize(
    ("pairs", "area"),
    [
        ([(1.0, True), (0.0, False)], 1.0),
        ([(0.0, True), (1.0, False)], 0.0),
        ([(0.5, True), (0.5, False)], 0.5),
        ([(0.2, True), (0.8, True), (0.5, False), (0.8, False)], (0 + 0 + 1 + 0.5) / 4),
        ([(1.0, True)], None),
        ([], None),
    ],
)
def test_area_under_the_curve(pairs: list[tuple[float, bool]], area: float | None) -> None:
    assert auc(pairs) == area


def test_work_that_was_cut_is_wrong_and_unpaid_work_is_not_counted() -> None:
    turns = [
        turn("solution0", RIGHT, 1.0, finished=False),
        turn("solution1", RIGHT, 1.0),
        turn("solution2", RIGHT),
        turn("revision0", WRONG, 0.0, about="solution1"),
    ]
    found = metrics(record(*turns))
    figures = {"accuracy": 0.5, "precision": 0.5, "recall": 1.0, "auc": 0.5}
    assert found["pay"] == {"n": 2, **figures}


@pytest.mark.parametrize(
    ("info", "accepted"),
    [
        ({"verdict": "right"}, True),
        ({"verdict": "wrong"}, False),
        ({"verdict": None}, None),
        ({"verdict": ["right"]}, None),
        ({"said": "wrong"}, False),  # of a method written for 0.1
        ({"score": 1}, False),
        ({"score": 2}, True),
        ({"score": 7}, None),
        ({"score": 0.0}, False),
        ({"score": 1.0}, True),
        ({"score": 0.5}, True),
        ({"score": None}, None),
        ({"score": "3"}, None),
        ({"score": True}, None),
        ({"belief": 0.49}, False),
        ({"belief": 0.5}, True),
        ({}, None),
    ],
)
def test_verdicts_are_read_from_what_the_game_noted(
    info: dict[str, Any], accepted: bool | None
) -> None:
    assert accepts(turn("scoring", info=info)) is accepted


def test_balanced_accuracy_by_hand() -> None:
    judgements = [(True, True), (True, True), (False, True), (True, False), (False, False)]
    assert balanced(judgements) == pytest.approx(
        {
            "n": 5,
            "accepts_right": 2 / 3,
            "accepts_wrong": 1 / 2,
            "balanced": (2 / 3 + 1 / 2) / 2,
        }
    )
    assert balanced([(True, True)]) == {"n": 1, "accepts_right": 1.0}
    assert balanced([(True, True), (True, False)])["balanced"] == 0.5


def test_a_score_of_comas_judges_the_work_behind_the_evaluation() -> None:
    turns = [
        turn("solution0", RIGHT, 1.0),
        turn("evaluation0", "right", 0.0, about="solution0"),
        turn("scoring0", "", 0.0, about="evaluation0", info={"score": 3}),
        turn("solution1", WRONG, 1.0),
        turn("scoring1", "", 0.0, about="solution1", info={"score": 1}),
        turn("sabotage0", WRONG, 1.0, about="solution0"),
        turn("evaluation1", "", 0.0, about="sabotage0", info={"verdict": "right"}),
        turn("judging0", "", 0.0, about="nobody", info={"score": 1.0}),
        turn("rating0", "", 0.0, about="solution0", info={"score": 1.0}),
    ]
    found = metrics(record(*turns))["judges"]
    assert found == {
        "evaluation": {"n": 1, "accepts_wrong": 1.0},
        "scoring": {"n": 2, "accepts_right": 1.0, "accepts_wrong": 0.0, "balanced": 1.0},
    }


def test_pass_at_k_is_the_share_of_draws_with_a_right_one() -> None:
    assert pass_at(4, 1, 1) == 1 / 4
    assert pass_at(4, 1, 2) == 1 / 2
    assert pass_at(4, 2, 2) == pytest.approx(1 - 1 / 6)
    assert pass_at(4, 0, 4) == 0.0
    assert pass_at(4, 3, 2) == 1.0


def test_variety_of_questions_that_were_answered_several_times() -> None:
    turns = [
        turn("solution0", RIGHT, info={"answer": "1 2 4"}),
        turn("solution1", WRONG),  # the task reads it
        turn("solution2", "no", info={"answer": None}),
        turn("solution3", WRONG, round=1),
    ]
    step = record(*turns)
    assert metrics(step)["variety"] == pytest.approx({"questions": 1, "answers": 3, "distinct": 2})
    variety = METRICS["variety"]
    assert variety(record(turn("solution0", RIGHT))) is None


def test_entropy_is_the_mean_surprise_of_tokens_that_learning_policies_drew() -> None:
    drawn = [turn("solution0", RIGHT), turn("solution1", WRONG), turn("scoring0", "3")]
    for one, (tokens, logprob) in zip(drawn, [(10, -4.0), (30, -16.0), (1, -9.0)], strict=True):
        one.tokens = tokens
        one.logprob = logprob
    drawn[2].info["weights"] = [-1.0, -2.0]  # a choice that was weighed
    frozen = turn("evaluation0", "wrong")
    frozen.policy = "home/judge"
    frozen.tokens = 50
    policy = drawn[0].policy
    host, name = policy.split("/")
    learned = {host: Learned({name: {}}, {})}
    variety = METRICS["variety"]
    found = variety(StepRecord([Episode("0/q/0", Q, [*drawn, frozen])], learned, pick.task))
    assert found is not None
    assert found["entropy"] == pytest.approx(20 / 40)


def test_several_discussions_of_a_question_are_counted_together() -> None:
    episodes = [Episode(f"0/q/{n}", Q, [turn(f"solution{n}", RIGHT)]) for n in range(2)]
    failed = Episode("0/q/2", Q, [turn("solution2", WRONG)], error="lost")
    variety = METRICS["variety"]
    found = variety(StepRecord([*episodes, failed], {}, pick.task))
    assert found is not None
    assert (found["answers"], found["distinct"]) == (2, 1.0)


POSED = "1 2 4 10 -> 7"
PROPOSAL = Question(id="proposal-0", prompt="", kind="propose")


def proposal(name: str, posed: str | None) -> Turn:
    return turn(name, "", 0.5, info={"posed": posed})


def test_posed_questions_are_judged_by_the_rules() -> None:
    turns = [
        proposal("propose0", POSED),
        turn("solution0", RIGHT, 1.0, about="propose0"),
        turn("solution1", WRONG, 0.0, about="propose0"),
        turn("solution3", WRONG, 0.0, about="propose0"),
        proposal("propose1", POSED),
        turn("solution2", WRONG, 0.0, about="propose1"),
        proposal("propose2", None),
        proposal("propose3", "3 6 7 9 -> 16"),
    ]
    found = metrics(record(*turns, question=PROPOSAL))
    assert found["posed"] == pytest.approx(
        {
            "n": 4,
            "valid": 3 / 4,
            "distinct": 2 / 3,
            "solvable": 1 / 2,
            "frontier": 1 / 2,
        }
    )
    assert found["pay"]["auc"] == 1.0
    assert found["variety"]["answers"] == 4  # two proposals of one question


def test_posed_questions_without_answers_or_rules_say_less() -> None:
    posed = METRICS["posed"]
    step = record(proposal("propose0", POSED), question=PROPOSAL)
    assert posed(step) == {"n": 1, "valid": 1.0, "distinct": 1.0}
    assert posed(record(proposal("propose0", None), question=PROPOSAL)) == {"n": 1, "valid": 0.0}
    assert posed(record(turn("propose0", info={"posed": 3}), question=PROPOSAL)) is None
    solved = [proposal("propose0", POSED), turn("solution0", RIGHT, 1.0, about="propose0")]
    free = replace(pick.task, check=None)
    assert "solvable" not in posed(record(*solved, question=PROPOSAL, task=free))
    assert metrics(record(*solved, question=PROPOSAL, task=free))["pay"]["n"] == 0


def test_words_that_an_agent_was_told_are_not_its_work() -> None:
    told = turn("solution2", RIGHT, 1.0, info={"told": True})
    turns = [turn("solution0", WRONG, 0.0), turn("solution1", WRONG, 0.0)]
    assert metrics(record(*turns, told)) == metrics(record(*turns))


def test_pay_that_was_compared_counts_as_what_it_was_before() -> None:
    """All right or all wrong: what is left over the mean is 0, or of either sign."""
    paid = turn("solution0", RIGHT, 0.0, info={"raw": 0.5})
    unpaid = turn("solution1", WRONG, 0.7, info={"raw": 0.4})
    assert metrics(record(paid, unpaid))["pay"] == {
        "n": 2,
        "accuracy": 0.5,
        "precision": 1.0,
        "recall": 1.0,
        "auc": 0.0,
    }


def test_the_frontier_has_both_ends() -> None:
    assert [at_frontier(share) for share in (0.29, 0.3, 0.8, 0.81)] == [False, True, True, False]


def test_a_verifier_that_breaks_down_gives_no_label() -> None:
    def broken(question: Question, text: str) -> Any:
        raise ArithmeticError("mine")

    step = record(turn("solution0", RIGHT, 1.0), task=replace(pick.task, verify=broken))
    assert metrics(step)["pay"]["n"] == 0
    assert step.labels == {}


def judged(name: str, score: int | None, about: str, judge: str, **info: Any) -> Turn:
    return turn(name, "s", about=about, info={"score": score, **info}, role="scoring", agent=judge)


def test_who_accepts_whose_work_by_hand() -> None:
    turns = [
        turn("solution0", RIGHT, 1.0),
        turn("solution1", WRONG, 0.0, agent="a1"),
        turn("evaluation0", "well", about="solution0", agent="a3"),
        judged("s0", 3, "evaluation0", "a2"),
        judged("s1", 1, "solution1", "a2"),
        judged("s2", 2, "solution1", "a2"),
        judged("s3", None, "solution1", "a2"),  # cannot be read
        judged("s4", 3, "solution1", "a2", known="wrong"),  # other work was shown
        judged("s5", 3, "nothing", "a2"),
    ]
    line = summarise(record(*turns), {"acceptance": METRICS["acceptance"]})
    of_right = {"n": 1, "accepted": 1, "right": 1, "accepted_right": 1, "wrong": 0}
    of_wrong = {"n": 2, "accepted": 1, "right": 0, "accepted_right": 0, "wrong": 2}
    assert line["acceptance"] == [
        {"role": "scoring", "judge": "a2", "author": "a0", **of_right, "accepted_wrong": 0},
        {"role": "scoring", "judge": "a2", "author": "a1", **of_wrong, "accepted_wrong": 1},
    ]


def test_without_quick_labels_acceptance_is_counted_alone() -> None:
    def slow(question: Question, text: str) -> Any:
        raise AssertionError("asked")

    task = replace(pick.task, quick=False, verify=slow)
    step = record(turn("solution0", RIGHT, 1.0), judged("s0", 3, "solution0", "a2"), task=task)
    row = summarise(step, {"acceptance": METRICS["acceptance"]})["acceptance"][0]
    assert (row["n"], row["accepted"], row["right"], row["wrong"]) == (1, 1, 0, 0)
    note_truth(step)
    assert [t.info for t in step.turns] == [{}, {"score": 3, "accepts": True}]


def test_truth_is_noted_and_taken_away_again() -> None:
    turns = [
        turn("solution0", RIGHT, 1.0),
        turn("solution1", WRONG, 0.0),
        turn("evaluation0", "well", about="solution0"),
        judged("s0", None, "evaluation0", "a2"),
    ]
    step = record(*turns)
    note_truth(step)
    infos = [{"right": True}, {"right": False}, {}, {"score": None, "accepts": None}]
    assert [t.info for t in turns] == infos
    without_truth(step.episodes[0])
    assert [t.info for t in turns] == [{}, {}, {}, {"score": None}]
