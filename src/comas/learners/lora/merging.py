"""Policies as whole models in folders of their own: adapters added to their base.

Leaves out: tokenizers, and what else stands beside weights (`export.team`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.func import functional_call

from comas.learners.lora.population import Population
from comas.types import UserMistake

NEAR = 1e-2
"""Log-probs of a merged float32 model differ by less than this from those of base and adapter, or
it is not written.
"""
TRIED = 16
"""Tokens of the text that both are tried on."""


def save_merged(population: Population, policy: str, folder: Path) -> float:
    """Write base + adapter as one model; returns by how much its log-probs differ at most from
    those of the two apart.
    """
    model = population.model
    merged = population.merged(policy)
    ids = (
        torch.arange(TRIED, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    )
    with torch.no_grad():
        with population.routed([population.policies.index(policy)]):
            apart = _logprobs(model, ids)
        whole = lambda **given: functional_call(model, merged, (), given)  # noqa: E731
        gap = float((_logprobs(whole, ids) - apart).abs().max())
    if not gap < (NEAR if model.dtype == torch.float32 else float("inf")):
        raise UserMistake(
            f"policy {policy}: merged into one model its log-probs differ by {gap:.2g} from base"
            " and adapter, so that it was not written: export with --no-merged"
        )
    try:
        model.save_pretrained(folder, state_dict={**model.state_dict(), **merged})
    except SafetensorError as error:  # a full disk, in the words of another language
        raise OSError(f"{folder}: {error}") from error
    return gap


def _logprobs(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids_BT, use_cache=False).logits.float().log_softmax(-1)
