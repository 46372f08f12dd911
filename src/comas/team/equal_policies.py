"""Whose accuracy a run measures. Policies that start from the same weights are the same model until
they have learnt: before training one of them is measured.

New adapters change nothing (one of their two factors is zero), and copies of one base are copies.
Seed models that are trained whole are measured each by itself, as ever: they answer in seconds, and
the embedded run is to give the same bits. Leaves out: weights that are equal by other ways; nobody
compares numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comas.config.policies import Resolved
from comas.game.agent import Member


def measurable(learning: Sequence[Member]) -> list[Member]:
    """Of these members those who solve, or all of them where nobody does: whose accuracy is
    measured. What the others would answer alone is no part of the game, and costs.
    """
    solving = [member for member in learning if member.solves]
    return solving or list(learning)


def measured_for(
    resolved: Resolved, sources: Mapping[str, str], members: Sequence[Member]
) -> dict[str, str]:
    """Agent -> the agent that is measured in its place before training: often itself.

    `sources` is host/policy -> the folder or name that the policy's weights come from. Agents are
    equal whose policies are at the same host, come from the same source, have as much room for a
    reply and the same persona.
    """
    first: dict[tuple[object, ...], str] = {}
    measured: dict[str, str] = {}
    for member in members:
        host = member.host.name
        source = sources.get(member.address)
        whole = resolved.config.hosts[host].learner == "full"
        whole_seeds = whole and all(plan.source.seeded for plan in resolved.at(host))
        if source is None or whole_seeds:
            key: tuple[object, ...] = (member.name,)
        else:
            key = (host, source, member.sampling.max_tokens, member.system)
        measured[member.name] = first.setdefault(key, member.name)
    return measured
