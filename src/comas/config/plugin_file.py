"""Importing a user's file, with one line for each that cannot be.

Leaves out: what is to be in it (`config.plugins`, `config.builders`).
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from comas.types import UserMistake


def import_file(name: str, kind: str) -> ModuleType:
    """The module in the file `name`; `kind` says in errors what it was to be."""
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(f"comas_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserMistake(f"{kind} {name!r}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise UserMistake(f"{kind} {name!r} cannot be imported: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise UserMistake(
            f"{kind} {name!r} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from error
    return module
