"""The words of engines and learners: requests, weights, and what each of the two does.

Plain records and protocols; numpy is the heaviest thing here. Leaves out: words that games and
methods know (`types`), anything that runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from comas.types import Meter, Method, Row, Sampling


@dataclass(frozen=True)
class Request:
    """One ask on its way to an engine."""

    policy: str
    prompt_ids: np.ndarray
    """int64, shape (prompt tokens,)."""
    sampling: Sampling
    seed: int
    """Key of the counter-based noise: draw t of this request depends on (seed, t) alone."""


@dataclass(frozen=True)
class Weighing:
    """A prompt and continuations whose log-probs are wanted; nothing is sampled."""

    policy: str
    prompt_ids: np.ndarray
    """int64, shape (prompt tokens,)."""
    choices: Sequence[np.ndarray]
    """Per continuation int64, shape (its tokens,), one token at least."""
    common: int = 0
    """Tokens with which prompts of other weighings are likely to begin as well."""


@dataclass
class Generation:
    """One sampled reply at home."""

    token_ids: np.ndarray
    """int64, shape (generated tokens,); the end token included where there is one."""
    logprobs: np.ndarray
    """float32, same shape; of softmax(logits / temperature)."""
    finished: bool
    margin: float
    """Smallest distance of a draw from the edge of its token's interval, as probability mass."""
    seconds: float = 0.0


TIE = 1e-4
"""A near-tie: a draw whose margin is below this might flip in fp32 if it were batched otherwise."""


def always() -> bool:
    """Somebody waits: the default of `generate(requests, wanted)`."""
    return True


CausalLM = Any
"""A Hugging Face causal language model; torch is not imported here."""


def cache_keyword(model: CausalLM) -> str:
    """Name the argument of the model's forward pass that takes keys and values.

    `cache` since transformers 5.24, where `past_key_values` is deprecated; `past_key_values` before
    and in models that bring their own code.
    """
    forward = getattr(model, "forward", model)
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


@dataclass(frozen=True)
class AdapterSpec:
    """The shape of one policy's adapter, which counts alpha / rank times."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | None = None
    """Names of linear layers, or ends of names (`q_proj`); None is all of them but the head."""


class AdaptedModel(Protocol):
    """One base model that carries the adapters of several policies."""

    @property
    def model(self) -> CausalLM:
        """The base; without `routed` it runs as if it had no adapters."""
        ...

    @property
    def policies(self) -> Sequence[str]:
        """Names, in the order of their numbers."""
        ...

    @property
    def specs(self) -> Mapping[str, AdapterSpec]:
        """The shape of each policy's adapter."""
        ...

    def tensors(self, policy: str) -> Mapping[str, Any]:
        """`<module>.lora_A` (rank, in) and `<module>.lora_B` (out, rank) of a policy."""
        ...

    def routed(self, policy_B: Any) -> AbstractContextManager[None]:
        """Send row b of a batch through the adapter of policy number `policy_B[b]`; rows are sorted
        by it.
        """
        ...

    def sampling(self) -> AbstractContextManager[None]:
        """Keep the adapters ready for many passes without gradients."""
        ...

    def merged(self, policy: str) -> Mapping[str, Any]:
        """Adapted weights by name, with this policy's adapter added."""
        ...


@dataclass(frozen=True)
class WholeModel:
    """Weights of a policy that has a model of its own."""

    model: CausalLM


@dataclass(frozen=True)
class Adapter:
    """Weights of a policy that is an adapter on a base; others share the same `shared`."""

    shared: AdaptedModel


Weights = WholeModel | Adapter
"""Weights that a policy is sampled from. Engines in this process read them in place: nothing is
copied that need not be.
"""


class StaleWeights(RuntimeError):
    """An engine cannot show that it samples from the weights that were published."""


@dataclass(frozen=True)
class EngineFacts:
    """Promises of an engine; none, unless it makes them."""

    deterministic: bool = False
    """Whether a text follows from policy, prompt, sampling and seed alone, whatever else is sampled
    at the time; in float32 apart from near-ties.
    """
    margin_known: bool = False
    """Whether `Generation.margin` is measured; it is 1 otherwise."""
    library: str = ""
    """Library that computes, with its version, where it is another one: `vllm 0.32.0`."""
    counts: bool = False
    """Whether tokens and replies are counted on the plan's meter while they are drawn; otherwise
    the host counts replies that are complete.
    """


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """Token ids and bounds that an engine is built for."""

    end_ids: Sequence[int]
    """Tokens that end a reply."""
    pad_id: int
    """A token that the model can read; what it stands for is read by nobody."""
    context: int
    """Tokens that prompt and reply share."""
    max_rows: int = 512
    """Rows that are decoded at once, at most."""
    learns: bool = True
    """Whether weights are going to be published."""
    gpus: int = 1
    """GPUs that sampling may use; the models, and the learner, are on the first."""
    reserved: int = 0
    """Bytes of the first device that the learner is going to take, for its optimizers' moments: an
    engine that takes a share of the memory leaves them free.
    """
    host: str = "<name>"
    """For error messages: `hosts.<name>`."""
    meter: Meter = field(default_factory=Meter)
    worker: Executor | None = None
    """One thread, shared with the learner: what runs in it never meets a learning step. An engine
    that reads weights in place samples there; without one it makes its own.
    """


class Engine(Protocol):
    """Samples; built by an `EngineModule`."""

    @property
    def facts(self) -> EngineFacts:
        """Return the engine's promises."""
        ...

    async def sample(self, request: Request) -> Generation:
        """One reply. Batching is the engine's own business; where the caller is cancelled, nobody
        waits for the reply any more.
        """
        ...

    async def weigh(self, weighing: Weighing) -> list[np.ndarray]:
        """Log-probs of each choice's tokens behind the prompt, in nats, of softmax(logits): per
        choice float32 of its shape. Batched like `sample`; a host whose engine has no such method
        refuses to weigh.
        """
        ...

    def publish(self, policy: str, weights: Weights, version: int) -> None:
        """Return once `sample` serves exactly these weights; raise StaleWeights where that cannot
        be shown. Nothing is sampled meanwhile.
        """
        ...

    def close(self) -> None:
        """Give threads and memory back."""
        ...


class EngineModule(Protocol):
    """A file or folder that defines an engine.

    It may define `check(host)` as well, which raises a UserMistake where the engine cannot run here
    at all; it is called with `hosts.<name>` before models are loaded.
    """

    def build(self, plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
        """An engine for these policies, from the weights of each; UserMistake where it cannot serve
        them.
        """
        ...


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can lend its memory."""

    def sleep(self) -> None:
        """Give memory to the learner; the engine takes it again when it samples or publishes."""
        ...


SIGNS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "ALLOC_FAILED",
    "Invalid buffer size",  # a tensor that is too large for an Apple GPU
)
"""Words of torch's allocators and libraries for want of memory, in the text of a RuntimeError:
there is a class of its own for CUDA only.
"""


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that there is no memory left."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in SIGNS)


def in_float64(tensor: Any) -> Any:
    """The tensor in float64, on its device or, since Apple GPUs have none, from there on the CPU.

    First copied, then converted: where one call does both, torch refuses or leaves the copy empty.
    """
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def uploaded(tensor: Any, device: Any) -> Any:
    """A tensor of the CPU on this device, itself where that is the CPU.

    Nobody waits for a GPU, since the copy is from pinned memory; torch keeps that until it is
    made. Apple GPUs share the CPU's memory, and are waited for.
    """
    if device.type in ("cpu", "mps"):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Learner(Protocol):
    """Trains. One optimizer step per policy present in the rows."""

    method: Method
    """Method that it learns by."""

    def step(
        self, rows: Mapping[str, Sequence[Row]], lr_scale: float = 1.0
    ) -> dict[str, dict[str, float]]:
        """One optimizer step per policy that has rows, at `lr_scale` times its learning rate;
        statistics per policy.
        """
        ...

    def weights(self) -> Mapping[str, Weights]:
        """Policy -> what to sample from; trained in place, or rounded anew in each step."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Give policy `target` the weights that policy `source` has now."""
        ...

    def save(self, path: Path) -> None:
        """Write weights and optimizer of every policy below `path`."""
        ...

    def load(self, path: Path) -> None:
        """The inverse of `save`."""
        ...
