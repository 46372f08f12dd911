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
from dataclasses import dataclass, replace
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
from comas.seams import cache_keyword
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
    layers: int | None = None
    """So many blocks only; None is all of them."""


@dataclass(frozen=True)
class Facts:
    """What a config.json says of a model."""

    parameters: int
    """Tied ones once."""
    vocabulary: int
    positions: int
    family: str
    layers: int | None
    """Blocks, where all are alike; otherwise None."""


def facts_of(folder: str) -> Facts:
    """Of the model that the config.json in this folder describes."""
    with FakeTensorMode():
        model = _model(folder)
        # as a host has it
        longest = min(positions_of(model.config), apart_up_to(model.config) or math.inf)
        return Facts(
            model.num_parameters(),
            vocabulary(model),
            int(longest),
            model.config.model_type,
            _blocks(folder, model),
        )


FEW = (2, 3)
"""Blocks of the two models that are counted in the place of a deeper one: each further block takes
what the third takes.
"""


def _blocks(folder: str, model: Any) -> int | None:
    """The number of a model's blocks if all are alike, and fewer can be had by its config."""
    text = model.config.get_text_config()
    blocks = getattr(text, "num_hidden_layers", 0)
    if len(set(getattr(text, "layer_types", None) or ())) > 1:
        return None
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == blocks]
    if len(lists) != 1 or len({_kind(block) for block in lists[0]}) != 1:
        return None
    each = sum(weight.numel() for weight in lists[0][0].parameters())
    fewer = _model(folder, layers=FEW[0]).num_parameters()
    return blocks if model.num_parameters() - fewer == (blocks - FEW[0]) * each else None


def _kind(block: Any) -> str:
    shapes = {name: tuple(weight.shape) for name, weight in block.named_parameters()}
    return repr((type(block), sorted(shapes.items())))


def _by_blocks(count: Callable[[Shape], int], shape: Shape) -> int:
    """What `count` says of a model, from models of a few blocks where all blocks are alike."""
    layers = counted(facts_of, shape.folder, shape.folder).layers
    if layers is None or layers <= FEW[1]:
        return count(shape)
    less = count(replace(shape, layers=FEW[0]))
    more = count(replace(shape, layers=FEW[1]))
    return less + (more - less) * (layers - FEW[0]) // (FEW[1] - FEW[0])


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
    anywhere = _by_ends(spec, shape.folder)
    if anywhere is None:  # blocks differ in what is adapted: fewer of them would mislead
        return _mixed(shape, tokens, checkpointing, spec)
    return _by_blocks(lambda few: _mixed(few, tokens, checkpointing, anywhere), shape)


def _by_ends(spec: Spec, folder: str) -> Spec | None:
    """The same adapter, whose modules are named by the last part of their names, which hold for any
    number of blocks; None where it adapts only some of the modules that are called so.
    """
    if spec.targets is None:
        return spec
    with FakeTensorMode():
        model = _model(folder)
    targets = targets_of(model, spec)
    ends = {name.rpartition(".")[2] for name in targets}
    shorter = replace(spec, targets=tuple(sorted(ends)))
    return shorter if targets_of(model, shorter) == targets else None


def _mixed(shape: Shape, tokens: int, checkpointing: bool, spec: Spec) -> int:
    rows = _rows(shape, tokens)
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        model = _model_of(shape)
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
    return _by_blocks(lambda few: _pass(few, tokens, checkpointing), shape)


def _pass(shape: Shape, tokens: int, checkpointing: bool) -> int:
    rows = _rows(shape, tokens)
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        master = _model(shape.folder, layers=shape.layers)
        for weight in master.parameters():
            weight.grad = torch.zeros_like(weight)  # of passes before this one
        working = master
        if shape.bfloat16:
            working = _model_of(shape)
            hand_on(master, working)
        if checkpointing:
            switch_on(working)
        halves = None if few_logits(working, tokens, LOGITS) else cut(working)
        before = meter.most = meter.alive
        with recomputing(working) if checkpointing else nullcontext():
            logprobs_BT = token_logprobs(working, halves, rows, 0)
        logprobs_BT.sum().backward()
        return meter.most - before


def decode_bytes(shape: Shape, rows: int, slice_tokens: int) -> int:
    """The most that sampling takes besides weights, when `rows` rows grow to their full length;
    without the drawing itself.

    Prompts come in slices of `slice_tokens` padded tokens; the largest slice is the last before the
    cache is full.
    """
    return _by_blocks(lambda few: _decode(few, rows, slice_tokens), shape)


@torch.no_grad()
def _decode(shape: Shape, rows: int, slice_tokens: int) -> int:
    width = max(1, min(shape.longest, slice_tokens // rows))
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        model = _model_of(shape)
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
                    use_cache=True,
                    logits_to_keep=1,
                    **{cache_keyword(model): cache},
                )
        return meter.most - before


def _model_of(shape: Shape) -> Any:
    dtype = torch.bfloat16 if shape.bfloat16 else torch.float32
    return _model(shape.folder, dtype, shape.layers)


def _model(folder: str, dtype: torch.dtype = torch.float32, layers: int | None = None) -> Any:
    config = AutoConfig.from_pretrained(folder)
    if layers is not None:
        text = config.get_text_config()
        text.num_hidden_layers = layers
        if kinds := getattr(text, "layer_types", None):
            text.layer_types = kinds[:layers]
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
