"""OpenAI's form: requests as they are read, with what is refused because nobody here can do it, and
replies and refusals as they are worded.

Nothing is ignored that asks for something: a parameter is honoured, asks for nothing (`NOTHING`,
`NAMES`, `SWITCHED`), or is an error that names it. A conversation becomes one question, since
setups play questions, which are texts: the question is the last message of the user, and what
stands before it (instructions, examples, earlier questions and answers) goes before it in the same
text, so that every agent of a discussion reads it, its judges too. Besides what the form has, a
reply says the `seed` that it was drawn with, each choice whether the team `answered`, and on demand
the `discussion`, its turns.

Leaves out: answering (`playing`), HTTP (`endpoint`), system roles of chat templates, which are for
personas (`TeamMember`).
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
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

from comas.game.play import room_of
from comas.game.prompts import clean
from comas.hosts.ledger import BudgetSpent
from comas.serve.playing import Players, ServedAnswer, TeamRequest, TooLong
from comas.storage.records import strict
from comas.types import HostFailure, HostLost, Turn, UserMistake

NOTHING: Sequence[Any] = (None, False, "", [], {}, "auto", "none", "default", {"type": "text"})
"""Values with which a parameter that nobody here can honour asks for nothing."""
NEUTRAL: Mapping[str, Any] = {
    "top_k": -1,
    "top_n_sigma": -1,
    **dict.fromkeys(("repetition_penalty", "repeat_penalty", "length_penalty", "typical_p"), 1),
    **dict.fromkeys(("typical", "tfs", "tfs_z", "best_of", "num_beams"), 1),
    **dict.fromkeys(("encoder_repetition_penalty", "rep_pen"), 1),
    "modalities": ["text"],
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), True),
    **dict.fromkeys(("add_generation_prompt", "cache_prompt"), True),
}
"""Parameters of samplers -> the value besides `NOTHING` with which they change nothing; front ends
send all of them.
"""
NAMES = ("user", "safety_identifier", "prompt_cache_key", "metadata", "parallel_tool_calls")
"""They say who asks, or are about tools, of which there are none: they ask for nothing."""
SWITCHED = (
    *("mirostat_tau", "mirostat_eta", "xtc_threshold", "smoothing_curve", "dynatemp_exponent"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("repetition_penalty_range", "repeat_last_n", "rep_pen_range"),
)
"""Shapes of samplers that another parameter, which is refused, switches on."""
SEEDS = 2**53
"""Below which a seed is drawn: every client reads such numbers exactly."""
LEAST = 1e-4
"""The least temperature but 0: below it logits overflow."""
LABELS = {
    "system": "An instruction",
    "developer": "An instruction",
    "user": "The user",
    "assistant": "Your answer",
}
"""Role -> what stands before an earlier message."""
TURN = (
    *("id", "agent", "role", "round", "about", "prompt", "text", "thoughts", "finished"),
    *("prompt_tokens", "tokens", "info"),
)
"""Fields of a turn that a client gets."""


# --- refusals


class Refusal(Exception):
    """Why a request gets no answer."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error as clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Headers that OpenAI's client reads: whether it is to make the same request again. What a
        host has failed at was tried again here.
        """
        is_for_now = self.code in ("rate_limit_exceeded", "server_stops")
        return {"X-Should-Retry": "true" if is_for_now else "false"}


REASONS: Sequence[tuple[type[Exception], int, str | None]] = (
    (TooLong, 400, "context_length_exceeded"),
    (BudgetSpent, 429, "insufficient_quota"),
    (UserMistake, 400, None),
    (HostFailure, 502, "host_failure"),
    (HostLost, 503, "host_lost"),
    (TimeoutError, 504, "timeout"),
)
"""Kind of failure, the first that holds -> status and code of OpenAI's errors."""


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an error; for a bug its name, with the traceback on stderr."""
    if isinstance(error, Refusal):
        return error
    for kind, status, code in REASONS:
        if isinstance(error, kind):
            return Refusal(status, str(error), code=code)
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    message = f"{type(error).__name__}: a bug; the server's stderr has its traceback"
    return Refusal(500, message, code="internal_error")


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


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None
    """Name of a speaker for whoever keeps the conversation: agents do not read it."""
    type: Literal["text"] | None = None
    """Some clients write it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, table: Any) -> Any:
        """Leave out what is null or an empty list, as clients send answers back."""
        if not isinstance(table, dict):
            return table
        return {key: value for key, value in table.items() if value not in (None, [])}

    @property
    def text(self) -> str:
        """The message as text; answers are model text, and defused."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return clean(text) if self.role == "assistant" else text


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
    """Fields that a request may have."""

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

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, table: Any) -> Any:
        """Leave out what asks for nothing; what is left and is no field is refused by its name."""
        if not isinstance(table, dict):
            return table
        fields: dict[str, Any] = {}
        for name, value in table.items():
            if value is None or name in (*NAMES, *SWITCHED):
                continue
            is_neutral = value in NOTHING or (name in NEUTRAL and value == NEUTRAL[name])
            if name in cls.model_fields or not is_neutral:
                fields[name] = value
        return fields

    @field_validator("messages")
    @classmethod
    def _end_with_the_user(cls, messages: list[Message]) -> list[Message]:
        last = messages[-1]
        if last.role != "user" or not last.text.strip():
            raise ValueError("the last message has to be the user's, with a text: the question")
        return messages


def read_request(data: bytes, players: Players) -> TeamRequest:
    """The request that a body is; a Refusal where it is none, or asks for too much."""
    body = _validated(data)
    model = players.models.get(body.model)
    if model is None:
        message = f"there is no model {body.model[:100]!r}: there are {', '.join(players.models)}"
        raise Refusal(404, message, param="model", code="model_not_found")
    most = players.at_once
    if body.n > most:
        many = f"{body.n} answers are wanted, and {most} are the most"
        raise Refusal(400, f"{many} that are played at once (--at-once)", param="n")
    asking = players.asking
    if body.temperature is not None:
        asking = replace(asking, temperature=body.temperature)
    if body.top_p is not None:
        asking = replace(asking, top_p=body.top_p)
    rooms = [room for room in (body.max_tokens, body.max_completion_tokens) if room is not None]
    if rooms:  # it bounds the room of each role
        most = min(rooms)
        room = room_of(players.task, asking.room)
        bounded = {role: min(tokens, most) for role, tokens in room.items()}
        asking = replace(asking, max_tokens=min(asking.max_tokens, most), room=bounded)
    return TeamRequest(
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


FIELDS = frozenset(
    {*_Body.model_fields, *Message.model_fields, *_Part.model_fields, *_StreamOptions.model_fields}
)
WANTED = {
    "extra_forbidden": "is not supported here, and is never ignored: leave it out",
    "missing": "is missing",
    "literal_error": "wanted is {expected}",
    "string_type": "a text is wanted",
    "string_too_short": "a text of at least {min_length} character is wanted",
    "string_unicode": "a text is wanted, with whole characters",
    "int_type": "a whole number is wanted",
    "int_from_float": "a whole number is wanted",
    "int_parsing_size": "a smaller number is wanted",
    "float_type": "a number is wanted",
    "finite_number": "a finite number is wanted",
    "bool_type": "true or false is wanted",
    "list_type": "a list is wanted",
    "too_short": "a list of at least {min_length} is wanted",
    "model_type": "an object is wanted",
    "dict_type": "an object is wanted",
    "model_attributes_type": "an object is wanted",
    "greater_than": "a number above {gt} is wanted",
    "greater_than_equal": "a number of at least {ge} is wanted",
    "less_than": "a number below {lt} is wanted",
    "less_than_equal": "a number of at most {le} is wanted",
    "json_invalid": "no JSON: {error}",
    "value_error": "{error}",
}
"""The library's kinds of mistakes -> the message about them."""


def _validated(data: bytes) -> _Body:
    try:
        return _Body.model_validate_json(data)
    except ValidationError as error:
        # of a value that may have several forms, what is said of the form that it comes closest to
        first = max(error.errors(), key=lambda each: len(each["loc"]))
        is_unknown = first["type"] == "extra_forbidden"
        *above, last = first["loc"] or ("",)
        # between them stand the library's names of the forms that it has tried
        parts = [part for part in above if isinstance(part, int) or part in FIELDS]
        parts += [last] if is_unknown or isinstance(last, int) or last in FIELDS else []
        key = ".".join(map(str, parts))[:100]
        wanted = WANTED.get(first["type"], "cannot be read")
        message = wanted.format(**{"error": "", **first.get("ctx", {})})
        param = str(parts[0])[:100] if parts else None
        raise Refusal(
            400, f"{key or 'the body'}: {message}", param=param, code="invalid_value"
        ) from None


# --- replies


@dataclass(frozen=True)
class Wording:
    """Words the reply to one request."""

    request: TeamRequest
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[ServedAnswer], turns: Sequence[Turn]) -> dict[str, Any]:
        """A reply that is no stream."""
        choices: list[dict[str, Any]] = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            choices.append({"index": index, "message": message, **self._ending(answer)})
        return {**self._head(""), "choices": choices, "usage": usage_record(turns)}

    def opening(self) -> str:
        """The first events of a stream: who speaks."""
        speaker = {"role": "assistant", "content": ""}
        return "".join(self._event(index, speaker) for index in range(self.request.choices))

    def rest(self, answers: Sequence[ServedAnswer], turns: Sequence[Turn]) -> str:
        """The other events of a stream: each answer, which is there as a whole, and its end."""
        events: list[str] = []
        for index, answer in enumerate(answers):
            events.append(self._event(index, {"content": answer.text}))
            events.append(self._event(index, {}, **self._ending(answer)))
        if self.request.include_usage:
            last = {**self._head(".chunk"), "choices": [], "usage": usage_record(turns)}
            events.append(event(last))
        return "".join([*events, "data: [DONE]\n\n"])

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": f"chat.completion{kind}",
            "created": self.created,
            "model": self.request.model.name,
            "seed": self.request.seed,
        }

    def _ending(self, answer: ServedAnswer) -> dict[str, Any]:
        """Return the fields of a choice besides its text."""
        ending: dict[str, Any] = {
            "logprobs": None,
            "finish_reason": answer.finish,
            "answered": answer.answered,
        }
        if self.request.discussion:
            ending["discussion"] = [
                {name: getattr(turn, name) for name in TURN} for turn in answer.turns
            ]
        return ending

    def _event(self, index: int, delta: Mapping[str, str], **facts: Any) -> str:
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
    return json.dumps(strict(record), ensure_ascii=True)


def usage_record(turns: Sequence[Turn]) -> dict[str, int]:
    """The tokens of a whole team."""
    prompts = sum(turn.prompt_tokens for turn in turns)
    tokens = sum(turn.tokens for turn in turns)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": tokens,
        "total_tokens": prompts + tokens,
    }
