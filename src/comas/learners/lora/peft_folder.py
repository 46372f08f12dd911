"""Adapters as folders in the format of peft: adapter_config.json and adapter_model.safetensors; and
as whole models, added to their base.

Written and read here, so that peft need not be installed; what peft can write and this cannot read
(DoRA, biases, trained embeddings) is refused. Sizes: ranks are those of the tensors. Leaves out:
other kinds of adapters than LoRA, the base itself (`models.loading`), tokenizers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from comas.learners.lora.layers import linear_layers
from comas.learners.lora.population import Population, targets_of
from comas.models.loading import load_models
from comas.models.sources import ADAPTER, adapters_among, described_by, known_as, recorded_base
from comas.seams import AdapterSpec
from comas.types import UserMistake

TENSORS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
"""Name of the tensors' file in older versions of peft: a pickle."""
PREFIX = "base_model.model."
"""peft puts PREFIX before a module's name."""
PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
    "lora_bias": False,
    "trainable_token_indices": None,
    "layer_replication": None,
    "target_parameters": None,
}
"""Keys of adapter_config.json, and the values that mean plain LoRA; absent is plain, and so is an
empty list. `fan_in_fan_out` is no matter: peft asks each layer how its weight lies, whatever stands
there, and A and B lie the same way for both.
"""
ODD = dict.fromkeys(
    (
        "use_qalora",
        "use_bdlora",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "velora_config",
    )
)
"""Keys of newer kinds, and their values in plain LoRA, which not every peft that is to read our
files knows.
"""
MERGED = (
    "merge it where peft is installed, by PeftModel.from_pretrained(BASE, ADAPTER)"
    ".merge_and_unload().save_pretrained(NEW), and take NEW as a base"
)
"""The way on with an adapter that cannot be loaded here."""
UNMERGEABLE = (
    *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE"),
    *("ADAPTION_PROMPT", "XLORA"),
)
"""Kinds of peft that are no change of weights, so that no model is left when they are unloaded."""
BEGINNINGS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base as it is; others (pissa, olora, loftq ...) take a
part out of it.
"""


def facts(folder: str | Path) -> dict[str, Any]:
    """Read the adapter_config.json of a folder; an error where it is not plain LoRA."""
    path = Path(folder) / ADAPTER
    try:
        config = described_by(path)
    except (OSError, ValueError) as error:
        raise UserMistake(f"{path} cannot be read: {error}") from error
    for key, plain in (PLAIN | ODD).items():
        if (config.get(key) or plain) != plain:
            remedy = MERGED
            if config[key] in UNMERGEABLE:
                remedy = "it changes no weights, so that it cannot be merged: take its base alone"
            raise UserMistake(
                f"adapter {folder}: {key} is {config[key]!r}; only plain LoRA can be loaded here"
                f" ({plain!r}): {remedy}"
            )
    if (how := config.get("init_lora_weights")) not in BEGINNINGS:
        raise UserMistake(
            f"adapter {folder}: init_lora_weights is {how!r}, which also changes the base: save it"
            " with peft's path_initial_model_for_weight_conversion, which makes it plain LoRA"
        )
    alphas = config.get("alpha_pattern") or {}
    if not isinstance(alphas, dict):
        raise UserMistake(f"{path}: alpha_pattern is {alphas!r}, wanted is a table of numbers")
    for name, alpha in {"lora_alpha": config.get("lora_alpha", 1), **alphas}.items():
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not is_number or not math.isfinite(alpha):
            raise UserMistake(f"{path}: {name} is {alpha!r}, wanted is a finite number")
    if odd := [name for name in alphas if not _is_plain(name)]:
        raise UserMistake(
            f"{path}: alpha_pattern has {odd[0]!r}, which is no plain pattern of modules' names:"
            f" {MERGED}"
        )
    return config


def spec_of(folder: str | Path) -> AdapterSpec:
    """Rank, alpha and modules of the adapter in this folder."""
    config = facts(folder)
    ranks = _ranks(Path(folder))
    if len(set(ranks.values())) != 1:
        raise UserMistake(
            f"adapter {folder}: ranks {sorted(set(ranks.values()))} in one adapter; one rank is"
            f" wanted: {MERGED}"
        )
    rank = next(iter(ranks.values()))
    alphas = {
        _of_pattern(config.get("alpha_pattern"), name, config.get("lora_alpha", rank))
        for name in ranks
    }
    if len(alphas) != 1:
        raise UserMistake(
            f"adapter {folder}: alphas {sorted(alphas)} in one adapter; one alpha is wanted:"
            f" {MERGED}"
        )
    alpha = float(alphas.pop())
    return AdapterSpec(
        rank, alpha * math.sqrt(rank) if config.get("use_rslora") else alpha, tuple(sorted(ranks))
    )


def save(population: Population, policy: str, folder: Path, base: str) -> None:
    """Write a policy's adapter; `base` is where its base can be loaded from, which a
    shipped model's name says on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = population.specs[policy]
    linear = linear_layers(population.model)
    tensors = {
        f"{PREFIX}{n}.weight": t.contiguous().cpu() for n, t in population.tensors(policy).items()
    }
    save_file(tensors, folder / TENSORS, {"format": "pt", "base": population.fingerprint})
    written = {
        **PLAIN,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": known_as(base),
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "target_modules": _shortest(population, policy),
        "inference_mode": True,
        "fan_in_fan_out": any(isinstance(linear[n], Conv1D) for n in population.targets[policy]),
    }
    (folder / ADAPTER).write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def load(population: Population, policy: str, folder: Path) -> None:
    """Read an adapter into a policy of the same shape; an error where it belongs
    to another base.
    """
    saved = spec_of(folder)
    here = population.specs[policy]
    if (saved.rank, saved.alpha) != (here.rank, here.alpha):
        raise UserMistake(
            f"adapter {folder} has rank {saved.rank} and alpha {saved.alpha:g}, and policy {policy}"
            f" rank {here.rank} and alpha {here.alpha:g}: they stay what they were when a run began"
        )
    with safe_open(folder / TENSORS, "pt") as file:
        made_for = (file.metadata() or {}).get("base")
        tensors = {_plain(key, folder): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise UserMistake(
            f"adapter {folder}: {TENSORS} has numbers that are not finite, in {broken[0]} and"
            f" {len(broken) - 1} more: take a checkpoint from before"
        )
    if made_for is not None and made_for != population.fingerprint:
        named = recorded_base(folder)
        base = known_as(population.model.config.name_or_path)
        another = f"another base, {named!r}, than {base!r}: their weights differ"
        raise UserMistake(
            f"adapter {folder} was made for"
            f" {another if named != base else f'other weights than those that are in {base!r} now'}"
        )
    population.fill(policy, tensors)


def _plain(key: str, folder: Path) -> str:
    """`base_model.model.<module>.lora_A.weight` -> `<module>.lora_A`."""
    if not (key.startswith(PREFIX) and key.endswith((".lora_A.weight", ".lora_B.weight"))):
        raise UserMistake(
            f"adapter {folder}: {key} is no LoRA of a linear layer inside a base (its head and"
            f" embeddings are none): {MERGED}"
        )
    return key.removeprefix(PREFIX).removesuffix(".weight")


def _ranks(folder: Path) -> dict[str, int]:
    """Module -> rank, as its tensors have it."""
    try:
        with safe_open(folder / TENSORS, "pt") as file:
            shapes = {_plain(key, folder): file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        if (folder / PICKLED).is_file() and not (folder / TENSORS).exists():
            raise UserMistake(
                f"adapter {folder} has its weights in {PICKLED}, which may run code: where you"
                f" trust them, {MERGED}"
            ) from error
        raise UserMistake(f"adapter {folder} has no {TENSORS} that can be read: {error}") from error
    ranks = {
        name.removesuffix(".lora_A"): shape[0]
        for name, shape in shapes.items()
        if name.endswith("lora_A")
    }
    if not ranks:
        raise UserMistake(f"adapter {folder} is empty")
    return ranks


def _is_plain(pattern: str) -> bool:
    """Whether a key of alpha_pattern is a name, with few wildcards: somebody else's regular
    expression may take hours.
    """
    try:
        re.compile(pattern)
    except re.error:
        return False
    return re.fullmatch(r"[\w.*\\^$-]+", pattern) is not None and pattern.count("*") <= 3


def _of_pattern(pattern: dict[str, Any] | None, name: str, default: Any) -> Any:
    """Find what peft's alpha_pattern says of a module: its keys are ends of names, or regular
    expressions for them.
    """
    return next(
        (value for key, value in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", name)),
        default,
    )


def _shortest(population: Population, policy: str) -> list[str]:
    """Ends of names where they mean the same modules as whole names; peft takes both."""
    targets = population.targets[policy]
    ends = {n.rpartition(".")[2] for n in population.targets[policy]}
    linear = {n for n in linear_layers(population.model) if n.rpartition(".")[2] in ends}
    return sorted(ends if linear == targets else targets)


def load_population(
    sources: Mapping[str, str],
    under: str,
    device: Any,
    dtype: Any,
    trust_remote_code: bool,
    shapes: Mapping[str, AdapterSpec],
    seed: int,
) -> tuple[Population, Any, list[int]]:
    """A population on the base `under`, its tokenizer and end-of-turn ids; `sources` are adapter
    folders, or the base itself for policies that begin anew with `shapes`.
    """
    models, tokenizer, ends = load_models({"base": under}, device, dtype, trust_remote_code)
    base = models["base"]
    folders = adapters_among(sources)
    specs: dict[str, AdapterSpec] = {}
    for policy in sources:
        if policy in folders:
            specs[policy] = spec_of(folders[policy])
        else:
            specs[policy] = shapes.get(policy, AdapterSpec())
    for policy, folder in folders.items():
        try:
            targets_of(base, specs[policy])
        except UserMistake as error:
            raise UserMistake(f"adapter {folder} does not fit base {under!r}: {error}") from error
    population = Population(base, specs, seed)
    for policy, folder in folders.items():
        load(population, policy, Path(folder))
    return population, tokenizer, ends


NEAR = 1e-2
"""Log-probs of a merged float32 model differ by less than this from those of base and adapter, or
it is not written.
"""
TRIED = 16
"""Tokens of the text that both are tried on."""


def save_merged(population: Population, policy: str, folder: Path) -> float:
    """Write base + adapter as one model; returns by how much its log-probs differ at most from
    those of the two apart.
    """
    model = population.model
    merged = population.merged(policy)
    ids = (
        torch.arange(TRIED, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    )
    with torch.no_grad():
        with population.routed([population.policies.index(policy)]):
            apart = _logprobs(model, ids)
        merged_model = lambda **inputs: functional_call(model, merged, (), inputs)  # noqa: E731
        gap = float((_logprobs(merged_model, ids) - apart).abs().max())
    if not gap < (NEAR if model.dtype == torch.float32 else float("inf")):
        raise UserMistake(
            f"policy {policy}: merged into one model its log-probs differ by {gap:.2g} from base"
            " and adapter, so that it was not written: export with --no-merged"
        )
    try:
        model.save_pretrained(folder, state_dict={**model.state_dict(), **merged})
    except SafetensorError as error:  # a full disk, in the words of another language
        raise OSError(f"{folder}: {error}") from error
    return gap


def _logprobs(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids_BT, use_cache=False).logits.float().log_softmax(-1)
