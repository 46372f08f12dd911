"""Questions that an evaluation asks, which of them its systems were trained on (the same text but
for case and spaces), and digests that tell whether what goes on is still what began: of questions,
of weights. Leaves out: what a base model saw before, and models behind an API, whose weights nobody
here sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from comas.config.plugins import keywords, load_plugin, names_file, with_tools
from comas.config.schema import Config
from comas.config.systems import independent, training_of
from comas.evaluation.spec import EvaluationPlan, with_a_task
from comas.models import kept
from comas.models.sources import files_of
from comas.questions.checked import RunQuestions, judged_of, loaded
from comas.storage import files as disk
from comas.team.build import Team
from comas.types import Question, Task, UserMistake


def load_questions(
    plan: EvaluationPlan, teams: Mapping[str, Team]
) -> tuple[list[tuple[Task, list[Question]]], list[str]]:
    """Load the questions that all systems are asked; also return notes for the reader.

    They are those of the tasks that were named, or of the first run or team.
    """
    first = teams[with_a_task(plan, teams)]
    own_task = first.config.task
    notes = [
        f"{team.config.out or own_task}: trained with task_options {team.config.task_options},"
        f" asked with {dict(first.config.task_options)}"
        for team in teams.values()
        if team.config.task == own_task and team.config.task_options != first.config.task_options
    ]
    questions_of: list[tuple[Task, list[Question]]] = []
    for name in plan.tasks or [own_task]:
        if name == own_task:
            task = first.task
            data = plan.data or first.config.data
            options = dict(first.config.task_options)
        else:
            config = first.config
            named_task = load_plugin("task", plan.files.get(name, name))
            task = with_tools(named_task, config.tools, config.tool_options)
            data = plan.data
            options = {}
        is_file = plan.data is not None and Path(plan.data).is_file()
        if plan.data and is_file and "whole" in keywords(task.load) and not options.get("whole"):
            asked_file = cache(partial(task.load, "test", path=plan.data, whole=True))
            learnt = [run for run in plan.places.values() if _trained_among(run, asked_file)]
            options["whole"] = not learnt
            only = f"{name}: asked are the test questions of {plan.data} only"
            notes += [f"{only}: {run} was trained on others" for run in learnt]

        load = partial(loaded, task, "test", path=data, seed=plan.seed, **options)
        questions = load(limit=plan.limit)
        if not questions:
            where = f" in {plan.data}" if plan.data else ""
            raise UserMistake(f"task {name} has no test questions{where}")
        judged = judged_of(task, questions, load)
        if not judged:
            raise UserMistake(
                f"task {name}: none of its test questions has an answer, so none can be judged; add"
                " `answer`"
            )
        if judged != questions:
            notes.append(f"{name}: questions without an answer are not asked")
        questions = judged
        if any(task.name == other.name for other, _ in questions_of):
            raise UserMistake(
                f"task {name}: another one is called {task.name!r} as well, and results are kept by"
                " that name: name each once, and give an own task a name of its own"
                " (Task.name)"
            )
        questions_of.append((task, questions))
    return questions_of, notes


def _trained_among(run: str, asked_file: Callable[[], Sequence[Question]]) -> bool:
    """Whether a run was trained on a question of a file that is asked; where that cannot be known,
    as if it had been.
    """
    try:
        trained = {question.id for question in trained_on(run)}
    except UserMistake:
        return True
    if not trained:
        return False
    return any(question.id in trained for question in asked_file())


def overlaps(
    names: Iterable[str], asked: Sequence[tuple[Task, Sequence[Question]]]
) -> Iterator[tuple[str, Overlap | None]]:
    """Per task what runs and exports among these were trained on; nothing for base models, whose
    past nobody here knows.
    """
    try:
        of_names = {independent(name): trained_on(name) for name in names}
        trained = [question for source in sorted(of_names) for question in of_names[source]]
        if not trained:
            return
    except UserMistake:
        trained = None
    for task, questions in asked:
        yield task.name, overlap(trained, questions) if trained is not None else None


def trained_on(name: str) -> list[Question]:
    """The training questions of a run or an export, and of the runs that it started from; by its
    own config, whatever is asked of it now.
    """
    training = training_of(name)
    if training is None:
        return []
    config, task, before = training
    options = config.task_options
    questions = loaded(task, "train", path=config.data, seed=config.seed, **options)
    return questions + [question for base in before for question in trained_on(base)]


# --- the same text in both


@dataclass(frozen=True)
class Overlap:
    """Test questions that were trained on."""

    exact: list[tuple[str, str]]
    """Pairs (test question's id, training question's id)."""
    tested: int

    def __str__(self) -> str:
        count = f"{len(self.exact)} of {self.tested} test questions were trained on"
        if not self.exact:
            return count
        tested, trained = self.exact[0]
        return f"{count} (such as {tested}, trained on as {trained})"


def overlap(train: Sequence[Question], test: Sequence[Question]) -> Overlap:
    """Find the test questions that were trained on; of several training questions the first."""
    trained = {_plain(question.prompt): question.id for question in reversed(train)}
    texts = [(question.id, _plain(question.prompt)) for question in test]
    return Overlap([(name, trained[text]) for name, text in texts if text in trained], len(test))


def _plain(text: str) -> str:
    """The text without case, its words divided by one space."""
    return " ".join(text.casefold().split())


# --- digests

LENGTH = 16
"""Digits that are kept in a run."""
LOADED = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges*",
)
"""Files that a model is loaded from; other files of its folder may change."""


def of_questions(questions: Sequence[Question]) -> str:
    """Texts, answers and all that verifiers read, in the order in which they are asked."""

    def plain(value: Any) -> Any:
        """Return what JSON can hold of values in own tasks' `meta`: sets have no order; of others
        the kind must do.
        """
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return type(value).__qualname__

    records = [vars(question) for question in questions]
    try:
        text = json.dumps(records, sort_keys=True, default=plain)
    except TypeError as error:  # keys of several kinds have no order
        raise UserMistake(
            f"the `meta` of the questions cannot be written as JSON ({error}): give its tables keys"
            " of text"
        ) from error
    return _sha256(text)


def of_weights(sources: Mapping[str, str]) -> str:
    """Return a digest of the models that policies are loaded from, by the bytes of their files."""
    digests = {source: _of_folder(files_of(source)) for source in set(sources.values())}
    by_policy = {policy: digests[source] for policy, source in sources.items()}
    return _sha256(json.dumps(by_policy, sort_keys=True))


def _of_folder(folder: Path) -> dict[str, str]:
    """File -> SHA-256, of all that a model is loaded from."""
    if folder.is_file():
        return {folder.name: kept.digest(folder)}
    files = {file for pattern in LOADED for file in folder.glob(pattern) if file.is_file()}
    own = [file for file in sorted(files) if file.name != "optimizer.safetensors"]
    return {file.name: kept.digest(file) for file in own}


def run_digests(config: Config, asked: RunQuestions, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a training run: of its method and task (their names, of files of the
    user's own the digests), tools of the user's own, the questions of each split, and the bases
    (`host/policy` -> folder or hub name).
    """

    def plugin(name: str) -> str:
        return disk.digest(Path(name)) if names_file(name) else name

    own_tools = [name for name in config.tools if names_file(name)]
    digests = {"method": plugin(config.method), "task": plugin(config.task)}
    digests |= {f"tool {Path(name).name}": plugin(name) for name in own_tools}
    splits = {"training": asked.train, "validation": asked.validation, "held-out": asked.test}
    for name, questions in splits.items():
        digests[f"SHA-256 of {name} questions"] = of_questions(questions)[:LENGTH]
    digests["SHA-256 of bases"] = of_weights(sources)[:LENGTH]
    return digests


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
