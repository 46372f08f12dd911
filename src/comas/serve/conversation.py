"""A conversation as one question: setups play questions, which are texts.

The question is the last message of the user. What stands before it (instructions, examples, earlier
questions and answers) goes before it in the same text, so that every agent of a discussion reads
it, its judges too; a conversation of one message is that message, to the letter. Answers are model
text, and defused. Leaves out: system roles of chat templates, which are for personas (`Member`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from comas.game.prompts import defuse

Role = Literal["system", "developer", "user", "assistant"]
LABELS = {
    "system": "An instruction",
    "developer": "An instruction",
    "user": "The user",
    "assistant": "Your answer",
}
"""Role -> what stands before an earlier message."""
SO_FAR = "The conversation so far"
NOW = "The user now asks"


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str


def question_text(messages: Sequence[Message]) -> str:
    """The text that agents are asked, of messages of which the last is the user's."""
    *before, last = messages
    opening = 0
    while opening < len(before) and before[opening].role in ("system", "developer"):
        opening += 1
    parts = [message.text for message in before[:opening]]
    earlier = before[opening:]
    if earlier:
        parts.append(f"{SO_FAR}:")
        parts += [_labelled(message) for message in earlier]
        parts.append(f"{NOW}:")
    return "\n\n".join([*parts, last.text])


def _labelled(message: Message) -> str:
    is_answer = message.role == "assistant"
    text = defuse(message.text) if is_answer else message.text
    return f"{LABELS[message.role]}:\n{text}"
