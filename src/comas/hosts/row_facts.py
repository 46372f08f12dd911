"""What a host tells of the rows that it has sampled and learnt from: how many draws were near
another token, and what a turn's tokens came to.

Leaves out: how rows are filed and joined (`hosts.local_host`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from comas.seams import TIE
from comas.types import Row

TurnFacts = dict[str, tuple[float, float]]
"""Turn -> mean advantage and mean KL of its generated tokens."""


def expected_ties(rows: Sequence[Row]) -> float:
    """Of how many replies a draw is expected within `TIE` of another token, given the tokens that
    were drawn.

    A draw is uniform within the interval of its token, whose width is its probability p: it lies
    within TIE of an end with probability min(1, 2 TIE / p). A large vocabulary has many narrow
    intervals, and so many near-ties.
    """
    sampled = [
        row.sampled_logprobs_T[row.mask_T] for row in rows if row.sampled_logprobs_T is not None
    ]
    sampled = [logprobs for logprobs in sampled if len(logprobs)]
    if not sampled:
        return 0.0
    near = np.minimum(1 - 1e-9, 2 * TIE * np.exp(-np.concatenate(sampled).astype(np.float64)))
    starts = np.cumsum([0, *map(len, sampled[:-1])])
    return float((-np.expm1(np.add.reduceat(np.log1p(-near), starts))).sum())


def turn_facts(rows: Sequence[Row]) -> TurnFacts:
    """Mean advantage and KL of each turn that was learnt from; advantages that are not finite are
    left out.
    """
    facts: TurnFacts = {}
    for row in rows:
        advantages_T = row.advantages_T
        if advantages_T is not None and np.isfinite(advantages_T).all():
            facts[row.turn] = float(advantages_T[row.mask_T].mean()), _mean_kl(row)
    return facts


def _mean_kl(row: Row) -> float:
    """Mean of log(pi / pi_ref) over the row's tokens; 0 where no reference was asked for."""
    if row.ref_logprobs_T is None:
        return 0.0
    return float((row.logprobs_T - row.ref_logprobs_T)[row.mask_T].mean())
