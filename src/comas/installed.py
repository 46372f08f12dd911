"""What runs here: versions, extras, processor, devices, and the files that are plugged in.

Leaves out: how much memory there is (`machine`).
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from comas import sandbox
from comas.machine import place_of
from comas.models.sources import seed_models
from comas.storage import files

EXTRAS = {"datasets": "hub", "gguf": "gguf", "httpx": "api", "matplotlib": "plot"}
"""Optional packages and the extra that brings them."""
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
        found[kind] = files.digest(Path(name)) if name.endswith(".py") else name
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
