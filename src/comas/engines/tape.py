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
from comas.types import Generation, Meter, Request

DRAWN = 2**22
"""Probabilities, in float64, from which tokens are drawn at once, more where a vocabulary is
larger: bounds memory.
"""


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
        size = max(1, DRAWN // logits_BV.shape[1])
        given = (
            logits_BV,
            *map(
                torch.from_numpy,
                (self.noise_RT[rows, step_B], self.temperature_R[rows], self.top_p_R[rows]),
            ),
        )
        parts = [draw(*part) for part in zip(*(g.split(size) for g in given), strict=True)]
        ids_B, logprobs_B, margin_B = (torch.cat(t).cpu().numpy() for t in zip(*parts, strict=True))
        live_B = (rows_B >= 0) & self.alive_R[rows]
        r = rows[live_B]
        step = step_B[live_B]
        self.ids_RT[r, step], self.logprobs_RT[r, step] = ids_B[live_B], logprobs_B[live_B]
        self.margin_R[r] = np.minimum(self.margin_R[r], margin_B[live_B])
        self.length_R[r] = step + 1
        self.ended_R[r] = (ids_B[live_B][:, None] == self.end_ids).any(1)
        done = r[self.ended_R[r] | (self.limit_R[r] == step + 1)]
        self.alive_R[done] = False
        self.seconds_R[done] = time.monotonic() - self.began
        self.meter.tokens += len(r)
        self.meter.replies += len(done)
        return ids_B

    def generations(self) -> list[Generation]:
        return [
            Generation(
                self.ids_RT[i, :n].copy(),
                self.logprobs_RT[i, :n].copy(),
                bool(self.ended_R[i]),
                float(self.margin_R[i]),
                float(self.seconds_R[i]),
            )
            for i, n in enumerate(self.length_R)
        ]
