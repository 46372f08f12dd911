"""Metrics of a step, computed from its episodes and what hosts learnt from them: one file each,
found by name.

`metrics = ["rewards", "./mine.py"]` in the config names them; each file has a function
`metric(step)` of a `StepRecord`, whose value stands in metrics.jsonl under the file's name, unless
it is None. Leaves out: accuracy (`evaluation`), what a step's tokens cost (`hosts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.plugins import load_builder
from comas.training.metrics.record import StepRecord as StepRecord
from comas.types import Learned

Metric = Callable[[StepRecord], Any]


def load_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """Name in metrics.jsonl -> function; an error for a name that is none."""
    return {Path(name).stem: load_builder("metrics", name, "metrics").metric for name in names}


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
