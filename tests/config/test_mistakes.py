"""What users get wrong ends in one line that says what, where and what to do; exit code 2, no
traceback, nothing written. Keys and values of the config are in test_config.py and
test_config_cli.py; here is what lies in files.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from comas.config.checks import check_training
from comas.config.plugins import load_plugin
from comas.config.schema import read
from comas.models.sources import shipped_models
from comas.storage.out_folder import check_free
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.runs import SMALL, run_of

SEED = shipped_models()["tiny"]
LR = "lr=1e-3"


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


ROWS = '{"question": "1 + 2?", "answer": "#### 3"}\n'
MISTAKES = [
    (["bad.toml"], ["bad.toml is not TOML", "line 3, column 10"]),
    (["method=./empty.py"], ["'./empty.py'", "defines no `method = Method(...)`"]),
    (["task=./empty.py"], ["'./empty.py'", "defines no `task = Task(...)`"]),
    (["method=./broken.py"], ["'./broken.py' cannot be imported", "line 2"]),
    (["options.votes=3"], ["unknown key options.votes", "evaluations"]),
    (["agents.a.host=here"], ["agents.a.host is 'here'", "did you mean home?"]),
    (["agents.a.frozen=true"], ["no agent can learn", "solution, evaluation, scoring"]),
    (["method=ttrl", "tools=['calculator']"], ["nobody can call one in method ttrl"]),
    (["method=rlvr", "task=tictactoe"], ["task tictactoe is a game, and method rlvr plays none"]),
    (["method=sec", "task=kuhn"], ["task kuhn is a game, and method sec plays none"]),
    (["method=azr", "options.solve=-0.5"], ["options.solve = -0.5: Input should be greater"]),
    (["method=mae", "options.refer=3"], ["options.refer = 3: Input should be less than"]),
    (["method=mars", "options.penalty=-1"], ["options.penalty = -1: Input should be greater"]),
    (["method=mars", "options.gamma=2"], ["options.gamma = 2: Input should be less than"]),
    (["method=spell", "options.width=0"], ["options.width = 0: Input should be greater than 0"]),
    (["method=spiral", "options.decay=3"], ["options.decay = 3: Input should be less than"]),
    (["method=agent0", "options.low=0.9", "options.high=0.1"], ["options.low is 0.9", "between"]),
    (["method=r_zero", "options.low=0.9"], ["options.low is 0.9, and options.high 0.8: nothing"]),
    (["method=self_redteam", "task=pick"], ["task pick does not read `refuse`", "take task=gate"]),
    (["method=sft"], ["of task pick is no demonstration", "set task=demonstrations data=FILE"]),
    (["agents.team.frozen=false"], ["agent 'team': answers and figures of the whole team"]),
    (["method=optima", "options.length=-2"], ["options.length = -2: Input should be greater"]),
    (['agents.a.roles=["evaluation"]'], ["no agent takes role 'solution'", "agents.<name>.roles"]),
    (["questions=0"], ["questions = 0", "greater than or equal to 1"]),
    (["task=gsm8k", "data=rows.jsonl", LR], ["rows.jsonl:2", "column 11"]),
    (["task=gsm8k", "data=none.jsonl", LR], ["none.jsonl", "No such file"]),
    (["task=gsm8k", "data=empty.jsonl", LR], ["no questions in split 'train'", "empty.jsonl"]),
    (["hosts.home.base=./none", LR], ["base './none': no such folder"]),
    (["hosts.home.base=./none.ggu", LR], ["base './none.ggu': no such file"]),
    (["hosts.home.base=./rows.jsonl", LR], ["rows.jsonl' is a file, and no GGUF file"]),
    (["task=mine.jsonl"], ["task 'mine.jsonl': write task=jsonl data=mine.jsonl"]),
    (["data=mine.jsonl"], ["reads no file", "write task=jsonl data=", "mine.jsonl"]),
    (["hosts.home.base=./plain", "steps=1"], ["has no recipe for task pick: set lr"]),
    (["hosts.home.base=./plain", LR], ["plain' has no tokenizer that can be loaded"]),
    (["hosts.home.base=./mute", LR], ["mute' has no chat template", "chat_template.jinja"]),
    (["hosts.home.base=./other", LR], ["other' lacks weights", "no whole causal LM"]),
    (["hosts.home.base=./text", LR], ["text' cannot be loaded as a causal language model"]),
    (["hosts.home.base=./cut", LR], ["cut' cannot be loaded", "header"]),
    (["hosts.home.device=tpu"], ["device 'tpu' cannot be used here", "hosts.<name>.device=cpu"]),
    (["kl.scorng=1"], ["kl.scorng", "did you mean scoring?"]),
    (
        ["method=ttrl", "kl.scoring=1"],
        ["kl.scoring: method ttrl never trains on that role", "did you mean solution?"],
    ),
    (["room.solutoin=9"], ["room.solutoin", "did you mean solution?"]),
    (
        ['agents.a.roles=["solution", "scorng"]'],
        ["agents.a.roles", "'scorng'", "did you mean scoring?"],
    ),
    (
        ["task=jsonl", "data=two.jsonl", LR],
        ["none of the 2 questions of", "two.jsonl falls into its train cut"],
    ),
    (["out=taken"], ["out=taken: there is a run already", "comas resume taken"]),
    (["out=file/run"], ["out=file/run: Not a directory"]),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be wrong."""
    folder = tmp_path_factory.mktemp("mistakes")
    files(
        folder,
        bad__toml="steps = 5\n[options]\nrounds = = 2\n",
        empty__py="x = 1\n",
        broken__py="x = 1\ny = = 2\n",
        rows__jsonl=ROWS + '{"answer" "3"}\n',
        empty__jsonl="",
        file="",
        two__jsonl=(
            '{"question": "What is 1 + 1?", "answer": 2}\n{"question": "What is 1 + 3?", "answer":'
            " 4}\n"
        ),
    )
    for name in ("mute", "other", "cut"):
        shutil.copytree(SEED, folder / name)
    for name in ("plain", "text", "taken"):
        (folder / name).mkdir()
    (folder / "taken" / "config.toml").write_text("steps = 1\n")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(SEED / name, folder / "plain" / name)
    (folder / "mute" / "chat_template.jinja").unlink()
    os.truncate(folder / "cut" / "model.safetensors", 1000)
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 90,
    }
    (folder / "other" / "config.json").write_text(json.dumps({"model_type": "bert", **small}))
    (folder / "text" / "config.json").write_text("not JSON")
    return folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    MISTAKES,
    ids=lambda a: a[0] if isinstance(a, list) and "=" in a[0] else None,
)
def test_a_mistake_is_one_line_that_names_it_and_writes_nothing(
    arguments: list[str],
    said: list[str],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert run(["train", *arguments], monkeypatch) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert [s for s in said if s not in err] == [], err
    assert [
        p
        for p in sorted(place.rglob("*"))
        if p not in before and "__pycache__" not in p.parts and p.name != ".lock"
    ] == []


def test_a_question_that_is_too_long_for_the_context_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pairs = [
        "steps=1",
        "questions=2",
        "test_questions=0",
        "eval_every=0",
        "hosts.home.context=20",
        f"out={tmp_path / 'r'}",
    ]
    assert run(["train", *pairs], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "do not fit the context of home/" in line
    assert "lower room.solution" in line


@pytest.fixture(scope="module")
def trained(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(
        tmp_path_factory.mktemp("runs") / "r", untaught, steps=2, hosts__home__learner="full"
    ).path


def damaged(trained: Path, folder: Path) -> Path:
    shutil.copytree(trained, folder)
    for weights in folder.glob("checkpoints/*/a1/model.safetensors"):
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(bytes(data))
    return folder


@pytest.mark.parametrize("verb", ["resume", "play", "eval"])
def test_a_damaged_checkpoint_is_one_line(
    verb: str,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = damaged(trained, tmp_path / "r")
    assert run([verb, str(folder)], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a1/model.safetensors is not what was written (SHA-256 differs)" in line


def test_a_foreign_checkpoint_is_one_line(
    trained: Path,
    untaught: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    shutil.copytree(trained, tmp_path / "r")
    config = tmp_path / "r" / "config.toml"
    config.write_text(
        config.read_text().replace(str(untaught), "tiny").replace("[agents.a0]", "[agents.b0]")
    )
    assert run(["resume", str(tmp_path / "r"), "steps=3"], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-2/b0 has no model*.safetensors: not a checkpoint of this policy" in line


def test_a_folder_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    untaught: Path,
) -> None:
    real = Path.write_text

    def refuse(path: Path, *args: object, **kwargs: object) -> int:
        if "r" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    # permissions themselves do not stop the superuser
    monkeypatch.setattr(Path, "write_text", refuse)
    pairs = [f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in SMALL.items()]
    assert (
        run(["train", *pairs, f"hosts.home.base={untaught}", f"out={tmp_path / 'r'}"], monkeypatch)
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied" in line
    assert str(tmp_path / "r") in line


def test_too_little_room_is_told_beforehand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**7, 10**7))
    assert run(["train", f"out={tmp_path / 'r'}"], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run needs about 0.04" in line
    assert "0.01 GB free" in line
    assert not (tmp_path / "r").exists()


UNPAID = """
from dataclasses import replace
from comas.methods import comas
method = replace(comas.method, paid=("solution",), kl={})
"""


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["kl.evaluation=0.1"], "kl.evaluation: method .* does not say that it rewards that role"),
        (["agents.a.roles=['evaluation']"], "no agent can learn: method .* rewards solution"),
        (
            ["agents.a.roles=['evaluation']", "agents.b.frozen=true"],
            "no agent can learn: method .* rewards solution",
        ),
    ],
)
def test_an_own_method_is_told_how_it_says_whom_it_pays(
    keys: list[str], said: str, tmp_path: Path
) -> None:
    files(tmp_path, mine__py=UNPAID)
    resolved = runs.planned([f"method={tmp_path / 'mine.py'}", *keys])
    with pytest.raises(UserMistake, match=rf"{said}.*lists them: Method\(roles="):
        check_training(resolved)


def test_a_presets_task_options_are_for_the_methods_own_task() -> None:
    assert runs.planned(["method=ssr"]).config.task_options["form"] == "program"
    other = runs.planned(["method=ssr", "task=pick"]).config
    assert other.task_options["form"] == "three", "of the task, which nobody changed"


@pytest.mark.parametrize(
    "content",
    [
        b"question,answer\n1 + 2?,3\n",
        b"question\tanswer\n1 + 2?\t3\n",
        b'[{"question": "1 + 2?", "answer": "3"}]',
        b'[\n  {"question": "1 + 2?", "answer": "3"}\n]',
        '{"question": "1 + 2?", "answer": "3"}'.encode("utf-16"),
        b"\x1f\x8b\x08\x00\x00",
        b"PAR1\x15\x04\x15\xff",
    ],
)
def test_a_file_of_another_kind_names_the_kind_that_is_read(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(content)
    with pytest.raises(UserMistake, match="JSON lines in UTF-8 are wanted, one object per line"):
        load_plugin("task", "jsonl").load("train", path=str(file))


NESTED = "[" * 5000
LONG = "9" * 5000


@pytest.mark.parametrize("value", [NESTED, LONG, NESTED + "1"])
def test_values_without_end_are_one_line(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="questions"):
        read(None, [f"questions={value}"])
    files(tmp_path, c__toml=f"questions = {value}")
    with pytest.raises(UserMistake, match="is not TOML"):
        read(tmp_path / "c.toml")
    row = f'{{"question": "1 + 2?", "answer": {value}}}'
    files(tmp_path, rows__jsonl=row)
    with pytest.raises(UserMistake, match=r"rows\.jsonl:1 is not JSON"):
        load_plugin("task", "jsonl").load("train", str(tmp_path / "rows.jsonl"))


def test_a_missing_base_is_told_before_the_rate_that_it_lacks() -> None:
    with pytest.raises(UserMistake, match=r"base './no-model': no such folder"):
        runs.planned(["base=./no-model"])


def test_runs_of_before_that_put_weights_back_are_read_and_stop() -> None:
    assert read(None, ["on_alarm=restore"]).on_alarm == "stop"


def test_a_budget_of_tokens_may_be_taken_back() -> None:
    assert read(None, ["tokens=none"]).tokens is None
    assert read(None, ["tokens=500"]).tokens == 500


def test_an_out_that_is_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in ("loop", "loop/run"):
        with pytest.raises(UserMistake, match="a link that leads to itself"):
            check_free(str(tmp_path / place))


@pytest.mark.parametrize("gate", [7, -0.5])
def test_shares_of_methods_are_shares(gate: float) -> None:
    with pytest.raises(UserMistake, match=r"options\.gate"):
        runs.planned({"method": "agent0_vl", "options.gate": gate})
