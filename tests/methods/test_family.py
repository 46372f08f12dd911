"""Every shipped method keeps the contract, and pays what its formula says in small cases."""

from __future__ import annotations

import random
from dataclasses import replace
from types import ModuleType

import pytest

from comas.config.plan import plan
from comas.config.plugins import load_plugin
from comas.config.schema import read
from comas.game.agent import choose
from comas.methods import azr, evol_rl, knowrl, mae, maporl, r_zero, rise, rlccf, spc, spo, sppo
from comas.methods import eva as eva_method
from comas.methods import srlm as srlm_method
from comas.tasks import pick
from comas.testing import check_method, golden_script
from comas.testing.scripted import discuss
from comas.training.start import rehearsed
from comas.types import COMMON_KINDS, Episode, Question, Turn, UserMistake, Verdict
from tests.support import runs
from tests.support.golden import GOLDEN

OFFERS = [(1, 2, 4, 6), (5, 2, 4, 8), (9, 1, 2, 4)]
QUESTIONS = [pick.make_question(offer, 11 if 5 in offer else 7, "three") for offer in OFFERS]
RIGHT = "1 + 2 = 3 + 4 = 7"
WRONG = "2 + 4 = 6 + 6 = 12"
POSED = "2 4 6 8 -> 14"


def turn(name: str, role: str, text: str = RIGHT, agent: str = "a", **info: object) -> Turn:
    """A turn of an episode `e`; `about` is what stands before the last dot of its name."""
    about = name.rpartition(".")[0] or None
    return Turn(
        f"e/{name}",
        agent,
        f"h/{agent}",
        role,
        "",
        text,
        True,
        0,
        about=None if about is None else f"e/{about}",
        info=dict(info),
        kind=COMMON_KINDS.get(role, "other"),
    )


def episode(*turns: Turn, question: Question = QUESTIONS[0]) -> Episode:
    return Episode("e", question, list(turns))


def pay(found: Episode) -> dict[str, float | None]:
    return {said.id.removeprefix("e/"): said.reward for said in found.turns}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_contract(name: str) -> None:
    method = load_plugin("method", name)
    check_method(method, pick.task, QUESTIONS, golden_script, samples=4, options=GOLDEN[name])


def test_rlccf_weighs_votes_by_how_sure_a_model_is_of_itself() -> None:
    split = [turn(f"s{i}", "solution", agent="a", answer=x) for i, x in enumerate("xxyz")]
    sure = [turn(f"t{i}", "solution", agent="b", answer="w") for i in range(2)]
    # a: its x counts 2/4 twice; b: its w counts 1 twice
    found = episode(*split, *sure)
    rlccf.settle([found], pick.task)
    assert rlccf.heaviest(found.turns, pick.task) == "w"
    assert pay(found) == {"s0": 0, "s1": 0, "s2": 0, "s3": 0, "t0": 1, "t1": 1}
    assert {said.group for said in split} == {"e/a"}
    tied = [turn("u", "solution", agent=agent, answer=agent) for agent in "aabb"]
    assert rlccf.heaviest(tied, pick.task) is None
    assert rlccf.heaviest(tied[:1], pick.task) is None
    nothing = episode(turn("s", "solution", answer=None))
    rlccf.settle([nothing], pick.task)
    assert pay(nothing) == {"s": 0.0}


def test_evol_rl_pays_bands_by_vote_and_places_by_novelty() -> None:
    said = ["a b c d", "a b c d", "e f g h", "a b c e", "z"]
    answers = ["x", "x", "x", "y", None]
    pairs = enumerate(zip(said, answers, strict=True))
    turns = [turn(f"s{i}", "solution", text, answer=answer) for i, (text, answer) in pairs]
    found = episode(*turns)
    evol_rl.settle([found], pick.task)
    paid = pay(found)
    assert paid["s0"] == paid["s1"] == 0.5, "copies are the least new of the majority"
    assert paid["s2"] == 1.0
    assert paid["s3"] == -0.5, "alone in its band"
    assert paid["s4"] == -1.0
    tied = episode(*(turn(f"s{i}", "solution", x, answer=x) for i, x in enumerate("xy")))
    evol_rl.settle([tied], pick.task)
    assert pay(tied) == {"s0": -1.0, "s1": -1.0}, "nobody is the majority"


def test_replies_that_are_equally_new_but_for_rounding_have_equal_places() -> None:
    # the novelties of the first two differ by 1e-16
    said = ["b", "a a b", "a", "b a a b a b b b b"]
    turns = [turn(f"s{i}", "solution", text) for i, text in enumerate(said)]
    assert evol_rl.places(turns[:2], turns) == [0.5, 0.5]


def test_sppo_pays_the_best_and_the_worst_their_chance_to_win() -> None:
    found = episode(*(turn(f"s{i}", "solution", mean=m) for i, m in enumerate([1.0, 0.5, 0.0])))
    sppo.settle([found], pick.task, sharpness=4.0)
    paid = pay(found)
    assert paid["s1"] is None
    assert paid["s0"] == pytest.approx((0.5 + 0.880797 + 0.982014) / 3, abs=1e-6)
    assert paid["s0"] + paid["s2"] == pytest.approx(1.0)  # type: ignore[operator]
    alike = episode(turn("s0", "solution", mean=0.5), turn("s1", "solution", mean=0.5))
    sppo.settle([alike], pick.task)
    srlm_method.settle([alike], pick.task)
    assert set(pay(alike).values()) == {None}


def test_spo_pays_the_share_of_wins_and_half_of_draws() -> None:
    means = [1.0, 0.5, 0.5, None]
    found = episode(*(turn(f"s{i}", "solution", mean=m) for i, m in enumerate(means)))
    spo.settle([found], pick.task)
    assert pay(found) == {"s0": 1.0, "s1": 0.25, "s2": 0.25, "s3": None}
    rounded = episode(*(turn(f"s{i}", "solution", mean=0.5 + i * 1e-8) for i in range(3)))
    spo.settle([rounded], pick.task)
    assert pay(rounded) == {"s0": 0.5, "s1": 0.5, "s2": 0.5}
    sppo.settle([rounded], pick.task)
    srlm_method.settle([rounded], pick.task)
    assert {said.reward for said in rounded.turns} == {0.5}, "nobody is the best"


def test_mae_pays_thirds_and_halves() -> None:
    found = episode(
        turn("p", "propose", posed="1 2 4 6 -> 7"),
        turn("p.r", "rating", score=1.0),
        turn("p.s0", "solution", readable=True),
        turn("p.s0.j", "judging", score=1.0),
        turn("p.s1", "solution", readable=False),
        turn("p.s1.j", "judging", score=0.0),
        turn("p.s2", "solution", readable=True),
        turn("p.s2.j", "judging", score=None),
    )
    mae.settle([found], pick.task)
    assert pay(found) == {
        "p": pytest.approx((1.0 + 0.5 + 1.0) / 3),
        "p.r": 1.0,
        "p.s0": 1.0,
        "p.s0.j": 1.0,
        "p.s1": 0.0,
        "p.s1.j": 1.0,
        "p.s2": None,
        "p.s2.j": 0.0,
    }
    assert mae.update({"pool": ["a"]}, [found], pick.task, pool=1) == {"pool": ["1 2 4 6 -> 7"]}
    unrated = episode(turn("p", "propose", posed="1 2 4 6 -> 7"), turn("p.r", "rating", score=None))
    mae.settle([unrated], pick.task)
    assert pay(unrated) == {"p": None, "p.r": 0.0}
    malformed = episode(turn("p", "propose", posed=None))
    mae.settle([malformed], pick.task)
    assert pay(malformed) == {"p": 0.0}
    unread = episode(
        turn("p", "propose", posed="1 2 4 6 -> 7"),
        turn("p.r", "rating", score=1.0),
        turn("p.s0", "solution", readable=True),
        turn("p.s0.j", "judging", score=None),
    )
    mae.settle([unread], pick.task)
    assert pay(unread)["p"] is None, "how hard it is nobody could read"


def test_azr_pays_by_rule_and_by_difficulty() -> None:
    found = episode(
        turn("p", "propose", posed="1 2 4 6 -> 7"),
        turn("p.s0", "solution", verdict="right"),
        turn("p.s1", "solution", verdict="wrong"),
        turn("p.s2", "solution", verdict=None),
        turn("p.s3", "solution", verdict="failed"),
    )
    azr.settle([found], pick.task)
    assert pay(found) == {
        "p": pytest.approx(2 / 3),
        "p.s0": 1.0,
        "p.s1": -0.5,
        "p.s2": -1.0,
        "p.s3": None,
    }
    hopeless = episode(
        turn("p", "propose", posed="1 2 4 6 -> 9"), turn("p.s", "solution", verdict="wrong")
    )
    azr.settle([hopeless], pick.task)
    assert pay(hopeless)["p"] == 0.0
    unknown = episode(
        turn("p", "propose", posed="1 2 4 6 -> 9"), turn("p.s", "solution", verdict="failed")
    )
    azr.settle([unknown], pick.task)
    assert pay(unknown) == {"p": None, "p.s": None}, "nobody knows how hard it is"
    assert azr.update({"pool": []}, [unknown], pick.task) == {"pool": []}
    nothing = episode(turn("p", "propose", posed=None))
    azr.settle([nothing], pick.task)
    assert pay(nothing) == {"p": -1.0}


def test_r_zero_goes_through_its_phases() -> None:
    answers = ["x", "x", "y", "z"]
    found = episode(
        turn("p", "propose", posed="1 2 4 6 -> 7"),
        *(turn(f"p.s{i}", "solution", answer=a) for i, a in enumerate(answers)),
    )
    first = r_zero.start([], pick.task)
    later = r_zero.update(first, [found], pick.task, proposing=1, least=1)
    assert later["phase"] == "solve"
    assert later["pool"] == {"1 2 4 6 -> 7": "x"}
    waiting = r_zero.update(first, [found], pick.task, proposing=2, least=1)
    assert waiting["phase"] == "propose"
    few = r_zero.update(first, [found], pick.task, proposing=1)
    assert few["phase"] == "propose", "a pool of one is too small"
    certain = r_zero.update(first, [found], pick.task, proposing=1, least=1, high=0.4)
    assert certain["phase"] == "propose", "no question at the frontier: more proposals"
    assert r_zero.update({**later, "done": 0}, [], pick.task, solving=1) == first
    r_zero.settle([found], pick.task, state=later)
    solved = Episode("e", QUESTIONS[0], found.turns[1:])
    r_zero.settle([solved], pick.task, state=later)
    assert [t.reward for t in solved.turns] == [1.0, 1.0, -1.0, -1.0]
    assert [t.info["raw"] for t in solved.turns] == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(UserMistake, match=r"options\.low is 0\.9, and options\.high 0\.8"):
        r_zero.update(first, [found], pick.task, low=0.9)


def test_spc_is_won_by_generator_or_critic() -> None:
    found = episode(
        turn("s", "solution", verdict="right"),
        turn("s.e", "evaluation", verdict="right"),
        turn("s.g0", "sabotage", WRONG, verdict="wrong"),
        turn("s.g0.e", "evaluation", verdict="right"),
        turn("s.g1", "sabotage", WRONG, verdict="wrong"),
        turn("s.g1.e", "evaluation", verdict="wrong"),
        turn("s.g2", "sabotage", RIGHT, verdict="right"),
        turn("s.g3", "sabotage", "?", verdict=None),
        turn("s.g4", "sabotage", WRONG, verdict="wrong"),
        turn("s.g4.e", "evaluation", verdict=None),
    )
    spc.settle([found], pick.task)
    assert pay(found) == {
        "s": None,
        "s.e": 1.0,
        "s.g0": 1.0,
        "s.g0.e": -1.0,
        "s.g1": -1.0,
        "s.g1.e": 1.0,
        "s.g2": -1.0,
        "s.g3": -1.0,
        "s.g4": None,
        "s.g4.e": -1.0,
    }


def test_rise_pays_judges_for_what_the_rules_say() -> None:
    found = episode(
        turn("s0", "solution", RIGHT),
        turn("s0.e", "evaluation", verdict="right"),
        turn("s1", "solution", WRONG),
        turn("s1.e", "evaluation", verdict="right"),
        turn("s2", "solution", WRONG),
        turn("s2.e", "evaluation", verdict=None),
        turn("s3", "solution", "what ?"),
    )
    rise.settle([found], pick.task)
    assert pay(found) == {
        "s0": 1.0,
        "s0.e": 1.0,
        "s1": 0.0,
        "s1.e": -0.5,
        "s2": 0.0,
        "s2.e": -1.0,
        "s3": 0.0,
    }


def test_maporl_pays_what_a_turn_leads_to() -> None:
    first = [turn(f"s{i}", "solution", WRONG, agent=f"a{i}") for i in range(2)]
    second = [
        turn("s0.r", "revision", RIGHT, agent="a0"),
        turn("s1.r", "revision", WRONG, agent="a1"),
    ]
    for said in second:
        said.round = 1
    found = episode(*first, *second)
    maporl.settle([found], pick.task, discount=0.5, bonus=0.2)
    led_to = 0.5 * 0.5 / 1.5
    assert pay(found) == {
        "s0": pytest.approx(led_to),
        "s1": pytest.approx(led_to),
        "s0.r": pytest.approx(1.2),
        "s1.r": pytest.approx(0.0),
    }


def test_maporl_leaves_out_what_the_rules_broke_down_on() -> None:
    right = turn("s0", "solution", RIGHT, agent="a0")
    also = turn("s1", "solution", RIGHT, agent="a1")
    revised = turn("s0.r", "revision", "broken", agent="a0")
    other = turn("s1.r", "revision", RIGHT, agent="a1")
    for said in (revised, other):
        said.round = 1
    found = episode(right, also, revised, other)

    def check(question: Question, text: str) -> Verdict:
        return "failed" if text == "broken" else pick.task.verify(question, text)

    broken = replace(pick.task, check=check, extract=lambda _, text: text)
    maporl.settle([found], broken, discount=0.5, bonus=0.2)
    assert pay(found)["s0"] == pytest.approx(1.0), "nobody saw it spoilt"
    assert pay(found)["s0.r"] is None


def test_eva_keeps_the_prompts_whose_answers_differ() -> None:
    found = episode(
        turn("v", "evolve", posed="1 2 4 6 -> 7"),
        turn("v.s0", "solution", score=1.0),
        turn("v.s1", "solution", score=0.5),
        turn("v.s2", "solution", score=None),
    )
    eva_method.settle([found], pick.task)
    assert pay(found) == {"v": None, "v.s0": 1.0, "v.s1": 0.5, "v.s2": None}
    state = eva_method.update({"pool": {"b": 0.0, "a": 0.2}}, [found], pick.task, pool=2)
    assert state == {"pool": {"1 2 4 6 -> 7": 0.5, "a": 0.2}}
    assert eva_method.update({"pool": {"b": 0.0}}, [], pick.task) == {"pool": {"b": 1.0}}


def test_eva_asks_questions_of_the_task_again_as_they_are() -> None:
    two = [pick.make_question(offer, offer[0] + offer[2], "two") for offer in OFFERS]
    assert pick.pose(two[0].prompt) != two[0], "what poses it is a question of another form"
    state = eva_method.start(two, pick.task)
    state["pool"][POSED] = 1.0
    drawn = eva_method.draw(state, two, 4, random.Random(0), pick.task, evolve=0.0)
    asked = {question.prompt: question for question in drawn}
    assert asked.pop(POSED).prompt == POSED
    assert asked == {question.prompt: question for question in two}


def test_a_tie_or_a_single_vote_labels_no_question() -> None:
    def labels(*answers: str) -> dict[str, tuple[str, float]]:
        solved = [turn(f"p.s{i}", "solution", answer=x) for i, x in enumerate(answers)]
        found = episode(turn("p", "propose", posed=POSED), *solved)
        return r_zero.at_frontier({"phase": "propose"}, [found], pick.task, 0.3, 0.8)

    assert labels("7", "7", "9") == {POSED: ("7", pytest.approx(2 / 3))}
    assert labels("7", "7", "9", "9") == labels("7", "8", "9") == {}


def test_knowrl_pays_for_agreeing_with_oneself() -> None:
    found = episode(
        turn("p", "propose", posed="1 2 4 6 -> 7"),
        *(turn(f"p.a{i}", "assess", verdict=s) for i, s in enumerate(["yes", "yes", "no", None])),
    )
    knowrl.settle([found], pick.task)
    assert pay(found) == {"p": None, "p.a0": 1.0, "p.a1": 1.0, "p.a2": 0.0, "p.a3": 0.0}
    torn = episode(
        *(turn(f"p.a{i}", "assess", verdict=s) for i, s in enumerate(["yes", "no", None]))
    )
    knowrl.settle([torn], pick.task)
    assert set(pay(torn).values()) == {0.0}, "a tie is no majority"
    unasked = episode(turn("p", "propose", posed=None))
    assert knowrl.update({"examples": []}, [unasked], pick.task, consistent=0.0) == {"examples": []}
    state = {"examples": ["a"]}
    assert knowrl.update(state, [found], pick.task, consistent=0.6) == state
    both = knowrl.update(state, [found], pick.task, consistent=0.5)
    assert both == {"examples": ["a", "1 2 4 6 -> 7"]}


@pytest.mark.parametrize("name", ["mae", "azr", "r_zero", "eva", "knowrl", "spc", "rise", "maporl"])
def test_a_task_without_what_a_method_needs_is_one_line(name: str) -> None:
    with pytest.raises(UserMistake, match=f"method {name} .*`(pose|check)`"):
        runs.planned([f"method={name}", "task=gsm8k"])


def test_a_sharp_judge_does_not_overflow() -> None:
    found = episode(turn("s0", "solution", mean=0.0), turn("s1", "solution", mean=1.0))
    sppo.settle([found], pick.task, sharpness=1e6)
    assert pay(found) == {"s0": pytest.approx(0.25), "s1": pytest.approx(0.75)}


def test_a_role_that_nobody_takes_is_a_mistake_in_one_line() -> None:
    with pytest.raises(UserMistake, match="role 'judging'"):
        choose([], random.Random(0), "judging")


@pytest.mark.parametrize(
    ("name", "taken", "missing"),
    [
        ("ssp", ["propose", "solution"], "reading"),
        ("spc", ["sabotage", "evaluation"], "solution"),
        ("sppo", ["solution"], "judging"),
        ("eva", ["solution", "evolve"], "judging"),
    ],
)
def test_roles_that_nobody_takes_are_told_before_a_model_is_loaded(
    name: str, taken: list[str], missing: str
) -> None:
    config = read(None, {"method": name, "agents": {"a": {"roles": taken}}})
    with pytest.raises(UserMistake, match=f"role '{missing}'"):
        rehearsed(plan(config), QUESTIONS[0])
    rehearsed(runs.planned([f"method={name}"]), QUESTIONS[0])


def test_a_credit_held_by_the_start_of_the_run_keeps_it() -> None:
    held = runs.planned(["method=srlm", "credit.reference=start"])
    assert held.method.reference == ("solution",)
    assert held.method.refers
    assert not runs.planned(["method=srlm"]).method.refers


def test_an_author_of_srlm_judges_itself_in_a_team_too() -> None:
    table = {"solution": RIGHT, "judging": "<score>3</score>"}
    found = discuss(srlm_method.method, pick.task, table, QUESTIONS)
    turns = {said.id: said for one in found for said in one.turns}
    judgings = [said for said in turns.values() if said.role == "judging"]
    assert judgings
    assert all(said.agent == turns[said.about or ""].agent for said in judgings)


@pytest.mark.parametrize("method", [azr, mae])
def test_training_seeds_come_back_as_they_are(method: ModuleType) -> None:
    questions = pick.load("train", form="two", limit=8)
    state = method.start(questions, pick.task, seeds=8)
    keys = {"seeds": 8, "solve": 1.0}
    again = method.draw(state, questions, 8, random.Random(0), pick.task, **keys)
    assert sorted(q.id for q in again) == sorted(q.id for q in questions)
