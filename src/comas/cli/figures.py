"""What the last steps of a run looked like against labels: pay, judges, revisions, answers, posed
questions.

Leaves out: how each figure is computed (`training.metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LAST = 10
"""Steps that are averaged."""
Means = dict[str, float]
Figures = dict[str, dict[str, Means]]
"""Metric -> role (or `step`, where it is of the whole step) -> name -> mean over steps."""
BY_ROLE = ("quality", "judges")
WHOLE = ("revisions", "coverage", "posed")
SHOWN = {
    "quality": ("accuracy", "toxicity", "gap", "auc"),
    "judges": ("balanced", "accepts_right", "accepts_wrong"),
    "revisions": ("before", "after", "confidence", "critique"),
    "coverage": ("pass@1", "pass@4", "pass@8", "pass@16", "distinct", "entropy"),
    "posed": ("valid", "distinct", "novelty", "solvable", "frontier"),
}
"""Metric -> the figures that a person is shown."""
TITLES = {
    "quality": "pay of {role}",
    "judges": "judges ({role})",
    "revisions": "revisions",
    "coverage": "answers",
    "posed": "posed questions",
}


def figures_of(metrics: Sequence[Mapping[str, Any]]) -> Figures:
    """Means over the last steps, of each figure over those that have it."""
    tables: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for step in metrics[-LAST:]:
        for metric, role, figures in _tables(step):
            of_role = tables.setdefault((metric, role), [])
            of_role.append(figures)
    found: Figures = {}
    for (metric, role), of_role in tables.items():
        roles = found.setdefault(metric, {})
        roles[role] = _means(of_role)
    return found


def _means(tables: Sequence[Mapping[str, float]]) -> Means:
    """Of each figure over the steps that have it."""
    means: Means = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [table[name] for table in tables if name in table]
        means[name] = sum(values) / len(values)
    return means


def _tables(step: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """(metric, role, its figures) of a line of metrics.jsonl."""
    for metric in BY_ROLE:
        for role, figures in step.get(metric, {}).items():
            yield metric, role, figures
    for metric in WHOLE:
        if metric in step:
            yield metric, "step", step[metric]


def figure_lines(metrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures in words, a line for each metric and role; nothing where there is none."""
    figures = figures_of(metrics)
    if not figures:
        return
    steps = min(LAST, len(metrics))
    over = "the last step" if steps == 1 else f"the last {steps} steps"
    yield f"{over}, against labels where there are any (no method sees these figures):"
    for metric, roles in figures.items():
        for role, of_role in roles.items():
            names = [name for name in SHOWN[metric] if name in of_role]
            shown = ", ".join(f"{name} {of_role[name]:.2f}" for name in names)
            title = TITLES[metric].format(role=role)
            if shown:
                yield f"  {title}: {shown}"
