"""Policies that start from the same weights are the same model until they have learnt: before
training one of them is measured.

New adapters change nothing (one of their two factors is zero), and copies of one base are copies.
Seed models that are trained whole are measured each by itself, as ever: they answer in seconds, and
the embedded run is to give the same bits. Leaves out: weights that are equal by other ways; nobody
compares numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from comas.config.resolve import seeds_only
from comas.config.schema import Config
from comas.evaluation.accuracy import Answer
from comas.game.agent import Member


def measured_for(
    config: Config, sources: Mapping[str, str], members: Sequence[Member]
) -> dict[str, str]:
    """Agent -> the agent that is measured in its place before training: often itself.

    `sources` is host/policy -> the folder or name that the policy's weights come from. Agents are
    equal whose policies are at the same host, come from the same source and have as much room for a
    reply.
    """
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for member in members:
        source = sources.get(member.address)
        whole_seeds = config.hosts[member.host.name].learner == "full" and seeds_only(
            config, member.host.name
        )
        apart = source is None or whole_seeds
        key = (member.name,) if apart else (member.host.name, source, member.sampling.max_tokens)
        found[member.name] = first.setdefault(key, member.name)
    return found


def copied(answers: Sequence[Answer], measured: Mapping[str, str]) -> list[Answer]:
    """The answers of those that were measured, and the same again under the names
    of their equals.
    """
    given: dict[str, list[Answer]] = {}
    for answer in answers:
        given.setdefault(answer.agent, []).append(answer)
    return [
        replace(answer, agent=agent)
        for agent, asked in measured.items()
        for answer in given.get(asked, [])
    ]
