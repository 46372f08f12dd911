"""Models and tokenizers from Hugging Face names or folders, with one clear line for each that
cannot be used.

Leaves out: what a base name means (`sources`), adapters (`learners.lora`), other formats than
safetensors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from comas.machine import auto_device, has_apple_gpu
from comas.models.gguf import as_read, is_gguf, is_rounded, is_small, keep_copy
from comas.models.kept import cache
from comas.models.sources import (
    apart_up_to,
    described_by,
    file_of,
    files_of,
    is_packaged,
    positions_of,
    whole_model,
)
from comas.types import UserMistake

LOG = logging.getLogger("comas")
LOADING = threading.Lock()
"""transformers patches torch while it loads, so that one model is loaded at a time."""
WRAPPED = ("_orig_mod.", "module.", "base_model.model.")
"""How names of weights begin that were saved of a model while torch or peft had wrapped it."""


def load_models(
    bases: Mapping[str, str],
    device: Any = "cpu",
    dtype: Any = None,
    trust_remote_code: bool = False,
) -> tuple[dict[str, Any], Any, list[int]]:
    """Policy -> model, their common tokenizer, and the end-of-turn ids, from Hugging Face names or
    folders.

    `device` is a torch device or its name, `dtype` a torch dtype, by default float32. Policies of
    one host must share a tokenizer; agents with another belong to a host of their own.
    """
    from comas.engines.hf.trial import try_rows

    models: dict[str, Any] = {}
    tokenizers: dict[str, Any] = {}
    with LOADING:
        for policy, base_name in bases.items():
            base = str(file_of(base_name)) if is_packaged(base_name) else base_name
            source, arguments = _place(base, trust_remote_code)
            model = _model(base, source, arguments, dtype, trust_remote_code)
            tokenizers[policy] = _tokenizer(base, source, arguments, trust_remote_code)
            # with peft installed, transformers follows its base
            if getattr(model, "_hf_peft_config_loaded", False):
                raise UserMistake(
                    f"base {base!r} is an adapter: download it, and give the folder that it is in"
                )
            model = model.to(device).eval()
            longest = apart_up_to(model.config) or positions_of(model.config)
            try_rows(model, longest, base, cache("tried"))
            models[policy] = model
    _check_alike(tokenizers, bases)
    tokenizer = next(iter(tokenizers.values()))
    return models, tokenizer, _ends(models, tokenizer, bases)


def _place(base: str, trusted: bool) -> tuple[str, dict[str, str]]:
    """Return what `from_pretrained` loads, and its further arguments for a GGUF file; of a small
    one a copy is kept at its first reading, which takes longer than to read the copy.
    """
    source, arguments = whole_model(base)
    if not arguments or not is_small(base):
        return source, arguments
    import torch

    dtype = torch.bfloat16 if is_rounded(base) else None
    model = _model(base, source, arguments, dtype, trusted)
    keep_copy(base, model, _tokenizer(base, source, arguments, trusted))
    return whole_model(base)


def _model(base: str, source: str, arguments: Mapping[str, str], dtype: Any, trusted: bool) -> Any:
    """The model, with all its weights; `arguments` say how a GGUF file is read."""
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    _check_weights(base, files_of(source), arguments)
    transformers_logging.disable_progress_bar()  # bars over a handful of tensors, on top of our own
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype or torch.float32,
            trust_remote_code=trusted,
            use_safetensors=True,
            output_loading_info=True,
            **arguments,
        )
    except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
        raise UserMistake(
            f"base {base!r} cannot be loaded as a causal language model: {_brief(error)}"
        ) from error
    except RuntimeError as error:
        if "mismatched_sizes" not in str(error):
            raise
        raise UserMistake(
            f"base {base!r}: its weights have other shapes than its config.json says"
        ) from error
    except Exception as error:
        raise UserMistake(
            f"base {base!r} cannot be loaded as a causal language model, as its config.json says"
            f" ({type(error).__name__}: {_brief(error)})"
        ) from error
    model, report = loaded
    missing_keys = sorted(report["missing_keys"])
    unknown_keys = sorted(report["unexpected_keys"])
    if missing_keys and unknown_keys and unknown_keys[0].startswith(WRAPPED):
        prefix = next(prefix for prefix in WRAPPED if unknown_keys[0].startswith(prefix))
        raise UserMistake(
            f"base {base!r}: the names of its weights begin with {prefix!r}, as of a model that was"
            " wrapped when it was saved: save the model inside"
        )
    if missing_keys:  # transformers would invent them
        raise UserMistake(
            f"base {base!r} lacks weights ({missing_keys[0]} and {len(missing_keys) - 1} more): it"
            " is no whole causal LM"
        )
    if unknown_keys:
        LOG.warning(
            "base %r: %d of its weights are left out (%s first): its config.json, of a %s, names no"
            " such parts; correct it (num_hidden_layers, architectures) if they are meant",
            base,
            len(unknown_keys),
            unknown_keys[0],
            type(model).__name__,
        )
    if arguments and is_rounded(base):  # as in a copy of it
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
    return as_read(model, base) if is_gguf(base) else model


def _check_weights(base: str, folder: Path, arguments: Mapping[str, str]) -> None:
    """Raise UserMistake for weights that cannot be loaded and trained here."""
    if arguments or not folder.is_dir():
        return
    try:
        quantised = described_by(folder / "config.json").get("quantization_config")
    except (OSError, ValueError):
        return  # loading tells what is wrong
    if isinstance(quantised, Mapping):
        method = cast("Mapping[str, Any]", quantised).get("quant_method", "no method named")
        raise UserMistake(
            f"base {base!r} is quantised ({method}), and cannot be trained here: take the model"
            " that it was made of, or a GGUF file of it"
        )
    if not any(folder.glob("*.safetensors")) and any(folder.glob("pytorch_model*.bin")):
        raise UserMistake(
            f"base {base!r} has its weights in pytorch_model.bin, which may run code: convert them"
            " where you trust them, by AutoModelForCausalLM.from_pretrained(FOLDER)"
            ".save_pretrained(NEW)"
        )


def _tokenizer(base: str, source: str, arguments: Mapping[str, str], trusted: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source, trust_remote_code=trusted, **arguments
        )
    except Exception as error:
        raise UserMistake(
            f"base {base!r} has no tokenizer that can be loaded: {_brief(error)}"
        ) from error
    if is_gguf(base):
        tokenizer.name_or_path = base  # it may come from a copy
    return tokenizer


def _check_alike(tokenizers: Mapping[str, Any], bases: Mapping[str, str]) -> None:
    """Refuse policies with different tokenizers."""
    (_, first), *others = tokenizers.items()
    for policy, tokenizer in others:
        same_words = tokenizer.get_vocab() == first.get_vocab()
        if not same_words or tokenizer.chat_template != first.chat_template:
            raise UserMistake(
                f"base {bases[policy]!r} of policy {policy} has another tokenizer than"
                f" {next(iter(bases.values()))!r}: give it a host of its own (hosts.<name>.base)"
            )


def _ends(models: Mapping[str, Any], tokenizer: Any, bases: Mapping[str, str]) -> list[int]:
    """Ids that end a turn: the tokenizer's and those of each generation_config.json."""
    eos_id: int | None = tokenizer.eos_token_id
    ends: set[int] = set() if eos_id is None else {eos_id}
    sizes: list[int] = []
    for policy, model in models.items():
        size = len(model.get_input_embeddings().weight)
        ends.update(_configured_ends(model, bases[policy], size))
        sizes.append(size)
    # one that was added to the tokenizer and not to the model is never sampled
    size = max(sizes)
    ends = {i for i in ends if i < size}
    if not ends:
        first = next(iter(bases.values()))
        beyond = (
            f" but {eos_id}, which is beyond its vocabulary of {size}" if eos_id is not None else ""
        )
        raise UserMistake(
            f"base {first!r} names no end token{beyond}: set eos_token_id in its"
            " generation_config.json"
        )
    return sorted(ends)


def _configured_ends(model: Any, base: str, size: int) -> list[int]:
    """Ids in a model's generation_config.json; an error where one is none of its `size` tokens."""
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    listed = [i for i in listed if i is not None]
    for i in listed:
        if type(i) is not int or not 0 <= i < size:
            raise UserMistake(
                f"base {base!r}: eos_token_id in its generation_config.json is {i!r}, no token of"
                f" its vocabulary of {size}: set the id of its end token"
            )
    return listed


def place_of(device: str, dtype: str) -> tuple[Any, Any]:
    """The torch device and dtype that these names mean on this machine; an error where the device
    cannot be used.
    """
    import torch

    if device == "auto":
        device = auto_device()
    if device.startswith("mps") and not has_apple_gpu():
        raise UserMistake(
            f"device {device!r} cannot be used here (it needs an Apple GPU and macOS 14): set"
            " hosts.<name>.device=cpu"
        )
    try:
        torch_device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserMistake(
            f"device {device!r} cannot be used here ({reason}): set hosts.<name>.device=cpu"
        ) from error
    if dtype == "auto":
        dtype = "float32" if torch_device.type == "cpu" else "bfloat16"
    return torch_device, getattr(torch, dtype)


def _brief(error: Exception) -> str:
    """The first words of a library's error; of one that asks for `trust_remote_code` our key."""
    words = " ".join(str(error).split())
    if "trust_remote_code" in words:
        return (
            "it needs Python code that lies beside it, which does not run here unless you trust it:"
            " read the code, then set hosts.<name>.trust_remote_code=true"
        )
    if len(words) <= 200:
        return words
    return words[:200] + " ..."


def context_of(model: Any, limit: int | None, name: str = "<name>") -> int:
    """Tokens of context at this host: the model's positions, or `limit` where it is smaller; a
    warning where neither can be had.
    """
    positions = positions_of(model.config)
    if limit:
        positions = min(positions, limit)
    apart = apart_up_to(model.config)
    if apart is None or positions <= apart:
        return positions
    LOG.warning(
        "hosts.%s.context is %d, not %d: base %r has LongRoPE, and longer rows would change the"
        " probabilities of the others in their batch",
        name,
        apart,
        positions,
        str(model.config.name_or_path),
    )
    return apart
