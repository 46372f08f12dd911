"""What turns cost.

Leaves out: money (hosts), time of the learners (hosts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Cost:
    """Of one agent in one role and round."""

    agent: str
    role: str
    round: int
    turns: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0


def cost(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Turns, prompt and generated tokens and seconds of waiting per agent, role and round; summed;
    turns as records or as `Turn`.

    Seconds are those for which a turn was waited for: turns that are answered side by side count
    each.
    """
    rows: dict[tuple[str, str, int], Cost] = {}
    for turn in turns:
        fields = turn if isinstance(turn, Mapping) else vars(turn)
        key = (fields["agent"], fields["role"], fields.get("round", 0))
        row = rows.get(key)
        if row is None:
            row = rows[key] = Cost(*key)
        row.turns += 1
        row.prompt_tokens += fields["prompt_tokens"]
        row.tokens += fields["tokens"]
        row.seconds += fields["seconds"]
    return [asdict(rows[key]) for key in sorted(rows)]
