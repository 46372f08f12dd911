"""Bytes that a model's passes take, counted while they run on tensors without contents: nothing is
loaded or computed.

The learner's and the engine's own operations are run for the shapes of a config; whatever is
allocated on the way is added up, whatever is freed is taken off. Leaves out: what a kernel
allocates inside itself, and what an allocator keeps.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from comas.learners.logprobs import LOGITS, cut, few_logits, token_logprobs, vocabulary
from comas.learners.lora.linear import sizes
from comas.learners.lora.population import ALIGNED, Population, Spec, targets_of
from comas.learners.precision import hand_on, recomputing, switch_on
from comas.models.sources import apart_up_to, positions_of
from comas.types import Row


class Meter(TorchDispatchMode):
    """Bytes of the tensors that were made in here and are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = {
            id(t.untyped_storage())
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and id(t.untyped_storage()) not in inside:
                self._add(t.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        key = id(storage)
        if key not in self._known:
            size = storage.nbytes()
            self._known[key] = weakref.finalize(storage, self._drop, key, size)
            self.alive += size
            self.most = max(self.most, self.alive)

    def _drop(self, key: int, size: int) -> None:
        del self._known[key]
        self.alive -= size


Counted = TypeVar("Counted")


def counted(function: Callable[..., Counted], folder: str, *given: Any) -> Counted:
    """`function(*given)`, counted once per process for each content of the config.json in `folder`:
    it takes seconds.
    """
    key = (function, (Path(folder) / "config.json").read_bytes(), repr(given))
    if key not in _COUNTS:
        _COUNTS[key] = function(*given)
    return _COUNTS[key]


_COUNTS: dict[Any, Any] = {}


@dataclass(frozen=True)
class Shape:
    """A model as its config.json describes it, and the rows that it gets."""

    folder: str
    bfloat16: bool
    longest: int
    """Tokens of a row, prompt and reply."""


@dataclass(frozen=True)
class Facts:
    """What a config.json says of a model."""

    parameters: int
    """Tied ones once."""
    vocabulary: int
    positions: int
    family: str


def facts_of(folder: str) -> Facts:
    """Of the model that the config.json in this folder describes."""
    with FakeTensorMode():
        model = _model(folder)
    # as a host has it
    longest = min(positions_of(model.config), apart_up_to(model.config) or math.inf)
    return Facts(model.num_parameters(), vocabulary(model), int(longest), model.config.model_type)


def adapter_parameters(folder: str, specs: Sequence[Spec], gpu: bool) -> int:
    """Of one policy, as a population of these shapes keeps them: room for the largest rank in every
    layer that any adapts.
    """
    with FakeTensorMode():
        model = _model(folder)
    targets = {name for spec in set(specs) for name in targets_of(model, spec)}
    rank = max(spec.rank for spec in specs)
    rank = -(-rank // ALIGNED) * ALIGNED if gpu else rank
    size = sum(rank * sum(sizes(model.get_submodule(name))) for name in targets)
    return -(-size // ALIGNED) * ALIGNED


def mixed_bytes(shape: Shape, tokens: int, checkpointing: bool, spec: Spec) -> int:
    """What `pass_bytes` is for whole models, for adapters of which `spec` has the largest rank, in
    one pass of their rows.

    It is the same for any number of policies: each token goes through one adapter.
    """
    rows = _rows(shape, tokens)
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        model = _model(shape.folder, torch.bfloat16 if shape.bfloat16 else torch.float32)
        population = Population(model, {"p": spec})
        population.collect()
        if checkpointing:
            switch_on(model)
        halves = None if few_logits(model, tokens, LOGITS) else cut(model)
        before = meter.most = meter.alive
        with population.routed([0] * len(rows)):
            with recomputing(model) if checkpointing else nullcontext():
                logprobs_BT = token_logprobs(model, halves, rows, 0)
            logprobs_BT.sum().backward()
        return meter.most - before


def _rows(shape: Shape, tokens: int) -> list[Row]:
    """As many of the longest rows as a pass takes: one at least, also where it has more tokens than
    a pass is to have.
    """
    width = shape.longest
    row = Row(
        "t", "r", 1.0, np.ones(width, np.int64), np.arange(width) > 0, np.zeros(width, np.float32)
    )
    return [row] * max(1, tokens // width)


def pass_bytes(shape: Shape, tokens: int, checkpointing: bool) -> int:
    """The most that a forward and backward pass of `tokens` padded tokens takes besides weights and
    float32 gradients.
    """
    rows = _rows(shape, tokens)
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        master = _model(shape.folder)
        for weight in master.parameters():
            weight.grad = torch.zeros_like(weight)  # of passes before this one
        working = master
        if shape.bfloat16:
            working = _model(shape.folder, torch.bfloat16)
            hand_on(master, working)
        if checkpointing:
            switch_on(working)
        halves = None if few_logits(working, tokens, LOGITS) else cut(working)
        before = meter.most = meter.alive
        with recomputing(working) if checkpointing else nullcontext():
            logprobs_BT = token_logprobs(working, halves, rows, 0)
        logprobs_BT.sum().backward()
        return meter.most - before


@torch.no_grad()
def decode_bytes(shape: Shape, rows: int, slice_tokens: int) -> int:
    """The most that sampling takes besides weights, when `rows` rows grow to their full length;
    without the drawing itself.

    Prompts come in slices of `slice_tokens` padded tokens; the largest slice is the last before the
    cache is full.
    """
    width = max(1, min(shape.longest, slice_tokens // rows))
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        model = _model(shape.folder, torch.bfloat16 if shape.bfloat16 else torch.float32)
        cache = DynamicCache(config=model.config)
        before = meter.alive
        for start, end in ((0, shape.longest - width), (shape.longest - width, shape.longest)):
            # what matters is the last slice, on a cache that is nearly full
            meter.most = meter.alive
            if start < end:
                ids, attend = (torch.ones(rows, n, dtype=torch.long) for n in (end - start, end))
                model(
                    input_ids=ids,
                    attention_mask=attend,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
        return meter.most - before


def _model(folder: str, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).eval()
