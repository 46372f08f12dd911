"""Texts of engines, compared."""

from __future__ import annotations

import numpy as np

from comas.seams import Request
from comas.types import Sampling


def asked(policies: int = 1, count: int = 14, common: int = 120) -> list[Request]:
    """Half of the prompts begin alike, a quarter has nothing in common, a quarter is that again;
    longer than the windows.
    """
    rng = np.random.default_rng(0)
    system_ids = rng.integers(20, 90, common)
    found = []
    for i in range(count):
        own = rng.integers(20, 90, 3 + 7 * (i % 3))
        prompt = (
            found[-1].prompt_ids
            if i % 4 == 2
            else own
            if i % 4 == 1
            else np.concatenate([system_ids, own])
        )
        found.append(
            Request(
                f"p{i * policies // count}", prompt, Sampling(max_tokens=30 - 5 * (i % 4)), 5 + i
            )
        )
    return found[::2] + found[1::2]


def same(wanted: list, got: list) -> None:
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        assert a.finished == b.finished
