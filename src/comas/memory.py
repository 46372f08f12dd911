"""The memory of a run: what its hosts keep, the bounds of their passes, whether it fits at all.

What weights, adapters and optimizers take follows from config.json files; a run whose device cannot
hold them is refused before it loads. The bounds of a pass follow from a formula; where there is no
memory left all the same, they are halved once (`hosts.local`, `learners.step`). A dry run measures
what a pass takes in fact (`training.dry_run`). Leaves out: time; engines that take a share of a GPU
for themselves (`engines.vllm`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comas.config.plan import Plan
from comas.config.schema import HostConfig
from comas.config.weights import model_below, weights_at
from comas.hosts.keys import MAX_ROWS, TOKENS_PER_PASS
from comas.machine import DeviceMemory, can_return_large_blocks, memory_of, uncollected
from comas.models import gguf
from comas.models.loading import place_of
from comas.models.sources import apart_up_to, config_folder, positions_of
from comas.types import UserMistake

SHARES = {"cpu": 0.5, "gpu": 0.8}
"""Share of the usable memory that bounds aim at: the formula is off by a tenth, and a CPU's memory
is for others too.
"""
MOST = {
    # SmolLM2-135M learnt 195, 223, 230 and 231 tokens per processor second in passes of 256, 512,
    # 1024 and 2048 tokens, and sampled 86, 92 and 87 with 64, 128 and 256 rows at once
    "cpu": {"tokens_per_pass": 1024, "max_rows": 64},
    "gpu": {"tokens_per_pass": TOKENS_PER_PASS, "max_rows": MAX_ROWS},
}
"""The bounds from which open ones are halved; those of a CPU also where nothing is known."""
LEAST = {"tokens_per_pass": 256, "max_rows": 1}
"""A pass of fewer tokens is hardly smaller: it takes one row at least."""
QUESTION = 512
"""Tokens of a question and the words around it."""
SHOWN = 2
"""Replies that a prompt shows: the work and its criticism."""
SCATTERED = 0.1 if can_return_large_blocks() else 0.7
"""Share of a pass on a CPU that the allocator holds besides, in blocks that are free but do not
fit.
"""
KEPT_CHECKPOINTS = 4
"""The last two, the best, and one that is being written."""


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model, from its config.json."""

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


def size_of(model: str, folder: str, trust_remote_code: bool = False) -> ModelSize:
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
    of_expert = int(getattr(text, "moe_intermediate_size", None) or inner) if experts > 1 else inner
    block = 2 * width * (head * heads + keys + 1) + 3 * width * of_expert * experts
    tables = 1 if text.tie_word_embeddings else 2
    return ModelSize(
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
class HostNeed:
    """Needs of a host: what it keeps, and what its passes take, in bytes, by the largest of its
    models.
    """

    size: ModelSize
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

    def learning(self, tokens: int, recomputing: bool) -> int:
        """Bytes of a forward and backward pass of so many padded tokens, gradients included.

        The numbers that a block keeps per token were counted in Llama, Qwen2 and SmolLM2: what
        goes into its norms, products and attention. Logits are made in chunks, three at a time;
        a whole model has the gradients of its head as well.
        """
        from comas.learners.logprobs import LOGITS

        s = self.size
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
        return int(all_blocks * (1 + (0.0 if self.gpu else SCATTERED)) + gradients) * self.beside

    def sampling(self, rows: int) -> int:
        """Bytes of the keys and values of so many rows at full length, of one attention over them,
        of a slice of prompts, and of the probabilities that tokens are drawn from.
        """
        from comas.engines.hf.lanes import PREFILL
        from comas.engines.sampling import drawing_bytes

        s = self.size
        rows = min(rows, self.asked)
        tokens = rows * self.longest
        cache = 2 * tokens * (s.layers * s.keys + s.queries)
        prompts = min(PREFILL, tokens) * (2 * s.inner + 4 * s.width)
        return self.number * (cache + prompts) + drawing_bytes(s.vocabulary, rows, self.gpu)


def need_of(plan: Plan, name: str) -> HostNeed | str:
    """Work out what a host with weights here holds and is asked for; a text says why that fails."""
    from comas.engines.auto import takes_vllm
    from comas.engines.hf import LARGEST
    from comas.learners.whole import SMALL

    config = plan.config
    host = config.hosts[name]
    policies = plan.at(name)
    weights = weights_at(policies, ask_hub=False)
    adapting = weights.adapting(host.learner if plan.learns else None)
    if adapting:  # says what training would say of bases that differ
        model_below(plan, name, weights)
    sizes: list[ModelSize] = []
    for model in weights.models():
        folder = config_folder(model)
        if folder is None:
            return f"{model} is not on this disk"
        try:
            sizes.append(size_of(model, folder, host.trust_remote_code))
        except Exception as error:  # noqa: BLE001 - whatever a family of its own has in its config
            return f"{type(error).__name__} in {folder}"
    torch_device, dtype = place_of(host.device, host.dtype)
    gpu = torch_device.type != "cpu"
    number = dtype.itemsize
    half = number == 2
    largest = max(sizes, key=lambda size: size.parameters)
    pairs = zip(sizes, policies, strict=True)
    learning = [size for size, policy in pairs if plan.learns and policy.learns]
    # an engine has packed weights on a CPU, and vLLM its own
    models = 1 if adapting else len(sizes)
    by_vllm = host.engine == "vllm"
    if host.engine == "auto":
        by_vllm = takes_vllm(str(torch_device), largest.parameters, models)
    copied = by_vllm or not (gpu or largest.parameters > LARGEST)
    refers = plan.learns and plan.method.refers
    if adapting:
        adapters = [policy.adapter for policy in policies]
        ends = [largest.ends(adapter.targets) for adapter in adapters]
        ranks = [adapter.rank for adapter in adapters]
        each = max(ranks) * max(ends)  # there is room for the largest
        dealt = max(1, int(host.gpus or 1)) if by_vllm and host.elsewhere else 1
        kept = number * largest.parameters * (1 + copied / dealt)
        sampled = 2 * (half or gpu)  # in bfloat16, or of float32 the half that is read together
        kept += each * len(policies) * (8 + sampled + 4 * (refers and bool(weights.adapters)))
        kept += 8 * each * len(learning)
        trained = sum(rank * end for rank, end in zip(ranks, ends, strict=True))
        beside = min(1, len(learning))
    else:
        total = trained = sum(size.parameters for size in sizes)
        if plan.learns:  # float32, and moments of what learns
            kept = 4 * total + 8 * sum(size.parameters for size in learning)
            kept += number * total * (refers + half + copied)
        else:
            kept = number * total * (1 + copied)
        small = not gpu and largest.parameters < SMALL
        beside = len(learning)
        beside = min(beside, config.threads or os.cpu_count() or 1) if small else min(1, beside)
    paid = [plan.room.get(role, config.max_tokens) for role in plan.method.rewarded]
    longest = QUESTION + (1 + SHOWN) * max(paid, default=config.max_tokens)
    played = (config.questions or 0) * (config.samples or 1) * len(config.agents)
    measured = max(config.test_questions or 0, config.eval_questions if config.eval_every else 0)
    agents_here = sum(agent.host == name for agent in config.agents.values())
    return HostNeed(
        size=largest,
        kept=int(kept),
        trained=trained,
        longest=min(host.context or largest.positions, longest),
        asked=max(1, played, measured * agents_here),
        number=number,
        whole=not adapting,
        beside=beside,
        gpu=gpu,
    )


def device_of(host: HostConfig) -> str:
    """The device that a host is going to use."""
    return str(place_of(host.device, host.dtype)[0])


def share_of(card: DeviceMemory, gpus: float | None) -> DeviceMemory:
    """The memory of an actor's first GPU, or of its share of one; cards are taken to be alike."""
    share = min(1.0, gpus or 1.0)
    free = None if card.free is None else int(share * card.free)
    return DeviceMemory(free, None if card.total is None else int(share * card.total))


def hosts_with_weights(plan: Plan) -> dict[str, HostConfig]:
    """The hosts that load models."""
    hosts = plan.config.hosts.items()
    return {name: host for name, host in hosts if host.here and plan.at(name)}


@dataclass(frozen=True)
class HostMemory:
    """Memory of one host, in bytes, and the bounds of its passes."""

    name: str
    device: str
    kept: int = 0
    """Weights, adapters and optimizers."""
    sampling: int = 0
    """The largest pass while it samples."""
    learning: int = 0
    """The largest pass while it learns; 0 where nobody does."""
    trained: int = 0
    """Parameters that a checkpoint holds."""
    unknown: str = ""
    """Why these are not known."""
    chosen: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bounds that had no value, and what they were given."""


def _spoken(device: str) -> str:
    return "the CPU" if device == "cpu" else device


@dataclass(frozen=True)
class MemoryPlan:
    """A plan's hosts against the memory of the devices that they are on."""

    hosts: Sequence[HostMemory]
    memory: Mapping[str, DeviceMemory]
    """Device -> what it can give now."""

    @property
    def checkpoint(self) -> int | None:
        """Bytes of a checkpoint: weights and two moments in float32; None where a size is not
        known.
        """
        all_known = not any(host.unknown for host in self.hosts)
        return 12 * sum(host.trained for host in self.hosts) if all_known else None

    def taken(self, device: str) -> int:
        """Bytes at the peak, of the hosts whose needs are known."""
        here = [host for host in self.hosts if host.device == device]
        sampling = sum(host.sampling for host in here)
        learning = sum(host.learning for host in here)
        return sum(host.kept for host in here) + max(sampling, learning)  # never both at once

    def compared(self, device: str) -> str:
        """`about 7.6 GB at the peak, 21.4 GB free on the CPU`."""
        peak = self.taken(device) / 1e9
        return f"about {peak:.1f} GB at the peak, {self.memory[device]} on {_spoken(device)}"

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
        for device, memory in self.memory.items():
            if memory.usable is not None and self.taken(device) > memory.usable:
                yield (
                    f"memory: passes may not fit: {self.compared(device)}: lower tokens_per_pass,"
                    " max_rows or context of its hosts, or set checkpointing=true there"
                )

    def crowding(self, runs: int) -> Iterator[tuple[int, str]]:
        """Say of which device so many such runs may take more at once than there is, and how many
        fit.
        """
        for device, memory in self.memory.items():
            usable = memory.usable
            taken = self.taken(device)
            if usable is not None and runs > 1 and runs * taken > usable:
                fit = max(1, usable // taken)
                yield (
                    fit,
                    f"{runs} runs at once may not fit into memory, and the system ends what does"
                    f" not: one takes {self.compared(device)}: --jobs {fit} is safe",
                )

    def check(self) -> None:
        """Refuse a run whose device cannot hold what its hosts keep."""
        for device, memory in self.memory.items():
            kept = sum(host.kept for host in self.hosts if host.device == device)
            if memory.usable is not None and kept > memory.usable:
                raise UserMistake(
                    "the run does not fit into memory: weights, adapters and optimizers take"
                    f" {kept / 1e9:.1f} GB, {memory} on {_spoken(device)}: set learner=adapters or"
                    " dtype=bfloat16, have fewer agents, or take a smaller base"
                )


def memory_plan(plan: Plan) -> MemoryPlan:
    """Work out what a plan's hosts take, with `tokens_per_pass`, `max_rows` and `checkpointing` for
    those that have none. Values that the config has stay, whatever the memory is.
    """
    hosts = hosts_with_weights(plan)
    devices: dict[str, str] = {}
    memory: dict[str, DeviceMemory] = {}
    for name, host in hosts.items():
        if host.on_this_machine:
            device = device_of(host)
            devices[name] = device
            if host.elsewhere and device.startswith("cuda"):
                devices[name] = f"the first GPU of hosts.{name}"
                memory[devices[name]] = share_of(memory_of(device), host.gpus)
            elif device not in memory:
                memory[device] = memory_of(device)
    needs = {name: need_of(plan, name) for name in devices}
    known = {name: need for name, need in needs.items() if not isinstance(need, str)}
    planned: list[HostMemory] = []
    for name, host in hosts.items():
        if name not in devices:
            why = "it is in a cluster, at RAY_ADDRESS"
            planned.append(_unknown(name, host, host.built_by, why))
            continue
        device = devices[name]
        need = needs[name]
        if isinstance(need, str):
            planned.append(_unknown(name, host, device, need))
            continue
        beside = [other for other in devices if devices[other] == device]
        usable = memory[device].usable
        room = None
        if usable is not None:
            kept = sum(known[other].kept for other in beside if other in known)
            for_passes = SHARES["gpu" if need.gpu else "cpu"] * usable - kept
            room = need.kept + for_passes / len(beside)
        planned.append(_with_bounds(name, host, device, need, room))
    return MemoryPlan(planned, memory)


def _unknown(name: str, host: HostConfig, device: str, why: str) -> HostMemory:
    """The host with careful values for its open bounds."""
    chosen = {key: most for key, most in MOST["cpu"].items() if getattr(host, key) is None}
    return HostMemory(name, device, unknown=why, chosen=chosen)


def _with_bounds(
    name: str, host: HostConfig, device: str, need: HostNeed, room: float | None
) -> HostMemory:
    """The host with values for its open bounds: powers of two with which it has `room`, so that a
    little more or less free memory does not change them; None where nobody knows `room`.

    Activations are recomputed only where even the smallest passes do not fit otherwise.
    """
    most = MOST["gpu" if need.gpu and room is not None else "cpu"]
    room = math.inf if room is None else room

    def halved(key: str, part: Callable[[int], int]) -> int:
        value = most[key]
        while value > LEAST[key] and need.kept + part(value) > room:
            value = max(LEAST[key], value // 2)
        return value

    chosen: dict[str, int] = {}
    recomputing = bool(host.checkpointing)
    tokens = host.tokens_per_pass
    if tokens is None:
        tokens = halved("tokens_per_pass", lambda tokens: need.learning(tokens, recomputing))
        if need.kept + need.learning(tokens, recomputing) > room and host.checkpointing is None:
            recomputing = True
            tokens = halved("tokens_per_pass", lambda tokens: need.learning(tokens, True))
        chosen["tokens_per_pass"] = tokens
    rows = host.max_rows
    if rows is None:
        chosen["max_rows"] = rows = halved("max_rows", need.sampling)
    if recomputing and not host.checkpointing:
        chosen["checkpointing"] = True
    return HostMemory(
        name,
        device,
        kept=need.kept,
        sampling=need.sampling(rows),
        learning=need.learning(tokens, recomputing),
        trained=need.trained,
        chosen=chosen,
    )


@uncollected()  # torch is imported
def bounds(plan: Plan) -> Plan:
    """The plan with bounds of memory for every host; as it is where all have them."""
    hosts = hosts_with_weights(plan).values()
    if all(host.tokens_per_pass and host.max_rows for host in hosts):
        return plan
    return with_bounds(plan, memory_plan(plan))


def with_bounds(plan: Plan, memory: MemoryPlan) -> Plan:
    """The plan with the bounds that were chosen."""
    hosts = dict(plan.config.hosts)
    for host in memory.hosts:
        table = hosts[host.name]
        values = {"checkpointing": bool(table.checkpointing), **host.chosen}
        hosts[host.name] = table.model_copy(update=values)
    return replace(plan, config=plan.config.model_copy(update={"hosts": hosts}))


@uncollected()
def bounds_of_new(plan: Plan, note: Callable[[str], None]) -> tuple[Plan, MemoryPlan]:
    """The plan that a new run keeps: with its bounds, which are noted, and what it takes; an error
    where it does not fit into memory or onto the disk.
    """
    plan = with_dtypes(plan, note)
    memory = memory_plan(plan)
    memory.check()
    for line in memory.notes():
        note(line)
    checkpoint = memory.checkpoint
    target, free = free_disk(plan.config.out)
    if checkpoint is not None and KEPT_CHECKPOINTS * checkpoint > free:
        raise UserMistake(
            f"the run needs about {KEPT_CHECKPOINTS * checkpoint / 1e9:.2f} GB on disk for"
            f" checkpoints and {target} has {free / 1e9:.2f} GB free: free some, choose another"
            " out, or fewer or smaller agents"
        )
    return with_bounds(plan, memory), memory


def free_disk(out: str | None) -> tuple[Path, int]:
    """Find where a run with this `out` is written, and the bytes that are free there."""
    target = Path(out or "runs").resolve()
    existing = next(folder for folder in (target, *target.parents) if folder.exists())
    return target, shutil.disk_usage(existing).free


def with_dtypes(plan: Plan, note: Callable[[str], None]) -> Plan:
    """The plan with bfloat16 at hosts with a large model, learning or frozen, on a CPU which
    multiplies it clearly faster, tried for a moment; a note for each.
    """
    from comas.learners.precision import CLEARLY, LARGE, bfloat16_speed

    config = plan.config
    hosts = dict(config.hosts)
    for name, host in config.hosts.items():
        policies = plan.at(name)
        if (
            not (host.on_this_machine and policies)
            or host.dtype != "auto"
            or device_of(host) != "cpu"
        ):
            continue
        models = weights_at(policies, ask_hub=False).models()
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
    return replace(plan, config=config.model_copy(update={"hosts": hosts}))
