"""CoMAS on beliefs: expected scores, blind critics, judges that learn from votes, peer prediction;
every payment in closed form.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from comas.config.plugins import load_plugin
from comas.game.judgements import accepts
from comas.game.play import play_all, settle_all
from comas.methods import comas, comas_agree, comas_peer, comas_votes, mae, optima, sppo
from comas.methods.shared.posing import unwritten
from comas.objective.credit import reinforce_pp
from comas.tasks import pick, sums
from comas.testing import check_method, golden_script
from comas.testing.scripted import discuss, scripted_context
from comas.types import COMMON_KINDS, Ask, Episode, Reply, Row, Turn

OFFERS = [(1, 2, 4, 6), (5, 2, 4, 8), (9, 1, 2, 4)]
QUESTIONS = [pick.make_question(offer, 11 if 5 in offer else 7, "three") for offer in OFFERS]
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "2 + 4 = 6 + 6 = 12"
OTHER = "1 + 4 = 5 + 6 = 11"


def turn(name: str, role: str, about: str | None = None, **facts: Any) -> Turn:
    agent = facts.pop("agent", "a")
    policy = facts.pop("policy", f"h/{agent}")
    return Turn(
        name,
        agent,
        policy,
        role,
        "",
        "",
        True,
        0,
        about=about,
        info=facts,
        kind=COMMON_KINDS.get(role, "other"),
    )


def log(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def marked(name: str, about: str, agent: str, mark: int, *probabilities: float) -> Turn:
    """A scoring that says `mark` and finds marks 1, 2 and 3 so probable."""
    _, two, three = probabilities
    belief = two / 2 + three
    facts = {"weights": log(*probabilities), "mark": mark, "marks": [1, 2, 3], "belief": belief}
    return turn(name, "scoring", about, agent=agent, score=1 + 2 * belief, **facts)


# --- expected scores


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("comas", {"score": "expected"}),
        ("comas", {"score": "expected", "evaluate": False}),
        ("comas", {"score": "expected", "answer_first": True}),
        ("comas", {"score": "p_true", "evaluate": False}),
        ("comas", {"answer_first": True}),
        ("comas", {"score": "p_true", "answer_first": True, "evaluate": False}),
        ("comas_agree", {"score": "expected", "evaluations": 3}),
        ("comas_peer", {"evaluations": 3}),
        ("comas_peer", {"score": "expected", "evaluations": 2}),
        ("comas_votes", {}),
        ("comas_votes", {"score": "p_true", "pairs": 2}),
        ("comas_votes", {"evaluate": False, "balanced": False, "negatives": "random"}),
    ],
)
def test_contract(name: str, options: dict[str, Any]) -> None:
    method = load_plugin("method", name)
    check_method(method, pick.task, QUESTIONS, golden_script, samples=2, options=options)


@pytest.mark.parametrize("evaluate", [True, False])
def test_a_solution_is_paid_the_expected_score_and_its_critic_the_opposite(evaluate: bool) -> None:
    def beliefs(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
        assert role == "scoring"
        assert list(choices) == ["<score> 1", "<score> 2", "<score> 3"]
        return [0.1, 0.1, 0.2]

    table = {"solution": RIGHT, "evaluation": "no score here"}
    setting: dict[str, Any] = {"beliefs": beliefs}
    setting["options"] = {"score": "expected", "evaluate": evaluate}
    (episode,) = discuss(comas.method, pick.task, table, QUESTIONS[:1], **setting)
    by_role = {said.role: said for said in episode.turns}
    assert by_role["scoring"].info["score"] == pytest.approx(2.25)
    assert by_role["solution"].reward == pytest.approx(0.625)
    assert by_role["scoring"].reward is None  # all weighings would have the same
    assert accepts(by_role["scoring"]) is True
    if evaluate:
        assert by_role["evaluation"].reward == pytest.approx(0.375)


def test_a_believed_score_is_the_share_of_yes() -> None:
    def beliefs(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
        assert list(choices) == ["<score> 1", "<score> 3"]
        return [0.1, 0.3]

    setting: dict[str, Any] = {"options": {"score": "p_true", "evaluate": False}}
    table = {"solution": RIGHT}
    found = discuss(comas.method, pick.task, table, QUESTIONS[:1], beliefs=beliefs, **setting)
    solution, scoring = found[0].turns
    assert solution.reward == pytest.approx(0.75)
    assert scoring.info["mark"] in (1, 3)
    assert scoring.info["score"] == pytest.approx(2.5)


def test_a_lenient_judge_costs_nothing() -> None:
    """Pays are normalised per role over the step: a shift or a stretch of all scores changes no
    advantage.
    """

    def advantages(pays: Sequence[float]) -> np.ndarray:
        mask = np.array([False, True])
        zero = np.zeros(2, np.float32)
        rows = [
            Row(f"t{i}", "solution", 1.0, np.zeros(2, np.int64), mask, zero, reward=pay)
            for i, pay in enumerate(pays)
        ]
        return np.concatenate(reinforce_pp(rows, {}))

    strict = [0.02, 0.1, 0.05, 0.3]
    lenient = [0.6 + 0.3 * pay for pay in strict]
    assert advantages(lenient) == pytest.approx(advantages(strict), abs=1e-6)


def test_agreement_of_expected_scores_is_how_probable_others_find_the_mark() -> None:
    episode = Episode("e", QUESTIONS[0], [turn("s", "solution", readable=True)])
    episode.turns += [
        marked("c0", "s", "a", 3, 0.1, 0.2, 0.7),
        marked("c1", "s", "b", 1, 0.5, 0.3, 0.2),
        marked("c2", "s", "c", 3, 0.2, 0.2, 0.6),
    ]
    comas_agree.settle([episode], pick.task)
    paid = {said.id: said.reward for said in episode.turns}
    assert paid["c0"] == pytest.approx((0.2 + 0.6) / 2)
    assert paid["c1"] == pytest.approx((0.1 + 0.2) / 2)
    assert paid["c2"] == pytest.approx((0.7 + 0.2) / 2)


def test_proposals_and_solutions_of_mae_are_paid_expected_shares() -> None:
    def beliefs(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
        return [0.05, 0.05, 0.9] if role == "rating" else [0.5, 0.25, 0.25]

    table = {"propose": "1 2 4 6 -> 7", "solution": RIGHT}
    setting: dict[str, Any] = {"beliefs": beliefs, "options": {"score": "expected", "answers": 2}}
    method = replace(mae.method, draw=None)
    (episode,) = discuss(method, pick.task, table, unwritten([""]), **setting)
    by_role = {said.role: said for said in episode.turns}
    assert by_role["rating"].info["score"] == pytest.approx(0.925)
    quality, difficulty, form = 0.925, 1 - 0.375, 1.0
    assert by_role["propose"].reward == pytest.approx((quality + difficulty + form) / 3)
    assert by_role["judging"].info["score"] == pytest.approx(0.375)
    assert by_role["solution"].reward == pytest.approx((0.375 + 1) / 2)


def test_preferences_follow_expected_scores_which_are_always_there() -> None:
    def beliefs(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
        return [0.1, 0.1, 0.8] if "# 1 2 4" in prompt else [0.8, 0.1, 0.1]

    table = {"solution": [RIGHT, WRONG, WRONG]}
    options = {"score": "expected", "votes": 3}
    setting: dict[str, Any] = {"beliefs": beliefs, "options": options}
    (episode,) = discuss(sppo.method, pick.task, table, QUESTIONS[:1], **setting)
    solutions = [said for said in episode.turns if said.role == "solution"]
    assert [said.info["mean"] for said in solutions] == pytest.approx([0.85, 0.15, 0.15])
    assert episode.answer == RIGHT
    best, worst, unpaid = (said.reward for said in solutions)
    assert best is not None
    assert worst is not None
    assert best > 0.5 > worst
    assert unpaid is None


# --- blind critics


def test_a_blind_critic_answers_before_it_sees_the_work_and_then_sees_both() -> None:
    table = {"solution": RIGHT, "blind": OTHER, "evaluation": "x", "scoring": "<score>3</score>"}
    wording = {**pick.task.wording, "evaluation": "{question} {work}", "beside": "{work} own {own}"}
    task = replace(pick.task, wording=wording)
    context, _ = scripted_context(comas.method, task, table, options={"answer_first": True})
    (episode,) = asyncio.run(play_all(context, QUESTIONS[:1], 0))
    settle_all(context, [episode])
    by_role = {said.role: said for said in episode.turns}
    assert by_role["blind"].agent == by_role["evaluation"].agent != by_role["solution"].agent
    assert by_role["blind"].about == by_role["solution"].id
    assert by_role["blind"].prompt == by_role["solution"].prompt
    assert by_role["blind"].reward is None
    assert by_role["evaluation"].prompt.endswith("# 1 2 4 own # 1 4 6")
    assert context.room["blind"] == context.room["solution"]


def test_a_blind_answer_that_cannot_be_read_is_not_shown() -> None:
    table = {"solution": RIGHT, "blind": "what ?", "evaluation": "x", "scoring": "3"}
    options = {"answer_first": True}
    (episode,) = discuss(comas.method, pick.task, table, QUESTIONS[:1], options=options)
    by_role = {said.role: said for said in episode.turns}
    assert by_role["blind"].info["readable"] is False
    assert "what" not in by_role["evaluation"].prompt


def test_without_criticism_a_blind_scorer_sees_both() -> None:
    wording = {
        **pick.task.wording,
        "scoring_bare": "{question} {work}",
        "beside": "{work} own {own}",
    }
    task = replace(pick.task, wording=wording)
    table = {"solution": RIGHT, "blind": OTHER, "scoring": "<score>3</score>"}
    options = {"answer_first": True, "evaluate": False}
    (episode,) = discuss(comas.method, task, table, QUESTIONS[:1], options=options)
    by_role = {said.role: said for said in episode.turns}
    assert by_role["blind"].agent == by_role["scoring"].agent != by_role["solution"].agent
    assert by_role["blind"].about == by_role["solution"].id
    assert by_role["scoring"].prompt.endswith("# 1 2 4 own # 1 4 6")
    assert by_role["scoring"].about == by_role["solution"].id


def test_names_and_seeds_do_not_depend_on_who_answers_first() -> None:
    """A judgement was named when its judge had answered the question."""

    def named(slowest: str) -> list[tuple[str, str]]:
        table = {"solution": RIGHT, "blind": OTHER, "evaluation": "x", "scoring": "3"}
        options = {"answer_first": True, "evaluations": 3}
        context, host = scripted_context(comas.method, pick.task, table, options=options)
        answer = host.ask

        async def slowly(ask: Ask) -> Reply:
            for _ in range(9 if ask.policy.endswith(slowest) and ask.role == "blind" else 1):
                await asyncio.sleep(0)
            return await answer(ask)

        host.ask = slowly  # type: ignore[method-assign]
        (episode,) = asyncio.run(play_all(context, QUESTIONS[:1], 0))
        return sorted((said.id, said.agent) for said in episode.turns)

    assert named("a") == named("b") == named("c") == named("d")


# --- comas_votes


def voted(*answers: str | None, agents: str = "abcd") -> list[Turn]:
    """Blind solutions of agents in turn."""
    names = itertools.cycle(agents)
    return [
        turn(f"s{n}", "solution", answer=answer, agent=name)
        for n, (answer, name) in enumerate(zip(answers, names, strict=False))
    ]


def judged(solution: str, side: bool, score: int | None, mends_to: str | None) -> list[Turn]:
    """A criticism of a solution, the scoring after it, and the revision."""
    return [
        turn(f"{solution}.e", "evaluation", solution),
        turn(f"{solution}.c", "scoring", f"{solution}.e", score=score, side=side),
        turn(f"{solution}.r", "revision", f"{solution}.e", answer=mends_to),
    ]


def paid_for(turns: list[Turn], **options: Any) -> dict[str, float | None]:
    episode = Episode("e", QUESTIONS[0], turns)
    comas_votes.settle([episode], pick.task, **options)
    return {said.id: said.reward for said in turns}


def test_a_label_is_the_majority_of_the_others_and_a_tie_pays_nobody() -> None:
    solutions = voted("7", "7", "9", "9", "7", agents="ab")
    paid = paid_for(solutions)
    # without its own vote, those of 7 see a tie of two and two
    assert paid == {"s0": None, "s1": None, "s2": 0.0, "s3": 0.0, "s4": None}
    assert paid_for(voted("7", "7", "7", "9", None, agents="ab")) == {
        "s0": 1.0,
        "s1": 1.0,
        "s2": 1.0,
        "s3": 0.0,
        "s4": 0.0,
    }
    # one vote is no majority of others
    assert set(paid_for(voted(None, None, "7")).values()) == {None}
    assert set(paid_for(voted("7", "9", None, agents="ab")).values()) == {None}
    assert paid_for(voted("7", "7", None))["s2"] == 0.0


def test_with_three_policies_a_label_leaves_out_all_answers_of_the_own_policy() -> None:
    # a says 7 twice, the others say 9: for a the label is 9
    solutions = voted("7", "9", "9", "7", "9", "7", agents="abc")
    paid = paid_for(solutions)
    assert paid["s0"] == paid["s3"] == 0.0
    # b and c each see 7 7 of a, and one or two 9 and 7 of the other
    assert paid["s1"] == 0.0
    assert paid["s4"] == 0.0


def test_scorers_are_paid_by_the_vote_and_critics_for_what_they_mend() -> None:
    turns = voted("7", "7", "7", "9", "8")
    turns += judged("s0", True, 3, "7") + judged("s3", False, 1, "7")
    paid = paid_for(turns)
    assert (paid["s0.c"], paid["s3.c"]) == (1.0, 1.0)
    assert (paid["s0.e"], paid["s3.e"]) == (0.0, 1.0)
    assert (paid["s0.r"], paid["s3.r"]) == (1.0, 1.0)
    assert [said.group for said in turns if said.role == "scoring"] == [
        "scoring True",
        "scoring False",
    ]
    harmful = voted("7", "7", "7", "9", "8") + judged("s0", True, 2, "5")
    paid = paid_for(harmful)
    assert paid["s0.e"] == -1.0, "a remark that spoils right work costs its critic"
    assert paid["s0.r"] == 0.0
    assert paid["s0.c"] == 0.5


def test_a_score_that_cannot_be_read_costs_its_scorer_alone() -> None:
    turns = voted("7", "7", "7", "9") + judged("s0", True, 3, "7") + judged("s3", False, None, "9")
    paid = paid_for(turns)
    assert (paid["s3.c"], paid["s3.e"], paid["s3.r"]) == (-1.0, 0.0, 0.0)


def test_a_question_on_which_judges_do_not_hold_with_the_majority_pays_nobody() -> None:
    turns = voted("7", "7", "7", "9") + judged("s0", True, 1, "7") + judged("s3", False, 1, "9")
    assert set(paid_for(turns).values()) == {None}
    assert paid_for(turns, gate=False)["s0"] == 1.0


def test_the_gate_does_not_take_an_unreadable_score_for_a_rejection() -> None:
    unread = voted("7", "7", "7", "9") + judged("s0", True, None, "7") + judged("s3", False, 1, "9")
    paid = paid_for(unread)
    assert (paid["s0"], paid["s0.c"], paid["s3.c"]) == (1.0, -1.0, 1.0)
    two = voted("7", "7", "7", "9") + judged("s0", True, 1, "7")
    two.append(turn("more.c", "scoring", "s0", score=None, side=True))
    paid = paid_for(two)
    assert paid.pop("more.c") == -1.0, "what cannot be read costs its scorer behind the gate too"
    assert set(paid.values()) == {None}


def test_of_expected_scores_the_gate_asks_for_more_belief_in_the_majority() -> None:
    for believed, is_open in (((0.6, 0.2, 0.2), True), ((0.9, 0.05, 0.05), False)):
        turns = voted("7", "7", "7", "9")
        turns.append(marked("c0", "s0", "b", 1, *believed))
        turns.append(marked("c1", "s3", "a", 3, 0.7, 0.2, 0.1))
        turns[-2].info["side"] = True
        turns[-1].info["side"] = False
        paid = paid_for(turns)
        if is_open:
            # the mark counts that is said
            assert (paid["c0"], paid["c1"]) == (0.0, 0.0)
        else:
            assert set(paid.values()) == {None}


def test_ablations_of_judges_and_critics() -> None:
    turns = voted("7", "7", "7", "9") + judged("s0", True, 3, "5")
    paid = paid_for(turns, judges_learn=False)
    assert paid["s0.c"] is None
    assert paid["s0.e"] == -1.0
    lowered = paid_for(turns, critics="lower")
    assert lowered["s0.e"] == 0.0
    assert lowered["s0.c"] == 1.0


def chosen(*answers: str | None, **options: Any) -> list[tuple[str, bool]]:
    settings = {"pairs": 1, "negatives": "rarest", "balanced": True} | options
    found = comas_votes.chosen_works(
        voted(*answers), random.Random(0), pick.task, *settings.values()
    )
    return [(solution.info["answer"], side) for solution, side in found]


def test_works_of_the_majority_and_of_the_rarest_other_answer_are_judged() -> None:
    assert chosen("7", "7", "7", "9", "9", "8") == [("7", True), ("8", False)]
    assert chosen("7", "7", "7", "7") == []
    assert chosen(None, None) == []
    assert chosen("7", "7", None) == []
    assert chosen("7", "7", "7", "9", "9", "8", pairs=2) == [("7", True), ("8", False)]
    assert len(chosen("7", "7", "7", "9", "9", pairs=2)) == 4
    assert len(chosen("7", "7", "7", "9", "9", pairs=1, balanced=False)) == 2
    assert chosen("7", "7", "9", "9") == []
    assert chosen("7", "9", "8") == []
    found = {chosen("7", "7", "7", "7", "9", "9", "9", "8", negatives="random")[1][0]}
    assert found <= {"8", "9"}


def test_judges_are_not_the_authors_and_authors_revise_with_the_criticism() -> None:
    said = [RIGHT, RIGHT, WRONG, RIGHT]
    table = {"solution": said, "evaluation": "no", "scoring": "<score>3</score>", "revision": RIGHT}
    options = {"votes": 4}
    (episode,) = discuss(comas_votes.method, pick.task, table, QUESTIONS[:1], options=options)
    turns = {said.id: said for said in episode.turns}
    revisions = [said for said in episode.turns if said.role == "revision"]
    assert len(revisions) == 2
    for revision in revisions:
        evaluation = turns[revision.about or ""]
        solution = turns[evaluation.about or ""]
        (scoring,) = [
            said for said in episode.turns if said.about == evaluation.id and said.role == "scoring"
        ]
        assert revision.agent == solution.agent
        assert len({solution.agent, evaluation.agent, scoring.agent}) == 3
        assert "no" in revision.prompt
    assert episode.answer == RIGHT


def test_who_revises_is_shown_its_own_work_once() -> None:
    wrong, right = "1001", "1002"
    question = sums.task.load("train", limit=1, seed=0)[0]
    said = {"solution": [right, right, wrong, right], "evaluation": "no", "revision": right}
    said["scoring"] = "<score>3</score>"
    (voted,) = discuss(comas_votes.method, sums.task, said, [question], options={"votes": 4})
    said = {"solution": right, "proxy": "no", "revision": right}
    (talked,) = discuss(optima.method, sums.task, said, [question])
    for episode in (voted, talked):
        turns = {said.id: said for said in episode.turns}
        revisions = [turn for turn in episode.turns if turn.role == "revision"]
        assert revisions
        for revision in revisions:
            about = turns[revision.about or ""]
            own = turns[about.about or ""] if about.role == "evaluation" else about
            assert revision.prompt.count(own.text) == 1
            assert "Somebody answered" not in revision.prompt


# --- comas_peer


def peers(verdicts: dict[str, Sequence[int | None]]) -> list[Episode]:
    """Judges and their scores of each work, one work an episode."""
    episodes = []
    for number in range(len(next(iter(verdicts.values())))):
        turns = [turn(f"{number}s", "solution", agent="solver", readable=True)]
        for name, scores in verdicts.items():
            evaluation = turn(f"{number}{name}e", "evaluation", f"{number}s", agent=f"{name}'s")
            scoring = turn(
                f"{number}{name}", "scoring", evaluation.id, agent=name, score=scores[number]
            )
            turns += [evaluation, scoring]
        episodes.append(Episode(f"{number}", QUESTIONS[0], turns))
    return episodes


def pays_of(episodes: list[Episode], judge: str) -> list[float | None]:
    comas_peer.settle(episodes, pick.task)
    return [said.reward for e in episodes for said in e.turns if said.agent == judge]


@pytest.mark.parametrize("constant", [1, 2, 3])
def test_a_constant_judge_is_paid_nothing_in_the_mean(constant: int) -> None:
    episodes = peers({"a": [constant] * 5, "b": [3, 1, 3, 1, 1]})
    paid = pays_of(episodes, "a")
    assert math.fsum(paid) == pytest.approx(0.0)  # type: ignore[arg-type]
    everybody = peers({"a": [constant] * 4, "b": [constant] * 4})
    assert pays_of(everybody, "a") == [0.0] * 4


def test_judges_that_tell_right_from_wrong_are_paid_what_the_closed_form_says() -> None:
    rng = random.Random(5)
    share, works = 0.4, 2000
    right = [rng.random() < share for _ in range(works)]

    def scores(accepts_right: float, accepts_wrong: float) -> list[int]:
        rates = [accepts_right if one else accepts_wrong for one in right]
        return [3 if rng.random() < rate else 1 for rate in rates]

    paid = pays_of(peers({"a": scores(0.9, 0.3), "b": scores(0.8, 0.4)}), "a")
    wanted = 2 * share * (1 - share) * (0.9 - 0.3) * (0.8 - 0.4)
    found = math.fsum(paid) / works  # type: ignore[arg-type]
    assert found == pytest.approx(wanted, abs=0.03)


def test_agreement_less_what_is_expected_on_other_works() -> None:
    episodes = peers({"a": [3, 1, 3], "b": [3, 1, 1]})
    # of the two other works: a's first with b's second, and a's second with b's first
    first = 1.0 - (1 + 0) / 2
    second = 1.0 - (0 + 1) / 2
    third = 0.0 - (0 + 0) / 2
    assert pays_of(episodes, "a") == pytest.approx([first, second, third])
    criticism = [t.reward for e in episodes for t in e.turns if t.agent == "a's"]
    assert criticism == pytest.approx([first, second, third])


def test_what_cannot_be_read_or_compared_is_not_paid() -> None:
    episodes = peers({"a": [3, None], "b": [3, 1]})
    # a has judged one work that can be read: nothing to compare with
    assert pays_of(episodes, "a") == [None, -1.0]
    assert pays_of(peers({"a": [3], "b": [3]}), "a") == [None]


def test_of_expected_scores_the_mark_that_is_said_is_paid_by_the_others_belief() -> None:
    episodes = []
    for number, (mark, own, theirs) in enumerate(
        [
            (3, (0.2, 0.2, 0.6), (0.5, 0.2, 0.3)),
            (1, (0.9, 0.05, 0.05), (0.8, 0.1, 0.1)),
            (3, (0.1, 0.1, 0.8), (0.3, 0.3, 0.4)),
        ]
    ):
        turns = [turn(f"{number}s", "solution", agent="solver", readable=True)]
        turns.append(marked(f"{number}a", f"{number}s", "a", mark, *own))
        turns.append(marked(f"{number}b", f"{number}s", "b", mark, *theirs))
        episodes.append(Episode(f"{number}", QUESTIONS[0], turns))
    # a accepts by .8, .1, .9; b by .5, .2, .7
    first = 0.5 - ((0.1 * 0.7 + 0.9 * 0.3) + (0.9 * 0.2 + 0.1 * 0.8)) / 2
    second = 0.8 - ((0.8 * 0.7 + 0.2 * 0.3) + (0.9 * 0.5 + 0.1 * 0.5)) / 2
    third = 0.7 - ((0.8 * 0.2 + 0.2 * 0.8) + (0.1 * 0.5 + 0.9 * 0.5)) / 2
    assert pays_of(episodes, "a") == pytest.approx([first, second, third])


def test_a_work_that_a_judge_has_judged_twice_counts_by_the_mean_of_both() -> None:
    said = [
        turn(f"c{n}", "scoring", "s", agent="b", score=score)
        for n, score in enumerate((3, 3, 1, None))
    ]
    episode = Episode("e", QUESTIONS[0], [turn("s", "solution"), *said])
    assert comas_peer._accepted([episode]) == {"h/b": {"s": 2 / 3}}


def test_a_small_majority_is_judged_beside_as_many_of_many_others() -> None:
    said = [turn(f"s{n}", "solution", answer=answer) for n, answer in enumerate("77123")]
    works = comas_votes.chosen_works(said, random.Random(0), sums.task, 3, "random", True)
    assert [side for _, side in works] == [True, True, False, False]
