"""Properties for any tokenizer, any text, any play: what is trained is what was sampled, nobody can
speak for another, every payoff finds its row, and what a critic earns its solution loses.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from comas.engines.chat import Chat
from comas.hosts.local import LocalHost
from comas.methods import comas
from comas.seams import EngineFacts, Generation, Request
from comas.tasks import pick
from comas.testing import discuss
from comas.types import Ask, Fit, TurnReward, Row, Sampling

SPECIALS = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
fast = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)
spelt = st.sampled_from([*SPECIALS, "<|", "|>", "end", "<|en", "d|>"])
texts = st.lists(st.one_of(st.text(max_size=20), spelt), max_size=6).map("".join)


def chat_of(seed: int) -> Chat:
    """A byte-level tokenizer with random merges and random ids."""
    rng = random.Random(seed)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for _ in range(60):
        pair = (rng.choice(pieces), rng.choice(pieces))
        if "".join(pair) not in pieces:
            merges.append(pair)
            pieces.append("".join(pair))
    names = [*SPECIALS, *pieces]
    rng.shuffle(names)
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate(names)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=rng.random() < 0.5
    )
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[3],
        additional_special_tokens=SPECIALS[1:3],
    )
    made.chat_template = TEMPLATE
    return Chat(made, [made.eos_token_id])


class Babbling:
    """An engine that draws ids at random; a learner that only remembers the rows."""

    def __init__(self, chat: Chat, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = len(chat.tokenizer)
        self.said: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.rows: list[Row] = []

    facts = EngineFacts(deterministic=False, margin_known=False)

    async def sample(self, request: Request) -> Generation:
        ids = self.rng.integers(0, self.size, self.rng.integers(1, 9))
        logprobs = -self.rng.random(len(ids)).astype(np.float32)
        self.said[request.seed] = (request.prompt_ids, ids, logprobs)
        return Generation(ids, logprobs, True, 1.0)

    def publish(self, policy: str, weights: Any, version: int) -> None: ...

    def close(self) -> None: ...

    method = comas.method

    def step(
        self, rows: Mapping[str, Sequence[Row]], lr_scale: float
    ) -> dict[str, dict[str, float]]:
        self.rows = [row for part in rows.values() for row in part]
        return {policy: {"updates": 1.0} for policy in rows}

    def weights(self) -> dict[str, Any]:
        return {"p": None}


def ask(host: LocalHost, prompts: Sequence[str], keep: bool = True) -> list[str]:
    async def all_of_them() -> list[str]:
        contents = [[{"role": "user", "content": text}] for text in prompts]
        asked = [
            host.ask(Ask(str(i), "p", content, "solution", keep, seed=i))
            for i, content in enumerate(contents)
        ]
        return [reply.text for reply in await asyncio.gather(*asked)]

    return asyncio.run(all_of_them())


def table(seed: int) -> tuple[LocalHost, Babbling]:
    chat = chat_of(seed)
    both = Babbling(chat, seed)
    return LocalHost("h", ["p"], chat, both, both, 512), both  # type: ignore[arg-type]


def test_others_are_asked_while_a_long_prompt_becomes_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, _ = table(0)
    messages = [{"role": "user", "content": "ab " * 10_000}]
    needed = len(host.chat.encode(messages)) + 8
    goes_on = threading.Event()
    encode = host.chat.encode

    def held_up(messages: Sequence[Mapping[str, str]]) -> np.ndarray:
        assert goes_on.wait(5), "the loop stood still"
        return encode(messages)

    monkeypatch.setattr(host.chat, "encode", held_up)

    async def both() -> Fit:
        fitting = asyncio.ensure_future(host.fits("p", messages, Sampling(1.0, 1.0, 8)))
        await asyncio.sleep(0)
        goes_on.set()
        return await fitting

    assert asyncio.run(both()) == Fit(False, needed, 512)


@fast
@given(seed=seeds, prompts=st.lists(texts, min_size=1, max_size=5), data=st.data())
def test_tokens_trained_are_the_tokens_sampled(
    seed: int, prompts: list[str], data: st.DataObject
) -> None:
    host, both = table(seed)
    ask(host, prompts)
    paid = data.draw(st.lists(st.sampled_from(range(len(prompts))), unique=True))
    asyncio.run(host.learn({"p": [TurnReward(str(i), float(i)) for i in paid]}, 1.0))
    host.close()
    assert [row.turn for row in both.rows] == [str(i) for i in paid]
    for row in both.rows:
        prompt, ids, logprobs = both.said[int(row.turn)]
        np.testing.assert_array_equal(row.token_ids_T[row.mask_T], ids)
        np.testing.assert_array_equal(row.token_ids_T[~row.mask_T], prompt)
        assert row.sampled_logprobs_T is not None
        np.testing.assert_array_equal(row.sampled_logprobs_T[row.mask_T], logprobs)
        assert row.reward == float(row.turn)


@fast
@given(seed=seeds, text=texts)
def test_no_text_makes_a_special_token_in_a_prompt(seed: int, text: str) -> None:
    chat = chat_of(seed)
    special = set(chat.tokenizer.convert_tokens_to_ids(SPECIALS))

    def count(content: str) -> int:
        return sum(i in special for i in chat.encode([{"role": "user", "content": content}]))

    assert count(text) == count("harmless") == 3


@fast
@given(seed=seeds, prompts=st.lists(texts, min_size=1, max_size=4), data=st.data())
def test_what_a_model_says_goes_into_another_prompt_as_text(
    seed: int, prompts: list[str], data: st.DataObject
) -> None:
    host, _ = table(seed)
    said = ask(host, prompts, keep=False)
    other = chat_of(data.draw(seeds))
    special = set(other.tokenizer.convert_tokens_to_ids(SPECIALS))
    for text in said:
        assert (
            sum(
                i in special
                for i in other.encode([{"role": "user", "content": f"A colleague wrote: {text}"}])
            )
            == 3
        )
    host.close()


@fast
@given(
    seed=seeds, known=st.integers(1, 5), paid=st.lists(st.integers(0, 7), min_size=1, max_size=6)
)
def test_payoffs_and_rows_join_totally(seed: int, known: int, paid: list[int]) -> None:
    host, both = table(seed)
    ask(host, ["x"] * known)
    learn = host.learn({"p": [TurnReward(str(i), 1.0) for i in paid]}, 1.0)
    if len(set(paid)) < len(paid) or max(paid) >= known:  # twice, or never said
        with pytest.raises(KeyError, match="paid"):
            asyncio.run(learn)
    else:
        asyncio.run(learn)
        assert sorted(row.turn for row in both.rows) == sorted(map(str, paid))
        with pytest.raises(KeyError, match="never said here"):  # the buffer is empty
            asyncio.run(host.learn({"p": [TurnReward(str(paid[0]), 1.0)]}, 1.0))
    host.close()


SAID = [
    "<score>1</score>",
    "<score>2</score>",
    "fine. <score> 3 </score>",
    "<score>4</score>",
    "3",
    "",
    "<score>3</score> or so",
]


@fast
@given(seed=seeds, rounds=st.integers(1, 3), evaluations=st.integers(1, 3))
def test_what_a_critic_earns_its_solution_loses(seed: int, rounds: int, evaluations: int) -> None:
    def script(policy: str, role: str, prompt: str, turn_seed: int) -> str:
        rng = random.Random(f"{seed} {turn_seed}")
        return {
            "solution": "1 + 2 = 3 + 4 = 7",
            "evaluation": "checked",
            "scoring": rng.choice(SAID),
        }[role]

    question = pick.make_question((1, 2, 4, 5), 7, "three")
    (episode,) = discuss(
        comas.method,
        pick.task,
        script,
        [question],
        options={"rounds": rounds, "evaluations": evaluations},
    )
    for solution in (t for t in episode.turns if t.role == "solution"):
        critics = [t for t in episode.turns if t.about == solution.id]
        earned = [t.reward for t in critics if t.reward is not None]
        readable = [
            t
            for t in episode.turns
            if t.role == "scoring" and t.reward == 0.0 and t.about in {c.id for c in critics}
        ]
        assert len(earned) == len(readable)
        assert solution.reward == (pytest.approx(1 - sum(earned) / len(earned)) if earned else None)
