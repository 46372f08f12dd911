"""Named losses against closed forms."""

from __future__ import annotations

import pytest
import torch

from comas.objective.losses import Batch, cispo, clipped, dual_clipped, gspo

MASK = torch.tensor([[True, True], [True, False]])


def batch_of(advantages: list[list[float]]) -> Batch:
    shape = torch.tensor(advantages, dtype=torch.float64)
    return Batch(shape, torch.zeros_like(shape), MASK)


def ratios(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log().requires_grad_()


def test_clip_higher_bounds_the_two_sides_apart() -> None:
    logprobs = ratios([1.25, 1.5], [0.5, 1.0])
    terms = clipped(logprobs, batch_of([[1.0, 1.0], [-1.0, 0.0]]), clip=0.2, clip_high=0.28)
    assert terms.tolist()[0] == pytest.approx([-1.25, -1.28])
    assert terms.tolist()[1][0] == pytest.approx(0.8)
    same = clipped(logprobs, batch_of([[1.0, 1.0], [-1.0, 0.0]]))
    assert same.tolist()[0] == pytest.approx([-1.2, -1.2])


def test_dual_clip_bounds_what_a_bad_reply_can_cost() -> None:
    logprobs = ratios([10.0, 2.0], [1.0, 1.0])
    terms = dual_clipped(logprobs, batch_of([[-1.0, -1.0], [1.0, 0.0]]), dual=3.0)
    assert terms.tolist()[0] == pytest.approx([3.0, 2.0])
    assert terms.tolist()[1][0] == pytest.approx(-1.0)


def test_gspo_has_the_gradient_of_the_sequence_objective() -> None:
    logprobs = ratios([1.2, 0.9], [1.1, 7.0])
    batch = batch_of([[1.0, 1.0], [-2.0, 0.0]])
    terms = gspo(logprobs, batch, clip=0.5, clip_high=0.5)
    torch.where(MASK, terms, 0.0).sum().backward()
    assert logprobs.grad is not None
    of_tokens = logprobs.grad.clone()
    logprobs.grad = None
    lengths = MASK.sum(1)
    sequence_B = (torch.where(MASK, logprobs, 0.0).sum(1) / lengths).exp()
    (-(lengths * sequence_B * torch.tensor([1.0, -2.0]))).sum().backward()
    torch.testing.assert_close(of_tokens * MASK, logprobs.grad * MASK)


def test_gspo_clips_whole_replies() -> None:
    logprobs = ratios([3.0, 3.0], [1.0, 1.0])
    terms = gspo(logprobs, batch_of([[1.0, 1.0], [1.0, 0.0]]))
    torch.where(MASK, terms, 0.0).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == [0.0, 0.0]
    assert logprobs.grad[1][0] != 0


def test_cispo_clips_the_weight_and_leaves_no_token_out() -> None:
    logprobs = ratios([5.0, 0.01], [1.0, 1.0])
    cispo(logprobs, batch_of([[1.0, 2.0], [0.0, 0.0]])).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-1.28, -0.02])


def test_gspo_of_a_reply_without_tokens_has_no_gradient() -> None:
    logprobs = ratios([1.2, 0.9], [1.0, 1.0])
    mask = torch.tensor([[True, True], [False, False]])
    batch = Batch(
        torch.ones(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64), mask
    )
    torch.where(mask, gspo(logprobs, batch, clip=0.5, clip_high=0.5), 0.0).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[1].tolist() == [0.0, 0.0]
