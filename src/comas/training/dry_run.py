"""A dry run: what would be trained is loaded, plays a few discussions with short replies and learns
from one pass of them; memory, time and disk follow from that. Nothing is written.

Hosts behind an API are not asked: a script stands in for them. Leaves out: measurements of
accuracy, which a run adds to its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from comas import estimate
from comas.config.resolve import resolve
from comas.config.schema import Config
from comas.game.agent import derive_seed
from comas.game.play import play_all
from comas.machine import peak_bytes
from comas.team.build import Team, build_team
from comas.team.pace import Pace, capped, pace_of, spoken
from comas.testing.scripted import stand_ins
from comas.training.learning import learn
from comas.training.remembering import in_passes
from comas.training.start import checked_questions
from comas.types import Episode, Turn


@dataclass(frozen=True)
class DryRun:
    """What was measured of a run that was not begun."""

    config: Config
    """Resolved."""
    lines: tuple[str, ...]
    """Memory, time and disk, a line each."""
    data: dict[str, Any]
    """The same as JSON."""


async def dry_run(config: Config, note: Callable[[str], None]) -> DryRun:
    """Measure a few discussions and a learning pass of what this config describes; an error for
    what training would refuse.
    """
    resolved = resolve(config)
    asked = checked_questions(resolved, note)
    resolved, found = estimate.fitted(resolved, note)
    config = resolved.config
    team = build_team(resolved, hosts=stand_ins(resolved))
    try:
        questions = in_passes(asked.train, config.seed, 0, config.questions or 1)
        discussions = len(questions) * (config.samples or 1)
        scene = team.scene(keep=True)

        async def play(number: int, tokens: int) -> list[Episode]:
            samples = -(-number // len(questions))
            return await play_all(capped(scene, tokens), questions[:number], "dry", samples)

        def room(turn: Turn) -> int:
            return scene.room.get(turn.role, config.max_tokens)

        pace = await pace_of(play, discussions, room)
        learnt, seconds = await _learnt(team, pace)
        peak = peak_bytes(team.hosts)
    finally:
        team.close()
    here = [turn for episode in pace.episodes for turn in episode.turns if _learns(team, turn)]
    per_step = discussions / len(pace.episodes)
    rows = sum(turn.prompt_tokens + min(room(turn), pace.reply) for turn in here) * per_step
    sampling = pace.seconds * discussions
    learning = seconds / max(1, learnt) * rows
    step = sampling + learning
    estimated = "; ".join(map(found.compared, found.memory)) or "no host has weights here"
    checkpoint = estimate.checkpoint_bytes(resolved)
    size = "of unknown size" if checkpoint is None else f"{checkpoint / 1e9:.2f} GB"
    place, free = estimate.free_disk(config.out)
    lines = (
        f"memory: {peak / 1e9:.1f} GB at the peak, measured with {len(pace.episodes)} discussions"
        f" and {learnt:,} tokens to learn from; {estimated}",
        f"time:   about {spoken(step)} per step (sampling {sampling / step:.0%}, learning"
        f" {learning / step:.0%}, replies of {pace.reply:.0f} tokens),"
        f" {spoken(step * config.steps)} for {config.steps} steps, measuring not counted",
        f"disk:   {size} per checkpoint, at most {estimate.KEPT_CHECKPOINTS} at once in {place},"
        f" {free / 1e9:.1f} GB free",
    )
    data = {
        "config": config.model_dump(mode="json"),
        "memory": {"peak": peak, "estimated": estimated},
        "disk": {"checkpoint": checkpoint, "free": free},
        "seconds": {"sampling": sampling, "learning": learning},
    }
    return DryRun(config, lines, data)


def _learns(team: Team, turn: Turn) -> bool:
    """Whether a turn's row may be learnt from, by a host with weights here."""
    paid = not team.method.paid or turn.role in team.method.paid
    host = team.config.hosts[turn.policy.partition("/")[0]]
    return paid and host.here and not team.config.agents[turn.agent].frozen


async def _learnt(team: Team, pace: Pace) -> tuple[int, float]:
    """Learn from as many turns as fill a pass of each host, with rewards of both kinds; tokens, and
    seconds.
    """
    tokens: dict[str, int] = {}
    for episode in pace.episodes:
        for turn in episode.turns:
            host = turn.policy.partition("/")[0]
            full = team.config.hosts[host].tokens_per_pass or 0
            turn.reward = None
            if _learns(team, turn) and tokens.get(host, 0) < full:
                turn.reward = float(derive_seed(0, turn.id) % 2)
                turn.group = "dry"
                tokens[host] = tokens.get(host, 0) + turn.prompt_tokens + turn.tokens
    began = time.monotonic()
    await learn(team, team.method, 0, pace.episodes)
    return sum(tokens.values()), time.monotonic() - began
