"""Whether training helps on a model and on questions, before anything is trained.

A team answers each question several times, and nobody sees another's answer. Where answers differ,
one work with the majority's answer and one with the rarest other answer are judged in every mode
that methods can take verdicts from. How far judges part the two is known without a label, and says
how far they part right from wrong where the majority is mostly right: judges that know better than
a wrong majority look like judges at chance. Where the task has labels, the figures against truth
stand beside.
Leaves out: training, other wordings than those of the methods.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal, cast, get_args

import numpy as np

from comas.config.checks import check_room
from comas.config.plan import Plan, plan
from comas.config.schema import read, settings_from
from comas.evaluation.forecast import forecast
from comas.evaluation.systems import asked, named
from comas.game.agent import Agent, takers, together
from comas.game.judgements import acceptance
from comas.game.play import GameContext, own_file, play_all
from comas.game.prompts import defuse, words
from comas.game.votes import agrees, by_answer, decide, most_frequent
from comas.hooks import Hook, Progress, Pulse
from comas.memory import with_dtypes
from comas.methods.comas import WORDING, criticise, draw_judge, score_work
from comas.methods.comas_votes import chosen_works
from comas.methods.shared.judging import WEIGHING, Score
from comas.models.sources import check_place
from comas.questions.checked import loaded
from comas.stats import Interval, auc, exact_share, finite, gain_interval, interval_record, roughly
from comas.sync import run_sync
from comas.team.build import Team
from comas.types import Episode, Memory, Question, Task, Turn, UserMistake

JudgeMode = Literal[
    "text",
    "expected",
    "p_true",
    "text after criticism",
    "p_true after criticism",
    "p_true beside own answer",
    "own answer",
]
MODES: Sequence[JudgeMode] = get_args(JudgeMode)
"""How a judge is had: the first three are what `options.score` may be, without criticism; an own
answer accepts work that gives the same.
"""
OF_WORK = MODES[:-2]
"""Modes of judges that have not answered the question themselves."""
JUDGED = 2 * len(MODES) + 1
"""Replies to a question besides its answers, at most: of two works six verdicts and a criticism
each, and an own answer.
"""
P_TRUE = "score=p_true evaluate=false"
ANSWERS_FIRST = "preset=p_true"
FORMS: Mapping[str, JudgeMode] = {
    ANSWERS_FIRST: "p_true beside own answer",
    "score=text evaluate=false": "text",
    "score=expected evaluate=false": "expected",
    P_TRUE: "p_true",
    "score=text": "text after criticism",
    "score=p_true": "p_true after criticism",
}
"""Options of comas -> the mode of its judges."""
PART = 2.0
"""Minutes that a part of the questions takes, about: no more than it is lost by Ctrl-C."""
FIRST = 4
"""Questions that are asked before it is said how long the others take."""
FEW = 16
"""Questions below which intervals are too wide to say anything."""
UNREADABLE = 0.5
"""Share of replies that cannot be read from which nobody learns from the others either."""
LEVEL = 1 - 0.05 / len(FORMS)
"""Level of the intervals that decide: .05 is left for all forms of judging together."""
EACH = 1 - (1 - LEVEL) / 2
"""Level of each of two intervals that hold together at `LEVEL`."""
LITTLE = 0.55
"""Share of the pairs, .5 being chance, that a judge prefers rightly at most, where more are not
worth training with: said only where the whole interval is below.
"""
SOUGHT = 0.6
"""Share of the pairs from which a judge should be found out, for the number of questions that would
decide.
"""
POWER = 0.8
"""Share of preflights with so many questions that find it out."""
ALIKE = 0.05
"""Share of questions with dissent below which votes compare nothing."""


@dataclass(frozen=True)
class Judged:
    """One mode of judging, over the questions on which answers differ."""

    mode: JudgeMode
    n: int
    """Questions on which both works were judged."""
    verdicts: int
    """Verdicts that were asked for."""
    unreadable: float
    """Share of them that cannot be read."""
    accepts_majority: float
    """How far work with the majority's answer is accepted, from 0 to 1."""
    accepts_rarest: float
    j: Interval | None
    """The difference of the two; None below two questions. Of beliefs, where verdicts are cut at
    the median of all of them, so that half are accepted: their level says nothing.
    """
    prefers: Interval | None
    """Share of questions on which the majority's work is accepted further, equal ones counting
    half: .5 is chance. Its interval is exact, at `LEVEL`; None below two questions.
    """
    information: float | None
    """Squared correlation of verdict and side: p (1 - p) J^2 / (m (1 - m)), with half of the works
    of either side (p) and the share m that is accepted.
    """
    against_truth: float | None = None
    """Area under the curve over all judged works by their labels: .5 is chance; None without labels
    or with works of one kind alone.
    """
    prefers_right: Interval | None = None
    """Share of the questions with a right and a wrong work, by their labels, on which the right one
    is accepted further, as `prefers`; None without labels or such questions.
    """


@dataclass(frozen=True)
class Advice:
    """Advice on one method, from the figures."""

    method: str
    verdict: Literal["can learn", "may learn", "will not", "not known"]
    why: str


@dataclass(frozen=True)
class Preflight:
    """Measurements of a team before training."""

    team: Sequence[str]
    """Names of its bases."""
    task: str
    questions: int
    answers: int
    """Blind answers per question."""
    readable: float
    """Share of answers that can be read."""
    cut: float
    """Share of answers that ran out of tokens."""
    distinct: float
    """Different readable answers per question, in the mean."""
    majority: float
    """Share of the answers to a question that give its most frequent one, in the mean."""
    dissent: float
    """Share of questions with two or more different answers."""
    example: str
    """One reply."""
    judges: Sequence[Judged]
    truth: dict[str, float] | None
    """`single`, `majority` (accuracies) and `mixed`, the share of questions that are answered both
    rightly and wrongly; None without labels.
    """
    methods: Sequence[Advice]
    tokens: int
    """Generated in all."""
    seconds: float
    step_minutes: float
    """Minutes to answer the questions of a step eight times each, without judging and learning."""
    notes: Sequence[str]
    interrupted: bool = False
    """Whether Ctrl-C ended it before all questions were asked."""

    def record(self) -> dict[str, Any]:
        """All of it as JSON, which has no infinity and no number that is none: those are null."""
        record = asdict(self)
        record["step_minutes"] = finite(self.step_minutes)
        if self.truth is not None:
            record["truth"] = {name: finite(share) for name, share in self.truth.items()}
        for judged in record["judges"]:
            for key in ("accepts_majority", "accepts_rarest"):
                judged[key] = finite(judged[key])
            for key in ("j", "prefers", "prefers_right"):
                judged[key] = judged[key] and interval_record(judged[key])
        return record


def preflight(
    *bases: str,
    questions: int = 48,
    answers: int = 8,
    labels: bool = True,
    minutes: float | None = None,
    tell: Callable[[str], None] | None = None,
    **overrides: Any,
) -> Preflight:
    """Ask a team of these bases, or of one run or config file, before it is trained:
    `comas.preflight("./my-model", task="gsm8k")`; `__` stands for the dot of a nested key.

    Several bases are a team of one agent each. `labels=False` reads none. With `minutes` as many of
    the questions are asked as fit into them. `tell` hears what takes long.
    """
    settings = settings_from(overrides)
    return run_preflight(bases, settings, questions, answers, labels, _Told(tell), minutes)


class _Told(Hook):
    """Hands on to a function what takes long."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self.tell = tell

    def working(self, progress: Progress) -> None:
        if progress.stage == "loading":
            self.note("loading the team")

    def note(self, text: str) -> None:
        if self.tell is not None:
            self.tell(text)


def run_preflight(
    bases: Sequence[str],
    settings: Mapping[str, Any],
    questions: int,
    answers: int,
    labels: bool,
    hook: Hook,
    minutes: float | None = None,
) -> Preflight:
    """Run a preflight with these settings of a config; `hook` hears how far it is.

    What is wrong with the settings or the questions is told before a model is loaded.
    """
    for name, count in (("questions", questions), ("answers", answers)):
        if type(count) is not int:
            raise UserMistake(f"{name}={count!r} is no whole number")
    if questions < 1 or answers < 2:
        raise UserMistake(
            f"questions={questions}, answers={answers}: one question at least, and two answers of"
            " each"
        )
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise UserMistake(f"minutes={minutes}: a number above 0, or leave it out")
    planned = planned_team(bases, settings)
    config = planned.config
    for source in planned.sources():
        check_place(source.where)
    check_votes(planned.task, config.task)
    asked_questions = loaded(
        planned.task,
        "train",
        path=config.data,
        limit=questions,
        seed=config.seed,
        **config.task_options,
    )
    if not asked_questions:
        raise UserMistake(f"task {config.task} has no training question to be asked")
    check_room(planned, ("solution", "evaluation", "scoring"))
    count = len(asked_questions)
    room = planned.room.get("solution", config.max_tokens)
    hook.note(
        f"asking {count} questions of {config.task}, {answers} times each: at most"
        f" {count * (answers + JUDGED):,} replies, answers of up to {room} tokens"
    )
    if count < FEW:
        hook.note(few(count))
    planned = with_dtypes(planned, hook.note)
    hook.note(forecast(planned, count, answers, JUDGED))
    hook.working(Progress("loading"))
    team = asked(planned)
    try:
        pulse = Pulse(hook, team.hosts)
        began = time.monotonic()
        plays = replace(team.method, play=play, memory=Memory(), supervised=False)
        context = replace(
            team.context(options={}, state={}, on_turn=pulse.count_turn),
            method=plays,
            options={"answers": answers},
        )
        tried = replace(team.context(options={}, state={}), method=replace(plays, play=trial))
        run_sync(play_all(tried, asked_questions[:1], "trial"))
        episodes, interrupted = run_sync(_played(context, asked_questions, pulse, minutes))
        seconds = time.monotonic() - began
        asked_questions = asked_questions[: len(episodes)]
        result = examined(team, asked_questions, episodes, answers, labels, seconds)
        return replace(result, interrupted=interrupted)
    finally:
        team.close()


async def _played(
    context: GameContext, questions: Sequence[Question], pulse: Pulse, minutes: float | None
) -> tuple[list[Episode], bool]:
    """Ask the first questions, say how long the others take, and ask as many as fit into `minutes`,
    in parts. Returns what is complete, and whether Ctrl-C ended it; before the first questions are
    complete, Ctrl-C is raised.

    Texts do not depend on how questions are divided.
    """
    per_question = context.options["answers"] + JUDGED
    expected = len(questions) * per_question
    with pulse.beating():
        pulse.turn_to("asking", expected=expected, certainty="at most")
        began = time.monotonic()
        episodes = await play_all(context, questions[:FIRST], "preflight")
        each = (time.monotonic() - began) / len(episodes)
        rest = questions[FIRST:]
        if minutes is not None:
            fitting = int((60 * minutes) / each)
            rest = rest[: max(0, fitting - FIRST)]
            asked = len(episodes) + len(rest)
            if fitting < asked:
                pulse.hook.note(f"the first {asked} questions took more than {minutes:g} minutes")
            else:
                pulse.hook.note(f"{asked} questions fit into {minutes:g} minutes")
            if rest:
                expected = len(rest) * per_question
                pulse.turn_to("asking", expected=expected, certainty="at most")
        if rest:
            left = roughly(each * len(rest))
            pulse.hook.note(f"about {left} for the other {len(rest)} questions")
        at_once = max(FEW, int(60 * PART / each))
        try:
            for start in range(0, len(rest), at_once):
                part = rest[start : start + at_once]
                episodes += await play_all(context, part, "preflight")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()  # the figures of what is complete are still to be made
            return episodes, True
    return episodes, False


def few(count: int) -> str:
    """Say what so few questions mean."""
    return f"{count} questions: intervals say next to nothing, ask {FEW} or more"


def check_votes(task: Task, name: str) -> None:
    """Refuse a task whose answers cannot be compared: a game, and one that reads none."""
    extract: Any = task.extract
    if task.rules is not None:
        raise UserMistake(
            f"task {name} is a game: nobody gives an answer that could be voted on; take a task of"
            " questions, such as task=pick"
        )
    if not callable(extract):
        raise UserMistake(
            f"task {name} has no `extract`: answers that nobody can read cannot be compared; give"
            " its file one (docs/extending.md)"
        )


def planned_team(bases: Sequence[str], settings: Mapping[str, Any]) -> Plan:
    """Plan the team that is asked: of a run, an export or a config, of copies of one base, or of
    several bases in one team.
    """
    if len(bases) > 1:
        table: dict[str, Any] = {"method": "ttrl", "lr": 1e-6}
        hosts = {f"m{index}": {"base": base} for index, base in enumerate(bases)}
        table["hosts"] = hosts
        table["agents"] = {f"a{index}": {"host": host} for index, host in enumerate(hosts)}
        return plan(read(None, {**table, **settings}), learn=False)
    if not bases:
        return plan(read(None, settings), learn=False)
    return named(bases[0], settings, {"agents": 2, "method": "ttrl"})


async def trial(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> None:
    """Have each judge weigh a verdict once, before hundreds of answers are had, or bought: a server
    that tells no log-probs of alternatives is refused here.
    """
    choices = [words({**WEIGHING, **WORDING}, task, word) for word in ("no", "yes")]
    await together(
        agent.weigh("scoring", question.prompt, choices) for agent in takers(agents, "scoring")
    )


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    answers: int,
) -> str | None:
    """Answer in turn, each alone; then judge a work of the majority and one of the rarest other
    answer in all modes.
    """
    able = takers(agents, "solution")
    authors = [able[index % len(able)] for index in range(answers)]
    prompt = words(WORDING, task, "solution", question=question.prompt, history="")
    solutions = await together(author.ask("solution", prompt) for author in authors)
    answer = await decide(question, solutions, task)
    works = chosen_works(solutions, rng, task, pairs=1, negatives="rarest", balanced=True)
    judges = [draw_judge(agents, rng, "scoring", work.agent) for work, _ in works]
    critics = [draw_judge(agents, rng, "evaluation", work.agent) for work, _ in works]
    alone = draw_judge(agents, rng, "scoring", *[work.agent for work, _ in works])
    asks = [
        _judge(question, work, side, judge, critic, task)
        for (work, side), judge, critic in zip(works, judges, critics, strict=True)
    ]
    if works:
        asks.append(_answer_first(question, works, alone, prompt, task))
    await together(asks)
    return answer


async def _judge(
    question: Question, work: Turn, side: bool, judge: Agent, critic: Agent, task: Task
) -> None:
    """Have a work judged in every mode without an own answer, and note on each scoring how it was
    had, and how far it accepts which work.
    """
    shown = defuse(task.shown(question, work.text))
    evaluation = None
    for mode in OF_WORK:
        score, *criticised = mode.split(" after ")
        if criticised and evaluation is None:
            evaluation = await criticise(question, work, shown, critic, task, own=None)
        turn = await score_work(question, work, shown, evaluation, judge, task, cast(Score, score))
        _note(turn, mode, work, side)


def _note(turn: Turn, mode: JudgeMode, work: Turn, side: bool) -> None:
    """Note on a scoring how it was had, and how far it accepts which work."""
    turn.info["mode"] = mode
    turn.info["judged"] = [[work.id, side, acceptance(turn)]]


async def _answer_first(
    question: Question,
    works: Sequence[tuple[Turn, bool]],
    agent: Agent,
    prompt: str,
    task: Task,
) -> None:
    """Have the question answered once more; note which of the works the answer accepts, and have
    them judged beside it.
    """
    turn = await agent.ask("blind", prompt)
    await decide(question, [turn], task)
    readable = turn.info["answer"] is not None
    turn.info["judged"] = [
        [work.id, side, float(agrees(turn, work.info["answer"], task)) if readable else None]
        for work, side in works
    ]
    own = defuse(task.shown(question, turn.text)) if readable else None
    shown = [defuse(task.shown(question, work.text)) for work, _ in works]
    scorings = await together(
        score_work(question, work, text, None, agent, task, "p_true", own)
        for (work, _), text in zip(works, shown, strict=True)
    )
    for scoring, (work, side) in zip(scorings, works, strict=True):
        _note(scoring, "p_true beside own answer", work, side)


# --- what it comes to


@dataclass(frozen=True)
class Judgement:
    """How far one work was accepted in one mode of judging."""

    question: int
    """Index of the question."""
    work: str
    side: bool
    """Whether the work gives the majority's answer."""
    value: float | None


def examined(
    team: Team,
    questions: Sequence[Question],
    episodes: Sequence[Episode],
    answers: int,
    labels: bool,
    seconds: float,
) -> Preflight:
    """The figures of what the team answered."""
    task = team.task
    pairs = zip(questions, episodes, strict=True)
    played = [(question, episode) for question, episode in pairs if episode.error is None]
    notes: list[str] = []
    if not played:
        raise UserMistake(f"no question could be asked: {episodes[0].error}")
    failures = [episode.error for episode in episodes if episode.error is not None]
    if failures:
        notes.append(f"{len(failures)} questions failed: {failures[0]}")
    if len(played) < FEW:
        notes.append(few(len(played)))
    solutions = [[t for t in e.turns if t.role == "solution"] for _, e in played]
    replies = [turn for turns in solutions for turn in turns]
    read = [turn for turn in replies if turn.info["answer"] is not None]
    right = _labels(played, task) if labels else None
    if labels and right is None:
        notes.append(f"no question of {task.name} has an `answer`: nothing is told by labels")
    judges = [judged(mode, _verdicts(mode, [e for _, e in played]), right) for mode in MODES]
    shares = [most_frequent(turns, task)[1] for turns in solutions]
    distinct = [len(by_answer(turns, task)) for turns in solutions]
    turns = [turn for _, episode in played for turn in episode.turns]
    tokens = sum(turn.tokens for turn in turns)
    result = Preflight(
        team=team.bases(),
        task=task.name,
        questions=len(played),
        answers=answers,
        readable=len(read) / len(replies),
        cut=statistics.fmean(not turn.finished for turn in replies),
        distinct=statistics.fmean(distinct),
        majority=statistics.fmean(shares),
        dissent=statistics.fmean(count > 1 for count in distinct),
        example=replies[0].text,
        judges=judges,
        truth=_truth(solutions, right, task) if right else None,
        methods=(),
        tokens=tokens,
        seconds=seconds,
        step_minutes=_step_minutes(team, replies, tokens, seconds),
        notes=notes,
    )
    return replace(result, methods=advice(result))


def _above(value: float, cut: float) -> float:
    """1 for a value above the cut, 0 below it, half at it."""
    return 0.5 if value == cut else float(value > cut)


def _verdicts(mode: JudgeMode, episodes: Sequence[Episode]) -> list[Judgement]:
    """All verdicts that were given in one mode."""
    verdicts: list[Judgement] = []
    for index, episode in enumerate(episodes):
        for turn in episode.turns:
            if turn.info.get("mode", "own answer") == mode:
                for work, side, value in turn.info.get("judged", ()):
                    verdicts.append(Judgement(index, work, side, value))
    return verdicts


def judged(
    mode: JudgeMode, verdicts: Sequence[Judgement], right: dict[str, bool] | None = None
) -> Judged:
    """The figures of one mode of judging; `right` says of works whether they are, by their ids."""
    readable = [(verdict, verdict.value) for verdict in verdicts if verdict.value is not None]
    pairs = _pairs((verdict.question, verdict.side, value) for verdict, value in readable)
    labelled = [
        (value, right[verdict.work])
        for verdict, value in readable
        if right and verdict.work in right
    ]
    values = [value for sides in pairs for value in sides]
    graded = any(value not in (0.0, 1.0) for value in values)
    cut = statistics.median(values) if graded else 0.5
    accepted = [(_above(more, cut), _above(less, cut)) for more, less in pairs]
    j = gain_interval([more - less for more, less in accepted]) if len(pairs) > 1 else None
    by_labels = _pairs(
        (verdict.question, right[verdict.work], value)
        for verdict, value in readable
        if right and verdict.work in right
    )
    majority, rarest = (
        statistics.fmean(side) if pairs else math.nan
        for side in (list(zip(*accepted, strict=True)) or [(), ()])
    )
    return Judged(
        mode=mode,
        n=len(pairs),
        verdicts=len(verdicts),
        unreadable=1.0 - len(readable) / len(verdicts) if verdicts else 0.0,
        accepts_majority=majority,
        accepts_rarest=rarest,
        j=j,
        prefers=preferred(pairs) if len(pairs) > 1 else None,
        information=j and information(j.mean, (majority + rarest) / 2),
        against_truth=auc(labelled),
        prefers_right=preferred(by_labels) if by_labels else None,
    )


def _pairs(values: Iterable[tuple[int, bool, float]]) -> list[tuple[float, float]]:
    """Pair, per question with both sides, the values of the true and of the false one, from
    (question, side, value).
    """
    by_question: dict[int, dict[bool, float]] = {}
    for question, side, value in values:
        by_question.setdefault(question, {})[side] = value
    return [(sides[True], sides[False]) for sides in by_question.values() if len(sides) == 2]


def preferred(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Share of pairs whose first value is greater, equal ones counting half, with an interval at
    `LEVEL` that holds for any number of pairs.

    Two exact intervals at half the error each, of the share that is unequal and of the greater ones
    among those, leave the share between .5 + u (s - .5) at their ends. It lies above a half where a
    sign test says so.
    """
    greater = sum(more > less for more, less in pairs)
    unequal = sum(more != less for more, less in pairs)
    n = len(pairs)
    u = exact_share(unequal, n, EACH)
    s = exact_share(greater, unequal, EACH)
    low = min(u.low * (s.low - 0.5), u.high * (s.low - 0.5))
    high = max(u.low * (s.high - 0.5), u.high * (s.high - 0.5))
    return Interval(0.5 + (greater - unequal / 2) / n, 0.5 + low, 0.5 + high, n)


def information(j: float, rate: float) -> float:
    """Compute what one verdict says of a work's side: the squared correlation of the two, where
    half of the works are of either side and the share `rate` is accepted; 0 where all or none are.
    """
    spread = rate * (1.0 - rate)
    return 0.25 * j * j / spread if spread else 0.0


def _labels(played: Sequence[tuple[Question, Episode]], task: Task) -> dict[str, bool] | None:
    """Whether each solution is right, by its id; None where nothing has a label."""
    right: dict[str, bool] = {}
    for question, episode in played:
        if question.answer is None:
            continue
        for turn in episode.turns:
            if turn.role == "solution":
                with own_file(task.verify, f"task {task.name}, question {question.id}: verify"):
                    verdict = task.verify(question, turn.text) if turn.finished else "wrong"
                if verdict != "failed":
                    right[turn.id] = verdict == "right"
    return right or None


def _truth(
    solutions: Sequence[Sequence[Turn]], right: dict[str, bool], task: Task
) -> dict[str, float]:
    """Accuracies of single answers and of majorities, and the share of mixed questions."""
    votes: list[bool] = []
    mixed: list[bool] = []
    for turns in solutions:
        verdicts = [right[turn.id] for turn in turns if turn.id in right]
        if not verdicts:
            continue
        best, _ = most_frequent(turns, task)
        of_majority = [t for t in turns if best is not None and agrees(t, best, task)]
        judged_ones = [right[turn.id] for turn in of_majority if turn.id in right]
        if judged_ones or not of_majority:
            votes.append(bool(judged_ones) and judged_ones[0])
        mixed.append(0 < sum(verdicts) < len(verdicts))
    return {
        "single": statistics.fmean(right.values()),
        "majority": statistics.fmean(votes) if votes else math.nan,
        "mixed": statistics.fmean(mixed),
    }


def _step_minutes(team: Team, replies: Sequence[Turn], tokens: int, seconds: float) -> float:
    """Minutes of playing a step of as many questions as the config has, with eight answers each; no
    number where nobody tells tokens, as servers behind an API may not.
    """
    if not tokens:
        return math.nan
    per_answer = statistics.fmean(turn.tokens for turn in replies)
    rate = tokens / seconds if seconds else math.inf
    return 8 * (team.config.questions or 24) * per_answer / rate / 60


def advice(result: Preflight) -> list[Advice]:
    """Say what the figures mean for each method."""
    if result.readable < UNREADABLE:
        why = (
            f"only {result.readable:.0%} of its answers can be read"
            f" ({result.cut:.0%} are cut): raise room.solution or take another base"
        )
        return [Advice("all", "will not", why)]
    by_mode = {judge.mode: judge for judge in result.judges}
    judges = {
        form: _of_judges(f"comas {form}", by_mode[mode], result.questions, result.truth is not None)
        for form, mode in FORMS.items()
    }
    telling = [form for form in (P_TRUE, "score=text") if judges[form].verdict == "can learn"]
    if P_TRUE in telling:
        # three of six long runs ended so (docs/results-pretrained.md, "Sixteen times the tokens")
        why = (
            f"{judges[P_TRUE].why}; in long runs solvers may find what fools them: take"
            " preset=p_true, whose judge answers first"
        )
        judges[P_TRUE] = replace(judges[P_TRUE], why=why)
    if result.dissent < ALIKE:
        why = f"answers differ on only {result.dissent:.0%} of the questions: nothing to judge"
        votes = Advice("comas_votes", "will not", why)
    elif telling:
        why = f"with {telling[0]} its judges know which majorities to trust"
        votes = Advice("comas_votes", "can learn", why)
    else:
        why = "its judges have to learn first; until then they accept majorities by chance"
        votes = Advice("comas_votes", "may learn", why)
    peers = replace(judges[P_TRUE], method=f"comas_peer {P_TRUE}")
    if len(set(result.team)) < 2:
        why = "it rewards agreement with other policies, and these are copies of one base"
        peers = Advice(peers.method, "will not", why)
    advices = [_of_votes(result), *judges.values(), votes, peers]
    if result.truth is not None:
        mixed = result.truth["mixed"]
        why = f"{mixed:.0%} of the questions have right and wrong answers"
        advices.append(Advice("rlvr", "can learn" if mixed >= ALIKE else "will not", why))
    return advices


def _of_votes(result: Preflight) -> Advice:
    """Advise on methods that reward the majority vote."""
    held = f"{result.majority:.0%} of the answers to a question agree, and they differ on"
    why = f"{held} {result.dissent:.0%} of the questions"
    if result.dissent < ALIKE:
        return Advice("ttrl", "will not", f"{why}: nothing to vote on")
    if result.majority * result.answers < 1.5:
        return Advice("ttrl", "will not", f"{why}: hardly two answers agree")
    return Advice("ttrl", "may learn", f"{why}; it moves towards its own majority, right or wrong")


def _of_judges(method: str, judge: Judged, questions: int, has_labels: bool) -> Advice:
    """Advise on a method that rewards these verdicts, of so many questions; where there are labels,
    the majority is no evidence.
    """
    unread = round(judge.unreadable * judge.verdicts)
    if exact_share(unread, judge.verdicts, LEVEL).low >= UNREADABLE:
        why = f"{judge.unreadable:.2f} of the verdicts cannot be read"
        return Advice(method, "will not", why)
    evidence = judge.prefers_right if has_labels else judge.prefers
    if evidence is None and judge.prefers is not None:
        return Advice(method, "not known", "no judged question has right and wrong work")
    if evidence is None:
        unreadable = f", and {unread} of {judge.verdicts} verdicts cannot be read" if unread else ""
        why = f"{judge.n} questions on which answers differ{unreadable}"
        return Advice(method, "not known", why)
    what = "right work" if has_labels else "the majority's work"
    pairs = "questions with right and wrong work" if has_labels else "questions"
    span = f"{evidence.mean:.2f} [{evidence.low:.2f}, {evidence.high:.2f}]"
    why = f"judges prefer {what} on {span} of {evidence.n} {pairs}"
    if evidence.low > 0.5:
        return Advice(method, "can learn", why)
    if evidence.high < LITTLE:
        return Advice(method, "will not", f"{why}: little better than chance at most")
    asked = math.ceil(pairs_needed(evidence.mean) * questions / evidence.n)
    why = f"{why}: that may be chance; about {asked} questions would tell (--questions {asked})"
    return Advice(method, "not known", why)


@cache
def pairs_needed(share: float) -> int:
    """Pairs, none of them equal, from which a judge that prefers this share rightly, `SOUGHT` at
    least, is told from chance in `POWER` of preflights.
    """
    share = max(SOUGHT, share)
    return next(n for n in itertools.count(2) if _power(n, share) >= POWER)


def _power(pairs: int, share: float) -> float:
    """Probability that so many pairs, none of them equal, tell a judge from chance that prefers
    this share rightly.
    """
    from scipy.special import bdtrc  # not scipy.stats, whose import takes a second

    right = np.arange(pairs + 1)
    tells = bdtrc(right - 1, pairs, 0.5) <= (1 - EACH) / 2
    return float(bdtrc(right[tells].min() - 1, pairs, share)) if tells.any() else 0.0
