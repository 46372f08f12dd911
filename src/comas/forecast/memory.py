"""What a run would take, and what this machine has.

Leaves out: promises; both are said to be estimates.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from comas import sandbox
from comas.config.engines import load_engine
from comas.config.schema import MAX_ROWS, TOKENS_PER_PASS, Config, HostConfig
from comas.forecast.lengths import asked_at_once, replies_shown, reply_tokens, tokens_of_question
from comas.forecast.load import Load, engine_load, model_size, on_gpu_in_half, shape_of
from comas.models.loading import place_of, resolve_base
from comas.models.sources import adapter_base, config_folder, is_adapter, is_seed, seed_models
from comas.storage import files as disk
from comas.storage.run import run_at
from comas.team.build import shapes_of, under_of, weights_of
from comas.types import Method, Task, UserMistake

EXTRAS = {"datasets": "hub", "httpx": "api", "matplotlib": "plot"}
"""Optional packages and the extra that brings them."""
BYTES_PER_TURN = 800
"""On disk, of short texts: the prompt, the reply and the facts of a turn of the default task take
650.
"""
SCATTERED = 0.7
"""Of a pass on a CPU: SmolLM2-135M took 1.68 and 1.70 times what is counted with glibc's allocator
as it is, and 0.9 times where every large block goes back to the system (docs/performance.md).
"""
LIBRARIES = 400_000_000
"""Resident bytes of Python with torch and transformers."""
CORE = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pydantic",
    "rich",
    "typer",
)


def estimate(config: Config, method: Method, task: Task) -> dict[str, int]:
    """Upper bounds: generated tokens, parameters, and bytes of checkpoints and transcripts."""
    options = config.options
    calls = (
        options.get("rounds", 1) * (1 + 2 * options.get("evaluations", 1))
        if "rounds" in options
        else options.get("votes", 1)
    )
    longest = reply_tokens(config, method, task)
    per_step = (config.questions or 0) * (config.samples or 1) * calls * longest
    bound = per_step * config.steps
    needs = {
        "generated tokens, at most": (
            min(bound, config.tokens + per_step) if config.tokens else bound
        )
    }
    sizes = [size for name in config.hosts for size in _trained(config, name).values()]
    known = [s for s in sizes if s is not None]
    if len(known) < len(sizes):
        return needs
    needs["parameters of all policies"] = sum(known)
    turns = config.steps * (config.questions or 0) * (config.samples or 1) * calls
    # weights and two moments in float32; the last two, the best, and one that is being written.
    # Transcripts: as measured
    needs["bytes on disk"] = 4 * 3 * 4 * sum(known) + turns * BYTES_PER_TURN
    return needs


def memory(config: Config, method: Method, task: Task) -> dict[str, int | str]:
    """Per host, the bytes of what training keeps and the most that is alive at once; from
    config.json files alone.
    """
    needs: dict[str, int | str] = {}
    for name in config.hosts:
        found = host_needs(config, method, task, name)
        if isinstance(found, str):
            needs[f"host {name}: bytes at the peak"] = f"unknown: {found}"
        else:
            needs |= {f"host {name}: {what}": size for what, size in found.items()}
    return {**needs, "bytes of Python and its libraries, about": LIBRARIES}


def host_needs(
    config: Config,
    method: Method,
    task: Task,
    name: str,
    *,
    learn: bool = True,
    question: int | None = None,
) -> dict[str, int] | str:
    """What `memory` says of one host; a reason where that is unknown, and nothing where the host
    has no weights here.

    `question` is what `question_tokens` says, where that is known already.
    """
    host = config.hosts[name]
    agents = {
        a.policy or n: a for n, a in config.agents.items() if a.host == name and host.api is None
    }
    bases = _bases(config, name)
    folders: list[str] = []
    for base in bases.values():
        under = resolve_base(adapter_base(base)) if is_adapter(base) else base
        described = config_folder(under)
        if described is None:
            return f"{under} is not on this disk"
        folders.append(described)
    if not folders:
        return {}
    try:
        question = question or tokens_of_question(config, task, folders[0])
        asked = question + (replies_shown(config) + 1) * reply_tokens(config, method, task)
        longest = min(_room(host, folders[0]), asked)
        reference = learn and any((config.kl or {}).values())
        rows = min(asked_at_once(config, name), host.max_rows or MAX_ROWS)
        engine = load_engine(host.engine, f"hosts.{name}.engine")
        if not hasattr(engine, "memory"):
            return f"{host.engine} defines no memory(load)"
        scattered = 0.0 if on_gpu_in_half(host)[0] else SCATTERED
        load = Load(host, longest, rows, reference, engine, scattered)
        learning = [learn and not a.frozen for a in agents.values()]
        started = any(map(is_adapter, bases.values()))
        if started or (learn and _adapting(config, name, bases)):
            # says what training would say of bases that differ
            under_of(config, name, bases, learn)
            specs = _specs(config, name, bases)
            found = population_memory(folders[0], load, specs, sum(learning), started)
        else:
            found = host_memory(folders, load, learning, config.threads)
    except UserMistake:  # training would say the same
        raise
    except Exception as error:  # noqa: BLE001 - whatever a family does that needs real numbers
        return f"{type(error).__name__} in {folders[0]}"
    return {"tokens of a row, at most": load.longest, "rows sampled at once": load.rows, **found}


def _bases(config: Config, name: str) -> dict[str, str]:
    """Policy -> what it starts from, of a host whose weights are here; those of others take no
    room.
    """
    host = config.hosts[name]
    here = {
        a.policy or n: a for n, a in config.agents.items() if a.host == name and host.api is None
    }
    named = {p: a.base or host.base for p, a in here.items()}
    return {
        p: resolve_base(b) if is_seed(b) or run_at(b) is None else weights_of(b, p)
        for p, b in named.items()
    }


def question_tokens(config: Config, task: Task, name: str) -> int:
    """Tokens of the longest of a few questions, for the models of a host with weights."""
    base = next(iter(_bases(config, name).values()))
    return tokens_of_question(
        config,
        task,
        config_folder(resolve_base(adapter_base(base)) if is_adapter(base) else base) or "",
    )


def longest_row(config: Config, method: Method, task: Task, name: str) -> tuple[int, int]:
    """Tokens that a question and one reply to it take at most, and those of the longest row, of a
    host with weights.
    """
    reply = reply_tokens(config, method, task)
    question = question_tokens(config, task, name)
    return question + reply, question + (replies_shown(config) + 1) * reply


def _adapting(config: Config, name: str, bases: Mapping[str, str]) -> bool:
    return config.hosts[name].learner == "adapters" or any(map(is_adapter, bases.values()))


def _trained(config: Config, name: str) -> dict[str, int | None]:
    """Policy -> the parameters that a checkpoint holds of it; None where its base is not on this
    disk.
    """
    from comas.learners.memory import adapter_parameters

    bases = _bases(config, name)
    if not _adapting(config, name, bases):
        return {policy: parameters(base) for policy, base in bases.items()}
    under = {resolve_base(adapter_base(b)) if is_adapter(b) else b for b in bases.values()}
    described = config_folder(min(under))
    if described is None:
        return dict.fromkeys(bases)
    try:
        specs = _specs(config, name, bases)
        sizes = {spec: adapter_parameters(described, [spec], False) for spec in set(specs)}
    except UserMistake:
        raise
    except Exception:  # noqa: BLE001 - whatever a family does that needs real numbers or code of its own
        return dict.fromkeys(bases)
    return {policy: sizes[spec] for policy, spec in zip(bases, specs, strict=True)}


def _room(host: HostConfig, folder: str) -> int:
    """Tokens that prompt and reply share."""
    from comas.learners.memory import counted, facts_of

    return host.context or counted(facts_of, folder, folder).positions


def _specs(config: Config, name: str, bases: Mapping[str, str]) -> list[Any]:
    """The shapes of a host's adapters: those that there are, and those that will be made."""
    from comas.learners.lora.peft_folder import spec_of

    new = shapes_of(config, name)
    return [spec_of(base) if is_adapter(base) else new[policy] for policy, base in bases.items()]


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
    passes = 0
    shapes = {f: shape_of(load, f, fact) for f, fact in facts.items()}
    sampled = [model_size(shapes[f], facts[f], load.rows) for f in folders]
    engine = load.engine.memory(engine_load(load, sampled, len(folders)))
    for f, shape in shapes.items():
        if f in trained:
            found = fake.counted(
                fake.pass_bytes, f, shape, tokens_of_pass(load.host), load.host.checkpointing
            )
            passes = max(passes, int(found * (1 + load.scattered)))
    largest = max(facts[f].parameters for f in trained) if trained else 0
    needs = {
        "bytes of float32 weights": 4 * sum(sizes),
        "bytes of moments": 8 * sum(facts[f].parameters for f in trained),
        "bytes of the reference": (2 if half else 4) * sum(sizes) * load.reference,
        "bytes of the engine's copy": 2 * sum(sizes) * half + engine.copies,
    }
    kept = sum(needs.values())
    needs["bytes of gradients, of policies that learn side by side"] = 4 * largest * beside
    needs["bytes of a learner's pass, of policies that learn side by side"] = passes * beside
    needs["bytes of sampling, caches included"] = engine.sampling
    update = 4 * largest * beside * small  # a temporary of AdamW's
    needs["bytes at the peak"] = kept + max(
        engine.sampling, 4 * largest * beside + max(passes * beside, update)
    )
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
    pass_of = (shape, tokens_of_pass(load.host), load.host.checkpointing, largest)
    passes = (
        int(fake.counted(fake.mixed_bytes, folder, *pass_of) * (1 + load.scattered))
        if learning
        else 0
    )
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


def parameters(base: str) -> int | None:
    """Parameters of a base that lies on this disk, read from its safetensors headers; None if it
    does not.
    """
    folder = Path(config_folder(resolve_base(base)) or resolve_base(base))
    files = [f for f in folder.glob("*.safetensors") if f.name != "optimizer.safetensors"]
    if not files:
        return None
    total = 0
    for file in files:
        with file.open("rb") as raw:
            header = json.loads(raw.read(int.from_bytes(raw.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for n in tensor["shape"]:
                    size *= n
                total += size
    return total


def peak_bytes(team: Any) -> int:
    """The most memory so far: of the GPUs that hosts use, otherwise of this process; 0 where the
    system does not tell.
    """
    gpus = sorted(
        {
            device
            for h in team.hosts.values()
            if (device := getattr(h, "device", "cpu")).startswith("cuda")
        }
    )
    if gpus:
        import torch

        return sum(torch.cuda.max_memory_allocated(device) for device in gpus)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def process_facts(team: Any) -> dict[str, Any]:
    """What results may depend on besides the config: versions, processor, threads, devices, and the
    files that are plugged in.
    """
    import torch

    from comas import __version__

    found: dict[str, Any] = {
        "comas": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    found |= {"commit": commit} if (commit := _commit()) else {}
    found |= {name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    found["processor"] = _processor()
    found["threads"] = torch.get_num_threads()
    found["devices"] = ", ".join(
        sorted({f"{n}: {getattr(h, 'device', 'its own')}" for n, h in team.hosts.items()})
    )
    own = {n: h for n, h in team.config.hosts.items() if n in team.hosts and h.api is None}
    found["dtypes"] = ", ".join(
        f"{n}: {place_of(h.device, h.dtype)[1]}".replace("torch.", "") for n, h in own.items()
    )
    for kind in ("method", "task"):
        name = getattr(team.config, kind)
        found[kind] = disk.digest(Path(name)) if name.endswith(".py") else name
    return found


def _commit() -> str | None:
    """The git commit of the checkout that this code lies in, as 12 digits; None where it was
    installed from a package.
    """
    git = Path(__file__).parents[3] / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text(encoding="utf-8")[:12]
        packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line[:12] for line in packed if line.endswith(f" {name}")), None)


def _processor() -> str:
    """Its name, as far as it can be learnt."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = platform.processor() or platform.machine()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), known)


def examine() -> dict[str, Any]:
    """Versions, extras, processors, shipped seed models, and whether the sandbox holds."""
    import torch

    from comas import __version__

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    found["comas"] = __version__
    found["installed"] = {name: _version(name) or "missing" for name in CORE}
    found["extras"] = {
        n: _version(n) or f'missing: pip install "comas[{extra}]"' for n, extra in EXTRAS.items()
    }
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found["cpus"] = f"{allowed} of {os.cpu_count()} usable; torch will use as many threads"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["gpus"] = ", ".join(gpus) if gpus else "none: everything runs on the CPU"
    found["seed models"] = ", ".join(seed_models())
    found["device = auto"] = "cuda" if gpus else "cpu"
    found["sandbox, of programs that models write"] = sandbox.prove()
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
