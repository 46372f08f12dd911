"""A method's record through a run: it begins or is read, chooses the questions of a step, goes on
after it, and is written into checkpoints.

Leaves out: what it may hold (`game.memory`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from comas.game import memory
from comas.game.agent import derive_seed
from comas.game.play import GameContext
from comas.questions.checked import RunQuestions, order
from comas.storage.run import Run
from comas.team.build import Team
from comas.types import Episode, Question, State, UserMistake

STATE = "state.json"
"""File of a checkpoint with what a method remembers: sealed with the rest."""


class MethodMemory:
    """State that the method of a team remembers while it trains."""

    def __init__(self, team: Team, asked: RunQuestions) -> None:
        self.team = team
        self.questions = asked.train
        self.held_out = {question.prompt for question in (*asked.validation, *asked.test)}
        self.state: State = {}

    def begin(self, run: Run, step: int) -> None:
        """Take up the record after so many steps: that of the checkpoint, or the first."""
        if not self.team.method.remembers:
            return
        if run.marker() is not None:
            path = run.checkpoint_of(step) / STATE
            if not path.is_file():
                raise UserMistake(
                    f"{path} is missing: the run was made by a method without a state; begin anew"
                    " with this one"
                )
            self.state = json.loads(path.read_text(encoding="utf-8"))
        else:
            context = self.team.context(state={})
            self.state = memory.first_state(context, self.questions)

    def draw(self, context: GameContext, step: int) -> list[Question]:
        """The questions of a step: those that the method chooses, or the task's own in passes."""
        config = self.team.config
        count = config.questions or 1
        if self.team.method.memory.draw is None:
            return in_passes(self.questions, config.seed, step, count)
        drawn = memory.draw(context, self.questions, count, step)
        if self.team.task.rules is None:  # games begin alike
            memory.refuse_held_out(step, [question.prompt for question in drawn], self.held_out)
        return drawn

    def check_posed(self, step: int, episodes: Sequence[Episode]) -> None:
        """An error where agents posed a held-out question."""
        memory.refuse_held_out(step, memory.posed_in(episodes), self.held_out)

    def advance(self, context: GameContext, episodes: Sequence[Episode]) -> None:
        """Go on to the record after a step that was settled and learnt from."""
        self.state = memory.next_state(context, episodes)

    def write(self, checkpoint: Path) -> None:
        """Write the record into an open checkpoint."""
        if self.team.method.remembers:
            (checkpoint / STATE).write_text(json.dumps(self.state), encoding="utf-8")


def in_passes(questions: Sequence[Question], seed: int, step: int, count: int) -> list[Question]:
    """The questions of a step: a new order for each pass over them, a function of (seed, step)
    alone.
    """
    n = len(questions)
    drawn: list[int] = []
    for index in range(step * count, (step + 1) * count):
        turn, i = divmod(index, n)
        drawn.append(order(n, derive_seed(seed, "order", turn))[i])
    # a step that spans two passes asks nothing twice
    return [questions[i] for i in dict.fromkeys(drawn)]
