"""Sampling: the stacked forward is the Hugging Face forward, noise belongs to requests, nobody
forges a special token.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoTokenizer

from comas.engines.batcher import Batcher
from comas.engines.chat import Chat
from comas.engines.sampling import draw, uniforms
from comas.engines.stacked import StackedLlama, can_stack
from comas.seams import Generation, Request
from comas.types import Sampling, UserMistake
from tests.support.engines import engine_of, publish
from tests.support.models import llama, requests
from tools.tiny.teach import make_tokenizer

SHAPES = [
    {},
    {"num_key_value_heads": 2},
    {"tie_word_embeddings": False},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1},
    {"num_hidden_layers": 1, "head_dim": 16, "num_key_value_heads": 2, "rms_norm_eps": 0.5},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_stacked_logits_equal_hugging_face(shape: dict) -> None:
    models = [llama(i, **shape).double() for i in range(3)]
    assert can_stack(models)
    stack = StackedLlama(models[0].config, [m.state_dict() for m in models], 128)
    ids = torch.randint(4, 50, (3, 2, 7), generator=torch.Generator().manual_seed(1))
    stack.start(3, 2, 8)
    positions = torch.arange(7).expand(3, 2, 7)
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1).expand(6, 1, 7, 7)
    got = stack.forward(ids, positions, 0, mask)
    more = stack.forward(
        ids[..., :1], torch.full((3, 2, 1), 7), 7, torch.zeros(6, 1, 1, 8, dtype=torch.float64)
    )
    for p, model in enumerate(models):
        wanted = model(torch.cat([ids[p], ids[p, :, :1]], 1)).logits
        torch.testing.assert_close(got[p], wanted[:, 6], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(more[p], wanted[:, 7], atol=1e-5, rtol=1e-5)


def test_what_is_not_a_plain_small_llama_is_not_stacked() -> None:
    assert not can_stack(
        [llama(), llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=3)]
    )
    assert not can_stack([llama(attention_bias=True)])
    assert not can_stack([llama().bfloat16()])
    scaled = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    assert not can_stack([llama(rope_parameters=scaled)])


def engine(dtype: torch.dtype, max_rows: int = 512, stacked: bool = True, **others: Any) -> Any:
    """An engine of three policies; `others` are models in the place of theirs."""
    models = {f"p{i}": llama(i).to(dtype) for i in range(3)} | others
    name = "stacked" if stacked else "hf"
    return engine_of(models, [3, 4], 0, 128, max_rows, engine=name)


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_same_texts_whatever_the_batch_and_the_path_in_fp64(temperature: float) -> None:
    asked = requests(40, temperature=temperature)
    wanted = engine(torch.float64).generate(asked)
    assert any(g.finished for g in wanted)
    assert any(not g.finished for g in wanted)
    for other in (
        engine(torch.float64, max_rows=7),
        engine(torch.float64, stacked=False),
        engine(torch.float64, 5, stacked=False),
    ):
        for a, b in zip(wanted, other.generate(asked), strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    alone = [engine(torch.float64).generate([r])[0] for r in asked[::9]]
    for a, b in zip(wanted[::9], alone, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 5, 1), (9, 1, 4)])
def test_policies_need_not_be_asked_equally_often(counts: tuple[int, ...]) -> None:
    asked = [
        r
        for p, n in enumerate(counts)
        for r in [r for r in requests(30) if r.policy == f"p{p}"][:n]
    ]
    stacked = engine(torch.float64).generate(asked[::-1])
    plain = engine(torch.float64, stacked=False).generate(asked)
    for a, b in zip(stacked[::-1], plain, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_rows_of_one_batch_keep_their_own_sampling_and_limits() -> None:
    plain = requests(18)
    cold = requests(18, temperature=0.0)
    narrow = requests(18, temperature=1.3, top_p=0.5)
    mixed = [(plain, cold, narrow)[i % 3][i] for i in range(18)]
    alone = [engine(torch.float64).generate(part) for part in (plain, cold, narrow)]
    for i, got in enumerate(engine(torch.float64).generate(mixed)):
        np.testing.assert_array_equal(got.token_ids, alone[i % 3][i].token_ids)
        assert len(got.token_ids) == mixed[i].sampling.max_tokens or got.finished
        assert len(got.token_ids) <= mixed[i].sampling.max_tokens


def test_refreshed_weights_are_the_ones_sampled_from() -> None:
    made = engine(torch.float64)
    other = engine(torch.float64, stacked=False, p1=llama(9).double())
    publish(made, {"p1": llama(9).double()})
    stale = engine(torch.float64).generate(requests(12))
    for i, (a, b) in enumerate(
        zip(made.generate(requests(12)), other.generate(requests(12)), strict=True)
    ):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        assert np.array_equal(a.logprobs, stale[i].logprobs) == (i % 3 != 1)


def test_in_fp32_only_near_ties_may_differ() -> None:
    asked = requests(60)
    wanted = engine(torch.float32).generate(asked)
    other = engine(torch.float32, 7, stacked=False).generate(asked)
    for a, b in zip(wanted, other, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4


def test_logprobs_are_those_of_a_plain_forward_at_the_temperature() -> None:
    asked = requests(6, temperature=0.6)
    made = engine(torch.float64)
    for request, got in zip(asked, made.generate(asked), strict=True):
        ids = torch.from_numpy(np.concatenate([request.prompt_ids, got.token_ids]))[None]
        logprobs = (made.models[request.policy].model(ids).logits[0] / 0.6).log_softmax(-1)
        wanted = [
            logprobs[len(request.prompt_ids) + t - 1, i]
            for t, i in enumerate(got.token_ids.tolist())
        ]
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
    # the two best hold 0.88
    kept, logprobs, _ = draw(logits, noise, torch.ones(4000), torch.full((4000,), 0.85))
    pair = logits[0, 1:3].double().softmax(-1)
    assert stats.chisquare(torch.bincount(kept, minlength=4)[1:3], pair * 4000).pvalue > 1e-4
    # of the whole softmax still
    torch.testing.assert_close(logprobs, logits[0].double().log_softmax(-1)[kept])
    greedy, _, _ = draw(logits, noise, torch.zeros(4000))
    assert set(greedy.tolist()) == {2}


def test_margin_is_the_distance_from_another_draw() -> None:
    torch.manual_seed(0)
    logits = torch.randn(500, 12)
    noise = torch.rand(500, dtype=torch.float64)
    ids, _, margin = draw(logits, noise, torch.ones(500))
    for sign in (-1, 1):
        assert torch.equal(draw(logits, (noise + sign * 0.99 * margin), torch.ones(500))[0], ids)
    up, down = (
        draw(logits, (noise + s * 1.01 * margin).clamp(0, 1), torch.ones(500))[0] for s in (1, -1)
    )
    inside = (noise - margin > 1e-9) & (noise + margin < 1 - 1e-9)
    assert ((up != ids) | (down != ids))[inside].all()


@pytest.mark.parametrize("stacked", [True, False])
def test_an_engine_ends_when_nobody_waits_any_more(stacked: bool) -> None:
    answers = iter([True, True, True])
    got = engine(torch.float32, stacked=stacked).generate(requests(9), lambda: next(answers, False))
    assert len(got) == 9
    assert max(len(g.token_ids) for g in got) <= 4
    assert not all(g.finished for g in got)


def test_noise_depends_on_seed_and_place_alone() -> None:
    many = uniforms([5, 6, 7], 9)
    np.testing.assert_array_equal(uniforms([6], 4)[0], many[1, :4])
    for seed in (0, 6, 2**63 - 1):
        np.testing.assert_array_equal(
            uniforms([3, seed], 5)[1], np.random.Generator(np.random.Philox(key=seed)).random(5)
        )
    assert len(np.unique(many)) == 27


def test_batcher_waits_for_all_games_and_keeps_order() -> None:
    batches: list[list[int]] = []

    def generate(asked: list[Request], wanted: object) -> list[Generation]:
        batches.append([r.seed for r in asked])
        if any(r.seed == 13 for r in asked):
            raise RuntimeError("engine down")
        return [Generation(np.array([r.seed]), np.zeros(1), True, 1.0) for r in asked]

    async def game(batcher: Batcher, first: int) -> list[int]:
        said = [
            await batcher(Request("p", np.array([1]), Sampling(), first + 100 * i))
            for i in range(3)
        ]
        return [int(g.token_ids[0]) for g in said]

    async def main() -> None:
        batcher = Batcher(generate, worker)
        assert await asyncio.gather(*(game(batcher, i) for i in range(8))) == [
            [i, i + 100, i + 200] for i in range(8)
        ]
        assert batches == [[i + 100 * k for i in range(8)] for k in range(3)]
        failed = await asyncio.gather(
            *(game(batcher, i) for i in (12, 13, 14)), return_exceptions=True
        )
        assert [str(f) for f in failed] == ["engine down"] * 3
        waiting = asyncio.create_task(game(batcher, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await game(batcher, 2) == [2, 102, 202]
        assert batches[-1] == [202]  # and the cancelled game was not asked for
        assert [1] not in [b[:1] for b in batches[-3:]]

    with ThreadPoolExecutor(1) as worker:
        asyncio.run(main())


def test_replies_hide_nothing_but_their_end() -> None:
    chat = Chat(make_tokenizer(), [3])
    ids = np.array(chat.tokenizer("1 <user> + 2 <end>").input_ids)
    assert chat.decode(ids, finished=True) == ("1 <user> + 2", "")
    assert chat.decode(ids[:-1], finished=False) == ("1 <user> + 2", "")


def test_templates_that_cannot_be_kept_apart_are_refused(tiny: Path) -> None:
    made = AutoTokenizer.from_pretrained(tiny)
    made.chat_template = "{{ messages[0].content | upper | replace('\ue000', 'x') }}"
    with pytest.raises(UserMistake, match="chat template"):
        Chat(made).encode([{"role": "user", "content": "hi"}])
    made.chat_template = None
    with pytest.raises(UserMistake, match="no chat template"):
        Chat(made)


@pytest.mark.parametrize("vocabulary", [3, 512, 513, 1500])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_drawing_by_blocks_is_drawing_from_the_whole(vocabulary: int, temperature: float) -> None:
    rng = np.random.default_rng(vocabulary)
    logits_BV = torch.from_numpy(rng.normal(0, 4, (64, vocabulary)))
    logits_BV[:, 1::3] = -torch.inf
    noise_B = torch.from_numpy(rng.random(64))
    ids_B, logprobs_B, margins_B = draw(logits_BV, noise_B, torch.full((64,), temperature))
    probs_BV = (logits_BV / torch.tensor(temperature).double()).softmax(-1)
    edges_BV = probs_BV.cumsum(-1)
    wanted_B = torch.searchsorted(edges_BV, noise_B[:, None], right=True)[:, 0]
    assert torch.equal(ids_B, wanted_B)
    chosen = (torch.arange(64), ids_B)
    torch.testing.assert_close(logprobs_B, probs_BV[chosen].log())
    above_B = edges_BV[chosen] - noise_B
    below_B = noise_B - (edges_BV - probs_BV)[chosen]
    torch.testing.assert_close(margins_B, torch.minimum(above_B, below_B), atol=1e-12, rtol=0)


def test_the_last_point_of_a_block_is_a_token_that_can_be_said() -> None:
    """Tokens without mass end each block and the vocabulary; sums differ by rounding."""
    logits_BV = torch.full((1, 1100), -torch.inf, dtype=torch.float64)
    logits_BV[:, :300] = torch.linspace(-1, 1, 300)
    logits_BV[:, 600:700] = torch.linspace(0, 2, 100)
    edge = float(logits_BV.softmax(-1)[0, :300].sum())
    for noise in (0.0, np.nextafter(edge, 0.0), edge, np.nextafter(edge, 1.0), 1 - 2**-53):
        ids_B, logprobs_B, margin_B = draw(
            logits_BV, torch.tensor([noise], dtype=torch.float64), torch.ones(1)
        )
        assert bool(logits_BV[0, ids_B[0]].isfinite())
        assert bool(logprobs_B.isfinite().all())
        assert bool((margin_B >= 0).all())
