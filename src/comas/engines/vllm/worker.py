"""What is read from vLLM's model, by functions that vLLM calls with its worker: which modules an
adapter is bound to, and the numbers that its kernels multiply with.

Leaves out: what they are compared with (`proof`). Tensors stay on their device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

PEFT = "base_model.model."
"""peft puts this before a module's name."""


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

    `learnt` has A (rank, in) and B (out, rank), B times alpha / rank, in the dtype of adapters.
    What is read are the buffers that the kernels multiply with. A module without a place among
    them, or with more than the rank in it, is infinitely far.
    """
    adapters = _adapters(worker)
    if number not in adapters.lora_index_to_id:
        return f"slot of adapter {number}", float("inf")
    slot = adapters.lora_index_to_id.index(number)
    served = dict(_slots(adapters, slot))
    worst = ("", 0.0)
    for name, (a, b) in learnt.items():
        if name not in served:
            return name, float("inf")
        apart = _apart(served[name], a, b)
        if not apart <= worst[1]:  # not a number is far as well
            worst = (name, apart)
    return worst


def adapter_dtype(worker: Any) -> torch.dtype:
    """The dtype that adapters are kept in."""
    return worker.model_runner.lora_manager.lora_config.lora_dtype


def _adapters(worker: Any) -> Any:
    return worker.model_runner.lora_manager._adapter_manager


def _slots(adapters: Any, slot: int) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Name of a module and its A (largest rank, in) and B (out, largest rank) in this slot."""
    for name, module in adapters.modules.items():
        parts = adapters.packed_modules.get(name, [name])
        if len(parts) != len(module.lora_a_stacked):
            continue
        for part, a, b in zip(parts, module.lora_a_stacked, module.lora_b_stacked, strict=True):
            yield part, (a[slot, 0], b[slot, 0])


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
