"""How fast this processor multiplies matrices in bfloat16 and in float32: tried, not looked up.

Some processors have instructions for it (AMX, AVX512-BF16) and are several times as fast; others
convert each number and are slower. Leaves out: everything that is no product.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig

TOKENS = 256
WIDEST = 1024
"""Rows of the products, and the most columns: so large that the time per operation is that of
larger ones, so small that all of it takes less than a tenth of a second on one core.
"""
ROUNDS = 5
"""Of which the fastest counts: what else a machine does can only slow one down."""
CLEARLY = 1.5
"""How many times as fast bfloat16 has to be to be taken."""
LARGE = 50_000_000
"""Parameters below which it is not tried: products are not most of what such a model does."""


def bfloat16_speed(folder: str) -> float:
    """How many times as fast as in float32 products with the weights of an MLP are in bfloat16,
    forward and backward, of the model that the config.json in this folder describes; 1 where that
    cannot be read.
    """
    try:
        text: Any = AutoConfig.from_pretrained(folder).get_text_config()
    except (OSError, ValueError):  # loading it says what is wrong
        return 1.0
    width = int(getattr(text, "hidden_size", 0) or WIDEST)
    inner = int(getattr(text, "intermediate_size", 0) or 4 * width)
    shape = (min(inner, WIDEST), min(width, WIDEST))
    seconds = fastest(shape)
    return seconds[torch.float32] / seconds[torch.bfloat16]


@torch.no_grad()
def fastest(shape: tuple[int, int]) -> Mapping[torch.dtype, float]:
    """Seconds of a product with a weight (out, in) and of one with its transpose, per dtype; they
    take turns.
    """
    seconds = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    weights = {dtype: torch.ones(shape, dtype=dtype) for dtype in seconds}
    inputs = {dtype: torch.ones(TOKENS, shape[1], dtype=dtype) for dtype in seconds}
    for _ in range(ROUNDS):
        for dtype, weight_OI in weights.items():
            began = time.perf_counter()
            output_TO = torch.nn.functional.linear(inputs[dtype], weight_OI)
            torch.matmul(output_TO, weight_OI)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds
