"""Files that `comas new` writes pass their check, and are the examples of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comas.config.plugins import load_plugin
from comas.config.schema import Config, HostConfig, read
from comas.tasks import pick
from comas.testing import check_method, check_task
from tests.support.command import run

ROOT = Path(__file__).parents[2]


def test_the_first_line_of_each_verb_fits_and_train_names_keys_that_are_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert run(["--help"], monkeypatch) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    lines = [line.split(maxsplit=1) for line in listed.strip().splitlines()]
    assert {"train", "eval", "new", "env"} <= {name for name, _ in lines}
    assert [text for _, text in lines if len(text) > 55 or text.endswith("...")] == []
    assert run(["train", "--help"], monkeypatch) == 0
    shown = capsys.readouterr().out
    keys = [line.split("=")[0].strip() for line in re.findall(r"^ +[a-z._]+=.*  .*$", shown, re.M)]
    assert len(keys) == 13
    fields = {*Config.model_fields, *HostConfig.model_fields}
    assert {key.partition(".")[0] for key in keys} <= fields
    examples = re.findall(r"^ +comas (train .*)$", shown, re.M)
    assert len(examples) == 3
    for words in examples:
        config = read(None, [word for word in words.split()[1:] if "=" in word])
        assert config.steps


@pytest.mark.parametrize("name", ["mine", "peers.py"])
def test_a_new_method_keeps_its_contract(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "method", name], monkeypatch) == 0
    (file,) = tmp_path.iterdir()
    assert f"play method=./{file.name}" in capsys.readouterr().out
    questions = [pick.make_question((1, 2, 4, 5), t, "three") for t in (7, 8)]

    def script(policy: str, role: str, prompt: str, seed: int) -> str:
        return "1 + 2 = 3 + 4 = 7" if role == "solution" else ("right", "wrong", "")[seed % 3]

    method = load_plugin("method", str(file))
    check_method(method, pick.task, questions, script)
    code = file.read_text().partition('"""\n\n')[2]
    assert code in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["adding", "sums_to_80"])
def test_a_new_task_keeps_its_contract(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "task", name], monkeypatch) == 0
    file = tmp_path / f"{name}.py"
    task = load_plugin("task", str(file))
    assert task.name == name
    check_task(task)
    (question,) = task.load("test", limit=1)
    assert task.verify(question, rf"so \boxed{{{question.answer}}}") == "right"
    page = (ROOT / "docs" / "extending.md").read_text()
    assert file.read_text().replace(name, "adding") in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method", "my-method"], "my-method: letters, digits and _ are wanted"),
        (["task", "../up"], "letters, digits and _ are wanted"),
        (["task", "there"], "there.py is there already"),
        (["host", "mine"], "Invalid value for 'kind': 'host' is not one of"),
    ],
)
def test_what_cannot_be_begun_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("kept")
    assert run(["new", *words], monkeypatch) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there.py"]
    assert (tmp_path / "there.py").read_text() == "kept"
