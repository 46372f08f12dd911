"""How dialogues called tools, per role and tool; nothing where nobody called any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comas.training.metrics.record import StepRecord, grouped
from comas.types import Turn


def metric(step: StepRecord) -> list[dict[str, Any]] | None:
    """Rows of `tool_use`."""
    return tool_use(step.turns) or None


Call = Mapping[str, Any]


@dataclass
class Use:
    """Of one tool in one role."""

    role: str
    tool: str
    calls: int = 0
    per_dialogue: float = 0.0
    failed: int = 0
    cut: int = 0
    seconds: float = 0.0

    def count(self, call: Call) -> None:
        """Add a call, as `game.dialogue` noted it."""
        self.calls += 1
        self.failed += call["failed"] is not None
        self.cut += call["cut"] > 0
        self.seconds += call["seconds"]


def tool_use(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Per role and tool: `calls`, `per_dialogue`, how many `failed` and were `cut`, and `seconds`
    of all calls together.
    """
    talking = [turn for turn in turns if "dialogue" in turn.info]
    dialogues = grouped((turn.role, turn.info["dialogue"]) for turn in talking)
    uses: dict[tuple[str, str], Use] = {}
    for turn in talking:
        call = turn.info.get("call")
        if call is None:
            continue
        key = turn.role, call["tool"]
        use = uses.setdefault(key, Use(*key))
        use.count(call)
    for use in uses.values():
        different = set(dialogues[use.role])
        use.per_dialogue = use.calls / len(different)
    return [asdict(uses[key]) for key in sorted(uses)]
