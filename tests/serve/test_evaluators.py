"""lm-eval and inspect_ai ask a team and get the numbers of `comas eval`: greedy answers to the same
questions are right in the same number of cases, and cost as many tokens.

They are programs of an environment of their own, which COMAS_EVALUATORS names (`make test-serve`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from comas.config.schema import settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.evaluation.systems import system_team
from comas.questions.checked import loaded
from comas.team.build import Team, run_sync
from comas.testing import Scripted
from tests.support.serving import Running, running, scripted

PROGRAMS = os.environ.get("COMAS_EVALUATORS", "")
TASK = Path(__file__).parent / "evaluators"
QUESTIONS = 24
GREEDY = ["eval_temperature=0", "threads=1"]

pytestmark = [
    pytest.mark.evaluators,
    pytest.mark.skipif(not PROGRAMS, reason="COMAS_EVALUATORS names no environment"),
]


def program(name: str) -> str:
    """A command of their environment; without it the test is skipped."""
    found = Path(PROGRAMS) / "bin" / name
    if not found.exists():
        pytest.skip(f"{name} is not installed in {PROGRAMS}")
    return str(found)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = system_team("tiny", GREEDY)
    yield team
    team.close()


@pytest.fixture(scope="module")
def served(team: Team) -> Iterator[Running]:
    with running(team) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """Setup -> the cell of `comas eval` of the same questions."""
    setups = ["single", "debate"]
    plan = EvaluationPlan(["tiny"], limit=QUESTIONS, setups=setups, settings=settings_of(GREEDY))
    found = run_sync(EvaluationRun.create(plan, str(tmp_path_factory.mktemp("e") / "e")).go())
    cells = {cell["setup"]: cell for cell in found["cells"]}
    assert 0 < cells["single"]["right"] < QUESTIONS
    return cells


@pytest.fixture
def task(team: Team, tmp_path: Path) -> Path:
    """A folder with their task and our questions."""
    folder = Path(shutil.copytree(TASK, tmp_path / "task"))
    questions = loaded(team.task, "test", limit=QUESTIONS, seed=0)
    rows = [{"question": q.prompt, "answer": q.answer, **q.meta} for q in questions]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text)
    yaml = (folder / "pick.yaml").read_text()
    (folder / "pick.yaml").write_text(yaml.replace("rows.jsonl", str(folder / "rows.jsonl")))
    return folder


def call(command: list[str], folder: Path, **variables: str) -> str:
    """Run one of their programs, away from the network and from anybody's home."""
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    env = {"PATH": os.environ["PATH"], **home, **variables}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def lm_eval(task: Path, served: Running, model: str, *arguments: str) -> dict[str, Any]:
    """Run lm-eval: its results."""
    kind = "local-chat-completions"
    settings = [
        f"model={model}",
        f"base_url={served.url}/chat/completions",
        "num_concurrent=8",
        "max_retries=1",
        "tokenizer_backend=None",
        "tokenized_requests=False",
    ]
    command = [program("lm_eval"), "--model", kind, "--model_args", ",".join(settings)]
    command += ["--tasks", "comas_pick", "--include_path", str(task), "--output_path", "out"]
    call([*command, *arguments], task, OPENAI_API_KEY="none")
    (file,) = (task / "out").rglob("results_*.json")
    return json.loads(file.read_text())["results"]["comas_pick"]


@pytest.mark.parametrize("model", ["single", "debate"])
def test_lm_eval_finds_the_accuracy_of_comas_eval(
    model: str, task: Path, served: Running, ours: Mapping[str, Mapping[str, Any]]
) -> None:
    found = lm_eval(task, served, model, "--apply_chat_template")
    assert round(found["right,none"] * QUESTIONS, 6) == ours[model]["right"]


def test_examples_and_instructions_of_lm_eval_reach_every_agent(task: Path) -> None:
    team = scripted(lambda *_: "1 + 2 = 3 + 4 = 7")
    (host,) = team.hosts.values()
    assert isinstance(host, Scripted)
    told = ["--system_instruction", "Add three.", "--num_fewshot", "2", "--fewshot_as_multiturn"]
    chat = ["--apply_chat_template", "--limit", "3"]
    with running(team) as served:
        lm_eval(task, served, "debate", *told, *chat)
    prompts = [prompt for _, _, _, prompt, _ in host.asked]
    assert len(prompts) == 3 * 8
    for prompt in prompts:
        assert "Add three.\n\nThe conversation so far:" in prompt
        assert prompt.count("Your answer:\n") == 2
        assert "The user now asks:\n\n" in prompt


@pytest.mark.parametrize("model", ["single", "debate"])
def test_inspect_ai_finds_the_accuracy_and_the_tokens_of_comas_eval(
    model: str, task: Path, served: Running, ours: Mapping[str, Mapping[str, Any]]
) -> None:
    name = f"openai-api/comas/{model}"
    command = [program("inspect"), "eval", "inspect_pick.py", "--model", name]
    command += ["--model-base-url", served.url, "--temperature", "0", "--seed", "7"]
    command += ["--log-dir", "logs", "--log-format", "json", "--display", "plain"]
    command += ["--max-retries", "0"]
    call(command, task, COMAS_API_KEY="none")
    (file,) = (task / "logs").glob("*.json")
    log = json.loads(file.read_text())
    assert log["status"] == "success"
    accuracy = log["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    assert round(accuracy * QUESTIONS, 6) == ours[model]["right"]
    usage = log["stats"]["model_usage"][name]
    assert usage["output_tokens"] == ours[model]["tokens"]
    assert usage["input_tokens"] == ours[model]["prompt_tokens"]
