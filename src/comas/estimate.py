"""Whether a run fits into memory and onto the disk, by a closed formula of what its config.json
files say; and the defaults of `tokens_per_pass`, `max_rows` and `checkpointing` with which it does.

Defaults are powers of two, so that a little more or less free memory does not change them. What a
pass takes in fact is measured by a dry run (`training.dry_run`). Leaves out: time; engines that
take a share of a GPU for themselves (`engines.vllm`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comas.config.resolve import Resolved, model_below, weights_at
from comas.config.schema import HostConfig
from comas.hosts.table import MAX_ROWS, TOKENS_PER_PASS
from comas.machine import Memory, can_return_large_blocks, memory_of, uncollected
from comas.models import gguf
from comas.models.loading import place_of
from comas.models.sources import apart_up_to, config_folder, positions_of
from comas.types import UserMistake

SHARES = {"cpu": 0.5, "gpu": 0.8, "allowed": 0.9}
"""Of the usable memory, what defaults aim at: the formula is off by a tenth, and a CPU's memory is
for others too. `allowed` is of what the config's `memory` says.
"""
MOST = {
    # SmolLM2-135M learnt 195, 223, 230 and 231 tokens per processor second in passes of 256, 512,
    # 1024 and 2048 tokens, and sampled 86, 92 and 87 with 64, 128 and 256 rows at once
    "cpu": {"tokens_per_pass": 1024, "max_rows": 64},
    "gpu": {"tokens_per_pass": TOKENS_PER_PASS, "max_rows": MAX_ROWS},
}
"""The values from which open keys are halved; those of a CPU also where nothing is known."""
LEAST = {"tokens_per_pass": 256, "max_rows": 1}
"""A pass of fewer tokens is hardly smaller: it takes one row at least."""
QUESTION = 512
"""Tokens of a question and the words around it."""
SHOWN = 2
"""Replies that a prompt shows: the work and its criticism."""
SCATTERED = 0.1 if can_return_large_blocks() else 0.7
"""Of a pass on a CPU, what the allocator holds in blocks that are free but do not fit."""
KEPT_CHECKPOINTS = 4
"""The last two, the best, and one that is being written."""


@dataclass(frozen=True)
class Shape:
    """What a config.json says of a model."""

    parameters: int
    vocabulary: int
    width: int
    inner: int
    """Width of the MLP."""
    queries: int
    """Width of all queries of an attention."""
    keys: int
    """Width of its keys, and of its values."""
    layers: int
    positions: int
    """Tokens that prompt and reply share."""

    def ends(self, targets: Sequence[str] | None) -> int:
        """Inputs and outputs of the layers that adapters change, by their usual names; of all but
        the head where `targets` is None, or names others.
        """
        sizes = {
            "q_proj": self.width + self.queries,
            "k_proj": self.width + self.keys,
            "v_proj": self.width + self.keys,
            "o_proj": self.queries + self.width,
            "gate_proj": self.width + self.inner,
            "up_proj": self.width + self.inner,
            "down_proj": self.inner + self.width,
        }
        changed = [sizes[name] for name in sizes if any(t.endswith(name) for t in targets or ())]
        return self.layers * sum(changed or sizes.values())


def shape_of(model: str, folder: str, trust_remote_code: bool = False) -> Shape:
    """Read the config.json in `folder` of the model at this place; ValueError or another error
    where it does not name these sizes.
    """
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    width = int(text.hidden_size)
    heads = int(text.num_attention_heads)
    head = int(getattr(text, "head_dim", None) or width // heads)
    keys = head * int(getattr(text, "num_key_value_heads", None) or heads)
    inner = int(getattr(text, "intermediate_size", None) or 4 * width)
    experts = int(getattr(text, "num_local_experts", 0) or getattr(text, "num_experts", 0) or 1)
    layers = int(text.num_hidden_layers)
    vocabulary = int(text.vocab_size)
    block = 2 * width * (head * heads + keys + 1) + 3 * width * inner * experts
    tables = 1 if text.tie_word_embeddings else 2
    return Shape(
        parameters(model) or layers * block + (tables * vocabulary + 1) * width,
        vocabulary,
        width,
        inner,
        head * heads,
        keys,
        layers,
        int(min(positions_of(config), apart_up_to(config) or math.inf)),
    )


def parameters(base: str) -> int | None:
    """Count the parameters of a base that lies on this disk by its safetensors headers; None where
    it does not.
    """
    if gguf.is_gguf(base):
        return gguf.parameters(base)
    total = 0
    for file in Path(config_folder(base) or base).glob("*.safetensors"):
        if file.name == "optimizer.safetensors":
            continue
        with file.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            if length > file.stat().st_size:  # a pointer of Git LFS begins with such a number
                return None
            try:
                header = json.loads(raw.read(length))
                header.pop("__metadata__", None)
                total += sum(math.prod(tensor["shape"]) for tensor in header.values())
            except (ValueError, TypeError, AttributeError, KeyError):
                return None  # loading it says what is wrong
    return total or None


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a host holds and is asked to do, in bytes of the largest of its models."""

    shape: Shape
    kept: int
    """Bytes of weights, adapters, optimizers and copies."""
    trained: int
    """Parameters that a checkpoint holds."""
    longest: int
    """Tokens of the longest row of prompt and reply."""
    asked: int
    """Rows that are asked for at once, at most."""
    number: int
    """Bytes of a number in a pass."""
    whole: bool
    """Whether models are trained whole."""
    beside: int
    """Policies that learn side by side, on threads of their own; 0 where none learns."""
    gpu: bool
    scattered: float

    def learning(self, tokens: int, recomputing: bool) -> int:
        """Bytes of a forward and backward pass of so many padded tokens, gradients included.

        The numbers that a block keeps per token were counted in Llama, Qwen2 and SmolLM2: what
        goes into its norms, products and attention. Logits are made in chunks, three at a time;
        a whole model has the gradients of its head as well.
        """
        from comas.learners.logprobs import LOGITS

        s = self.shape
        half = self.number == 2
        # one row at least; norms are made in float32
        padded = max(1, tokens // self.longest) * self.longest
        block = (6 + 2 * half + 2 * self.whole) * s.width + 4.5 * s.inner + 6 * s.keys
        one_block = padded * self.number * block
        head = 12 * min(LOGITS, padded * s.vocabulary)
        if self.whole:
            gradient = self.number * s.vocabulary * s.width
            head = max(head + gradient, 3 * gradient)
        if recomputing:
            all_blocks = padded * self.number * s.width * s.layers + max(head, one_block)
        else:
            all_blocks = one_block * s.layers + head
        gradients = 4 * s.parameters if self.whole else 0
        return int(all_blocks * (1 + self.scattered) + gradients) * self.beside

    def sampling(self, rows: int) -> int:
        """Bytes of the keys and values of so many rows at full length, of one attention over them,
        of a slice of prompts, and of the probabilities that tokens are drawn from.
        """
        from comas.engines.hf.lanes import PREFILL
        from comas.engines.sampling import drawing_bytes

        s = self.shape
        rows = min(rows, self.asked)
        tokens = rows * self.longest
        cache = 2 * tokens * (s.layers * s.keys + s.queries)
        prompts = min(PREFILL, tokens) * (2 * s.inner + 4 * s.width)
        return self.number * (cache + prompts) + drawing_bytes(s.vocabulary, rows, self.gpu)


def load_of(resolved: Resolved, name: str, learn: bool) -> Load | str:
    """Work out what a host with weights here holds and is asked for; a text says why that fails."""
    from comas.engines.auto import takes_vllm
    from comas.engines.hf import LARGEST
    from comas.learners.whole import SMALL

    config = resolved.config
    host = config.hosts[name]
    plans = resolved.at(name)
    weights = weights_at(plans, ask_hub=False)
    adapting = weights.adapting(host.learner if learn else None)
    if adapting:  # says what training would say of bases that differ
        model_below(resolved, name, weights, learn)
    shapes: list[Shape] = []
    for model in weights.models():
        folder = config_folder(model)
        if folder is None:
            return f"{model} is not on this disk"
        try:
            shapes.append(shape_of(model, folder, host.trust_remote_code))
        except Exception as error:  # noqa: BLE001 - whatever a family of its own has in its config
            return f"{type(error).__name__} in {folder}"
    torch_device, dtype = place_of(host.device, host.dtype)
    gpu = torch_device.type != "cpu"
    number = dtype.itemsize
    half = number == 2
    largest = max(shapes, key=lambda shape: shape.parameters)
    learning = [shape for shape, plan in zip(shapes, plans, strict=True) if learn and plan.learns]
    # an engine has packed weights on a CPU, and vLLM its own
    models = 1 if adapting else len(shapes)
    by_vllm = host.engine == "vllm"
    if host.engine == "auto":
        by_vllm = takes_vllm(str(torch_device), largest.parameters, models)
    copied = by_vllm or not (gpu or largest.parameters > LARGEST)
    refers = learn and resolved.method.refers
    if adapting:
        adapters = [plan.adapter for plan in plans]
        ends = [largest.ends(adapter.targets) for adapter in adapters]
        ranks = [adapter.rank for adapter in adapters]
        each = max(ranks) * max(ends)  # there is room for the largest
        kept = number * largest.parameters * (1 + copied)
        sampled = 2 * (half or gpu)  # in bfloat16, or of float32 the half that is read together
        kept += each * len(plans) * (8 + sampled + 4 * (refers and bool(weights.adapters)))
        kept += 8 * each * len(learning)
        trained = sum(rank * end for rank, end in zip(ranks, ends, strict=True))
        beside = min(1, len(learning))
    else:
        total = trained = sum(shape.parameters for shape in shapes)
        kept = 4 * total + 8 * sum(shape.parameters for shape in learning)
        kept += number * total * (refers + half + copied)
        small = not gpu and largest.parameters < SMALL
        beside = len(learning)
        beside = min(beside, config.threads or os.cpu_count() or 1) if small else min(1, beside)
    room = {**resolved.task.max_tokens, **config.room}
    paid = [room.get(role, config.max_tokens) for role in resolved.method.rewarded]
    longest = QUESTION + (1 + SHOWN) * max(paid, default=config.max_tokens)
    played = (config.questions or 0) * (config.samples or 1) * len(config.agents)
    measured = max(config.test_questions or 0, config.eval_questions if config.eval_every else 0)
    agents_here = sum(agent.host == name for agent in config.agents.values())
    return Load(
        shape=largest,
        kept=kept,
        trained=trained,
        longest=min(host.context or largest.positions, longest),
        asked=max(1, played, measured * agents_here),
        number=number,
        whole=not adapting,
        beside=beside,
        gpu=gpu,
        scattered=0.0 if gpu else SCATTERED,
    )


def device_of(host: HostConfig) -> str:
    """The device that a host is going to use."""
    return str(place_of(host.device, host.dtype)[0])


def _with_weights(resolved: Resolved) -> dict[str, HostConfig]:
    """The hosts that load models."""
    hosts = resolved.config.hosts.items()
    return {name: host for name, host in hosts if host.here and resolved.at(name)}


@dataclass(frozen=True)
class HostFit:
    """What one host with weights takes, in bytes."""

    name: str
    device: str
    kept: int = 0
    learning: int = 0
    sampling: int = 0
    trained: int = 0
    """Parameters that a checkpoint holds."""
    unknown: str = ""
    """Why these are not known."""
    chosen: Mapping[str, int] = field(default_factory=dict[str, int])
    """Keys that had no value, and what they were given."""

    @property
    def peak(self) -> int:
        """Bytes at the peak: a host learns or samples."""
        return self.kept + max(self.learning, self.sampling)


@dataclass(frozen=True)
class Fit:
    """A run's hosts against the memory of the devices that they are on."""

    hosts: Sequence[HostFit]
    memory: Mapping[str, Memory]
    """Device -> what it can give now, or what the config allows."""

    @property
    def checkpoint(self) -> int | None:
        """Bytes of a checkpoint: weights and two moments in float32; None where a size is not
        known.
        """
        all_known = not any(host.unknown for host in self.hosts)
        return 12 * sum(host.trained for host in self.hosts) if all_known else None

    def on(self, device: str) -> list[HostFit]:
        """The hosts on a device whose needs are known."""
        return [host for host in self.hosts if host.device == device and host.kept]

    def share(self, device: str) -> float:
        """Fraction of a device's usable memory that its hosts take at the peak; 0: unknown."""
        usable = self.memory[device].usable
        peak = sum(host.peak for host in self.on(device))
        return peak / max(1, usable) if usable is not None else 0.0

    def compared(self, device: str) -> str:
        """`about 7.6 GB at the peak, 21.4 GB free on the CPU`."""
        peak = sum(host.peak for host in self.on(device)) / 1e9
        device_name = "the CPU" if device == "cpu" else device
        return f"about {peak:.1f} GB at the peak, {self.memory[device]} on {device_name}"

    def notes(self) -> Iterator[str]:
        """Say what was chosen and why."""
        for host in self.hosts:
            values = ", ".join(
                f"hosts.{host.name}.{key}={str(value).lower()}"
                for key, value in host.chosen.items()
            )
            if values and host.unknown:
                yield f"memory of host {host.name} is not known ({host.unknown}): {values}"
            elif values:
                yield f"memory: {self.compared(host.device)}; so {values}"

    def check(self) -> None:
        """Refuse a run whose device cannot hold its hosts."""
        for device in self.memory:
            if self.share(device) > 1:
                kept = sum(host.kept for host in self.on(device))
                raise UserMistake(
                    f"the run does not fit into memory: {self.compared(device)}, and weights,"
                    f" adapters and optimizers alone take {kept / 1e9:.1f} GB: lower"
                    " tokens_per_pass, max_rows or context of its hosts, set learner=adapters,"
                    " dtype=bfloat16 or checkpointing=true there, have fewer agents, take a smaller"
                    " base, or set memory=GB where there is more"
                )


def fit(resolved: Resolved, *, learn: bool = True) -> tuple[Resolved, Fit]:
    """The config with `tokens_per_pass`, `max_rows` and `checkpointing` of every host, and what it
    takes with them. Values that the config has stay, whatever the memory is.
    """
    config = resolved.config
    hosts = _with_weights(resolved)
    devices = {name: device_of(host) for name, host in hosts.items() if host.on_this_machine}
    if config.memory is None:
        memory = {device: memory_of(device) for device in dict.fromkeys(devices.values())}
    else:
        allowed = int(config.memory * 1e9)
        memory = dict.fromkeys(devices.values(), Memory(allowed, allowed))
    fits: list[HostFit] = []
    for name, host in hosts.items():
        device = devices.get(name, host.where)
        load = f"it is on another machine, where={host.where}"
        if name in devices:
            load = load_of(resolved, name, learn)
        if isinstance(load, str):  # careful values
            chosen = {key: most for key, most in MOST["cpu"].items() if getattr(host, key) is None}
            fits.append(HostFit(name, device, unknown=load, chosen=chosen))
            continue
        usable = memory[device].usable
        share = SHARES["allowed" if config.memory else "cpu" if device == "cpu" else "gpu"]
        hosts_there = list(devices.values()).count(device)
        room = None if usable is None else share * usable / hosts_there
        fits.append(_fit_host(name, host, device, load, room))
    chosen_hosts = {
        host.name: hosts[host.name].model_copy(
            update={"checkpointing": bool(hosts[host.name].checkpointing), **host.chosen}
        )
        for host in fits
    }
    config = config.model_copy(update={"hosts": {**config.hosts, **chosen_hosts}})
    return resolved.with_config(config), Fit(fits, memory)


def _fit_host(name: str, host: HostConfig, device: str, load: Load, room: float | None) -> HostFit:
    """The host with values for its open keys; `room` is in bytes, None where nobody knows.

    Activations are recomputed only where even the smallest passes have too little room otherwise.
    """
    most = MOST["cpu" if device == "cpu" or room is None else "gpu"]
    bounds = room if room is not None else math.inf

    def halved(key: str, part: Callable[[int], int]) -> int:
        value = most[key]
        while value > LEAST[key] and load.kept + part(value) > bounds:
            value = max(LEAST[key], value // 2)
        return value

    chosen: dict[str, int] = {}
    recomputing = bool(host.checkpointing)
    tokens = host.tokens_per_pass
    if tokens is None:
        tokens = halved("tokens_per_pass", lambda tokens: load.learning(tokens, recomputing))
        if load.kept + load.learning(tokens, recomputing) > bounds and host.checkpointing is None:
            recomputing = True
            tokens = halved("tokens_per_pass", lambda tokens: load.learning(tokens, True))
        chosen["tokens_per_pass"] = tokens
    rows = host.max_rows
    if rows is None:
        chosen["max_rows"] = rows = halved("max_rows", load.sampling)
    if recomputing and not host.checkpointing:
        chosen["checkpointing"] = True
    learning = load.learning(tokens, recomputing)
    sampling = load.sampling(rows)
    return HostFit(name, device, load.kept, learning, sampling, load.trained, chosen=chosen)


@uncollected()  # torch is imported
def fitted(resolved: Resolved, note: Callable[[str], None]) -> tuple[Resolved, Fit]:
    """The config that a new run keeps: with its defaults, which are told, and what it takes with
    them; an error where it does not fit into memory or onto the disk.
    """
    resolved = with_dtypes(resolved, note)
    resolved, run_fit = fit(resolved)
    run_fit.check()
    for line in run_fit.notes():
        note(line)
    checkpoint = run_fit.checkpoint
    target, free = free_disk(resolved.config.out)
    if checkpoint is not None and KEPT_CHECKPOINTS * checkpoint > free:
        raise UserMistake(
            f"the run needs about {KEPT_CHECKPOINTS * checkpoint / 1e9:.2f} GB on disk for"
            f" checkpoints and {target} has {free / 1e9:.2f} GB free: free some, choose another"
            " out, or fewer or smaller agents"
        )
    return resolved, run_fit


@uncollected()
def filled(resolved: Resolved, learn: bool) -> Resolved:
    """Fill in `tokens_per_pass` and `max_rows` where one of them is open."""
    hosts = _with_weights(resolved).values()
    if any(host.tokens_per_pass is None or host.max_rows is None for host in hosts):
        return fit(resolved, learn=learn)[0]
    return resolved


def free_disk(out: str | None) -> tuple[Path, int]:
    """Find where a run with this `out` is written, and the bytes that are free there."""
    target = Path(out or "runs").resolve()
    existing = next(folder for folder in (target, *target.parents) if folder.exists())
    return target, shutil.disk_usage(existing).free


def with_dtypes(resolved: Resolved, note: Callable[[str], None]) -> Resolved:
    """The config with bfloat16 at hosts with a large model, learning or frozen, on a CPU which
    multiplies it clearly faster, tried for a moment; a note for each. Seed models stay in float32.
    """
    from comas.learners.precision import CLEARLY, LARGE, bfloat16_speed

    config = resolved.config
    hosts = dict(config.hosts)
    for name, host in config.hosts.items():
        plans = resolved.at(name)
        if not (host.on_this_machine and plans) or host.dtype != "auto" or device_of(host) != "cpu":
            continue
        if any(plan.source.seeded for plan in plans):
            continue
        models = weights_at(plans, ask_hub=False).models()
        folders = [config_folder(model) for model in models if (parameters(model) or 0) >= LARGE]
        folder = next(filter(None, folders), None)
        trusted = host.trust_remote_code
        speed = bfloat16_speed(folder, trusted) if folder is not None else 0.0
        if speed >= CLEARLY:
            hosts[name] = host.model_copy(update={"dtype": "bfloat16"})
            note(
                f"hosts.{name}.dtype=bfloat16: this processor multiplies it {speed:.1f} times as"
                f" fast as float32 (hosts.{name}.dtype=float32 for exacter numbers)"
            )
    return resolved.with_config(config.model_copy(update={"hosts": hosts}))
