"""Measure tiny models and write their cards: `python -m tools.tiny.measure FOLDER ...`.

Finding: single answers to held-out puzzles. Checking: balanced held-out work (half right, half
spread over the fault classes), judged by an evaluation of the model's own, then scored with it and
without. Then the other roles that the model was taught. Everything is sampled.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

from comas.evaluation.accuracy import accuracy, answer_all
from comas.evaluation.setups import Asking, by_themselves
from comas.game.agent import Agent, TeamMember
from comas.game.play import GameContext, play_all
from comas.game.prompts import words
from comas.hosts.local import make_local_host
from comas.methods.comas import WORDING, read_score
from comas.models.sources import shipped_models
from comas.stats import Interval
from comas.tasks import pick
from comas.team.build import run_sync
from comas.types import Method, Question, Sampling, Task
from tools.tiny.course import VOTING, Course, World
from tools.tiny.exercises import nothing, work_to_judge
from tools.tiny.posed_roles import (
    Rows,
    by_fault,
    judging,
    proposing,
    rating,
    share,
    spoiling,
)
from tools.tiny.teach import COURSES
from tools.tiny.voting import voting

COUNT = 512
"""Held-out exercises per measurement."""
CHECKS = {
    "evaluation": "checks: evaluation, right in, T 1.0",
    "scoring": "checks: score, with its own evaluation, right in, T 1.0",
    "scoring_bare": "checks: score, without, right in, T 1.0",
}
"""Role of a judge -> its row."""


async def judge(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Evaluate the given work, score it with that evaluation, and score it without."""
    facts = {"question": question.prompt, "work": question.meta["work"]}
    evaluation = await agents[0].ask("evaluation", words(WORDING, task, "evaluation", **facts))
    evaluation.info["verdict"] = evaluation.text.endswith("right")
    facts["evaluation"] = evaluation.text
    for role in ("scoring", "scoring_bare"):
        turn = await agents[0].ask(role, words(WORDING, task, role, **facts))
        score = read_score(turn)
        turn.info["verdict"] = None if score is None else score > 1
    return None


async def finding(member: TeamMember, form: str, count: int = COUNT) -> Interval:
    """Single answers to held-out puzzles."""
    held_out = pick.load("test", form=form, limit=count)
    asking = Asking(max_tokens=member.sampling.max_tokens)
    context = asking.context(pick.task, by_themselves(pick.task), [member], 0)
    answers = await answer_all(context, held_out, "card")
    interval = accuracy(answers)
    assert interval is not None
    return interval


async def checking(member: TeamMember, form: str, count: int = COUNT) -> Rows:
    """Per judging role the share of held-out work judged rightly, then what evaluation and score
    accept by fault class.
    """
    asked = Method(judge, nothing, nothing, nothing, supervised=True)
    context = GameContext(asked, pick.task, [member], 0)
    exercises = work_to_judge(form, count)
    right = defaultdict(list)
    accepted = defaultdict(list)
    for episode in await play_all(context, exercises, "card"):
        truth = episode.question.meta["right"]
        for turn in episode.turns:
            right[turn.role].append(turn.info["verdict"] is truth)
            accepted[turn.role].append(turn.info["verdict"] is True)
    rows = {CHECKS[role]: share(outcomes) for role, outcomes in sorted(right.items())}
    rows |= by_fault(exercises, accepted["evaluation"], "evaluation")
    return rows | by_fault(exercises, accepted["scoring"], "score")


async def measure(members: Sequence[TeamMember], course: Course, count: int = COUNT) -> Rows:
    """Everything that the first member was taught; the others vote with it."""
    member = members[0]
    if course.world is not None:
        return dict(await course.world.measure(member, count))
    rows = {"finds: single answers, T 0.7": await finding(member, course.form, count)}
    if course.batch == VOTING:
        rows |= await voting(members, count)
    if "scoring" in course.batch:
        rows |= await checking(member, course.form, count)
    for role, measured in MEASURED.items():
        if role in course.batch:
            rows |= await measured(member, count)
    return rows


MEASURED = {"judging": judging, "sabotage": spoiling, "propose": proposing, "rating": rating}
"""Role -> what measures it."""


def measure_folders(folders: Sequence[Path], course: Course, count: int = COUNT) -> Rows:
    """`measure` of the models in these folders."""
    with ExitStack() as stack:
        members = []
        for folder in folders:
            host = make_local_host(folder.name, {"model": str(folder)})
            stack.enter_context(closing(host))
            members.append(TeamMember("model", host, "model", sampling=Sampling(1.0, 1.0, 64)))
        return run_sync(measure(members, course, count))


def colleagues(folder: Path, course: Course) -> list[Path]:
    """The folder, then those beside it of models that vote with this one."""
    others = [name for name, other in COURSES.items() if other.batch == VOTING == course.batch]
    beside = [folder.parent / name for name in others if name != folder.name]
    return [folder, *(path for path in beside if (path / "config.json").exists())]


def card(folder: Path, course: Course) -> str:
    """The card as Markdown."""
    rows = measure_folders(colleagues(folder, course), course)
    taught: dict[str, object] = {"seed": course.seed}
    if course.world is not None:
        home = f"world of {named_tasks(course.world)}"
    else:
        home = f"puzzles of `comas.tasks.pick` in the form `{course.form}`"
        taught = {n: v for n, v in asdict(course).items() if n not in ("batch", "steps", "world")}
    batch = ", ".join(f"{n} {role}" for role, n in course.batch.items())
    return f"""# {folder.name}

A Llama-shaped model of 0.23M parameters (2 layers, width 96), with a vocabulary of {len(course.vocabulary)} words and numbers, for the
{home}. It knows nothing else.

Taught by `python -m tools.tiny.teach {folder.name} {folder.name}`: {course.steps} steps of {batch} demonstrations on number sets
of the `warm` split. {lessons(course)} Weights are stored in fp16 and used in fp32.

| taught | |
|---|---|
{table(taught)}

Measured on {COUNT} puzzles of the held-out split (95 % intervals), by `python -m tools.tiny.measure {folder.name}`:

| | |
|---|---|
{table(rows)}
"""


def named_tasks(world: World) -> str:
    """The tasks of a world, as a card names them."""
    return " and ".join(f"`comas.tasks.{task}`" for task in world.tasks)


def lessons(course: Course) -> str:
    """What demonstrations of the course's roles show."""
    if course.world is not None:
        return course.world.lessons
    shown = [
        "Solver demonstrations list tries in the order of the numbers and stop at random, whether or"
        " not a try fits."
    ]
    if course.order:
        shown = [
            "Solver demonstrations list tries in the course's own order of the numbers and stop at"
            " random, more often at a try that fits."
        ]
    if "scoring" in course.batch:
        shown.append(
            "Judge demonstrations are honest but for `slip`; a quarter of the criticism that a"
            " scorer sees is unreliable, and four in ten have none."
        )
    if course.careless:
        shown.append(
            "The share `careless` of the checks errs in a step, and their verdict is what they then"
            " bear out."
        )
    if "sabotage" in course.batch:
        shown.append("Of right work that is rewritten 55 % becomes wrong by one number.")
    if "propose" in course.batch:
        shown.append(
            "Proposals begin with a try and keep to its sum in 55 of 100; judges of puzzles look for"
            " the number that has to be left out."
        )
    return " ".join(shown)


def table(rows: Rows | dict[str, object]) -> str:
    """Lines of a Markdown table."""
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def main() -> None:
    for name in sys.argv[1:]:
        folder = Path(name)
        if not (folder / "config.json").exists():
            folder = shipped_models()[name]
        page = folder / "README.md"
        page.write_text(card(folder, COURSES[folder.name]), encoding="utf-8")
        print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
