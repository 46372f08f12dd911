"""Starting vLLM: what it is asked for, its environment, and one line for
each way in which it does not start.

Leaves out: what is done with it then (`engine`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from comas.engines.vllm.library import Library, version
from comas.seams import EnginePlan, StaleWeights
from comas.types import UserMistake

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be started for."""
ENVIRONMENT = {
    # so that tensors and functions pass as they are, and learner and engine take turns
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""The same where the user's environment says nothing."""
PREFILL = 4096
"""Tokens of prompts that a CPU computes at once."""
SHARES = {"cpu": 0.25, "cuda": 0.8}
"""Of the memory that is free when it starts, the most that keys and values take."""
WORKSPACE = 2**30
"""Bytes of a GPU besides weights and cache: activations, graphs."""


@dataclass(frozen=True)
class Cache:
    """Bytes of keys and values."""

    row: int
    """Of one row as long as the context."""
    rows: int
    """Rows that are decoded at once."""

    def taken(self, free: int, kept: int, device: str, host: str) -> int:
        """Bytes that are taken where so many are free, of which `kept` are for weights; an error
        where they are not enough for one row.
        """
        usable = int(SHARES[device] * max(0, free - kept))
        if usable < self.row:
            raise UserMistake(
                f"{host}.engine=vllm does not fit: {free / 1e9:.1f} GB are free on {device},"
                f" vLLM's own weights take {kept / 1e9:.1f}, and keys and values of one row"
                f" {self.row / 1e9:.1f}: lower {host}.context, take a smaller base, or set"
                f" {host}.engine=hf"
            )
        return min(usable, self.row * self.rows)


def rounded_rank(rank: int, host: str) -> int:
    """The largest rank that vLLM is started for."""
    for offered in RANKS:
        if rank <= offered:
            return offered
    raise UserMistake(
        f"{host}.rank={rank}: vLLM takes adapters up to rank {RANKS[-1]}: lower it, or set"
        f" {host}.engine=hf"
    )


def adapter_arguments(ranks: Sequence[int], modules: Sequence[str], host: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for adapters of these ranks that change these modules.

    One slot more than policies, so that a new version is loaded and proved beside the one that
    serves; in the CPU's memory both versions of all. Without the modules' names it would keep
    adapters of the head as well, as large as the vocabulary, and multiply with them.
    """
    return {
        "enable_lora": True,
        "max_loras": len(ranks) + 1,
        "max_cpu_loras": 2 * len(ranks) + 1,
        "max_lora_rank": rounded_rank(max(ranks), host),
        "lora_target_modules": sorted({name.rpartition(".")[2] for name in modules}),
    }


def start(model: Any, folder: Path, plan: EnginePlan, adapters: dict[str, Any]) -> Library:
    """vLLM with this base, which lies in `folder`, in `model`'s dtype or float32."""
    host = f"hosts.{plan.host}"
    device = _device(model, host)
    dtype = served_dtype(model)
    cache = Cache(row_bytes(model.config, plan.context, dtype), plan.max_rows)
    free = _free(device)
    weights = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    kept = weights + (WORKSPACE if device == "cuda" else 0)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": None,
        "skip_tokenizer_init": True,
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": plan.context,
        "max_num_seqs": plan.max_rows,
        "kv_cache_memory_bytes": cache.taken(free, kept, device, host),
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "enforce_eager": device == "cpu",
        "enable_sleep_mode": device == "cuda" and plan.learns,
        "seed": 0,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **adapters,
    }
    if device == "cpu":
        # of a prompt that it computes in parts it rewinds the generator of the request's seed,
        # which generators of a CPU cannot do ("CPU Generator does not use offset")
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(PREFILL, plan.context)
    if device == "cuda":  # what it checks before it starts; the bytes above are what it takes
        arguments["gpu_memory_utilization"] = 0.9 * free / torch.cuda.mem_get_info(device)[1]
    with _environment(), in_one_line(host):
        from vllm import LLM  # type: ignore[import-not-found]

        return Library(LLM(**arguments))


def served_dtype(model: Any) -> torch.dtype:
    """What vLLM computes in: float64 is for tests, and it has none."""
    return torch.float32 if model.dtype == torch.float64 else model.dtype


def deterministic(device: str, dtype: torch.dtype) -> bool:
    """Whether a text follows from its seed alone, whatever its batch.

    In float32 on a CPU it did in all that was measured; GPUs have kernels that promise it.
    """
    if device == "cpu":
        return dtype == torch.float32
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1"


def row_bytes(config: Any, context: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one row as long as the context, where each layer keeps all."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    blocks = -(-context // 128)  # the largest block that it uses by default
    return 2 * text.num_hidden_layers * heads * width * dtype.itemsize * 128 * blocks


def folder_of(model: Any) -> Path | None:
    """Where the weights of a model lie as safetensors, as a folder or in the hub's cache; None
    where they have to be written.
    """
    from huggingface_hub import try_to_load_from_cache

    name = str(model.config.name_or_path)
    if not name:
        return None
    place: Path | None = Path(name)
    if not Path(name).is_dir():
        try:
            revision = getattr(model.config, "_commit_hash", None)
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        except ValueError:  # a file's name, which the hub takes for no name
            return None
        place = Path(cached).parent if isinstance(cached, str) else None
    if place is None or not (place / "config.json").is_file():
        return None
    return place.resolve() if any(place.glob("*.safetensors")) else None


def _device(model: Any, host: str) -> str:
    device = model.device
    if device.type not in SHARES:
        raise UserMistake(
            f"{host}.device={device}: vLLM runs here on cpu and cuda: set {host}.engine=hf or"
            f" {host}.device=cpu"
        )
    if device.index:
        raise UserMistake(
            f"{host}.device={device}: vLLM takes the first GPU that it sees: set"
            f" CUDA_VISIBLE_DEVICES={device.index} and {host}.device=cuda"
        )
    return device.type


def _free(device: str) -> int:
    """Bytes that are free."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    import psutil

    return psutil.virtual_memory().available


@contextmanager
def _environment() -> Iterator[None]:
    """In here vLLM is started. It takes over torch's threads for its own process; this one is also
    the learner's, so they are given back.
    """
    os.environ.update(ENVIRONMENT)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    threads = torch.get_num_threads()
    setter = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)


@contextmanager
def in_one_line(host: str) -> Iterator[None]:
    """Say in one line why vLLM does not start, or not run for the first time."""
    try:
        yield
    except (StaleWeights, UserMistake):
        raise
    except (ImportError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
        words = " ".join(str(error).split())
        raise UserMistake(
            f"{host}.engine = 'vllm': vLLM {version()} does not start"
            f" ({type(error).__name__}: {words[:300]}): see docs/vllm.md, or set"
            f" {host}.engine=hf"
        ) from error
