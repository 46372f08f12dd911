"""What a GPU is waited for in a token step and in a learnt pass, counted on a pretended device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COUNTER = Path(__file__).parents[2] / "benchmarks" / "waits.py"


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    """Counts by name; in a process of its own, since a device is registered for a whole process."""
    command = [sys.executable, str(COUNTER), "--layers", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def named(counted: dict[str, Any], beginning: str) -> list[dict[str, Any]]:
    found = [counts for name, counts in counted.items() if name.startswith(beginning)]
    assert found, list(counted)
    return found


def test_a_token_step_waits_once_for_what_was_drawn(counted: dict[str, Any]) -> None:
    for counts in named(counted, "token step"):
        assert counts["waits"] == 1, counts
        assert next(iter(counts["places"])).startswith("download engines/sampling.py")
        assert counts["uploads"] == 2  # what the model reads; noise and settings


def test_a_learnt_pass_waits_once_for_its_log_probs(counted: dict[str, Any]) -> None:
    for counts in named(counted, "learnt pass"):
        assert counts["waits"] == 1, counts


def test_an_update_waits_once_per_policy_and_once_for_all_losses(counted: dict[str, Any]) -> None:
    for counts in named(counted, "update of a policy, adapters"):
        assert counts["waits"] == 1 + 1 / 2, counts  # two policies
    assert counted["update of a policy, whole model"]["waits"] == 2


def test_adapters_take_half_of_the_calls_that_each_layer_by_itself_takes(
    counted: dict[str, Any],
) -> None:
    whole = counted["token step, whole model"]["kernels"]
    of_layers = lambda kind: (counted[f"token step, 4 adapters, {kind}"]["kernels"] - whole) / 2  # noqa: E731
    # a product with A for q, k and v, one for gate and up, and one each for o and down; for each
    # of the seven a product with B, and where shares are uneven a sum
    assert of_layers("even") == 4 + 7
    assert of_layers("uneven") == 4 + 2 * 7
