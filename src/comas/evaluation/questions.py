"""Which questions an evaluation asks, and which of them its systems were trained on.

Leaves out: finding the same text in both (`evaluation.contamination`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.config.options import keywords
from comas.config.plugins import load_plugin
from comas.config.policies import Resolved
from comas.config.schema import Config
from comas.config.systems import independent, training_of
from comas.config.tools import with_tools
from comas.evaluation.contamination import Overlap, overlap
from comas.evaluation.spec import Plan
from comas.questions.checked import can_judge, loaded
from comas.team.build import Team
from comas.types import Question, Task, UserMistake


def load_questions(
    plan: Plan, teams: Sequence[Team]
) -> tuple[list[tuple[Task, list[Question]]], list[str]]:
    """Load the questions that all systems are asked; also return notes for the reader.

    They are those of the tasks that were named, or of the first system.
    """
    first = teams[0]
    own = first.config.task
    notes = list(_trained_with_other_options([team.config for team in teams]))
    found: list[tuple[Task, list[Question]]] = []
    for name in plan.tasks or [own]:
        if name == own:
            task = first.task
            place = plan.data or first.config.data
            options = dict(first.config.task_options)
        else:
            task = with_tools(load_plugin("task", plan.files.get(name, name)), first.config)
            place = plan.data
            options = {}
        if plan.data and _may_be_whole(task, plan.data, options):
            learnt = [run for run in plan.places.values() if _trained_among(run, task, plan.data)]
            options["whole"] = not learnt
            only = f"{name}: asked are the test questions of {plan.data} only"
            notes += [f"{only}: {run} was trained on others" for run in learnt]
        asked = loaded(task, "test", path=place, limit=plan.limit, seed=plan.seed, **options)
        if not asked:
            where = f" in {plan.data}" if plan.data else ""
            raise UserMistake(f"task {name} has no test questions{where}")
        if not can_judge(task, asked):
            raise UserMistake(
                f"task {name}: none of its test questions has an answer, so none can be judged; add"
                " `answer`"
            )
        if any(task.name == other.name for other, _ in found):
            raise UserMistake(
                f"task {name}: another one is called {task.name!r} as well, and results are kept by"
                " that name: name each once, and give an own task a name of its own"
                " (Task.name)"
            )
        found.append((task, asked))
    return found, notes


def _trained_with_other_options(configs: Sequence[Config]) -> Iterator[str]:
    """A note for each system of the first one's task that was trained with other options."""
    task = configs[0].task
    options = dict(configs[0].task_options)
    for config in configs:
        if config.task == task and config.task_options != options:
            system = config.out or task
            own = config.task_options
            yield f"{system}: trained with task_options {own}, asked with {options}"


def _may_be_whole(task: Task, data: str, options: Mapping[str, Any]) -> bool:
    """Whether all questions of a file can be asked, also those that it would keep for training."""
    return Path(data).is_file() and "whole" in keywords(task.load) and not options.get("whole")


def _trained_among(run: str, task: Task, file: str) -> bool:
    """Whether a run was trained on a question of a file; where that cannot be known, as if it had
    been.
    """
    try:
        trained = {question.id for question in trained_on(run)}
    except UserMistake:
        return True
    if not trained:
        return False
    return any(question.id in trained for question in task.load("test", path=file, whole=True))


def overlaps(
    names: Iterable[str], asked: Sequence[tuple[Task, Sequence[Question]]]
) -> Iterator[tuple[str, Overlap | None]]:
    """Per task what runs and exports among these were trained on; nothing for base models, whose
    past nobody here knows.
    """
    trained: list[Question] | None = []
    try:
        trainings = {independent(name): found for name in names if (found := training_of(name))}
        if not trainings:
            return
        for name in sorted(trainings):
            trained += _trained(*trainings[name])
    except UserMistake:
        trained = None
    for task, questions in asked:
        yield task.name, overlap(trained, questions) if trained is not None else None


def trained_on(name: str) -> list[Question]:
    """The training questions of a run or an export, and of the runs that it started from; by its
    own config, whatever is asked of it now.
    """
    training = training_of(name)
    return _trained(*training) if training else []


def _trained(resolved: Resolved, before: Sequence[str]) -> list[Question]:
    config = resolved.config
    options = config.task_options
    own = loaded(resolved.task, "train", path=config.data, seed=config.seed, **options)
    return own + [question for base in before for question in trained_on(base)]
