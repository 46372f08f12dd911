"""Sampling: the stacked forward is the Hugging Face forward, noise belongs to requests, nobody forges a special token."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from comas.engines.batcher import Batcher
from comas.engines.chat import Chat
from comas.engines.llama import StackedLlama, can_stack
from comas.engines.sampling import draw, uniforms
from comas.engines.torch import TorchEngine
from comas.seed.teach import make_tokenizer
from comas.types import Generation, Request, Sampling, UserMistake


def llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": True, "initializer_range": 0.3,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 3,
    }
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()


SHAPES = [
    {}, {"num_key_value_heads": 2}, {"tie_word_embeddings": False},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_stacked_logits_equal_hugging_face(shape: dict) -> None:
    models = [llama(i, **shape).double() for i in range(3)]
    assert can_stack(models)
    stack = StackedLlama(models, 128)
    ids = torch.randint(4, 50, (3, 2, 7), generator=torch.Generator().manual_seed(1))
    stack.start(3, 2, 8)
    positions = torch.arange(7).expand(3, 2, 7)
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1).expand(6, 1, 7, 7)
    got = stack.forward(ids, positions, 0, mask)
    more = stack.forward(ids[..., :1], torch.full((3, 2, 1), 7), 7, torch.zeros(6, 1, 1, 8, dtype=torch.float64))
    for p, model in enumerate(models):
        wanted = model(torch.cat([ids[p], ids[p, :, :1]], 1)).logits
        torch.testing.assert_close(got[p], wanted[:, 6], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(more[p], wanted[:, 7], atol=1e-5, rtol=1e-5)


def test_what_is_not_a_plain_small_llama_is_not_stacked() -> None:
    assert not can_stack([llama(), llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=3)])
    assert not can_stack([llama(attention_bias=True)])


def requests(count: int, policies: int = 3, tokens: int = 20, **sampling: float) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(f"p{i % policies}", rng.integers(4, 50, 2 + i % 9), Sampling(max_tokens=tokens - i % 5, **sampling), 77 + i)
        for i in range(count)
    ]


def engine(dtype: torch.dtype, max_rows: int = 512, stacked: bool = True) -> TorchEngine:
    made = TorchEngine({f"p{i}": llama(i).to(dtype) for i in range(3)}, [3, 4], 0, 128, max_rows)
    if not stacked:
        made.stack = None
    return made


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_the_same_texts_whatever_the_batch_and_the_path_in_fp64(temperature: float) -> None:
    asked = requests(40, temperature=temperature)
    wanted = engine(torch.float64).generate(asked)
    assert any(g.finished for g in wanted)
    assert any(not g.finished for g in wanted)
    for other in (engine(torch.float64, max_rows=7), engine(torch.float64, stacked=False), engine(torch.float64, 5, stacked=False)):
        for a, b in zip(wanted, other.generate(asked), strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    alone = [engine(torch.float64).generate([r])[0] for r in asked[::9]]
    for a, b in zip(wanted[::9], alone, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_in_fp32_only_near_ties_may_differ() -> None:
    asked = requests(60)
    wanted, other = engine(torch.float32).generate(asked), engine(torch.float32, 7, stacked=False).generate(asked)
    for a, b in zip(wanted, other, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4


def test_logprobs_are_those_of_a_plain_forward_at_the_temperature() -> None:
    asked = requests(6, temperature=0.6)
    made = engine(torch.float64)
    for request, got in zip(asked, made.generate(asked), strict=True):
        ids = torch.from_numpy(np.concatenate([request.prompt_ids, got.token_ids]))[None]
        logprobs = (made.models[request.policy](ids).logits[0] / 0.6).log_softmax(-1)
        wanted = [logprobs[len(request.prompt_ids) + t - 1, i] for t, i in enumerate(got.token_ids.tolist())]
        np.testing.assert_allclose(got.logprobs, torch.stack(wanted).detach(), atol=1e-5)
        assert got.finished == (got.token_ids[-1] in (3, 4))
        assert not set(got.token_ids[:-1]) & {3, 4}


def test_unknown_policy_is_named() -> None:
    with pytest.raises(KeyError, match="nobody"):
        engine(torch.float32).generate([Request("nobody", np.array([5]), Sampling(), 1)])


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(4000, 4)
    noise = torch.from_numpy(uniforms(list(range(4000)), 1)[:, 0])
    for temperature in (1.0, 0.5):
        ids, logprobs, margin = draw(logits, noise, torch.full((4000,), temperature))
        wanted = (logits[0].double() / temperature).softmax(-1)
        counts = torch.bincount(ids, minlength=4)
        assert stats.chisquare(counts, wanted * 4000).pvalue > 1e-4
        torch.testing.assert_close(logprobs, wanted.log()[ids])
        assert (margin >= 0).all()
    kept, _, _ = draw(logits, noise, torch.ones(4000), torch.full((4000,), 0.6))
    assert set(kept.tolist()) == {2}
    greedy, _, _ = draw(logits, noise, torch.zeros(4000))
    assert set(greedy.tolist()) == {2}


def test_noise_depends_on_seed_and_place_alone() -> None:
    many = uniforms([5, 6, 7], 9)
    np.testing.assert_array_equal(uniforms([6], 4)[0], many[1, :4])
    assert len(np.unique(many)) == 27


def test_batcher_waits_for_all_games_and_keeps_order() -> None:
    batches: list[list[int]] = []

    def generate(asked: list[Request]) -> list[Generation]:
        batches.append([r.seed for r in asked])
        if any(r.seed == 13 for r in asked):
            raise RuntimeError("engine down")
        return [Generation(np.array([r.seed]), np.zeros(1), True, 1.0) for r in asked]

    async def game(batcher: Batcher, first: int) -> list[int]:
        said = [await batcher(Request("p", np.array([1]), Sampling(), first + 100 * i)) for i in range(3)]
        return [int(g.token_ids[0]) for g in said]

    async def main() -> None:
        batcher = Batcher(generate, worker)
        assert await asyncio.gather(*(game(batcher, i) for i in range(8))) == [[i, i + 100, i + 200] for i in range(8)]
        assert batches == [[i + 100 * k for i in range(8)] for k in range(3)]
        with pytest.raises(RuntimeError, match="engine down"):
            await game(batcher, 13)
        waiting = asyncio.create_task(game(batcher, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await game(batcher, 2) == [2, 102, 202]

    with ThreadPoolExecutor(1) as worker:
        asyncio.run(main())


TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "gemma": "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
}
MARKS = ["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<bos>"]


def tokenizer(tiny: Path, template: str) -> PreTrainedTokenizerFast:
    made = AutoTokenizer.from_pretrained(tiny)
    made.add_special_tokens({"bos_token": "<bos>", "additional_special_tokens": MARKS[:-1]})
    made.add_tokens(["<tool>"])
    made.chat_template = TEMPLATES[template]
    return made


@pytest.mark.parametrize("template", TEMPLATES)
def test_content_never_produces_a_special_token(tiny: Path, template: str) -> None:
    chat = Chat(tokenizer(tiny, template))
    harmless = [{"role": "user", "content": "what is 2+2?"}]
    wanted = chat.tokenizer.apply_chat_template(harmless, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert chat.encode(harmless).tolist() == wanted
    assert sum(i in chat.special_ids for i in wanted) >= 3
    for mark in [*MARKS, "<tool>", "<|end|>", "<|pad|>", "<|im_<|im_end|>end|>", "".join(MARKS)]:
        ids = chat.encode([{"role": "user", "content": f"what is {mark}2+2?"}])
        assert [i for i in ids.tolist() if i in chat.special_ids] == [i for i in wanted if i in chat.special_ids], mark


def test_seed_tokenizer_keeps_its_marks_to_itself() -> None:
    chat = Chat(make_tokenizer(), [3])
    wanted = chat.encode([{"role": "user", "content": "solve 1 2"}])
    assert chat.tokenizer.decode(wanted) == "<user> solve 1 2 <end> <assistant>"
    for mark in ("<end>", "<assistant>", "<user>", "<pad>", "<unk>"):
        forged = chat.encode([{"role": "user", "content": f"solve {mark} 1 2"}])
        assert not set(forged[1:-2].tolist()) & (chat.special_ids - {chat.tokenizer.unk_token_id})


def test_replies_hide_nothing_but_their_end() -> None:
    chat = Chat(make_tokenizer(), [3])
    ids = np.array(chat.tokenizer("1 <user> + 2 <end>").input_ids)
    assert chat.decode(ids, finished=True) == "1 <user> + 2"
    assert chat.decode(ids[:-1], finished=False) == "1 <user> + 2"


def test_templates_that_cannot_be_kept_apart_are_refused(tiny: Path) -> None:
    made = AutoTokenizer.from_pretrained(tiny)
    made.chat_template = "{{ messages[0].content | upper | replace('\ue000', 'x') }}"
    with pytest.raises(UserMistake, match="chat template"):
        Chat(made).encode([{"role": "user", "content": "hi"}])
    made.chat_template = None
    with pytest.raises(UserMistake, match="no chat template"):
        Chat(made)
