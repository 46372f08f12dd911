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
from comas.seams import Weighing

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
            part_NV = logits_NV[start : start + size].double()
            logprobs_NV = part_NV.log_softmax(-1).cpu().numpy()
            for place, logprobs_V in zip(places[start : start + size], logprobs_NV, strict=True):
                for number, which, t in wanted[place]:
                    token = weighings[number].choices[which][t]
                    weights[number][which][t] = logprobs_V[token]
    return weights
