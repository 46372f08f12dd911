"""What a run would take, and what this machine has.

Leaves out: promises; both are said to be estimates.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comas.config.builders import load_builder
from comas.config.policies import PolicyPlan, Resolved
from comas.config.schema import HostConfig
from comas.config.weights import HostWeights, model_below, weights_at
from comas.forecast.lengths import asked_at_once, lengths_of, tokens_of_question
from comas.forecast.load import Load, engine_load, model_size, on_gpu_in_half, shape_of
from comas.hosts.local_table import MAX_ROWS, TOKENS_PER_PASS
from comas.machine import can_return_large_blocks
from comas.models import gguf
from comas.models.gguf import is_gguf
from comas.models.sources import config_folder
from comas.types import UserMistake

BYTES_PER_TURN = 650
"""On disk, of its facts and a short question: a turn of the default takes 676 with its texts."""
BYTES_PER_TOKEN = 4
"""On disk, of a reply or where a prompt quotes one."""
SCATTERED = 0.7
"""Of a pass on a CPU whose allocator keeps large blocks: SmolLM2-135M took 1.68 and 1.70 times what
is counted with glibc's as it is (docs/performance.md).
"""
COMPACT = 0.1
"""The same where large blocks go back, as hosts have it with glibc: small blocks are still
scattered.
"""
LIBRARIES = 400_000_000
"""Resident bytes of Python with torch and transformers."""


def estimate(resolved: Resolved) -> dict[str, int]:
    """Upper bounds: generated tokens, parameters, and bytes of checkpoints and transcripts."""
    config = resolved.config
    lengths = lengths_of(resolved)
    discussions = (config.questions or 0) * (config.samples or 1)
    per_step = discussions * lengths.generated
    generated = per_step * config.steps
    if config.tokens:
        generated = min(generated, config.tokens + per_step)
    needs = {"generated tokens, at most": generated}
    sizes = [size for name in config.hosts for size in _trained(resolved, name)]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return needs
    needs["parameters of all policies"] = sum(known)
    # weights and two moments in float32
    checkpoint = 3 * 4 * sum(known)
    turns = config.steps * discussions * lengths.replies
    # a reply is quoted once at most in each other prompt of its discussion
    quoted = min(turns * lengths.shown * lengths.reply, generated * lengths.replies)
    transcripts = turns * BYTES_PER_TURN + (generated + quoted) * BYTES_PER_TOKEN
    # the last two, the best, and one that is being written
    needs["bytes on disk"] = 4 * checkpoint + transcripts
    return needs


def memory(resolved: Resolved) -> dict[str, int | str]:
    """Per host, the bytes of what training keeps and the most that is alive at once; from
    config.json files alone.
    """
    needs: dict[str, int | str] = {}
    for name in resolved.config.hosts:
        found = host_needs(resolved, name)
        if isinstance(found, str):
            needs[f"host {name}: bytes at the peak"] = f"unknown: {found}"
        else:
            needs |= {f"host {name}: {what}": size for what, size in found.items()}
    return {**needs, "bytes of Python and its libraries, about": LIBRARIES}


def host_needs(
    resolved: Resolved,
    name: str,
    *,
    learn: bool = True,
    question: int | None = None,
) -> dict[str, int] | str:
    """What `memory` says of one host; a reason where that is unknown, and nothing where the host
    has no weights here.

    `question` is what `question_tokens` says, where that is known already.
    """
    config = resolved.config
    host = config.hosts[name]
    weights = weights_at(resolved.at(name), ask_hub=False)
    folders: list[str] = []
    for model in weights.models():
        described = config_folder(model)
        if described is None:
            return f"{model} is not on this disk"
        folders.append(described)
    if not folders:
        return {}
    try:
        question = question or tokens_of_question(config, resolved.task, folders[0])
        lengths = lengths_of(resolved)
        asked = question + (lengths.shown + 1) * lengths.reply
        longest = min(_room(host, folders[0]), asked)
        reference = learn and resolved.method.refers
        rows = min(asked_at_once(resolved, name), host.max_rows or MAX_ROWS)
        engine = load_builder("engines", host.engine, f"hosts.{name}.engine")
        if not hasattr(engine, "memory"):
            return f"{host.engine} defines no memory(load)"
        scattered = 0.0 if on_gpu_in_half(host)[0] else scattered_on_cpu()
        load = Load(host, longest, rows, reference, engine, scattered)
        learning = [learn and plan.learns for plan in resolved.at(name)]
        if weights.adapting(host.learner if learn else None):
            # says what training would say of bases that differ
            model_below(resolved, name, weights, learn)
            specs = _specs(resolved.at(name), weights)
            started = bool(weights.adapters)
            found = population_memory(folders[0], load, specs, sum(learning), started)
        else:
            found = host_memory(folders, load, learning, config.threads)
    except UserMistake:  # training would say the same
        raise
    except Exception as error:  # noqa: BLE001 - whatever a family does that needs real numbers
        return f"{type(error).__name__} in {folders[0]}"
    return {"tokens of a row, at most": load.longest, "rows sampled at once": load.rows, **found}


def scattered_on_cpu() -> float:
    """What `Load.scattered` is on a CPU of this machine."""
    return COMPACT if can_return_large_blocks() else SCATTERED


def question_tokens(resolved: Resolved, name: str) -> int:
    """Tokens of the longest of a few questions, for the models of a host with weights."""
    model = weights_at(resolved.at(name), ask_hub=False).models()[0]
    return tokens_of_question(resolved.config, resolved.task, config_folder(model) or "")


def longest_row(resolved: Resolved, name: str) -> tuple[int, int]:
    """Tokens that a question and one reply to it take at most, and those of the longest row, of a
    host with weights.
    """
    lengths = lengths_of(resolved)
    question = question_tokens(resolved, name)
    return question + lengths.reply, question + (lengths.shown + 1) * lengths.reply


def _trained(resolved: Resolved, name: str) -> list[int | None]:
    """The parameters that a checkpoint holds of each policy; None where its base is not on this
    disk.
    """
    from comas.learners.memory import adapter_parameters

    weights = weights_at(resolved.at(name), ask_hub=False)
    if not weights.adapting(resolved.config.hosts[name].learner):
        return [parameters(place) for place in weights.places.values()]
    unknown: list[int | None] = [None] * len(weights.places)
    described = config_folder(min(weights.models()))
    if described is None:
        return unknown
    try:
        specs = _specs(resolved.at(name), weights)
        sizes = {spec: adapter_parameters(described, [spec], False) for spec in set(specs)}
    except UserMistake:
        raise
    except Exception:  # noqa: BLE001 - whatever a family does that needs real numbers or code of its own
        return unknown
    return [sizes[spec] for spec in specs]


def _room(host: HostConfig, folder: str) -> int:
    """Tokens that prompt and reply share."""
    from comas.learners.memory import counted, facts_of

    return host.context or counted(facts_of, folder, folder).positions


def _specs(plans: Sequence[PolicyPlan], weights: HostWeights) -> list[Any]:
    """The shapes of a host's adapters: those that there are, and those that will be made."""
    from comas.learners.lora.peft_folder import spec_of
    from comas.learners.lora.population import Spec

    specs: list[Any] = []
    for plan in plans:
        shape = plan.adapter
        new = Spec(shape.rank, shape.alpha, shape.targets)
        specs.append(spec_of(weights.places[plan.name]) if plan.name in weights.adapters else new)
    return specs


def host_memory(
    folders: Sequence[str],
    load: Load,
    learning: Sequence[bool] | None = None,
    threads: int | None = None,
) -> dict[str, int]:
    """Bytes by what they are for; policies have the models of `folders` and those of `learning` are
    trained.
    """
    from comas.learners import memory as fake
    from comas.learners.whole import SMALL

    gpu, half = on_gpu_in_half(load.host)
    facts = {f: fake.counted(fake.facts_of, f, f) for f in set(folders)}
    sizes = [facts[f].parameters for f in folders]
    trained = [f for f, on in zip(folders, learning or [True] * len(folders), strict=True) if on]
    small = not gpu and max(sizes) < SMALL
    beside = min(threads or os.cpu_count() or 1, len(trained)) if small else 1
    shapes = {f: shape_of(load, f, fact) for f, fact in facts.items()}
    sampled = [model_size(shapes[f], facts[f], load.rows) for f in folders]
    engine = load.engine.memory(engine_load(load, sampled, len(folders)))
    tokens = tokens_of_pass(load.host)
    checkpointing = bool(load.host.checkpointing)
    passes = 0
    for f in set(trained):
        counted = fake.counted(fake.pass_bytes, f, shapes[f], tokens, checkpointing)
        passes = max(passes, int(counted * (1 + load.scattered)))
    largest = max(facts[f].parameters for f in trained) if trained else 0
    needs = {
        "bytes of float32 weights": 4 * sum(sizes),
        "bytes of moments": 8 * sum(facts[f].parameters for f in trained),
        "bytes of the reference": (2 if half else 4) * sum(sizes) * load.reference,
        "bytes of the engine's copy": 2 * sum(sizes) * half + engine.copies,
    }
    kept = sum(needs.values())
    gradients = 4 * largest * beside
    passing = passes * beside
    needs["bytes of gradients, of policies that learn side by side"] = gradients
    needs["bytes of a learner's pass, of policies that learn side by side"] = passing
    needs["bytes of sampling, caches included"] = engine.sampling
    update = gradients * small  # a temporary of AdamW's
    learning_peak = gradients + max(passing, update)
    needs["bytes at the peak"] = kept + max(engine.sampling, learning_peak)
    return needs


def population_memory(
    folder: str, load: Load, specs: Sequence[Any], learning: int, started: bool
) -> dict[str, int]:
    """The same for adapters of these shapes on one base, of which so many learn; `started`: not all
    of them start at zero.
    """
    from comas.learners import memory as fake

    gpu, half = on_gpu_in_half(load.host)
    fact = fake.counted(fake.facts_of, folder, folder)
    each = fake.counted(fake.adapter_parameters, folder, folder, specs, gpu)
    shape = shape_of(load, folder, fact)
    sampled = [model_size(shape, fact, load.rows)]
    engine = load.engine.memory(engine_load(load, sampled, len(specs), each))
    largest = max(specs, key=lambda spec: spec.rank)
    pass_of = (shape, tokens_of_pass(load.host), bool(load.host.checkpointing), largest)
    passes = 0
    if learning:
        counted = fake.counted(fake.mixed_bytes, folder, *pass_of)
        passes = int(counted * (1 + load.scattered))
    needs = {
        "bytes of the base": (2 if half else 4) * fact.parameters,
        "bytes of adapters and their gradients": 8 * each * len(specs),
        "bytes of moments": 8 * each * learning,
        "bytes of the reference": 4 * each * len(specs) * (load.reference and started),
        "bytes of the engine's copy": engine.copies,
    }
    kept = sum(needs.values())
    needs["bytes of a learner's pass"] = passes
    needs["bytes of sampling, caches included"] = engine.sampling
    needs["bytes at the peak"] = kept + max(engine.sampling, passes)
    return needs


def tokens_of_pass(host: HostConfig) -> int:
    """Padded tokens of a pass; where that is open, the most that the default may be."""
    return host.tokens_per_pass or TOKENS_PER_PASS


def weight_bytes(weights: HostWeights, host: HostConfig) -> int:
    """Bytes of a host's weights as they are loaded: a model per policy in float32 where they learn
    as whole models, otherwise one below all adapters; 0 of those that are not on this disk.
    """
    sizes = [parameters(model) or 0 for model in weights.models()]
    if not weights.adapting(host.learner):
        return 4 * sum(sizes)
    return (2 if on_gpu_in_half(host)[1] else 4) * max(sizes)


def parameters(base: str) -> int | None:
    """Parameters of a base that lies on this disk, read from its safetensors headers; None if it
    does not.
    """
    if is_gguf(base):
        return gguf.parameters(base)
    folder = Path(config_folder(base) or base)
    files = [f for f in folder.glob("*.safetensors") if f.name != "optimizer.safetensors"]
    if not files:
        return None
    total = 0
    for file in files:
        try:
            header = _safetensors_header(file)
        except ValueError:  # loading it says what is wrong
            return None
        tensors = [header[name] for name in header if name != "__metadata__"]
        total += sum(math.prod(tensor["shape"]) for tensor in tensors)
    return total


def _safetensors_header(file: Path) -> dict[str, Any]:
    """Tensor -> its facts; the file begins with the length of these, 8 bytes."""
    with file.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        return json.loads(raw.read(length))
