"""What bounds memory changes no number: chunks of logits, recomputed activations, passes; and
trained weights in float32.
"""

from __future__ import annotations

import asyncio
import copy
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from comas.engines import sampling as tape
from comas.hooks import Hook
from comas.hosts.local import make_local_host
from comas.learners import whole as full
from comas.learners.logprobs import halve, token_logprobs
from comas.learners.passes import passes
from comas.learners.precision import allow_recomputing, copy_in, recomputing, working_copy
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.testing import FAMILIES
from comas.training.start import resume_async
from comas.types import TurnReward, UserMistake
from tests.support.engines import engine_of
from tests.support.learning import METHOD, host_of, logprobs_of, rows, say
from tests.support.memory import model_of
from tests.support.models import llama, requests
from tests.support.runs import essence, run_of

CAPPED = {"final_logit_softcapping": 0.5, "tie_word_embeddings": True}


def by_hand(model: Any, part: list) -> list[torch.Tensor]:
    """Log-probs of the generated tokens, row by row."""
    out = []
    for r in part:
        ids = torch.from_numpy(r.token_ids_T)
        logits = model(ids[None]).logits[0, :-1] / r.temperature
        out.append(
            logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0][torch.from_numpy(r.mask_T[1:])]
        )
    return out


def difference(one: Any, two: Any) -> torch.Tensor:
    return torch.cat(
        [
            (p - q).detach().flatten()
            for p, q in zip(one.parameters(), two.parameters(), strict=True)
        ]
    )


def gradients(model: Any, logprobs: torch.Tensor) -> torch.Tensor:
    """Of a sum that weighs every log-prob otherwise."""
    model.zero_grad()
    (logprobs * torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    ("family", "changes"),
    [*((f, {}) for f in FAMILIES), ("gemma3_text", CAPPED), ("gemma2", CAPPED)],
)
def test_logprobs_in_chunks_are_those_of_whole_logits(
    family: str, changes: dict, dtype: torch.dtype, near: float
) -> None:
    model = model_of(family, **changes).to(dtype)
    part = rows(temperature=0.7)
    if family.startswith("gemma"):
        near = 1e-5  # its norms are in float32 whatever the rest is in
    mask = torch.from_numpy(np.stack([np.pad(r.mask_T, (0, 20))[:20] for r in part]))
    whole = token_logprobs(model, None, part, 0)
    mask = mask[:, : whole.shape[1]]
    whole_grad = gradients(model, whole[mask])
    halves = halve(model)
    hand = torch.cat(by_hand(model, part))
    torch.testing.assert_close(whole[mask], hand, atol=near, rtol=near)
    # rows alone and rows in a padded batch round otherwise
    far = 5 * near * float(whole_grad.abs().max())
    torch.testing.assert_close(whole_grad, gradients(model, hand), atol=far, rtol=near)
    assert halves is not None
    for room in (None, 50, 350):
        got = token_logprobs(model, halves, part, 0, room)
        assert not got[~mask].any()
        torch.testing.assert_close(got, whole, atol=near, rtol=near)
        torch.testing.assert_close(
            gradients(model, got[mask]),
            whole_grad,
            atol=near * float(whole_grad.abs().max()),
            rtol=near,
        )
        with torch.no_grad():
            torch.testing.assert_close(
                token_logprobs(model, halves, part, 0, room), got, atol=near, rtol=near
            )


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_frozen_head_is_run_once_and_hands_on_the_same_gradients(
    family: str, temperature: float, dtype: torch.dtype, near: float
) -> None:
    near = 1e-5 if family == "gemma2" else near
    model = model_of(family).to(dtype).requires_grad_(False)
    part = rows(temperature=temperature)
    calls: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))

    def of(halves: Any, room: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        leaf: list[torch.Tensor] = []
        hook = model.get_input_embeddings().register_forward_hook(
            lambda _, __, out: leaf.append(out.detach().requires_grad_()) or leaf[0]
        )
        made = token_logprobs(model, halves, part, 0, room)
        hook.remove()
        calls.clear()
        (made * torch.linspace(-1, 2, made.numel(), dtype=dtype).view_as(made)).sum().backward()
        assert not calls
        assert leaf[0].grad is not None
        return made.detach(), leaf[0].grad

    wanted = of(None, None)
    halves = halve(model)
    assert halves is not None
    for room in (None, 50, 350):
        for got, want in zip(of(halves, room), wanted, strict=True):
            torch.testing.assert_close(got, want, atol=near * float(want.abs().max()), rtol=near)


def test_one_chunk_of_logits_is_alive() -> None:
    model = llama()
    part = rows(40)
    halves = halve(model)
    assert halves is not None
    sizes = []
    alive = []
    most = [0]

    def seen(_: Any, __: Any, out: torch.Tensor) -> None:
        sizes.append(out.numel())
        alive.append(weakref.ref(out))
        most[0] = max(most[0], sum(ref() is not None for ref in alive))

    model.lm_head.register_forward_hook(seen)
    got = token_logprobs(model, halves, part, 0, 350)
    tokens = sum(int(r.mask_T.sum()) for r in part)
    made = len(sizes)
    assert (sum(sizes), max(sizes), made) == (tokens * 50, 350, -(-tokens // 7))
    got.sum().backward()
    assert (len(sizes), max(sizes), most[0]) == (2 * made, 350, 1)


def test_a_head_that_cannot_be_put_on_apart_gets_whole_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full, "LOGITS", 50)
    model = model_of("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    part = rows()
    learner = FullLearner({"p": model}, Recipe(1e-3), METHOD, 0)
    monkeypatch.setattr(type(model), "base_model_prefix", "nothing")
    for row, got, wanted in zip(
        part, logprobs_of(learner, "p", part), by_hand(model, part), strict=True
    ):
        np.testing.assert_allclose(got[row.mask_T], wanted.detach().numpy(), atol=1e-5)
    assert learner._halves == {model: None}


class Scaled(torch.nn.Module):
    """A body whose model does more with its output than its head shows: the two halves differ from
    the whole.
    """

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body
        self.told = False

    def forward(self, *args: Any, **given: Any) -> Any:
        out = self.body(*args, **given)
        self.told = not self.told
        return type(out)(last_hidden_state=out.last_hidden_state * (2.0 if self.told else 1.0))


def test_halves_that_do_not_make_the_whole_are_not_used() -> None:
    model = llama()
    assert halve(model) is not None
    model.model = Scaled(model.model)
    assert halve(model) is None


@pytest.mark.parametrize("tokens_per_pass", [64, 100, 250])
@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_do_not_depend_on_the_passes(
    tokens_per_pass: int, chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "LOGITS", 50 * 8192)
    moved = {}
    for tokens in (8192, tokens_per_pass):
        if chunks and tokens != 8192:
            monkeypatch.setattr(full, "LOGITS", 350)
        model = llama(1).double()
        learner = FullLearner(
            {"p": model}, Recipe(1.0, grad_norm=1e9, tokens_per_pass=tokens), METHOD, 0
        )
        learner.reference = {"p": llama(2).double()}
        learner.optimizers = {"p": torch.optim.SGD(model.parameters(), lr=1.0)}
        part = rows(40)
        learner.step({"p": part})
        assert (len(passes([("p", r) for r in part], tokens)) > 2) == (tokens != 8192)
        assert (learner._halves[model] is not None) == (chunks and tokens != 8192)
        moved[tokens] = difference(model, llama(1).double())
    assert moved[8192].norm() > 0.1
    torch.testing.assert_close(moved[tokens_per_pass], moved[8192], atol=1e-10, rtol=0)


def kept(model: Any, logprobs: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """What it gives, and the bytes that its backward pass keeps, weights excepted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        made = logprobs()
    return made, sum(seen.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_give_the_same_gradients_from_less(family: str) -> None:
    model = model_of(family, attention_dropout=0.5, num_hidden_layers=6).double()
    part = rows()
    wanted, much = kept(model, lambda: token_logprobs(model, None, part, 0))
    wanted_grad = gradients(model, wanted.flatten())
    allow_recomputing(model)

    def again() -> torch.Tensor:
        with recomputing(model):
            return token_logprobs(model, None, part, 0)

    got, little = kept(model, again)
    assert little < 0.5 * much
    assert not any(m.training for m in model.modules())
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients(model, got.flatten()), wanted_grad, atol=1e-10, rtol=1e-10)


def test_a_learner_that_recomputes_takes_the_same_step_and_its_model_still_samples() -> None:
    learners = [
        FullLearner({"p": llama()}, Recipe(1e-3, checkpointing=c), METHOD, 0) for c in (False, True)
    ]
    assert [
        any(getattr(m, "gradient_checkpointing", False) for m in x.models["p"].modules())
        for x in learners
    ] == [False, True]
    drawn = []
    for learner in learners:
        learner.step({"p": rows()})
        made = engine_of(learner.weights(), [3], 0, 128, engine="hf")
        drawn.append(
            made.generate([replace(r, policy="p") for r in requests(6, policies=1, tokens=8)])
        )
    for a, b in zip(*(x.models["p"].parameters() for x in learners), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert [g.token_ids.tolist() for g in drawn[0]] == [g.token_ids.tolist() for g in drawn[1]]


def test_a_step_below_the_bound_of_a_pass_is_halved_by_its_own_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = FullLearner.forward

    def act(self: FullLearner, *arguments: Any, **keywords: Any) -> Any:
        if not self.recipe.halved:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(FullLearner, "forward", act)
    learner = FullLearner({"p": llama()}, Recipe(1e-3), METHOD, 0)
    given = rows(40)
    learner.step({"p": given})
    assert learner.recipe.tokens_per_pass == sum(len(row.token_ids_T) for row in given) // 2


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["recomputed", "first_pass"])
def test_a_step_without_memory_is_taken_anew_in_half_the_passes(
    where: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learner(tokens: int) -> FullLearner:
        recipe = Recipe(1e-3, tokens_per_pass=tokens, old_logprobs=kind)
        return FullLearner({"p": llama()}, recipe, METHOD, 0)

    given = rows(40)
    assert sum(len(row.token_ids_T) for row in given) > 256
    wanted = learner(128)
    stats = wanted.step({"p": rows(40)})
    short = learner(256)
    calls: list[int] = []
    real = getattr(FullLearner, where)

    def act(self: FullLearner, *arguments: Any, **keywords: Any) -> Any:
        calls.append(self.recipe.tokens_per_pass)
        found = real(self, *arguments, **keywords)
        if len(calls) == 2:  # gradients of a pass are there already
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return found

    monkeypatch.setattr(FullLearner, where, act)
    assert short.step({"p": given}) == stats
    assert (short.recipe.tokens_per_pass, short.recipe.halved) == (128, True)
    assert set(calls[2:]) == {128}
    for a, b in zip(*(x.models["p"].parameters() for x in (short, wanted)), strict=True):
        assert torch.equal(a, b)
    calls[:] = [0]
    with pytest.raises(RuntimeError, match="can't allocate memory"):  # once only
        short.step({"p": rows(40)})


def test_dropout_inside_a_recomputed_layer_is_refused() -> None:
    shape = {
        "hidden_size": 32,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "do_layer_norm_before": True,
    }
    with pytest.raises(UserMistake, match=r"OPTForCausalLM .*checkpointing=false"):
        allow_recomputing(model_of("opt", dropout=0.5, **shape))
    allow_recomputing(model_of("opt", dropout=0.0, **shape))


def mixed(seed: int = 0, lr: float = 1e-6, **recipe: Any) -> FullLearner:
    return FullLearner(
        {"p": llama(seed)}, Recipe(lr, grad_norm=1e9, **recipe), METHOD, 0, torch.bfloat16
    )


def test_small_updates_move_float32_weights_and_reach_the_working_copy() -> None:
    learner = mixed()
    before = [p.detach().clone() for p in llama().parameters()]
    master = learner.models["p"]
    working = learner.working["p"]
    grads: list[torch.Tensor] = []
    step = learner.optimizers["p"].step
    learner.optimizers["p"].step = lambda: (
        grads.extend(p.grad.clone() for p in master.parameters()),
        step(),
    )  # type: ignore
    learner.step({"p": rows()})
    assert {p.dtype for p in master.parameters()} == {g.dtype for g in grads} == {torch.float32}
    assert (
        {p.dtype for p in working.parameters()}
        == {p.dtype for p in learner.reference["p"].parameters()}
        == {torch.bfloat16}
    )
    assert all(
        s[k].dtype == torch.float32
        for s in learner.optimizers["p"].state.values()
        for k in ("exp_avg", "exp_avg_sq")
    )
    lost = 0
    for old, now, own, g in zip(
        before, master.parameters(), working.parameters(), grads, strict=True
    ):
        # AdamW's first step
        torch.testing.assert_close(now - old, -1e-6 * g / (g.abs() + 1e-8), atol=2e-7, rtol=0)
        assert torch.equal(own, now.bfloat16())
        lost += int((own == old.bfloat16()).sum())
    assert (
        float(
            sum(
                (n - o).detach().abs().sum()
                for n, o in zip(master.parameters(), before, strict=True)
            )
        )
        > 1e-4
    )
    assert lost > 0.99 * sum(o.numel() for o in before), (
        "in bfloat16 alone nothing would have moved: else this test tests nothing"
    )
    for _ in range(3):  # the copy moves once enough has been gathered
        learner.optimizers["p"].param_groups[0]["lr"] = 1e-2
        learner.step({"p": rows()})
    assert all(
        torch.equal(own, now.bfloat16())
        for own, now in zip(working.parameters(), master.parameters(), strict=True)
    )
    assert not all(
        torch.equal(own, old.bfloat16())
        for own, old in zip(working.parameters(), before, strict=True)
    )


def test_gradients_through_the_working_copy_are_near_and_gathered_in_float32() -> None:
    plain = FullLearner({"p": llama()}, Recipe(1.0, grad_norm=1e9), METHOD, 0)
    learners = [plain, mixed(lr=1.0), mixed(lr=1.0, tokens_per_pass=64)]
    moved = []
    for learner in learners:
        learner.optimizers = {"p": torch.optim.SGD(learner.models["p"].parameters(), lr=1.0)}
        learner.step({"p": rows(40)})
        assert all(p.grad is None for p in learner.working["p"].parameters())
        moved.append(difference(learner.models["p"], llama()))
    for got in moved[1:]:
        assert torch.cosine_similarity(got, moved[0], dim=0) > 0.99
        assert (got - moved[0]).norm() < 0.1 * moved[0].norm()


def test_only_parameters_change_their_precision_and_ties_stay() -> None:
    model = llama()
    made = copy_in(model, torch.bfloat16)
    assert made.lm_head.weight is made.model.embed_tokens.weight
    assert made.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()
    assert made.model.rotary_emb.inv_freq.dtype == torch.float32
    same = copy_in(model, torch.float32)
    assert all(
        a is not b and torch.equal(a, b)
        for a, b in zip(same.parameters(), model.parameters(), strict=True)
    )


def test_a_checkpoint_holds_float32_weights_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    one = mixed(lr=1e-3)
    two = mixed(lr=1e-3)
    one.step({"p": rows()})
    one.save(tmp_path)
    saved = {
        **load_file(tmp_path / "p" / "model.safetensors"),
        **load_file(tmp_path / "p" / "optimizer.safetensors"),
    }
    assert {t.dtype for t in saved.values()} == {torch.float32}
    assert json.loads((tmp_path / "p" / "config.json").read_text())["dtype"] == "float32"
    two.load(tmp_path)
    for learner in (one, two):
        learner.step({"p": rows(seed=4)})
    for models in ("models", "working", "reference"):
        pair = zip(*(getattr(x, models)["p"].parameters() for x in (one, two)), strict=True)
        assert all(torch.equal(a, b) for a, b in pair), models


def test_a_bfloat16_host_samples_from_the_rounded_weights(untaught: Path) -> None:
    host = host_of(untaught, dtype="bfloat16")

    async def main() -> None:
        for i in range(4):
            await say(host, f"t{i}")
        await host.learn({"a": [TurnReward(f"t{i}", float(i % 2), "g") for i in range(4)]}, 1.0)

    before = copy.deepcopy(host.engine.models["a"].model)
    asyncio.run(main())
    trained = host.learner.models["a"]
    sampled = host.engine.models["a"].model
    assert all(
        torch.equal(s, t.bfloat16())
        for s, t in zip(sampled.parameters(), trained.parameters(), strict=True)
    )
    assert not all(
        torch.equal(s, b) for s, b in zip(sampled.parameters(), before.parameters(), strict=True)
    )
    host.close()


def test_auto_is_float32_on_the_cpu_and_a_team_that_only_answers_is_loaded_once(
    untaught: Path,
) -> None:
    bases = {"a": str(untaught)}
    kinds = {}
    for dtype in ("auto", "float32", "bfloat16"):
        host = make_local_host("home", bases, device="cpu", dtype=dtype)
        assert host.learner is None
        kinds[dtype] = {p.dtype for p in host.engine.models["a"].model.parameters()}
        host.close()
    assert kinds == {
        "auto": {torch.float32},
        "float32": {torch.float32},
        "bfloat16": {torch.bfloat16},
    }
    host = host_of(untaught, dtype="auto")
    assert host.learner.weights()["a"].model is host.learner.models["a"]
    host.close()


def test_a_run_in_bfloat16_that_recomputes_is_resumed_bit_by_bit(
    untaught: Path, tmp_path: Path
) -> None:
    changed = {"dtype": "bfloat16", "checkpointing": True, "tokens_per_pass": 128}
    keys = {
        "questions": 3,
        "agents": 2,
        "test_questions": 0,
        **{f"hosts__home__{k}": v for k, v in changed.items()},
    }
    whole = run_of(tmp_path / "whole", untaught, steps=2, **keys)
    run_of(tmp_path / "cut", untaught, steps=1, **keys)
    text = (tmp_path / "cut" / "config.toml").read_text()
    assert "steps = 1" in text
    (tmp_path / "cut" / "config.toml").write_text(text.replace("steps = 1", "steps = 2"))
    run_sync(resume_async(tmp_path / "cut", Hook()))
    assert essence(Run(tmp_path / "cut")) == essence(whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_prompts_and_of_draws_change_no_text(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are filled in by slices of columns, tokens drawn by slices of rows."""
    asked = requests(12, policies=1)
    model = model_of(family, max_position_embeddings=128).double()

    def texts(prefill: int) -> list:
        return engine_of({"p0": model}, [3, 4], 0, 128, prefill=prefill).generate(asked)

    wanted = texts(8192)
    monkeypatch.setattr(tape, "DRAWN", {"cpu": 250})
    for a, b in zip(wanted, texts(36), strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-6)


def test_a_step_that_has_updated_weights_is_not_taken_anew_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = FullLearner({"p": llama()}, Recipe(1e-3), replace(METHOD, minibatches=2), 0)
    calls: list[int] = []
    real = FullLearner.backward

    def backward(self: FullLearner, *arguments: Any) -> None:
        calls.append(1)
        real(self, *arguments)
        if len(calls) == 2:  # of the second update
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(FullLearner, "backward", backward)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        learner.step({"p": rows()})
    assert not learner.recipe.halved


def test_memory_that_ends_while_gradients_are_collected_counts_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = llama(0)
    working = working_copy(master, torch.bfloat16)
    ids = torch.arange(4, 12)[None]

    def loss() -> torch.Tensor:
        return working(input_ids=ids, labels=ids).loss

    loss().backward()
    clean = [weight.grad.clone() for weight in master.parameters() if weight.grad is not None]
    real = torch.Tensor.to
    left = [3]

    def failing(self: torch.Tensor, *args: Any, **keys: Any) -> torch.Tensor:
        if args == (torch.float32,) and self.dtype == torch.bfloat16:
            left[0] -= 1
            if left[0] == 0:
                raise torch.OutOfMemoryError("as on a full GPU")
        return real(self, *args, **keys)

    for weight in master.parameters():
        weight.grad = None
    lost = loss()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", failing)
        with pytest.raises(torch.OutOfMemoryError):
            lost.backward()
    for weight in master.parameters():  # as `finish` forgets them
        weight.grad = None
    loss().backward()
    again = [weight.grad for weight in master.parameters() if weight.grad is not None]
    for before, after in zip(clean, again, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-2, atol=1e-4)
