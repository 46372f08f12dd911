"""Demonstrations: a JSON Lines file of what to say, for `method=sft` (or a method of one's own that
tells).

A line holds `role`, a `prompt` or the `messages` of a dialogue that ends with the user's, and the
`reply`. Other keys are errors: a misspelt one would be lost. `data` names a file, all of which is
learnt, or a folder with `train.jsonl` and, to measure how many replies are repeated word for word,
`validation.jsonl` and `test.jsonl`. Leaves out: weights, replies that are to be avoided.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from comas.questions.sources import DataSource, Record
from comas.types import Question, Task, UserMistake, Verdict

KEYS = ("role", "prompt", "messages", "reply")
SPEAKERS = ("system", "user", "assistant")
SPLITS = ("train", "validation", "test")
SOURCE = DataSource(
    *("demonstrations", None, ("role", "reply")),
    splits={split: split for split in SPLITS},
    files={split: f"{split}.jsonl" for split in SPLITS},
)


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """The demonstrations of a split in an order drawn by `seed`, at most `limit`; `path`: a file,
    or a folder with one per split.
    """
    source = path or os.environ.get("COMAS_DATA")
    if split != "train" and source and Path(source).is_file():
        raise UserMistake(
            f"task demonstrations: all of {source} is learnt, and there is no {split} split: give a"
            f" folder with train.jsonl and {split}.jsonl, or set test_questions=0 and eval_every=0"
        )
    questions = [_question(split, row, where) for row, where in SOURCE.rows(split, path)]
    random.Random(f"demonstrations {split} {seed}").shuffle(questions)
    return questions[:limit]


def _question(split: str, row: Record, where: str) -> Question:
    """The demonstration that stands at `where`, FILE:LINE, and is called after its line."""
    for key in row:
        if key not in KEYS:
            raise UserMistake(f"{where}: unknown key {key!r}: one of {', '.join(KEYS)}")
    role = row["role"].strip()
    reply = row["reply"].strip()
    for key, text in (("role", role), ("reply", reply)):
        if not text:
            raise UserMistake(f"{where}: `{key}` is empty: write it, or leave the line out")
    messages = _messages(row, where)
    line = where.rpartition(":")[2]
    return Question(
        id=f"{split}-line-{line}",
        prompt=messages[-1]["content"],
        kind=role,
        answer=reply,
        meta={"role": role, "messages": messages},
    )


def _messages(row: Record, where: str) -> list[dict[str, str]]:
    """The dialogue that a reply is for."""
    prompt = row.get("prompt")
    messages: Any = row.get("messages")
    if (prompt is None) == (messages is None):
        raise UserMistake(f"{where}: wanted is either `prompt` or `messages`")
    if prompt is not None:
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        raise UserMistake(
            f"{where}: `messages` is {_brief(messages)}: wanted is a list of messages"
        )
    checked = [_message(message, where) for message in cast("list[Any]", messages)]
    if checked[-1]["role"] != "user":
        raise UserMistake(
            f"{where}: the last message is the {checked[-1]['role']}'s, and a reply is to a user's"
        )
    return checked


def _message(message: Any, where: str) -> dict[str, str]:
    """One message of a dialogue, checked."""
    keys: Any = set(cast("Mapping[Any, Any]", message)) if isinstance(message, Mapping) else None
    if keys != {"role", "content"} or not all(isinstance(message[key], str) for key in keys):
        raise UserMistake(
            f"{where}: {_brief(message)} is no message: wanted are the texts `role` and `content`"
        )
    if message["role"] not in SPEAKERS:
        raise UserMistake(
            f"{where}: a message of {message['role']!r}: one of {', '.join(SPEAKERS)}"
        )
    if not message["content"].strip():
        raise UserMistake(f"{where}: a message is empty: write it, or leave the line out")
    return dict(message)


def _brief(value: Any) -> str:
    """A value as it stands in the file, in at most 60 characters."""
    return json.dumps(value, ensure_ascii=False)[:60]


def extract(question: Question, text: str) -> str | None:
    """The words of a text, spaces as one; None where there are none."""
    return " ".join(text.split()) or None


def verify(question: Question, text: str) -> Verdict:
    """Right if the words are those of the demonstration."""
    if question.answer is None:
        return "failed"
    return "right" if extract(question, text) == extract(question, question.answer) else "wrong"


task = Task(
    name="demonstrations",
    load=load,
    verify=verify,
    extract=extract,
    wording={"solution": "{question}"},
)
