"""A dry run says each learning rate, and where it is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comas.config.plan import plan
from comas.config.schema import read
from comas.training.dry_run import learning_rates
from comas.training.start import _unfallen


def said(keys: dict[str, Any]) -> str:
    config = read(None, keys)
    return "; ".join(learning_rates(config, plan(config)))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "0.0005 (recipe of the tiny models)"),
        ({"lr": 0.01}, "0.01 (set by lr)"),
        ({"hosts": {"home": {"lr": 0.02}}, "lr": 0.01}, "0.02 (set by hosts.home.lr)"),
        (
            {"agents": {"a": {"lr": 0.5}, "b": {}}},
            "0.0005 (recipe of the tiny models); 0.5 for a (set by its agent)",
        ),
        ({"agents": {"a": {"lr": 0.5}}}, "0.5 for a (set by its agent)"),
    ],
)
def test_rates_of_tiny_models(keys: dict[str, Any], line: str) -> None:
    assert said(keys) == line


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"schedule": "linear", "tokens": 1000}, True),
        ({"schedule": "cosine", "tokens": 1000}, True),
        ({"schedule": "linear"}, False),
        ({"tokens": 1000}, False),
    ],
)
def test_tokens_that_may_end_a_run_before_its_rate_has_fallen_are_told(
    keys: dict[str, Any], told: bool
) -> None:
    assert (_unfallen(read(None, keys)) is not None) == told


def test_a_rate_of_a_tasks_recipe_names_the_task(untaught: Path) -> None:
    keys: dict[str, Any] = {"hosts": {"home": {"base": str(untaught)}}, "task": "gsm8k"}
    assert said(keys) == "1e-05 (recipe of task gsm8k, 10 times for adapters)"
    keys["hosts"]["home"]["learner"] = "full"
    assert said(keys) == "1e-06 (recipe of task gsm8k)"
