"""Playing a step while the one before is learnt (`ahead = 1`): when that is, with which weights,
and what a checkpoint needs to go on in the middle of it.

Step k + 1 is played by weights that have learnt the steps before k, while k is learnt. After steps
that end with a regular checkpoint or a measurement nothing is in flight, and the next step is
played by weights that have learnt all. So which weights say what is a function of the config.
Leaves out: the loop itself (`training.loop`), what hosts do (`hosts.ahead`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from comas.config.ahead import begins_at
from comas.storage.run import Run
from comas.team.build import Team
from comas.training.learning import at_host
from comas.types import Episode, PlaysAhead, State, UserMistake

NAME = "ahead.json"


class Ahead:
    """What of a run is played ahead; nothing where the config does not ask for it."""

    def __init__(self, team: Team, measures: bool) -> None:
        """`measures`: whether there are questions for measurements on the way."""
        self.team = team
        self.config = team.config
        self.measures = measures
        self.state: State = {}
        """What the method remembered when the step ahead began."""
        self.served_older = False
        """Whether hosts answer from older weights than those that they have learnt."""
        for name, host in self._learning() if self.on else ():
            if not isinstance(host, PlaysAhead):
                raise UserMistake(
                    f"ahead=1: host {name} cannot be asked while it learns (it has no `publish`):"
                    " set ahead=0"
                )

    @property
    def on(self) -> bool:
        """Whether anything is played ahead at all."""
        return self.config.ahead > 0

    def begins_at(self, step: int) -> bool:
        """Whether this step is played by weights that have learnt all before it."""
        return begins_at(self.config, self.measures, step)

    def affords(self, step: int, tokens: int, episodes: Sequence[Episode]) -> bool:
        """Whether this step is to be played while `episodes`, those of the step before, are learnt;
        `tokens` are those of all earlier steps.
        """
        if self.begins_at(step) or step >= self.config.steps:
            return False
        spent = tokens + sum(turn.tokens for episode in episodes for turn in episode.turns)
        return self.config.tokens is None or spent < self.config.tokens

    async def begin(self, state: State) -> None:
        """Close a step that was played, and go on with what is known when it is learnt: `state` is
        what the method remembers now.
        """
        await self.publish()
        self.state = state
        self.served_older = True

    async def publish(self) -> None:
        """Have hosts close the step and answer from all that they have learnt."""
        for name, host in self._learning() if self.on else ():
            assert isinstance(host, PlaysAhead)
            await at_host(name, "publishing", host.publish())
        self.served_older = False

    async def write(self, step: int, checkpoint: Path) -> None:
        """Write into an open checkpoint what the next step is to be played with, where that is
        older than what the checkpoint holds.
        """
        if not self.served_older or self.begins_at(step):
            return
        for name, host in self._learning():
            assert isinstance(host, PlaysAhead)
            await at_host(name, f"saving step {step}", host.save_served(checkpoint))
        (checkpoint / NAME).write_text(json.dumps(self.state), encoding="utf-8")

    async def take_up(self, run: Run, step: int) -> State | None:
        """What the method remembered for this step, where the checkpoint before it was written in
        the middle; hosts answer from the weights that they had then.
        """
        checkpoint = run.path / "checkpoints" / f"step-{step}"
        path = checkpoint / NAME
        if not self.on or not path.is_file():
            return None
        for name, host in self._learning():
            assert isinstance(host, PlaysAhead)
            await at_host(name, f"loading step {step}", host.load_served(checkpoint))
        return json.loads(path.read_text(encoding="utf-8"))

    def _learning(self) -> Iterator[tuple[str, object]]:
        """Names and hosts of those that learn."""
        for name, host in self.team.hosts.items():
            if host.learns:
                yield name, host
