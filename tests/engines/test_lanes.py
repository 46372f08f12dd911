"""Rows that enter a running batch and prompts that share what is computed change no text, whatever
the family.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Llama4TextConfig, LlamaConfig, MambaConfig

from comas.engines.hf import can_pack, packs
from comas.engines.hf import lanes as lanes_module
from comas.engines.hf.lanes import distinct, holds, passes, split
from comas.learners.lora.population import Population
from comas.models.loading import load_models
from comas.seams import AdapterSpec, Request
from comas.types import Sampling
from tests.support.engines import engine_of, publish
from tests.support.families import FAMILIES, family_model
from tests.support.models import llama, requests
from tests.support.sampling import asked, same

QUICK = "llama3"
"""The family that is tried every time; the others take minutes, and differ in layers alone."""
# a thinking template is another prompt, and the same model
every_family = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family == QUICK else pytest.mark.slow)
        for family in sorted(FAMILIES.keys() - {"qwen3-thinking"})
    ],
)


@every_family
def test_any_family_says_the_same_whatever_the_rows_and_as_its_plain_forward(
    family: str, tmp_path: Path
) -> None:
    model = load_models({"p0": str(family_model(tmp_path, family))})[0]["p0"].double()
    requests = asked()
    plan = split([(0, r.prompt_ids) for r in requests])
    assert plan is not None
    assert len(plan.heads) < len(plan.of)

    def say(rows: int, continuous: bool = True) -> list:
        made = engine_of({"p0": model}, [15], 0, 512, rows, continuous=continuous)
        return made.generate(requests)

    wanted = say(512)
    for request, got in zip(requests, wanted, strict=True):
        ids = torch.from_numpy(np.concatenate([request.prompt_ids, got.token_ids]))[None]
        logprobs = (
            model(ids).logits[0, len(request.prompt_ids) - 1 : -1].detach().double().log_softmax(-1)
        )
        np.testing.assert_allclose(
            got.logprobs, logprobs[range(len(got.token_ids)), got.token_ids.tolist()], atol=1e-4
        )
    for rows in (1, 3, 8):
        same(wanted, say(rows))
    assert holds(model.config)
    for rows in (3, 512):  # as for a family with another kind of cache
        same(wanted, say(rows, continuous=False))


@pytest.mark.parametrize("columns", [pytest.param(7, marks=pytest.mark.slow), 64])
def test_long_prompts_in_columns_say_the_same(columns: int, tmp_path: Path) -> None:
    models, _, _ = load_models({"p0": str(family_model(tmp_path, "gemma3"))})
    model = {"p0": models["p0"].double()}
    wanted = engine_of(model, [15], 0, 512, 5).generate(asked())
    same(wanted, engine_of(model, [15], 0, 512, 5, prefill=columns).generate(asked()))


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        pytest.param(1, torch.float64, marks=pytest.mark.slow),
        (4, torch.float64),
        pytest.param(9, torch.float64, marks=pytest.mark.slow),
        pytest.param(4, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_a_population_shares_no_prefix_between_policies(
    rows: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = load_models({"base": str(family_model(tmp_path, "qwen2.5"))})[0]["base"].to(dtype)
    population = Population(model, {f"p{i}": AdapterSpec(4, 8.0) for i in range(3)})
    torch.manual_seed(1)
    population.flat_PN.normal_(std=0.1)
    requests = asked(3, 18)
    engine = engine_of(population, [15], 0, 512, rows)
    assert can_pack(model) == (dtype == torch.float32)
    wanted = [engine.generate([r])[0] for r in requests]
    got = engine.generate(requests)
    assert engine.generate([]) == []
    if dtype == torch.float64:
        same(wanted, got)
    for a, b in zip(wanted, got, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4


def test_a_request_enters_when_rows_are_free_and_not_when_all_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, _, _ = load_models({"p0": str(family_model(tmp_path, "qwen3"))})
    steps: list[int] = []
    step = lanes_module.Lanes.step
    monkeypatch.setattr(
        lanes_module.Lanes, "step", lambda self: steps.append(len(self.row_B)) or step(self)
    )
    limits = [64, 16, 16, 16, 16, 16, 16, 16]
    requests = [
        Request("p0", np.array([20 + i, 30]), Sampling(max_tokens=n), i)
        for i, n in enumerate(limits)
    ]
    engine = engine_of(models, [-1], 0, 512, 2)
    done = engine.generate(requests)
    assert [len(g.token_ids) for g in done] == limits
    assert len(steps) < 7 * 16  # one after the other beside the long one
    answers = iter([True] * 20)
    done = engine.generate(requests, lambda: next(answers, False))
    assert sum(len(g.token_ids) > 0 for g in done) == 3
    assert max(len(g.token_ids) for g in done) <= 21


def test_what_is_alike_is_computed_once() -> None:
    a = np.arange(50)
    b = np.arange(100, 150)
    assert distinct([(0, a), (1, a), (0, a.copy()), (0, b)]) == ([0, 1, 3], [0, 1, 0, 2])
    tails = [(0, np.concatenate([a, [200 + i] * (1 + i % 3)])) for i in range(8)]
    plan = split(tails)
    assert plan is not None
    assert plan.suffix == 3
    assert len(plan.heads) == 1
    assert set(plan.of) == {0}
    other = [(i, ids) for i, (_, ids) in enumerate(tails)]
    assert split(other) is None  # of different policies
    assert split([(0, a), (0, b)]) is None
    assert split([(0, a)]) is None
    lengths = zip([0, 1, 0, 0, 0, 0, 1], [10, 300, 290, 20, 300, 300, 15], strict=True)
    parts = list(passes([(policy, np.zeros(length)) for policy, length in lengths]))
    assert sorted(i for part in parts for i in part) == list(range(7))
    assert parts == [[4, 5, 2, 1], [3, 0, 6]]  # long and short apart, sorted by policy


def test_caches_of_another_kind_are_known() -> None:
    assert holds(LlamaConfig())
    assert not holds(
        Llama4TextConfig(num_hidden_layers=2, layer_types=["full_attention", "chunked_attention"])
    )
    assert not holds(MambaConfig())


def test_packed_weights_are_those_of_the_last_refresh_and_the_model_stays_as_it_was(
    tmp_path: Path,
) -> None:
    first, second = (
        load_models({"p0": str(family_model(tmp_path / str(i), "qwen2.5", i))})[0] for i in range(2)
    )
    assert can_pack(first["p0"])
    engine = engine_of(first, [15], 0, 512)
    plain = engine_of(first, [15], 0, 512, packed=False)
    for weights in (first, second):
        publish(engine, weights)
        publish(plain, weights)
        for a, b in zip(engine.generate(asked()), plain.generate(asked()), strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4
    assert not any("forward" in vars(layer) for layer in second["p0"].modules())


@pytest.mark.skipif(
    not packs(torch.bfloat16) or torch.backends.cpu.get_cpu_capability() != "AVX512",
    # told to use shorter vectors on a processor that has AMX, torch's attention fails in bfloat16
    reason="a processor without AVX512, or torch told to do without",
)
def test_packed_weights_of_bfloat16_say_what_plain_ones_say(tmp_path: Path) -> None:
    loaded = load_models({"p0": str(family_model(tmp_path, "qwen2.5", 0))})[0]
    model = loaded["p0"].to(torch.bfloat16)
    assert can_pack(model)
    engine = engine_of({"p0": model}, [15], 0, 512)
    plain = engine_of({"p0": model}, [15], 0, 512, packed=False)
    for requests_of_a_batch in (asked(), asked()[:1]):  # a single row has a path of its own
        pairs = zip(
            engine.generate(requests_of_a_batch), plain.generate(requests_of_a_batch), strict=True
        )
        same = [(a, b) for a, b in pairs if a.token_ids[0] == b.token_ids[0]]
        assert len(same) >= 0.8 * len(requests_of_a_batch)
        for a, b in same:
            assert abs(a.logprobs[0] - b.logprobs[0]) < 0.05
    assert not any("forward" in vars(layer) for layer in model.modules())


def test_the_head_reads_columns_that_lie_side_by_side() -> None:
    """Of a view of the last column torch makes a product per row, each with a copy of the head."""
    model = llama()
    seen: list[bool] = []
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_contiguous()))
    engine = engine_of({"p0": model}, [3], 0, 64, packed=False)
    engine.generate(requests(5, 1))
    engine.close()
    assert seen
    assert all(seen)
