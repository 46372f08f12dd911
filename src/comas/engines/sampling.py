"""Drawing tokens: inverse CDF with counter-based noise, so that batching changes no text.

Draw t of a request uses one uniform number that depends on (request seed, t) alone. Arithmetic is
in fp64: the only way for two batches to differ is a logit that rounding moved across the edge of an
interval, and `margin` says how near each reply came to that.
"""

from __future__ import annotations

import numpy as np
import torch

from comas.seams import in_float64


def uniforms(seeds: list[int], count: int) -> np.ndarray:
    """Noise of shape (len(seeds), count) in [0, 1), float64; row i depends on seeds[i] alone."""
    bits = np.random.Philox(key=0)
    noise = np.empty((len(seeds), count))
    generator = np.random.Generator(bits)
    fresh = bits.state
    # the state of Philox(key=seed), without the cost of making one
    for row, seed in zip(noise, seeds, strict=True):
        fresh["state"]["key"][:] = seed & (2**64 - 1), seed >> 64
        bits.state = fresh
        generator.random(out=row)
    return noise


@torch.no_grad()
def draw(
    logits_BV: torch.Tensor,
    noise_B: torch.Tensor,
    temperature_B: torch.Tensor,
    top_p_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their log-probs (nats, of softmax(logits / T); T = 1 for greedy rows) and margins
    (probability mass).

    Temperature 0 is greedy; its margin is the distance between the two best probabilities. With
    `top_p_B`, tokens are drawn from the smallest set of that mass, and the log-prob is still that
    of the whole softmax. Wherever the logits are, the rest may be on the CPU: what rows want is
    then known without waiting for a GPU. Results are on the CPU where an Apple GPU has the logits.
    """
    logits_BV = in_float64(logits_BV)
    device = logits_BV.device
    greedy = bool((temperature_B == 0).any())
    narrowed = top_p_B is not None and bool((top_p_B < 1).any())
    noise_B = noise_B.to(device, non_blocking=True)
    temperature_B = temperature_B.to(device, non_blocking=True)
    greedy_B = temperature_B == 0
    divisor_B = torch.where(greedy_B, 1.0, temperature_B.double())
    scaled_BV = logits_BV / divisor_B[:, None]
    logprobs_BV = scaled_BV.log_softmax(-1)
    probs_BV = logprobs_BV.exp()
    if top_p_B is not None and narrowed:
        mass_B = top_p_B.double().to(device, non_blocking=True)
        probs_BV = _nucleus(probs_BV, mass_B)
    edges_BV = probs_BV.cumsum(-1)
    point_B1 = (noise_B.double() * edges_BV[:, -1])[:, None]
    last = logits_BV.shape[1] - 1
    ids_B1 = torch.searchsorted(edges_BV, point_B1, right=True).clamp(max=last)
    upper_B1 = edges_BV.gather(1, ids_B1)
    lower_B1 = upper_B1 - probs_BV.gather(1, ids_B1)
    margin_B = torch.minimum(upper_B1 - point_B1, point_B1 - lower_B1)[:, 0]
    if greedy:
        best_B2, best_ids_B2 = logprobs_BV.topk(2, dim=-1)
        ids_B1 = torch.where(greedy_B[:, None], best_ids_B2[:, :1], ids_B1)
        probs_B2 = best_B2.exp()
        margin_B = torch.where(greedy_B, probs_B2[:, 0] - probs_B2[:, 1], margin_B)
    return ids_B1[:, 0], logprobs_BV.gather(1, ids_B1)[:, 0], margin_B


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    ordered_BV, order_BV = probs_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.cumsum(-1) - ordered_BV
    kept_BV = torch.where(before_BV < top_p_B[:, None], ordered_BV, 0.0)
    return torch.zeros_like(probs_BV).scatter(1, order_BV, kept_BV)
