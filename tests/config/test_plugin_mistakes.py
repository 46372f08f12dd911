"""What authors of methods, tasks and setups get wrong ends in one line; nothing that was learnt is
lost to a fact.
"""

from __future__ import annotations

import gc
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comas.config.plugins import load_plugin, plugin_names
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.methods import comas
from comas.storage.run import Run
from comas.tasks import pick
from comas.team.build import run_sync
from comas.testing import check_method, check_wording
from comas.types import Question, Task, UserMistake
from tests.support.command import run

METHOD = """
import numpy as np
from comas.game.prompts import words; from comas.game.votes import majority
from comas.objective.credit import reinforce_pp
from comas.objective.losses import clipped
from comas.types import Method, Role


async def play(question, agents, rng, task):
    turn = await agents[0].ask("solution", question.prompt)
    turn.info["length"] = np.int64(len(turn.text))
    turn.info["words"] = set(turn.text.split())
    return {answer}


def settle(episodes, task):
    for number, episode in enumerate(episodes):
        for turn in episode.turns:
            turn.reward = {reward}


method = Method(play, settle, reinforce_pp, clipped)
"""
TASK = """
from comas.types import Question, Task


def load(split, path=None, limit=None, seed=0):
    return {questions}


task = Task(name="mine", load=load, verify=lambda q, t: "right", extract=lambda q, t: t, base="tiny", max_tokens={{"solution": 8}})
"""
SETUP = """
from comas.types import Setup


async def play(question, agents, rng, task):
    turn = await agents[0].ask("solution", question.prompt)
    return {answer}


setup = Setup(play, alone=True)
"""
TRAIN = [
    "train",
    "steps=2",
    "questions=2",
    "test_questions=0",
    "eval_every=0",
    "threads=1",
    "agents=2",
    "out=r",
    "room.solution=4",
]


def line(error: str) -> str:
    (only,) = [text for text in error.splitlines() if not text.startswith("note: ")]
    assert only.startswith("error: ")
    return only


@pytest.mark.parametrize("code", ["'no such column'", "1", "None"])
def test_a_file_that_ends_the_program_is_no_success(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK.format(questions=f"__import__('sys').exit({code})"))
    assert run([*TRAIN, "task=./mine.py"], monkeypatch) == 2
    told = line(capsys.readouterr().err)
    assert told.startswith("error: mine.py line ")
    assert told.endswith(f"SystemExit: {code.strip(chr(39))}; raise an error there instead")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"reward": "float('nan')"},
            "has reward nan: settle has to give a finite number, or None for none",
        ),
        ({"reward": "'1.0'"}, "has reward '1.0': settle has to give a finite number"),
        ({"answer": "turn"}, "play returned Turn(rehearsal/"),
        (
            {"answer": "turn.info.update(right=True) or turn.text"},
            'play notes info["right"] of turn 0/',
        ),
        ({"answer": "3"}, "play returned 3; wanted is the text that answers, or None"),
    ],
)
def test_odd_pay_and_odd_answers(
    change: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD.format(**{"reward": "1.0", "answer": "turn.text", **change}))
    assert run([*TRAIN, "method=./mine.py"], monkeypatch) == 2
    assert said in line(capsys.readouterr().err)


def test_numbers_of_numpy_are_paid_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD.format(reward="np.float32(number % 2)", answer="turn.text"))
    assert run([*TRAIN, "method=./mine.py", "samples=2"], monkeypatch) == 0
    first, second = Run.open("r").metrics()
    assert first["facts"]["solution"]["length"] >= 0
    (turn,) = next(Run.open("r").episodes(1))["turns"]
    assert turn["reward"] in (0.0, 1.0)
    assert isinstance(turn["info"]["words"], list)
    assert second["step"] == 1


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        (
            '[Question(id="q", prompt=str(n)) for n in range(8)]',
            "8 questions have the id 'q': each needs one of its own",
        ),
        ('["q0", "q1"]', "item 0 is 'q0', wanted is Question(id=..., prompt=...)"),
        ("(n for n in range(3))", "wanted is a list of Question"),
        ('[Question(id=n, prompt="p") for n in range(3)]', "`id` is 0, wanted is a text"),
        ('[Question(id="", prompt="p")]', "its id is empty"),
        ('[Question(id="q", prompt="p", answer=3)]', "`answer` is 3, wanted is a text or None"),
        ('[Question("q", "p", "answer")]', "takes 1 positional argument"),
    ],
)
@pytest.mark.parametrize("command", ["train", "eval"])
def test_odd_questions(
    command: str,
    questions: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK.format(questions=questions))
    arguments = (
        [*TRAIN, "task=./mine.py"]
        if command == "train"
        else ["eval", "tiny", "--tasks", "./mine.py", "--out", "e"]
    )
    assert run(arguments, monkeypatch) == 2
    assert said in line(capsys.readouterr().err)
    assert not Path("r").exists()
    assert not Path("e").exists()


def test_a_setup_that_returns_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SETUP.format(answer="turn"))
    with pytest.raises(UserMistake, match=r"play returned Turn\("):
        run_sync(
            EvaluationRun.create(EvaluationPlan(["tiny"], limit=2, setups=["./mine.py"]), "e").go(
                Hook()
            )
        )


def test_fields_without_their_names_are_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from comas.types import Task\n\ntask = Task('mine', None, None, None)\n")
    with pytest.raises(UserMistake, match=r"line 3: .*Task"):
        load_plugin("task", str(mine))


def test_records_take_keywords_only() -> None:
    texts: Any = ("a", "b", "c")
    with pytest.raises(TypeError):
        Question(*texts)
    with pytest.raises(TypeError):
        Task(*texts)
    assert Question(id="q", prompt="p", meta={"n": np.int64(1)}).meta["n"] == 1


SWAPPED = {
    "Method(settle, play, reinforce_pp, clipped)": "play has to be `async def`",
    "Method(play, play, reinforce_pp, clipped)": (
        "settle is called as settle(episodes, task), and play does not take that"
    ),
    "Method(play, settle, reinforce_pp, clipped, roles={'solution': 'answer'})": (
        "roles['solution'] is 'answer': wanted is Role(kind, reward=...)"
    ),
    "Method(play, settle, reinforce_pp, clipped, roles={'solution': Role('critic')})": (
        "Role('critic'): one of answer, spoilt, judge, rater, other"
    ),
}


@pytest.mark.parametrize("order", SWAPPED)
def test_mistakes_in_what_makes_a_method_are_told_at_load(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = METHOD.format(reward="1.0", answer="turn.text")
    Path("mine.py").write_text(text.replace("Method(play, settle, reinforce_pp, clipped)", order))
    assert run([*TRAIN, "method=./mine.py"], monkeypatch) == 2
    assert SWAPPED[order] in line(capsys.readouterr().err)
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("def load(split, *, path=None, limit=None, seed=0): ...", "limit stands behind a star"),
        ("def load(split, path=None, seed=0): ...", "got an unexpected keyword argument 'limit'"),
        ("def load(split, level, **others): ...", "missing a required argument: 'level'"),
        ("class Own:\n    def __call__(self, split): ...\nload = Own()", "does not take that"),
        ("load = None", "None is not a callable object"),
    ],
)
def test_a_task_that_cannot_be_loaded_as_tasks_are_is_one_line(
    load: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    imports = "from dataclasses import replace\nfrom comas.tasks import pick\n"
    Path("mine.py").write_text(f"{imports}{load}\ntask = replace(pick.task, load=load)\n")
    assert run(["train", "task=./mine.py", "--dry-run"], monkeypatch) == 2
    told = line(capsys.readouterr().err)
    assert "task './mine.py': load is called as load(split, path=None, limit=None" in told
    assert said in told


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("await agents[0].ask", "agents[0].ask", "play failed in mine.py line 11: AttributeError"),
        (
            "turn.reward = 1.0",
            "turn.reward = {}['x']",
            "settle failed in mine.py line 19: KeyError: 'x'",
        ),
        (
            "turn.reward = 1.0",
            "turn.reward = majority(episode.turns, task)",
            "settle failed in mine.py line 19 (in comas, game/votes.py line ",
        ),
        (
            "question.prompt",
            "question",
            "the prompt of role 'solution' is a Question (Question.prompt?): a text is wanted",
        ),
        (
            "question.prompt",
            "words({'solution': '{question}'}, task, 'mine', qestion=question.prompt)",
            "role 'mine' has no wording",
        ),
        (
            "question.prompt",
            "words({'mine': 'Solve: {question}'}, task, 'mine', qestion=question.prompt)",
            "nothing fills {question}: write question= in the place of qestion=",
        ),
        (
            "reinforce_pp, clipped)",
            "lambda rows, kl: 1 / 0, clipped)",
            "credit failed in mine.py line 22: ZeroDivisionError",
        ),
    ],
)
def test_mistakes_within_a_game_name_their_line(
    old: str,
    new: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD.format(reward="1.0", answer="turn.text").replace(old, new))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a coroutine that nobody awaited
        assert run([*TRAIN, "method=./mine.py"], monkeypatch) == 2
        gc.collect()
    assert said in line(capsys.readouterr().err)


def test_a_preset_that_came_along_and_sets_what_the_own_credit_does_not_take_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from comas.methods import comas\n"
        "def flat(rows, kl):\n"
        "    return [0.0 * row.mask for row in rows]\n"
        "method = replace(comas.method, advantage=flat)\n"
    )
    assert run(["train", "method=./mine.py", "preset=paper"], monkeypatch) == 2
    assert (
        "preset 'paper' of method ./mine.py sets credit.normalise, which the method does not"
        in (line(capsys.readouterr().err))
    )


def test_a_room_as_large_as_the_context_of_a_folder_is_one_line_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 64}')
    command = ["train", "base=./model", "method=ttrl", "task=sums", "room.solution=64"]
    assert run(command, monkeypatch) == 2
    assert (
        "room.solution is 64 tokens: with a prompt they do not fit the context of home/a0 (64"
        in (line(capsys.readouterr().err))
    )


@pytest.mark.parametrize("advantage", ["reinforce_pp", "grpo", "rloo"])
@pytest.mark.parametrize("loss", ["clipped", "plain"])
def test_an_advantage_in_the_place_of_the_loss_is_told_at_load(
    advantage: str, loss: str, tmp_path: Path
) -> None:
    text = (
        METHOD.format(reward="1.0", answer="turn.text")
        .replace("reinforce_pp", advantage)
        .replace("clipped", loss)
    )
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert load_plugin("method", str(path)).loss.__name__ == loss
    # a file of its own: of one name, one size and one second Python would run what it compiled
    swapped = tmp_path / "swapped.py"
    swapped.write_text(text.replace(f"{advantage}, {loss})", f"{loss}, {advantage})"))
    with pytest.raises(
        UserMistake,
        match=(f"{advantage} .*Method"),
    ):
        load_plugin("method", str(swapped))


def test_no_method_setup_or_example_that_is_shipped_is_taken_for_a_mistake() -> None:
    files = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
    kinds = {
        str(f): re.findall(r"^(method|task|setup) = ", f.read_text(), re.MULTILINE) for f in files
    }
    found = [load_plugin(kind, name) for name, of in kinds.items() for kind in of]
    found += [
        load_plugin(kind, name)
        for kind in ("method", "task", "setup")
        for name in plugin_names(kind)
    ]
    assert len(found) > 15


MISSPELT = {
    "{questoin} Solve it.": (
        "wording of 'solution': nobody fills {questoin}: did you mean {question}?"
    ),
    "{question} {histroy}": (
        "wording of 'solution': nobody fills {histroy}: did you mean {history}?"
    ),
}


@pytest.mark.parametrize("template", MISSPELT)
@pytest.mark.parametrize("kind", ["method", "task", "setup"])
def test_a_misspelt_hole_is_told_at_load(kind: str, template: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    wording = {"solution": template}
    if kind == "task":
        path.write_text(
            TASK.format(questions="[]").replace('base="tiny"', f'base="tiny", wording={wording}')
        )
    else:
        text = {
            "method": METHOD.format(reward="1.0", answer="turn.text"),
            "setup": SETUP.format(answer="turn.text"),
        }[kind]
        path.write_text(f"{text}\nWORDING = {wording}\n")
    with pytest.raises(UserMistake, match=re.escape(MISSPELT[template])):
        load_plugin(kind, str(path))
    # of a file's own, of LaTeX; one that looks like a fact and is given
    holes = "{question} {answer} {x} {works} \\boxed{}"
    path.write_text(path.read_text().replace(template, holes) + "\nGIVEN = dict(works=1)\n")
    load_plugin(kind, str(path))


def test_checks_of_methods_and_tasks_name_the_hole_that_was_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        AssertionError,
        match=r"'questoin'.*\{question\}",
    ):
        check_wording(replace(pick.task, wording={"solution": "{questoin}"}))
    monkeypatch.setitem(comas.WORDING, "scoring", "{wrok}")
    with pytest.raises(AssertionError, match=r"'scoring': .*\{wrok\}: .*\{work\}"):
        check_method(
            comas.method, pick.task, [pick.make_question((1, 2, 4, 5), 7, "three")], lambda *_: "x"
        )


OWN_TASK = """
from comas.types import Question, Task


def load(split, path=None, limit=None, seed=0):
    return [Question(id=f"{{split}}{{n}}", prompt="12 7 3 5 -> 22", answer="22") for n in range(2)]


functions = {{"verify": lambda q, t: "right", "extract": lambda q, t: t, "shown": lambda q, t: t}}
functions["{name}"] = lambda q, t: {value}
task = Task(name="own", load=load, base="tiny", max_tokens={{"solution": {room}}}, wording={{"solution": {wording}}}, **functions)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"name": "verify", "value": "t == q.answer"},
            "task own: verify returned False, wanted is right, wrong or failed",
        ),
        (
            {"name": "extract", "value": "len(t)"},
            "wanted is a text, or None for no answer",
        ),
        ({"name": "extract", "value": "t.split()[99]"}, "task own: extract failed in own.py line"),
        ({"name": "shown", "value": "None"}, "task own: shown returned None, wanted is a text"),
        ({"room": "0"}, "task own: max_tokens['solution'] is 0, wanted is a whole number"),
        ({"room": "'9'"}, "task own: max_tokens['solution'] is '9', wanted is a whole number"),
        ({"wording": "5"}, "task own: wording['solution'] is 5, wanted is a text"),
    ],
)
def test_a_task_whose_functions_return_what_no_task_returns(
    change: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    own = {"name": "ballot", "value": "t", "room": "64", "wording": "'{question}'", **change}
    Path("own.py").write_text(OWN_TASK.format(**own))
    keys = ["steps=1", "questions=2", "test_questions=2", "eval_every=0", "threads=1", "agents=2"]
    assert run(["train", *keys, "task=./own.py", "out=r"], monkeypatch) == 2
    assert said in line(capsys.readouterr().err)
