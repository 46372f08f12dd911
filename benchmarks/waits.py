"""What a GPU is waited for, and what it is given to do: `python benchmarks/waits.py [--json]
[--places]`; no GPU is needed.

A pretended device keeps its tensors' contents on the CPU, and counts: waits (numbers that are read
back, copies to the CPU, blocking uploads, indices whose length follows from contents), uploads for
which nobody waits, and kernels (operators that are no views; attention is one, as on a GPU). So
counts are those of the program; where torch or a driver waits for reasons of their own, nothing is
seen. Counted are a sampled token step of the engine `hf` and a pass of a learning step, each as the
difference between a long and a short run; shapes are tiny but for their 24 layers.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from shapes import METHOD, names
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import LlamaConfig, LlamaForCausalLM

from comas.engines import hf
from comas.learners.lora import layers
from comas.learners.lora.learner import AdapterLearner
from comas.learners.lora.population import Population
from comas.learners.recipe import Recipe
from comas.learners.whole import FullLearner
from comas.seams import AdapterSpec, EnginePlan, Request, Weights, WholeModel
from comas.types import Row, Sampling

_setup_privateuseone_for_python_backend("pretended")
torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(numbers, device=...)` is an upload
GPU = torch.device("pretended", 0)
READS = {"_local_scalar_dense", "equal", "is_nonzero"}
SIZES = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount"}
"""Operators whose result has as many elements as contents say."""
ALLOCATES = ("empty", "new_empty", "is_pinned", "lift_fresh")


class Counts:
    """What was counted so far."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """Kind and place -> how often."""
        self.uploads = 0
        self.kernels = 0
        self.pinned: dict[int, torch.Tensor] = {}
        """Tensors of a CPU whose memory is pinned, by `id`."""

    def wait(self, kind: str) -> None:
        """Count a wait at the place in our code, or transformers', that asked for it."""
        ours = [
            f"{frame.filename.rpartition(part)[2]}:{frame.lineno}"
            for frame in traceback.extract_stack()
            for part in ("/src/comas/", "/site-packages/transformers/")
            if part in frame.filename
        ]
        self.waits[f"{kind} {ours[-1] if ours else 'elsewhere'}"] += 1

    def upload(self, source: torch.Tensor, blocking: bool) -> None:
        """Count a copy from the CPU."""
        if blocking or id(source) not in self.pinned:
            self.wait("upload")
        else:
            self.uploads += 1


COUNTS = Counts()


class Pretended(torch.Tensor):
    """A tensor that says it lies on the pretended device; `inner` has its contents."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Pretended:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=GPU,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


class Counting(TorchDispatchMode):
    """In here operators that make tensors on the pretended device are seen as well."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def inner_of(value: Any) -> Any:
    return value.inner if isinstance(value, Pretended) else value


def outer_of(value: Any) -> Any:
    return Pretended(value) if isinstance(value, torch.Tensor) else value


def lies_there(values: Any) -> bool:
    """Whether one of these, or of what they contain, is on the pretended device."""
    return any(
        isinstance(value, Pretended) or (isinstance(value, (tuple, list)) and lies_there(value))
        for value in values
    )


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU and count what a GPU would have had to do with it."""
    name = func._schema.name.removeprefix("aten::")
    there = lies_there(args) or lies_there(kwargs.values())
    if name == "is_pinned":
        return id(args[0]) in COUNTS.pinned
    if name == "_pin_memory":
        pinned = args[0].clone()
        COUNTS.pinned[id(pinned)] = pinned  # kept, so that no other gets its number
        return pinned
    target = there
    if (device := kwargs.get("device")) is not None:
        target = torch.device(device).type == GPU.type
        kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": None}
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
    if there or target:
        count(func, name, args, kwargs, there, target)
    made = run(name, func, mapped(inner_of, args), mapped(inner_of, kwargs))
    return mapped(outer_of, made) if target else made


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """What torch's own `tree_map` does, for the containers that operators take, in a tenth of the
    time.
    """
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(change, item) for item in value])
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return change(value)


def count(func: Any, name: str, args: Any, kwargs: Any, there: bool, target: bool) -> None:
    """Count one operator that has to do with the pretended device."""
    if name in READS:
        COUNTS.wait("read")
    elif name == "_to_copy" and there and not target:
        COUNTS.wait("download")
    elif name == "_to_copy" and not there:
        COUNTS.upload(args[0], not kwargs.get("non_blocking"))
    elif name == "copy_" and not isinstance(args[0], Pretended):
        COUNTS.wait("download")
    elif name == "copy_" and not isinstance(args[1], Pretended):
        COUNTS.upload(args[1], not (args[2:] and args[2]))
    elif name in SIZES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        COUNTS.wait("size")
    else:
        if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
            for index in filter(lambda i: i is not None, args[1]):
                if index.dtype in (torch.bool, torch.uint8):
                    COUNTS.wait("size")
                if not isinstance(index, Pretended):
                    COUNTS.upload(index, blocking=True)
        if name == "where":  # it takes a number as a tensor, which it moves first
            for tensor in args:
                if not isinstance(tensor, Pretended):
                    COUNTS.upload(tensor, blocking=True)
        alias = [value.alias_info for value in func._schema.returns]
        is_view = any(info is not None and not info.is_write for info in alias)
        COUNTS.kernels += not (is_view or name.startswith(ALLOCATES))


def run(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on tensors of a CPU."""
    if name == "_fused_sdp_choice":
        return OVERRIDEABLE
    if name == "_scaled_dot_product_fused_attention_overrideable":
        return attention(*args, **kwargs)
    if name == "_scaled_dot_product_fused_attention_overrideable_backward":
        return attention_backward(*args, **kwargs)
    return func(*args, **kwargs)


OVERRIDEABLE = 4
"""Number of torch's attention for devices that bring their own."""


def shares(
    q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float
) -> torch.Tensor:
    """How much each token sees of each other."""
    scores = (q @ k.mT) * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores if bias is None else scores + bias).softmax(-1)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """What such an attention returns: the result, its log-sum-exp, and places of no use here."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out = shares(q, k, bias, causal, factor) @ v
    none = torch.zeros(0)
    lengths = torch.zeros(0, dtype=torch.long)
    return out, none, lengths, lengths, q.shape[2], k.shape[2], lengths, lengths, none


def attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    mask: Sequence[bool],
    out: torch.Tensor,
    *rest: Any,
    scale: float | None = None,
) -> Any:
    """Gradients of `attention` with respect to q, k, v."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    causal = rest[6]
    p = shares(q, k, bias, causal, factor)
    of_shares = grad @ v.mT
    of_scores = p * (of_shares - (of_shares * p).sum(-1, keepdim=True)) * factor
    return of_scores @ k, of_scores.mT @ q, p.mT @ grad, None


def counted(work: Callable[[], Any]) -> Counts:
    """Count what this does."""
    global COUNTS
    COUNTS = Counts()
    work()
    return COUNTS


def on_device(model: Any) -> Any:
    """Move parameters and buffers of a model to the pretended device."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            module._parameters[name] = torch.nn.Parameter(Pretended(weight.detach()))
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = Pretended(buffer)
    return model


LAYERS = 24


def base() -> Any:
    """A random Llama in bfloat16 on the pretended device."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return on_device(LlamaForCausalLM(config).to(torch.bfloat16).eval())


def adapters(agents: int) -> Population:
    """So many adapters of rank 16 on a base."""
    return Population(base(), dict.fromkeys(names(agents), AdapterSpec(16, 32.0)))


Counted = dict[str, Any]
"""Waits, uploads and kernels of one unit of work, and the places of its waits."""


def difference(short: Counts, long: Counts, units: int) -> Counted:
    """Counts per unit, of which a long run had so many more than a short one."""
    places = long.waits.copy()
    places.subtract(short.waits)
    return {
        "waits": sum(places.values()) / units,
        "uploads": (long.uploads - short.uploads) / units,
        "kernels": (long.kernels - short.kernels) / units,
        "places": {place: n / units for place, n in places.items() if n},
    }


def token_step(weights: dict[str, Weights], counts: Sequence[int], **sampling: float) -> Counted:
    """One token of rows of which each policy has so many, by the engine `hf`."""
    engine = hf.build(EnginePlan(end_ids=[-1], pad_id=0, context=64, max_rows=32), weights)
    owners = [p for p, n in zip(weights, counts, strict=True) for _ in range(n)]

    def of_tokens(tokens: int) -> Counts:
        asked = [
            Request(p, np.arange(1, 4 + i % 5), Sampling(max_tokens=tokens, **sampling), i)
            for i, p in enumerate(owners)
        ]
        return counted(lambda: engine.generate(asked))

    return difference(of_tokens(4), of_tokens(12), 8)


def rows_of(count: int, temperature: float, shared: bool) -> list[Row]:
    """Rows of 12 to 15 tokens, whose prompts are the same or not."""
    rows = []
    for i in range(count):
        ids = 1 + np.arange(12 + i % 4) % 60 + (0 if shared else i % 3)
        mask = np.arange(len(ids)) >= 8
        none = np.zeros(len(ids), np.float32)
        sampled = np.where(mask, -4.0, 0.0).astype(np.float32)
        rows.append(
            Row(f"t{i}", "solution", temperature, ids, mask, none, None, i % 2 / 1.0, sampled)
        )
    return rows


def learnt_pass(
    make: Callable[[Recipe], AdapterLearner | FullLearner],
    temperature: float = 1.0,
    shared: bool = False,
    **recipe: Any,
) -> tuple[Counted, Counted]:
    """One pass of a learning step, and what a step has besides its passes per policy."""
    chosen = Recipe(**{"lr": 1e-3, "tokens_per_pass": 64, "gap_limit": 1e9, **recipe})
    learner = make(chosen)
    policies = list(learner.weights())

    def of_rows(count: int) -> tuple[Counts, int]:
        rows = {policy: rows_of(count, temperature, shared) for policy in policies}
        parts = len(learner.parts([(p, row) for p in policies for row in rows[p]]))
        return counted(lambda: learner.step(rows)), parts

    of_rows(8)  # optimizers make their moments
    short, few = of_rows(8)
    long, many = of_rows(32)
    of_pass = difference(short, long, many - few)
    rest = {key: (getattr(short, key) - of_pass[key] * few) for key in ("uploads", "kernels")}
    places = {p: n - of_pass["places"].get(p, 0) * few for p, n in short.waits.items()}
    places = {place: n / len(policies) for place, n in places.items() if n}
    rest = {key: n / len(policies) for key, n in rest.items()}
    return of_pass, {"waits": sum(places.values()), **rest, "places": places}


def measured() -> dict[str, Counted]:
    """All counts, by name."""
    # as bfloat16 on Hopper, whose grouped product waits for nothing
    layers.grouped = lambda x_NI, other: True
    found: dict[str, Counted] = {}
    whole: dict[str, Weights] = {"a00": WholeModel(base())}
    four = AdapterLearner(adapters(4), Recipe(1e-3), METHOD, 0, "base").weights()
    found["token step, whole model"] = token_step(whole, [8])
    found["token step, 4 adapters, even"] = token_step(four, [2, 2, 2, 2])
    found["token step, 4 adapters, uneven"] = token_step(four, [1, 3, 2, 2])
    found["token step, top_p and temperature"] = token_step(whole, [8], top_p=0.9, temperature=0.7)
    of_adapters = lambda recipe: AdapterLearner(adapters(2), recipe, METHOD, 0, "base")  # noqa: E731
    of_whole = lambda recipe: FullLearner({"a00": base()}, recipe, METHOD, 0)  # noqa: E731
    first: dict[str, Any] = {"old_logprobs": "first_pass", "share_prompts": True}
    for name, make, temperature, shared, recipe in (
        ("adapters", of_adapters, 1.0, False, first),
        ("adapters, shared prompts, temperature", of_adapters, 0.7, True, first),
        ("adapters, recomputed", of_adapters, 1.0, False, {**first, "old_logprobs": "recomputed"}),
        ("whole model", of_whole, 1.0, False, first),
    ):
        of_pass, of_update = learnt_pass(make, temperature, shared, **recipe)
        found[f"learnt pass, {name}"] = of_pass
        found[f"update of a policy, {name}"] = of_update
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--places", action="store_true", help="where each wait comes from")
    parser.add_argument("--layers", type=int, default=24)
    args = parser.parse_args()
    global LAYERS
    LAYERS = args.layers
    with Counting():
        found = measured()
    if args.json:
        print(json.dumps(found))
        return
    print("| | waits | uploads | kernels |\n|---|---|---|---|")
    for name, counts in found.items():
        print(f"| {name} | {counts['waits']:g} | {counts['uploads']:g} | {counts['kernels']:g} |")
        for place, count in counts["places"].items() if args.places else ():
            print(f"| &nbsp; {place} | {count:g} | | |")


if __name__ == "__main__":
    main()
