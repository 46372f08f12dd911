"""Chat messages -> prompt tokens in which no message can forge a special token.

The template is rendered with place holders where the contents go; its own pieces are tokenised with their special
tokens, the contents apart from them and without any. Contents are trimmed where the template trims them. Leaves out:
templates that rewrite contents otherwise (an error says so).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jinja2 import TemplateError

from comas.types import UserMistake

_HOLE = '\ue000aB<&"{}\ue001'
"""Private-use characters, for which templates have no use, around what a change of case or an escape would change."""


class Chat:
    """A tokenizer with its chat template. Special ids are all added tokens and all end tokens."""

    def __init__(self, tokenizer: Any, end_ids: Sequence[int] = ()) -> None:
        if tokenizer.chat_template is None:
            raise UserMistake(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template: choose an instruction-tuned base, or add a "
                "chat_template.jinja to its folder"
            )
        self.tokenizer = tokenizer
        self.special_ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder, *end_ids}
        names = sorted({t.content for t in tokenizer.added_tokens_decoder.values()} | set(tokenizer.all_special_tokens), key=len)
        self._special = re.compile("|".join(re.escape(n) for n in reversed(names)) or r"(?!)")
        unk, named = tokenizer.unk_token_id, {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id, *end_ids}
        self._forbidden = self.special_ids - ({unk} - named)  # unknown words are contents, unless their id ends turns as well
        self._pieces: dict[tuple[str, ...], tuple[list[list[int]], list[bool]]] = {}
        self._content_ids = lru_cache(maxsize=8192)(self._content)  # hosts ask twice: does it fit, then answer

    def encode(self, messages: Sequence[Mapping[str, str]]) -> np.ndarray:
        """Token ids of the prompt that asks for the next reply, int64, shape (prompt tokens,)."""
        roles = tuple(m["role"] for m in messages)
        if roles not in self._pieces:
            pieces, trims = self._split(roles)
            self._pieces[roles] = [self._ids(piece) for piece in pieces], trims
        (first, *rest), trims = self._pieces[roles]
        ids = list(first)
        for message, after, trim in zip(messages, rest, trims, strict=True):
            content = message["content"]
            ids += [*self._content_ids(content.strip() if trim else content), *after]
        return np.array(ids, dtype=np.int64)

    def _split(self, roles: tuple[str, ...]) -> tuple[list[str], list[bool]]:
        """The template's own text before, between and after the contents of messages with these roles; which it trims."""
        holes = [_HOLE.format(i) for i in range(len(roles))]
        rest, padded = self._render(roles, holes), self._render(roles, [f"\t{hole}\t" for hole in holes])
        pieces = []
        for hole, role in zip(holes, roles, strict=True):
            before, found, rest = rest.partition(hole)
            if not found or hole in rest:
                raise UserMistake(
                    f"the chat template of {self.tokenizer.name_or_path!r} does not show a {role} message once and "
                    "unchanged: comas cannot keep its special tokens apart from the text"
                )
            pieces.append(before)
        return [*pieces, rest], [f"\t{hole}\t" not in padded for hole in holes]

    def _render(self, roles: tuple[str, ...], contents: Sequence[str]) -> str:
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise UserMistake(
                f"the chat template of {self.tokenizer.name_or_path!r} refuses messages of {', '.join(roles)}: {error}"
            ) from error

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids if text else []

    def _content(self, text: str) -> list[int]:
        """Ids of a content; where it spells a special token, the spelling is broken, and what is special still is dropped."""
        ids = self._ids(text)
        if self._forbidden.isdisjoint(ids):
            return ids
        broken = self._special.sub(lambda m: m[0][0] + " " + m[0][1:], text)
        return [i for i in self._ids(broken) if i not in self._forbidden]

    def decode(self, ids: np.ndarray, finished: bool) -> str:
        """Text of a reply: its end token left out; any other special token stays readable, so that nothing is hidden."""
        kept = ids[:-1] if finished else ids
        return self.tokenizer.decode(kept.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()
