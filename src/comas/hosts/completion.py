"""One chat completion as servers really write it: its text and thoughts, why it ended, log-probs of
its tokens, and what it has cost.

The types of the package `openai` are filled without a look at what a server sends, so that
everything is looked at here. Leaves out: sending requests, what a refusal means (`hosts.endpoint`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from comas.types import HostFailure, NoRoom, Refused

MOST = 10**12
"""Tokens that one answer may cost; a number above is no count."""
SLACK = 0.01
"""Nats by which rounding may put a log-prob above 0."""
FINISHED, CUT, FILTERED, BROKEN_OFF = "finished", "cut", "filtered", "broken off"
REASONS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), FINISHED),
    **dict.fromkeys(("complete", "completed", "tool_calls", "tool_use", "function_call"), FINISHED),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), CUT),
    **dict.fromkeys(("context_length_exceeded", "model_context_window_exceeded"), CUT),
    **dict.fromkeys(("content_filter", "content_filtered", "guardrail_intervened"), FILTERED),
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content"), FILTERED),
    **dict.fromkeys(("spii", "sensitive", "refusal", "error_toxic"), FILTERED),
    **dict.fromkeys(("error", "abort", "aborted", "cancelled"), BROKEN_OFF),
    **dict.fromkeys(("insufficient_system_resource", "network_error"), BROKEN_OFF),
}
"""A server's word for why a reply ended, in small letters -> what it means."""
TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
"""Keys of a message with text in them; vLLM and Ollama spell the key of thoughts in two ways."""
_MARK = re.compile("</?think>")
EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How lines of a stream of events begin."""
DONE = "[DONE]"
"""The last event of a stream that is whole."""


@dataclass(frozen=True)
class Usage:
    """Tokens that an answer has cost; None where the server does not tell."""

    prompt_tokens: int | None = None
    tokens: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the server sent all of it."""
        return self.prompt_tokens is not None and self.tokens is not None


class RefusedByServer(Refused):
    """A request that the server does not take."""

    def __init__(self, text: str, message: str = "") -> None:
        super().__init__(text)
        self.message = message
        """In the server's words."""


class NoRoomAtServer(RefusedByServer, NoRoom):
    """A prompt that does not fit the server's context together with its reply."""


class Unanswered(HostFailure):
    """A request without an answer; made again, it may get one."""

    def __init__(
        self, kind: str, words: str, after: float | None = None, *, nowhere: bool = False
    ) -> None:
        """`kind` is what it counts as; `after` the seconds that the server asks to wait; `nowhere`:
        there is no machine of that name.
        """
        super().__init__(words)
        self.kind = kind
        self.after = after
        self.nowhere = nowhere
        self.tries = 1


class Unusable(Unanswered):
    """A 2xx that says nothing, and may have cost all the same."""

    def __init__(
        self,
        words: str,
        usage: Usage | None = None,
        *,
        kind: str = "invalid body",
        empty: bool = False,
    ) -> None:
        """`empty`: it is a completion, without any choice."""
        super().__init__(kind, words)
        self.usage = usage or Usage()
        self.empty = empty


class FirstToken(NamedTuple):
    """Log-probs of the first token and its likeliest alternatives, as a server tells them."""

    by_text: Mapping[str, float]
    """Log-probs by text, added up where texts differ in the space around them."""
    least: float
    """The lowest log-prob of a single one: what is not told is no likelier."""


@dataclass(frozen=True)
class Completion:
    """Completion as it is read from a response."""

    text: str
    thoughts: str
    finished: bool
    logprob: float
    usage: Usage
    filtered: bool = False
    """Whether a filter of the server's ended it: the text is empty then."""
    first: FirstToken | None = None
    """None where the server does not tell."""
    is_reason_known: bool = True
    """Whether the server's word for why it ended is one of `REASONS`, or missing."""


def read_completion(data: bytes, encoding: str | None = None) -> Completion:
    """The completion in the body of a 2xx; Unusable for a body with none. `encoding` is the
    server's, for bodies that are not in Unicode.
    """
    try:
        body = body_of(data, encoding)
    except (ValueError, LookupError, RecursionError) as error:
        raise Unusable(
            f"the answer is no JSON ({type(error).__name__}, {len(data)} bytes)"
        ) from None
    usage = _usage(body.get("usage"))
    match body.get("choices"):
        case [dict(choice), *_]:
            pass
        case choices:
            words = f"the answer has no choices: {error_in(body, data)[0]}"
            raise Unusable(words, usage, empty="choices" in body and choices in ([], None))
    reason = choice.get("finish_reason")
    end = REASONS.get(str(reason).lower()) if reason else FINISHED
    if end == BROKEN_OFF:
        raise Unusable(f"the server ended its answer with {reason!r}", usage, kind=BROKEN_OFF)
    message = choice.get("message")
    if message is None and end in (CUT, FILTERED):  # nothing was written before
        message = {}
    if not isinstance(message, dict):
        raise Unusable("the answer has no message of text", usage)
    text, thoughts = _texts(cast("dict[str, Any]", message), usage)
    if usage.tokens == 0 and (text or thoughts):  # nobody writes with no token
        usage = Usage(usage.prompt_tokens, None)
    return Completion(
        "" if end == FILTERED else _whole_text(text),
        _whole_text(thoughts),
        end != CUT,
        _logprob(choice.get("logprobs")),
        usage,
        end == FILTERED,
        _first_token(choice.get("logprobs")),
        end is not None,
    )


def body_of(data: bytes, encoding: str | None = None) -> dict[str, Any]:
    """The object in a body, or that of its events; empty where it is none, and a ValueError where
    it is no JSON.
    """
    if data.lstrip().startswith(EVENT_FIELDS):
        return _joined(_lines_of_events(data))
    try:
        body = json.loads(data)
    except UnicodeDecodeError:
        body = json.loads(data.decode(encoding or "utf-8"))
    if isinstance(body, list) and len(cast("list[Any]", body)) == 1:  # as some list their errors
        body = cast("list[Any]", body)[0]
    return body if isinstance(body, dict) else {}


def error_in(body: Mapping[str, Any], data: bytes) -> tuple[str, str]:
    """Return the message of an error in a body, and its code or type; all of the body where it has
    no message.
    """
    error = body.get("error") or body
    if isinstance(error, str):
        return error, ""
    if not isinstance(error, dict):
        return data.decode(errors="replace"), ""
    message = error.get("message") or error.get("detail")
    code = error.get("code") or error.get("type")
    text = data.decode(errors="replace") if message is None else str(message)
    return text, "" if code is None else str(code)


def _lines_of_events(data: bytes) -> list[str]:
    """List what stands in the `data:` lines of a stream."""
    # by the ends of lines that streams have: texts may hold others, such as U+2028
    lines = re.split("\r\n|\r|\n", data.decode(errors="replace"))
    return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]


def _joined(lines: Sequence[str]) -> dict[str, Any]:
    """The completion that the events of a stream give piece by piece: texts are joined, log-probs
    listed one after the other, and usage is the last that is sent. One that ends without a reason,
    and without `DONE`, was broken off.
    """
    message: dict[str, Any] = {}
    reason = None if DONE in lines else "error"
    choice: dict[str, Any] = {"message": message, "finish_reason": reason}
    body: dict[str, Any] = {"choices": []}
    for line in lines:
        event = json.loads(line) if line != DONE else None
        if not isinstance(event, dict):
            continue
        event = cast("dict[str, Any]", event)
        if event.get("error"):
            return event
        body["usage"] = event.get("usage") or body.get("usage")
        parts = event.get("choices")
        for part in cast("list[Any]", parts if isinstance(parts, list) else []):
            if not isinstance(part, dict) or part.get("index"):
                continue
            body["choices"] = [choice]
            delta = part.get("delta") or part.get("message")
            for key in TEXTS if isinstance(delta, dict) else ():
                if isinstance(piece := cast("Any", delta).get(key), str):
                    message[key] = message.get(key, "") + piece
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            logprobs = part.get("logprobs")
            if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
                choice.setdefault("logprobs", {"content": []})["content"] += logprobs["content"]
    return body


def _texts(message: Mapping[str, Any], usage: Usage) -> tuple[str, str]:
    """Text and thoughts of a message; Unusable where its content is neither text nor parts."""
    content = message.get("content")
    parts_thoughts = ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content, parts_thoughts = _of_parts(cast("list[dict[str, Any]]", content))
    if not isinstance(content, str | None):
        raise Unusable("the answer has no message of text", usage)
    if not content and isinstance(refusal := message.get("refusal"), str):
        content = refusal
    apart = (message.get(key) for key in ("reasoning_content", "reasoning"))
    reasoning = next((words for words in apart if isinstance(words, str) and words), "")
    thoughts = "\n".join(filter(None, (reasoning, parts_thoughts)))
    content = content or ""
    if thoughts and not content.lstrip().startswith(("<think>", "</think>")):
        return content, thoughts  # which the server tells apart: a mark in the text is a quote
    text, thoughts_within = split_thoughts(content)
    return text, "\n".join(filter(None, (thoughts, thoughts_within)))


def _of_parts(parts: list[dict[str, Any]]) -> tuple[str, str]:
    """Text and thoughts in a list of parts; parts of other kinds (images, references) say none."""
    text = ""
    thoughts = ""
    for part in parts:
        match part:
            case {"type": "text" | "output_text", "text": str(words)}:
                text += words
            case {"type": "thinking" | "reasoning", "thinking": list(inner)}:
                texts = [p.get("text") for p in cast("list[Any]", inner) if isinstance(p, dict)]
                thoughts += "".join(words for words in texts if isinstance(words, str))
            case {"type": "thinking" | "reasoning", "thinking": str(words)}:
                thoughts += words
            case {"type": "thinking" | "reasoning", "text": str(words)}:
                thoughts += words
            case _:
                pass
    return text, thoughts


def split_thoughts(content: str) -> tuple[str, str]:
    """Text and thoughts, by the rule of local hosts (`engines.chat`): the text is what follows the
    last thought, and where one is still open there is none. Tokens are not seen here, so that the
    spelling of the marks tells.
    """
    marks = list(_MARK.finditer(content))
    if not marks:
        return content, ""
    start = len(content) if marks[-1][0] == "<think>" else marks[-1].end()
    return content[start:].strip(), _MARK.sub("", content[:start]).strip()


def _usage(usage: Any) -> Usage:
    """The numbers of `usage`; None where one is none, and of a prompt of no token.

    Some servers leave thoughts out of `completion_tokens`: they are the rest of `total_tokens`.
    """
    table: Any = usage if isinstance(usage, dict) else {}
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, generated, total = (_count(table.get(key)) for key in keys)
    if prompt and generated is not None and total is not None:
        generated = max(generated, total - prompt)
    return Usage(prompt or None, generated)


def _count(number: Any) -> int | None:
    """A number of tokens, which may be written as 10.0; None for anything else."""
    is_whole = type(number) is int or (type(number) is float and number.is_integer())
    return int(number) if is_whole and 0 <= number <= MOST else None


def _whole_text(text: str) -> str:
    """Text as it came, but for halves of characters, which no file can hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _logprob(value: Any) -> float:
    """The sum over generated tokens; 0.0 where they are not sent."""
    try:
        total = math.fsum(float(token["logprob"]) for token in value["content"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return 0.0
    return total if math.isfinite(total) else 0.0


def _first_token(value: Any) -> FirstToken | None:
    """Log-probs of the alternatives to the first token; None where they are not sent."""
    try:
        listed = value["content"][0]["top_logprobs"]
        alternatives = [(_spelling(one), float(one["logprob"])) for one in listed]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return None
    by_word: dict[str, float] = {}
    least = math.inf
    for text, logprob in alternatives:
        if logprob > SLACK or math.isnan(logprob):
            return None
        if math.isfinite(logprob):
            least = min(least, logprob)
            by_word[text] = float(np.logaddexp(logprob, by_word.get(text, -math.inf)))
    return FirstToken(by_word, least) if by_word else None


def _spelling(alternative: Mapping[str, Any]) -> str:
    """The text of an alternative without the space around it: that of its bytes where they are
    sent, since some servers name tokens as their vocabulary spells them.
    """
    text = str(alternative["token"])
    if isinstance(codes := alternative.get("bytes"), list) and codes:
        text = bytes(cast("list[int]", codes)).decode(errors="replace")
    return text.strip()
