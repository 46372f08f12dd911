"""Requests of several policies in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comas.seams import Request
from comas.types import Sampling


def requests(
    count: int, policies: Sequence[str], vocabulary: int = 50, **sampling: float
) -> list[Request]:
    rng = np.random.default_rng(1)
    return [
        Request(
            policies[int(rng.integers(len(policies)))],
            rng.integers(6, vocabulary, 2 + int(rng.integers(20))),
            Sampling(max_tokens=12 - i % 5, **sampling),
            99 + i,
        )
        for i in range(count)
    ]
