"""Digests that tell whether an evaluation that goes on is still the one that began: of the
questions, and of the weights.

Leaves out: models behind an API, whose weights nobody here sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comas.config.schema import Config
from comas.models.sources import files_of
from comas.questions.checked import RunQuestions
from comas.storage import files as disk
from comas.types import Question, UserMistake

LOADED = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges*",
)
"""What a model is loaded from; other files of its folder may change."""


def of_questions(questions: Sequence[Question]) -> str:
    """Texts, answers and all that verifiers read, in the order in which they are asked."""
    records = [asdict(question) for question in questions]
    try:
        text = json.dumps(records, sort_keys=True, default=_plain)
    except TypeError as error:  # keys of several kinds have no order
        raise UserMistake(
            f"the `meta` of the questions cannot be written as JSON ({error}): give its tables keys"
            " of text"
        ) from error
    return _sha256(text)


def _plain(value: Any) -> Any:
    """What own tasks may keep in `meta`: sets have no order, and of what has no value the kind must
    do.
    """
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return type(value).__qualname__


def of_weights(sources: Mapping[str, str]) -> str:
    """Of the models that policies are loaded from, by the bytes of their files."""
    digests = {place: _of_folder(files_of(place)) for place in set(sources.values())}
    by_policy = {policy: digests[place] for policy, place in sources.items()}
    return _sha256(json.dumps(by_policy, sort_keys=True))


def _of_folder(folder: Path) -> dict[str, str]:
    """File -> SHA-256, of all that a model is loaded from."""
    if folder.is_file():
        return {folder.name: disk.digest(folder)}
    # a checkpoint's, which was compared when it was opened
    sealed = (disk.facts(folder.parent) or {"files": {}})["files"]
    files = {file for pattern in LOADED for file in folder.glob(pattern) if file.is_file()}
    digests: dict[str, str] = {}
    for file in sorted(files):
        if file.name != "optimizer.safetensors":
            known = sealed.get(f"{folder.name}/{file.name}", {})
            digests[file.name] = known.get("sha256") or disk.digest(file)
    return digests


def of_plugins(config: Config) -> dict[str, str]:
    """The method and the task: their names, of files of the user's own the digests; and of tools of
    the user's own.
    """
    own = [name for name in config.tools if name.endswith(".py")]
    tools = {f"tool {Path(name).name}": _of_plugin(name) for name in own}
    return {"method": _of_plugin(config.method), "task": _of_plugin(config.task), **tools}


def _of_plugin(name: str) -> str:
    return disk.digest(Path(name)) if name.endswith(".py") else name


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


LENGTH = 16
"""Digits that are kept."""


def of_run(asked: RunQuestions, sources: Mapping[str, str]) -> dict[str, str]:
    """Of the questions of each split, and of the bases (`host/policy` -> folder or hub name)."""
    splits = {"training": asked.train, "validation": asked.validation, "held-out": asked.test}
    digests: dict[str, str] = {}
    for name, questions in splits.items():
        digests[f"SHA-256 of {name} questions"] = of_questions(questions)[:LENGTH]
    digests["SHA-256 of bases"] = of_weights(sources)[:LENGTH]
    return digests
