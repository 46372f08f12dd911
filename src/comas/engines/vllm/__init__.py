"""`engine = "vllm"`: vLLM in this process, for adapters on one base or one whole model: how it is
started, and sampling with it. A base with adapters is dealt to all GPUs of the host, one process of
vLLM's on each.

At each publish it is proved that vLLM serves what was learnt (`proof`). Leaves out: several whole
models on one host, servers elsewhere (`hosts.api`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comas.engines.batcher import BatchedEngine, Places, Wanted
from comas.engines.vllm.library import Folders, Library, Loaded, VllmOutput, VllmRequest, version
from comas.engines.vllm.proof import Adapters, Probe, Whole, is_tied, pairs_of
from comas.seams import (
    Adapter,
    EngineFacts,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
    WholeModel,
)
from comas.types import UserMistake

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be started for."""
PREFILL = 4096
"""Tokens of prompts that a CPU computes at once."""
SHARES = {"cpu": 0.25, "cuda": 0.8}
"""Share of the memory that is free when it starts, for keys and values at most."""
WORKSPACE = 2**30
"""Bytes of a GPU besides weights and cache: activations, graphs."""


def check(host: str) -> None:
    """An error where vLLM is not installed; `host` is `hosts.<name>`."""
    if find_spec("vllm") is None:
        raise UserMistake(
            f"{host}.engine = 'vllm' needs vLLM, which is not installed: pip install"
            f' "comas[vllm]", or set {host}.engine=hf'
        )


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> VLLMEngine:
    """Start vLLM on the weights of a host and prove what it serves; UserMistake where it cannot
    serve them.
    """
    host = f"hosts.{plan.host}"
    adapted = {id(w.shared): w.shared for w in models.values() if isinstance(w, Adapter)}
    whole_models = [w.model for w in models.values() if isinstance(w, WholeModel)]
    if len(adapted) + len(whole_models) != 1:
        raise UserMistake(
            f"{host}.engine = 'vllm' serves adapters on one base, or one whole model, and"
            f" {len(models)} policies have {len(whole_models) + len(adapted)} models: set"
            f" {host}.learner=adapters, give each policy a host of its own, or set {host}.engine=hf"
        )
    shared = next(iter(adapted.values()), None)
    model: Any = whole_models[0] if shared is None else shared.model
    policies = list(models)
    arguments: dict[str, Any] = {}
    if shared is not None:
        ranks = [shared.specs[policy].rank for policy in policies]
        modules = [module for policy in policies for module in pairs_of(shared, policy)]
        arguments = adapter_arguments(ranks, modules, host)
    elif plan.gpus > 1:
        raise UserMistake(
            f"{host}.gpus={plan.gpus}: engine vllm deals adapters on one base to several GPUs, and"
            f" a whole model to none but one: set {host}.learner=adapters, or {host}.gpus=1"
        )
    elif plan.learns and model.device.type == "cpu" and is_tied(model):
        raise UserMistake(
            f"{host}.engine = 'vllm' cannot take new weights on a CPU of a base whose head is its"
            f" embedding: it would keep the old head; set {host}.learner=adapters, or"
            f" {host}.engine=hf"
        )
    check(host)
    with ExitStack() as undone:
        folders = Folders()
        undone.callback(folders.close)
        vllm = start(model, folder_of(model) or folders.keep(model), plan, arguments)
        undone.callback(vllm.close)
        with in_one_line(host):
            vocabulary = len(model.get_input_embeddings().weight)
            probe = Probe(vllm, vocabulary, plan.context, served_dtype(model))
            if shared is None:
                weights = Whole(vllm, policies[0], model, probe)
                folders.close()  # its folder is read once
            else:
                weights = Adapters(vllm, folders, shared, policies, probe, host)
        undone.pop_all()
    return VLLMEngine(plan, policies, vllm, weights, model)


def adapter_arguments(ranks: Sequence[int], modules: Sequence[str], host: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for adapters of these ranks that change these modules.

    One slot more than policies, so that a new version is loaded and proved beside the one that
    serves; in the CPU's memory both versions of all. Without the modules' names it would keep
    adapters of the head as well, as large as the vocabulary, and multiply with them.
    """
    rank = max(ranks)
    if rank > RANKS[-1]:
        raise UserMistake(
            f"{host}.rank={rank}: vLLM takes adapters up to rank {RANKS[-1]}: lower it, or set"
            f" {host}.engine=hf"
        )
    return {
        "enable_lora": True,
        "max_loras": len(ranks) + 1,
        "max_cpu_loras": 2 * len(ranks) + 1,
        "max_lora_rank": next(offered for offered in RANKS if rank <= offered),
        "lora_target_modules": sorted({name.rpartition(".")[2] for name in modules}),
    }


def start(model: Any, folder: Path, plan: EnginePlan, adapters: dict[str, Any]) -> Library:
    """vLLM with this base, which lies in `folder`, in `model`'s dtype or float32."""
    host = f"hosts.{plan.host}"
    device = model.device.type
    if device not in SHARES:
        raise UserMistake(
            f"{host}.device={model.device}: vLLM runs here on cpu and cuda: set {host}.engine=hf or"
            f" {host}.device=cpu"
        )
    if model.device.index:
        raise UserMistake(
            f"{host}.device={model.device}: vLLM takes the first GPU that it sees: set"
            f" CUDA_VISIBLE_DEVICES={model.device.index} and {host}.device=cuda"
        )
    dtype = served_dtype(model)
    free = _free(device)
    weights = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    reserved = weights // plan.gpus + (WORKSPACE if device == "cuda" else 0) + plan.reserved
    row = row_bytes(model.config, plan.context, dtype, plan.gpus)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": None,
        "skip_tokenizer_init": True,
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": plan.context,
        "max_num_seqs": plan.max_rows,
        "kv_cache_memory_bytes": cache_bytes(row, plan.max_rows, free, reserved, device, host),
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
    if plan.gpus > 1:
        # in an actor of Ray it would ask the cluster for GPUs besides those that the actor has
        arguments |= {"tensor_parallel_size": plan.gpus, "distributed_executor_backend": "mp"}
    if device == "cpu":
        # of a prompt that it computes in parts it rewinds the generator of the request's seed,
        # which generators of a CPU cannot do ("CPU Generator does not use offset")
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(PREFILL, plan.context)
    else:  # what it checks before it starts; the bytes above are what it takes
        arguments["gpu_memory_utilization"] = 0.9 * free / torch.cuda.mem_get_info(device)[1]
    with _environment(), in_one_line(host):
        from vllm import LLM  # type: ignore[import-not-found]

        return Library(LLM(**arguments))


def cache_bytes(row: int, rows: int, free: int, kept: int, device: str, host: str) -> int:
    """Bytes of keys and values for `rows` rows of `row` bytes where so many are free, of which
    `kept` are for weights and moments; an error where they are not enough for one row.
    """
    usable = int(SHARES[device] * max(0, free - kept))
    if usable < row:
        raise UserMistake(
            f"{host}.engine=vllm does not fit: {free / 1e9:.1f} GB are free on {device},"
            f" weights and moments take {kept / 1e9:.1f}, and keys and values of one row"
            f" {row / 1e9:.1f}: lower {host}.context, take a smaller base, or set"
            f" {host}.engine=hf"
        )
    return min(usable, row * rows)


def served_dtype(model: Any) -> torch.dtype:
    """Return the dtype in which vLLM computes: float64 is for tests, and it has none."""
    return torch.float32 if model.dtype == torch.float64 else model.dtype


def deterministic(device: str, dtype: torch.dtype) -> bool:
    """Whether a text follows from its seed alone, whatever its batch.

    In float32 on a CPU it did in all that was measured; GPUs have kernels that promise it.
    """
    if device == "cpu":
        return dtype == torch.float32
    return os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1"


def row_bytes(config: Any, context: int, dtype: torch.dtype, gpus: int = 1) -> int:
    """Bytes on each GPU of keys and values of one row as long as the context, where each layer
    keeps all.
    """
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = -(-heads // gpus)
    blocks = -(-context // 128)  # the largest block that it uses by default
    return 2 * text.num_hidden_layers * heads * width * dtype.itemsize * 128 * blocks


def folder_of(model: Any) -> Path | None:
    """Where the weights of a model lie as safetensors, as a folder or in the hub's cache; None
    where they have to be written.
    """
    from huggingface_hub import try_to_load_from_cache

    name = str(model.config.name_or_path)
    folder = Path(name)
    if not name:
        return None
    if not folder.is_dir():
        try:
            revision = getattr(model.config, "_commit_hash", None)
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        except ValueError:  # a file's name, which the hub takes for no name
            return None
        if not isinstance(cached, str):
            return None
        folder = Path(cached).parent
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return None
    return folder.resolve()


def _free(device: str) -> int:
    """Bytes that are free."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    import psutil

    return psutil.virtual_memory().available


@contextmanager
def _environment() -> Iterator[None]:
    """In here vLLM is started, so that tensors and functions pass as they are, and learner and
    engine take turns. It takes over torch's threads for its own process; this one is also the
    learner's, so they are given back.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
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
    except Exception as error:  # a version that we do not know may raise anything
        words = " ".join(str(error).split())
        raise UserMistake(
            f"{host}.engine = 'vllm': vLLM {version()} does not start"
            f" ({type(error).__name__}: {words[:300]}): see docs/vllm.md, or set"
            f" {host}.engine=hf"
        ) from error


class VLLMEngine(BatchedEngine):
    """Samples for the policies that `weights` serves; what nobody waits for any more is empty."""

    draws_behind = 1

    def __init__(
        self,
        plan: EnginePlan,
        policies: Sequence[str],
        vllm: Library,
        weights: Adapters | Whole,
        model: Any,
    ) -> None:
        """`model` is the base, or the one whole model."""
        super().__init__(plan, policies)
        device = model.device.type
        same = deterministic(device, served_dtype(model))
        self.facts = EngineFacts(same, False, f"vllm {version()}", counts=True)
        self.vllm = vllm
        self.weights = weights
        self.sleeps = device == "cuda" and plan.learns
        """Whether it gives its memory to the learner while that works."""
        self._asleep = False

    def _generate(
        self, requests: Sequence[Request], places: Places, wanted: Wanted
    ) -> Iterator[tuple[Sequence[int], list[Generation]]]:
        adapters = self._serving(places)
        asks = [
            VllmRequest(
                prompt_ids=request.prompt_ids.tolist(),
                adapter=adapters[request.policy],
                temperature=request.sampling.temperature,
                top_p=request.sampling.top_p,
                seed=request.seed % 2**63,
                max_tokens=request.sampling.max_tokens,
                end_ids=self.end_ids.tolist(),
            )
            for request in requests
        ]
        replies = self.vllm.run(asks, wanted, self._count)
        yield range(len(requests)), list(map(self._generation, replies))

    def _weigh(
        self, weighings: Sequence[Weighing], places: Places, wanted: Wanted
    ) -> list[list[np.ndarray]]:
        """Have vLLM read prompt and choice."""
        adapters = self._serving(places)
        asks = [
            VllmRequest(
                prompt_ids=np.concatenate([weighing.prompt_ids, choice]).tolist(),
                adapter=adapters[weighing.policy],
                reads=True,
            )
            for weighing in weighings
            for choice in weighing.choices
        ]
        replies = iter(self.vllm.run(asks, wanted))
        return [[_weights(choice, next(replies)) for choice in w.choices] for w in weighings]

    def _publish(self, policy: str, weights: Weights, version: int) -> None:
        """Return once vLLM was proved to serve these weights."""
        self._wake()
        self.weights.publish(policy, weights, version)

    def sleep(self) -> None:
        """Give a GPU's memory to the learner, until somebody samples or publishes."""
        if self.sleeps and not self._asleep:
            self.vllm.sleep()
            self._asleep = True

    def close(self) -> None:
        """End vLLM, delete what it read, end the thread where it is the engine's own."""
        super().close()
        self.vllm.close()
        self.weights.close()

    def _wake(self) -> None:
        if self._asleep:
            self.vllm.wake()
            self._asleep = False

    def _serving(self, places: Places) -> Mapping[str, Loaded | None]:
        """Return what serves each policy that is asked."""
        self._wake()
        return self.weights.serving([policy for policy in self.policies if places[policy]])

    def _count(self, reply: VllmOutput) -> None:
        self.meter.replies += 1
        self.meter.tokens += len(reply.token_ids)

    def _generation(self, reply: VllmOutput | None) -> Generation:
        if reply is None:
            return Generation(np.zeros(0, np.int64), np.zeros(0, np.float32), False, 1.0)
        token_ids = np.array(reply.token_ids, dtype=np.int64)
        logprobs = np.array(reply.logprobs, dtype=np.float32)
        finished = token_ids[-1] in self.end_ids
        return Generation(token_ids, logprobs, bool(finished), 1.0, reply.seconds)


def _weights(choice: np.ndarray, reply: VllmOutput | None) -> np.ndarray:
    """Log-probs of a choice that was read at the end of a prompt; empty where nobody waits."""
    if reply is None:
        return np.zeros(0, np.float32)
    return np.array(reply.read_logprobs[-len(choice) :], dtype=np.float32)
