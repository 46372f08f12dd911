"""Chat messages -> prompt tokens in which no message can forge a special token; reply tokens ->
thoughts and text; how a template writes a call of a tool.

The template is rendered with place holders where the contents go; its own pieces are tokenised with
their special tokens, the contents apart from them and without any. Contents are trimmed where the
template trims them. Leaves out: templates that rewrite contents otherwise (an error for a system
message; what such a template would cut or replace in another message is given whole), thoughts
between other marks than <think> and </think>, several calls in one reply, calls in XML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
from jinja2 import TemplateError

from comas.types import Calls, NoSystemRole, UserMistake

_HOLE = '\ue000aB<&"{}\ue001'
"""Private-use characters, for which templates have no use, around what a change of case or an
escape would change.
"""
_DATE = "26 Jul 2024"
"""Today, for every template that asks: a prompt must not depend on the day, or a resumed run would
be another one.
"""
_FORMATS = {
    "%Y": "2024",
    "%y": "24",
    "%m": "07",
    "%-m": "7",
    "%B": "July",
    "%b": "Jul",
    "%d": "26",
    "%-d": "26",
    "%e": "26",
    "%A": "Friday",
    "%a": "Fri",
    "%j": "208",
    "%F": "2024-07-26",
    "%H": "00",
    "%I": "12",
    "%M": "00",
    "%S": "00",
    "%p": "AM",
}
_WRITTEN = "".join(f".replace('{code}', '{value}')" for code, value in _FORMATS.items())
_CLOCK = "{% macro strftime_now(format) %}{{ format" + _WRITTEN + " }}{% endmacro %}\n"
"""Put before a template, it hides the clock that transformers offers; no argument of a rendering
can do that.
"""


REFUSALS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that templates raise where they take no such messages, themselves or by mistake."""
Shape = tuple[tuple[str, ...], str | None]
"""Shape of a prompt: the roles of its messages, and the tools that it shows, as JSON."""


def _shape_of(messages: Sequence[Mapping[str, str]]) -> Shape:
    tools = [m["content"] for m in messages if m["role"] == "tools"]
    roles = tuple(m["role"] for m in messages if m["role"] != "tools")
    return roles, tools[0] if tools else None


class Chat:
    """A tokenizer with its chat template. Special ids are all end tokens and all added ones but
    white space.

    `thinking` goes to the template; None leaves its own default. `known` is the number of ids that
    the model can read.
    """

    def __init__(
        self,
        tokenizer: Any,
        end_ids: Sequence[int] = (),
        thinking: bool | None = None,
        known: int | None = None,
    ) -> None:
        if tokenizer.chat_template is None:
            raise UserMistake(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template: choose an"
                " instruction-tuned base, or add a chat_template.jinja to its folder"
            )
        try:
            template = tokenizer.get_chat_template()
        except ValueError as error:  # several, and none of them is the default
            raise UserMistake(
                f"tokenizer {tokenizer.name_or_path!r} has several chat templates"
                f" ({', '.join(sorted(tokenizer.chat_template))}) and none that is called default:"
                " name one so"
            ) from error
        self.tokenizer = tokenizer
        self._name = f"the chat template of {tokenizer.name_or_path!r}"
        """For error messages."""
        self._known = known
        self._end_ids = tuple(end_ids)
        self._template = _CLOCK + template
        self._facts = dict[str, Any](date_string=_DATE)
        if thinking is not None:
            if "enable_thinking" not in template:
                raise UserMistake(
                    f"thinking is {thinking}, but {self._name} has no switch for it"
                    " (enable_thinking): leave hosts.<name>.thinking out"
                )
            self._facts["enable_thinking"] = thinking
        # line breaks and runs of spaces are added tokens of some families (Gemma), and contents all
        # the same
        added: dict[int, str] = {}
        for token_id, token in tokenizer.added_tokens_decoder.items():
            if not token.content.replace("▁", " ").isspace():
                added[token_id] = token.content
        self.special_ids = {*tokenizer.all_special_ids, *added, *end_ids}
        ids = {content: token_id for token_id, content in added.items()}
        self._open = ids.get("<think>", -1)
        self._close = ids.get("</think>", -1)
        names = sorted({*added.values(), *tokenizer.all_special_tokens}, key=len, reverse=True)
        spelt = "|".join(map(re.escape, names))
        self._special = re.compile(spelt or r"(?!)")
        unk = tokenizer.unk_token_id
        special_tokens = {
            tokenizer.eos_token_id,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
            *end_ids,
        }
        # unknown words are contents, unless their id ends turns as well
        self._forbidden = self.special_ids - ({unk} - special_tokens)
        self._pieces: dict[Shape, tuple[list[list[int]], list[bool]]] = {}
        self._unread: set[tuple[Shape, tuple[str, ...]]] = set()
        """Shapes with contents of system messages that the template shows as they are."""
        # a prompt is read twice: to see whether it fits, and to be answered
        self._content_ids = lru_cache(maxsize=4096)(self._as_array)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> np.ndarray:
        """Token ids of the prompt that asks for the next reply, int64, shape (prompt tokens,)."""
        pieces, trims = self._pieces_of(messages)
        self._check_unread(messages)
        ids = list(pieces[0])
        spoken = [message for message in messages if message["role"] != "tools"]
        for message, after, trim in zip(spoken, pieces[1:], trims, strict=True):
            content = message["content"].strip() if trim else message["content"]
            by_assistant = message["role"] == "assistant"
            ids += self._own_ids(content) if by_assistant else self._content_ids(content).tolist()
            ids += after
        if not ids:
            raise UserMistake(f"{self._name} makes a prompt of no tokens")
        return np.array(ids, dtype=np.int64)

    def encode_reply(self, messages: Sequence[Mapping[str, str]], text: str) -> np.ndarray:
        """Token ids of `text` as the reply to these messages, int64, shape (reply tokens,).

        No special token but the last, which ends replies.
        """
        return np.append(self.encode_beginning(messages, text), np.int64(self.end_id))

    def encode_beginning(self, messages: Sequence[Mapping[str, str]], text: str) -> np.ndarray:
        """Token ids of `text` as the beginning of a reply, int64, without an end token."""
        if self.opens(messages):
            raise UserMistake(
                f"{self._name} opens a thought before each reply, and a reply that is given has"
                " none: set hosts.<name>.thinking=false, or options.score=text"
            )
        return self._content_ids(text).astype(np.int64)

    @cached_property
    def end_id(self) -> int:
        """The end token that the template writes after a reply; where it writes none, the
        tokenizer's own.
        """
        after = self._after_replies()
        eos_token = self.tokenizer.eos_token_id
        ends = set(self._end_ids) or {eos_token}
        for token_id in [*self._ids(after), eos_token]:
            if token_id in ends:
                return token_id
        raise UserMistake(
            f"{self._name} ends replies with {after!r}, in which there is no end token: name it as"
            " eos_token_id in generation_config.json"
        )

    def unheard_end(self) -> str:
        """The special token that the template writes after a reply where none of what it writes
        there is an end token; otherwise nothing, and for a template that takes no replies.
        """
        try:
            after = self._ids(self._after_replies())
        except UserMistake:
            return ""
        if not set(self._end_ids).isdisjoint(after):
            return ""
        special = [token_id for token_id in after if token_id in self.special_ids]
        return self.tokenizer.decode(special[:1])

    def _after_replies(self) -> str:
        """Return the text that the template writes after a reply."""
        roles = ("user", "assistant")
        holes = [_HOLE.format(i) for i in range(len(roles))]
        _, shown, after = self._render(roles, holes, asking=False).rpartition(holes[-1])
        return after if shown else ""

    def _check_unread(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Refuse a system message that the template reads, as some do `/no_think`: the prompt that
        it writes for it is another than the one that is made here. What others say is not looked
        at: a text in a game must not end a run.
        """
        spoken = [m for m in messages if m["role"] != "tools"]
        shape = _shape_of(messages)
        systems = tuple(m["content"] for m in spoken if m["role"] == "system")
        if not systems or (shape, systems) in self._unread:
            return
        pieces, trims = self._split(*shape)
        contents = [
            m["content"] if m["role"] == "system" else _HOLE.format(i) for i, m in enumerate(spoken)
        ]
        shown = self._render(shape[0], contents, tools=shape[1])
        written = pieces[0]
        for content, trim, after in zip(contents, trims, pieces[1:], strict=True):
            written += (content.strip() if trim else content) + after
        if shown != written:
            raise UserMistake(
                f"{self._name} reads the system message {systems[0][:40]!r} and writes another"
                " prompt for it, which comas cannot: take such words out of agents.<name>.system,"
                " and set hosts.<name>.thinking to switch thoughts"
            )
        self._unread.add((shape, systems))

    def _pieces_of(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[list[list[int]], list[bool]]:
        shape = _shape_of(messages)
        if shape not in self._pieces:
            if "system" in shape[0]:
                self._check_system(shape[0])
            pieces, trims = self._split(*shape)
            ids = [self._ids(piece) for piece in pieces]
            self._check(ids)
            self._pieces[shape] = ids, trims
        return self._pieces[shape]

    def _check_system(self, roles: tuple[str, ...]) -> None:
        """Refuse a system message where the template refuses it, or shows it as a user's."""
        holes = [_HOLE.format(i) for i in range(len(roles))]
        try:
            shown = self._render(roles, holes)
        except UserMistake as error:
            raise NoSystemRole(f"{self._name} has no system role ({error.__cause__})") from error
        as_user = tuple("user" if role == "system" else role for role in roles)
        try:
            plain = self._render(as_user, holes)
        except UserMistake:  # two messages of the user's in turn
            return
        if shown == plain:
            raise NoSystemRole(
                f"{self._name} has no system role: it shows such messages as a user's"
            )

    def _check(self, pieces: Sequence[Sequence[int]]) -> None:
        """Refuse tokens that were added to the tokenizer and not to the model."""
        if self._known is None:
            return
        unread = sorted(i for piece in pieces for i in piece if i >= self._known)
        if unread:
            token = self.tokenizer.decode(unread[:1])
            raise UserMistake(
                f"{self._name} writes {token!r}, token {unread[0]}, and the model has"
                f" {self._known} embeddings: resize its embeddings and train it, or take another"
            )

    def _split(self, roles: tuple[str, ...], tools: str | None) -> tuple[list[str], list[bool]]:
        """The template's own text before, between and after the contents of messages with these
        roles; which it trims.
        """
        holes = [_HOLE.format(i) for i in range(len(roles))]
        rest = self._render(roles, holes, tools=tools)
        spaced = [f"\t{hole}\t" for hole in holes]
        padded = self._render(roles, spaced, tools=tools)
        pieces = []
        for hole, role in zip(holes, roles, strict=True):
            before, hole_found, rest = rest.partition(hole)
            if not hole_found or hole in rest:
                raise UserMistake(
                    f"{self._name} does not show a {role} message once and unchanged: comas cannot"
                    " keep its special tokens apart from the text"
                )
            pieces.append(before)
        trims = [content not in padded for content in spaced]
        return [*pieces, rest], trims

    def _render(
        self,
        roles: tuple[str, ...],
        contents: Sequence[str],
        asking: bool = True,
        tools: str | None = None,
    ) -> str:
        """Messages as text; `asking`: with what stands before the next reply."""
        pairs = zip(roles, contents, strict=True)
        messages = [{"role": role, "content": content} for role, content in pairs]
        return self._rendered(messages, None if tools is None else json.loads(tools), asking)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None, asking: bool
    ) -> str:
        """Render messages by the template; UserMistake where it refuses them."""
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=asking,
                **self._facts,
            )
        except REFUSALS as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise UserMistake(f"{self._name} refuses messages of {roles}: {error}") from error

    @cached_property
    def calls(self) -> Calls | None:
        """How the template writes calls of tools; None where it has no way that can be used."""
        return calls_of(self._rendered)

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        """The special tokens that calls are written with."""
        written = "" if self.calls is None else self.calls.before + self.calls.after
        marks = {match[0] for match in self._special.finditer(written)}
        return re.compile(f"({'|'.join(map(re.escape, sorted(marks)))})" if marks else r"(?!)")

    def _own_ids(self, text: str) -> list[int]:
        """Ids of a reply of the model itself: the marks of its calls are the tokens that they were,
        nothing else is special.
        """
        ids: list[int] = []
        for index, part in enumerate(self._marks.split(text)):
            ids += self._ids(part) if index % 2 else self._content_ids(part).tolist()
        return ids

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids if text else []

    def _as_array(self, text: str) -> np.ndarray:
        """The ids of a content as they are kept, int32: lists of them take nine times as much."""
        return np.array(self._content(text), dtype=np.int32)

    def _content(self, text: str) -> list[int]:
        """Ids of a content; where it spells a special token, the spelling is broken, and what is
        special still is dropped.
        """
        ids = self._ids(text)
        if self.special_ids.isdisjoint(ids):
            return ids
        broken = self._special.sub(lambda m: m[0][0] + " " + m[0][1:], text)
        return [i for i in self._ids(broken) if i not in self._forbidden]

    def opens(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether the template itself begins a thought for the reply to go on with."""
        last_piece = self._pieces_of(messages)[0][-1]
        marks = [i for i in last_piece if i in (self._open, self._close)]
        return marks[-1:] == [self._open]

    def decode(self, ids: np.ndarray, finished: bool, opened: bool = False) -> tuple[str, str]:
        """Text and thoughts of a reply, its end token left out; other special tokens stay readable:
        nothing is hidden.

        The text is what follows the last thought; where a thought is still open there is none. Only
        the tokens <think> and </think> tell, not their spelling; `opened`: the prompt ended within
        a thought.
        """
        reply_ids = ids[:-1] if finished else ids
        marks = np.flatnonzero((reply_ids == self._open) | (reply_ids == self._close))
        inside = opened
        start = 0
        if len(marks):
            inside = reply_ids[marks[-1]] == self._open
            start = marks[-1] + 1
        if inside:
            start = len(reply_ids)
        thoughts = np.delete(reply_ids[:start], marks)
        return self._read(reply_ids[start:]), self._read(thoughts)

    def _read(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(
            ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).strip()


# --- calls of tools


Render = Callable[[Sequence[Mapping[str, Any]], list[Any] | None, bool], str]
"""`render(messages, tools, asking)`: the template's text; UserMistake where it refuses."""

TOOL = "comasprobe"
KEY = "comaskey"
VALUE = "comasvalue"
SAID = "comassaid"
SCHEMA = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "A probe."}},
            "required": [KEY],
        },
    },
}
USER = {"role": "user", "content": "?"}


def calls_of(render: Render) -> Calls | None:
    """The format in which a template writes calls, found out by rendering one.

    None where it shows no tools, writes calls otherwise than as one JSON object, or refuses what
    comes back as a message of the role `tool`.
    """
    function = {"name": TOOL, "arguments": {KEY: VALUE}}
    call = {"id": "000000000", "type": "function", "function": function}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    speaking = {"role": "assistant", "content": SAID}
    back = {"role": "tool", "content": VALUE}
    try:
        prompt = render([USER], [SCHEMA], True)
        written = render([USER, calling], [SCHEMA], False)
        plain = render([USER, speaking], [SCHEMA], False)
        dialogue = render([USER, speaking, back], [SCHEMA], True)
    except UserMistake:
        return None
    shown = TOOL in prompt and SAID in plain and VALUE in dialogue.partition(SAID)[2]
    if not shown or not written.startswith(prompt):
        return None
    return _format(written[len(prompt) :], plain.partition(SAID)[2])


def _format(reply: str, ending: str) -> Calls | None:
    """The format of a reply that calls; `ending` is what ends every reply."""
    start, end, call = _object(reply)
    names = [key for key, value in call.items() if value == TOOL]
    arguments = [key for key, value in call.items() if value == {KEY: VALUE}]
    if len(names) != 1 or len(arguments) != 1 or not reply.endswith(ending):
        return None
    after = reply[end : len(reply) - len(ending)]
    return Calls(reply[:start], names[0], arguments[0], after)


def _object(text: str) -> tuple[int, int, dict[str, Any]]:
    """Where the first JSON object of a text begins and ends, and the object; an empty one where
    there is none.
    """
    decoder = json.JSONDecoder()
    for start, character in enumerate(text):
        if character != "{":
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        return start, end, cast("dict[str, Any]", value)
    return 0, 0, {}
