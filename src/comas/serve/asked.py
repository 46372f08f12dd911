"""Requests in OpenAI's form: what is asked for, and what is refused because nobody here can do it.

Nothing is ignored: a parameter is honoured, or asks for nothing (`NEUTRAL`, `NAMES`), or is an
error that names it. Leaves out: answering (`playing`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from comas.config.mistakes import nearest
from comas.evaluation.asking import Asking
from comas.serve.conversation import Message, Role, question_text
from comas.serve.limits import Limits, Refusal
from comas.serve.offered import Model
from comas.serve.playing import Wanted
from comas.types import Task

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0, 0.0),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Parameters that nobody here can honour -> the values that ask for nothing; null always does."""
NAMES = ("user", "safety_identifier", "prompt_cache_key")
"""They say who asks, and ask for nothing."""
SEEDS = 2**53
"""Below which a seed is drawn: every client reads such numbers exactly."""

Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Message(_Strict):
    role: Role
    content: str | list[_Part]
    type: Literal["text"] | None = None
    """Some clients write it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, table: Any) -> Any:
        """Leave out what is null or an empty list, as clients send answers back."""
        if not isinstance(table, dict):
            return table
        return {key: value for key, value in table.items() if value not in (None, [])}

    def read(self) -> Message:
        """The message as text."""
        content = self.content
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        return Message(self.role, "".join(parts))


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _Body(_Strict):
    """What both kinds of requests may say."""

    model: str
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Text | list[Text] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    discussion: bool | None = None

    def prompts(self) -> list[str]:
        """The questions."""
        raise NotImplementedError

    def room(self) -> int | None:
        """Tokens that a reply may have."""
        return self.max_tokens


class _Chat(_Body):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @field_validator("messages")
    @classmethod
    def _end_with_the_user(cls, messages: list[_Message]) -> list[_Message]:
        last = messages[-1]
        if last.role != "user" or not last.read().text.strip():
            raise ValueError("the last message has to be the user's, with a text: the question")
        return messages

    def prompts(self) -> list[str]:
        return [question_text([message.read() for message in self.messages])]

    def room(self) -> int | None:
        rooms = [room for room in (self.max_tokens, self.max_completion_tokens) if room is not None]
        return min(rooms, default=None)


class _Completion(_Body):
    prompt: Text | Annotated[list[Text], Field(min_length=1)]

    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


BodyT = TypeVar("BodyT", bound=_Body)


@dataclass(frozen=True)
class Request:
    """A request that was understood."""

    wanted: Wanted
    chat: bool
    """Whether it is one of chat completions."""
    stream: bool
    include_usage: bool
    """Whether a stream ends with the usage."""
    discussion: bool
    """Whether turns are told as well."""


@dataclass(frozen=True)
class Desk:
    """Reads requests for the models of a team."""

    models: Mapping[str, Model]
    task: Task
    asking: Asking
    """How the team is asked, as far as a request does not say."""
    limits: Limits

    def read(self, data: bytes, chat: bool) -> Request:
        """The request that a body is; a Refusal where it is none, or asks for too much."""
        table = _table(data)
        kind = _Chat if chat else _Completion
        body = _validated(kind, _without_neutral(table, kind))
        model = self.models.get(body.model)
        if model is None:
            raise no_model(body.model, self.models)
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        seed = secrets.randbelow(SEEDS) if body.seed is None else body.seed
        wanted = Wanted(model, body.prompts(), body.n or 1, seed, self._asking(body), stop)
        if wanted.discussions > self.limits.at_once:
            many = (
                f"{wanted.discussions} answers are wanted, and {self.limits.at_once} are the most"
            )
            raise Refusal(400, f"{many} that are played at once (--at-once)", param="n")
        stream = bool(body.stream)
        options = body.stream_options
        if options is not None and not stream:
            raise _unsupported("stream_options", "is for streams: set stream=true")
        include_usage = options is not None and bool(options.include_usage)
        return Request(wanted, chat, stream, include_usage, bool(body.discussion))

    def _asking(self, body: _Body) -> Asking:
        """How all replies of a request are drawn; `max_tokens` bounds the room of each role."""
        asking = self.asking
        if body.temperature is not None:
            asking = replace(asking, temperature=body.temperature)
        if body.top_p is not None:
            asking = replace(asking, top_p=body.top_p)
        most = body.room()
        if most is None:
            return asking
        room = {**self.task.max_tokens, **asking.room}
        bounded = {role: min(tokens, most) for role, tokens in room.items()}
        return replace(asking, max_tokens=min(asking.max_tokens, most), room=bounded)


def no_model(name: str, models: Collection[str]) -> Refusal:
    """What to say of a model that there is not."""
    known = f"there is no model {name[:100]!r}: there are {', '.join(models)}"
    return Refusal(404, known, param="model", code="model_not_found")


def _table(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data, parse_constant=_no_number)
        # halves of characters, which no model reads
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _without_neutral(table: Mapping[str, Any], kind: type[_Body]) -> dict[str, Any]:
    """The table without what asks for nothing; a Refusal for what cannot be honoured."""
    known: dict[str, Any] = {}
    for name, value in table.items():
        if value is None:
            continue
        if name in kind.model_fields:
            known[name] = value
        elif name in NEUTRAL:
            if not any(type(value) is type(v) and value == v for v in NEUTRAL[name]):
                raise _unsupported(
                    name, "is not supported here, and is never ignored: leave it out"
                )
        elif name not in NAMES:
            meant = nearest(name, kind.model_fields)
            unknown = f"unknown parameter {name[:100]!r}: {meant}"
            raise Refusal(400, unknown, param=name[:100], code="unknown_parameter")
    return known


def _unsupported(name: str, why: str) -> Refusal:
    return Refusal(400, f"{name} {why}", param=name, code="unsupported_parameter")


def _validated(kind: type[BodyT], table: Mapping[str, Any]) -> BodyT:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        # of a value that may have several forms, what is said of the form that it comes closest to
        told = max(error.errors(), key=lambda each: len(each["loc"]))
        param = _param(told["loc"])
        message = told["msg"].removeprefix("Value error, ")
        raise Refusal(400, f"{param}: {message}", param=param, code="invalid_value") from None


def _param(path: tuple[int | str, ...]) -> str:
    """`messages[0].content` of the path to a value, from which names of forms are left out."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part != "str":
            name += f".{part}" if name else part
    return name
