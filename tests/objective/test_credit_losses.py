"""Credit and losses against closed forms, properties and finite differences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comas.objective.credit import filtered, grpo, kl_to_go, reinforce_pp, rloo, surprise
from comas.objective.losses import Batch, clipped, plain
from comas.types import Row


def row(
    reward: float,
    tokens: int = 2,
    role: str = "solution",
    group: str | None = None,
    ratio: list[float] | None = None,
) -> Row:
    """Two prompt tokens and `tokens` generated ones; `ratio` is log(pi / pi_ref) of those."""
    T = 2 + tokens
    mask = np.arange(T) >= 2
    logprobs = np.full(T, -1.0, np.float32)
    ref = logprobs.copy()
    ref[2:] -= np.array(ratio if ratio is not None else [0.0] * tokens, np.float32)
    return Row(
        f"t{reward}{tokens}{role}",
        role,
        1.0,
        np.arange(T),
        mask,
        logprobs,
        group,
        reward,
        None,
        ref,
    )


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
    # eq. 9: one number per generated token
    raw = np.array([1.0 - 0.5 * 0.2, 0.0 - 0.5 * 0.4, 0.0 - 0.5 * 0.3])
    wanted = (raw - raw.mean()) / (raw.std())  # eq. 10
    got = reinforce_pp(rows, beta, normalise="all")
    np.testing.assert_allclose(np.concatenate([got[0][2:], got[1][2:]]), wanted, rtol=1e-6)
    assert not got[0][:2].any()
    assert not got[1][:2].any()


def test_clean_form_normalises_rewards_per_role_and_adds_the_kl_unscaled() -> None:
    rows = [
        row(1.0),
        row(0.0),
        row(1.0),
        row(-1.0, 1, "scoring", ratio=[0.5]),
        row(0.0, 1, "scoring"),
    ]
    got = reinforce_pp(rows, {"scoring": 0.4})
    solution = (np.array([1, 0, 1]) - 2 / 3) / (np.std([1, 0, 1]))
    for g, wanted in zip(got[:3], solution, strict=True):
        np.testing.assert_allclose(g[2:], wanted, rtol=1e-6)
    np.testing.assert_allclose(got[3][2:], -1.0 - 0.4 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(got[4][2:], 1.0, rtol=1e-6)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3])
def test_equal_rewards_of_a_role_give_exactly_nothing(reward: float) -> None:
    rows = [row(reward, n + 1) for n in range(7)] + [
        row(0.25 * n, role="evaluation") for n in range(3)
    ]
    got = reinforce_pp(rows, {})
    assert all(not g.any() for g in got[:7])
    assert all(g[2:].any() for g in (got[7], got[9]))


def test_a_role_with_too_few_rows_gets_nothing_from_its_rewards() -> None:
    rows = [row(1.0), row(0.0), row(1.0, role="evaluation")]
    assert not reinforce_pp(rows, {})[2].any()
    assert not reinforce_pp(rows, {}, min_rows=3)[0].any()


def test_without_normalisation_rewards_are_taken_as_they_are() -> None:
    rows = [row(1.0), row(0.5, 1, ratio=[0.5]), row(0.5, role="scoring")]
    got = reinforce_pp(rows, {"solution": 0.4}, normalise="none")
    for advantages, wanted in zip(got, (1.0, 0.5 - 0.4 * 0.5, 0.5), strict=True):
        np.testing.assert_allclose(advantages[2:], wanted, rtol=1e-6)


def test_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"credit\.normalise"):
        reinforce_pp([row(1.0)], {}, normalise="some")


def test_grpo_and_rloo_compare_within_groups() -> None:
    rows = [
        row(1.0, group="a"),
        row(0.0, group="a"),
        row(0.0, group="a"),
        row(1.0, group="b"),
        row(1.0, group="b"),
        row(1.0),
    ]
    scaled = [g[2] for g in grpo(rows, {})]
    np.testing.assert_allclose(scaled[:3], (np.array([1, 0, 0]) - 1 / 3) / (np.std([1, 0, 0])))
    assert scaled[3:] == [0, 0, 0]
    np.testing.assert_allclose(
        [g[2] for g in grpo(rows, {}, scale=False)][:3], np.array([1, 0, 0]) - 1 / 3
    )
    np.testing.assert_allclose([g[2] for g in rloo(rows, {})], [1.0, -0.5, -0.5, 0, 0, 0])


rewards = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=12)


@settings(deadline=None)
@given(rewards, st.lists(st.integers(1, 5), min_size=12, max_size=12))
def test_paper_form_has_mean_0_and_spread_1_over_tokens(
    values: list[float], lengths: list[int]
) -> None:
    rows = [row(v, n) for v, n in zip(values, lengths, strict=False)]
    tokens = np.concatenate([g[2:] for g in reinforce_pp(rows, {}, normalise="all")])
    assert abs(tokens.mean()) < 1e-6
    if np.ptp(values) > 1e-3:
        assert abs(tokens.std() - 1) < 1e-4


@settings(deadline=None)
@given(rewards, st.randoms(use_true_random=False), st.floats(0.5, 4), st.floats(-3, 3))
def test_clean_form_ignores_order_scale_and_shift(
    values: list[float], rng: object, scale: float, shift: float
) -> None:
    values = [round(v, 2) for v in values]  # spreads that scaling cannot round away
    before = [g[2] for g in reinforce_pp([row(v) for v in values], {})]
    after = [g[2] for g in reinforce_pp([row(scale * v + shift) for v in values], {})]
    np.testing.assert_allclose(before, after, atol=1e-5)
    order = list(range(len(values)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    shuffled = [g[2] for g in reinforce_pp([row(values[i]) for i in order], {})]
    np.testing.assert_allclose(shuffled, np.array(before)[order], atol=1e-12)


def batch(advantages: list[float], old: list[float]) -> Batch:
    return Batch(
        torch.tensor([advantages]).double(),
        torch.tensor([old]).double(),
        torch.ones(1, len(old), dtype=torch.bool),
    )


def test_clipped_loss_against_its_formula() -> None:
    advantages = [1.0, 1.0, -1.0, -1.0, 2.0]
    old = [-1.0] * 5
    new = [-0.5, -1.5, -0.5, -1.5, -1.1]
    got = clipped(torch.tensor([new]).double(), batch(advantages, old))[0]
    wanted = [
        -min(np.exp(n - o) * a, np.clip(np.exp(n - o), 0.8, 1.2) * a)
        for a, o, n in zip(advantages, old, new, strict=True)
    ]
    np.testing.assert_allclose(got, wanted)


def test_gradients_against_finite_differences() -> None:
    advantages = [1.0, -0.7, 0.3]
    old = [-1.0, -2.0, -0.5]
    new = torch.tensor([[-1.1, -1.95, -0.52]], dtype=torch.float64, requires_grad=True)
    for loss in (clipped, plain):
        assert torch.autograd.gradcheck(
            lambda x, f=loss: f(x, batch(advantages, old)).sum(), (new,)
        )


def test_at_ratio_one_the_clipped_gradient_is_the_policy_gradient() -> None:
    new = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(clipped(new, batch([0.5, -2.0], [-1.0, -2.0])).sum(), new)
    (wanted,) = torch.autograd.grad(plain(new, batch([0.5, -2.0], [-1.0, -2.0])).sum(), new)
    np.testing.assert_allclose(grad, wanted)


def test_outside_the_clip_nothing_is_learnt_in_that_direction() -> None:
    new = torch.tensor([[-0.5, -1.5]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(clipped(new, batch([1.0, -1.0], [-1.0, -1.0])).sum(), new)
    assert not grad.any()


def credits(form: str, rows: list[Row], kl: dict[str, float] | None = None) -> list[np.ndarray]:
    function, options = {
        "all": (reinforce_pp, {"normalise": "all"}),
        "role": (reinforce_pp, {}),
        "grpo": (grpo, {}),
        "dr": (grpo, {"scale": False}),
        "rloo": (rloo, {}),
    }[form]
    return function(rows, kl or {}, **options)


FORMS = ["all", "role", "grpo", "dr", "rloo"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, -1.0, 1e-9, 1e9])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_equal_rewards_give_exactly_nothing_in_every_form(
    form: str, reward: float, count: int
) -> None:
    assert not any(
        a.any() for a in credits(form, [row(reward, n + 1, group="g") for n in range(count)])
    )


def test_rounding_of_log_probs_is_no_advantage_where_all_are_paid_the_same() -> None:
    noise = [[1e-8, -2e-8], [3e-8, 1e-8], [-1e-8, 0.0]]
    rows = [row(-1.0, 2, ratio=[0.0, 0.0]) for _ in noise]
    for said, ratio in zip(rows, noise, strict=True):
        said.ref_logprobs_T = said.logprobs_T.astype(np.float64)
        said.ref_logprobs_T[2:] -= ratio
    for a in credits("all", rows, {"solution": 0.1}):
        np.testing.assert_allclose(a, 0.0, atol=1e-8)
    # a KL that is more than rounding is subtracted unscaled, as in every other form
    (paid, _) = credits("all", [row(0.5, 1, ratio=[0.2]), row(0.5, 1)], {"solution": 0.1})
    np.testing.assert_allclose(paid[2:], [-0.02], atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_prompts_get_no_advantage_and_rows_are_not_touched(form: str) -> None:
    rows = [
        row(float(n % 3), n + 1, "solution" if n % 2 else "scoring", "g", [0.1] * (n + 1))
        for n in range(6)
    ]
    before = [(r.reward, r.logprobs_T.copy(), r.mask_T.copy()) for r in rows]
    got = credits(form, rows, {"solution": 0.3, "scoring": 0.2})
    for r, a, (reward, logprobs, mask) in zip(rows, got, before, strict=True):
        assert a.shape == r.token_ids_T.shape
        assert np.isfinite(a).all()
        assert not a[~r.mask_T].any()
        assert a[r.mask_T].any()
        assert r.reward == reward
        assert (r.logprobs_T == logprobs).all()
        assert (r.mask_T == mask).all()


def test_paper_form_by_hand_with_kl_over_two_roles() -> None:
    """Equations 9 to 11 in plain Python: three rows, two roles, beta 0.5, token by token."""
    ratios = [[0.2, -0.1], [0.4], [0.0, 0.1, 0.3]]
    paid = [1.0, -1.0, 0.5]
    rows = [
        row(r, len(k), role, ratio=k)
        for r, k, role in zip(paid, ratios, ["solution", "scoring", "evaluation"], strict=True)
    ]
    nine = [r - 0.5 * sum(k[t:]) for r, k in zip(paid, ratios, strict=True) for t in range(len(k))]
    mean = sum(nine) / 6
    spread = (sum((x - mean) ** 2 for x in nine) / 6) ** 0.5
    ten = [(x - mean) / spread for x in nine]
    got = reinforce_pp(
        rows, dict.fromkeys(["solution", "scoring", "evaluation"], 0.5), normalise="all"
    )
    np.testing.assert_allclose(np.concatenate([a[2:] for a in got]), ten, rtol=1e-5)
    # equation 11 at a ratio of exp(0.3), clipped at 1.2
    old = -1.0
    new = -0.7
    terms = clipped(torch.full((1, 6), new).double(), batch(ten, [old] * 6))[0]
    np.testing.assert_allclose(terms, [-min(np.exp(0.3) * a, 1.2 * a) for a in ten])


def test_in_the_paper_form_long_rows_weigh_more_and_in_the_clean_form_they_do_not() -> None:
    rows = [row(1.0, 9), row(0.0, 1)]
    assert [a[2] for a in reinforce_pp(rows, {}, normalise="all")] == [
        pytest.approx(1 / 3, abs=1e-6),
        pytest.approx(-3, abs=1e-6),
    ]
    assert [a[2] for a in reinforce_pp(rows, {})] == [
        pytest.approx(1, abs=1e-6),
        pytest.approx(-1, abs=1e-6),
    ]


@pytest.mark.parametrize("form", ["role", "grpo", "dr", "rloo"])
def test_the_kl_is_subtracted_afterwards_unscaled(form: str) -> None:
    rows = [row(5.0 * n, 3, group="g", ratio=[0.1, 0.2, -0.4]) for n in range(4)]
    for with_kl, without in zip(
        credits(form, rows, {"solution": 0.5}), credits(form, rows), strict=True
    ):
        np.testing.assert_allclose(
            (without - with_kl)[2:], [0.5 * -0.1, 0.5 * -0.2, 0.5 * -0.4], atol=1e-6
        )


def test_a_role_of_equal_rewards_keeps_its_kl_and_nothing_else() -> None:
    rows = [row(0.0, 2, "scoring", ratio=[0.3, 0.1]) for _ in range(5)] + [row(1.0), row(0.0)]
    for a in reinforce_pp(rows, {"scoring": 0.5})[:5]:
        np.testing.assert_allclose(a[2:], [-0.2, -0.05], atol=1e-7)


values = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=10)


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=60)
@given(paid=values, data=st.data())
def test_every_form_is_permutation_equivariant(
    form: str, paid: list[float], data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=len(paid), max_size=len(paid)))
    keys = data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=len(paid), max_size=len(paid)))
    rows = [
        row(v, n, f"role {k}", k, [0.1 * v] * n)
        for v, n, k in zip(paid, lengths, keys, strict=True)
    ]
    order = data.draw(st.permutations(range(len(paid))))
    kl = {"role a": 0.2}
    before = credits(form, rows, kl)
    after = credits(form, [rows[i] for i in order], kl)
    for place, i in enumerate(order):
        np.testing.assert_allclose(after[place], before[i], atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=60)
@given(
    paid=values,
    scale=st.sampled_from([0.5, 2.0, 4.0]),
    shift=st.sampled_from([-2.0, 0.0, 1.0, 8.0]),
)
def test_shifting_rewards_changes_nothing_and_scaling_them_only_what_is_not_divided(
    form: str, paid: list[float], scale: float, shift: float
) -> None:
    before = credits(form, [row(v, 2, group="g") for v in paid])
    after = credits(form, [row(scale * v + shift, 2, group="g") for v in paid])
    factor = scale if form in ("dr", "rloo") else 1.0
    np.testing.assert_allclose(np.array(after), factor * np.array(before), atol=1e-6)


@settings(deadline=None, max_examples=80)
@given(paid=values, data=st.data())
def test_sums_that_must_vanish_and_spreads_that_must_be_one(
    paid: list[float], data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=len(paid), max_size=len(paid)))
    rows = [row(v, 1, k, k) for v, k in zip(paid, keys, strict=True)]
    for form in FORMS[1:]:
        got = np.array([a[2] for a in credits(form, rows)])
        for key in set(keys):
            mine = got[[k == key for k in keys]]
            assert abs(mine.sum()) < 1e-9
            assert form not in ("role", "grpo") or not mine.any() or abs(mine.std() - 1) < 1e-6


def test_rloo_is_reward_minus_the_mean_of_the_others() -> None:
    paid = [0.0, 1.0, 0.5, 1.0]
    got = [a[2] for a in rloo([row(v, group="g") for v in paid], {})]
    np.testing.assert_allclose(got, [v - (sum(paid) - v) / 3 for v in paid])


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.5])
def test_clipped_loss_and_its_slope_on_a_grid(clip: float) -> None:
    """Where the ratio has left the interval on the side that the advantage pushes to: flat;
    elsewhere the slope is -ratio A.
    """
    for advantage in (-2.0, -0.5, 0.0, 1.5):
        for ratio in (0.3, 0.85, 0.95, 1.0, 1.05, 1.15, 1.7):
            new = torch.tensor([[np.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
            loss = clipped(new, batch([advantage], [-1.0]), clip=clip)
            (slope,) = torch.autograd.grad(loss.sum(), new)
            flat = (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip)
            assert loss.item() == pytest.approx(
                -min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
            )
            assert slope.item() == pytest.approx(0.0 if flat else -ratio * advantage)
            step = 1e-6
            ends = [
                clipped(new.detach() + s, batch([advantage], [-1.0]), clip=clip).item()
                for s in (step, -step)
            ]
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope.item(), abs=1e-6)


def test_losses_are_per_token_and_of_the_same_shape() -> None:
    advantages = torch.randn(3, 5).double()
    old = torch.randn(3, 5).double()
    made = Batch(advantages, old, torch.ones(3, 5, dtype=torch.bool))
    for loss in (clipped, plain):
        whole = loss(old - 0.1, made)
        assert whole.shape == (3, 5)
        one = loss(
            (old - 0.1)[1:2, 2:3],
            Batch(advantages[1:2, 2:3], old[1:2, 2:3], made.mask_BT[1:2, 2:3]),
        )
        assert one.item() == whole[1, 2].item()


def test_a_bonus_for_entropy_pays_what_is_unlikely() -> None:
    said = replace(row(1.0), logprobs_T=np.array([-9.0, -9.0, -1.0, -3.0], np.float32))
    np.testing.assert_allclose(surprise(said, 0.5), [0, 0, 0.5, 1.5])
    (paid,) = reinforce_pp([said], {}, normalise="none", entropy=0.5)
    np.testing.assert_allclose(paid, [0, 0, 1.5, 2.5])
    other = replace(said, reward=-1.0)
    with_bonus, bare = (
        reinforce_pp([said, other], {}, normalise="all", entropy=weight)[0] for weight in (0.5, 0.0)
    )
    np.testing.assert_allclose(with_bonus - bare, [0, 0, 0.5, 1.5])


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_the_expected_bonus_is_the_gradient_of_the_entropy(tokens: int) -> None:
    """Of replies of tokens that are drawn alike, exactly, also of one token."""
    logits = np.array([1.0, 0.2, -0.7])
    p = np.exp(logits) / np.exp(logits).sum()
    entropy = -(p * np.log(p)).sum()
    of_entropy = tokens * -p * (np.log(p) + entropy)
    found = np.zeros(3)
    for said in itertools.product(range(3), repeat=tokens):
        logprobs = np.log(p[list(said)])
        mask = np.array([False] + [True] * tokens)
        reply = Row("t", "r", 1.0, np.array([0, *said]), mask, np.array([0.0, *logprobs]))
        scores = np.eye(3)[list(said)] - p
        found += np.exp(logprobs.sum()) * (surprise(reply, 1.0)[1:] @ scores)
    np.testing.assert_allclose(found, of_entropy, atol=1e-9)


def test_rows_without_a_group_are_compared_with_nobody() -> None:
    for form in (grpo, rloo):
        assert not any(a.any() for a in form([row(1.0), row(0.0)], {}))


def test_what_is_worth_no_more_than_the_bound_is_not_kept() -> None:
    paid = [row(value) for value in (0.0, 0.5, 1.0)]
    assert [a.tolist() for a in filtered(paid, {})] == [[0] * 4, [0, 0, 1, 1], [0, 0, 1, 1]]
    assert [a.any() for a in filtered(paid, {}, above=0.5)] == [False, False, True]
