"""Measures of a finished run for `family.py`, besides the accuracies that it recorded itself.

Each is a function of the run's folder, computed once and kept in `measured.json` there. Everything
is sampled at temperature 1 on held-out puzzles. A name that ends with `, start` is of the weights
that the run began with.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from comas.config.plan import plan
from comas.config.schema import read
from comas.evaluation.systems import asked, load
from comas.game.agent import TeamMember
from comas.game.play import GameContext, play_all
from comas.methods.shared.judging import read_score
from comas.setups import debate, single
from comas.stats import pass_at
from comas.storage import files
from comas.storage.run import Run
from comas.tasks import pick
from comas.team.build import Team, run_sync
from comas.types import Episode, Method, Question, Sampling

sys.path.append(str(Path(__file__).parents[1]))  # tools/ is no part of the package
from tools.tiny.exercises import ask_each, nothing, puzzles_to_judge, work_to_judge
from tools.tiny.posed_roles import says_solvable
from tools.tiny.wording import prompt_of

FILE = "measured.json"
START = ", start"
COUNT = 256
"""Held-out puzzles or exercises per measure."""
TRIES = 16
"""k of pass@k."""
Measure = Callable[[Path, Team], float]
"""A figure of a run's team, as it is at its end or as it was at its start."""


def measured(folder: Path, name: str) -> float:
    """The measure of this name, from the file or computed now and written there."""
    file = folder / FILE
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    if name not in known:
        known[name] = _compute(folder, name)
        files.replace(file, json.dumps(known, indent=1))
    return known[name]


def _compute(folder: Path, name: str) -> float:
    if name in RECORDED:
        return RECORDED[name](folder)
    team = at_start(folder) if name.endswith(START) else load(folder)
    with closing(team):
        return TEAM_MEASURES[name.removesuffix(START)](folder, team)


def at_start(folder: Path) -> Team:
    """The run's team with the weights that it began with."""
    return asked(plan(read(folder / "config.toml")))


# --- from what the run recorded


def solvers(folder: Path) -> set[str]:
    """Names of the agents that answer questions: those that learn, or all where none does."""
    agents = Run.open(folder).config()["agents"]
    able = {n: a for n, a in agents.items() if "solution" in (a.get("roles") or ["solution"])}
    able = {name: agent for name, agent in able.items() if agent.get("lag") is None}
    return {name for name, agent in able.items() if not agent["frozen"]} or set(able)


def recorded_accuracy(folder: Path, stage: str) -> float:
    """The share of right single answers to the run's held-out puzzles, `before` or `after`, of the
    agents that answer questions.
    """
    record = Run.open(folder).read_eval(stage) or {"answers": []}
    names = solvers(folder)
    verdicts = [a["verdict"] for a in record["answers"] if a["agent"] in names]
    known = [verdict == "right" for verdict in verdicts if verdict != "failed"]
    return sum(known) / len(known) if known else math.nan


def frontier(folder: Path, quarter: int) -> float:
    """The share of answered proposals whose answers were right in .3 to .8, over a quarter (0 to 3)
    of the steps that had proposals.
    """
    posed = [metrics["posed"] for metrics in Run.open(folder).metrics() if "posed" in metrics]
    shares = [figures["frontier"] for figures in posed if "frontier" in figures]
    part = shares[len(shares) * quarter // 4 : len(shares) * (quarter + 1) // 4]
    return sum(part) / len(part) if part else math.nan


def held_out_posed(folder: Path) -> float:
    """How many of all questions that were posed, or drawn and answered, have held-out numbers."""
    run = Run.open(folder)
    found = 0
    for step, _ in enumerate(run.metrics()):
        for episode in run.episodes(step):
            noted = [turn["info"].get("posed") for turn in episode["turns"]]
            texts = [text for text in [*noted, episode["question"]["prompt"]] if text]
            found += sum(_is_held_out(text) for text in texts)
    return float(found)


def _is_held_out(text: str) -> bool:
    puzzle = pick.read_proposal(text)
    return puzzle is not None and pick.split_of(tuple(puzzle[0])) in pick.HELD_OUT


def learning_curve(folder: Path, measure: str) -> tuple[list[float], list[float]]:
    """Generated tokens in millions, and the measure at each: at both ends, and between them
    accuracies on the validation split, where it is the accuracy.
    """
    metrics = list(Run.open(folder).metrics())
    tokens = [0.0]
    shares = [measured(folder, measure + START)]
    if measure == "accuracy":
        names = solvers(folder)
        for step in metrics:
            by_agent = step.get("validation_by_agent", {})
            of_solvers = [share for name, share in by_agent.items() if name in names]
            if of_solvers:
                tokens.append(step["tokens"] / 1e6)
                shares.append(sum(of_solvers) / len(of_solvers))
    if metrics:
        tokens.append(metrics[-1]["tokens"] / 1e6)
        shares.append(measured(folder, measure))
    return tokens, shares


# --- from its team


def learning_member(team: Team, role: str) -> TeamMember:
    """The agent that learns this role."""
    able = [m for m in team.members if m.roles is None or role in m.roles]
    learning = [member for member in able if not member.frozen]
    return _open((learning or able)[0])


def _open(member: TeamMember) -> TeamMember:
    """The member at temperature 1, for every role that it is asked in."""
    return replace(member, sampling=Sampling(1.0, 1.0, 64), roles=None)


def coverage(team: Team, k: int) -> float:
    """pass@k of `TRIES` answers per puzzle of the first agent that answers questions."""
    puzzles = pick.load("test", limit=COUNT, seed=12)
    member = learning_member(team, "solution")
    context = GameContext(_game(single.play), pick.task, [member], 0)
    right = dict.fromkeys([puzzle.id for puzzle in puzzles], 0)
    for episode in run_sync(play_all(context, puzzles, "coverage", TRIES)):
        right[episode.question.id] += _is_right(episode.question, episode.turns[0].text)
    return math.fsum(pass_at(TRIES, count, k) for count in right.values()) / len(right)


def _game(play: Any) -> Method:
    return Method(play, nothing, nothing, nothing)


def _is_right(question: Question, text: str) -> bool:
    return pick.verify(question, text) == "right"


def critic(folder: Path, team: Team) -> float:
    """Balanced accuracy of evaluations, half of the held-out work being right; what cannot be read
    is judged wrongly.
    """
    exercises = work_to_judge("three", 2 * COUNT)
    prompts = [prompt_of("evaluation", question=e.prompt, work=e.meta["work"]) for e in exercises]
    turns = run_sync(ask_each(learning_member(team, "evaluation"), "evaluation", prompts))
    said = [turn.text.split()[-1:] if turn.finished else [] for turn in turns]
    honest = ["right" if exercise.meta["right"] else "wrong" for exercise in exercises]
    right = [words == [truth] for words, truth in zip(said, honest, strict=True)]
    return sum(right) / len(right)


def assessments(folder: Path, team: Team) -> float:
    """Balanced accuracy of saying whether puzzles can be solved, half of which can."""
    puzzles = puzzles_to_judge(2 * COUNT)
    prompts = [prompt_of("assess", question=text) for text, _ in puzzles]
    turns = run_sync(ask_each(learning_member(team, "assess"), "assess", prompts))
    right = [says_solvable(turn) is truth for turn, (_, truth) in zip(turns, puzzles, strict=True)]
    return sum(right) / len(right)


def win_rate(folder: Path, team: Team) -> float:
    """How often the run's own frozen judge scores the solver's answer above one of its start.

    Equal scores are half a win, and what it cannot read is no score at all.
    """
    puzzles = pick.load("test", limit=COUNT, seed=13)
    judge = _open(next(m for m in team.members if m.roles and "judging" in m.roles))
    with closing(at_start(folder)) as start:
        first = _scores(puzzles, learning_member(start, "solution"), judge)
    last = _scores(puzzles, learning_member(team, "solution"), judge)
    pairs = [(a, b) for a, b in zip(last, first, strict=True) if a is not None and b is not None]
    wins = [0.5 if a == b else float(a > b) for a, b in pairs]
    return sum(wins) / len(wins) if wins else math.nan


def _scores(puzzles: Sequence[Question], solver: TeamMember, judge: TeamMember) -> list[int | None]:
    solved = [prompt_of("solution", question=q.prompt, history="") for q in puzzles]
    works = run_sync(ask_each(solver, "solution", solved))
    prompts = [
        prompt_of("judging", question=q.prompt, work=pick.shown(q, work.text))
        for q, work in zip(puzzles, works, strict=True)
    ]
    return [read_score(turn) for turn in run_sync(ask_each(judge, "judging", prompts))]


def debate_gain(folder: Path, team: Team) -> float:
    """The mean accuracy of a debate's last replies minus that of its first, over all agents."""
    puzzles = pick.load("test", limit=COUNT, seed=14)
    members = [_open(member) for member in team.members]
    revisions = team.config.options.get("revisions", 1)
    context = GameContext(_game(debate.play), pick.task, members, 0, {"revisions": revisions})
    episodes = run_sync(play_all(context, puzzles, "debate"))
    return _accuracy_of_round(episodes, revisions) - _accuracy_of_round(episodes, 0)


def _accuracy_of_round(episodes: Sequence[Episode], at: int) -> float:
    pairs = [(e.question, t) for e in episodes for t in e.turns if t.round == at]
    right = [turn.finished and _is_right(question, turn.text) for question, turn in pairs]
    return sum(right) / len(right)


RECORDED: dict[str, Callable[[Path], float]] = {
    "accuracy": lambda folder: recorded_accuracy(folder, "after"),
    "accuracy, start": lambda folder: recorded_accuracy(folder, "before"),
    "frontier, first quarter": lambda folder: frontier(folder, 0),
    "frontier, last quarter": lambda folder: frontier(folder, 3),
    "held-out posed": held_out_posed,
}
"""Name -> what the run recorded."""
TEAM_MEASURES: dict[str, Measure] = {
    "pass@1": lambda _, team: coverage(team, 1),
    "pass@16": lambda _, team: coverage(team, TRIES),
    "critic": critic,
    "assessment": assessments,
    "win rate": win_rate,
    "debate gain": debate_gain,
}
"""Name -> what its team does when it is asked."""
