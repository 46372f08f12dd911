"""What trackers are sent of a line of metrics.jsonl."""

from __future__ import annotations

import math

from comas.trackers.sink import figures_of, of_config

LINE = {
    "step": 4,
    "rewards": {"solution": 0.5, "scoring": 0.0},
    "kl": {"solution": 0.01},
    "pay": {"n": 8, "accuracy": 0.25, "precision": 0.75, "recall": None},
    "replies": [
        {"agent": "a0", "role": "evaluation", "turns": 4, "paid": 4, "cut": 0, "unreadable": None},
    ],
    "cost": [{"agent": "a0", "role": "scoring", "round": 1, "turns": 6, "tokens": 60}],
    "policies": {"home/a0": {"loss": float("nan"), "grad_norm": float("inf"), "lr": 1e-3}},
    "notes": ["a text"],
    "validation": {"mean": 0.4, "low": 0.2, "high": 0.6, "n": 10},
    "tokens": 900,
    "seconds": 2.5,
    "mine": [[1, 2], {"large": 10**400, "yes": True}],
}


def test_figures_are_called_by_their_path() -> None:
    figures = figures_of(LINE)
    assert figures["rewards/solution"] == 0.5
    assert figures["tokens"] == 900
    assert figures["cost/a0/scoring/1/tokens"] == 60
    assert figures["replies/a0/evaluation/turns"] == 4
    assert figures["validation/low"] == 0.2
    assert figures["mine/0/1"] == 2
    assert figures["mine/1/yes"] == 1


def test_what_is_no_finite_number_is_left_out() -> None:
    figures = figures_of(LINE)
    assert all(math.isfinite(x) for x in figures.values())
    assert [name for name in figures if "policies" in name] == ["policies/home/a0/lr"]
    assert not {"mine/1/large", "pay/recall", "step"} & figures.keys()
    assert not [name for name in figures if "notes" in name]


def test_measurements_and_configs() -> None:
    interval = {"mean": 0.5, "low": 0.25, "high": float("inf"), "n": 4}
    figures = figures_of({"before": interval})
    assert figures == {"before/mean": 0.5, "before/low": 0.25, "before/n": 4}
    config = {"steps": 3, "hosts": {"home": {"base": "tiny"}}, "betas": [0.9, 0.95], "room": {}}
    assert of_config(config) == {"steps": 3, "hosts.home.base": "tiny", "betas": "[0.9, 0.95]"}
