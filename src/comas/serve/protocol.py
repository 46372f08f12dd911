"""OpenAI's form: requests as they are read, with what is refused because nobody here can do it, and
replies as they are worded.

Nothing is ignored: a parameter is honoured, or asks for nothing (`OFF`, `NAMES`), or is an error
that names it. A conversation becomes one question, since setups play questions, which are texts:
the question is the last message of the user, and what stands before it (instructions, examples,
earlier questions and answers) goes before it in the same text, so that every agent of a discussion
reads it, its judges too. Besides what the form has, a reply says the `seed` that it was drawn with,
each choice whether the team `answered`, and on demand the `discussion`, its turns. Leaves out:
answering (`playing`), errors (`limits.Refusal`), system roles of chat templates, which are for
personas (`Member`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from comas.config.mistakes import nearest
from comas.game.prompts import defuse
from comas.serve.limits import Refusal
from comas.serve.playing import Answer, Players, Request, Usage
from comas.storage.records import plain
from comas.types import Turn

OFF: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": [0],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
    "parallel_tool_calls": [True],
    "presence_penalty": [0],
    "response_format": [{"type": "text"}],
    "service_tier": ["auto", "default"],
    "tool_choice": ["none", "auto"],
}
"""Parameters that nobody here can honour -> the values that ask for nothing. So do null, false and
what is empty, of all that are named in `UNSUPPORTED`.
"""
UNSUPPORTED = {
    *OFF,
    *("audio", "functions", "logit_bias", "logprobs", "metadata", "prediction"),
    *("reasoning_effort", "store", "tools", "top_logprobs", "verbosity", "web_search_options"),
}
NAMES = ("user", "safety_identifier", "prompt_cache_key")
"""They say who asks, and ask for nothing."""
SEEDS = 2**53
"""Below which a seed is drawn: every client reads such numbers exactly."""
LEAST = 1e-4
"""The least temperature but 0: below it logits overflow."""
LABELS = {
    "system": "An instruction",
    "developer": "An instruction",
    "user": "The user",
    "assistant": "Your answer",
    "tool": "What a tool says",
}
"""Role -> what stands before an earlier message."""
TURN = (
    *("id", "agent", "role", "round", "about", "prompt", "text", "thoughts", "finished"),
    *("prompt_tokens", "tokens", "info"),
)
"""What is told of a turn, of its fields."""
DONE = "data: [DONE]\n\n"
WAITING = ": the team is talking\n\n"
"""A comment, so that nobody in between takes a quiet connection for a dead one."""


# --- requests


def _drawn(temperature: float) -> float:
    if 0 < temperature < LEAST:
        raise ValueError(f"wanted is 0, or at least {LEAST:g}")
    return temperature


Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Function(_Strict):
    name: str
    arguments: str


class _Call(_Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part]
    tool_calls: list[_Call] = Field(default_factory=list[_Call])
    """Of an earlier answer, which another model may have given: told as text."""
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Thoughts of an earlier answer, which nobody reads again, as in templates of chats: they,
    `name` and `tool_call_id` ask for nothing.
    """
    type: Literal["text"] | None = None
    """Some clients write it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, table: Any) -> Any:
        """Leave out what is null or an empty list, as clients send answers back; only answers may
        have no content.
        """
        if not isinstance(table, dict):
            return table
        kept = {key: value for key, value in table.items() if value not in (None, [])}
        return {"content": "", **kept} if table.get("role") == "assistant" else kept

    @property
    def text(self) -> str:
        """The message as text; answers are model text, and defused."""
        content = self.content
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        called = [f"{call.function.name}({call.function.arguments})" for call in self.tool_calls]
        text = "\n".join(filter(None, ("".join(parts), *called)))
        return defuse(text) if self.role == "assistant" else text


def question_text(messages: Sequence[Message]) -> str:
    """The text that agents are asked, of messages of which the last is the user's; one message is
    that message, to the letter.
    """
    *before, last = messages
    opening = 0
    while opening < len(before) and before[opening].role in ("system", "developer"):
        opening += 1
    parts = [message.text for message in before[:opening]]
    if earlier := before[opening:]:
        parts.append("The conversation so far:")
        parts += [f"{LABELS[message.role]}:\n{message.text}" for message in earlier]
        parts.append("The user now asks:")
    return "\n\n".join([*parts, last.text])


class _StreamOptions(_Strict):
    include_usage: bool | None = None


class _Body(_Strict):
    """What a request may say."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    n: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2), AfterValidator(_drawn)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Text | list[Text] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    discussion: bool = False

    @field_validator("messages")
    @classmethod
    def _end_with_the_user(cls, messages: list[Message]) -> list[Message]:
        last = messages[-1]
        if last.role != "user" or not last.text.strip():
            raise ValueError("the last message has to be the user's, with a text: the question")
        return messages


def read_request(data: bytes, players: Players) -> Request:
    """The request that a body is; a Refusal where it is none, or asks for too much."""
    body = _validated(_without_off(_table(data)))
    model = players.models.get(body.model)
    if model is None:
        raise no_model(body.model, players.models)
    most = players.limits.at_once
    if body.n > most:
        many = f"{body.n} answers are wanted, and {most} are the most"
        raise Refusal(400, f"{many} that are played at once (--at-once)", param="n")
    if body.stream_options is not None and not body.stream:
        raise _unsupported("stream_options", "is for streams: set stream=true")
    asking = players.asking
    if body.temperature is not None:
        asking = replace(asking, temperature=body.temperature)
    if body.top_p is not None:
        asking = replace(asking, top_p=body.top_p)
    rooms = [room for room in (body.max_tokens, body.max_completion_tokens) if room is not None]
    if rooms:  # it bounds the room of each role
        most = min(rooms)
        room = {**players.task.max_tokens, **asking.room}
        bounded = {role: min(tokens, most) for role, tokens in room.items()}
        asking = replace(asking, max_tokens=min(asking.max_tokens, most), room=bounded)
    return Request(
        model,
        question_text(body.messages),
        body.n,
        secrets.randbelow(SEEDS) if body.seed is None else body.seed,
        asking,
        [body.stop] if isinstance(body.stop, str) else body.stop or [],
        body.stream,
        body.stream_options is not None and bool(body.stream_options.include_usage),
        body.discussion,
    )


def no_model(name: str, models: Collection[str]) -> Refusal:
    """What to say of a model that there is not."""
    known = f"there is no model {name[:100]!r}: there are {', '.join(models)}"
    return Refusal(404, known, param="model", code="model_not_found")


def _table(data: bytes) -> dict[str, Any]:

    def no_number(name: str) -> float:
        raise ValueError(f"{name} is no number of JSON")

    try:
        found = json.loads(data, parse_constant=no_number)
        # halves of characters, which no model reads
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return found


def _without_off(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without what asks for nothing; a Refusal for what cannot be honoured."""
    known: dict[str, Any] = {}
    for name, value in table.items():
        if value is None or name in NAMES:
            continue
        if name in _Body.model_fields:
            known[name] = value
        elif name not in UNSUPPORTED:
            meant = nearest(name, _Body.model_fields)
            unknown = f"unknown parameter {name[:100]!r}: {meant}"
            raise Refusal(400, unknown, param=name[:100], code="unknown_parameter")
        elif value is not False and value not in ("", [], {}, *OFF.get(name, ())):
            raise _unsupported(name, "is not supported here, and is never ignored: leave it out")
    return known


def _unsupported(name: str, why: str) -> Refusal:
    return Refusal(400, f"{name} {why}", param=name, code="unsupported_parameter")


def _validated(table: Mapping[str, Any]) -> _Body:
    try:
        return _Body.model_validate(table)
    except ValidationError as error:
        # of a value that may have several forms, what is said of the form that it comes closest to
        told = max(error.errors(), key=lambda each: len(each["loc"]))
        param = ""  # `messages[0].content`, without the names of forms
        for part in told["loc"]:
            if isinstance(part, int):
                param += f"[{part}]"
            elif part.isidentifier() and part != "str":
                param += f".{part}" if param else part
        message = told["msg"].removeprefix("Value error, ")
        raise Refusal(400, f"{param}: {message}", param=param, code="invalid_value") from None


# --- replies


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
        speaker = {"role": "assistant", "content": ""}
        return "".join(self._event(index, speaker) for index in range(self.request.choices))

    def turn(self, index: int, turn: Turn) -> str:
        """The event of a turn, where the discussion is wanted."""
        return self._event(index, {}, turn=turn_record(turn))

    def answer(self, answer: Answer) -> str:
        """The events of an answer: its text, which is there as a whole, and its end."""
        said = self._event(answer.index, {"content": answer.text})
        return said + self._event(
            answer.index, {}, finish_reason=answer.finish, answered=answer.answered
        )

    def closing(self, usage: Usage) -> str:
        """The last events of a stream."""
        if not self.request.include_usage:
            return DONE
        last = {**self._head(".chunk"), "choices": [], "usage": usage_record(usage)}
        return event(last) + DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": f"chat.completion{kind}",
            "created": self.created,
            "model": self.request.model.name,
            "seed": self.request.seed,
        }

    def _choice(self, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            "finish_reason": answer.finish,
            "answered": answer.answered,
        }
        if self.request.discussion:
            choice["discussion"] = [turn_record(turn) for turn in answer.turns]
        return choice

    def _event(self, index: int, delta: dict[str, str], **facts: Any) -> str:
        choice = {"index": index, "logprobs": None, "finish_reason": None, "delta": delta, **facts}
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
