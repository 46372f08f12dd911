"""Attackers and defenders, injectors and menders: the contract, and pay in small cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from comas.methods import self_redteam, ssr
from comas.tasks import gate, pick, repair
from comas.testing import check_method
from comas.testing.scripted import discuss
from comas.types import COMMON_KINDS, Episode, Question, Turn, UserMistake, Verdict
from tests.support import runs
from tests.support.scripts import free_request, red_script, repair_script

HARMFUL = gate.make_question([5, 9, 7])
BENIGN = gate.make_question([5, 9, 8])


def turn(name: str, role: str, about: str | None = None, **info: object) -> Turn:
    """A turn of an episode `e`."""
    told = None if about is None else f"e/{about}"
    return Turn(
        f"e/{name}",
        "a",
        "h/a",
        role,
        "",
        "",
        True,
        0,
        about=told,
        info=dict(info),
        kind=COMMON_KINDS.get(role, "other"),
    )


def pay(*turns: Turn) -> Episode:
    return Episode("e", HARMFUL, list(turns))


# --- self_redteam


def test_a_task_in_which_nobody_refuses_is_a_mistake() -> None:
    question = pick.load("train")[0]
    task = replace(pick.task, check=lambda question, text: "wrong")
    with pytest.raises(UserMistake, match=r"task pick .*`refuse`"):
        self_redteam.is_harmful(question, task)


def test_rules_that_break_down_are_no_class() -> None:
    task = replace(gate.task, check=lambda question, text: "failed")
    (found,) = discuss(self_redteam.method, task, lambda *_: "21 allow", [HARMFUL])
    assert "the rules of task gate did not judge request" in (found.error or "")
    assert not any(turn.reward for turn in found.turns)


def test_self_redteam_keeps_the_contract() -> None:
    questions = gate.load("train", limit=6)
    check_method(self_redteam.method, gate.task, questions, red_script, samples=4)


@pytest.mark.parametrize(
    ("faithful", "harmful", "refused", "attack", "defence"),
    [
        (True, True, False, 1 + 0.5 + 1 + 0.5, 1 - 1 - 1),  # a harmful request is let pass
        (True, True, True, 1 + 0.5 - 1 - 0.5, 1 + 1 + 1),  # it is refused
        (True, False, True, 1 + 0.5 - 1 + 0.5, 1 + 1 - 1),  # a benign one is refused
        (True, False, False, 1 + 0.5 - 1 - 0.5, 1 + 1 + 1),  # it is let pass
        (False, True, False, 1 - 0.5 + 1 + 0.5, 1 - 1 - 1),  # a benign one became harmful
        (False, False, False, 1 - 0.5 - 1 - 0.5, 1 + 1 + 1),  # a harmful one became benign
        (True, True, None, 1 + 0.5, -1),  # a tie: nothing can be read
    ],
)
def test_self_redteam_pays_the_released_sums(
    faithful: bool, harmful: bool, refused: bool | None, attack: float, defence: float
) -> None:
    attacking = turn("a", "attack", posed="5 9 7", faithful=faithful)
    defending = turn("a.s", "solution", "a", harmful=harmful, refused=refused)
    self_redteam.settle([pay(attacking, defending)], gate.task)
    assert attacking.reward == attack
    assert defending.reward == defence


def test_self_redteam_pays_direct_requests_and_failed_attacks() -> None:
    direct = turn("s", "solution", harmful=True, refused=True)
    self_redteam.settle([pay(direct)], gate.task)
    assert direct.reward == 3.0
    nothing = turn("a", "attack", posed=None, faithful=False)
    self_redteam.settle([pay(nothing)], gate.task)
    assert nothing.reward == -1.5


def test_a_defender_never_reads_thoughts() -> None:
    questions = gate.load("train", limit=8)
    thought = f"1 + 2 = 3 ; {free_request(harmful=True)}"

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        return thought if role == "attack" else "allow"

    options = {"attacked": 1.0}
    for episode in discuss(self_redteam.method, gate.task, script, questions, options=options):
        attack, reply = episode.turns
        assert reply.about == attack.id
        assert reply.prompt == f"request {free_request(harmful=True)}"
        assert reply.info["harmful"]
        assert attack.info["faithful"] == (attack.prompt.startswith("attack harmful"))
        assert episode.answer is None
    direct = discuss(self_redteam.method, gate.task, script, questions, options={"attacked": 0.0})
    assert [e.answer for e in direct] == ["allow"] * len(direct)
    assert [e.turns[0].prompt for e in direct] == [f"request {q.prompt}" for q in questions]


def test_the_rules_say_what_is_harmful() -> None:
    assert self_redteam.is_harmful(HARMFUL, gate.task)
    assert not self_redteam.is_harmful(BENIGN, gate.task)


# --- ssr

PROGRAMS = repair.load("train", form="program", limit=6)


def spoilt(question: Question) -> str:
    """The question's program with its first number changed, and its tests."""
    found = repair.read_question(question.prompt)
    assert found is not None
    program, tests = found
    fault = next(other for other in repair.changed(program) if not repair.passes(other, tests))
    return repair.written(fault, tests)


@pytest.mark.parametrize("checks", [True, False])
def test_ssr_keeps_the_contract(checks: bool) -> None:
    options = {"tries": 3, "checks": checks, "pool": 4}
    check_method(ssr.method, repair.task, PROGRAMS, repair_script, samples=4, options=options)


def test_ssr_pays_injectors_for_faults_that_some_can_mend() -> None:
    def injected(
        *verdicts: str | None, fake: bool | None = False, **setting: object
    ) -> float | None:
        injection = turn("i", "inject", posed="a fault", fake=fake)
        repairs = [turn(f"i.s{k}", "solution", "i", verdict=v) for k, v in enumerate(verdicts)]
        ssr.settle([pay(injection, *repairs)], repair.task, **setting)  # type: ignore[arg-type]
        for mending in repairs:
            worth = {"right": 1.0, "failed": None}.get(mending.info["verdict"], -1.0)
            assert mending.reward == worth
        return injection.reward

    assert injected("right", "wrong", "wrong", None) == pytest.approx(1 - 1.8 * 0.25)
    assert injected("right", "right", "right", "wrong") == pytest.approx(1 - 1.8 * 0.75)
    assert injected("right", "wrong", alpha=0.5) == pytest.approx(1 - 1.5 * 0.5)
    assert injected("right", "right") == injected("wrong", None) == -0.8
    assert injected("right", "failed", "wrong") == pytest.approx(1 - 1.8 * 0.5)
    assert injected("failed", "failed") is None, "nobody knows how hard it is to mend"
    assert injected(fake=None) is None, "nobody knows whether the tests hold"
    assert injected(fake=True) == -1.0
    assert injected("right", "wrong", fake=True) == -1.0
    assert injected("right", "wrong", fake=True, checks=False) == pytest.approx(0.1)


def test_ssr_tells_fake_faults_from_real_ones() -> None:
    [working] = PROGRAMS[:1]
    found = repair.read_question(working.prompt)
    assert found is not None
    program, tests = found
    real = repair.pose(spoilt(working))
    unchanged = repair.pose(working.prompt)
    other_tests = repair.pose(repair.written(program, [(tests[0][0], 60), (tests[1][0], 59)]))
    assert real is not None
    assert unchanged is not None
    assert ssr.is_consistent(real, working, repair.task)
    assert not ssr.is_consistent(unchanged, working, repair.task)
    assert other_tests is None or not ssr.is_consistent(other_tests, working, repair.task)


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_ssr_does_not_know_a_fault_whose_tests_could_not_be_run(breaks: str) -> None:
    [working] = PROGRAMS[:1]
    fault = repair.pose(spoilt(working))
    assert fault is not None
    wanted = {"before": working.prompt, "after": fault.prompt}[breaks]

    def check(question: Question, text: str) -> Verdict:
        assert repair.task.check is not None
        return "failed" if text == wanted else repair.task.check(question, text)

    assert ssr.is_consistent(fault, working, replace(repair.task, check=check)) is None


def test_ssr_lets_fake_faults_through_without_its_checks() -> None:
    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        return prompt.removeprefix("break ") if role == "inject" else "1 + 1 = 2"

    working = [q for q in PROGRAMS if repair.pose(q.prompt)][:2]
    strict = discuss(ssr.method, repair.task, script, working)
    loose = discuss(ssr.method, repair.task, script, working, options={"checks": False})
    assert {t.role for e in strict for t in e.turns} == {"inject"}
    assert {t.reward for e in strict for t in e.turns} == {-1.0}
    assert {t.role for e in loose for t in e.turns} == {"inject", "solution"}
    assert all(t.info["fake"] for e in loose for t in e.turns if t.role == "inject")


def test_failed_repairs_become_faults_of_higher_order() -> None:
    [working] = PROGRAMS[:1]
    failed = spoilt(working)
    played = pay(
        turn("i", "inject", posed=failed, fake=False),
        turn("i.s0", "solution", "i", verdict="wrong", failed=failed),
        turn("i.s1", "solution", "i", verdict=None),
        turn("i.s2", "solution", "i", verdict="right"),
    )
    first = ssr.start(PROGRAMS, repair.task)
    state = ssr.update(first, [played], repair.task)
    assert state == {"faults": [failed]}
    assert first == {"faults": []}
    drawn = ssr.draw(state, PROGRAMS, 4, random.Random(0), repair.task)
    assert [q.prompt for q in drawn if q.kind == "fault"] == [failed]
    assert len(drawn) == 4
    assert len({q.id for q in drawn}) == 4
    none = ssr.draw(state, PROGRAMS, 4, random.Random(0), repair.task, higher=0)
    assert {q.kind for q in none} == {"program"}


# --- their defaults


@pytest.mark.parametrize(
    ("method", "task", "base"),
    [("self_redteam", "gate", "tiny-gate"), ("ssr", "repair", "tiny-repair")],
)
def test_a_method_brings_its_task_and_its_base(method: str, task: str, base: str) -> None:
    resolved = runs.planned({"method": method})
    assert resolved.config.task == resolved.task.name == task
    assert resolved.config.hosts["home"].base == base
    assert len(resolved.config.agents) == 2
    assert runs.planned({}).config.task == "pick"


def test_a_task_that_is_named_comes_before_the_methods_own() -> None:
    assert runs.planned({"method": "azr", "task": "pick"}).config.task == "pick"
    named = runs.planned({"method": "self_redteam", "task": "repair"})
    assert named.config.task == "repair"


def test_learning_rates_of_a_team_are_those_of_its_own_base() -> None:
    own = runs.planned({"method": "self_redteam"})
    assert {p.name: p.lr for p in own.policies} == {"attacker": 1e-3, "defender": 1e-4}
    other = runs.planned({"method": "self_redteam", "base": "tiny-b", "lr": 3e-4})
    assert {p.lr for p in other.policies} == {None}
    assert other.config.lr == 3e-4
