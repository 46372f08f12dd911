"""The same seed gives the same discussions: in another process, with other threads, alone or among
many, in any order of arrival. And a recorded run can be played again without its models.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comas.game.play import play_all
from comas.methods import comas, ttrl
from comas.seams import TIE
from comas.storage.records import episode_of, episode_record
from comas.storage.run import Run
from comas.tasks import pick
from comas.team.build import run_sync
from comas.testing import Recorded, Scripted, golden_script, replay, scripted_context
from comas.types import Episode, Fit, Reply, UserMistake
from tests.support import runs
from tests.support.runs import SMALL, essence, run_of


@pytest.fixture(scope="module")
def whole(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "whole", untaught)


@pytest.mark.slow  # the golden runs are played by a process of their own, too
def test_another_process_gives_the_same_run(whole: Run, untaught: Path, tmp_path: Path) -> None:
    pairs = [f"{k.replace('__', '.')}={json.dumps(v)}" for k, v in {**SMALL, "steps": 4}.items()]
    command = [
        sys.executable,
        "-m",
        "comas",
        "train",
        *pairs,
        f"hosts.home.base={untaught}",
        f"out={tmp_path / 'r'}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    assert essence(Run.open(tmp_path / "r")) == essence(whole)


def test_two_threads_give_the_same_discussions_as_one(
    whole: Run, untaught: Path, tmp_path: Path
) -> None:
    assert essence(run_of(tmp_path / "r", untaught, threads=2))[0] == essence(whole)[0]


def texts(episodes: list[Episode]) -> dict[str, list[tuple[str, str]]]:
    return {e.id: [(t.id, t.text) for t in e.turns] for e in episodes}


def test_a_game_is_the_same_alone_and_among_32(untaught: Path) -> None:
    team = runs.team([f"hosts.home.base={untaught}", "lr=1", "threads=1"], learn=False)
    questions = team.task.load("train", limit=32)
    together = run_sync(play_all(team.context(), questions, 0))
    alone = [run_sync(play_all(team.context(), [q], 0))[0] for q in questions]
    team.close()
    safe = [e.id for e in together if all(t.margin >= TIE for t in e.turns)]
    # in fp32 a near-tie may flip; long babble of an untaught model has many
    assert len(safe) > 0.5 * len(questions)
    assert {i: texts(together)[i] for i in safe} == {i: texts(alone)[i] for i in safe}


class Late(Scripted):
    """Answers after a random while, so that games end in any order."""

    def __init__(self, seed: int) -> None:
        super().__init__(golden_script, "script")
        self.rng = random.Random(seed)

    async def ask(self, ask: Any) -> Reply:
        await asyncio.sleep(self.rng.random() / 200)
        return await super().ask(ask)


@pytest.mark.parametrize(
    ("method", "options"),
    [(comas.method, {"rounds": 2, "evaluations": 2}), (ttrl.method, {"votes": 4})],
)
def test_the_order_of_arrival_changes_nothing(method: Any, options: dict[str, int]) -> None:
    from dataclasses import replace

    from comas.game.agent import TeamMember
    from comas.game.play import settle_all

    questions = pick.load("train", limit=20, largest=8)
    told = []
    for seed in range(4):
        context, _ = scripted_context(method, pick.task, golden_script, options=options)
        host = Late(seed)
        context = replace(
            context, members=[TeamMember(m.name, host, m.policy) for m in context.members]
        )
        episodes = run_sync(play_all(context, questions, 0))
        settle_all(context, episodes)
        told.append(
            (
                [
                    {**episode_record(e), "turns": [(t.id, t.text, t.reward) for t in e.turns]}
                    for e in episodes
                ],
                host.asked,
            )
        )
    assert all(records == told[0][0] for records, _ in told)
    assert any(asked != told[0][1] for _, asked in told), (
        "they did arrive in the same order: the test tests nothing"
    )


def test_a_recorded_run_is_played_again_without_models(whole: Run) -> None:
    for step in range(4):
        again = replay(whole.path, step)
        record = [episode_of(e) for e in whole.episodes(step)]
        assert texts(again) == texts(record)
        assert [[t.reward for t in e.turns] for e in again] == [
            [t.reward for t in e.turns] for e in record
        ]
        assert [e.answer for e in again] == [e.answer for e in record]


def test_a_recorded_run_is_paid_by_another_rule(whole: Run, tmp_path: Path) -> None:
    rule = tmp_path / "harsh.py"
    rule.write_text(
        "import dataclasses\nfrom comas.methods import comas\n\n\ndef settle(episodes, task, *,"
        " fine: float = 1.0):\n    for episode in episodes:\n        for turn in episode.turns:\n  "
        "          turn.reward = -fine\n\n\nmethod = dataclasses.replace(comas.method,"
        " settle=settle)\n"
    )
    for fine in (1.0, 2.5):
        assert {
            t.reward for e in replay(whole.path, 0, method=str(rule), fine=fine) for t in e.turns
        } == {-fine}
    with pytest.raises(UserMistake, match=r"options\.fines: did you mean fine\?"):
        replay(whole.path, 0, method=str(rule), fines=2.5)


def test_what_was_not_recorded_is_an_error(whole: Run) -> None:
    team_questions = pick.load("train", limit=1)
    context, _ = scripted_context(comas.method, pick.task, golden_script)
    record = [episode_of(e) for e in whole.episodes(0)]
    host = Recorded(record)
    from dataclasses import replace

    from comas.game.agent import TeamMember

    context = replace(context, members=[TeamMember(n, host, n) for n in ("a0", "a1", "a2", "a3")])
    host.prompts = {*host.prompts, *(q.prompt for q in team_questions)}

    async def fits(*_: Any) -> Fit:
        return Fit(True)

    host.fits = fits  # type: ignore[method-assign]
    with pytest.raises(UserMistake, match="no reply to this prompt was recorded"):
        run_sync(play_all(context, team_questions, 99))
