"""Models by their sizes, for tests of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def model_of(family: str, **changes: Any) -> Any:
    """A random model of this family with 50 words and weights that are large enough to matter."""
    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "bos_token_id": None,
    }
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **{**shape, **changes})
    ).eval()


def folder_of(model: Any, folder: Path) -> str:
    model.config.save_pretrained(folder)
    return str(folder)
