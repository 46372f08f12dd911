"""A request's discussions, played side by side by the team, within the tokens that it may cost.

Every draw follows from (seed of the run, model, seed of the request, question, number of the
choice): what else is asked at the time changes no text. Leaves out: how requests are written
(`asked`), how long they may take (`app`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from comas.evaluation.asking import Asking
from comas.evaluation.games import cut_off
from comas.game.agent import derive_seed
from comas.game.play import first, play_one
from comas.game.together import together
from comas.serve.limits import TooLong, TooManyTokens
from comas.serve.offered import Model
from comas.types import Episode, HostFailure, NoRoom, Question, Task, Turn

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Wanted:
    """What a request asks of a team."""

    model: Model
    prompts: Sequence[str]
    """Questions; a chat has one."""
    choices: int
    """Answers to each of them."""
    seed: int
    asking: Asking
    """Temperature, top_p and room of every reply."""
    stop: Sequence[str] = ()
    """Texts before which an answer ends."""

    @property
    def discussions(self) -> int:
        """How many are played."""
        return len(self.prompts) * self.choices


@dataclass(frozen=True)
class Answer:
    """What a discussion came to."""

    index: int
    """Of the choice, over all prompts."""
    text: str
    finish: Finish
    """`length`: a reply that had no room is why there is no answer, or no more of it."""
    answered: bool
    """Whether the team gave an answer; otherwise the text is empty, or the beginning of one."""
    turns: Sequence[Turn]


@dataclass
class Usage:
    """Tokens of all turns of a request, those of plays that a machine failed included."""

    prompt_tokens: int = 0
    tokens: int = 0


Play = Callable[..., Awaitable[str | None]]
Told = Callable[[Answer], None]
Heard = Callable[[int, Turn], None]
"""`heard(index of the choice, turn)`: told of each turn when it is complete."""


@dataclass(frozen=True)
class Players:
    """Has models answer: what is the same for all requests."""

    task: Task
    kind: str
    """Of all questions."""
    seed: int
    """The run's."""
    most_tokens: int
    """Of a request."""

    async def play(self, wanted: Wanted, told: Told, heard: Heard | None = None) -> Usage:
        """Play what is wanted, and tell of each answer when it is there.

        Raises HostFailure, UserMistake, or TooManyTokens, and then gives up all of it.
        """
        usage = Usage()
        places = [(prompt, sample) for prompt in wanted.prompts for sample in range(wanted.choices)]

        async def one(index: int, prompt: str, sample: int) -> None:
            def counted(turn: Turn) -> None:
                self._count(usage, turn)
                if heard is not None:
                    heard(index, turn)

            episode = await self._discuss(wanted, prompt, sample, counted)
            told(answer_of(index, episode, wanted.stop))

        try:
            await together(one(index, *place) for index, place in enumerate(places))
        except ExceptionGroup as errors:
            raise first(errors) from errors
        return usage

    def _count(self, usage: Usage, turn: Turn) -> None:
        usage.prompt_tokens += turn.prompt_tokens
        usage.tokens += turn.tokens
        if usage.tokens > self.most_tokens:
            raise TooManyTokens(
                f"the team has generated {usage.tokens} tokens, and a request may cost"
                f" {self.most_tokens} (--tokens): ask for fewer choices, or set max_tokens, the"
                " room of each reply"
            )

    async def _discuss(
        self, wanted: Wanted, prompt: str, sample: int, heard: Callable[[Turn], None]
    ) -> Episode:
        model = wanted.model
        digest = hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()
        question = Question(id=f"asked-{digest}", prompt=prompt, kind=self.kind)
        occasion = f"serve-{wanted.seed}-{model.way.name}"
        able = list(model.players)
        who = able[derive_seed(self.seed, occasion, question.id, sample) % len(able)]
        episode = Episode(f"{occasion}/{who}/{question.id}/{sample}", question)
        scene = wanted.asking.scene(self.task, model.way, model.players[who], self.seed)
        method = replace(scene.method, play=_once(scene.method.play))
        await play_one(replace(scene, method=method, heard=heard), episode)
        if episode.error is not None:
            raise HostFailure(episode.error)
        return episode


def _once(play: Play) -> Play:
    """The same game, in which a prompt without room is the asker's mistake: playing it again, as
    after a failure of a machine, would change nothing.
    """

    @functools.wraps(play)
    async def played(*args: Any, **options: Any) -> str | None:
        try:
            return await play(*args, **options)
        except* NoRoom as errors:
            raise TooLong(str(first(errors))) from None

    return played


def answer_of(index: int, episode: Episode, stop: Sequence[str]) -> Answer:
    """The answer of a discussion that no machine let down.

    Where there is none, its text is the one reply of a game that has no other and was cut, as of
    any model; otherwise nothing.
    """
    turns = episode.turns
    text = episode.answer
    if text is not None:
        is_cut = cut_off(episode)
        finish: Finish = "length" if is_cut else "stop"
        return _stopped(Answer(index, text, finish, not is_cut, turns), stop)
    was_cut = any(not turn.finished for turn in turns)
    text = turns[0].text if len(turns) == 1 and was_cut else ""
    return _stopped(Answer(index, text, "length" if was_cut else "stop", False, turns), stop)


def _stopped(answer: Answer, stop: Sequence[str]) -> Answer:
    """The answer up to the first of these texts that is in it."""
    ends = [place for text in stop if (place := answer.text.find(text)) >= 0]
    if not ends:
        return answer
    return replace(answer, text=answer.text[: min(ends)], finish="stop")
