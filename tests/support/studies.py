"""Studies as tests run them: a small file, and a place that runs commands in this process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from comas.config.schema import read
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.training.start import resume_async, train_async
from comas.types import UserMistake

SMALL = """
says = "Two by two"
seeds = [1, 2]
steps = 2
out = "{out}"

[config]
agents = 2
questions = 4
test_questions = 8
eval_every = 1
eval_questions = 4

[settings.labels]
method = "rlvr"

[settings.untrained]
train = false

[measures.vote]
setup = "vote:votes=3"
games = 4

[measures.precision]
metric = "pay.precision"

[[claims]]
says = "labels teach"
left = "labels"
right = "untrained"

[[claims]]
says = "votes are above nothing"
left = "labels"
right = 0
measure = "vote"
"""


def small(folder: Path, name: str = "small", text: str = SMALL) -> Path:
    """A study file, whose out folder lies beside it."""
    file = folder / f"{name}.toml"
    file.write_text(text.format(out=folder / name))
    return file


class InProcess:
    """Runs commands here, one after the other; `dies_at` are the numbers of those that are
    interrupted in the place of running, `breaks` words of commands that fail; one that is `idle`
    does nothing, and says that all went well.
    """

    def __init__(
        self, dies_at: Sequence[int] = (), breaks: Sequence[str] = (), idle: bool = False
    ) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.stopped = False
        """Whether a command was asked to end."""
        self._dies_at = dies_at
        self._breaks = breaks
        self._idle = idle

    async def run(self, arguments: Sequence[str], log: Path, threads: int | None) -> int:
        assert threads == 1
        if "--dry-run" in arguments:
            log.write_text(
                'note: x\n{"seconds": {"sampling": 2.0, "learning": 1.0}, "step_tokens": 400}\n'
            )
            return 2 if self._idle else 0
        self.commands.append(tuple(arguments))
        if len(self.commands) in self._dies_at:
            signal.raise_signal(signal.SIGINT)
            try:
                await asyncio.sleep(30)
            finally:
                self.stopped = True
        if self._idle:
            return 0
        try:
            if any(word in " ".join(arguments) for word in self._breaks):
                raise UserMistake("no such luck | <today>")
            await _command(arguments)
        except UserMistake as error:
            with log.open("a") as file:
                file.write(f"note: something\nerror: {error}\n")
            return 2
        return 0


async def _command(arguments: Sequence[str]) -> None:
    verb, place, *rest = arguments
    if verb == "train":
        await train_async(read(place))
    elif verb == "resume" and (Path(place) / "evaluation.json").is_file():
        await EvaluationRun.open(place).go()
    elif verb == "resume":
        await resume_async(place)
    else:
        options = dict(zip(rest[::2], rest[1::2], strict=True))
        setups = [options["--setups"]]
        limit = int(options["--limit"])
        plan = EvaluationPlan([place], (), setups, limit, int(options["--seed"]))
        await EvaluationRun.create(plan, options["--out"]).go()
