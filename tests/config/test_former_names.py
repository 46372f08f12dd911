"""Options, values, presets and templates of 0.1 are read as they are called now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from comas.config import mistakes
from comas.types import UserMistake
from tests.support import runs


@pytest.fixture(autouse=True)
def unsaid() -> None:
    """Each note is logged once in a process."""
    mistakes._note.cache_clear()


@pytest.mark.parametrize(
    ("options", "now"),
    [
        ({"score": "said"}, {"score": "text"}),
        ({"score": "believed", "evaluate": False}, {"score": "p_true"}),
        ({"blind": True}, {"answer_first": True}),
        ({"blind": False, "score": "expected"}, {"answer_first": False, "score": "expected"}),
    ],
)
def test_options_of_before_are_read_with_a_line(
    options: dict[str, Any], now: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    config = runs.planned({"method": "comas", "options": options}).config
    assert {key: config.options[key] for key in now} == now
    assert "of an earlier version is read as" in caplog.text


def test_a_preset_of_before_and_an_option_over_it() -> None:
    keys = {"method": "comas", "preset": "believed", "options": {"blind": False}}
    config = runs.planned(keys).config
    assert config.preset == "p_true"
    assert config.options["score"] == "p_true"
    assert config.options["answer_first"] is False
    assert "blind" not in config.options


def test_what_is_called_so_now_is_read_without_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    keys = {"method": "comas", "preset": "p_true", "options": {"score": "text"}}
    assert runs.planned(keys).config.options["score"] == "text"
    assert not caplog.text


def test_a_method_of_ones_own_keeps_its_own_words(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        """
from dataclasses import replace
from typing import Literal

from comas.methods import rlvr


async def play(question, agents, rng, task, *, blind: bool = True,
               score: Literal["said", "text"] = "said", mood: str = "said"):
    return (await agents[0].ask("solution", question.prompt)).text


method = replace(rlvr.method, play=play, presets={})
"""
    )
    keys = {"method": str(file), "options": {"blind": False, "score": "said", "mood": "believed"}}
    options = runs.planned(keys).config.options
    assert (options["blind"], options["score"], options["mood"]) == (False, "said", "believed")


def test_an_option_that_nobody_knows_is_still_a_mistake() -> None:
    with pytest.raises(UserMistake, match=r"unknown key options\.blind"):
        runs.planned({"method": "ttrl", "options": {"blind": True}})
    with pytest.raises(UserMistake, match=r"options\.score = 'spoken'"):
        runs.planned({"method": "comas", "options": {"score": "spoken"}})


def test_templates_of_a_task_of_before_are_those_of_p_true(tmp_path: Path) -> None:
    file = tmp_path / "near.py"
    file.write_text(
        """
from dataclasses import replace

from comas.tasks import pick

kept = {k: v for k, v in pick.task.wording.items() if "p_true" not in k}
former = {k.replace("p_true", "believed"): v for k, v in pick.task.wording.items() if "p_true" in k}
task = replace(pick.task, wording={**kept, **former})
"""
    )
    from comas.tasks import pick

    assert runs.planned({"task": str(file)}).task.wording == pick.task.wording
