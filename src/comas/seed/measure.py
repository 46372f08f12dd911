"""Measure seed models and write their cards: `python -m comas.seed.measure FOLDER ...`.

Finding: single answers to held-out puzzles. Checking: balanced held-out work (half right, half
spread over the fault classes), judged by an evaluation of the model's own, then scored with it and
without. Everything is sampled.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comas.evaluation.accuracy import accuracy, answer_all
from comas.game.agent import Agent, Member
from comas.game.play import Scene, play_all
from comas.game.prompts import words
from comas.hosts.build import make_local_host
from comas.methods.comas import WORDING, read_score
from comas.seed.course import Course
from comas.seed.teach import COURSES, STEPS
from comas.seed.work import FAULTS, faulty, is_right, write_try
from comas.stats import Interval, wilson
from comas.tasks import pick
from comas.team.build import run_sync
from comas.types import Method, Question, Sampling, Task

COUNT = 512


def exercises(form: str, count: int) -> list[Question]:
    """Held-out puzzles with a piece of work in `meta`: half right, half faulty in turn."""
    found = []
    for i, q in enumerate(pick.load("test", form=form, limit=count, seed=7)):
        rng = random.Random(q.id)
        fault = None if i % 2 == 0 else FAULTS[(i // 2) % len(FAULTS)]
        if fault is None:
            chosen = [int(n) for n in (q.answer or "").split()]
            rng.shuffle(chosen)
        else:
            chosen = faulty(rng, q, fault)
        text = write_try(rng, chosen, 0.0) if form == "two" else " ".join(map(str, chosen))
        meta = {
            **q.meta,
            "work": f"# {text}",
            "right": is_right(q, chosen),
            "fault": fault or "none",
        }
        found.append(Question(id=q.id, prompt=q.prompt, kind=q.kind, answer=None, meta=meta))
    return found


async def judge(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Evaluate the given work, score it with that evaluation, and score it without."""
    facts = {"question": question.prompt, "work": question.meta["work"]}
    evaluation = await agents[0].ask("evaluation", words(WORDING, task, "evaluation", **facts))
    evaluation.info["said"] = evaluation.text.endswith("right")
    for role in ("scoring", "scoring_bare"):
        turn = await agents[0].ask(
            role, words(WORDING, task, role, **facts, evaluation=evaluation.text)
        )
        score = read_score(turn)
        turn.info["said"] = None if score is None else score > 1
    return None


async def measure(
    folder: Path, form: str, count: int = COUNT
) -> tuple[Interval, dict[str, Interval], dict[str, Interval]]:
    """Finding, then checking per role, then acceptance by the score per fault class."""
    host = make_local_host("home", {"model": str(folder)})
    try:
        member = Member("model", host, "model", sampling=Sampling(1.0, 1.0, 64))
        held_out = pick.load("test", form=form, limit=count)
        found = accuracy(await answer_all([member], pick.task, held_out, seed=0, occasion="card"))

        def nothing(*_: Any) -> Any:
            """Nobody is paid and nobody learns."""

        asked = Method(judge, nothing, nothing, nothing, supervised=True)
        scene = Scene(asked, pick.task, [member], 0)
        episodes = await play_all(scene, exercises(form, count), "card")
    finally:
        host.close()
    right = defaultdict(list)
    by_fault = defaultdict(list)
    for e in episodes:
        for turn in e.turns:
            right[turn.role].append(turn.info["said"] is e.question.meta["right"])
            if turn.role == "scoring":
                by_fault[e.question.meta["fault"]].append(turn.info["said"] is True)
    assert found is not None
    counted = lambda d: {k: wilson(sum(v), len(v)) for k, v in sorted(d.items())}  # noqa: E731
    return found, counted(right), counted(by_fault)


def card(folder: Path, course: Course) -> str:
    """The card as Markdown."""
    finding, checking, accepted = run_sync(measure(folder, course.form))
    taught = "\n".join(f"| {k} | {v} |" for k, v in asdict(course).items())
    batch = ", ".join(f"{n} {role}" for role, n in course.batch.items())
    rows = [f"| finds: single answers, T 0.7 | {finding} |"]
    names = {
        "evaluation": "evaluation",
        "scoring": "score, with its own evaluation",
        "scoring_bare": "score, without",
    }
    rows += [f"| checks: {names[k]}, right in, T 1.0 | {v} |" for k, v in checking.items()]
    rows += [f"| score accepts work with fault `{k}` | {v} |" for k, v in accepted.items()]
    return f"""# {folder.name}

A Llama-shaped model of 0.23M parameters (2 layers, width 96), with a vocabulary of words and the numbers 0 to 60, for the
puzzles of `comas.tasks.pick` in the form `{course.form}`. It knows nothing else.

Taught by `python -m comas.seed.teach {folder.name} {folder.name}`: {STEPS} steps of {batch} demonstrations on number sets
of the `warm` split. Solver demonstrations list tries in the order of the numbers and stop at random, whether or not a
try fits. Judge demonstrations are honest but for `slip`; a quarter of the criticism that a scorer sees is unreliable,
and four in ten have none. Weights are stored in fp16 and used in fp32.

| taught | |
|---|---|
{taught}

Measured on {COUNT} puzzles of the held-out split (95 % intervals), by `python -m comas.seed.measure {folder.name}`:

| | |
|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    for name in sys.argv[1:]:
        folder = Path(name)
        if not (folder / "config.json").exists():
            folder = Path(__file__).parent / "models" / name
        (folder / "README.md").write_text(card(folder, COURSES[folder.name]), encoding="utf-8")
        print((folder / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
