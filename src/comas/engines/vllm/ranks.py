"""One model over several GPUs of this machine, or over several processes on its CPU (vLLM's tensor
parallelism): what can be spread so, what each process is started with, and what is said of one that
ends.

vLLM calls these processes ranks. Leaves out: which part of a tensor a rank has (`worker`), several
machines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from comas.children import HUB, ending, without_keys
from comas.engines.module import TensorParallel
from comas.types import UserMistake

DIVIDED = {"num_attention_heads": "attention heads", "intermediate_size": "hidden units"}
"""Keys of a config.json whose numbers are divided among ranks, and what they count."""
SHARED = "num_key_value_heads"
"""The same of heads of keys and values, of which several ranks may have one alike."""


def check(asked: TensorParallel) -> None:
    """An error for models that cannot be spread over so many ranks."""
    key = f"{asked.host}.tensor_parallel={asked.ranks}"
    if asked.whole:
        raise UserMistake(
            f"{key}: vLLM spreads adapters on one base over several GPUs here, not whole models,"
            f" whose parts are not proved: set {asked.host}.learner=adapters, or leave it out"
        )
    for config in asked.configs:
        for what, count in _counts(config):
            if _divides(asked.ranks, count, shared=what == SHARED):
                continue
            words = DIVIDED.get(what, "heads of keys and values")
            most = max(n for n in range(1, asked.ranks) if _fits(n, config))
            raise UserMistake(
                f"{key}: the base has {count} {words} ({what}), which {asked.ranks} GPUs cannot"
                f" share evenly: set {asked.host}.tensor_parallel={most}"
            )


def check_gpus(ranks: int, device: torch.device, host: str) -> None:
    """An error where fewer GPUs are visible."""
    if device.type == "cuda" and ranks > (there := torch.cuda.device_count()):
        raise UserMistake(
            f"{host}.tensor_parallel={ranks}, and {there} of the machine's GPUs can be seen: lower"
            " it, or see to CUDA_VISIBLE_DEVICES"
        )


def _fits(ranks: int, config: Mapping[str, Any]) -> bool:
    return all(_divides(ranks, n, shared=what == SHARED) for what, n in _counts(config))


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    text = config.get("text_config") or config
    for key in (*DIVIDED, SHARED):
        if isinstance(count := text.get(key), int):
            yield key, count


def _divides(ranks: int, count: int, *, shared: bool) -> bool:
    return count % ranks == 0 or (shared and ranks % count == 0)


def kept_of(ranks: int, heads: int) -> int:
    """Into how many parts keys and values of so many heads are divided: a head at least is kept by
    each rank.
    """
    return min(ranks, heads)


@contextmanager
def started(ranks: int, device: str) -> Iterator[None]:
    """In here ranks are started: they inherit their share of this process's threads on a CPU, an
    address that only this machine reaches, and no keys. What vLLM sets of its own is set back.
    """
    variables = {"PYTHONWARNINGS": "ignore", "VLLM_HOST_IP": "127.0.0.1"}
    if device == "cpu":
        variables["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // ranks))
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    names = [*variables, "OMP_NUM_THREADS", "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"]
    kept = without_keys(os.environ, HUB)  # what they read lies on the disk
    keys = [name for name in os.environ if name not in kept]
    before = {name: os.environ.get(name) for name in [*names, *keys]}
    for name in keys:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def last_words(codes: Sequence[int | None]) -> str | None:
    """Which rank ended by itself, by the exit codes of all; None where none did.

    Where one does, vLLM ends the others by SIGTERM, and by SIGKILL after some seconds.
    """
    ended = {rank: code for rank, code in enumerate(codes) if code is not None}
    if not ended:
        return None
    first = min(ended, key=lambda rank: (ended[rank] in (0, -signal.SIGTERM), rank))
    return f"rank {first} {ending(ended[first])}"
