"""What goes back: completions and the pieces of streams in OpenAI's form.

Besides what that form has, a reply says the `seed` that it was drawn with, each choice whether the
team `answered`, and on demand the `discussion`, its turns. Leaves out: errors (`limits.Refusal`).
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from comas.serve.asked import Request
from comas.serve.playing import Answer, Usage
from comas.storage.records import plain
from comas.types import Turn

TURN = (
    *("id", "agent", "role", "round", "about", "prompt", "text", "thoughts", "finished"),
    *("prompt_tokens", "tokens", "info"),
)
"""What is told of a turn, of its fields."""
_PIECE = re.compile(r"\s*\S+\s*")
"""Of a text that is streamed: a word with the spaces around it."""
DONE = "data: [DONE]\n\n"
WAITING = ": the team is talking\n\n"
"""A comment, so that nobody in between takes a quiet connection for a dead one."""


@dataclass(frozen=True)
class Wording:
    """Words the reply to one request."""

    request: Request
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """A reply that is no stream."""
        in_order = sorted(answers, key=lambda answer: answer.index)
        choices = [self._choice(answer) for answer in in_order]
        return {**self._head(""), "choices": choices, "usage": usage_record(usage)}

    def opening(self) -> str:
        """The first events of a stream: who speaks."""
        if not self.request.chat:
            return ""
        said = {"role": "assistant", "content": ""}
        choices = range(self.request.wanted.discussions)
        return "".join(self._event(self._piece(index, said)) for index in choices)

    def turn(self, index: int, turn: Turn) -> str:
        """The event of a turn, where the discussion is wanted."""
        return self._event({**self._piece(index, ""), "turn": turn_record(turn)})

    def answer(self, answer: Answer) -> str:
        """The events of an answer: its words, and its end."""
        index = answer.index
        pieces = [self._event(self._piece(index, part)) for part in pieces_of(answer.text)]
        end = self._piece(index, "")
        end |= {"finish_reason": answer.finish, "answered": answer.answered}
        return "".join([*pieces, self._event(end)])

    def closing(self, usage: Usage) -> str:
        """The last events of a stream."""
        if not self.request.include_usage:
            return DONE
        last = {**self._head(".chunk"), "choices": [], "usage": usage_record(usage)}
        return event(last) + DONE

    def _head(self, kind: str) -> dict[str, Any]:
        chat = self.request.chat
        wanted = self.request.wanted
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.id}",
            "object": f"chat.completion{kind}" if chat else "text_completion",
            "created": self.created,
            "model": wanted.model.name,
            "seed": wanted.seed,
        }

    def _choice(self, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": answer.index}
        if self.request.chat:
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            choice["message"] = message
        else:
            choice["text"] = answer.text
        choice |= {"logprobs": None, "finish_reason": answer.finish, "answered": answer.answered}
        if self.request.discussion:
            choice["discussion"] = [turn_record(turn) for turn in answer.turns]
        return choice

    def _piece(self, index: int, said: str | dict[str, str]) -> dict[str, Any]:
        """A piece of a choice: a text, or of a chat a delta."""
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
        if not self.request.chat:
            return {**choice, "text": said}
        if isinstance(said, str):
            said = {"content": said} if said else {}
        return {**choice, "delta": said}

    def _event(self, choice: dict[str, Any]) -> str:
        record = {**self._head(".chunk"), "choices": [choice]}
        if self.request.include_usage:
            record["usage"] = None
        return event(record)


def event(record: dict[str, Any]) -> str:
    """One event of a stream."""
    return f"data: {as_json(record)}\n\n"


def as_json(record: Any) -> str:
    """JSON, of facts that a game noted what comes nearest; half a character is no text."""
    return json.dumps(record, ensure_ascii=True, default=plain)


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text into words; joined again they are the text."""
    end = 0
    for piece in _PIECE.finditer(text):
        yield piece[0]
        end = piece.end()
    if end < len(text):
        yield text[end:]


def turn_record(turn: Turn) -> dict[str, Any]:
    """A turn as clients read it."""
    return {name: getattr(turn, name) for name in TURN}


def usage_record(usage: Usage) -> dict[str, int]:
    """The tokens of a whole team."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.tokens,
        "total_tokens": usage.prompt_tokens + usage.tokens,
    }
