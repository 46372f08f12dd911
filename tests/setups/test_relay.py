"""Relays: who speaks when, when it ends, and what is no pair."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comas.game.play import GameContext, play_all
from comas.setups import relay
from comas.tasks.benchmarks import TASKS
from comas.testing import cut, scripted_team
from comas.types import Episode, Method, Question, UserMistake

QUESTIONS = [Question(id=f"q{at}", prompt=f"What is 6 * {at}?", kind="math") for at in range(12)]


def answering(policy: str, role: str, prompt: str, seed: int) -> Any:
    return "it is wrong" if role == "proxy" else rf"so \boxed{{{policy}}}"


def played(script: Any = answering, agents: int = 2, **options: Any) -> list[Episode]:
    members, _ = scripted_team(script, agents)
    context = GameContext(
        Method(relay.setup.play, *[lambda *_: None] * 3), TASKS["math500"], members, 0, options
    )
    return asyncio.run(play_all(context, QUESTIONS, "eval"))


def agents_of(episode: Episode) -> tuple[str, str]:
    first = episode.turns[0].agent
    return first, "a1" if first == "a0" else "a0"


def test_together_they_speak_alternately() -> None:
    for episode in played(turns=5):
        first, other = agents_of(episode)
        roles = {turn.role: turn.agent for turn in episode.turns}
        assert roles == {"solution": first, "proxy": other, "revision": first}
        assert len(episode.turns) == 5


@pytest.mark.parametrize("lead", [1, 2, 3, 4])
def test_one_leads_and_the_other_goes_on(lead: int) -> None:
    for episode in played(turns=5, lead=lead):
        first, other = agents_of(episode)
        speakers = {turn.id.rpartition("/")[2]: turn.agent for turn in episode.turns}
        # an answer, its check, the answer again, a check of that, and a last answer
        names = ["solution0", "solution0.proxy0", "solution0.revision0"]
        names += [f"{names[2]}.proxy0", f"{names[2]}.revision0"]
        assert [speakers[name] for name in names] == [first] * lead + [other] * (5 - lead)
        assert episode.answer == rf"so \boxed{{{other}}}"


def test_a_lead_of_all_turns_is_one_agent_with_itself() -> None:
    for episode in played(turns=4, lead=4):
        assert len({turn.agent for turn in episode.turns}) == 1


def test_who_begins_is_drawn_unless_it_is_named() -> None:
    assert {episode.turns[0].agent for episode in played()} == {"a0", "a1"}
    assert {episode.turns[0].agent for episode in played(leader="a1")} == {"a1"}


def test_the_end_can_be_declared_and_a_cut_answer_is_none() -> None:
    def content(policy: str, role: str, prompt: str, seed: int) -> Any:
        return "fine. TERMINATE" if role == "proxy" else "so"

    assert {len(episode.turns) for episode in played(content)} == {2}
    short = played(lambda policy, role, prompt, seed: cut("so"), turns=1)
    assert {episode.answer for episode in short} == {None}


def test_what_is_no_pair_is_said() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        played(agents=3)
    mistake = caught.value.exceptions[0]
    assert isinstance(mistake, UserMistake)
    assert "of two agents, and this team has 3 (a0, a1, a2)" in str(mistake)
    with pytest.raises(ExceptionGroup) as caught:
        played(leader="b")
    assert "leader='b' is none of a0, a1" in str(caught.value.exceptions[0])
    with pytest.raises(ExceptionGroup) as caught:
        played(lead=9)
    said = "lead=9 turns of one agent are more than turns=6"
    assert said in str(caught.value.exceptions[0])
