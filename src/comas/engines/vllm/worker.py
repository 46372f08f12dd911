"""What is read from vLLM's model, by functions that vLLM calls with its worker: which modules an
adapter is bound to, and the numbers that its kernels multiply with.

Of a model that is spread over ranks each tells of its own part. Leaves out: what they are compared
with (`proof`). Tensors stay on their device.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PEFT = "base_model.model."
"""peft puts this before a module's name."""
ENDING = 8.0
"""Seconds in which a rank has to end by itself when whoever started it is gone."""


def belong(_: Any) -> None:
    """Have this rank, a process of its own, end when and only when whoever started it wants that:
    what a terminal or a scheduler sends to all processes is for that one alone.
    """
    for kind in (signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        time.sleep(ENDING)  # vLLM has noticed as well, unless it waits for another rank
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def bound_modules(worker: Any, number: int) -> list[str]:
    """Names of the modules that adapter `number` changes in vLLM's model, packed ones apart."""
    adapters = _adapters(worker)
    adapter = adapters.get_adapter(number)
    if adapter is None:
        return []
    bound: list[str] = []
    for name in adapters.modules:
        weights = adapter.get_lora(name)
        if weights is None:
            continue
        parts = adapters.packed_modules.get(name, [name])
        tensors = weights.lora_a if isinstance(weights.lora_a, list) else [weights.lora_a]
        bound += [part for part, a in zip(parts, tensors, strict=True) if a is not None]
    return bound


def names_of(worker: Any, modules: Sequence[str]) -> dict[str, str]:
    """Name of a module of a Hugging Face model -> its name in vLLM's, packed ones apart."""
    from vllm.lora.utils import parse_fine_tuned_lora_name  # type: ignore[import-not-found]

    mapper = getattr(worker.model_runner.get_model(), "hf_to_vllm_mapper", None)
    renaming = mapper.get_rename_mapper() if mapper is not None else None
    return {
        name: parse_fine_tuned_lora_name(f"{PEFT}{name}.lora_A.weight", renaming)[0]
        for name in modules
    }


def difference(
    worker: Any, number: int, learnt: Mapping[str, tuple[Tensor, Tensor]]
) -> tuple[str, float]:
    """The module (vLLM's name) in which the tensors that serve adapter `number` are furthest from
    `learnt`, and by how much; ("", 0.0) where all are equal.

    `learnt` has A (rank, in) and B (out, rank), B times alpha / rank, in the dtype of adapters;
    always whole: of a model that is spread this worker compares its own part of them. What is read
    are the buffers that the kernels multiply with. A module without a place among them, or with
    more than the rank in it, is infinitely far.
    """
    adapters = _adapters(worker)
    part = Part(worker.rank, worker.vllm_config.parallel_config.tensor_parallel_size)
    if number not in adapters.lora_index_to_id:
        return f"slot of adapter {number}", float("inf")
    slot = adapters.lora_index_to_id.index(number)
    served = dict(_slots(adapters, slot))
    worst = ("", 0.0)
    for name, (a, b) in learnt.items():
        if name not in served:
            return name, float("inf")
        served_a, served_b, sections = served[name]
        own_a = part.of(a, 1, [(served_a.shape[1], 1)])
        own_b = part.of(b, 0, sections)
        apart = _apart((served_a, served_b), own_a.to(served_a.device), own_b.to(served_b.device))
        if not apart <= worst[1]:  # not a number is far as well
            worst = (name, apart)
    return worst


def adapter_dtype(worker: Any) -> torch.dtype:
    """The dtype that adapters are kept in."""
    return worker.model_runner.lora_manager.lora_config.lora_dtype


def _adapters(worker: Any) -> Any:
    return worker.model_runner.lora_manager._adapter_manager


Sections = Sequence[tuple[int, int]]
"""Of the rows of one tensor: how many of each section this rank has, and how many ranks have the
same ones.
"""


@dataclass(frozen=True)
class Part:
    """Which rank this is, of how many."""

    rank: int
    ranks: int

    def of(self, whole: Tensor, dim: int, sections: Sections) -> Tensor:
        """What this rank has to have of a whole tensor: of each section the share of its number.
        The tensor as it is where it has no such sections, which is then no rank's.
        """
        if self.ranks == 1:
            return whole
        if len(sections) == 1:
            # all of it (as many copies as ranks), a share, or one that several ranks have alike
            (width, _), *_ = sections
            sections = [(width, max(1, width * self.ranks // whole.shape[dim]))]
        sizes = [width * self.ranks // copies for width, copies in sections]
        if sum(sizes) != whole.shape[dim]:
            return whole
        shares: list[Tensor] = []
        for full, (width, copies) in zip(whole.split(sizes, dim), sections, strict=True):
            shares.append(full.narrow(dim, self.rank // copies * width, width))
        return torch.cat(shares, dim)


def _slots(adapters: Any, slot: int) -> Iterator[tuple[str, tuple[Tensor, Tensor, Sections]]]:
    """Name of a module, its A (largest rank, in) and B (out, largest rank) in this slot, and the
    sections of B's rows.
    """
    for name, module in adapters.modules.items():
        parts = adapters.packed_modules.get(name, [name])
        if len(parts) != len(module.lora_a_stacked):
            continue
        for part, a, b in zip(parts, module.lora_a_stacked, module.lora_b_stacked, strict=True):
            sections = [(b.shape[2], 1)] if len(parts) > 1 else _sections(module.base_layer)
            yield part, (a[slot, 0], b[slot, 0], sections)


def _sections(layer: Any) -> Sections:
    """Of the rows of a linear layer that a checkpoint has as one, though it is several side by
    side: queries, keys and values, or gate and up.
    """
    widths: Sequence[int] = getattr(layer, "output_partition_sizes", [layer.output_size])
    copies = getattr(layer, "num_kv_head_replicas", 1)
    return [(width, copies if place else 1) for place, width in enumerate(widths)]


def _apart(served: tuple[Tensor, Tensor], a: Tensor, b: Tensor) -> float:
    rank = len(a)
    served_a, served_b = served
    beyond = bool(served_a[rank:].any()) and bool(served_b[:, rank:].any())
    if beyond or served_a.shape[1] != a.shape[1] or len(served_b) != len(b):
        return float("inf")
    own_a = served_a[:rank]
    own_b = served_b[:, :rank]
    if torch.equal(own_a, a) and torch.equal(own_b, b):
        return 0.0
    return float(torch.maximum((own_a - a).abs().max(), (own_b - b).abs().max()))


def linear_modules(worker: Any) -> dict[str, list[str]]:
    """Name of a linear layer (or head) of vLLM's model -> names of the layers of the checkpoint
    that it holds, in their order.
    """
    from vllm.model_executor.layers.linear import LinearBase  # type: ignore[import-not-found]
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding  # type: ignore[import-not-found]

    model = worker.model_runner.get_model()
    packed = getattr(model, "packed_modules_mapping", {})
    layers: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        prefix, _, last = name.rpartition(".")
        head = isinstance(module, VocabParallelEmbedding) and last == "lm_head"
        if head or isinstance(module, LinearBase):
            parts = packed.get(last, [last])
            layers[name] = [f"{prefix}.{part}" if prefix else part for part in parts]
    return layers


def columns(worker: Any, name: str, places: Sequence[int]) -> Tensor:
    """These columns of the weight of a linear layer of vLLM's model, (out, columns), read through
    the product that serves: rows of an identity matrix are multiplied with it, which rounds
    nothing.

    Weights may be packed for a processor, and the packed copy is what counts.
    """
    module = worker.model_runner.get_model().get_submodule(name)
    kind = worker.model_runner.dtype
    rows = torch.zeros(len(places), inputs_of(module), dtype=kind, device=worker.device)
    rows[range(len(places)), list(places)] = 1
    return module.quant_method.apply(module, rows).mT


def inputs_of(module: Any) -> int:
    """Numbers of a token that go into a linear layer or a head of vLLM's."""
    return int(module.input_size if hasattr(module, "input_size") else module.embedding_dim)


def plain_tensors(worker: Any) -> dict[str, Tensor]:
    """Parameters of vLLM's model that lie as they were loaded, by name; packed ones are empty and
    left out.
    """
    model = worker.model_runner.get_model()
    return {name: weight for name, weight in model.named_parameters() if weight.numel()}


def reload(worker: Any, weights: Callable[[], Iterator[tuple[str, Tensor]]]) -> None:
    """Have the model load these weights, named as in a checkpoint."""
    with torch.no_grad():
        worker.reload_weights(weights_iterator=weights())
