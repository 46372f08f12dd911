"""Copies of a model in another precision, activations that are made twice instead of kept, and how
fast this processor multiplies in bfloat16.

Weights that are trained stay in float32: in bfloat16 an update of 1e-6 vanishes in the rounding of
a weight. A working copy in bfloat16 samples and does the forward and backward passes; its gradients
are collected in float32 as they come. Some processors have instructions for products in bfloat16
(AMX, AVX512-BF16) and are several times as fast; others convert each number and are slower. Leaves
out: float16 and the scaling of losses that it needs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig

from comas.types import UserMistake


def copy_in(model: Any, dtype: torch.dtype) -> Any:
    """A copy of the model with parameters in `dtype`; buffers (such as the frequencies of
    rotations) stay as they are.
    """
    memo: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach().to(dtype, copy=True)) for p in model.parameters()
    }
    return copy.deepcopy(model, memo)


def working_copy(master: Any, dtype: torch.dtype) -> Any:
    """A copy in `dtype` whose gradients are added to those of `master`, one tensor at a time."""
    working = copy_in(master, dtype)

    def collect(weight: torch.Tensor, got: torch.Tensor) -> None:
        # taken away first: where memory ends in here, a pass that is made anew begins without it
        gradient, got.grad = got.grad, None
        assert gradient is not None
        if weight.grad is None:
            weight.grad = gradient.to(weight.dtype)
        else:
            weight.grad.add_(gradient)

    for weight, copied in zip(master.parameters(), working.parameters(), strict=True):
        copied.register_post_accumulate_grad_hook(lambda got, weight=weight: collect(weight, got))
    return working


@torch.no_grad()
def publish(master: Any, working: Any) -> None:
    """Round the master's weights into its working copy."""
    for weight, copied in zip(master.parameters(), working.parameters(), strict=True):
        copied.copy_(weight)


def allow_recomputing(model: Any) -> None:
    """Make `recomputing` work for this Hugging Face model; an error where it cannot, or would
    change what the model says.
    """
    name = type(model).__name__
    remedy = "set hosts.<name>.checkpointing=false"
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable  # its older name
    )
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise UserMistake(
            f"checkpointing: {name} cannot recompute activations ({error}): {remedy}"
        ) from error
    ids = (
        torch.arange(1, 33, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    )
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        with recomputing(model):
            got = model(input_ids=ids, use_cache=False).logits
    if not torch.equal(expected, got):
        raise UserMistake(
            f"checkpointing: {name} gives other probabilities while it trains (dropout in its"
            f" config?): {remedy}"
        )


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Forward passes in here keep only the inputs of layers, and make the rest again in the
    backward pass.

    Transformers recomputes in train mode only. So this switches the mode of the layers alone: what
    is inside them stays in eval mode, hence without dropout.
    """
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


TOKENS = 256
WIDEST = 1024
"""Rows of the products, and the most columns: so large that the time per operation is that of
larger ones, so small that all of it takes less than a tenth of a second on one core.
"""
ROUNDS = 5
"""Rounds of which the fastest counts: what else a machine does can only slow one down."""
CLEARLY = 1.5
"""How many times as fast bfloat16 has to be to be taken."""
LARGE = 50_000_000
"""Parameters below which it is not tried: products are not most of what such a model does."""


def bfloat16_speed(folder: str, trust_remote_code: bool = False) -> float:
    """How many times as fast as in float32 products with the weights of an MLP are in bfloat16,
    forward and backward, of the model that the config.json in this folder describes; 1 where that
    cannot be read.
    """
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):  # loading it says what is wrong
        return 1.0
    text = config.get_text_config()
    width = int(getattr(text, "hidden_size", 0) or WIDEST)
    inner = int(getattr(text, "intermediate_size", 0) or 4 * width)
    seconds = fastest((min(inner, WIDEST), min(width, WIDEST)))
    return seconds[torch.float32] / seconds[torch.bfloat16]


def operations_per_second(half: bool) -> float:
    """Multiplications and additions per second of one thread, in products with an MLP's weights, in
    bfloat16 or in float32.
    """
    seconds = fastest((WIDEST, WIDEST))[torch.bfloat16 if half else torch.float32]
    return 4 * TOKENS * WIDEST * WIDEST / seconds


@contextmanager
def one_thread() -> Iterator[int]:
    """Have torch compute with one thread in this process; gives how many it had, and has again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def fastest(shape: tuple[int, int]) -> Mapping[torch.dtype, float]:
    """Seconds of a product with a weight (out, in) and of one with its transpose, per dtype; they
    take turns. One thread computes: several wait for each other where the machine has other work,
    longer than a product takes.
    """
    seconds = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    weights = {dtype: torch.ones(shape, dtype=dtype) for dtype in seconds}
    inputs = {dtype: torch.ones(TOKENS, shape[1], dtype=dtype) for dtype in seconds}
    with one_thread():
        for _ in range(ROUNDS):
            for dtype, weight_OI in weights.items():
                began = time.perf_counter()
                output_TO = torch.nn.functional.linear(inputs[dtype], weight_OI)
                torch.matmul(output_TO, weight_OI)
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds
