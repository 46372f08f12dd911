"""The tutorial's commands run in their order, and the files on it are those of examples/.

Its other blocks are run by tests/gates/test_docs.py, as on every page.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = [code for language, code in BLOCK.findall(PAGE) if language == "sh"]
PYTHON = [code for language, code in BLOCK.findall(PAGE) if language == "python"]
COMMANDS = [line.partition("#")[0].split() for block in SHELL for line in block.splitlines()]
SHORT = ("steps=2", "questions=8", "test_questions=8", "eval_every=0", "threads=1")
"""Added to what trains: the commands are those of the page, the patience is not."""


@pytest.mark.parametrize("name", ["near.py", "sure_votes.py"])
def test_files_on_the_page_are_the_examples(name: str) -> None:
    assert (ROOT / "examples" / name).read_text(encoding="utf-8") in PYTHON


def test_the_page_names_no_run_that_it_does_not_make() -> None:
    made = {"runs/demo"}
    for command in COMMANDS:
        made |= {word.removeprefix("out=") for word in command if word.startswith("out=")}
        named = {name for word in command for name in word.split(",") if name.startswith("runs/")}
        assert named <= made, command


@pytest.mark.commands
def test_commands_of_the_tutorial_run_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in COMMANDS:
        assert command[0] == "comas"
        words = command[1:]
        if words[0] == "train":
            words += SHORT
        if words[0] == "eval":
            words[words.index("--limit") + 1] = "8"
        run = [sys.executable, "-m", "comas", *words]
        done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip(), command
