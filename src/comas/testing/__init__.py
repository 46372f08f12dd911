"""Fakes and contract checks for those who extend comas: a scripted host, recordings, a tiny random
model, and `check_method`, `check_task`, `check_host`.

They ship in the package and need no test runner; a broken contract is an AssertionError that says
which. Leaves out: anything that judges how good a method is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.options import split_options
from comas.config.plugins import load_plugin
from comas.config.resolve import resolve
from comas.config.schema import read
from comas.game.agent import Member
from comas.game.play import Scene, payoffs, play_all, settle_all
from comas.game.prompts import check_holes
from comas.storage.records import episode_of, episode_record
from comas.storage.run import Run
from comas.team.build import members_of, run_sync
from comas.testing.engines import check_engine as check_engine
from comas.testing.hosts import check_host as check_host
from comas.testing.tasks import check_task as check_task
from comas.testing.tasks import check_wording as check_wording
from comas.types import (
    Account,
    Episode,
    Fit,
    Learned,
    Method,
    Payoff,
    Question,
    Reply,
    Sampling,
    Task,
    UserMistake,
)

Said = str | Reply
Script = Callable[[str, str, str, int], Said]
"""`script(agent's policy, role, prompt, seed)` -> what it says.

`check_method` needs one without a memory.
"""
Table = Mapping[str, Said | Sequence[Said]]
"""Role, or `policy/role`, -> what is said; of a list one reply per ask, the last one from then on.
"""


def script_of(table: Table) -> Script:
    """A script that reads from a table; a role that is not in it is an error."""
    asked: dict[str, int] = {}

    def script(policy: str, role: str, prompt: str, seed: int) -> Said:
        key = f"{policy}/{role}" if f"{policy}/{role}" in table else role
        said = table[key]
        if isinstance(said, str | Reply):
            return said
        asked[key] = asked.get(key, -1) + 1
        return said[min(asked[key], len(said) - 1)]

    return script


class Scripted:
    """A host whose policies say what a function says; records every ask.

    Pays no attention to learning but its rules.
    """

    learns = True
    meter = None

    def __init__(
        self, script: Script | Table, name: str = "script", room: int | None = None
    ) -> None:
        self.script = script if callable(script) else script_of(script)
        self.name = name
        self.room = room
        self.asked: list[tuple[str, str, str, str, int]] = []
        """(turn, policy, role, prompt, seed) in the order of arrival."""
        self.buffer: dict[str, set[str]] = {}
        self.versions: dict[str, int] = {}

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Whether the prompt has at most `room` characters."""
        return Fit(self.room is None or len(messages[-1]["content"]) <= self.room)

    async def ask(
        self,
        turn: str,
        policy: str,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        seed: int,
        keep: bool,
        role: str,
    ) -> Reply:
        """The script's reply; its length is counted in words."""
        prompt = messages[-1]["content"]
        self.asked.append((turn, policy, role, prompt, seed))
        await asyncio.sleep(0)
        if keep:
            self.buffer.setdefault(policy, set()).add(turn)
        said = self.script(policy, role, prompt, seed)
        if isinstance(said, Reply):
            return said
        return Reply(
            said,
            True,
            self.versions.get(policy, 0),
            len(prompt.split()),
            len(said.split()) + 1,
            -1.0,
            0.0,
        )

    async def learn(self, payoffs: Mapping[str, Sequence[Payoff]], method: Method) -> Learned:
        """Checks the join, counts a version and forgets the buffer."""
        for policy, paid in payoffs.items():
            for payoff in paid:
                if payoff.turn not in self.buffer.get(policy, set()):
                    raise KeyError(
                        f"host {self.name}, policy {policy}: paid for turn {payoff.turn}, which was"
                        " never said here"
                    )
        self.buffer.clear()
        learning = {policy: paid for policy, paid in payoffs.items() if paid}
        for policy in learning:
            self.versions[policy] = self.versions.get(policy, 0) + 1
        told = {payoff.turn: (0.0, 0.0) for paid in learning.values() for payoff in paid}
        stats = {
            policy: {"rows": float(len(paid)), "updates": 1.0} for policy, paid in learning.items()
        }
        return Learned(stats, told)

    async def save(self, path: Path) -> None:
        """The versions; there is nothing else."""
        (path / "scripted.json").write_text(json.dumps(self.versions))

    async def load(self, path: Path) -> None:
        """The inverse of `save`."""
        self.versions = json.loads((path / "scripted.json").read_text())

    def clock(self) -> Mapping[str, float]:
        """It takes no time."""
        return {"sampling": 0.0, "learning": 0.0}

    def facts(self) -> Mapping[str, Any]:
        """It runs on no device."""
        return {}

    def account(self) -> Account:
        """Nothing is paid for."""
        return {}

    def close(self) -> None:
        """Nothing to close."""


def cut(text: str) -> Reply:
    """A reply that ran out of room."""
    return Reply(text, False, 0, 1, len(text.split()), -1.0, 0.0)


def scripted_team(
    script: Script | Table, agents: int = 4, room: int | None = None
) -> tuple[list[Member], Scripted]:
    """Members a0.. at one scripted host."""
    host = Scripted(script, room=room)
    return [Member(f"a{i}", host, f"a{i}") for i in range(agents)], host


def scripted_scene(
    method: Method,
    task: Task,
    script: Script | Table,
    *,
    agents: int = 4,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    room: int | None = None,
) -> tuple[Scene, Scripted]:
    """A scripted team at its own game."""
    members, host = scripted_team(script, agents, room)
    return (
        Scene(method, task, members, seed, split_options(options or {}, method.play), keep=True),
        host,
    )


def discuss(
    method: Method,
    task: Task,
    script: Script | Table,
    questions: Sequence[Question],
    *,
    samples: int = 1,
    **setting: Any,
) -> list[Episode]:
    """Play and settle scripted discussions."""
    scene, _ = scripted_scene(method, task, script, **setting)
    episodes = asyncio.run(play_all(scene, questions, 0, samples))
    settle_all(scene, episodes, split_options(setting.get("options") or {}, method.settle))
    return episodes


def check_method(
    method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any
) -> None:
    """The contract of a method: named turns, declared roles, finite pay, determinism, and no look
    at the labels.
    """
    try:
        _check_method(method, task, questions, script, **setting)
    except UserMistake as mistake:
        raise AssertionError(str(mistake)) from mistake


def _check_method(
    method: Method, task: Task, questions: Sequence[Question], script: Script, **setting: Any
) -> None:
    _check_wording_of(method)
    episodes = discuss(method, task, script, questions, **setting)
    _check_turns(method, episodes)
    assert any(t.reward is not None for e in episodes for t in e.turns), "nothing was paid"
    assert _records(discuss(method, task, script, questions, **setting)) == _records(episodes), (
        "the same seed: another discussion"
    )
    reordered = discuss(method, task, script, list(reversed(questions)), **setting)
    assert sorted(_records(reordered)) == sorted(_records(episodes)), (
        "the order of questions changed a discussion"
    )
    scene, _ = scripted_scene(
        method, task, script, **{k: v for k, v in setting.items() if k != "samples"}
    )
    before = _records(episodes)
    settle_all(scene, episodes, split_options(setting.get("options") or {}, method.settle))
    assert _records(episodes) == before, "settling a recorded discussion again gave other rewards"
    if not method.supervised:
        poisoned = [dataclasses.replace(q, answer="poison", meta={}) for q in questions]
        assert _records(discuss(method, task, script, poisoned, **setting)) == before, (
            "answers leaked into the game"
        )
    paid = sum(
        len(p)
        for by_policy in payoffs(episodes, scene.members).values()
        for p in by_policy.values()
    )
    assert paid == sum(t.reward is not None for e in episodes for t in e.turns), "payoffs got lost"
    # what models do say: it may cost, never raise
    for said in ("", "\x00<score>3", "?" * 999, cut(""), cut("1 + 2 =")):
        _check_turns(
            method, discuss(method, task, lambda *_, said=said: said, questions, **setting)
        )


def _check_wording_of(method: Method) -> None:
    """Templates of the file that a method's game stands in, called WORDING: no hole that is a fact
    misspelt.
    """
    module = inspect.getmodule(inspect.unwrap(getattr(method.play, "func", method.play)))
    if module is None or not hasattr(module, "WORDING"):
        return
    try:
        code = inspect.getsource(module)
    except (OSError, TypeError):  # typed in by hand
        code = ""
    check_holes(module.WORDING, module.__name__, code)


def _check_turns(method: Method, episodes: Sequence[Episode]) -> None:
    turns = [t for e in episodes for t in e.turns]
    assert turns, "play asked nobody"
    assert len({t.id for t in turns}) == len(turns), "two turns have one id"
    for episode in episodes:
        assert episode.error is None, f"{episode.id} failed: {episode.error}"
        assert episode.answer is None or isinstance(episode.answer, str), (
            "play returns a text or None"
        )
        said = {t.id for t in episode.turns}
        assert all(t.about is None or t.about in said for t in episode.turns), (
            "a turn is about one that was not said"
        )
    for turn in turns:
        if turn.reward is not None:
            assert turn.role in method.paid, (
                f"role {turn.role!r} is paid, but Method.paid is {method.paid}"
            )
            assert abs(turn.reward) < float("inf"), f"turn {turn.id} is paid {turn.reward}"


def _records(episodes: Sequence[Episode]) -> list[str]:
    return [
        _stable({k: v for k, v in episode_record(e).items() if k != "question"}) for e in episodes
    ]


def _stable(record: dict[str, Any]) -> str:
    for turn in record["turns"]:
        turn.pop("seconds")
    return json.dumps(record, sort_keys=True, ensure_ascii=False, indent=1)


class Recorded(Scripted):
    """A host that says what was said in recorded episodes; anything else that it is asked is an
    error.
    """

    def __init__(self, episodes: Sequence[Episode], name: str = "home") -> None:
        super().__init__({}, name)
        self.turns = {t.id: t for e in episodes for t in e.turns if t.policy.startswith(f"{name}/")}
        self.prompts = {t.prompt for t in self.turns.values()}

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """There was room for what was asked."""
        return Fit(messages[-1]["content"] in self.prompts)

    async def ask(
        self,
        turn: str,
        policy: str,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        seed: int,
        keep: bool,
        role: str,
    ) -> Reply:
        """The recorded reply to this very prompt."""
        said = self.turns.get(turn)
        if said is None or said.prompt != messages[-1]["content"]:
            raise KeyError(
                f"turn {turn}: no reply to this prompt was recorded; the game, its wording or the"
                " team has changed"
            )
        if keep:
            self.buffer.setdefault(policy, set()).add(turn)
        return Reply(
            said.text,
            said.finished,
            said.version,
            said.prompt_tokens,
            said.tokens,
            said.logprob,
            said.seconds,
            said.margin,
            said.thoughts,
        )


def replay(
    run: str | Path, step: int, *, method: str | None = None, **options: Any
) -> list[Episode]:
    """Play a step of a recorded run again without a model, and settle it.

    The game is the run's own, held to what was recorded; `method` and `options` change the
    settlement: what would the same discussions have been paid under another rule? Episodes that
    machines failed are left out.
    """
    record = Run.open(run)
    config, game, task, _ = resolve(read(record.path / "config.toml"))
    recorded = [e for e in map(episode_of, record.episodes(step)) if e.error is None]
    hosts = {name: Recorded(recorded, name) for name in config.hosts}
    scene = Scene(
        game,
        task,
        members_of(config, hosts),
        config.seed,
        split_options(config.options, game.play),
        keep=True,
    )
    questions = list({e.question.id: e.question for e in recorded}.values())
    played = {e.id: e for e in run_sync(play_all(scene, questions, step, config.samples or 1))}
    played = {e.id: played[e.id] for e in recorded}
    rule = load_plugin("method", method) if method else game
    settings = split_options({**({} if method else config.options), **options}, rule.settle)
    settle_all(dataclasses.replace(scene, method=rule), list(played.values()), settings)
    return list(played.values())


FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "phi3")
"""Shapes that `tiny_model` makes: any `model_type` of transformers whose config has the usual
names.
"""


def tiny_model(
    folder: Path, seed: int = 0, family: str = "llama", tokenizer: Any = None, **changes: Any
) -> Path:
    """A random model of a few thousand parameters, as a Hugging Face folder; `changes` are keys of
    its config.

    Its tokenizer is byte-level with a chat template, unless it is given.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = _tiny_tokenizer() if tokenizer is None else tokenizer
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            **changes,
        },
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate([*specials, *alphabet])}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=specials[0],
        eos_token=specials[3],
        additional_special_tokens=specials[1:3],
    )
    made.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return made


GOLDEN = {"comas": {"rounds": 2, "evaluations": 2}, "ttrl": {"votes": 5}, "rlvr": {"votes": 3}}
"""Methods that have a golden transcript, and its options."""


def golden_script(policy: str, role: str, prompt: str, seed: int) -> str | Reply:
    """Replies for the golden transcripts: right, wrong, cut and unreadable ones,
    drawn by the seed.
    """
    if role == "solution":
        texts: list[str | Reply] = [
            "1 + 2 = 3 + 4 = 7",
            "2 + 4 = 6 + 5 = 11",
            "<score> 3 </score>",
            cut("1 + 2 = 3 +"),
        ]
        return texts[seed % 4]
    if role == "evaluation":
        return ["1 in + 2 in = 3 + 4 in = 7 right", "2 in + 4 in = 6 wrong"][seed % 2]
    return ["<score> 3 </score>", "<score> 1 </score>", "2", "<score> 2 </score>"][seed % 4]


def golden(name: str) -> str:
    """The transcript of a method under `golden_script`, as JSON."""
    from comas.tasks import pick

    questions = [
        pick.make_question((1, 2, 4, 5), 7, "three"),
        pick.make_question((5, 2, 4, 1), 11, "three"),
    ]
    found = discuss(
        load_plugin("method", name),
        pick.task,
        golden_script,
        questions,
        samples=2,
        options=GOLDEN[name],
    )
    return "[" + ",\n".join(_records(found)) + "]\n"
