"""What docs/stability-promise.md promises: names, signatures, verbs and keys of `public.json` are
there, a run, its export, a method and a config of 0.1.0 are read, and a run of today by what comes
later.

`python -m tests.stability.test_promise` writes `public.json` anew, for a release that may change
it: what is new is added by that, and what is gone has to be in the changelog.
"""

from __future__ import annotations

import inspect
import json
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

import comas
from comas.cli.main import app
from comas.config import schema
from comas.config.plugins import load_plugin, plugin_names
from comas.export.team import export
from comas.storage.run import FORMAT, Run
from comas.tasks import pick
from comas.testing import check_method
from comas.types import UserMistake
from tests.support.command import run as command

HERE = Path(__file__).parent
PUBLIC = HERE / "public.json"
STEPS = {"run-0.1.0": 1, "run-0.2.0": 2}
"""Folder of a run of two agents, as that version wrote it -> steps that it has; the first is from
before folders had a format.
"""


def public() -> dict[str, Any]:
    """The names that others build on, as they are now."""
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        "names": {name: parameters(getattr(comas, name)) for name in sorted(comas.__all__)},
        "verbs": {
            name: sorted(option for p in verb.params for option in (*p.opts, *p.secondary_opts))
            for name, verb in sorted(verbs.items())
        },
        "keys": sorted(keys(schema.Config)),
        "roles": {
            name: sorted(load_plugin("method", name).roles) for name in plugin_names("method")
        },
    }


def parameters(value: Any) -> dict[str, str] | None:
    """Parameter -> its kind, with a mark where it may be left out; None of what is no callable."""
    if is_dataclass(value):
        return {f.name: "field" for f in fields(value) if not f.name.startswith("_")}
    if isinstance(value, ModuleType):  # the folder, which is called in its place
        value = export
    if not callable(value) or isinstance(value, type):
        return None
    found = inspect.signature(value).parameters.values()
    return {
        p.name: p.kind.description + ("" if p.default is p.empty else ", may be left out")
        for p in found
    }


def keys(model: type[BaseModel]) -> Iterator[str]:
    """The fixed keys of a config, those of tables behind a dot."""
    yield from model.model_fields
    for table, name in ((schema.HostConfig, "hosts.*"), (schema.AgentConfig, "agents.*")):
        if model is schema.Config:
            yield from (f"{name}.{key}" for key in table.model_fields)


def test_public_names_verbs_and_keys_are_there() -> None:
    promised = json.loads(PUBLIC.read_text())
    now = public()
    for kind in ("names", "verbs"):
        assert not promised[kind].keys() - now[kind].keys()
        for name, facts in promised[kind].items():
            if isinstance(facts, dict):
                assert {key: now[kind][name].get(key) for key in facts} == facts, name
                new = [now[kind][name][key] for key in now[kind][name].keys() - facts.keys()]
                assert all(how == "field" or "may be left out" in how for how in new), name
            elif facts is not None:
                assert not set(facts) - set(now[kind][name]), name
    assert not set(promised["keys"]) - set(now["keys"])
    for method, roles in promised["roles"].items():
        assert not set(roles) - set(now["roles"].get(method, ())), method


def test_the_version_is_the_same_everywhere() -> None:
    root = HERE.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["version"] == comas.__version__
    assert f"\nversion: {comas.__version__}\n" in (root / "CITATION.cff").read_text()
    assert f"\n## {comas.__version__}" in (root / "CHANGELOG.md").read_text()


@pytest.fixture(params=STEPS)
def recorded(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def old(recorded: str, tmp_path: Path) -> Path:
    return shutil.copytree(HERE / recorded, tmp_path / "old")


def test_an_old_run_is_read(
    old: Path, recorded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(old.parent)
    assert command(["report", "old", "--json"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == STEPS[recorded]
    assert command(["report", "old", "--discussions", "--limit", "1"], monkeypatch) == 0
    assert "solution" in capsys.readouterr().out
    assert command(["view", "old", "--html", "page.html"], monkeypatch) == 0
    assert command(["play", "old", "--question", "1 2 3 4 -> 6"], monkeypatch) == 0
    assert "solution" in capsys.readouterr().out
    assert command(["export", "old", "team", "--no-merged"], monkeypatch) == 0
    assert command(["eval", "old", "--limit", "2", "--out", "exam"], monkeypatch) == 0


def test_an_old_run_goes_on(old: Path, recorded: str) -> None:
    steps = STEPS[recorded] + 1
    result = comas.resume(old, steps=steps)
    assert result.steps == steps
    assert json.loads((old / "commit.json").read_text())["format"] == FORMAT


@pytest.mark.parametrize("recorded", ["run-0.2.0"])
def test_a_run_of_a_later_format_is_one_line_and_stays_as_it_is(old: Path) -> None:
    later = {"format": FORMAT + 1, "step": 1, "metrics_bytes": 3111, "best": None}
    (old / "commit.json").write_text(json.dumps(later))
    for attempt in (Run.open, comas.resume):
        with pytest.raises(UserMistake, match=rf"run folder format {FORMAT + 1}, and comas"):
            attempt(old)
    assert json.loads((old / "commit.json").read_text()) == later


def test_an_old_export_talks_as_its_run() -> None:
    def discussed(name: str) -> list[tuple[str, str]]:
        talk = comas.load(HERE / name).discuss("12 7 3 5 -> 22", seed=2)
        return [(turn.role, turn.text) for turn in talk.turns]

    assert discussed("export-0.1.0") == discussed("run-0.1.0")


def test_an_old_method_is_played() -> None:
    method = load_plugin("method", str(HERE / "method_0_1_0.py"))
    questions = [pick.make_question((12, 7, 3, 5), 22, "three")]
    check_method(method, pick.task, questions, lambda policy, role, prompt, seed: f"{role} {seed}")


def test_an_old_config_is_read(tmp_path: Path) -> None:
    config = schema.read(HERE / "config-0.1.0.toml", {"out": str(tmp_path / "r")})
    result = comas.train(HERE / "config-0.1.0.toml", out=str(tmp_path / "r"), steps=1)
    assert config.lr == 0.003
    assert result.steps == 1


if __name__ == "__main__":
    PUBLIC.write_text(json.dumps(public(), indent=1) + "\n")
