"""What a step says of itself, from the record alone: no verifier, no label. Leaves out: accuracy (`evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from comas.types import Episode, Turn

TIE = 1e-4
"""A draw whose margin is below this might flip in fp32 if it were batched otherwise."""


def summarise(episodes: Sequence[Episode], learned: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a step; also notes mean advantage and mean KL on the turns. `learned`: host -> what `learn` returned."""
    turns = [t for e in episodes if e.error is None for t in e.turns]
    for _, told in learned.values():
        for turn in turns:
            if turn.id in told:
                turn.info["advantage"], turn.info["kl"] = told[turn.id]
    paid = [t for t in turns if t.reward is not None]
    return {
        "step_tokens": sum(t.tokens for e in episodes for t in e.turns),
        "rewards": _by_role(paid, lambda t: t.reward),
        "kl": _by_role([t for t in paid if "kl" in t.info], lambda t: t.info["kl"]),
        "lengths": _by_role(turns, lambda t: t.tokens), "cost": cost([t for e in episodes for t in e.turns]),
        "counts": {"turns": len(turns), "paid": len(paid), "failed": sum(e.error is not None for e in episodes),
                   "unfinished": sum(not t.finished for t in turns), "dropped": sum(t.dropped for t in turns),
                   "near_ties": sum(t.margin < TIE for t in turns)},
        "policies": {f"{host}/{policy}": s for host, (stats, _) in learned.items() for policy, s in stats.items()},
    }


def cost(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Turns, prompt and generated tokens and seconds of waiting per agent, role and round; summed; turns as records or as `Turn`.

    Seconds are those for which a turn was waited for: turns that are answered side by side count each."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for turn in turns:
        t = turn if isinstance(turn, Mapping) else vars(turn)
        key = (t["agent"], t["role"], t.get("round", 0))
        new = {"agent": key[0], "role": key[1], "round": key[2], "turns": 0, "prompt_tokens": 0, "tokens": 0, "seconds": 0.0}
        row = rows.setdefault(key, new)
        row["turns"] += 1
        for kind in ("prompt_tokens", "tokens", "seconds"):
            row[kind] += t[kind]
    return [rows[key] for key in sorted(rows)]


def _by_role(turns: Sequence[Turn], value: Any) -> dict[str, float]:
    roles = sorted({t.role for t in turns})
    return {r: _mean([value(t) for t in turns if t.role == r]) for r in roles}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
