"""What a batch of requests has drawn so far, and the drawing of the next token of each.

Leaves out: where the logits come from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from comas.engines.sampling import draw, uniforms
from comas.seams import Generation, Request
from comas.types import Meter

DRAWN = 2**22
"""Probabilities, in float64, from which tokens are drawn at once, more where a vocabulary is
larger: bounds memory.
"""


def drawing_bytes(vocabulary: int, rows: int) -> int:
    """Bytes of drawing a token for each of these rows: logits, probabilities, their sums and what
    is between.
    """
    at_once = min(rows, max(1, DRAWN // vocabulary))
    return 8 * 4 * vocabulary * at_once


@dataclass
class Tape:
    """What has been drawn so far for R requests; row r holds `length[r]` tokens."""

    requests: Sequence[Request]
    end_ids: np.ndarray
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        R = len(self.requests)
        self.limit_R = np.array([r.sampling.max_tokens for r in self.requests])
        self.ids_RT = np.zeros((R, int(self.limit_R.max())), dtype=np.int64)
        self.logprobs_RT = np.zeros(self.ids_RT.shape, dtype=np.float32)
        self.margin_R = np.ones(R)
        self.length_R = np.zeros(R, dtype=np.int64)
        self.alive_R = np.ones(R, dtype=bool)
        self.ended_R = np.zeros(R, dtype=bool)
        self.seconds_R = np.zeros(R)
        self.began = time.monotonic()
        self.noise_RT = uniforms([r.seed for r in self.requests], self.ids_RT.shape[1])
        self.temperature_R = np.array([r.sampling.temperature for r in self.requests])
        self.top_p_R = np.array([r.sampling.top_p for r in self.requests])

    def draw(self, logits_BV: torch.Tensor, rows_B: np.ndarray) -> np.ndarray:
        """Draw the next token of requests `rows_B`; entries of -1 are padding.

        Returns the ids, shape (B,).
        """
        rows = np.maximum(rows_B, 0)
        # rows that have ended draw what nobody reads
        step_B = np.minimum(self.length_R[rows], self.limit_R[rows] - 1)
        ids_B, logprobs_B, margin_B = self._drawn(logits_BV, rows, step_B)
        live_B = (rows_B >= 0) & self.alive_R[rows]
        live = rows[live_B]
        step = step_B[live_B]
        ids = ids_B[live_B]
        self.ids_RT[live, step] = ids
        self.logprobs_RT[live, step] = logprobs_B[live_B]
        self.margin_R[live] = np.minimum(self.margin_R[live], margin_B[live_B])
        self.length_R[live] = step + 1
        self.ended_R[live] = (ids[:, None] == self.end_ids).any(1)
        done = live[self.ended_R[live] | (self.limit_R[live] == step + 1)]
        self.alive_R[done] = False
        self.seconds_R[done] = time.monotonic() - self.began
        self.meter.tokens += len(live)
        self.meter.replies += len(done)
        return ids_B

    def _drawn(
        self, logits_BV: torch.Tensor, rows: np.ndarray, step_B: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Ids, log-probs and margins, at most `DRAWN` probabilities at once."""
        settings = self.noise_RT[rows, step_B], self.temperature_R[rows], self.top_p_R[rows]
        inputs = (logits_BV, *map(torch.from_numpy, settings))
        size = max(1, DRAWN // logits_BV.shape[1])
        slices = zip(*(tensor.split(size) for tensor in inputs), strict=True)
        parts = [draw(*inputs_of_part) for inputs_of_part in slices]
        return tuple(torch.cat(tensors).cpu().numpy() for tensors in zip(*parts, strict=True))

    def generations(self) -> list[Generation]:
        """What was drawn for each request, in their order."""
        return [
            Generation(
                self.ids_RT[row, :length].copy(),
                self.logprobs_RT[row, :length].copy(),
                bool(self.ended_R[row]),
                float(self.margin_R[row]),
                float(self.seconds_R[row]),
            )
            for row, length in enumerate(self.length_R)
        ]
