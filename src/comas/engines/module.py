"""What the file of an engine defines: `build(plan, models)`.

Nothing heavy is imported here. Leaves out: the engine itself (`comas.seams.Engine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from comas.seams import Engine, EnginePlan, Weights


class EngineModule(Protocol):
    """A file or folder that defines an engine.

    It may define `check(host)` as well, which raises a UserMistake where the engine cannot run here
    at all; it is called with `hosts.<name>` before models are loaded.
    """

    def build(self, plan: EnginePlan, models: Mapping[str, Weights]) -> Engine:
        """An engine for these policies; UserMistake where it cannot serve them."""
        ...
