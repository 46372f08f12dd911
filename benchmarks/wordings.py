"""What a base's judges know, by how they are asked: `python benchmarks/wordings.py BASE [--json]
[--questions 40] [--answers 8] [KEY=VALUE ...]`.

Each question of the validation split is answered several times. Each different answer is one work,
which every wording is asked about, by the probabilities of given words: of the whole reply, of its
bare answer, of the whole reply behind a criticism of the same base, and of the whole reply beside a
blind answer of that base (`options.answer_first`). Per wording: the area under
the curve against the labels over all works, and its mean over the questions that have right and
wrong works; the share of works with the majority's answer that are preferred to the rarest other's.
The accuracies of single answers and of the majority stand above. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from comas.config.systems import system_plan
from comas.evaluation.systems import asked
from comas.game.agent import Agent, together
from comas.game.play import play_all
from comas.game.prompts import defuse, words
from comas.game.votes import decide, most_frequent
from comas.game.weighing import expected
from comas.methods.comas import WORDING, criticise, own_answer
from comas.methods.shared.judging import WEIGHING
from comas.questions.checked import loaded
from comas.stats import auc
from comas.sync import run_sync
from comas.types import Episode, Question, Task, Turn

ONE_WORD = " Answer with one word."
WORK = "Question: {question}\nProposed solution: {work}\n"
ASKED = {
    "yes or no": (WEIGHING["p_true_bare"], ("Yes", "No"), (1.0, 0.0)),
    "right or wrong": (
        WORK + "Is the proposed solution right or wrong?" + ONE_WORD,
        ("right", "wrong"),
        (1.0, 0.0),
    ),
    "correct or incorrect": (
        WORK + "Is the proposed solution correct or incorrect?" + ONE_WORD,
        ("Correct", "Incorrect"),
        (1.0, 0.0),
    ),
    "marks": (WEIGHING["expected_bare"], ("1", "2", "3"), (0.0, 0.5, 1.0)),
}
"""Name -> template, words, and how far each of the words accepts the work."""
SHOWN = ("whole", "bare", "criticised", "beside")


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, answers: int
) -> None:
    """Answer several times; then weigh each different answer in all wordings."""
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    solutions = await together(agents[0].ask("solution", prompt) for _ in range(answers))
    await decide(question, solutions, task)
    works: dict[str, Turn] = {}
    for solution in solutions:
        if solution.info["answer"] is not None:
            works.setdefault(solution.info["answer"], solution)
    await together(weigh(question, work, agents[0], task) for work in works.values())


async def weigh(question: Question, work: Turn, agent: Agent, task: Task) -> None:
    """Ask about a work in all wordings; what is believed is noted on the work."""
    whole = defuse(task.shown(question, work.text))
    criticism = await criticise(question, work, whole, agent, task, answer_first=False)
    own = await own_answer(question, work, agent, task)
    plain = "{work}", {"work": whole}
    criticised = "{work}\nCriticism of it: {criticism}"
    shown: dict[str, tuple[str, dict[str, str]]] = {
        "whole": plain,
        "bare": ("{work}", {"work": defuse(work.info["answer"])}),
        "criticised": (criticised, {"work": whole, "criticism": defuse(criticism.text)}),
        # an own answer that cannot be read leaves the work alone
        "beside": (WORDING["beside"], {"work": whole, "own": own.continuing()}) if own else plain,
    }
    beliefs: dict[str, float] = {}
    for name, (template, choices, values) in ASKED.items():
        for how, (place, texts) in shown.items():
            asked_with = {"asked": template.replace("{work}", place)}
            facts = {"question": question.prompt, **texts}
            prompt = words(asked_with, replace(task, wording={}), "asked", **facts)
            turn = await agent.weigh("scoring", prompt, choices, about=work)
            beliefs[f"{name}, {how}"] = expected(turn, values)
    work.info["beliefs"] = beliefs


def works_of(episode: Episode) -> Iterator[Turn]:
    """The works of a question that were asked about."""
    return (turn for turn in episode.turns if "beliefs" in turn.info)


def row(
    name: str, questions: Sequence[Question], episodes: Sequence[Episode], task: Task
) -> dict[str, float | str | int | None]:
    """The figures of one wording."""
    all_works: list[tuple[float, bool]] = []
    within: list[float] = []
    prefers: list[float] = []
    for question, episode in zip(questions, episodes, strict=True):
        works = list(works_of(episode))
        pairs = [
            (work.info["beliefs"][name], task.verify(question, work.text) == "right")
            for work in works
        ]
        all_works += pairs
        area = auc(pairs)
        if area is not None:
            within.append(area)
        votes = {work.info["answer"]: 0 for work in works}
        for turn in episode.turns:
            if turn.info.get("answer") in votes:
                votes[turn.info["answer"]] += 1
        beliefs = {work.info["answer"]: work.info["beliefs"][name] for work in works}
        if len(votes) > 1:
            best = max(votes, key=lambda answer: votes[answer])
            rarest = min((a for a in votes if a != best), key=lambda answer: votes[answer])
            more = beliefs[best] > beliefs[rarest]
            prefers.append(more + 0.5 * (beliefs[best] == beliefs[rarest]))
    return {
        "asked": name,
        "works": len(all_works),
        "area, all works": auc(all_works),
        "area, within a question": statistics.fmean(within) if within else None,
        "such questions": len(within),
        "prefers the majority's": statistics.fmean(prefers) if prefers else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base")
    parser.add_argument("pairs", nargs="*", help="KEY=VALUE: task=sums temperature=0.8 ...")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    team = asked(system_plan(args.base, ["agents=1", "method=ttrl", *args.pairs]))
    task = team.task
    options = team.config.task_options
    questions = loaded(
        task, "validation", path=team.config.data, limit=args.questions, seed=0, **options
    )
    method = replace(team.method, play=play)
    context = replace(team.context(), method=method, options={"answers": args.answers})
    episodes = run_sync(play_all(context, questions, "wordings"))
    team.close()
    single: list[bool] = []
    majority: list[bool] = []
    for question, episode in zip(questions, episodes, strict=True):
        solutions = [turn for turn in episode.turns if turn.role == "solution"]
        right = [task.verify(question, turn.text) == "right" for turn in solutions]
        best, _ = most_frequent(solutions, task)
        single += right
        majority.append(best is not None and task.verify(question, best) == "right")
    facts = {"single": statistics.fmean(single), "majority": statistics.fmean(majority)}
    names = [f"{name}, {how}" for name in ASKED for how in SHOWN]
    rows = [row(name, questions, episodes, task) for name in names]
    console = Console(stderr=args.json, width=140)
    console.print(f"{len(questions)} questions: {facts}")
    table = Table(*rows[0])
    for one in rows:
        cells = (f"{v:.3f}" if isinstance(v, float) else str(v) for v in one.values())
        table.add_row(*cells)
    console.print(table)
    if args.json:
        print(json.dumps({"rows": rows, **facts}))


if __name__ == "__main__":
    main()
