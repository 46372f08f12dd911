"""What an evaluation notes of the turns of a game, besides the verdict on its answer.

Which replies are right, which say the same, and how many turns quote others: it follows from the
texts and the task, and is written into the game's record, so that reports need neither. No game
sees any of it. Leaves out: what it comes to (`evaluation.teamwork`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from comas.evaluation.accuracy import judged
from comas.game.play import own_file
from comas.game.prompts import defuse
from comas.game.roles import ANSWERS
from comas.types import HostFailure, Question, Task

TurnRecord = Mapping[str, Any]
"""A turn as it is written down: the fields of `Turn`."""


def noted(
    task: Task,
    question: Question,
    answer: str | None,
    turns: Sequence[TurnRecord],
    known: Mapping[str, str],
) -> dict[str, Any]:
    """What the record of a game with several turns holds besides; nothing of a single turn.

    `quoting`: how many turns show their author a reply of another agent. `verdicts`: turn id ->
    verdict, of revisions, of what they revise, and of the first answers of different policies.
    `says`: turn id -> what a first answer says, and `team` -> what the game's answer says: equal
    answers have equal numbers, None is one that cannot be read. Asks the verifier.
    """
    if len(turns) < 2:
        return {}
    found: dict[str, Any] = {"quoting": _quoting(task, question, turns)}
    firsts = list(first_answers(turns).values())
    if len({turn["policy"] for turn in firsts}) < 2:
        firsts = []
    revised = [turn for pair in revisions(turns) for turn in pair]
    if firsts or revised:
        found["verdicts"] = _verdicts(task, question, [*firsts, *revised], known)
    if firsts:
        texts = {turn["id"]: turn["text"] if turn["finished"] else None for turn in firsts}
        with suppress(HostFailure):  # the sandbox that tells programs apart let us down
            read = _read_already(turns)
            found["says"] = _numbered(task, question, {**texts, "team": answer}, read)
    return found


def revisions(turns: Sequence[TurnRecord]) -> Iterator[tuple[TurnRecord, TurnRecord]]:
    """(an answer, its author's next answer about it), in the order of the record."""
    by_id = {turn["id"]: turn for turn in turns}
    for turn in turns:
        before = by_id.get(turn["about"])
        if before is None or before["agent"] != turn["agent"]:
            continue
        if _answers(before) and _answers(turn):
            yield before, turn


def first_answers(turns: Sequence[TurnRecord]) -> dict[str, TurnRecord]:
    """Agent -> its first answer, of agents that answer before they hear anybody."""
    firsts: dict[str, TurnRecord] = {}
    for turn in turns:
        if turn["role"] == "solution" and _opens(turn) and _answers(turn):
            firsts.setdefault(turn["agent"], turn)
    return firsts


def _answers(turn: TurnRecord) -> bool:
    """Whether a reply answers the question, and does not call a tool for it."""
    return turn["role"] in ANSWERS and not turn.get("info", {}).keys() & {"call", "unanswered"}


def _opens(turn: TurnRecord) -> bool:
    """Whether nothing was said before it that it could be about."""
    return turn["about"] is None and turn.get("round", 0) == 0


def _verdicts(
    task: Task, question: Question, turns: Sequence[TurnRecord], known: Mapping[str, str]
) -> dict[str, str]:
    """Turn id -> verdict; equal texts are judged once, and a cut reply is wrong."""
    of_text = dict(known)
    verdicts: dict[str, str] = {}
    for turn in turns:
        text = turn["text"]
        if not turn["finished"]:
            verdicts[turn["id"]] = "wrong"
            continue
        if text not in of_text:
            of_text[text], _ = judged(task, question, text)
        verdicts[turn["id"]] = of_text[text]
    return verdicts


def _quoting(task: Task, question: Question, turns: Sequence[TurnRecord]) -> int:
    """How many turns have a reply of another agent in their prompt, as peers see it.

    What stands in the opening prompts as well (a letter of a question's choices, say) is no
    quotation, nor is what may be a part of the author's own reply.
    """
    later = [turn for turn in turns if not _opens(turn)]
    if not later:
        return 0
    opening = "\n".join(turn["prompt"] for turn in turns if _opens(turn))
    told: list[tuple[str, str]] = []
    for turn in turns:
        with own_file(task.shown, f"task {task.name}: shown"):
            shown = defuse(task.shown(question, turn["text"])).strip()
        if shown and shown not in opening:
            told.append((turn["agent"], shown))

    def quotes(turn: TurnRecord) -> bool:
        own = [text for agent, text in told if agent == turn["agent"]]
        others = [text for agent, text in told if agent != turn["agent"]]
        return any(text in turn["prompt"] and not _within(text, own) for text in others)

    return sum(map(quotes, later))


def _within(text: str, others: Sequence[str]) -> bool:
    """Whether a text is a part of one of the others, and shorter."""
    return any(text in other and text != other for other in others)


def _read_already(turns: Sequence[TurnRecord]) -> dict[str, str | None]:
    """Text of an answer -> what the game's own vote read in it (`game.votes`)."""
    known: dict[str, str | None] = {}
    for turn in turns:
        info = turn.get("info", {})
        if turn["role"] not in ANSWERS or not turn["finished"]:
            continue
        if "answer" in info:
            known[turn["text"]] = info["answer"]
    return known


def _numbered(
    task: Task,
    question: Question,
    texts: Mapping[str, str | None],
    known: Mapping[str, str | None],
) -> dict[str, int | None]:
    """Name -> a number for what the text says, the same for equal answers; None for unreadable
    ones. Texts whose answer is `known` are not read again.
    """
    answers: list[str] = []
    numbers: dict[str, int | None] = {}
    for name, text in texts.items():
        said = None
        if text is not None:
            said = known[text] if text in known else _read(task, question, text)
        if said is None:
            numbers[name] = None
            continue
        equal = [place for place, known in enumerate(answers) if task.same(known, said)]
        if not equal:
            answers.append(said)
        numbers[name] = equal[0] if equal else len(answers) - 1
    return numbers


def _read(task: Task, question: Question, text: str) -> str | None:
    """The canonical answer in a text, or its ballot."""
    with own_file(task.extract, f"task {task.name}: extract"):
        said = task.extract(question, text)
    if said is None or task.ballot is None:
        return said
    return task.ballot(question, said)
