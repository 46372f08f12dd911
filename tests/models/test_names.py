"""Names of shipped models, those of 0.1 too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from comas.config.plan import plan
from comas.config.schema import checked, read
from comas.models.sources import (
    is_shipped,
    known_as,
    place_of_model,
    recorded_base,
    shipped_models,
    shipped_name,
    source_of,
)
from comas.storage.records import without_none


@pytest.mark.parametrize("name", sorted(shipped_models()))
def test_a_shipped_model_is_found_by_its_name_of_before(name: str) -> None:
    before = name.replace("tiny", "seed", 1)
    assert is_shipped(before)
    assert source_of(before) == source_of(name)
    assert place_of_model(before) == place_of_model(name)
    assert known_as(before) == known_as(f"/gone/comas/models/seeds/{before}") == name
    assert known_as(rf"C:\gone\comas\models\tiny\{name}") == name


def test_a_config_and_an_adapter_of_before_go_on_with_the_name_of_now(tmp_path: Path) -> None:
    table = {"hosts": {"home": {"base": "seed-b"}}, "agents": {"a0": {}, "a1": {"base": "seed-b"}}}
    config = plan(read(None, table)).config
    assert config.hosts["home"].base == config.agents["a1"].base == "tiny-b"
    record = {"base_model_name_or_path": "seed-gate"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(record))
    assert recorded_base(tmp_path) == "tiny-gate"


@pytest.mark.parametrize("name", ["seedling", "seed-x", "org/seed", "./seed", "tiny-bert"])
def test_other_names_stay_what_they_are(name: str) -> None:
    assert shipped_name(name) == name


def test_a_folder_of_that_name_is_meant_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed").mkdir()
    assert not is_shipped("seed")
    assert source_of("seed").kind == "folder"


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_a_run_is_a_base_wherever_its_host_was(kind: str, tmp_path: Path) -> None:
    """One that learnt on a Ray cluster was taken for a tiny model, with its rates."""
    host = {"base": "org/model", "kind": kind, "learner": "adapters"}
    config = checked({"lr": 1e-5, "hosts": {"home": host}})
    text = tomli_w.dumps(without_none(config.model_dump()))
    (tmp_path / "config.toml").write_text(text)
    source = source_of(str(tmp_path))
    assert source.origin == {"org/model"}
    assert not source.tiny
    (tmp_path / "model").mkdir()
    relative = {"hosts": {"home": {**host, "base": "./model"}}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(relative))
    assert read(tmp_path / "mine.toml").hosts["home"].base == str(tmp_path / "model")
