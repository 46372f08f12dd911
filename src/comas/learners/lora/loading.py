"""Populations from folders: adapters of several policies on one base.

Leaves out: the base itself (`models.loading`), the format of an adapter's folder (`peft_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comas.learners.lora import peft_folder
from comas.learners.lora.population import Population, Spec, targets_of
from comas.models.loading import load_models
from comas.models.sources import adapters_among
from comas.types import UserMistake


def load_population(
    sources: Mapping[str, str],
    under: str,
    device: Any,
    dtype: Any,
    trust_remote_code: bool,
    shapes: Mapping[str, Spec],
    seed: int,
) -> tuple[Population, Any, list[int]]:
    """A population on the base `under`, its tokenizer and end-of-turn ids; `sources` are adapter
    folders, or the base itself for policies that begin anew with `shapes`.
    """
    models, tokenizer, ends = load_models({"base": under}, device, dtype, trust_remote_code)
    base = models["base"]
    folders = adapters_among(sources)
    specs: dict[str, Spec] = {}
    for policy in sources:
        if policy in folders:
            specs[policy] = peft_folder.spec_of(folders[policy])
        else:
            specs[policy] = shapes.get(policy, Spec())
    for policy, folder in folders.items():
        try:
            targets_of(base, specs[policy])
        except UserMistake as error:
            raise UserMistake(f"adapter {folder} does not fit base {under!r}: {error}") from error
    population = Population(base, specs, seed)
    for policy, folder in folders.items():
        peft_folder.load(population, policy, Path(folder))
    return population, tokenizer, ends
