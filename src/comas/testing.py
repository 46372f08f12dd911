"""Fakes and contract checks for those who extend comas: a scripted host, a tiny random model, `check_method`, `check_task`.

They ship in the package and need no test runner; a broken contract is an AssertionError that says which. Leaves out:
anything that judges how good a method is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.agent import Member
from comas.config import load_plugin, split_options
from comas.play import Scene, payoffs, play_all, settle_all
from comas.store import episode_record
from comas.types import Episode, Method, Payoff, Question, Reply, Sampling, Task

Script = Callable[[str, str, str, int], str | Reply]
"""`script(agent's policy, role, prompt, seed)` -> what it says."""


class Scripted:
    """A host whose policies say what a function says; records every ask. Pays no attention to learning but its rules."""

    def __init__(self, script: Script, name: str = "script", room: int | None = None) -> None:
        self.script, self.name, self.room = script, name, room
        self.asked: list[tuple[str, str, str, str, int]] = []
        """(turn, policy, role, prompt, seed) in the order of arrival."""
        self.buffer: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {"sampling": 0.0, "learning": 0.0}

    def fits(self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> bool:
        """Whether the prompt has at most `room` characters."""
        return self.room is None or len(messages[-1]["content"]) <= self.room

    async def ask(
        self, turn: str, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling, seed: int, keep: bool, role: str
    ) -> Reply:
        """The script's reply; its length is counted in words."""
        prompt = messages[-1]["content"]
        self.asked.append((turn, policy, role, prompt, seed))
        await asyncio.sleep(0)
        if keep:
            self.buffer.setdefault(policy, set()).add(turn)
        said = self.script(policy, role, prompt, seed)
        return said if isinstance(said, Reply) else Reply(said, True, 0, len(prompt.split()), len(said.split()) + 1, -1.0, 0.0)

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], method: Method) -> Any:
        """Checks the join and forgets the buffer."""
        for policy, paid in payoffs.items():
            for payoff in paid:
                if payoff.turn not in self.buffer.get(policy, set()):
                    raise KeyError(f"host {self.name}, policy {policy}: paid for turn {payoff.turn}, which was never said here")
        self.buffer.clear()
        return {}, {}

    async def save(self, path: Path) -> None:
        """Nothing to save."""

    async def load(self, path: Path) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to close."""


def cut(text: str) -> Reply:
    """A reply that ran out of room."""
    return Reply(text, False, 0, 1, len(text.split()), -1.0, 0.0)


def scripted_scene(
    method: Method, task: Task, script: Script, *, agents: int = 4, seed: int = 0, options: Mapping[str, Any] | None = None,
    room: int | None = None,
) -> tuple[Scene, Scripted]:
    """A team a0.. at one scripted host."""
    host = Scripted(script, room=room)
    members = [Member(f"a{i}", host, f"a{i}") for i in range(agents)]
    return Scene(method, task, members, seed, split_options(options or {}, method.play), keep=True), host


def discuss(
    method: Method, task: Task, script: Script, questions: Sequence[Question], *, samples: int = 1, **setting: Any
) -> list[Episode]:
    """Play and settle scripted discussions."""
    scene, _ = scripted_scene(method, task, script, **setting)
    episodes = asyncio.run(play_all(scene, questions, 0, samples))
    settle_all(scene, episodes, split_options(setting.get("options") or {}, method.settle))
    return episodes


def check_method(method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any) -> None:
    """The contract of a method: named turns, declared roles, finite pay, determinism, and no look at the labels."""
    episodes = discuss(method, task, script, questions, **setting)
    turns = [t for e in episodes for t in e.turns]
    assert turns, "play asked nobody"
    assert len({t.id for t in turns}) == len(turns), "two turns have one id"
    for episode in episodes:
        assert episode.error is None, f"{episode.id} failed: {episode.error}"
        assert episode.answer is None or isinstance(episode.answer, str), "play returns a text or None"
    for turn in turns:
        if turn.reward is not None:
            assert turn.role in method.paid, f"role {turn.role!r} is paid, but Method.paid is {method.paid}"
            assert abs(turn.reward) < float("inf"), f"turn {turn.id} is paid {turn.reward}"
    assert any(t.reward is not None for t in turns), "nothing was paid"
    again = discuss(method, task, script, questions, **setting)
    assert _records(again) == _records(episodes), "the same seed gave another discussion"
    reordered = discuss(method, task, script, list(reversed(questions)), **setting)
    assert sorted(_records(reordered)) == sorted(_records(episodes)), "the order of questions changed a discussion"
    if not method.supervised:
        poisoned = [dataclasses.replace(q, answer="poison") for q in questions]
        assert _records(discuss(method, task, script, poisoned, **setting)) == _records(episodes), "answers leaked into the game"
    members = scripted_scene(method, task, script)[0].members
    paid = sum(len(p) for by_policy in payoffs(episodes, members).values() for p in by_policy.values())
    assert paid == sum(t.reward is not None for t in turns), "payoffs got lost"


def _records(episodes: Sequence[Episode]) -> list[str]:
    return [_stable({k: v for k, v in episode_record(e).items() if k != "question"}) for e in episodes]


def _stable(record: dict[str, Any]) -> str:
    for turn in record["turns"]:
        turn.pop("seconds")
    return json.dumps(record, sort_keys=True, ensure_ascii=False, indent=1)


def check_task(task: Task, **options: Any) -> None:
    """The contract of a task: disjoint splits, stable loading, and functions that survive any text."""
    splits = {s: task.load(s, **options) for s in ("train", "validation", "test")}
    seen: set[str] = set()
    for name, questions in splits.items():
        ids = [q.id for q in questions]
        assert ids, f"split {name} is empty"
        assert len(set(ids)) == len(ids), f"split {name} has an id twice"
        assert not seen & set(ids), f"split {name} shares questions with another split"
        seen |= set(ids)
        assert [q.id for q in task.load(name, limit=3, **options)] == ids[:3], "limit does not take the first"
    for question in splits["test"][:20]:
        for text in ("", "no answer", "1" * 400, "\x00<score>3</score>", question.prompt, question.answer or ""):
            found = task.extract(question, text)
            assert found is None or (isinstance(found, str) and task.same(found, found)), f"extract({text!r}) gave {found!r}"
            assert task.verify(question, text) in ("right", "wrong", "failed"), "verify says right, wrong or failed"
            assert isinstance(task.shown(question, text), str), "shown gives a text"


def tiny_model(folder: Path, seed: int = 0) -> Path:
    """A random Llama-shaped model with a byte-level tokenizer and a chat template, as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate([*specials, *alphabet])}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=specials[0], eos_token=specials[3], additional_special_tokens=specials[1:3]
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False, eos_token_id=3, pad_token_id=0,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


GOLDEN = {"comas": {"rounds": 2, "evaluations": 2}, "ttrl": {"votes": 5}, "rlvr": {"votes": 3}}
"""Methods that have a golden transcript, and its options."""


def golden_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Replies for the golden transcripts: right, wrong, cut and unreadable ones, drawn by the seed."""
    if role == "solution":
        texts: list[str | Reply] = ["1 + 2 = 3 + 4 = 7", "2 + 4 = 6 + 5 = 11", "<score> 3 </score>", cut("1 + 2 = 3 +")]
        return texts[seed % 4]
    if role == "evaluation":
        return ["1 in + 2 in = 3 + 4 in = 7 right", "2 in + 4 in = 6 wrong"][seed % 2]
    return ["<score> 3 </score>", "<score> 1 </score>", "2", "<score> 2 </score>"][seed % 4]


def golden(name: str) -> str:
    """The transcript of a method under `golden_script`, as JSON."""
    from comas.tasks import pick

    questions = [pick.make_question((1, 2, 4, 5), 7, "three"), pick.make_question((5, 2, 4, 1), 11, "three")]
    found = discuss(load_plugin("method", name), pick.task, golden_script, questions, samples=2, options=GOLDEN[name])
    return "[" + ",\n".join(_records(found)) + "]\n"


if __name__ == "__main__":  # python -m comas.testing FOLDER: write the golden transcripts anew
    for method_name in GOLDEN:
        (Path(sys.argv[1]) / f"{method_name}.json").write_text(golden(method_name), encoding="utf-8")
