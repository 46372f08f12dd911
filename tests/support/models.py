"""Small random models and requests to them."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from comas.seams import Request
from comas.types import Sampling


def llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 3,
    }
    made = LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name:  # ones when untaught, which would hide a norm that is left out
                weight.uniform_(0.5, 1.5)
    return made


def requests(count: int, policies: int = 3, tokens: int = 20, **sampling: float) -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(
            f"p{i % policies}",
            rng.integers(4, 50, 2 + i % 9),
            Sampling(max_tokens=tokens - i % 5, **sampling),
            77 + i,
        )
        for i in range(count)
    ]
