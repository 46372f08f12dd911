"""A dry run: what would be trained is loaded, plays a few discussions with short replies and learns
from one pass of them; memory, time and disk follow from that. Nothing is written.

Hosts behind an API are not asked: a script stands in for them. Leaves out: measurements of
accuracy, which a run adds to its steps.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comas import memory
from comas.config.plan import ADAPTER_RATE, Plan
from comas.config.schema import Config
from comas.game.agent import derive_seed
from comas.game.play import GameContext, play_all, settle_all
from comas.game.weighing import is_weighing
from comas.machine import peak_bytes
from comas.stats import roughly
from comas.team.build import Team, build_team
from comas.testing.methods import ALONE, compares_nothing
from comas.testing.scripted import stand_ins
from comas.training.learning import learn
from comas.training.remembering import in_passes
from comas.training.start import prepare
from comas.types import Episode, Turn, UserMistake

REPLY = 32
"""Tokens after which a reply is cut; in a second play after a quarter of them, so that prompts and
replies are told apart.
"""
SEVERAL = 4
"""Discussions from which it is seen whether rewards are compared with others."""
PATIENCE = 20.0
"""Seconds of a play above which no larger one follows. It is not less, since a batch of few
discussions costs several times as much for each of them as a full one.
"""

Play = Callable[[int, int], Awaitable[list[Episode]]]
"""Play so many discussions with replies of at most so many tokens."""


@dataclass(frozen=True)
class DryRun:
    """Measurements of a run that was not begun."""

    config: Config
    """Resolved."""
    lines: tuple[str, ...]
    """Learning rate, memory, time and disk, a line each."""
    data: dict[str, Any]
    """Memory, time and disk as JSON."""


async def dry_run(config: Config, note: Callable[[str], None]) -> DryRun:
    """Measure a few discussions and a learning pass of what this config describes; an error for
    what training would refuse.
    """
    ready = prepare(config, note)
    rates = "; ".join(learning_rates(config, ready.plan))
    config = ready.plan.config
    team = build_team(ready.plan, hosts=stand_ins(ready.plan))
    try:
        questions = in_passes(ready.asked.train, config.seed, 0, config.questions or 1)
        discussions = len(questions) * (config.samples or 1)
        context = team.context(keep=True)

        async def play(number: int, tokens: int) -> list[Episode]:
            samples = -(-number // len(questions))
            return await play_all(capped(context, tokens), questions[:number], "dry", samples)

        def room(turn: Turn) -> int:
            return context.room.get(turn.role, config.max_tokens)

        pace = await pace_of(play, discussions, room)
        failed = [episode.error for episode in pace.episodes if episode.error is not None]
        if failed:
            of = f"{len(failed)} of {len(pace.episodes)}"
            note(f"{of} discussions failed, and count as far as they went; the first: {failed[0]}")
        settle_all(context, pace.episodes)
        if _is_alone(context, pace.episodes, config.samples or 1):
            note(ALONE)
        learning_turns = _learning_turns(team, pace.episodes)
        learnt, seconds = await _learnt(team, pace, learning_turns)
        peak = peak_bytes(team.hosts)
    finally:
        team.close()
    per_step = discussions / len(pace.episodes)
    rows = sum(turn.prompt_tokens + pace.tokens_of(turn) for turn in learning_turns) * per_step
    sampling = pace.seconds * discussions
    learning = seconds / max(1, learnt) * rows
    step = sampling + learning
    planned = ready.memory
    estimated = "; ".join(map(planned.compared, planned.memory)) or "no host has weights here"
    checkpoint = planned.checkpoint
    size = "of unknown size" if checkpoint is None else f"{checkpoint / 1e9:.2f} GB"
    out_folder, free = memory.free_disk(config.out)
    speed = f", {pace.speed:,.0f} tokens/s measured now" if pace.speed else ""
    lines = (
        f"lr:     {rates}",
        f"memory: {peak / 1e9:.1f} GB at the peak, measured with {len(pace.episodes)} discussions"
        f" and {learnt:,} tokens to learn from; {estimated}",
        f"time:   about {roughly(step)} per step (sampling {sampling / step:.0%}, learning"
        f" {learning / step:.0%}, replies of {pace.reply:.0f} tokens{speed}),"
        f" {roughly(step * config.steps)} for {config.steps} steps, measuring not counted",
        f"disk:   {size} per checkpoint, at most {memory.KEPT_CHECKPOINTS} at once in"
        f" {out_folder}, {free / 1e9:.1f} GB free",
    )
    data = {
        "config": config.model_dump(mode="json"),
        "memory": {"peak": peak, "estimated": estimated},
        "disk": {"checkpoint": checkpoint, "free": free},
        "seconds": {"sampling": sampling, "learning": learning},
        "step_tokens": pace.tokens * discussions,
    }
    return DryRun(config, lines, data)


def learning_rates(config: Config, plan: Plan) -> Iterator[str]:
    """Say each learning rate of a plan, and where this config has it from."""
    preset = plan.method.presets.get(plan.config.preset or "", {})
    hosts_of: dict[str, list[str]] = {}
    for name in dict.fromkeys(policy.host for policy in plan.policies if policy.learns):
        if all(policy.lr for policy in plan.at(name) if policy.learns):
            continue
        host = plan.config.hosts[name]
        tiny = all(policy.source.tiny for policy in plan.at(name))
        if name in config.hosts and config.hosts[name].lr is not None:
            source = f"set by hosts.{name}.lr"
        elif config.lr is not None:
            source = "set by lr"
        elif "lr" in preset:
            source = f"preset {plan.config.preset}"
        elif tiny:
            source = "recipe of the tiny models"
        else:
            times = f", {ADAPTER_RATE:g} times for adapters" if host.learner == "adapters" else ""
            source = f"recipe of task {plan.task.name}{times}"
        rate = host.lr or plan.config.lr
        hosts_of.setdefault(f"{rate:g} ({source})", []).append(name)
    for rate_text, names in hosts_of.items():
        yield rate_text if len(hosts_of) == 1 else f"{rate_text} at {', '.join(names)}"
    own = {policy.name: policy.lr for policy in plan.policies if policy.learns and policy.lr}
    for policy, rate in own.items():
        yield f"{rate:g} for {policy} (set by its agent)"
    if not hosts_of and not own:
        yield "none: nobody learns"


def _is_alone(context: GameContext, episodes: Sequence[Episode], samples: int) -> bool:
    """Whether each settled turn that is rewarded is alone in its group, so that nobody would learn;
    False where too few discussions were played to tell.
    """
    asked = {episode.question.id for episode in episodes}
    if len(episodes) < max(SEVERAL, samples * len(asked)):
        return False
    turns = [turn for episode in episodes for turn in episode.turns]
    grouped = [turn for turn in turns if turn.reward is not None or turn.group is not None]
    return compares_nothing(context.method, grouped)


def _learning_turns(team: Team, episodes: Sequence[Episode]) -> list[Turn]:
    """The settled turns whose rows may be learnt from, by a host with weights here; weighings only
    where the method rewards them.
    """
    return [
        turn
        for episode in episodes
        for turn in episode.turns
        if (not team.method.rewarded or turn.role in team.method.rewarded)
        and team.config.hosts[turn.policy.partition("/")[0]].here
        and not team.config.agents[turn.agent].frozen
        and (turn.reward is not None or not is_weighing(turn))
    ]


async def _learnt(team: Team, pace: Pace, turns: Sequence[Turn]) -> tuple[int, float]:
    """Learn from as many of these turns as fill a pass of each host, with rewards of both kinds;
    tokens, and seconds.
    """
    for episode in pace.episodes:
        for turn in episode.turns:
            turn.reward = None
    tokens: dict[str, int] = {}
    for turn in turns:
        host = turn.policy.partition("/")[0]
        full = team.config.hosts[host].tokens_per_pass or 0
        if tokens.get(host, 0) < full:
            turn.reward = float(derive_seed(0, turn.id) % 2)
            turn.group = "dry"
            tokens[host] = tokens.get(host, 0) + turn.prompt_tokens + turn.tokens
    began = time.monotonic()
    await learn(team, 1.0, 0, pace.episodes)
    return sum(tokens.values()), time.monotonic() - began


# --- how long discussions take


@dataclass(frozen=True)
class Pace:
    """Time and length of discussions that are played side by side."""

    episodes: Sequence[Episode]
    """The episodes that were played last, with cut replies."""
    seconds: float
    """Seconds of one discussion, with replies as long as they are going to be."""
    lengths: Mapping[str, float]
    """Role -> tokens of such a reply."""
    speed: float | None = None
    """Generated tokens per second beyond the first few of each reply; None where that could not be
    told.
    """

    @property
    def turns(self) -> list[Turn]:
        """The turns of all these discussions."""
        return [turn for episode in self.episodes for turn in episode.turns]

    def tokens_of(self, turn: Turn) -> float:
        """Tokens of a reply that was cut, as long as it is going to be; a weighing has its own."""
        return turn.tokens if is_weighing(turn) else self.lengths[turn.role]

    @property
    def tokens(self) -> float:
        """Tokens of one discussion, with such replies."""
        return math.fsum(map(self.tokens_of, self.turns)) / len(self.episodes)

    @property
    def reply(self) -> float:
        """Mean tokens of a reply; of those that are drawn, where any is."""
        drawn = [turn for turn in self.turns if not is_weighing(turn)] or self.turns
        return statistics.fmean(map(self.tokens_of, drawn))


def capped(context: GameContext, tokens: int) -> GameContext:
    """Limit the replies of a context to so many tokens."""
    room = {role: min(most, tokens) for role, most in context.room.items()}
    members = [
        replace(m, sampling=replace(m.sampling, max_tokens=min(m.sampling.max_tokens, tokens)))
        for m in context.members
    ]
    return replace(context, members=members, max_tokens=room)


async def pace_of(play: Play, most: int, room: Callable[[Turn], int]) -> Pace:
    """Play one discussion, then four times as many while that is quick, at most `most`; `room` is
    the tokens that a reply may have in fact.
    """
    count = 1
    while True:
        began = time.monotonic()
        short = await play(count, REPLY // 4)
        between = time.monotonic()
        episodes = await play(count, REPLY)
        ended = time.monotonic()
        if count >= most or ended - began > PATIENCE:
            break
        count = min(most, 4 * count)
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns or all(episode.error is not None for episode in episodes):
        first = episodes[0].error or "nobody was asked anything"
        raise UserMistake(f"every discussion failed; the first: {first}")  # as the first step says
    generated = sum(turn.tokens for turn in turns)
    more = generated - sum(turn.tokens for episode in short for turn in episode.turns)
    seconds = ended - between
    token = max(0.0, seconds - (between - began)) / more if more > 0 else 0.0
    pace = Pace(
        episodes, seconds / len(episodes), _lengths(turns, room), 1 / token if token else None
    )
    longer = max(0.0, pace.tokens - generated / len(episodes))
    return replace(pace, seconds=pace.seconds + token * longer)


def _lengths(turns: Sequence[Turn], room: Callable[[Turn], int]) -> dict[str, float]:
    """Role -> expected tokens of a reply that is drawn, of replies that may be cut anywhere: those
    of all over those that have ended, at most as many as it may have.
    """
    generated: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    most: dict[str, int] = {}
    for turn in turns:
        if not is_weighing(turn):  # which is whole, and says nothing of the length of replies
            generated[turn.role] += turn.tokens
            finished[turn.role] += turn.finished
            most[turn.role] = room(turn)
    return {
        role: min(most[role], generated[role] / finished[role] if finished[role] else math.inf)
        for role in most
    }
