"""CoMAS for programs: the team writes programs and inputs for them, and running them is the judge.

Per question `programs` programs are written, none seeing another's, and `inputs` critics write one
call each of the function that is asked for, without saying what it gives. Every program is run on
every input, each call once, in the task's sandbox. On an input, programs that do the same are a
cluster; a crash and a time-out are none, and the largest cluster is one that has more programs than
any other, so that a tie is none.

- solution: the mean over the inputs of the share of all programs that are in the largest cluster,
  where it is in it, and 0 where not; 0 for a program that cannot be read; nothing without inputs;
- evaluation: from -1 to 1, how far its input tells programs apart as the other inputs do: the rank
  correlation (Kendall's tau-b, over the programs that run on some input) of being in its largest
  cluster with the reward on all other inputs. 0 where all agree or crash, or where the others tell
  none apart; nothing where there is no other input; -1 for a reply that cannot be read.

What counts as an input is one call alone, with literal arguments; what it should give is not looked
at where a critic writes it nevertheless. A second call, a name or an expression cannot be read,
judges nobody, and is rewarded with -1 as an unreadable score is in CoMAS. The same call by two
critics is one input, so that none is borne out by its own copy; a critic's other input is one of
those that bear it out, since what programs do on it is no opinion. Credit compares replies of one
policy to one question, and no more agents are drawn for a role than can write two each: with one
reply of each there would be nothing to compare.

After CoSPlay (arXiv 2605.23491: a matrix of programs and peers' tests), ACE (arXiv 2605.16299) and
Code-A1 (arXiv 2603.15611: who writes tests is rewarded for the failures that they cause). Unlike
these, critics write inputs alone: no wrong expectation can make right programs fail, and what an
input is worth follows from the other inputs. Nobody sees a test that the question itself does not
show. Leaves out: programs that are not functions of literal values, tasks that ask for other things
besides programs (`mix`), revisions.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import itertools
import keyword
import math
import random
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from comas.game.agent import Agent, takers, together
from comas.game.prompts import words
from comas.game.votes import SIDE_BY_SIDE, given, leading
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.objective.rewards import in_role
from comas.types import Count, Episode, Method, Question, Role, Task, Turn

WORDING = {
    "solution": (
        "Write a program in Python for this task:\n{question}\n\nGive the whole program in one"
        " block that begins with ```python and ends with ```."
    ),
    "input": (
        "{question}\n\nDo not write the function. Write one new call of it, none of those above, on"
        " which a wrong program would fail, with literal arguments and without its result. Reply"
        " with the call alone, in one line that begins with {name}("
    ),
}
FENCE = "```"
LONGEST = 1000
"""Characters of a call that is read."""
HEADER = 20
"""Lines that the head of a function may take."""
_ASSERT = re.compile(r"^[ \t]*+assert\b(.*)", re.MULTILINE)
_CALLED = re.compile(r"(?<![\w.])([^\W\d]\w*+)\s*+\(")
_DEFINED = re.compile(r"\bdef\s++(\w++)\s*+\(")
_SHOWN = re.compile(rf"{FENCE}|~~~|^[ \t]*+assert\b", re.MULTILINE)
"""Where the calls begin that a question shows in a block or in bare asserts."""
Clusters = Sequence[int | None]
"""Per program the number of its cluster on one input; None where it gave no output."""


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    programs: Count = 4,
    inputs: Count = 4,
) -> str | None:
    """Have programs and inputs written side by side, and run them all; the program answers that is
    in most of the largest clusters.
    """
    name = function_of(question.prompt)
    parameters = parameters_of(question.prompt, name)
    facts = {"question": question.prompt, "history": "", "name": name or "NAME"}
    solving = words(WORDING, task, "solution", **facts)
    testing = words(WORDING, task, "input", **facts)
    authors = dealt(agents, rng, "solution", programs)
    critics = dealt(agents, rng, "evaluation", inputs)
    asks = [author.ask("solution", solving) for author in authors]
    asks += [critic.ask("evaluation", testing) for critic in critics]
    turns = await together(asks)
    solutions = turns[:programs]
    evaluations = turns[programs:]
    for evaluation in evaluations:
        evaluation.info["input"] = read_input(evaluation, name, parameters)
    # in a thread: programs may take seconds, for which other games do not wait
    await asyncio.to_thread(run_all, question, solutions, evaluations, task)
    return _answer(solutions, evaluations)


def dealt(agents: Sequence[Agent], rng: random.Random, role: str, count: int) -> list[Agent]:
    """Who takes a role `count` times in turn: agents that are drawn, so few that each takes it
    twice where one can.
    """
    able = takers(agents, role)
    drawn = rng.sample(able, min(len(able), max(1, count // 2)))
    return [drawn[index % len(drawn)] for index in range(count)]


def function_of(prompt: str) -> str | None:
    """The function that a question asks for: the first that its asserts call, else the last that it
    defines; None where it names none.
    """
    for line in _ASSERT.findall(prompt):
        for name in _CALLED.findall(line):
            if not keyword.iskeyword(name) and not hasattr(builtins, name):
                return name
    defined = _DEFINED.findall(prompt)
    return defined[-1] if defined else None


def parameters_of(prompt: str, name: str | None) -> list[str]:
    """The parameters of a function that a question defines, in their order; empty where it shows
    none, or takes some by position or by keyword only.
    """
    header = re.search(rf"\bdef\s+{re.escape(name or '')}\s*\(", prompt)
    lines = prompt[header.start() :].split("\n")[:HEADER] if header else []
    for end in range(1, len(lines) + 1):
        try:
            (function,) = ast.parse("\n".join([*lines[:end], "    pass"])).body
        except (SyntaxError, ValueError):
            continue  # it goes on in the next line
        assert isinstance(function, ast.FunctionDef)
        arguments = function.args
        if arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
            return []
        return [argument.arg for argument in arguments.args]
    return []


def read_input(turn: Turn, name: str | None, parameters: Sequence[str] = ()) -> str | None:
    """The call that ends a finished reply, alone on its last line or in a block behind which
    nothing stands, in one writing for all calls with the same values: keywords are bound to
    `parameters`. None where that is anything else than one call of `name`
    with literal arguments. It may be asserted, and be compared with a value, which is not looked
    at: questions show calls so, and small models write what they are shown. Where no name is known,
    any function may be called that Python has not.
    """
    text = _ending(turn.text)
    if not turn.finished or len(text) > LONGEST:
        return None
    try:
        call = _bare(ast.parse(text))
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        if any(argument.arg is None for argument in call.keywords):  # f(**{...})
            return None
        for value in [*call.args, *[argument.value for argument in call.keywords]]:
            ast.literal_eval(value)
        if any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(call)):
            return None  # a literal by Python's rules, but a pattern that was not filled in
        written = _written(call, parameters)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    called = call.func.id
    asked_for = called == name if name is not None else not hasattr(builtins, called)
    return written if asked_for else None


def _written(call: ast.Call, parameters: Sequence[str]) -> str:
    """A call by its values. Raises ValueError for a parameter that is given twice."""
    positional = [canonical(ast.literal_eval(value)) for value in call.args]
    keywords = [(k.arg or "", canonical(ast.literal_eval(k.value))) for k in call.keywords]
    named = dict(keywords)
    if len(named) < len(keywords) or not named.keys().isdisjoint(parameters[: len(positional)]):
        raise ValueError("a parameter is given twice")
    for parameter in parameters[len(positional) :]:
        if parameter not in named:
            break
        positional.append(named.pop(parameter))
    arguments = [*positional, *[f"{key}={named[key]}" for key in sorted(named)]]
    assert isinstance(call.func, ast.Name)
    return f"{call.func.id}({', '.join(arguments)})"


def canonical(value: object) -> str:
    """A literal value in one writing: members of sets and keys of dicts have one order."""
    match value:
        case list():
            return f"[{', '.join(map(canonical, value))}]"
        case tuple():
            comma = "," if len(value) == 1 else ""
            return f"({', '.join(map(canonical, value))}{comma})"
        case set() if value:
            return "{" + ", ".join(sorted(map(canonical, value))) + "}"
        case dict():
            pairs = sorted(f"{canonical(key)}: {canonical(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case float() if math.isinf(value):
            return "1e999" if value > 0 else "-1e999"
        case _:  # a complex number as a sum
            return ast.unparse(ast.parse(repr(value), mode="eval"))


def _bare(module: ast.Module) -> ast.expr | None:
    """The expression that is all of a module, without an assert and an expected value around it."""
    statement = module.body[0] if len(module.body) == 1 else None
    if isinstance(statement, ast.Expr):
        tested = statement.value
    elif isinstance(statement, ast.Assert):
        tested = statement.test
    else:
        return None
    if isinstance(tested, ast.Compare) and [type(sign) for sign in tested.ops] == [ast.Eq]:
        return tested.left
    return tested


def _ending(text: str) -> str:
    """The last line of a text without backticks around it, or the block that ends it."""
    lines = [line.strip() for line in text.strip().split("\n")]
    if lines[-1] != FENCE:
        return lines[-1].strip("`")
    begins = [index for index, line in enumerate(lines[:-1]) if line.startswith(FENCE)]
    return "\n".join(lines[begins[-1] + 1 : -1]) if begins else ""


def run_all(
    question: Question, solutions: Sequence[Turn], evaluations: Sequence[Turn], task: Task
) -> None:
    """Run every program on every input. Notes on each solution whether it is `readable`, and on
    each evaluation whose input is, its `clusters`: one per solution, in their order.

    Raises HostFailure where the sandbox breaks down.
    """
    programs = [given(question, solution, task) for solution in solutions]
    calls = [evaluation.info["input"] for evaluation in evaluations]
    distinct = dict.fromkeys(program for program in programs if program is not None)
    cells = [(call, program) for call in dict.fromkeys(calls) if call for program in distinct]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        ran = threads.map(lambda cell: output(question, cell[0], cell[1], task), cells)
        outputs = dict(zip(cells, ran, strict=True))
    for solution, program in zip(solutions, programs, strict=True):
        solution.info["readable"] = program is not None
    for evaluation, call in zip(evaluations, calls, strict=True):
        if call is not None:
            seen = [None if program is None else outputs[call, program] for program in programs]
            distinct_outputs = dict.fromkeys(text for text in seen if text is not None)
            numbers = {text: number for number, text in enumerate(distinct_outputs)}
            evaluation.info["clusters"] = [None if text is None else numbers[text] for text in seen]


def output(question: Question, call: str, program: str, task: Task) -> str | None:
    """Return what a program does on a call, as a text that is the same for all that do the same;
    None where it gives no value in time.

    It is the program's ballot on a question that shows this call alone, so that the task says how
    programs are run, and what is the same: what is done to arguments counts, as in a vote.
    """
    assert task.ballot is not None, "Method.needs"
    ballot = task.ballot(showing(question, call), program)
    return None if ballot == program else ballot  # itself: the call could not be made


def showing(question: Question, call: str) -> Question:
    """The question with this call in the place of those that it shows."""
    before = _SHOWN.split(question.prompt, maxsplit=1)[0].rstrip()
    return replace(question, prompt=f"{before}\n\n{FENCE}python\nassert {call}\n{FENCE}")


def _answer(solutions: Sequence[Turn], evaluations: Sequence[Turn]) -> str | None:
    """The readable program that is in most of the largest clusters, the first among equals; None
    where none can be read.
    """
    matrix = clusters_of(evaluations)
    largest = [[votes > 0 for votes in agreeing(clusters)] for clusters in matrix.values()]
    readable = [index for index, turn in enumerate(solutions) if turn.info["readable"]]
    if not readable:
        return None
    best = max(readable, key=lambda index: sum(row[index] for row in largest))
    return solutions[best].text


def clusters_of(evaluations: Sequence[Turn]) -> dict[str, Clusters]:
    """Input -> the clusters of the programs on it, for inputs that can be read, each once."""
    readable = [turn for turn in evaluations if turn.info["input"] is not None]
    return {turn.info["input"]: turn.info["clusters"] for turn in readable}


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Reward programs for agreeing, and inputs for telling programs apart as the others do."""
    for episode in episodes:
        solutions = in_role(episode, "solution")
        evaluations = in_role(episode, "evaluation")
        matrix = clusters_of(evaluations)
        shares = shares_of(list(matrix.values()), len(solutions))
        for solution, share in zip(solutions, shares, strict=True):
            solution.reward = share if solution.info["readable"] else 0.0
        for evaluation in evaluations:
            call = evaluation.info["input"]
            evaluation.reward = -1.0 if call is None else separation(call, matrix)
        for turn in [*solutions, *evaluations]:
            turn.group = f"{episode.id}/{turn.policy}/{turn.role}"


def agreeing(clusters: Clusters) -> list[int]:
    """Per program how many are in the largest cluster, itself among them, where it is in it; 0
    where it is not. All 0 where two clusters are the largest, or there is no output.
    """
    largest, size, next_size = leading(clusters)
    return [size if cluster == largest and size > next_size else 0 for cluster in clusters]


def shares_of(matrix: Sequence[Clusters], programs: int) -> list[float | None]:
    """Per program the mean over the inputs of the share of all programs that it agrees with; None
    where there are no inputs.
    """
    if not matrix:
        return [None] * programs
    totals = _totals([agreeing(clusters) for clusters in matrix])
    return [total / (programs * len(matrix)) for total in totals]


def separation(call: str, matrix: Mapping[str, Clusters]) -> float | None:
    """Measure how far an input tells programs apart as the other inputs do, from -1 to 1; None
    where there are no others. Programs that run on no input at all are left out: by them any input
    would be borne out.
    """
    others = [agreeing(clusters) for other, clusters in matrix.items() if other != call]
    if not others:
        return None
    by_program = list(zip(*matrix.values(), strict=True))
    running = [index for index, row in enumerate(by_program) if set(row) != {None}]
    agreements = agreeing(matrix[call])
    totals = _totals(others)
    return rank_correlation(
        [int(agreements[index] > 0) for index in running], [totals[index] for index in running]
    )


def _totals(rows: Sequence[Sequence[int]]) -> list[int]:
    """The sum of each column: whole numbers, so that equal ones are equal."""
    return [sum(column) for column in zip(*rows, strict=True)]


def rank_correlation(xs: Sequence[int], ys: Sequence[int]) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in the other one, over the geometric
    mean of the pairs that each side tells apart; 0 where one side tells none apart.
    """
    pairs = list(itertools.combinations(zip(xs, ys, strict=True), 2))
    signs = [(_sign(x - other_x), _sign(y - other_y)) for (x, y), (other_x, other_y) in pairs]
    apart = sum(abs(x) for x, _ in signs) * sum(abs(y) for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(apart) if apart else 0.0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


KL = {"solution": 0.1, "evaluation": 0.1}
ROLES = {
    "solution": Role(
        "answer",
        reward="the mean share of programs that do the same on an input, where most do; else 0",
    ),
    "evaluation": Role(
        "judge", reward="telling programs apart as the other inputs do, -1 to 1; -1 if unreadable"
    ),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    KL,
    roles=ROLES,
    needs=("ballot",),
    presets={"stable": {"questions": 24}},
    task="mbpp",
)
