"""What a model believes: shares, expectations and the word that is drawn, in closed form; turns that
weigh; and that hosts give the learner's own log-probs.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comas.game.agent import Agent, EpisodeRecord, TeamMember, derive_seed
from comas.game.weighing import expected, said_of, shares_of
from comas.testing import Scripted, scripted_team
from comas.types import (
    Ask,
    Episode,
    Fit,
    HostFailure,
    Question,
    Sampling,
    Turn,
    TurnReward,
    UserMistake,
)
from tests.support.learning import METHOD, host_of, logprobs_of

QUESTION = Question(id="q", prompt="1 2 4 5 -> 7")
MESSAGES = ({"role": "user", "content": "1 2 4 5 -> 7"},)


def at_table(host: Any, *, temperature: float = 1.0, keep: bool = False) -> Agent:
    member = TeamMember("a0", host, "a0", sampling=Sampling(temperature, max_tokens=8))
    return Agent(member, EpisodeRecord(Episode("0/q/0", QUESTION), 3, keep))


def weighed(weights: Sequence[float]) -> Turn:
    return Turn("t", "a", "h/a", "scoring", "", "", True, 0, info={"weights": list(weights)})


@given(st.lists(st.floats(-700, 0), min_size=2, max_size=6), st.floats(-50, 0))
def test_shares_sum_to_one_and_a_shift_of_all_weights_changes_none(
    weights: list[float], shift: float
) -> None:
    shares = shares_of(weights)
    assert math.fsum(shares) == pytest.approx(1.0)
    moved = shares_of([weight + shift for weight in weights])
    assert moved == pytest.approx(shares, abs=1e-9)


def test_the_expected_mark() -> None:
    turn = weighed([math.log(p) for p in (0.1, 0.1, 0.2)])
    assert shares_of(turn.info["weights"]) == pytest.approx([0.25, 0.25, 0.5])
    assert expected(turn, [1, 2, 3]) == pytest.approx(2.25)


def test_weights_without_any_mass_are_a_failure_and_no_even_shares() -> None:
    with pytest.raises(HostFailure, match="finite"):
        shares_of([-math.inf, -math.inf])


def test_a_seed_draws_in_proportion_and_temperature_zero_the_likeliest() -> None:
    weights = [math.log(p) for p in (0.06, 0.02, 0.12)]  # shares .3 .1 .6
    seeds = [derive_seed("draw", n) for n in range(4000)]
    counts = Counter(said_of(weights, 1.0, seed)[0] for seed in seeds)
    for number, share in enumerate((0.3, 0.1, 0.6)):
        spread = math.sqrt(share * (1 - share) / len(seeds))
        assert abs(counts[number] / len(seeds) - share) < 4 * spread
    assert said_of(weights, 0.0, 5) == (2, pytest.approx(0.3))
    assert said_of([0.0, 0.0], 0.0, 5) == (0, 0.0)


def test_the_margin_is_the_distance_from_the_edge_of_an_interval() -> None:
    weights = [math.log(0.25), math.log(0.75)]
    number, margin = said_of(weights, 1.0, int(0.3 * 2**63))
    assert (number, margin) == (1, pytest.approx(0.05))
    assert said_of(weights, 1.0, 2**63 - 1)[0] == 1


def test_a_turn_of_its_own_with_weights_and_the_word_that_its_seed_draws() -> None:
    def beliefs(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
        assert (policy, role, prompt) == ("a0", "scoring", "is it right?")
        return [0.9, 0.05]

    agent = at_table(Scripted({}, beliefs=beliefs))

    async def weigh() -> tuple[Turn, Turn]:
        first = await agent.weigh("scoring", "is it right?", ["yes", "no"])
        return first, await agent.weigh("scoring", "is it right?", ["yes", "no"], about=first)

    first, second = asyncio.run(weigh())
    assert [first.id, second.id] == ["0/q/0/scoring0", "0/q/0/scoring0.scoring0"]
    assert first.info["choices"] == ["yes", "no"]
    assert first.info["weights"] == pytest.approx([math.log(0.9), math.log(0.05)])
    assert first.text in ("yes", "no")
    assert first.finished
    assert first.logprob == first.info["weights"][first.info["choices"].index(first.text)]
    assert agent.record.episode.turns == [first, second]
    assert second.about == first.id


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (["yes"], "two or more"),
        ("yes", "two or more"),
        ([], "two or more"),
        (["yes", " "], "empty"),
        (["yes", "no", "yes"], "twice"),
        ({"yes", "no"}, "list of two or more"),
        ({"yes": 1, "no": 0}, "list of two or more"),
        ((word for word in ("yes", "no")), "list of two or more"),
        (None, "list of two or more"),
        ([1, 2, 3], "choice 1 to be weighed is no text"),
        (["yes", "no\ud800"], "half a character"),
    ],
)
def test_choices_that_cannot_be_told_apart_are_one_clear_line(choices: Any, says: str) -> None:
    agent = at_table(Scripted({}))
    with pytest.raises(UserMistake, match=says) as raised:
        agent.weigh("scoring", "x", choices)
    assert "0/q/0/scoring0" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("believed", [[1.0, 0.0], [0.5], [0.5, -0.5]])
def test_scripted_beliefs_that_are_no_probabilities_are_one_clear_line(
    believed: list[float],
) -> None:
    agent = at_table(Scripted({}, beliefs=lambda *_: believed))
    with pytest.raises(UserMistake, match="probability above 0"):
        asyncio.run(agent.weigh("scoring", "x", ["yes", "no"]))


def test_a_host_that_cannot_weigh_is_named() -> None:
    class Answers:
        """Has what a host of somebody's own had before."""

        name = "old"

        async def fits(self, *_: Any) -> Any:
            raise AssertionError("asked whether there is room")

    with pytest.raises(UserMistake, match=r"host old has no `weigh`.*roles"):
        asyncio.run(at_table(Answers()).weigh("scoring", "x", ["yes", "no"]))


def test_a_prompt_without_room_is_the_failure_of_its_turn() -> None:
    members, _ = scripted_team({}, 1, room=5)
    agent = Agent(members[0], EpisodeRecord(Episode("0/q/0", QUESTION), 0, False))
    with pytest.raises(HostFailure, match="do not fit"):
        asyncio.run(agent.weigh("scoring", "longer than five", ["yes", "no"]))


def test_history_is_dropped_where_there_is_no_room() -> None:
    members, _ = scripted_team({}, 1, room=9)
    agent = Agent(members[0], EpisodeRecord(Episode("0/q/0", QUESTION), 0, False))
    asking = agent.weigh("scoring", " ".join, ["yes", "no"], history=["older one", "newer"])
    turn = asyncio.run(asking)
    assert (turn.prompt, turn.dropped) == ("newer", 1)


# --- hosts with weights


@pytest.fixture
def host(untaught: Path) -> Any:
    made = host_of(untaught, METHOD)
    yield made
    made.close()


CHOICES = ["<score> 3 </score>", "<score> 2 </score>", "<score> 1", "right"]
"""Of several tokens and of one."""


def test_weights_are_the_learners_own_log_probs(host: Any) -> None:
    async def weigh() -> Any:
        return await host.weigh(Ask("t", "a", MESSAGES, "scoring", True, Sampling(0.5), 7), CHOICES)

    reply = asyncio.run(weigh())
    assert reply.weights is not None
    row = host._buffer["a"]["t"]
    assert row.temperature == 1.0
    assert host.chat.tokenizer.decode(row.token_ids_T[row.mask_T]).split() == reply.text.split()
    (learnt_T,) = logprobs_of(host.learner, "a", [row])
    assert learnt_T[row.mask_T] == pytest.approx(row.sampled_logprobs_T[row.mask_T], abs=1e-4)
    assert reply.logprob == pytest.approx(float(learnt_T.sum()), abs=1e-4)
    for choice, weight in zip(CHOICES, reply.weights, strict=True):
        row.token_ids_T = np.concatenate(
            [row.token_ids_T[~row.mask_T], host.chat.encode_beginning(MESSAGES, choice)]
        )
        row.mask_T = np.arange(len(row.token_ids_T)) >= reply.prompt_tokens
        (own_T,) = logprobs_of(host.learner, "a", [row])
        assert weight == pytest.approx(float(own_T.sum()), abs=1e-4)


def test_weighing_beside_sampling_changes_neither(host: Any) -> None:
    async def weigh() -> Any:
        return await host.weigh(Ask("w", "a", MESSAGES, "scoring", seed=7), CHOICES)

    async def ask() -> Any:
        return await host.ask(Ask("a", "a", MESSAGES, "solution", False, Sampling(max_tokens=8), 9))

    async def both() -> Any:
        return await asyncio.gather(*[f() for _ in range(5) for f in (weigh, ask)])

    alone = asyncio.run(weigh()), asyncio.run(ask())
    for place, reply in enumerate(asyncio.run(both())):
        wanted = alone[place % 2]
        assert reply.text == wanted.text
        assert reply.logprob == pytest.approx(wanted.logprob, abs=1e-4)


def test_a_choice_that_begins_another_one_is_refused_by_its_tokens(host: Any) -> None:
    choices = ["<score> 3", "<score> 3 </score>"]
    with pytest.raises(UserMistake, match="beginning of"):
        asyncio.run(host.weigh(Ask("t", "a", MESSAGES, "scoring", seed=7), choices))


def test_a_prompt_that_just_fits_with_its_choice_is_weighed(host: Any) -> None:
    choices = ("right", "wrong")
    longest = max(len(host.chat.encode_beginning(MESSAGES, choice)) for choice in choices)
    room = Sampling(max_tokens=longest)
    ask = Ask("t", "a", MESSAGES, "scoring", False, room, 3)

    async def main() -> None:
        host.context = (await host.fits("a", MESSAGES, room)).needed
        assert (await host.fits("a", MESSAGES, room)).fits
        assert len((await host.weigh(ask, choices)).weights) == 2
        host.context -= 1
        with pytest.raises(HostFailure, match="longest choice need"):
            await host.weigh(ask, choices)

    asyncio.run(main())


def test_words_that_a_model_does_not_know_are_the_same_tokens(host: Any) -> None:
    choices = ["yes", "no"]
    with pytest.raises(UserMistake, match="same tokens"):
        asyncio.run(host.weigh(Ask("t", "a", MESSAGES, "scoring", seed=7), choices))


def test_what_is_not_kept_is_not_learnt_and_what_is_paid_moves_the_word_that_was_said(
    host: Any,
) -> None:
    async def weigh(turn: str, seed: int, keep: bool = True) -> Any:
        sampling = Sampling()
        return await host.weigh(Ask(turn, "a", MESSAGES, "scoring", keep, sampling, seed), CHOICES)

    async def run() -> Any:
        before = await weigh("no", 0, False)
        seeds = [n * 2**63 // 16 for n in range(16)]
        replies = [await weigh(f"t{n}", seed) for n, seed in enumerate(seeds)]
        rewarded = replies[0].text
        pays = [float(reply.text == rewarded) for reply in replies]
        payoffs = [TurnReward(f"t{n}", pay) for n, pay in enumerate(pays)]
        await host.learn({"a": payoffs}, 1.0)
        after = await weigh("later", 0, False)
        with pytest.raises(KeyError):
            await host.learn({"a": [TurnReward("no", 1.0)]}, 1.0)
        return before, after, CHOICES.index(rewarded)

    before, after, number = asyncio.run(run())
    assert shares_of(after.weights)[number] > shares_of(before.weights)[number]
    assert after.version == before.version + 1


def test_weighing_has_room_for_the_longest_choice() -> None:
    room: list[int] = []

    async def fits(policy: str, messages: Any, sampling: Any) -> Fit:
        room.append(sampling.max_tokens)
        return Fit(True)

    host = Scripted({}, beliefs=lambda *_: [0.5, 0.5])
    host.fits = fits  # type: ignore[method-assign]
    record = EpisodeRecord(Episode("0/q/0", Question(id="q", prompt="?")), 0, False)
    agent = Agent(TeamMember("a", host, "a"), record)
    asyncio.run(agent.weigh("scoring", "?", ["no", "perhaps"]))
    assert room == [len("perhaps")]
