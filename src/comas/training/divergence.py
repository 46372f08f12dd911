"""Updates that are skipped since a loss or gradient is not finite: a few in a row end a run.

Leaves out: how an update is skipped (`learners`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comas.types import UserMistake

PATIENCE = 3
"""Steps in a row in which a policy's loss or gradient is not finite, after which a run stops."""


class Divergence:
    """Of all policies of a run."""

    def __init__(self) -> None:
        self.skipped: dict[str, int] = {}
        """`host/policy` -> steps in a row whose update was skipped."""

    def count(self, metrics: Mapping[str, Any]) -> None:
        """Count what a step's metrics say."""
        for policy, stats in metrics["policies"].items():
            before = self.skipped.get(policy, 0)
            self.skipped[policy] = before + 1 if stats.get("skipped") else 0

    @property
    def ends(self) -> bool:
        """Whether the run has to stop."""
        return max(self.skipped.values(), default=0) >= PATIENCE

    def check(self, step: int, run: Path) -> None:
        """An error that names the policy, where the run has to stop."""
        for policy, times in self.skipped.items():
            if times < PATIENCE:
                continue
            raise UserMistake(
                f"step {step + 1}: loss or gradient of policy {policy} was not finite in {times}"
                " steps in a row; its weights are those before. Start again with a lower lr,"
                f" or from an earlier checkpoint of {run}"
            )
