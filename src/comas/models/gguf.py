"""Models in a GGUF file: what it holds, and the files that describe it to everything else.

Weights are dequantised by transformers' own loader, which reads the tokenizer and the chat template
out of the file as well, and takes half a minute for 135M parameters. So a safetensors copy of a
small one is kept beside the hub's cache, by the hash of the file's content. All weights of
a file whose matrices are quantised are rounded to bfloat16, in the copy and without it: that is
finer than the quantisation, and half of the bytes. Leaves out: writing such files, training in
their quantisation.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from comas.models.kept import cache, digest
from comas.storage import files
from comas.types import UserMistake

LOG = logging.getLogger("comas")
SUFFIX = ".gguf"
MAGIC = b"GGUF"
"""How such a file begins."""
LARGEST_COPIED = 1_000_000_000
"""Bytes of the largest file of which a copy is kept: in bfloat16 it is up to four times as large.
"""
COPIES = "gguf-2"
"""The folder of the copies. Those in `gguf` were in float32, whatever the file held."""
UNQUANTISED = ("F64", "F32", "F16")
"""Types of numbers that bfloat16 would make coarser."""
UNFINISHED = "unfinished-"
"""How the name of a copy begins that is being written."""
ABANDONED = 3600.0
"""Seconds after which nobody writes on it any more."""
_DESCRIBED: list[Any] = []
"""Temporary folders with the configs of such files; removed when the process ends."""


def is_gguf(name: str | Path) -> bool:
    """Whether a name is that of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def arguments_of(base: str) -> tuple[str, dict[str, str]]:
    """The folder and the further arguments with which `from_pretrained` loads such a file: of its
    copy, where there is one, no arguments.
    """
    path = Path(base)
    if not path.is_file():
        raise UserMistake(f"base {base!r}: no such file")
    if has_copy(base):
        return str(copy_folder(base)), {}
    _facts_of(base)
    return str(path.parent), {"gguf_file": path.name}


def parameters(base: str) -> int:
    """Count the numbers in its tensors."""
    if has_copy(base):
        manifest = files.facts(copy_folder(base)) or {}
        return int(manifest["parameters"])
    return _facts_of(base).parameters


def is_rounded(base: str) -> bool:
    """Whether the weights of a file are rounded to bfloat16: all its matrices are quantised."""
    return _facts_of(base).rounded


def copy_folder(base: str) -> Path:
    """Name the folder of a file's copy by the hash of its content."""
    return cache(COPIES) / digest(Path(base))


def has_copy(base: str) -> bool:
    """Whether a whole copy of a file is kept that can be read here."""
    if not is_small(base):
        return False
    folder = copy_folder(base)
    try:
        return _is_whole(str(folder), (folder / files.MANIFEST).stat().st_mtime_ns)
    except OSError:
        return False


@lru_cache
def _is_whole(folder: str, sealed: int) -> bool:
    """Whether the copy that was sealed then (nanoseconds) is as it was written.

    Weights that nobody wrote since are not read for it: that takes seconds of every start.
    """
    facts = files.facts(Path(folder)) or {}
    return (
        type(facts.get("parameters")) is int and files.damage(Path(folder), unread=sealed) is None
    )


def is_small(base: str) -> bool:
    """Whether a file is small enough for a copy to be kept."""
    return Path(base).stat().st_size <= LARGEST_COPIED


def keep_copy(base: str, model: Any, tokenizer: Any) -> None:
    """Keep a model that was read from a file, and its tokenizer, whole or not at all; a warning
    where they cannot be written.
    """
    folder = copy_folder(base)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        fresh = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
        try:
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
            files.seal(fresh, {"parameters": parameters(base), "file": Path(base).name})
            if not has_copy(base):  # another process may have been faster
                shutil.rmtree(folder, ignore_errors=True)
                files.share([fresh])
                files.rename(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # of a full disk
        if has_copy(base):
            return
        LOG.warning(
            "no copy of %s can be kept in %s (%s): it is read anew each time; HF_HOME=FOLDER"
            " names another place",
            base,
            folder.parent,
            error,
        )


def _sweep(folder: Path) -> None:
    """Remove what processes have left there that were killed while they wrote."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)


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
    if not arguments:
        return folder
    described = tempfile.TemporaryDirectory(prefix="comas-gguf-")
    _DESCRIBED.append(described)
    try:
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False, **arguments)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **arguments)
    except Exception as error:
        raise UserMistake(
            f"base {base!r}: its config or tokenizer cannot be read ({type(error).__name__}:"
            f" {' '.join(str(error).split())[:200]}): take another file of the model"
        ) from error
    config.save_pretrained(described.name)
    tokenizer.save_pretrained(described.name)
    return described.name


@dataclass(frozen=True)
class GgufFacts:
    """Facts that a file says of itself."""

    parameters: int
    rounded: bool


@lru_cache
def _facts_of(base: str) -> GgufFacts:
    """Read what a file says of itself; UserMistake for one that cannot be talked to."""
    try:
        import accelerate  # noqa: F401 - transformers needs it to dequantise, and says so late
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
        architecture = str(field.contents()) if field is not None else "none"
    except (OSError, ValueError, LookupError, RecursionError) as error:
        raise UserMistake(_unreadable(base, error)) from error
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        supported = ", ".join(sorted(GGUF_SUPPORTED_ARCHITECTURES))
        raise UserMistake(
            f"base {base!r} has architecture {architecture!r}, which transformers does not read"
            f" from GGUF files: one of {supported}; or take the model's Hugging Face folder"
        )
    if template is None:
        raise UserMistake(
            f"base {base!r} has no chat template: choose a file of an instruction-tuned model, or"
            " take its Hugging Face folder and add a chat_template.jinja"
        )
    exact = [
        tensor
        for tensor in read.tensors
        if tensor.tensor_type.name in UNQUANTISED and len(tensor.shape) > 1
    ]
    return GgufFacts(sum(int(tensor.n_elements) for tensor in read.tensors), not exact)


def _unreadable(base: str, error: Exception) -> str:
    """Say why the reader of GGUF files gave up on a file."""
    with Path(base).open("rb") as file:
        begins_as_one = file.read(len(MAGIC)) == MAGIC
    if not begins_as_one:
        return f"base {base!r} is not a GGUF file: {error}"
    size = Path(base).stat().st_size
    return (
        f"base {base!r} is a GGUF file that is cut or damaged, of {size:,} bytes: copy or download"
        f" it again ({error})"
    )
