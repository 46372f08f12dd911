"""What users get wrong ends in one line that says what, where and what to do; exit code 2, no
traceback, nothing written. messages.toml has the whole lines.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from comas.models.sources import shipped_models
from tests.support.command import run

MESSAGES: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("messages.toml").read_text(encoding="utf-8")
)
QUOTING = {
    "train method=./broken.py": ["'./broken.py' cannot be imported", "line 2"],
    "train task=gsm8k data=rows.jsonl lr=1e-3": ["rows.jsonl:2 is not JSON", "column 11"],
    "train task=jsonl data=rows.csv": ["rows.csv:1", "JSON lines in UTF-8 are wanted"],
    "train base=tiny-x": ["base 'tiny-x' cannot be loaded", "the shipped models are tiny,"],
    "train base=./plain lr=1e-3": ["plain' has no tokenizer that can be loaded"],
    "train base=./other lr=1e-3": ["other' lacks weights", "no whole causal LM"],
    "train base=./text lr=1e-3": ["text' cannot be loaded as a causal language model"],
    "train base=./cut lr=1e-3": ["cut' cannot be loaded", "header"],
    "train device=tpu": ["device 'tpu' cannot be used here", "hosts.<name>.device=cpu"],
}
"""Lines that quote a library or list what is shipped: what does not depend on those."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be wrong."""
    folder = tmp_path_factory.mktemp("mistakes")
    row = '{"question": "What is 1 + %d?", "answer": %d}\n'
    texts = {
        "bad.toml": "steps = 5\n[options]\nrounds = = 2\n",
        "empty.py": "x = 1\n",
        "broken.py": "x = 1\ny = = 2\n",
        "rows.jsonl": '{"question": "1 + 2?", "answer": "#### 3"}\n{"answer" "3"}\n',
        "rows.csv": "question,answer\n1 + 2?,3\n",
        "empty.jsonl": "",
        "file": "",
        "two.jsonl": row % (1, 2) + row % (3, 4),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    shipped = shipped_models()["tiny"]
    for name in ("mute", "other", "cut"):
        shutil.copytree(shipped, folder / name)
    for name in ("plain", "text", "taken"):
        (folder / name).mkdir()
    (folder / "taken" / "config.toml").write_text("steps = 1\n")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(shipped / name, folder / "plain" / name)
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


def files_of(folder: Path) -> set[Path]:
    """What a command may not add to: all but what Python compiles and locks."""
    return {
        path
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and path.name != ".lock"
    }


@pytest.fixture
def error_of(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Run a command that has to fail, and return its one line."""

    def error(command: str) -> str:
        monkeypatch.chdir(here)
        monkeypatch.delenv("COMAS_DATA", raising=False)
        before = files_of(here)
        assert run(command.split(), monkeypatch) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert files_of(here) == before
        return line.removeprefix("error: ")

    return error


@pytest.mark.parametrize("command", MESSAGES)
def test_a_mistake_is_told_in_one_line(
    command: str, here: Path, error_of: Callable[[str], str]
) -> None:
    assert error_of(command) == MESSAGES[command].replace("{here}", str(here))


@pytest.mark.parametrize("command", QUOTING)
def test_a_line_that_quotes_others_names_the_thing_and_the_remedy(
    command: str, error_of: Callable[[str], str]
) -> None:
    line = error_of(command)
    assert [part for part in QUOTING[command] if part not in line] == [], line
