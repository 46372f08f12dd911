"""Metrics of a step, computed from its episodes and what hosts learnt from them: one file each,
found by name.

`metrics = ["rewards", "./mine.py"]` in the config names them; each file has a function
`metric(step)` of a `StepRecord`, whose value stands in metrics.jsonl under the file's name, unless
it is None. Leaves out: accuracy (`evaluation`), what a step's tokens cost (`hosts`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.mistakes import nearest
from comas.training.metrics.record import StepRecord as StepRecord
from comas.types import Learned, UserMistake

Metric = Callable[[StepRecord], Any]


def shipped() -> list[str]:
    """Names of the metrics that comas has."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if file.stem not in ("__init__", "record"))


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Name in metrics.jsonl -> function; an error for a name that is none."""
    return {Path(name).stem if name.endswith(".py") else name: _load(name) for name in names}


def _load(name: str) -> Metric:
    if name.endswith(".py"):
        module = _module_at(Path(name).resolve(), name)
    elif name in shipped():
        module = importlib.import_module(f"comas.training.metrics.{name}")
    else:
        raise UserMistake(f"metrics: {name!r}: {nearest(name, shipped())} (or ./file.py)")
    function = getattr(module, "metric", None)
    if not callable(function):
        raise UserMistake(f"metrics: {name!r}: the file defines no function `metric(step)`")
    return function


def _module_at(path: Path, name: str) -> Any:
    """The module of a user's file."""
    spec = importlib.util.spec_from_file_location(f"comas_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserMistake(f"metrics: {name!r}: no such file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserMistake(f"metrics: {name!r} cannot be imported: {reason}") from error
    return module


def summarise(step: StepRecord, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """The line of a step: its tokens, the metrics, and what each policy's update came to."""
    line: dict[str, Any] = {"step_tokens": sum(turn.tokens for turn in step.all_turns)}
    for name, metric in metrics.items():
        value = metric(step)
        if value is not None:
            line[name] = value
    line["policies"] = policies(step.learned)
    return line


def policies(learned: Mapping[str, Learned]) -> dict[str, dict[str, float]]:
    """`host/policy` -> statistics of its learning step."""
    return {
        f"{host}/{policy}": statistics
        for host, (of_host, _) in learned.items()
        for policy, statistics in of_host.items()
    }
