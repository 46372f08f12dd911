"""What users get wrong in files, folders and values from elsewhere ends in one line; the lines
themselves are in messages.toml.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from comas.config.checks import check_training
from comas.config.plugins import load_plugin
from comas.config.schema import read
from comas.storage.out_folder import check_free
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.runs import SMALL, run_of


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


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
    with pytest.raises(UserMistake, match=rf"{said}.*Method\(roles="):
        check_training(resolved)


def test_a_presets_task_options_are_for_the_methods_own_task() -> None:
    assert runs.planned(["method=ssr"]).config.task_options["form"] == "program"
    other = runs.planned(["method=ssr", "task=pick"]).config
    assert other.task_options["form"] == "three", "of the task, which nobody changed"


@pytest.mark.parametrize(("method", "form"), [("ssp", "answers"), ("spell", "pages")])
def test_naming_a_methods_own_task_changes_nothing(method: str, form: str) -> None:
    for pairs in ([], ["task=facts"]):
        config = runs.planned([f"method={method}", *pairs]).config
        assert config.task_options["form"] == form
    own = runs.planned([f"method={method}", "task=facts", "task_options.form=chains"]).config
    assert own.task_options["form"] == "chains"


def test_naming_a_methods_own_base_changes_nothing() -> None:
    bare = runs.planned(["method=self_redteam"])
    named = runs.planned(["method=self_redteam", "base=tiny-gate"])
    assert [p.lr for p in named.policies] == [p.lr for p in bare.policies]


@pytest.mark.parametrize("method", ["sppo", "srlm"])
def test_a_kl_beside_a_credit_that_has_none_is_refused(method: str) -> None:
    with pytest.raises(UserMistake, match=r"kl\.solution: the credit of method .* has no KL"):
        check_training(runs.planned([f"method={method}", "kl.solution=0.5"]))
    check_training(runs.planned([f"method={method}", "kl.solution=0"]))


@pytest.mark.parametrize("pair", ["concurrency=4", "timeout=5", "retries=1", "logprobs=true"])
def test_what_only_an_api_reads_is_refused_at_a_host_with_weights(pair: str) -> None:
    with pytest.raises(UserMistake, match="is for a host behind an API"):
        read(None, [f"hosts.home.{pair}"])


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
    with pytest.raises(UserMistake, match="JSON lines"):
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


def test_runs_of_before_that_put_weights_back_are_read_and_stop() -> None:
    assert read(None, ["on_alarm=restore"]).on_alarm == "stop"


def test_a_budget_of_tokens_may_be_taken_back() -> None:
    assert read(None, ["tokens=none"]).tokens is None
    assert read(None, ["tokens=500"]).tokens == 500


def test_an_out_that_is_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in ("loop", "loop/run"):
        with pytest.raises(UserMistake, match="leads to itself"):
            check_free(str(tmp_path / place))
