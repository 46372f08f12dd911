"""Recorded discussions, played and settled again without a model.

Leaves out: what a run's folder looks like (storage).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.plan import plan
from comas.config.plugins import filled, load_plugin, split_options
from comas.config.schema import Config, read
from comas.game import memory
from comas.game.play import GameContext, play_all, settle_all
from comas.questions.checked import of_run
from comas.storage.records import episode_of, without_truth
from comas.storage.run import Run
from comas.team.build import members_of, run_sync
from comas.testing.scripted import Scripted
from comas.types import Ask, Episode, Fit, Reply, Sampling, State, UserMistake


class Recorded(Scripted):
    """A host that repeats the replies of recorded episodes; anything else that it is asked is an
    error.
    """

    def __init__(self, episodes: Sequence[Episode], name: str = "home") -> None:
        super().__init__({}, name)
        self.turns = {t.id: t for e in episodes for t in e.turns if t.policy.startswith(f"{name}/")}
        self.prompts = {t.prompt for t in self.turns.values()}

    async def fits(
        self, policy: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> Fit:
        """Say that a prompt fits if it was recorded."""
        return Fit(messages[-1]["content"] in self.prompts)

    async def ask(self, ask: Ask) -> Reply:
        """The recorded reply to this very prompt."""
        turn = self.turns.get(ask.turn)
        if turn is None or turn.prompt != ask.messages[-1]["content"]:
            raise UserMistake(
                f"turn {ask.turn}: no reply to this prompt was recorded; the game, its wording or"
                " the team has changed"
            )
        if ask.keep:
            self.buffer.setdefault(ask.policy, set()).add(ask.turn)
        return Reply(
            turn.text,
            turn.finished,
            turn.version,
            turn.prompt_tokens,
            turn.tokens,
            turn.logprob,
            turn.seconds,
            turn.margin,
            turn.thoughts,
        )

    async def weigh(self, ask: Ask, choices: Sequence[str]) -> Reply:
        """The recorded log-probs of these very choices."""
        reply = await self.ask(ask)
        info = self.turns[ask.turn].info
        if info.get("choices") != list(choices):
            raise UserMistake(
                f"turn {ask.turn}: these choices were not weighed; the game has changed"
            )
        return dataclasses.replace(reply, weights=tuple(info["weights"]))

    async def tell(self, ask: Ask, text: str) -> Reply:
        """The words that were given, if they were given then as well."""
        recorded = self.turns.get(ask.turn)
        if recorded is None or recorded.text != text:
            raise UserMistake(f"turn {ask.turn}: other words were given in the recorded run")
        return await self.ask(ask)


def replay(
    run: str | Path, step: int, *, method: str | None = None, **options: Any
) -> list[Episode]:
    """Play a step of a recorded run again without a model, and settle it.

    The game is the run's own, held to what was recorded; `method` and `options` change the
    settlement: how would the same discussions have been rewarded under another rule? Episodes that
    machines failed are left out. Raises UserMistake where the run has no such step, and where the
    other rule needs what this game does not note.
    """
    record = Run.open(run)
    planned = plan(read(record.path / "config.toml"))
    config = planned.config
    game = planned.method
    task = planned.task
    recorded = _finished(record, step)
    hosts = {name: Recorded(recorded, name) for name in config.hosts}
    members = members_of(planned, hosts)
    context = GameContext(game, task, members, config.seed, config.options, keep=True)
    context = dataclasses.replace(context, state=_remembered(record, config, context, step))
    questions = {episode.question.id: episode.question for episode in recorded}
    again = run_sync(play_all(context, list(questions.values()), step, config.samples or 1))
    by_id = {episode.id: episode for episode in again}
    played = [by_id[episode.id] for episode in recorded]
    rule = load_plugin("method", method) if method else game
    own_options = {} if method else split_options(config.options, rule.settle)
    settings = filled("options", {**own_options, **options}, rule.settle)
    try:
        settle_all(dataclasses.replace(context, method=rule, options=settings), played)
    except KeyError as error:
        if method is None:
            raise
        raise UserMistake(
            f"method {method} needs {error}, which the game of method {config.method} does not"
            " note: settle with a rule that knows its roles and notes"
        ) from error
    return played


def _finished(record: Run, step: int) -> list[Episode]:
    """The recorded episodes of a step that no machine failed."""
    steps = sum(1 for _ in record.metrics())
    if step not in range(steps):
        raise UserMistake(f"run {record.path} has no step {step}: it has {steps}, from 0")
    episodes = map(episode_of, record.episodes(step))
    return [without_truth(episode) for episode in episodes if episode.error is None]


def _remembered(record: Run, config: Config, context: GameContext, step: int) -> State:
    """Return what the run's method remembered when a step was played: made again from the steps
    before it.
    """
    if not context.method.remembers:
        return {}
    questions = of_run(config, context.task, lambda _: None)
    state = memory.first_state(context, questions.train)
    for earlier in range(step):
        before = dataclasses.replace(context, state=state)
        state = memory.next_state(before, _finished(record, earlier))
    return state
