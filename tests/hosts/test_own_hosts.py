"""Hosts of one's own: a kind in a file sits beside shipped ones, trains, goes on, and is asked in an
evaluation.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import comas
from comas.config.plan import plan
from comas.config.schema import HostConfig, read
from comas.hosts.api import ApiHost
from comas.hosts.local import make_local_host
from comas.storage.run import Run
from comas.team.build import run_sync
from comas.testing import Scripted, check_host, golden_script
from comas.types import Ask, Fit, Learned, Reply, Sampling, TurnReward, UserMistake
from tests.support.endpoint import answers
from tests.support.endpoint import said as answered
from tests.support.kinds import kind_of
from tests.support.runs import SMALL

TEAM: dict[str, Any] = {
    **SMALL,
    "steps": 2,
    "agents": {"a0": {"host": "home"}, "a1": {"host": "mine"}, "a2": {"host": "mine"}},
}


class Stubborn:
    """Says one thing per role, counts its updates, and learns nothing else."""

    meter = None
    texts = {"solution": "1 + 2 = 3", "evaluation": "wrong", "scoring": "<score> 1 </score>"}

    def __init__(self, learns: bool = True) -> None:
        self.name = "mine"
        self.learns = learns
        self.updates = 0
        self.learnt: list[str] = []
        self.open = True

    async def ask(self, ask: Ask) -> Reply:
        if ask.keep and not self.learns:
            raise UserMistake("nobody learns here")
        return Reply(self.texts[ask.role], True, self.updates, 9, 5, -1.0, 0.0)

    async def tell(self, ask: Ask, text: str) -> Reply:
        if ask.keep and not self.learns:
            raise UserMistake("nobody learns here")
        return Reply(text, True, self.updates, 9, 5, 0.0, 0.0)

    async def fits(self, policy: str, messages: Any, sampling: Sampling) -> Fit:
        return Fit(True)

    async def learn(self, payoffs: Mapping[str, Sequence[TurnReward]], lr_scale: float) -> Learned:
        paid = [payoff.turn for part in payoffs.values() for payoff in part]
        self.learnt += paid
        self.updates += bool(paid)
        return Learned({policy: {"updates": 1.0} for policy in payoffs}, {})

    async def save(self, path: Path) -> None:
        (path / "mine.json").write_text(str(self.updates))

    async def load(self, path: Path) -> None:
        self.updates = int((path / "mine.json").read_text())

    def clock(self) -> dict[str, float]:
        return {"thinking": 0.0}

    def facts(self) -> dict[str, Any]:
        return {"device": "stone"}

    def account(self) -> dict[str, Any]:
        return {"spent": {"requests": 1}, "money": None, "events": {}}

    def close(self) -> None:
        self.open = False


def begin(folder: Path, base: Path, host: Any, **keys: Any) -> comas.Result:
    """Train a team of which two agents are at a host of the test's making."""
    hosts = {"home": {"base": str(base)}, "mine": {"kind": kind_of(lambda: host, folder.parent)}}
    return comas.train(**{**TEAM, "hosts": hosts, "out": str(folder), **keys})


def test_an_own_host_trains_beside_a_local_one(untaught: Path, tmp_path: Path) -> None:
    host = Stubborn()
    result = begin(tmp_path / "r", untaught, host)
    run = Run.open(result.run)
    metrics = list(run.metrics())
    assert result.steps == len(metrics) == 2
    assert {"home/a0", "mine/a1", "mine/a2"} >= set(metrics[0]["policies"]) > {"home/a0"}
    assert set(metrics[0]["spent"]) == {"sampling", "learning", "thinking"}
    assert host.updates > 0
    assert not host.open
    assert all("/" in turn for turn in host.learnt)
    assert run.spent() == {"mine": host.account()}
    checkpoint = run.path / "checkpoints" / f"step-{result.steps}"
    assert (checkpoint / "mine.json").read_text() == str(host.updates)


def test_a_run_with_an_own_host_goes_on_and_is_loaded(untaught: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    begin(folder, untaught, Stubborn(), steps=1)
    second = Stubborn()
    kind_of(lambda: second, tmp_path)
    assert comas.resume(folder, steps=2).steps == 2
    assert second.updates == 2
    team = comas.load(folder)
    assert {m.host.name for m in team.members} == {"home", "mine"}
    team.close()


def test_an_own_host_that_does_not_learn_is_not_measured(untaught: Path, tmp_path: Path) -> None:
    host = Stubborn(learns=False)
    frozen = {name: {"host": "mine", "frozen": True} for name in ("a1", "a2")}
    agents = {"a0": {"host": "home"}, **frozen}
    result = begin(tmp_path / "r", untaught, host, steps=1, agents=agents)
    run = Run.open(result.run)
    assert {answer["agent"] for answer in (run.read_eval("before") or {})["answers"]} == {"a0"}
    assert not host.learnt


def test_an_evaluation_asks_own_hosts(untaught: Path, tmp_path: Path) -> None:
    begin(tmp_path / "r", untaught, Stubborn(), steps=1)
    found = comas.evaluate(tmp_path / "r", limit=2, out=tmp_path / "e")
    assert found.cells[0]["n"] == 2


def test_a_host_is_called_as_its_table_is(untaught: Path, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"'other': .*plan\.name"):
        begin(tmp_path / "r", untaught, Scripted(golden_script, "other"))
    assert not (tmp_path / "r").exists()


def test_a_run_that_was_begun_with_an_instance_says_what_a_host_is_now() -> None:
    with pytest.raises(UserMistake, match=r"own.*kind.*build\(plan\)"):
        read(None, {"hosts": {"home": {"own": True}}})
    assert read(None, {"hosts": {"home": {"own": False}}}).hosts["home"].here


def test_all_kinds_of_hosts_keep_the_contract(untaught: Path, serve: Any, host_at: Any) -> None:
    run_sync(check_host(Scripted({"solution": "x"}), "a0"))
    run_sync(check_host(Stubborn(learns=False), "a0"))
    local = make_local_host("home", {"a0": str(untaught)})
    run_sync(check_host(local, "a0"))
    local.close()
    host: ApiHost = host_at(serve(answers(answered("7"))).url)
    run_sync(check_host(host, "j"))
    assert host.account()["spent"]["requests"] == 2, "a reply, and a weighing that it refuses"
    assert HostConfig(api="http://x/v1").built_by == "api"
    assert asyncio.run(host.fits("j", [], Sampling())).needed is None


KIND = f"""
from __future__ import annotations

from pydantic import Field

from comas.hosts.keys import HostTable
from comas.types import Fit, Learned, Reply, UserMistake


class Table(HostTable):
    rock: str = "granite"
    layers: int = Field(1, ge=1)


{inspect.getsource(Stubborn)}

def build(plan):
    host = Stubborn(plan.table.rock != "slate")
    host.name = plan.name
    host.facts = lambda: {{"device": plan.table.rock}}
    return host
"""
"""A kind of host in a file: its own keys, and how it is built."""


@pytest.fixture
def kind(tmp_path: Path) -> Path:
    file = tmp_path / "stone.py"
    file.write_text(KIND)
    return file


def test_a_kind_of_host_in_a_file_is_named_from_a_config_with_keys_of_its_own(
    kind: Path, untaught: Path, tmp_path: Path
) -> None:
    config = tmp_path / "team.of.stone.toml"
    config.write_text('[hosts.home]\n[hosts.mine]\nkind = "stone.py"\nrock = "marble"\n')
    keys = {**TEAM, "hosts__home__base": str(untaught), "out": str(tmp_path / "r")}
    result = comas.train(config, **keys)
    run = Run.open(result.run)
    table = run.config()["hosts"]["mine"]
    assert (table["kind"], table["rock"], table["layers"]) == (str(kind), "marble", 1)
    assert int((run.path / "checkpoints/step-2/mine.json").read_text()) > 0
    assert "marble" in (run.path / "processes.json").read_text()
    comas.resume(result.run, steps=3)
    assert len(list(run.metrics())) == 3


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"rok": "x"}, r"unknown key hosts.mine.rok: did you mean rock\?"),
        ({"layers": 0}, "hosts.mine.layers = 0: Input should be greater than or equal to 1"),
        ({"rock": "slate"}, "agents.a1 is to learn, and its host mine does not: set agents.a1.fro"),
        ({"engine": "hf"}, r"hosts.mine.engine says nothing to .*stone.py: leave it out"),
        ({"max_rows": 8}, "hosts.mine.max_rows says nothing"),
        ({"api": "http://localhost:1/v1"}, "hosts.mine.api says nothing"),
        ({"kind": "nowhere.py"}, "hosts.mine.kind = 'nowhere.py': no such file"),
        ({"kind": "loca"}, r"hosts.mine.kind = 'loca': did you mean local\? \(or ./file.py\)"),
        ({"kind": "api"}, "hosts.mine.kind is 'api', and a host behind an API is one with"),
    ],
)
def test_mistakes_with_kinds_in_files(
    keys: dict[str, Any], mistake: str, kind: Path, untaught: Path, tmp_path: Path
) -> None:
    table = {"kind": str(kind), **keys}
    settings = {**TEAM, "out": str(tmp_path / "r")}
    with pytest.raises(UserMistake, match=mistake):
        comas.train(hosts={"home": {"base": str(untaught)}, "mine": table}, **settings)
    assert not (tmp_path / "r").exists()


def test_a_key_api_of_an_own_kind_makes_it_no_endpoint(
    kind: Path, untaught: Path, tmp_path: Path
) -> None:
    kind.write_text(kind.read_text().replace("layers: int = Field(1, ge=1)", "api: str = 'x'"))
    table = {"kind": str(kind), "api": "quarry"}
    keys = {**TEAM, "out": str(tmp_path / "r")}
    result = comas.train(hosts={"home": {"base": str(untaught)}, "mine": table}, **keys)
    assert not Run.open(result.run).config()["agents"]["a1"]["frozen"]


@pytest.mark.parametrize(
    ("key", "value"), [("concurrency", 8), ("engine", "mine"), ("cpus", 2), ("rank", 4)]
)
def test_a_key_that_the_table_of_a_file_has_is_its_own(
    key: str, value: Any, kind: Path, tmp_path: Path
) -> None:
    """As the error says that refuses it elsewhere."""
    own = f"{key}: {type(value).__name__} | None = None"
    kind.write_text(kind.read_text().replace("layers: int = Field(1, ge=1)", own))
    table = {"kind": str(kind), key: value}
    planned = plan(read(None, {"hosts": {"home": {}, "mine": table}, "agents": TEAM["agents"]}))
    assert getattr(planned.host("mine").table, key) == value


def test_a_kind_in_somebody_elses_file_runs_nothing_unasked(kind: Path, tmp_path: Path) -> None:
    (tmp_path / "team.toml").write_text('[hosts.home]\nkind = "stone.py"\n')
    kind.write_text("raise SystemExit('it ran')")
    with pytest.raises(UserMistake, match=r"hosts.home.kind = .*stone.py would run"):
        read(tmp_path)
