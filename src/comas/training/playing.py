"""Playing the steps of a run: questions are drawn, discussions played beside what monitors ask, and
settled; the next step's, where a run is ahead, while a step is learnt.

Leaves out: when that is (`training.ahead`), how hosts learn (`training.learning`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from comas.game.play import Scene, play_all, settle_all
from comas.storage.run import Run
from comas.team.build import Team
from comas.training.ahead import Ahead
from comas.training.learning import learn
from comas.training.progress import Pulse
from comas.training.remembering import Remembering
from comas.training.watching import Watching
from comas.types import Episode, Learned, Method, State, UserMistake


class Playing:
    """The steps of one run, one after the other; at most one of them is played ahead."""

    def __init__(
        self, team: Team, memory: Remembering, watching: Watching, pulse: Pulse, ahead: Ahead
    ) -> None:
        self.team = team
        self.memory = memory
        self.watching = watching
        self.pulse = pulse
        self.ahead = ahead
        self._following: asyncio.Task[list[Episode]] | None = None
        """The step that is played, or was, while the one before is learnt."""

    def scene(self, state: State) -> Scene:
        """The team at its own game, with what the method remembers in `state`."""
        return self.team.scene(keep=True, heard=self.pulse.heard, state=state)

    async def step(self, step: int, run: Run, first: bool) -> list[Episode]:
        """The episodes of a step, settled: those that were played ahead, where it was. `first`:
        whether it is the first step of this process.
        """
        following = self._following
        if following is not None:
            self._following = None
            return await following
        state = self.memory.state
        if first and run.marker() is not None:
            older = await self.ahead.take_up(run, step)
            state = state if older is None else older
        return await self._play(step, state)

    async def learn(
        self, method: Method, step: int, episodes: Sequence[Episode], followed: bool
    ) -> dict[str, Learned]:
        """Learn from a step; where it is to be `followed`, the next one is played meanwhile."""
        if not self.ahead.on:
            return await learn(self.team, method, step, episodes)
        await self.ahead.begin(self.memory.state)
        if followed:
            self.watching.hold()
            playing = self._play(step + 1, self.memory.state)
            self._following = asyncio.create_task(playing)
        try:
            learned = await learn(self.team, method, step, episodes)
        except BaseException:
            await self.drop()
            raise
        await self._settled()
        if self.ahead.begins_at(step + 1):
            await self.ahead.publish()
        return learned

    def cancel(self) -> None:
        """End what is played ahead, soon."""
        if self._following is not None:
            self._following.cancel()

    async def drop(self) -> None:
        """Forget what was played ahead: nobody is going to learn from it."""
        self.cancel()
        await self._settled()
        following = self._following
        self._following = None
        if following is not None and not following.cancelled():
            following.exception()  # says that somebody has heard of it

    async def _settled(self) -> None:
        """Wait until nothing is played any more; what went wrong is raised by `step`."""
        if self._following is not None:
            await asyncio.wait([self._following])

    async def _play(self, step: int, state: State) -> list[Episode]:
        """Play and settle a step by what the method remembers in `state`."""
        scene = self.scene(state)
        questions = self.memory.draw(scene, step)
        self.pulse.play(step, questions)
        samples = self.team.config.samples or 1
        playing = play_all(scene, questions, step, samples)
        quiet = self.team.scene(keep=False, state=state)
        episodes = await self.watching.beside(playing, quiet, step, len(questions) * samples)
        if all(episode.error for episode in episodes):
            raise UserMistake(
                f"step {step + 1}: every discussion failed; the first: {episodes[0].error}"
            )
        self.memory.check_posed(step, episodes)
        settle_all(scene, episodes, self.memory.options("settle"))
        return episodes
