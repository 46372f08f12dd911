"""Facts about what runs here: versions, extras, processor, devices, and whether the sandbox holds.

Only versions, counts and fixed words, so that no path, no name of a host or user, no key and no
value of the environment is in it: it can be pasted into an issue. Leaves out: how memory and GPUs
are found (`machine`).
"""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from comas import sandbox
from comas.machine import (
    DeviceMemory,
    auto_device,
    has_apple_gpu,
    memory_of,
    usable_cpus,
    version_of,
)
from comas.models.sources import shipped_models
from comas.program import VERSION

EXTRAS = {
    "accelerate": "gguf",
    "datasets": "hub",
    "gguf": "gguf",
    "matplotlib": "plot",
    "mlflow": "mlflow",
    "openai": "api",
    "ray": "ray",
    "starlette": "serve",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "uvicorn": "serve",
    "vllm": "vllm",
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


def examine() -> dict[str, Any]:
    """Versions, extras, processors, shipped tiny models, and whether the sandbox holds."""
    device = auto_device()
    return {
        "comas": VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": f"{usable_cpus()} of {os.cpu_count()} usable; torch will use as many threads",
        "memory": str(DeviceMemory(None, memory_of("cpu").total)),
        "gpus": gpu_names() or "none: everything runs on the CPU",
        "device = auto": f"{device}, {memory_of(device)}",
        "installed": {name: version_of(name) or "missing" for name in CORE},
        "extras": {
            name: version_of(name)
            or version_of(f"{name}-cpu")  # of vLLM a package of its own
            or f'missing: pip install "comas[{extra}]"'
            for name, extra in EXTRAS.items()
        },
        "tiny models": ", ".join(shipped_models()),
        "sandbox, of programs that models write": {
            # what a system or a library says of itself may have paths and names in it
            name: re.split(r" in /|: | \(", status)[0]
            for name, status in sandbox.prove().items()
        },
    }


def gpu_names() -> str:
    """The GPUs that torch computes on, empty where there are none."""
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([*names, "Apple (mps)"] if has_apple_gpu() else names)
