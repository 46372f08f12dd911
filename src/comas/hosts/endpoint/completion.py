"""What an endpoint that speaks OpenAI's chat protocol answers: text, thoughts, usage, and what is
wrong with it.

Leaves out: asking (`hosts.api`), adding up (`hosts.endpoint.ledger`), streams.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

MOST = 10**12
"""Tokens that one answer may cost; a number above is no count."""
CUT = ("length", "max_tokens", "model_length")
"""Reasons for an end, in small letters, that are want of room."""
FILTERED = ("content_filter", "safety", "recitation")
"""Those of a filter of the server's: what it let through is no answer."""
FAILED = ("error", "abort", "aborted", "cancelled")
"""Those that are failures of the server."""
THOUGHTS = ("thinking", "reasoning")
"""What parts of a content are called that are thoughts."""
_MARK = re.compile("</?think>")


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

    def __init__(self, wrong: Any, usage: Usage) -> None:
        super().__init__("an error inside an answer")
        table: dict[str, Any] = wrong if isinstance(wrong, dict) else {"message": wrong}
        code = str(table.get("code"))
        self.code = int(code) if re.fullmatch(r"[45]\d\d", code, re.ASCII) else None
        self.said = str(table.get("message"))[:10_000]
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
    filtered: bool = False
    """Whether a filter of the server's ended it: the text is empty then."""
    first: Mapping[str, float] | None = None
    """Log-probs of the first token and its alternatives, by their text, added up where texts differ
    in the space around them; None where the server does not tell.
    """


def read_said(data: bytes) -> Said:
    """A chat completion; whatever is not one is `Unusable`, or an `ErrorInside`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable(
            f"the answer is no JSON ({type(error).__name__}, {len(data)} bytes)"
        ) from None
    if not isinstance(found, dict):
        raise Unusable("the answer is no JSON object", lasting=True)
    body = cast("dict[str, Any]", found)
    usage = _usage(body.get("usage"))
    if wrong := body.get("error"):
        raise ErrorInside(wrong, usage)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unusable("the answer has no choices", usage, lasting=True)
    choice = cast("dict[str, Any]", choices[0])
    if wrong := choice.get("error"):
        raise ErrorInside(wrong, usage)
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) else ""
    if reason in FAILED:
        raise Unusable(f"the server ended its answer with {reason!r}", usage, kind="broken off")
    message = choice.get("message")
    kinds = ("text", *THOUGHTS)
    parts = _parts(message.get("content"), kinds) if isinstance(message, dict) else None
    if not isinstance(message, dict) or parts is None:
        raise Unusable("the answer has no message of text", usage, lasting=True)
    content, thought_parts = parts
    if not content and isinstance(refusal := message.get("refusal"), str):
        content = refusal
    text, thoughts_within = split_thoughts(content)
    # several servers spell the key of thoughts both ways, with the same text
    apart = (message.get(key) for key in ("reasoning_content", "reasoning"))
    reasoning = next((found for found in apart if isinstance(found, str) and found), "")
    thoughts = "\n".join(filter(None, (reasoning, thought_parts, thoughts_within)))
    if usage.tokens == 0 and (text or thoughts):  # nobody writes with no token
        usage = Usage(usage.prompt_tokens, None)
    return Said(
        "" if reason in FILTERED else _whole_text(text),
        _whole_text(thoughts),
        reason not in CUT,
        _logprob(choice.get("logprobs")),
        usage.prompt_tokens,
        usage.tokens,
        called=bool(message.get("tool_calls")),
        filtered=reason in FILTERED,
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


def _parts(content: Any, kinds: tuple[str, ...]) -> tuple[str, str] | None:
    """Text and thoughts of a content, which may be a list of parts of these kinds, thoughts a list
    of parts themselves; None where something else is among them.
    """
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        return None
    text = ""
    thoughts = ""
    for part in cast("list[Any]", content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            return None
        if kind == "text":
            if not isinstance(part.get("text"), str):
                return None
            text += part["text"]
        else:
            within = _parts(part.get(kind, part.get("text")), ("text",))
            if within is None:
                return None
            thoughts += within[0]
    return text, thoughts


def _usage(usage: Any) -> Usage:
    """The numbers of `usage`, under either of their names; the total fills in one that is missing,
    and what it holds beyond the two was generated as well: several servers leave thoughts out of
    the generated tokens that they bill.
    """
    if not isinstance(usage, dict):
        return Usage()

    def count(*names: str) -> int | None:
        numbers = (cast("dict[str, Any]", usage).get(name) for name in names)
        return next((n for n in numbers if type(n) is int and 0 <= n <= MOST), None)

    # a prompt of no token does not exist
    prompt = count("prompt_tokens", "input_tokens") or None
    made = count("completion_tokens", "output_tokens")
    total = count("total_tokens")
    if total is not None and prompt is not None and total >= prompt:
        made = max(made or 0, total - prompt)
    elif total is not None and prompt is None and made is not None and total > made:
        prompt = total - made
    return Usage(prompt, made)


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


SLACK = 0.01
"""Nats by which rounding may put a log-prob above 0."""


def _first_token(found: Any) -> dict[str, float] | None:
    """Log-probs of the alternatives to the first token; None where they are not told."""
    try:
        listed = found["content"][0]["top_logprobs"]
        told = [(str(one["token"]).strip(), float(one["logprob"])) for one in listed]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return None
    known: dict[str, float] = {}
    for text, logprob in told:
        if logprob > SLACK or math.isnan(logprob):
            return None
        if math.isfinite(logprob):
            known[text] = float(np.logaddexp(logprob, known.get(text, -math.inf)))
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
