"""A Llama whose experts are linear layers of their own, as many models bring along in code of
theirs: each gets the tokens that are meant for it, apart from their rows. A file by itself, so that
it can lie in a model's folder.
"""

from typing import Any

import torch
from transformers import LlamaForCausalLM

EXPERTS = 4
CHOSEN = 2


class Experts(torch.nn.Module):
    """Each token goes through the experts that its router likes best."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(config.hidden_size, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(
            torch.nn.Linear(config.hidden_size, config.hidden_size, bias=False)
            for _ in range(EXPERTS)
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """As Mixtral's did."""
        x_ND = x_BTD.flatten(0, 1)
        share_NK, chosen_NK = self.gate(x_BTD).flatten(0, 1).softmax(-1).topk(CHOSEN, -1)
        out_ND = torch.zeros_like(x_ND)
        for i, expert in enumerate(self.experts):
            token, place = torch.where(chosen_NK == i)
            out_ND.index_add_(0, token, expert(x_ND[token]) * share_NK[token, place, None])
        return out_ND.view_as(x_BTD)


class ApartForCausalLM(LlamaForCausalLM):
    """With these in the place of its feed-forward layers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Experts(config)  # type: ignore[assignment]
        self.post_init()
