"""Chat messages -> prompt tokens in which no message can forge a special token.

The template is rendered with place holders where the contents go; its own pieces are tokenised with their special
tokens, the contents apart from them and without any. Leaves out: templates that rewrite contents (an error says so).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from comas.types import UserMistake

_HOLE = "\ue000{}\ue001"
"""Private-use characters: `defuse` removes them from quoted text, and templates have no use for them."""


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
        self._pieces: dict[tuple[str, ...], list[list[int]]] = {}
        self._content_ids = lru_cache(maxsize=8192)(self._content)  # hosts ask twice: does it fit, then answer

    def encode(self, messages: Sequence[Mapping[str, str]]) -> np.ndarray:
        """Token ids of the prompt that asks for the next reply, int64, shape (prompt tokens,)."""
        roles = tuple(m["role"] for m in messages)
        if roles not in self._pieces:
            self._pieces[roles] = [self._ids(piece) for piece in self._split(roles)]
        first, *rest = self._pieces[roles]
        ids = list(first)
        for message, after in zip(messages, rest, strict=True):
            ids += [*self._content_ids(message["content"]), *after]
        return np.array(ids, dtype=np.int64)

    def _split(self, roles: tuple[str, ...]) -> list[str]:
        """The template's own text before, between and after the contents of messages with these roles."""
        holes = [{"role": role, "content": _HOLE.format(i)} for i, role in enumerate(roles)]
        rendered = self.tokenizer.apply_chat_template(holes, tokenize=False, add_generation_prompt=True)
        rest, pieces = rendered, []
        for hole in holes:
            before, found, rest = rest.partition(hole["content"])
            if not found or hole["content"] in rest:
                raise UserMistake(
                    f"the chat template of {self.tokenizer.name_or_path!r} does not show a {hole['role']} message once and "
                    "unchanged: comas cannot keep its special tokens apart from the text"
                )
            pieces.append(before)
        return [*pieces, rest]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids if text else []

    def _content(self, text: str) -> list[int]:
        """Ids of a content; where it spells a special token, the spelling is broken, and what is special still is dropped."""
        ids = self._ids(text)
        if self.special_ids.isdisjoint(ids):
            return ids
        broken = self._special.sub(lambda m: m[0][0] + " " + m[0][1:], text)
        return [i for i in self._ids(broken) if i not in self.special_ids or i == self.tokenizer.unk_token_id]

    def decode(self, ids: np.ndarray, finished: bool) -> str:
        """Text of a reply: its end token left out; any other special token stays readable, so that nothing is hidden."""
        kept = ids[:-1] if finished else ids
        return self.tokenizer.decode(kept.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()
