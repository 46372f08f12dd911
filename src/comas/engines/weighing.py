"""The log-probs of given continuations: each token is read off the logits behind what precedes it.

A choice of k tokens needs the logits behind the prompt and behind its own first k - 1 tokens; what
choices share is asked for once, so that choices of one token each cost one prompt. Leaves out: how
an engine computes logits behind a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from comas.engines.tape import DRAWN
from comas.seams import Weighing, in_float64

Prompt = tuple[str, np.ndarray]
"""Policy and token ids."""
Behind = Callable[[Sequence[Prompt]], Iterable[tuple[Sequence[int], Tensor]]]
"""`behind(prompts)` -> places of some prompts and the logits behind each of them, (N, V), until all
have had their turn.
"""
Cell = tuple[int, int, int]
"""Of a result: the number of the weighing, of its choice, of the choice's token."""


@torch.no_grad()
def weigh_all(weighings: Sequence[Weighing], behind: Behind) -> list[list[np.ndarray]]:
    """Per weighing and choice the float32 log-probs of its tokens."""
    prompts: list[Prompt] = []
    wanted: list[list[Cell]] = []
    """Per prompt, whose tokens are read off the logits behind it."""
    place_of: dict[tuple[str, bytes], int] = {}
    for number, weighing in enumerate(weighings):
        for which, choice in enumerate(weighing.choices):
            for t in range(len(choice)):
                ids = np.concatenate([weighing.prompt_ids, choice[:t]])
                place = place_of.setdefault((weighing.policy, ids.tobytes()), len(prompts))
                if place == len(prompts):
                    prompts.append((weighing.policy, ids))
                    wanted.append([])
                wanted[place].append((number, which, t))
    weights = [[np.zeros(len(c), np.float32) for c in w.choices] for w in weighings]
    for places, logits_NV in behind(prompts):
        size = max(1, DRAWN // logits_NV.shape[1])
        for start in range(0, len(places), size):
            logprobs_NV = in_float64(logits_NV[start : start + size]).log_softmax(-1)
            part = enumerate(places[start : start + size])
            cells = [(row, cell) for row, place in part for cell in wanted[place]]
            rows = [row for row, _ in cells]
            tokens = [int(weighings[n].choices[which][t]) for _, (n, which, t) in cells]
            # a vocabulary per prompt stays on the device
            read = logprobs_NV[rows, tokens].tolist()
            for (_, (number, which, t)), logprob in zip(cells, read, strict=True):
                weights[number][which][t] = logprob
    return weights
