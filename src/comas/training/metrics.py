"""What a step says of itself, from the record alone: no verifier, no label.

Leaves out: accuracy (`evaluate`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from comas.types import TIE, Episode, Turn


def summarise(episodes: Sequence[Episode], learned: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a step; also notes mean advantage and mean KL on the turns.

    `learned`: host -> what `learn` returned.
    """
    turns = [t for e in episodes if e.error is None for t in e.turns]
    for _, told in learned.values():
        for turn in turns:
            if turn.id in told:
                turn.info["advantage"], turn.info["kl"] = told[turn.id]
    paid = [t for t in turns if t.reward is not None]
    policies = {
        f"{host}/{policy}": s for host, (stats, _) in learned.items() for policy, s in stats.items()
    }
    return {
        "step_tokens": sum(t.tokens for e in episodes for t in e.turns),
        "rewards": _by_role(paid, lambda t: t.reward),
        "kl": _by_role([t for t in paid if "kl" in t.info], lambda t: t.info["kl"]),
        "lengths": _by_role(turns, lambda t: t.tokens),
        "cost": cost([t for e in episodes for t in e.turns]),
        "counts": {
            "turns": len(turns),
            "paid": len(paid),
            "failed": sum(e.error is not None for e in episodes),
            "unfinished": sum(not t.finished for t in turns),
            "dropped": sum(t.dropped for t in turns),
            "near_ties": sum(t.margin < TIE for t in turns),
        },
        "replies": replies(turns),
        "signal": signal(paid),
        "facts": facts(turns),
        "policies": policies,
    }


def unreadable(turn: Turn) -> bool | None:
    """Whether the game noted that it could not read a reply; None where it notes nothing of the
    kind.

    Games note it as `info["readable"] = False`, or as an `answer` or a `score` that is None.
    """
    noted = [turn.info[fact] is None for fact in ("answer", "score") if fact in turn.info]
    if "readable" in turn.info:
        noted.append(not turn.info["readable"])
    return any(noted) if noted else None


def replies(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Per agent and role how many replies there were, how many were paid, cut for want of room, and
    unreadable (None: the game does not say).
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for turn in turns:
        new = {
            "agent": turn.agent,
            "role": turn.role,
            "turns": 0,
            "paid": 0,
            "cut": 0,
            "unreadable": None,
        }
        row = rows.setdefault((turn.agent, turn.role), new)
        row["turns"] += 1
        row["paid"] += turn.reward is not None
        row["cut"] += not turn.finished
        if (noted := unreadable(turn)) is not None:
            row["unreadable"] = (row["unreadable"] or 0) + noted
    return [rows[key] for key in sorted(rows)]


def signal(paid: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Role -> the number of groups whose rewards are compared (`groups`), of those in which all are
    equal (`flat`), and the standard deviation of all its rewards (`spread`). Without a group of its
    own, a turn is compared with its policy's others.
    """
    groups: dict[str, dict[tuple[str, str | None], list[float]]] = {}
    for turn in paid:
        groups.setdefault(turn.role, {}).setdefault((turn.policy, turn.group), []).append(
            turn.reward or 0.0
        )
    found: dict[str, dict[str, float]] = {}
    for role, compared in sorted(groups.items()):
        rewards = [reward for group in compared.values() for reward in group]
        flat = sum(max(group) == min(group) for group in compared.values())
        found[role] = {"groups": len(compared), "flat": flat, "spread": statistics.pstdev(rewards)}
    return found


def facts(turns: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Role -> the means of the numbers (truth counts as 0 and 1) that games and settlements noted
    in `Turn.info`.
    """
    noted: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        for name, value in turn.info.items():
            if name not in OWN and isinstance(value, Real | np.bool_) and _is_finite(value):
                noted.setdefault(turn.role, {}).setdefault(name, []).append(float(value))
    return {
        role: {name: _mean(values) for name, values in sorted(named.items())}
        for role, named in sorted(noted.items())
    }


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond what a float can hold
        return False


OWN = ("advantage", "kl")
"""What is noted here, and averaged elsewhere."""


def cost(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """Turns, prompt and generated tokens and seconds of waiting per agent, role and round; summed;
    turns as records or as `Turn`.

    Seconds are those for which a turn was waited for: turns that are answered side by side count
    each.
    """
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for turn in turns:
        t = turn if isinstance(turn, Mapping) else vars(turn)
        key = (t["agent"], t["role"], t.get("round", 0))
        new = {
            "agent": key[0],
            "role": key[1],
            "round": key[2],
            "turns": 0,
            "prompt_tokens": 0,
            "tokens": 0,
            "seconds": 0.0,
        }
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
