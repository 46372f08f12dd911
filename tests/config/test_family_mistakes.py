"""Mistakes in what a method remembers, in earlier selves, schedules and personas: one line that says
what, where and what to do; exit code 2.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.game.play import play_all
from comas.sync import run_sync
from comas.testing import tiny_model
from comas.types import Question, UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.games import game
from tests.support.runs import SMALL

REMEMBERING = """
from comas.tasks import pick
from comas.objective.credit import grpo
from comas.objective.losses import plain
from comas.types import Method, Question

async def play(question, agents, rng, task):
    turn = await agents[0].ask("solution", question.prompt)
    turn.info["posed"] = {posed}
    return turn.text

def settle(episodes, task):
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = 1.0

def start(questions, task):
    return {start}

def draw(state, questions, count, rng, task):
    return {draw}

def update(state, episodes, task):
    return {update}

method = Method(play, settle, grpo, plain, start=start, draw=draw, update=update)
"""
FINE = {"posed": "None", "start": "{}", "draw": "questions[:count]", "update": "state"}
HELD_OUT = 'pick.task.load("test", limit=1)[0]'
FAULTS = [
    ({"draw": "[]"}, "step 1: draw chose no question: it has to return one at least"),
    ({"draw": "[questions[0], questions[0]]"}, "step 1: draw chose two questions with the id"),
    ({"draw": "questions[:count + 1]"}, "step 1: draw chose 3 questions, and a step has 2"),
    ({"draw": "['1 2 -> 3']"}, "step 1: draw returned '1 2 -> 3', which is no Question"),
    ({"draw": f"[{HELD_OUT}]"}, "is a held-out one"),
    ({"start": "[]"}, "start returned []: the state of a method is a dict"),
    ({"start": "{'pool': {1, 2}}"}, "start: its state cannot be written as JSON"),
    ({"update": "{'mean': float('nan')}"}, "update: its state cannot be written as JSON"),
    ({"update": "None"}, "update returned None: the state of a method is a dict"),
    ({"posed": f"{HELD_OUT}.prompt"}, "is a held-out one: pose has to return None for it"),
    ({"posed": "task.load('test')[0].prompt"}, "set supervised=True on the Method to use load"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[said for _, said in FAULTS])
def test_what_a_method_remembers_and_draws_is_checked(
    fault: dict[str, str],
    said: str,
    untaught: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = REMEMBERING
    for name, code in {**FINE, **fault}.items():
        text = text.replace("{" + name + "}", code, 1)
    (tmp_path / "mine.py").write_text(text)
    words = [
        f"method={tmp_path / 'mine.py'}",
        f"hosts.home.base={untaught}",
        f"out={tmp_path / 'run'}",
        "steps=1",
        "questions=2",
        "test_questions=2",
        "eval_every=0",
        "lr=1e-3",
        "threads=1",
    ]
    assert run(["train", *words], monkeypatch) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error


def test_dealt_in_a_file_is_an_unknown_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text("dealt = false\n")
    assert run(["train", str(tmp_path / "run.toml")], monkeypatch) == 2
    assert "unknown key dealt" in capsys.readouterr().err


def test_a_persona_reaches_the_model_as_a_system_message(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "tiny")
    keys = {"agents.a0.system": "Be brief.", "agents.a1.host": "home", "hosts.home.base": str(base)}
    team = runs.team({**keys, "lr": 1e-3}, learn=False)
    host = team.hosts["home"]
    seen: list[str] = []
    sample = host.engine.sample  # type: ignore[attr-defined]

    async def listening(request):  # type: ignore[no-untyped-def]
        seen.append(host.chat.tokenizer.decode(request.prompt_ids))  # type: ignore[attr-defined]
        return await sample(request)

    host.engine.sample = listening  # type: ignore[attr-defined]

    async def play(question: Any, agents: Any, rng: Any, task: Any) -> None:
        for agent in agents:
            await agent.ask("solution", question.prompt)

    context = replace(team.context(), method=game(play), options={})
    run_sync(play_all(context, [Question(id="q", prompt="1 2")], 0))
    team.close()
    asked = "<|user|>1 2<|end|><|assistant|>"
    assert seen == [f"<|system|>Be brief.<|end|>{asked}", asked]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role"
            " not supported') }}{% endif %}<|user|>{{ m['content'] }}<|end|>{% endfor %}",
            "has no system role (System role not supported)",
        ),
        (
            "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}",
            "has no system role: it shows such messages as a user's",
        ),
    ],
)
def test_a_template_without_a_system_role_is_one_line_that_names_the_agent(
    template: str, said: str, tmp_path: Path
) -> None:
    base = tiny_model(tmp_path / "tiny")
    (base / "chat_template.jinja").write_text(template)
    with pytest.raises(UserMistake) as mistake:
        comas.train(
            hosts__home__base=str(base),
            agents__ann__system="Be brief.",
            out=str(tmp_path / "run"),
            **{**SMALL, "steps": 1},
        )
    assert str(mistake.value).startswith("agents.ann.system: the chat template of ")
    assert said in str(mistake.value)
    assert "\n" not in str(mistake.value)
