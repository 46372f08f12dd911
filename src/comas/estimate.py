"""What a run would take, and what this machine has. Leaves out: promises; both are said to be estimates."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from comas import disk
from comas.config import Config, seed_models
from comas.hosts.local import resolve_base
from comas.types import Method, Task

EXTRAS = {"datasets": "hub", "matplotlib": "plot"}
"""Optional packages and the extra that brings them."""
BYTES_PER_TURN = 800
"""On disk, of short texts: the prompt, the reply and the facts of a turn of the default task take 650."""
CORE = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "pydantic", "rich", "typer")


def estimate(config: Config, method: Method, task: Task) -> dict[str, int]:
    """Upper bounds: generated tokens, and bytes of weights, gradients, Adam's moments, reference and checkpoints."""
    room = {**task.max_tokens, **config.room}
    options = config.options
    calls = options.get("rounds", 1) * (1 + 2 * options.get("evaluations", 1)) if "rounds" in options else options.get("votes", 1)
    longest = max([config.max_tokens] if set(method.paid) - set(room) else [room[r] for r in method.paid])
    per_step = (config.questions or 0) * (config.samples or 1) * calls * longest
    bound = per_step * config.steps
    needs = {"generated tokens, at most": min(bound, config.tokens + per_step) if config.tokens else bound}
    policies = {a.policy or n: a.base or config.hosts[a.host].base for n, a in config.agents.items()}
    sizes = [parameters(base) for base in policies.values()]
    known = [s for s in sizes if s is not None]
    if len(known) < len(sizes):
        return needs
    copies = 4 + bool(any((config.kl or {}).values()))
    needs["parameters of all policies"] = sum(known)
    needs["bytes of weights, gradients, moments and reference"] = 4 * copies * sum(known)
    turns = config.steps * (config.questions or 0) * (config.samples or 1) * calls
    # weights and two moments in float32; the last two, the best, and one that is being written. Transcripts: as measured
    needs["bytes on disk"] = 4 * 3 * 4 * sum(known) + turns * BYTES_PER_TURN
    return needs


def parameters(base: str) -> int | None:
    """Parameters of a base that lies on this disk, read from its safetensors headers; None if it does not."""
    files = list(Path(resolve_base(base)).glob("*.safetensors"))
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
    """The most memory so far: of the GPUs that hosts use, otherwise of this process; 0 where the system does not tell."""
    gpus = sorted({device for h in team.hosts.values() if (device := getattr(h, "device", "cpu")).startswith("cuda")})
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
    """What results may depend on besides the config: versions, processor, threads, devices, and the files that are plugged in."""
    import torch

    from comas import __version__

    found: dict[str, Any] = {"comas": __version__, "python": platform.python_version(), "system": platform.platform()}
    found |= {name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    found["processor"] = _processor()
    found["threads"] = torch.get_num_threads()
    found["devices"] = ", ".join(sorted({f"{n}: {getattr(h, 'device', 'its own')}" for n, h in team.hosts.items()}))
    for kind in ("method", "task"):
        name = getattr(team.config, kind)
        found[kind] = disk.digest(Path(name)) if name.endswith(".py") else name
    return found


def _processor() -> str:
    """Its name, as far as it can be learnt."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = platform.processor() or platform.machine()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), known)


def examine() -> dict[str, Any]:
    """Versions, extras, processors, shipped seed models."""
    import torch

    from comas import __version__

    found: dict[str, Any] = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found["comas"] = __version__
    found["installed"] = {name: _version(name) or "missing" for name in CORE}
    found["extras"] = {n: _version(n) or f'missing: pip install "comas[{extra}]"' for n, extra in EXTRAS.items()}
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found["cpus"] = f"{allowed} of {os.cpu_count()} usable; torch will use as many threads"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["gpus"] = ", ".join(gpus) if gpus else "none: everything runs on the CPU"
    found["seed models"] = ", ".join(seed_models())
    found["device = auto"] = "cuda" if gpus else "cpu"
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
