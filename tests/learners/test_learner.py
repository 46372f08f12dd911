"""Learning: one step against a reference written out by hand, separation of policies, and what a
host keeps.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comas.hosts.local import make_local_host, turn_facts
from comas.learners.recipe import Recipe
from comas.learners.step import Step, Update, gap_to_engine
from comas.learners.whole import FullLearner
from comas.objective.losses import plain
from comas.objective.preference import dpo
from comas.types import Method, Row, TurnReward, UserMistake
from tests.support.engines import publish
from tests.support.learning import METHOD, host_of, logprobs_of, rows, say
from tests.support.models import llama


def reference_step(
    model: torch.nn.Module, start: torch.nn.Module, part: list[Row], method: Method
) -> None:
    """The same gradient, row by row, in plain torch, subtracted from the weights."""

    def logprobs(m: torch.nn.Module, r: Row) -> torch.Tensor:
        ids = torch.from_numpy(r.token_ids_T)
        out = (
            (m(ids[None]).logits[0, :-1] / r.temperature)
            .log_softmax(-1)
            .gather(1, ids[1:, None])[:, 0]
        )
        return torch.cat([torch.zeros(1), out]) * torch.from_numpy(r.mask_T)

    part = copy.deepcopy(part)
    new = [logprobs(model, r) for r in part]
    for r, lp in zip(part, new, strict=True):
        r.logprobs_T, r.ref_logprobs_T = lp.detach().numpy(), logprobs(start, r).detach().numpy()
    advantages = method.credit(part, method.kl)
    tokens = sum(r.mask_T.sum() for r in part)
    loss = (
        sum(
            (-torch.from_numpy(a) * (lp - lp.detach()).exp())[torch.from_numpy(r.mask_T)].sum()
            for a, lp, r in zip(advantages, new, part, strict=True)
        )
        / tokens
    )
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()


@pytest.mark.parametrize("tokens_per_pass", [8192, 40])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_step_is_the_step_written_out_by_hand(tokens_per_pass: int, temperature: float) -> None:
    model = llama(1)
    start = llama(2)
    mine = llama(1)
    learner = FullLearner(
        {"p": model}, Recipe(1.0, grad_norm=1e9, tokens_per_pass=tokens_per_pass), METHOD, 0
    )
    learner.reference = {"p": start}
    # AdamW would hide the scale of the gradient
    learner.optimizers = {"p": torch.optim.SGD(model.parameters(), lr=1.0)}
    part = rows(temperature=temperature)
    reference_step(mine, start, part, METHOD)
    learner.step({"p": part})
    flat = [
        torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, mine, llama(1))
    ]
    assert (flat[1] - flat[2]).norm() > 0.1
    assert (flat[0] - flat[1]).norm() < 1e-4 * (flat[1] - flat[2]).norm()


def test_moments_take_the_bytes_that_are_reserved_for_them() -> None:
    learner = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    reserved = learner.moments
    assert reserved == 8 * llama(0).num_parameters()
    learner.step({"p": rows()})
    assert sum(part.nbytes for part in _moments(learner, "p") if part.ndim) == reserved


def test_policies_learn_apart_whatever_the_threads() -> None:
    parts = {f"p{i}": rows(seed=i) for i in range(3)}
    together = FullLearner({p: llama(i) for i, p in enumerate(parts)}, Recipe(1e-3), METHOD, 0)
    together.step(copy.deepcopy(parts))
    for i, p in enumerate(parts):
        alone = FullLearner({p: llama(i)}, Recipe(1e-3), METHOD, 0)
        alone.step({p: parts[p]})
        for a, b in zip(together.models[p].parameters(), alone.models[p].parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_an_update_that_is_not_finite_is_skipped_and_counted_and_touches_no_other_policy(
    tmp_path: Path,
) -> None:
    good = llama(0)
    bad = llama(1)
    learner = FullLearner({"good": good, "bad": bad}, Recipe(1e-3), METHOD, 0)
    learner.step({"bad": rows()})
    before = [p.clone() for p in bad.parameters()], [m.clone() for m in _moments(learner, "bad")]
    broken = rows()
    broken[0].turn = "broken"
    learner.method = replace(METHOD, credit=_breaking)
    stats = learner.step({"good": rows(), "bad": broken})
    learner.method = METHOD
    assert (
        stats["bad"]["skipped"],
        stats["bad"]["updates"],
        stats["good"]["skipped"],
        stats["good"]["updates"],
    ) == (1, 0, 0, 1)
    assert "loss" not in stats["bad"]
    assert all(map(np.isfinite, [*stats["bad"].values(), *stats["good"].values()]))
    after = list(bad.parameters()), _moments(learner, "bad")
    assert all(
        torch.equal(a, b)
        for x, y in zip(before, after, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    alone = FullLearner({"good": llama(0)}, Recipe(1e-3), METHOD, 0)
    alone.step({"good": rows()})
    for a, b in zip(good.parameters(), alone.models["good"].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)  # alone it has all threads
    assert learner.step({"bad": rows()})["bad"]["updates"] == 1
    with torch.no_grad():
        bad.model.norm.weight[0] = float("nan")
    assert learner.step({"bad": rows()})["bad"]["skipped"] == 1
    with pytest.raises(FloatingPointError, match=r"policy bad: .*model\.norm\.weight"):
        learner.save(tmp_path)


def _breaking(rows: list[Row], kl: dict[str, float]) -> list[np.ndarray]:
    return [
        a + np.inf if r.turn == "broken" else a
        for r, a in zip(rows, METHOD.credit(rows, kl), strict=True)
    ]


def _moments(learner: FullLearner, policy: str) -> list[torch.Tensor]:
    return [v for s in learner.optimizers[policy].state.values() for v in s.values()]


def test_a_step_is_taken_at_its_share_of_the_rate() -> None:
    models = [llama(0) for _ in range(3)]
    for model, rate, scale in zip(models, (1e-3, 5e-4, 1e-3), (0.5, 1.0, 1.0), strict=True):
        FullLearner({"p": model}, Recipe(rate), METHOD, 0).step({"p": rows()}, scale)
    half, same, whole = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert torch.equal(half, same)
    assert not torch.equal(half, whole)


def test_a_step_without_a_gradient_moves_nothing() -> None:
    """Moments of earlier steps are no reason: all rewards were equal."""
    model = llama(0)
    learner = FullLearner({"p": model}, Recipe(1e-2), METHOD, 0)
    learner.step({"p": rows()})
    before = [p.clone() for p in model.parameters()], [m.clone() for m in _moments(learner, "p")]
    learner.method = replace(METHOD, kl={}, credit=_nothing)
    stats = learner.step({"p": rows()})
    assert stats["p"]["grad_norm"] == 0.0
    assert (stats["p"]["updates"], stats["p"]["skipped"]) == (1, 0)
    after = list(model.parameters()), _moments(learner, "p")
    for was, now in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(was, now, strict=True))


def _nothing(rows: list[Row], kl: dict[str, float]) -> list[np.ndarray]:
    return [np.zeros(len(row.token_ids_T)) for row in rows]


def test_several_epochs_and_minibatches_take_that_many_optimizer_steps() -> None:
    learner = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    learner.method = replace(METHOD, epochs=2, minibatches=3)
    learner.step({"p": rows()})
    assert {int(s["step"]) for s in learner.optimizers["p"].state.values()} == {6}


def test_rewards_are_compared_over_the_whole_step_however_many_its_minibatches() -> None:
    method = replace(METHOD, kl={}, minibatches=3)
    part = rows()
    FullLearner({"p": llama(0)}, Recipe(1e-3), method, 0).step({"p": part})
    for row, wanted_T in zip(part, method.credit(part, {}), strict=True):
        np.testing.assert_array_equal(row.advantages_T, wanted_T)


def test_statistics_of_a_step_are_means_over_its_updates_without_those_that_were_skipped() -> None:
    learning = Step(FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0), {"p": rows()}, 0.5)
    learning.gaps["p"] = {}
    learning.updates["p"] = [Update(1.0, 0.5), None, Update(3.0, 1.5)]
    assert learning._stats("p") == {
        **{"rows": 12, "updates": 2, "skipped": 1, "lr": 0.5e-3},
        **{"loss": 2.0, "grad_norm": 1.0},
    }


def test_saved_and_loaded_it_takes_the_same_next_step(tmp_path: Path) -> None:
    one = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    one.step({"p": rows()})
    one.save(tmp_path)
    two = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    two.load(tmp_path)
    for learner in (one, two):
        learner.step({"p": rows(seed=4)})
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.models["p"].parameters(), two.models["p"].parameters(), strict=True)
    )


def test_rows_of_a_drifted_engine_get_a_truncated_importance_weight() -> None:
    learner = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    part = rows()
    for row, logprobs in zip(part, logprobs_of(learner, "p", part), strict=True):
        row.logprobs_T = logprobs
        row.sampled_logprobs_T = logprobs.copy()
    assert gap_to_engine("p", part, learner.recipe) == ({"gap_mean": 0.0, "gap_max": 0.0}, {})
    part[0].sampled_logprobs_T[part[0].mask_T] -= 3.0  # type: ignore[index]
    stats, weights = gap_to_engine("p", part, learner.recipe)
    assert stats["gap_max"] == pytest.approx(3.0)
    assert weights["t0"].max() == 2.0
    assert weights["t1"].max() == 1.0


def test_losses_of_given_replies_are_not_weighted_by_who_said_them() -> None:
    """Their gradient is that of the replies, whatever the engine thinks of these."""
    fresh = replace(METHOD, credit=dpo, loss=plain, fresh=True, kl={}, reference=("solution",))
    learnt: list[dict[str, Any]] = []
    for gap in (0.0, 0.1):
        learner = FullLearner({"p": llama(0)}, Recipe(1e-3), fresh, 0)
        part = [row for row in rows() if row.role == "solution"]
        for row, logprobs in zip(part, logprobs_of(learner, "p", part), strict=True):
            row.sampled_logprobs_T = logprobs - row.mask_T * np.float32(gap)
        learner.step({"p": part})
        learnt.append(learner.models["p"].state_dict())
    assert all(torch.equal(weight, learnt[1][name]) for name, weight in learnt[0].items())


@pytest.mark.parametrize("old", ["recomputed", "first_pass"])
def test_an_engine_with_stale_weights_stops_the_run(old: Any) -> None:
    learner = FullLearner({"p": llama(0)}, Recipe(1e-3, old_logprobs=old), METHOD, 0)
    before = copy.deepcopy(learner.models["p"].state_dict())
    part = rows()
    for row, logprobs in zip(part, logprobs_of(learner, "p", part), strict=True):
        row.sampled_logprobs_T = logprobs - row.mask_T * np.float32(0.6)
    with pytest.raises(RuntimeError, match="engine not refreshed"):
        learner.step({"p": part})
    assert all(torch.equal(before[n], w) for n, w in learner.models["p"].state_dict().items())


def test_rows_that_no_engine_sampled_have_no_gap() -> None:
    learner = FullLearner({"p": llama(0)}, Recipe(1e-3), METHOD, 0)
    assert not {"gap_mean", "gap_max"} & set(learner.step({"p": rows()})["p"])


def test_a_host_files_joins_learns_and_forgets(untaught: Path) -> None:
    host = host_of(untaught)

    async def main() -> None:
        first = await say(host, "t1")
        await say(host, "t2", "b")
        await say(host, "t3", keep=False)
        assert first.version == 0
        with pytest.raises(KeyError, match="t3"):
            await host.learn({"a": [TurnReward("t3", 1.0)]}, 1.0)
        with pytest.raises(KeyError, match="never said here"):
            await host.learn({"b": [TurnReward("t1", 1.0)]}, 1.0)
        with pytest.raises(KeyError, match="rewarded twice"):
            await host.learn({"a": [TurnReward("t1", 1.0), TurnReward("t1", 0.0)]}, 1.0)
        stats, turns = await host.learn({"a": [TurnReward("t1", 1.0, "g")], "b": []}, 1.0)
        assert set(stats) == {"a"}
        assert set(turns) == {"t1"}
        assert (await say(host, "t4")).version == 1
        assert (await say(host, "t4", "b")).version == 0
        with pytest.raises(KeyError):
            await host.learn({"b": [TurnReward("t2", 1.0)]}, 1.0)
        await host.learn({"a": [TurnReward("t4", 1.0)]}, 1.0)  # nobody rewards b
        with pytest.raises(KeyError):
            await host.learn({"b": [TurnReward("t4", 1.0)]}, 1.0)

    asyncio.run(main())
    host.close()


def test_what_is_noted_of_a_turn_is_the_mean_over_its_generated_tokens() -> None:
    part = rows(3)
    for row in part:
        row.mask_T = np.arange(len(row.token_ids_T)) >= len(row.token_ids_T) - 1
        row.advantages_T = np.where(row.mask_T, 2.0, 0.0)
        row.logprobs_T = np.where(row.mask_T, -1.0, 0.0)
    part[0].ref_logprobs_T = np.where(part[0].mask_T, -1.5, -9.0)
    part[2].advantages_T = part[2].advantages_T * np.nan  # type: ignore[operator]
    assert turn_facts(part) == {"t0": (2.0, 0.5), "t1": (2.0, 0.0)}


def test_training_refuses_truncated_sampling(untaught: Path) -> None:
    host = host_of(untaught)
    for bad in ({"top_p": 0.9}, {"temperature": 0.0}):
        with pytest.raises(UserMistake, match="whole softmax"):
            asyncio.run(say(host, "t", **bad))
    host.close()


def test_a_policy_whose_update_was_skipped_keeps_its_version(
    untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(untaught)
    monkeypatch.setattr(host.learner, "step", lambda *_: {"a": {"updates": 0.0, "skipped": 1.0}})

    async def main() -> int:
        await say(host, "t1")
        await host.learn({"a": [TurnReward("t1", 1.0)]}, 1.0)
        return (await say(host, "t2")).version

    assert asyncio.run(main()) == 0
    host.close()


def test_a_refresh_reaches_the_engine(untaught: Path) -> None:
    host = host_of(untaught)
    before = asyncio.run(say(host, "t1"))
    with torch.no_grad():
        for p in host.learner.models["a"].parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
    assert asyncio.run(say(host, "t2")).logprob == before.logprob
    publish(host.engine, host.learner.weights())
    after = asyncio.run(say(host, "t3"))
    assert after.logprob != before.logprob
    row = host._buffer["a"]["t3"]
    np.testing.assert_allclose(
        logprobs_of(host.learner, "a", [row])[0], row.sampled_logprobs_T, atol=1e-4
    )
    host.close()


def test_policies_of_one_host_share_a_tokenizer(untaught: Path, tiny: Path) -> None:
    with pytest.raises(UserMistake, match="host of its own"):
        make_local_host("home", {"a": str(untaught), "b": str(tiny)})
