"""Models in a GGUF file: what it holds, and the files that describe it to everything else.

Weights are dequantised by transformers' own loader, which reads the tokenizer and the chat template
out of the file as well. Leaves out: writing such files, training in their quantisation.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from comas.types import UserMistake

SUFFIX = ".gguf"
_DESCRIBED: list[Any] = []
"""Temporary folders with the configs of such files; removed when the process ends."""


def is_gguf(name: str | Path) -> bool:
    """Whether a name is that of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def arguments_of(base: str) -> tuple[str, dict[str, str]]:
    """The folder and the further arguments with which `from_pretrained` loads such a file."""
    path = Path(base)
    if not path.is_file():
        raise UserMistake(f"base {base!r}: no such file")
    _facts_of(base)
    return str(path.parent), {"gguf_file": path.name}


def parameters(base: str) -> int:
    """How many numbers its tensors hold."""
    return _facts_of(base)[1]


def check(base: str) -> None:
    """An error for a file that cannot be talked to: no GGUF, of an architecture that transformers
    does not know, or without a chat template.
    """
    arguments_of(base)


def as_read(model: Any, base: str) -> Any:
    """The model without the memory of its quantisation, which it no longer has and which would keep
    it from being saved; named after the file.
    """
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.config._name_or_path = base
    return model


@lru_cache
def config_folder(base: str) -> str:
    """A temporary folder with the config.json and the tokenizer of such a file."""
    from transformers import AutoConfig, AutoTokenizer

    folder, arguments = arguments_of(base)
    described = tempfile.TemporaryDirectory(prefix="comas-gguf-")
    _DESCRIBED.append(described)
    AutoConfig.from_pretrained(folder, **arguments).save_pretrained(described.name)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **arguments)
    tokenizer.save_pretrained(described.name)
    return described.name


@lru_cache
def _facts_of(base: str) -> tuple[str, int]:
    """Architecture and number of parameters."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserMistake(
            f'base {base!r} is a GGUF file, which needs the extra gguf: pip install "comas[gguf]"'
        ) from error
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        read = GGUFReader(base)
        field = read.get_field("general.architecture")
        template = read.get_field("tokenizer.chat_template")
    except (OSError, ValueError, IndexError) as error:
        raise UserMistake(f"base {base!r} is not a GGUF file: {error}") from error
    architecture = str(field.contents()) if field is not None else "none"
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_SUPPORTED_ARCHITECTURES))
        raise UserMistake(
            f"base {base!r} has architecture {architecture!r}, which transformers does not read"
            f" from GGUF files: one of {known}; or take the model's Hugging Face folder"
        )
    if template is None:
        raise UserMistake(
            f"base {base!r} has no chat template: choose a file of an instruction-tuned model, or"
            " take its Hugging Face folder and add a chat_template.jinja"
        )
    return architecture, sum(int(tensor.n_elements) for tensor in read.tensors)
