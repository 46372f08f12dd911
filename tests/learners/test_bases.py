"""Bases of other shapes under a population: layers that reshape a batch, weights that lie the other
way, experts that mix rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from comas.learners.logprobs import halve
from comas.learners.lora import layers
from comas.learners.lora.layers import row_by_row
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.seams import AdapterSpec
from comas.types import UserMistake
from tests.support.adapters import UNEVEN, distance, fill, gradients, parts_of
from tests.support.apart import ApartForCausalLM, Experts
from tests.support.engines import engine_of
from tests.support.learning import COMPARED
from tests.support.memory import model_of
from tests.support.mixed_rows import requests
from tests.support.models import llama
from tests.support.sampling import same

pytestmark = pytest.mark.usefixtures("one_thread")

LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MIXED = {
    "num_experts": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts_per_tok": 2,
}
# `latent` is deepseek_v3 without experts, which no compiler follows
BASES: dict[str, Callable[[], Any]] = {
    "opt": partial(model_of, "opt", ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, init_std=0.3),
    "deepseek_v3": partial(model_of, "deepseek_v3", **LATENT),
    "qwen2_moe": partial(model_of, "qwen2_moe", **MIXED),
    "latent": partial(model_of, "deepseek_v3", **{**LATENT, "first_k_dense_replace": 2}),
    "gpt2": partial(
        model_of,
        "gpt2",
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
}
ODD = {
    "opt": ("fc1", "fc2"),
    "deepseek_v3": ("kv_b_proj",),
    "latent": ("kv_b_proj",),
    "gpt2": ("c_attn", "mlp.c_proj"),
    "qwen2_moe": ("shared_expert.up_proj", "shared_expert_gate"),
}
"""What is odd about each."""
every_base = pytest.mark.parametrize("base", [b for b in BASES if b != "latent"])


WITH_CROSS_ATTENTION = {
    "biogpt": {},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
}


@pytest.mark.parametrize("base", ["gpt2", "opt", "qwen2_moe", *WITH_CROSS_ATTENTION])
def test_heads_that_ask_more_of_their_body_are_run_alone(base: str) -> None:
    other = WITH_CROSS_ATTENTION.get(base)
    assert halve(BASES[base]() if other is None else model_of(base, **other)) is not None


class InDoubles(TorchFunctionMode):
    """Nothing is cast to single precision: on some processors the last bits of such a product
    depend on the number of rows.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.type and args[1:] == (torch.float32,):
            return args[0]
        return func(*args, **(kwargs or {}))


def exact(router: Any) -> None:
    """DeepSeek's router works in single precision whatever the model; with other last bits experts
    have other weights.
    """
    real = router.forward

    def forward(*given: Any) -> Any:
        with InDoubles():
            return real(*given)

    router.forward = forward


def made_of(base: str, only: Sequence[str] = "abd") -> Population:
    specs = {
        "a": AdapterSpec(4, 8.0),
        "b": AdapterSpec(12, 32.0, ODD[base]),
        "d": AdapterSpec(1, 2.0),
    }
    model = BASES[base]().double()
    model.set_experts_implementation("eager")  # the others want single precision
    for module in model.modules():
        if type(module).__name__ == "DeepseekV3TopkRouter":
            exact(module)
    made = Population(model, {p: s for p, s in specs.items() if p in only})
    for p in only:
        fill(made, p, 0.3, "abd".index(p))
    return made


def logits(model: Callable[..., Any], ids: torch.Tensor, **given: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **given).logits


def misrouted(
    made: Population, policies: Sequence[int], wrong: Sequence[int] | None = None
) -> float:
    """By how much rows differ from those of their policies' merged models alone; `wrong` are the
    policies they are run as.
    """
    ids = torch.randint(4, 50, (len(policies), 7), generator=torch.Generator().manual_seed(2))
    with made.routed(wrong or policies):
        together = logits(made.model, ids)
    gaps = []
    for row, got, p in zip(ids, together, policies, strict=True):
        merged = made.merged(made.policies[p])
        gaps.append(
            (
                logits(
                    lambda m=merged, **given: functional_call(made.model, m, (), given), row[None]
                )[0]
                - got
            )
            .abs()
            .max()
        )
    return float(max(gaps))


@every_base
@pytest.mark.parametrize("policies", [(0, 0, 0, 1, 2, 2), (0, 0, 1, 1, 2, 2), (0, 2, 2), (1, 1)])
def test_each_row_goes_through_its_own_adapter(base: str, policies: tuple[int, ...]) -> None:
    made = made_of(base)
    assert all(any(n.endswith(end) for n in made.targets["b"]) for end in ODD[base])
    assert misrouted(made, policies) < 1e-9
    for row, p in enumerate(policies):  # a control: one row that is run as another policy is seen
        wrong = [*policies[:row], (p + 1) % 3, *policies[row + 1 :]]
        if sorted(wrong) == wrong:
            assert misrouted(made, policies, wrong) > 1e-3


@every_base
def test_tokens_in_another_order_than_rows_would_be_seen(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: what the odd layers add goes to the neighbouring token."""
    made = made_of(base)
    real = layers.add
    odd = {layer for layer in made.layers if layer.name.endswith(ODD[base])}
    monkeypatch.setattr(
        layers,
        "add",
        lambda y, x, layer, route: real(
            y, x.flatten(0, -2).roll(1, 0).view_as(x) if layer in odd else x, layer, route
        ),
    )
    assert misrouted(made, (0, 0, 0, 1, 2, 2)) > 1e-3


@every_base
@pytest.mark.parametrize("recipe", [{}, {"tokens_per_pass": 40, "checkpointing": True}])
def test_a_shared_step_has_the_gradients_of_separate_steps(
    base: str, recipe: dict[str, Any]
) -> None:
    parts = parts_of(UNEVEN)
    together = gradients(made_of(base), parts, **recipe)
    for p in parts:
        assert (
            distance(together[p], gradients(made_of(base, [p]), {p: parts[p]}, **recipe)[p]) < 1e-10
        )


@pytest.mark.parametrize("base", BASES)
def test_sampling_in_company_says_what_is_said_alone(base: str) -> None:
    made = made_of(base)
    asked = requests(9, "abd")
    said = engine_of(made, [3], 0, 128, 6).generate(asked)
    for request, got in zip(asked, said, strict=True):
        same(engine_of(made_of(base, [request.policy]), [3], 0, 128, 1).generate([request]), [got])
    assert len({tuple(got.token_ids.tolist()) for got in said}) > 5


# --- what mixes rows is refused


class Sorted(Experts):
    """All tokens go through one layer, sorted by what they are."""

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_ND = x_BTD.flatten(0, 1)
        order_N = self.gate(x_BTD).flatten(0, 1).argmax(-1).argsort(stable=True)
        return self.experts[0](x_ND[order_N])[order_N.argsort()].view_as(x_BTD)


class Turned(Experts):
    """(T, B, D)."""

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.experts[0](x_BTD.transpose(0, 1)).transpose(0, 1)


class Flat(Turned):
    """The same as (T B, D)."""

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        turned = x_BTD.transpose(0, 1)
        return self.experts[0](turned.flatten(0, 1)).view_as(turned).transpose(0, 1)


class Cut(Experts):
    """Some tokens of each row are left out, the same number in all."""

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [self.experts[0](x_BTD[:, :3].flatten(0, 1)).view_as(x_BTD[:, :3]), x_BTD[:, 3:]], 1
        )


class Unpadded(Experts):
    """Padding is left out."""

    mask_BT: torch.Tensor

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        there = self.mask_BT.bool()
        return x_BTD.index_put((there,), self.experts[0](x_BTD[there]))


class Late(Experts):
    """One expert likes all tokens until it is told otherwise."""

    late = False

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_ND = x_BTD.flatten(0, 1)
        if not self.late:
            return self.experts[0](x_ND).view_as(x_BTD)
        out_ND = torch.zeros_like(x_ND)
        here = torch.arange(0, len(x_ND), 2)
        return out_ND.index_put((here,), self.experts[0](x_ND[here])).view_as(x_BTD)


def with_experts(kind: Callable[[Any], torch.nn.Module]) -> Any:
    model = llama()
    torch.manual_seed(5)
    model.model.layers[1].mlp = mlp = kind(model.config)  # type: ignore[assignment]
    model.register_forward_pre_hook(
        lambda _, __, given: setattr(mlp, "mask_BT", given.get("attention_mask")), with_kwargs=True
    )
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Experts, Sorted, Turned, Flat, Cut, Unpadded])
def test_layers_that_see_tokens_in_another_order_or_selection_are_refused(
    kind: Any, dtype: torch.dtype
) -> None:
    for count in (1, 2, 3, 8):
        model = with_experts(kind).to(dtype)
        with pytest.raises(
            UserMistake,
            match=r"mlp\.experts\.0 gets \(.*, 32\), .* 3 rows: set hosts",
        ):
            Population(model, {f"p{i}": AdapterSpec(2) for i in range(count)})
        fine, odd, _ = row_by_row(
            model,
            {
                n: m
                for n, m in model.named_modules()
                if isinstance(m, torch.nn.Linear) and n != "lm_head"
            },
        )
        assert all(".experts." in name for name in odd)
        assert {n.rpartition(".")[2] for n in fine} >= {"q_proj", "o_proj", "down_proj"}
        assert Population(
            model, {f"p{i}": AdapterSpec(2, 4.0, ("q_proj",)) for i in range(count)}
        ).modules


def test_a_whole_model_of_experts_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"model\.layers\.0\.mlp\.experts\.0 gets .* 3 rows"):
        Population(ApartForCausalLM(llama().config), {"a": AdapterSpec(2), "b": AdapterSpec(2)})


def test_an_expert_that_took_all_tokens_and_then_takes_fewer_is_refused() -> None:
    """Half of the tokens of two rows is a number that could be those of two rows."""
    model = with_experts(Late)
    made = Population(model, {"a": AdapterSpec(2), "b": AdapterSpec(2)})
    ids = torch.arange(4, 16).view(2, -1)
    with made.routed([0, 1]):
        logits(model, ids)
        model.model.layers[1].mlp.late = True
        with pytest.raises(UserMistake, match=r"experts\.0 gets .* 2 rows"):
            logits(model, ids)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_of_a_base_are_not_blamed_on_its_layers(value: float) -> None:
    model = llama()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = value
    with pytest.raises(UserMistake, match=r"not finite, in model\.layers\.0\.self_attn\.q_proj"):
        Population(model, {"a": AdapterSpec(2), "b": AdapterSpec(2)})


def test_the_trial_leaves_no_trace_in_a_model() -> None:
    model = llama()
    hooks = lambda: [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]  # noqa: E731
    ids = torch.arange(4, 12)[None]
    before = hooks()
    wanted = logits(model, ids)
    row_by_row(model, {n: m for n, m in model.named_modules() if n.endswith("proj")})
    assert hooks() == before
    assert torch.equal(logits(model, ids), wanted)


def test_the_estimate_counts_layers_that_lie_the_other_way(tmp_path: Path) -> None:
    model = BASES["gpt2"]()
    model.config.save_pretrained(tmp_path)
    each = 2 * ((32 + 96) + (32 + 32) + 2 * (32 + 128))
    assert Population(model, {"a": AdapterSpec(3)}).flat_PN.numel() == 3 * each
    assert {
        n.rpartition("h.1.")[2]
        for n in Population(model, {"a": AdapterSpec(3)}).modules
        if "h.1." in n
    } == {
        "attn.c_attn",
        "attn.c_proj",
        "mlp.c_fc",
        "mlp.c_proj",
    }


def test_merged_weights_lie_as_the_base_keeps_them() -> None:
    made = made_of("gpt2")
    weights = made.model.state_dict()
    for name, weight in made.merged("a").items():
        assert weight.shape == weights[name].shape
        tensors = made.tensors("a")
        module = name.removesuffix(".weight")
        change = tensors[f"{module}.lora_B"] @ tensors[f"{module}.lora_A"] * 2.0
        np.testing.assert_allclose((weight - weights[name]).numpy(), change.numpy().T, atol=1e-12)


@pytest.mark.parametrize("base", ["qwen2_moe", "opt"])
def test_whole_models_are_gone_on_with(base: str, tmp_path: Path) -> None:
    """transformers writes experts one by one, and has them joined in memory."""
    model = BASES[base]()
    learner = FullLearner({"p": model}, Recipe(1e-3), COMPARED, 0)
    learner.save(tmp_path)
    kept = {name: weight.clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    learner.load(tmp_path)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, kept[name]), name
