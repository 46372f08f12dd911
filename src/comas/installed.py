"""What runs here: versions, extras, processor, devices, and the files that are plugged in.

Leaves out: how much memory there is (`machine`).
"""

from __future__ import annotations

import os
import platform
from typing import Any

from comas import sandbox
from comas.machine import usable_cpus, version_of
from comas.models.packaged import PACKAGED, how_to_install, installed_at
from comas.models.sources import seed_models
from comas.program import VERSION

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


def examine() -> dict[str, Any]:
    """Versions, extras, processors, shipped seed models, and whether the sandbox holds."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    found["comas"] = VERSION
    found["installed"] = {name: version_of(name) or "missing" for name in CORE}
    found["extras"] = {
        n: version_of(n) or f'missing: pip install "comas[{extra}]"' for n, extra in EXTRAS.items()
    }
    found["cpus"] = f"{usable_cpus()} of {os.cpu_count()} usable; torch will use as many threads"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["gpus"] = ", ".join(gpus) if gpus else "none: everything runs on the CPU"
    found["seed models"] = ", ".join(seed_models())
    found["packaged models"] = ", ".join(f"{name} ({_state_of(name)})" for name in PACKAGED)
    found["device = auto"] = "cuda" if gpus else "cpu"
    found["sandbox, of programs that models write"] = sandbox.prove()
    return found


def _state_of(packaged: str) -> str:
    """Whether the file of a packaged model is here."""
    if installed_at(packaged) is not None:
        return "installed"
    return f"missing: {how_to_install(packaged)}"
