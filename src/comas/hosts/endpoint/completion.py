"""What an endpoint that speaks OpenAI's chat protocol answers: text, thoughts, usage, and what is
wrong with it.

A server that streams without being asked is read as well. Leaves out: asking (`hosts.api`), adding
up (`hosts.endpoint.ledger`).
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

MOST = 10**12
"""Tokens that one answer may cost; a number above is no count."""
CUT = ("length", "max_tokens", "model_length", "content_filter", "safety", "recitation")
"""Reasons for an end, in small letters, that the model did not choose."""
FAILED = ("error", "abort", "aborted", "cancelled")
"""Reasons for an end that are failures of the server."""
_MARK = re.compile("</?think>")
END_OF_LINE = re.compile(r"\r\n|\n|\r")
"""Of events: what else Unicode takes for one may stand within a text."""


class Trouble(Exception):
    """A request that may succeed if it is made again; `kind` is what it counts as."""

    def __init__(self, kind: str, said: str, after: float | None = None) -> None:
        super().__init__(said)
        self.kind = kind
        self.after = after


@dataclass(frozen=True)
class Usage:
    """What an answer has cost; None where the server does not tell."""

    prompt_tokens: int | None = None
    tokens: int | None = None

    @property
    def told(self) -> bool:
        """Whether the server told all of it."""
        return self.prompt_tokens is not None and self.tokens is not None


class Unusable(Trouble):
    """An answer of 2xx that says nothing, and may have cost all the same."""

    def __init__(
        self,
        said: str,
        usage: Usage | None = None,
        *,
        kind: str = "invalid body",
        lasting: bool = False,
    ) -> None:
        """`lasting`: if it comes twice, it comes always."""
        super().__init__(kind, said)
        self.usage = usage or Usage()
        self.lasting = lasting


class ErrorInside(Exception):
    """A 2xx whose body is an error; `code` is the status that it names, if it names one."""

    def __init__(self, code: int | None, said: str, usage: Usage) -> None:
        super().__init__("an error inside an answer")
        self.code = code
        self.said = said
        self.usage = usage


@dataclass(frozen=True)
class Said:
    """What is read from an answer; the usage is None where the server does not tell."""

    text: str
    thoughts: str
    finished: bool
    logprob: float
    prompt_tokens: int | None
    tokens: int | None
    called: bool = False
    """Whether a tool is called, of which none was offered."""
    first: Mapping[str, float] | None = None
    """Log-probs of the first token and its alternatives, by their text, added up where texts differ
    in the space around them; None where the server does not tell.
    """


def read_said(data: bytes) -> Said:
    """A chat completion; whatever is not one is `Unusable`, or an `ErrorInside`."""
    found = _parsed(data)
    usage = _usage(found)
    if wrong := found.get("error"):
        code = _code(wrong)
        said = _words(wrong)
        raise ErrorInside(code, said, usage)
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unusable("the answer has no choices", usage, lasting=True)
    choice = cast("dict[str, Any]", choices[0])
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) else ""
    if wrong := choice.get("error"):
        raise ErrorInside(_code(wrong), _words(wrong), usage)
    if reason in FAILED:
        raise Unusable(f"the server ended its answer with {reason!r}", usage, kind="broken off")
    message = choice.get("message")
    parts = _parts(message.get("content")) if isinstance(message, dict) else None
    if not isinstance(message, dict) or parts is None:
        raise Unusable("the answer has no message of text", usage, lasting=True)
    content, thought_parts = parts
    if not content and isinstance(refusal := message.get("refusal"), str):
        content = refusal
    text, thoughts_within = split_thoughts(content)
    thoughts = "\n".join(filter(None, (_reasoning(message), thought_parts, thoughts_within)))
    if usage.tokens == 0 and (text or thoughts):  # nobody writes with no token
        usage = Usage(usage.prompt_tokens, None)
    return Said(
        _whole_text(text),
        _whole_text(thoughts),
        reason not in CUT,
        _logprob(choice.get("logprobs")),
        usage.prompt_tokens,
        usage.tokens,
        called=bool(message.get("tool_calls")),
        first=_first_token(choice.get("logprobs")),
    )


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


def _reasoning(message: dict[str, Any]) -> str:
    """Thoughts that the server keeps apart; several spell their key both ways,
    with the same text.
    """
    for key in ("reasoning_content", "reasoning"):
        found = message.get(key)
        if isinstance(found, str) and found:
            return found
    return ""


def _parts(content: Any, nested: bool = False) -> tuple[str, str] | None:
    """Text and thoughts of a content, which may be a list of parts; None where something else is
    among them.
    """
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return None
    text = ""
    thoughts = ""
    for part in cast("list[Any]", content):
        found = (
            (part, "")
            if isinstance(part, str)
            else None
            if nested and not _is_text(part)
            else _part(part)
        )
        if found is None:
            return None
        text += found[0]
        thoughts += found[1]
    return text, thoughts


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _part(part: Any) -> tuple[str, str] | None:
    """Text and thoughts of one part; thoughts may be a list of parts themselves."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "output_text", "refusal"):
        held = part.get("refusal" if kind == "refusal" else "text")
        return (held, "") if isinstance(held, str) else None
    if kind in ("thinking", "reasoning"):
        within = _parts(part.get(kind, part.get("text")), nested=True)
        return None if within is None else ("", within[0])
    return None


def _parsed(data: bytes) -> dict[str, Any]:
    """The object that a body is, or that the events of a stream make together."""
    try:
        found = (
            _joined(data)
            if data.lstrip().startswith((b"data:", b"event:", b":"))
            else json.loads(data)
        )
    except (ValueError, RecursionError) as error:
        raise Unusable(
            f"the answer is no JSON ({type(error).__name__}, {len(data)} bytes)"
        ) from None
    if not isinstance(found, dict):
        raise Unusable("the answer is no JSON object", lasting=True)
    return cast("dict[str, Any]", found)


def _joined(data: bytes) -> dict[str, Any]:
    """The completion that a stream of events amounts to; one that broke off before its end is not
    JSON either.
    """
    whole: dict[str, Any] = {}
    said = {"content": "", "reasoning_content": "", "reasoning": ""}
    reason = None
    ended = False
    for line in END_OF_LINE.split(data.decode("utf-8")):
        name, _, value = line.partition(":")
        if name != "data":
            continue
        if value.strip() == "[DONE]":
            ended = True
            continue
        event = json.loads(value)
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        whole |= {key: event[key] for key in ("usage", "error") if event.get(key)}
        for delta, why in _deltas(event):
            for key in said:
                said[key] += delta[key] if isinstance(delta.get(key), str) else ""
            reason = why or reason
    if not (ended or reason or "error" in whole):
        raise ValueError("the stream has no end")
    return {**whole, "choices": [{"message": said, "finish_reason": reason}]}


def _deltas(event: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """What an event adds to the first choice, and why it ends."""
    choices = event.get("choices")
    for choice in cast("list[Any]", choices) if isinstance(choices, list) else []:
        if isinstance(choice, dict) and not choice.get("index"):
            delta = choice.get("delta")
            yield (delta if isinstance(delta, dict) else {}), choice.get("finish_reason")


def _code(wrong: Any) -> int | None:
    """The status that an error inside a body names."""
    found = wrong.get("code") if isinstance(wrong, dict) else None
    code = (
        int(found)
        if isinstance(found, int | str) and re.fullmatch(r"[45]\d\d", str(found))
        else None
    )
    return code


def _words(wrong: Any) -> str:
    """What an error inside a body says."""
    return str(wrong.get("message") if isinstance(wrong, dict) else wrong)[:10_000]


def _usage(found: dict[str, Any]) -> Usage:
    """The numbers of `usage`, under either of their names; the total fills in one that is missing,
    and what it holds beyond the two was generated as well: several servers leave thoughts out of
    the generated tokens that they bill.
    """
    usage = found.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    # a prompt of no token does not exist
    prompt = _first_count(usage, "prompt_tokens", "input_tokens") or None
    made = _first_count(usage, "completion_tokens", "output_tokens")
    total = _first_count(usage, "total_tokens")
    if total is not None and prompt is not None and total >= prompt:
        made = max(made or 0, total - prompt)
    elif total is not None and prompt is None and made is not None and total > made:
        prompt = total - made
    return Usage(prompt, made)


def _first_count(usage: dict[str, Any], *names: str) -> int | None:
    found = (_number(usage.get(name)) for name in names)
    return next((number for number in found if number is not None), None)


def _number(value: Any) -> int | None:
    """A count of tokens, which some write as 12.0 or "12"."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
        return int(value)
    if isinstance(value, float) and value.is_integer() and 0 <= value <= MOST:
        return int(value)
    return value if type(value) is int and 0 <= value <= MOST else None


def _whole_text(text: str) -> str:
    """Text as it came, but for halves of characters, which no file can hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _logprob(found: Any) -> float:
    """The sum over generated tokens; 0.0 where they are not told."""
    try:
        total = math.fsum(float(token["logprob"]) for token in found["content"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return 0.0
    return total if math.isfinite(total) else 0.0


def _first_token(found: Any) -> dict[str, float] | None:
    """Log-probs of the alternatives to the first token; None where they are not told."""
    try:
        listed = found["content"][0]["top_logprobs"]
        told = [(str(one["token"]).strip(), float(one["logprob"])) for one in listed]
    except (TypeError, KeyError, IndexError, ValueError):
        return None
    known: dict[str, float] = {}
    for text, logprob in told:
        mass = math.exp(logprob) + math.exp(known.get(text, -math.inf))
        if mass > 0:
            known[text] = math.log(mass)
    return known or None


def wait_of(said: str | None) -> float | None:
    """Seconds that a Retry-After asks for, which may be a number or a date; None where it says
    neither.
    """
    if said is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d+)?", said.strip()):
        return float(said)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
