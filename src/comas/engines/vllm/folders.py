"""Adapters on the disk, from where vLLM reads them: one name, one number and one folder per
version, none used twice.

vLLM knows an adapter by its number, and its keys and values by name and folder. Given another
folder under a number that it knows it answers True and serves what it had; so nothing is used
again. Leaves out: which version serves (`adapters`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from comas.engines.vllm.library import Loaded
from comas.engines.vllm.worker import PEFT
from comas.seams import AdapterSpec

Pairs = Mapping[str, tuple[Tensor, Tensor]]
"""Name of a module -> A (rank, in) and B (out, rank)."""


@dataclass(frozen=True)
class Shape:
    """An `AdapterSpec` of our own, of a trial adapter."""

    rank: int
    alpha: float


class Folders:
    """Writes adapters below a folder of its own, in the format of peft."""

    def __init__(self) -> None:
        self.root = Path(mkdtemp(prefix="comas-vllm-"))
        self._numbers = count(1)

    def write(self, policy: str, version: int, shape: AdapterSpec, pairs: Pairs) -> Loaded:
        """A new folder, whole on the disk before it has its name."""
        number = next(self._numbers)
        folder = self.root / f"adapter-{number:08d}"
        part = folder.with_suffix(".part")
        part.mkdir()
        tensors: dict[str, Tensor] = {}
        for name, (a, b) in pairs.items():
            tensors[f"{PEFT}{name}.lora_A.weight"] = a.contiguous().cpu()
            tensors[f"{PEFT}{name}.lora_B.weight"] = b.contiguous().cpu()
        save_file(tensors, part / "adapter_model.safetensors", {"format": "pt"})
        config = {
            "peft_type": "LORA",
            "r": shape.rank,
            "lora_alpha": shape.alpha,
            "target_modules": sorted({name.rpartition(".")[2] for name in pairs}),
            "bias": "none",
        }
        (part / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        os.replace(part, folder)
        return Loaded(f"{policy}@{version}.{number}", number, folder)

    def keep(self, model: Any) -> Path:
        """Write a base that lies nowhere as vLLM reads it."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = self.root / "base"
        model.save_pretrained(folder)
        return folder

    def drop(self, adapter: Loaded) -> None:
        """Delete the folder of an adapter that nobody asks for any more."""
        shutil.rmtree(adapter.folder, ignore_errors=True)

    def close(self) -> None:
        """Delete all of it."""
        shutil.rmtree(self.root, ignore_errors=True)
