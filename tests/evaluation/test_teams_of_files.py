"""Teams that a config file describes are asked as they are: copies of one model once each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comas.config.systems import system_plan, table_of
from comas.evaluation.setups import chosen_setup, players
from comas.game.agent import TeamMember

TEAMS = {
    "rates": "[agents.a]\nlr = 1e-4\n[agents.b]\nlr = 2e-4\n",
    "ranks": '[hosts.home]\nlearner = "adapters"\n[agents.a]\nrank = 4\n[agents.b]\nrank = 8\n',
    "selves": '[agents.a]\n[agents.b]\n[agents.c]\npolicy = "b"\nlag = 2\n',
}


@pytest.mark.parametrize("name", TEAMS)
def test_teams_whose_policies_learn_differently_can_be_asked(name: str, tmp_path: Path) -> None:
    file = tmp_path / "team.toml"
    file.write_text(TEAMS[name])
    agents = system_plan(str(file), table=table_of(str(file))).config.agents
    policies = [agent.policy for agent in agents.values()]
    assert policies == {"rates": ["a", "a"], "ranks": ["a", "a"], "selves": ["a", "b", "b"]}[name]


@pytest.mark.parametrize("method", ["spc", "self_redteam"])
def test_teams_of_methods_can_be_asked(method: str, tmp_path: Path) -> None:
    file = tmp_path / "team.toml"
    file.write_text(f'method = "{method}"\n')
    assert system_plan(str(file), table=table_of(str(file))).config.agents


def test_another_persona_gives_another_answer() -> None:
    host = cast("Any", SimpleNamespace(name="home"))
    members = [
        TeamMember("a", host, "p"),
        TeamMember("b", host, "p", system="You doubt."),
        TeamMember("c", host, "p", system="You doubt."),
        TeamMember("d", host, "p"),
    ]
    team = cast("Any", SimpleNamespace(members=members))
    assert list(players(team, chosen_setup("single", team))) == ["a", "b"]
