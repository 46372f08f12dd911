"""Demonstrations: what is told is learnt as a supervised step written out by hand, is recorded like
any turn, and never passes for something that was sampled.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import comas
from comas.engines.chat import Chat
from comas.game.agent import Agent, EpisodeRecord, TeamMember
from comas.game.play import GameContext, play_all
from comas.hosts.local import LocalHost
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.methods import rlvr, sft
from comas.seams import AdapterSpec, EngineFacts
from comas.storage.run import Run
from comas.sync import run_sync
from comas.tasks import demonstrations, pick
from comas.testing import Recorded, Scripted, check_method, replay, scripted_team
from comas.types import Ask, Episode, Question, TurnReward, UserMistake
from tests.support.adapters import fill
from tests.support.command import run
from tests.support.learning import host_of, say
from tests.support.runs import SMALL
from tools.tiny.teach import make_model, make_tokenizer

TOLD = [
    ("solution", "solve 1 2 4 5 -> 7", "1 + 2 = 3 + 4 = 7"),
    ("evaluation", "check 1 2 4 5 -> 7 # 1 2 4", "1 in + 2 in = 3 + 4 in = 7 right"),
    ("scoring", "score 1 2 4 5 -> 7 # 1 2 4", "<score> 3 </score>"),
]
RECIPE = Recipe(1e-2, grad_norm=0.5, weight_decay=0.1)
ADAPTER = {"p": AdapterSpec(4, 8.0)}


def write(file: Path, rows: Sequence[object]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file.write_text("\n".join(lines) + "\n")
    return file


def told_rows(rows: Sequence[tuple[str, str, str]] = TOLD) -> list[dict[str, str]]:
    return [{"role": role, "prompt": prompt, "reply": reply} for role, prompt, reply in rows]


class NoEngine:
    """Samples nothing, and may be shown any weights."""

    facts = EngineFacts(deterministic=True, margin_known=True)

    def publish(self, *_: Any) -> None: ...

    def close(self) -> None: ...


def host_with(learner: Any) -> LocalHost:
    return LocalHost("home", ["p"], Chat(make_tokenizer(), [3]), NoEngine(), learner, 512)  # type: ignore[arg-type]


def learn_by_telling(learner: Any) -> dict[str, float]:
    """One step of the method at a host, as the loop takes it."""
    host = host_with(learner)
    questions = [
        Question(id=f"q{place}", prompt=prompt, answer=reply, meta={"role": role})
        for place, (role, prompt, reply) in enumerate(TOLD)
    ]
    context = GameContext(
        sft.method, demonstrations.task, [TeamMember("a", host, "p")], 0, keep=True
    )
    episodes = run_sync(play_all(context, questions, 0))
    paid = [TurnReward(turn.id, 1.0) for episode in episodes for turn in episode.turns]
    stats = run_sync(host.learn({"p": paid}, 1.0)).policies["p"]
    host.close()
    return stats


def cross_entropy(forward: Any) -> torch.Tensor:
    """Mean over reply tokens, in nats; `forward` makes logits (1, T, V) of ids (1, T)."""
    tokenizer = make_tokenizer()
    terms = []
    for _, prompt, reply in TOLD:
        asked = tokenizer(f"<user> {prompt} <end> <assistant>").input_ids
        ids = torch.tensor([*asked, *tokenizer(f"{reply} <end>").input_ids])
        logits_TV = forward(ids[None]).logits[0, len(asked) - 1 : -1]
        terms.append(
            torch.nn.functional.cross_entropy(logits_TV, ids[len(asked) :], reduction="none")
        )
    return torch.cat(terms).mean()


def step_by_hand(weights: Sequence[torch.Tensor], loss: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(weights, lr=RECIPE.lr, **RECIPE.adamw())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, RECIPE.grad_norm)
    optimizer.step()


def farthest(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    pairs = zip(mine, theirs, strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def test_a_step_on_whole_models_is_a_supervised_step_by_hand() -> None:
    told = make_model(5).double()
    by_hand = make_model(5).double()
    stats = learn_by_telling(FullLearner({"p": told}, RECIPE, sft.method, 0))
    loss = cross_entropy(by_hand)
    step_by_hand(list(by_hand.parameters()), loss)
    assert stats["loss"] == pytest.approx(loss.item(), abs=1e-9)
    assert "gap_mean" not in stats, "no engine has sampled these words"
    assert farthest(list(told.parameters()), list(by_hand.parameters())) < 1e-6
    assert farthest(list(told.parameters()), list(make_model(5).double().parameters())) > 1e-3


def test_a_step_on_adapters_is_a_supervised_step_by_hand() -> None:
    made = Population(make_model(5).double(), ADAPTER)
    fill(made, "p", 0.3, 0)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in made.tensors("p").items()}
    stats = learn_by_telling(AdapterLearner(made, RECIPE, sft.method, 0, "base"))
    base = make_model(5).double().requires_grad_(False)
    scale = ADAPTER["p"].alpha / ADAPTER["p"].rank
    adapted = {
        f"{name}.weight": base.get_submodule(name).weight
        + scale * leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
        for name in made.modules
    }
    call = partial(torch.func.functional_call, base, adapted)
    loss = cross_entropy(lambda ids: call((ids,)))
    step_by_hand(list(leaves.values()), loss)
    assert stats["loss"] == pytest.approx(loss.item(), abs=1e-9)
    learnt = made.tensors("p")
    assert farthest([learnt[name] for name in leaves], list(leaves.values())) < 1e-6


def test_told_words_beside_sampled_ones_change_no_gap(untaught: Path) -> None:
    """The gap is that of the sampled rows alone, and nobody's log-probs stand in for others'."""
    host = host_of(untaught)

    async def play() -> dict[str, float]:
        await say(host, "t1")
        await say(host, "t2", "b")
        messages = [{"role": "user", "content": TOLD[0][1]}]
        await host.tell(Ask("t3", "a", messages, "solution", True), TOLD[0][2])
        both = [TurnReward("t1", 1.0, "g"), TurnReward("t3", 0.0, "g")]
        learned = await host.learn({"a": both, "b": [TurnReward("t2", 1.0)]}, 1.0)
        return learned.policies["a"]

    stats = run_sync(play())
    host.close()
    assert stats["rows"] == 2
    assert stats["gap_mean"] < 1e-4


def test_told_turns_are_named_recorded_and_paid_like_others() -> None:
    (member,), host = scripted_team({"solution": "hi"}, agents=1)
    episode = Episode("0/q/0", Question(id="q", prompt="?"))
    agent = Agent(member, EpisodeRecord(episode, 0, keep=True))

    async def play() -> None:
        asked = await agent.ask("solution", "p")
        told = await agent.tell("solution", "p", "the words")
        await agent.tell("revision", "p", "others", about=told)
        assert "told" not in asked.info

    run_sync(play())
    assert [turn.id for turn in episode.turns] == [
        "0/q/0/solution0",
        "0/q/0/solution1",
        "0/q/0/solution1.revision0",
    ]
    told = episode.turns[1]
    assert (told.text, told.info, told.finished) == ("the words", {"told": True}, True)
    assert (told.prompt, told.logprob, told.version) == ("p", 0.0, 0)
    assert host.buffer["a0"] == {turn.id for turn in episode.turns}
    assert len(host.asked) == 1


def test_a_dialogue_is_told_whole_behind_the_persona() -> None:
    heard: list[Any] = []

    class Listening(Scripted):
        async def tell(self, ask: Ask, text: str) -> Any:
            heard.append([dict(message) for message in ask.messages])
            return await super().tell(ask, text)

    member = TeamMember("a", Listening({}), "p", system="Be brief.")
    episode = Episode("0/q/0", Question(id="q", prompt="?"))
    dialogue = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    agent = Agent(member, EpisodeRecord(episode, 0, keep=False))
    run_sync(agent.tell("solution", dialogue, "four"))
    assert heard == [[{"role": "system", "content": "Be brief."}, *dialogue]]
    assert episode.turns[0].prompt == "three"


def test_hosts_without_tell_and_frozen_ones_are_told_so_in_a_line() -> None:
    class Mute:
        name = "far"
        learns = False

    member: Any = TeamMember("judge", Mute(), "p")  # type: ignore[arg-type]
    agent = Agent(
        member, EpisodeRecord(Episode("0/q/0", Question(id="q", prompt="?")), 0, keep=True)
    )
    with pytest.raises(UserMistake, match=r"solution0: agent judge .*host far"):
        run_sync(agent.tell("solution", "p", "words"))
    host = host_with(None)
    with pytest.raises(UserMistake, match=r"host home .*learner"):
        run_sync(
            host.tell(Ask("t", "p", [{"role": "user", "content": "1"}], "solution", True), "2")
        )
    reply = run_sync(host.tell(Ask("t", "p", [{"role": "user", "content": "1"}], "x"), "2"))
    assert (reply.text, reply.tokens) == ("2", 2)
    host.close()


def test_a_demonstration_without_room_is_named() -> None:
    host = host_with(None)
    host.context = 8
    member = TeamMember("a", host, "p")
    context = GameContext(sft.method, demonstrations.task, [member], 0)
    long = Question(id="train-line-7", prompt="1", answer="2 " * 20, meta={"role": "solution"})
    with pytest.raises(UserMistake) as mistake:
        run_sync(play_all(context, [long], 0))
    said = str(mistake.value)
    assert "0/train-line-7/0/solution0: this demonstration needs 25 tokens" in said
    assert "home/p has 8: shorten it" in said
    host.close()


def test_contract_and_an_agent_that_does_not_take_the_role(tmp_path: Path) -> None:
    file = write(tmp_path / "demos.jsonl", told_rows())
    questions = demonstrations.load("train", str(file))
    check_method(sft.method, demonstrations.task, questions, lambda *_: "?")
    members, _ = scripted_team({}, agents=2)
    seated = [replace(members[0], roles=("scoring",)), replace(members[1], roles=("evaluation",))]
    context = GameContext(sft.method, demonstrations.task, seated, 0)
    with pytest.raises(UserMistake, match=r"train-line-1 .*role 'solution'"):
        run_sync(play_all(context, [question for question in questions if "-1" in question.id], 0))


def test_a_policy_that_several_agents_share_is_told_once() -> None:
    members, _ = scripted_team({}, agents=3)
    shared = [members[0], replace(members[1], policy="a0"), members[2]]
    context = GameContext(sft.method, demonstrations.task, shared, 0)
    question = Question(id="q", prompt="p", answer="r", meta={"role": "solution"})
    (episode,) = run_sync(play_all(context, [question], 0))
    assert [turn.agent for turn in episode.turns] == ["a0", "a2"]


def test_of_agents_that_share_a_policy_one_that_learns_is_told() -> None:
    members, _ = scripted_team({}, agents=2)
    shared = [replace(members[0], frozen=True), replace(members[1], policy="a0")]
    context = GameContext(sft.method, demonstrations.task, shared, 0)
    question = Question(id="q", prompt="p", answer="r", meta={"role": "solution"})
    (episode,) = run_sync(play_all(context, [question], 0))
    assert [turn.agent for turn in episode.turns] == ["a1"]


MISTAKES = [
    ({"role": "solution", "prompt": "p", "reply": "r", "weight": 2}, "unknown key 'weight'"),
    ({"role": "solution", "prompt": "p", "reply": " \n"}, "`reply` is empty"),
    ({"role": "", "prompt": "p", "reply": "r"}, "`role` is empty"),
    ({"role": "solution", "prompt": "p"}, "expected an object with the texts `role`, `reply`"),
    ({"role": "solution", "reply": "r"}, "either `prompt` or `messages`"),
    ({"role": "s", "prompt": "p", "messages": [], "reply": "r"}, "either `prompt` or `messages`"),
    ({"role": "solution", "prompt": 3, "reply": "r"}, "is no message"),
    ({"role": "solution", "prompt": " ", "reply": "r"}, "a message is empty"),
    ({"role": "solution", "messages": [], "reply": "r"}, "wanted is a list of messages"),
    ({"role": "solution", "messages": ["p"], "reply": "r"}, "is no message"),
    (
        {"role": "s", "messages": [{"role": "tool", "content": "c"}], "reply": "r"},
        "a message of 'tool'",
    ),
    (
        {"role": "s", "messages": [{"role": "assistant", "content": "c"}], "reply": "r"},
        "the last message is the assistant's",
    ),
    ("{oh", "is not JSON"),
    ("[1]", "expected an object"),
]


@pytest.mark.parametrize(("row", "said"), MISTAKES)
def test_a_line_that_is_no_demonstration_is_one_line_with_its_number(
    row: object, said: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "demos.jsonl", [*told_rows(), row])
    with pytest.raises(UserMistake) as mistake:
        demonstrations.load("train", str(file))
    assert said in str(mistake.value)
    assert f"{file}:4" in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_all_lines_of_a_file_are_learnt_and_a_folder_has_splits(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", [*told_rows(), *told_rows()])
    questions = demonstrations.load("train", str(file))
    assert sorted(question.id for question in questions) == [
        f"train-line-{number}" for number in range(1, 7)
    ]
    with pytest.raises(UserMistake, match="no test split"):
        demonstrations.load("test", str(file))
    write(tmp_path / "test.jsonl", told_rows()[:1])
    (question,) = demonstrations.load("test", str(tmp_path))
    assert question.answer is not None
    assert demonstrations.verify(question, f" {question.answer}\n") == "right"
    assert demonstrations.verify(question, "something else") == "wrong"


def test_a_run_on_demonstrations_is_a_base_for_another_method(
    untaught: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "demos.jsonl", told_rows())
    keys = {"threads": 1, "checkpoint_every": 2, "lr": 1e-3}
    taught = comas.train(
        method="sft",
        task="demonstrations",
        data=str(file),
        steps=4,
        hosts__home__base=str(untaught),
        out=str(tmp_path / "sft"),
        **keys,
    )
    metrics = list(Run(taught.run).metrics())
    losses = [step["policies"]["home/a0"]["loss"] for step in metrics]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert not any(step["notes"] for step in metrics), "equal pay is no fault of demonstrations"
    assert metrics[0]["counts"]["paid"] == 4 * len(TOLD)
    turns = [turn for episode in replay(taught.run, 0) for turn in episode.turns]
    assert {turn.reward for turn in turns} == {1.0}
    after = comas.train(
        steps=1, hosts__home__base=str(taught.run), out=str(tmp_path / "comas"), **SMALL
    )
    assert after.steps == 1


def test_a_replay_refuses_other_words() -> None:
    told = Question(id="q", prompt="p", answer="r", meta={"role": "solution"})
    members, _ = scripted_team({}, agents=1)
    (episode,) = run_sync(
        play_all(GameContext(sft.method, demonstrations.task, members, 0), [told], 0)
    )
    again = replace(members[0], host=Recorded([copy.deepcopy(episode)], "script"))
    context = GameContext(sft.method, demonstrations.task, [again], 0)
    (repeated,) = run_sync(play_all(context, [told], 0))
    assert repeated.turns[0].text == "r"
    with pytest.raises(UserMistake, match="other words were given"):
        run_sync(play_all(context, [replace(told, answer="other")], 0))


def test_sft_on_another_task_is_one_line(
    untaught: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COMAS_DATA", raising=False)
    words = ["train", "method=sft", f"hosts.home.base={untaught}", "lr=1e-3", "steps=1"]
    assert run([*words, f"out={tmp_path / 'r'}"], monkeypatch) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: question pick-")
    assert "set task=demonstrations data=FILE" in error
    assert run([*words, "task=demonstrations"], monkeypatch) == 2
    assert "task demonstrations reads a file" in capsys.readouterr().err


def test_sampling_stays_what_it_was() -> None:
    """`ask` keeps its names and seeds whatever was told before it in other roles."""
    context_of = lambda play: GameContext(replace(rlvr.method, play=play), pick.task, members, 0)  # noqa: E731
    members, host = scripted_team({"solution": "hi"}, agents=1)

    async def plain(question: Any, agents: Any, rng: Any, task: Any) -> None:
        await agents[0].ask("solution", question.prompt)

    async def telling(question: Any, agents: Any, rng: Any, task: Any) -> None:
        await agents[0].tell("evaluation", question.prompt, "right")
        await agents[0].ask("solution", question.prompt)

    question = Question(id="q", prompt="p")
    run_sync(play_all(context_of(plain), [question], 0))
    run_sync(play_all(context_of(telling), [question], 0))
    assert host.asked[0] == host.asked[1]
