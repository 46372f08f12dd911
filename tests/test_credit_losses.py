"""Credit and losses against closed forms, properties and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.credit import EPS, grpo, kl_to_go, reinforce_pp, rloo
from comas.losses import Batch, clipped, plain
from comas.types import Row


def row(reward: float, tokens: int = 2, role: str = "solution", group: str | None = None, ratio: list[float] | None = None) -> Row:
    """Two prompt tokens and `tokens` generated ones; `ratio` is log(pi / pi_ref) of those."""
    T = 2 + tokens
    mask = np.arange(T) >= 2
    logprobs = np.full(T, -1.0, np.float32)
    ref = logprobs.copy()
    ref[2:] -= np.array(ratio if ratio is not None else [0.0] * tokens, np.float32)
    return Row(f"t{reward}{tokens}{role}", role, 1.0, np.arange(T), mask, logprobs, group, reward, None, ref)


def test_kl_to_go_sums_from_each_token_to_the_end() -> None:
    got = kl_to_go(row(0.0, 3, ratio=[1.0, 2.0, 4.0]), 0.5)
    np.testing.assert_allclose(got, [0, 0, 3.5, 3.0, 2.0])


def test_kl_without_reference_is_an_error() -> None:
    bare = row(1.0)
    bare.ref_logprobs_T = None
    with pytest.raises(ValueError, match="no reference"):
        kl_to_go(bare, 0.1)
    assert not kl_to_go(bare, 0.0).any()


def test_paper_form_is_equations_9_to_11() -> None:
    rows = [row(1.0, 1, ratio=[0.2]), row(0.0, 2, "scoring", ratio=[0.1, 0.3])]
    beta = {"solution": 0.5, "scoring": 0.5}
    raw = np.array([1.0 - 0.5 * 0.2, 0.0 - 0.5 * 0.4, 0.0 - 0.5 * 0.3])  # eq. 9: one number per generated token
    wanted = (raw - raw.mean()) / (raw.std() + EPS)  # eq. 10
    got = reinforce_pp(rows, beta, normalise="all")
    np.testing.assert_allclose(np.concatenate([got[0][2:], got[1][2:]]), wanted, rtol=1e-6)
    assert not got[0][:2].any()
    assert not got[1][:2].any()


def test_clean_form_normalises_rewards_per_role_and_adds_the_kl_unscaled() -> None:
    rows = [row(1.0), row(0.0), row(1.0), row(-1.0, 1, "scoring", ratio=[0.5]), row(0.0, 1, "scoring")]
    got = reinforce_pp(rows, {"scoring": 0.4})
    solution = (np.array([1, 0, 1]) - 2 / 3) / (np.std([1, 0, 1]) + EPS)
    for g, wanted in zip(got[:3], solution, strict=True):
        np.testing.assert_allclose(g[2:], wanted, rtol=1e-6)
    np.testing.assert_allclose(got[3][2:], -1.0 - 0.4 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(got[4][2:], 1.0, rtol=1e-6)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3])
def test_equal_rewards_of_a_role_give_exactly_nothing(reward: float) -> None:
    rows = [row(reward, n + 1) for n in range(7)] + [row(0.25 * n, role="evaluation") for n in range(3)]
    got = reinforce_pp(rows, {})
    assert all(not g.any() for g in got[:7])
    assert all(g[2:].any() for g in (got[7], got[9]))


def test_a_role_with_too_few_rows_gets_nothing_from_its_rewards() -> None:
    rows = [row(1.0), row(0.0), row(1.0, role="evaluation")]
    assert not reinforce_pp(rows, {})[2].any()
    assert not reinforce_pp(rows, {}, min_rows=3)[0].any()


def test_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"credit\.normalise"):
        reinforce_pp([row(1.0)], {}, normalise="some")


def test_grpo_and_rloo_compare_within_groups() -> None:
    rows = [row(1.0, group="a"), row(0.0, group="a"), row(0.0, group="a"), row(1.0, group="b"), row(1.0, group="b"), row(1.0)]
    scaled = [g[2] for g in grpo(rows, {})]
    np.testing.assert_allclose(scaled[:3], (np.array([1, 0, 0]) - 1 / 3) / (np.std([1, 0, 0]) + EPS))
    assert scaled[3:] == [0, 0, 0]
    np.testing.assert_allclose([g[2] for g in grpo(rows, {}, scale=False)][:3], np.array([1, 0, 0]) - 1 / 3)
    np.testing.assert_allclose([g[2] for g in rloo(rows, {})], [1.0, -0.5, -0.5, 0, 0, 0])


rewards = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=12)


@settings(deadline=None)
@given(rewards, st.lists(st.integers(1, 5), min_size=12, max_size=12))
def test_paper_form_has_mean_0_and_spread_1_over_tokens(values: list[float], lengths: list[int]) -> None:
    rows = [row(v, n) for v, n in zip(values, lengths, strict=False)]
    tokens = np.concatenate([g[2:] for g in reinforce_pp(rows, {}, normalise="all")])
    assert abs(tokens.mean()) < 1e-6
    if np.ptp(values) > 1e-3:
        assert abs(tokens.std() - 1) < 1e-4


@settings(deadline=None)
@given(rewards, st.randoms(use_true_random=False), st.floats(0.5, 4), st.floats(-3, 3))
def test_clean_form_ignores_order_scale_and_shift(values: list[float], rng: object, scale: float, shift: float) -> None:
    values = [round(v, 2) for v in values]  # spreads that scaling cannot round away
    before = [g[2] for g in reinforce_pp([row(v) for v in values], {})]
    after = [g[2] for g in reinforce_pp([row(scale * v + shift) for v in values], {})]
    np.testing.assert_allclose(before, after, atol=1e-5)
    order = list(range(len(values)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    shuffled = [g[2] for g in reinforce_pp([row(values[i]) for i in order], {})]
    np.testing.assert_allclose(shuffled, np.array(before)[order], atol=1e-12)


def batch(advantages: list[float], old: list[float]) -> Batch:
    return Batch(torch.tensor([advantages]).double(), torch.tensor([old]).double(), torch.ones(1, len(old), dtype=torch.bool))


def test_clipped_loss_against_its_formula() -> None:
    advantages, old, new = [1.0, 1.0, -1.0, -1.0, 2.0], [-1.0] * 5, [-0.5, -1.5, -0.5, -1.5, -1.1]
    got = clipped(torch.tensor([new]).double(), batch(advantages, old))[0]
    wanted = [-min(np.exp(n - o) * a, np.clip(np.exp(n - o), 0.8, 1.2) * a) for a, o, n in zip(advantages, old, new, strict=True)]
    np.testing.assert_allclose(got, wanted)


def test_gradients_against_finite_differences() -> None:
    advantages, old = [1.0, -0.7, 0.3], [-1.0, -2.0, -0.5]
    new = torch.tensor([[-1.1, -1.95, -0.52]], dtype=torch.float64, requires_grad=True)
    for loss in (clipped, plain):
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, batch(advantages, old)).sum(), (new,))


def test_at_ratio_one_the_clipped_gradient_is_the_policy_gradient() -> None:
    new = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(clipped(new, batch([0.5, -2.0], [-1.0, -2.0])).sum(), new)
    (wanted,) = torch.autograd.grad(plain(new, batch([0.5, -2.0], [-1.0, -2.0])).sum(), new)
    np.testing.assert_allclose(grad, wanted)


def test_outside_the_clip_nothing_is_learnt_in_that_direction() -> None:
    new = torch.tensor([[-0.5, -1.5]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(clipped(new, batch([1.0, -1.0], [-1.0, -1.0])).sum(), new)
    assert not grad.any()
