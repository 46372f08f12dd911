"""Agent0-VL: the contract, who mends what, and what is paid in small cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from comas.methods import agent0_vl
from comas.methods.agent0_vl import outcome_of
from comas.tasks import facts
from comas.testing import check_method
from comas.testing.scripted import discuss
from comas.types import COMMON_KINDS, Episode, Question, Turn
from tests.support.scripts import verifier

WORLD = facts.WORLD
QUESTIONS = facts.load("train", hops=3, least=3, limit=4)


def played(options: Mapping[str, Any], say: Any = None) -> list[Episode]:
    return discuss(agent0_vl.method, facts.task, say or verifier(), QUESTIONS, options=options)


def test_contract() -> None:
    check_method(agent0_vl.method, facts.task, QUESTIONS, verifier(), options={"answers": 4})


def final(episode: Episode) -> list[Turn]:
    return [turn for turn in episode.turns if turn.info.get("final")]


def doubted(episode: Episode) -> list[Turn]:
    return [turn for turn in episode.turns if turn.info.get("final") is False]


def test_only_what_is_in_doubt_is_written_again() -> None:
    mended = 0
    for episode in played({"answers": 6, "repairs": 2, "gate": 0.7}):
        assert len(final(episode)) == 6
        for turn in final(episode):
            assert turn.info["sure"] >= 0.7 or turn.info["repairs"] == 2
        for turn in doubted(episode):
            assert turn.info["sure"] < 0.7
            mended += 1
        repairs = {turn.about for turn in episode.turns if turn.role == "repair"}
        assert {turn.id for turn in doubted(episode)} <= repairs
    assert mended > 5


@pytest.mark.parametrize(("gate", "count"), [(-1.0, 0), (2.0, 2)])
def test_a_gate_beyond_both_ends_never_or_always_repairs(gate: float, count: int) -> None:
    for episode in played({"answers": 3, "repairs": 2, "gate": gate}):
        assert {turn.info["repairs"] for turn in final(episode)} == {count}


def test_a_repair_goes_on_from_what_the_tools_said() -> None:
    """What was searched before a doubted reply is not searched again, and is paid as what came
    of it; the reply itself is a dialogue of its own.
    """
    for episode in played({"answers": 3, "repairs": 2, "turns": 6}, verifier(patience=0.3)):
        by_dialogue: dict[str, list[Turn]] = {}
        for turn in episode.turns:
            if turn.role != "reading":
                by_dialogue.setdefault(turn.info["dialogue"], []).append(turn)
        for turn in doubted(episode):
            assert by_dialogue[turn.id] == [turn]
        for end in final(episode):
            replies = by_dialogue[end.info["dialogue"]]
            looked = [reply.info["call"]["argument"] for reply in replies if "call" in reply.info]
            assert len(looked) == len(set(looked)) == len(replies) - 1
            assert len(replies) <= 6


def test_readers_do_not_see_the_answer() -> None:
    for episode in played({"answers": 3}):
        (question,) = {episode.question.prompt}
        ids = {turn.id: turn for turn in episode.turns}
        for reading in (turn for turn in episode.turns if turn.role == "reading"):
            shown = reading.prompt.removesuffix(f"find {question}").split(" ; ")
            assert all(WORLD.fact(int(page.split()[0])) in page for page in shown if page.strip())
            assert ids[reading.about or ""].info["answer"] is not None


def test_score_times_confidence_is_the_share_that_bears_the_score_out() -> None:
    for episode in played({"answers": 6, "checks": 3}):
        for turn in [*final(episode), *doubted(episode)]:
            about = [said for said in episode.turns if said.about == turn.id]
            readings = [said for said in about if said.role == "reading"]
            confirming = sum(reading.info["confirms"] for reading in readings)
            expected = {0: -1.0, 1: 1 / 3 - 1, 2: 2 / 3, 3: 1.0}[confirming]
            assert len(readings) == (0 if turn.info["answer"] is None else 3)
            assert turn.info["sure"] == pytest.approx(expected)


def turn(name: str, role: str = "solution", **info: Any) -> Turn:
    about = name.rpartition(".")[0] or None
    return Turn(
        f"e/{name}",
        "a",
        "h/p",
        role,
        "",
        "",
        True,
        0,
        about=about,
        info=dict(info),
        kind=COMMON_KINDS.get(role, "other"),
    )


def answer(name: str, gives: str | None, sure: float, repairs: int = 0, **info: Any) -> Turn:
    facts_of = {"answer": gives, "sure": sure, "repairs": repairs, "final": True}
    role = "repair" if repairs else "solution"
    return turn(name, role, dialogue=f"e/{name}", **{**facts_of, **info})


def reading(about: str, confirms: bool) -> Turn:
    found = turn("r", "reading", confirms=confirms)
    found.about = f"e/{about}"
    return found


def episode(*turns: Turn) -> Episode:
    return Episode("e", Question(id="q", prompt="7 ->"), list(turns))


def test_the_outcome_is_what_is_borne_out_most_not_what_is_said_most() -> None:
    often = [answer(f"s{i}", "12", -1 / 3) for i in range(3)]
    once = answer("t", "9", 2 / 3)
    assert outcome_of([*often, once], facts.task) == "9"
    assert outcome_of(often, facts.task) is None
    assert outcome_of([answer("u", "12", 2 / 3), answer("v", "12", -1.0), once], facts.task) == "12"
    assert outcome_of([*often, answer("w", None, -1.0)], facts.task) is None


def call(failed: str | None = None) -> dict[str, Any]:
    return {"tool": "search", "back": "", "failed": failed, "cut": 0, "seconds": 0.0}


def test_pay_of_answers_and_of_steps_that_were_written_again() -> None:
    one = turn("a", dialogue="e/a", call=call())
    other = turn("a.a", dialogue="e/a", call=call("nothing"))
    step = answer("a.a.a", "12", -1.0, final=False)
    mended = answer("a.a.a.b", "9", 1.0, repairs=1)
    mended.info["dialogue"] = "e/a"
    agent0_vl.settle([episode(one, other, step, mended)], facts.task)
    # (1 sure + .5 outcome + .2 x one call of two - .1 for a repair) and the step that was doubted
    assert mended.info["raw"] == pytest.approx(1.0 + 0.5 + 0.1 - 0.1)
    assert step.info["raw"] == pytest.approx(-1.0)
    assert one.reward == other.reward == mended.reward == pytest.approx(1.0)
    assert step.reward == pytest.approx(-1.0)


def test_options_weigh_the_terms() -> None:
    found = answer("a.b", "9", 1.0, repairs=1)
    found.info["dialogue"] = "e/a"
    first = turn("a", dialogue="e/a", call=call())
    options = {"outcome": 2.0, "tool": 0.3, "cost": 0.4}
    agent0_vl.settle([episode(first, found)], facts.task, **options)
    assert found.info["raw"] == pytest.approx(1.0 + 2.0 + 0.3 - 0.4)
    assert found.reward == 0.0, "nothing to compare it with"


def test_readers_are_paid_for_confirming_the_outcome_and_nothing_else() -> None:
    ends = [answer("s", "9", 2 / 3), answer("t", "12", -2 / 3)]
    readings = [reading("s", True), reading("s", False), reading("t", True), reading("t", False)]
    agent0_vl.settle([episode(*ends, *readings)], facts.task)
    assert [said.info["raw"] for said in readings] == [1.0, 0.0, 0.0, 1.0]
    assert [said.reward for said in readings] == [1.0, -1.0, -1.0, 1.0]


def test_readers_are_not_paid_where_nothing_is_borne_out() -> None:
    said = reading("s", False)
    agent0_vl.settle([episode(answer("s", "9", -1.0), said)], facts.task)
    assert said.reward is None


def test_it_brings_its_world() -> None:
    assert agent0_vl.method.task == "facts"
    assert agent0_vl.method.base == "tiny-facts"
    assert (
        set(agent0_vl.method.rewarded)
        == set(agent0_vl.method.kl)
        == {"solution", "repair", "reading"}
    )


def test_a_reading_that_cannot_be_read_confirms_nothing_and_denies_nothing() -> None:
    def mumbles(policy: str, role: str, prompt: str, seed: int) -> str:
        return "hm" if role == "reading" else said(policy, role, prompt, seed)

    said = verifier()
    ends = [end for episode in played({}, mumbles) for end in final(episode)]
    assert {end.info["sure"] for end in ends if end.info["answer"] is not None} == {0.0}
    readings = [reading("s", True), reading("s", False), reading("t", True)]
    unread = reading("t", False)
    unread.info["confirms"] = None
    answers = [answer("s", "9", 2 / 3), answer("t", "12", -2 / 3)]
    agent0_vl.settle([episode(*answers, *readings, unread)], facts.task)
    assert unread.reward is None
    assert [found.info["raw"] for found in readings] == [1.0, 0.0, 0.0]
