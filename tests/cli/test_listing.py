"""`comas list`: a line for everything that can be named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import comas
from comas.cli.listing import first_sentence
from comas.config.plugins import plugin_names
from comas.config.schema import AgentConfig, Config, HostConfig
from comas.storage import files
from tests.support.command import run


def listed(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, str]]:
    assert run(["list", *words.split(), "--json"], monkeypatch) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])[words.split()[0]]


@pytest.mark.parametrize("kind", ["method", "task", "setup"])
def test_everything_that_is_shipped_is_listed_with_what_it_is(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = listed(f"{kind}s", monkeypatch, capsys)
    assert [record["name"] for record in records] == plugin_names(kind)
    assert all(len(record["says"]) > 20 for record in records)


def test_every_key_is_listed_with_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {record["key"]: record for record in listed("keys", monkeypatch, capsys)}
    of_run = {name for name, field in Config.model_fields.items() if not field.exclude}
    wanted = of_run | {f"hosts.<name>.{name}" for name in HostConfig.model_fields}
    wanted |= {f"agents.<name>.{name}" for name in AgentConfig.model_fields}
    assert records.keys() == wanted
    assert records["steps"]["default"] == "180"
    assert records["hosts.<name>.trust_remote_code"]["default"] == "false"
    assert records["hosts.<name>.device"]["says"].startswith("`cpu`, `cuda`, `cuda:1`")


def test_a_word_keeps_the_lines_that_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [r["name"] for r in listed("methods 2504.16084", monkeypatch, capsys)] == ["ttrl"]
    assert run(["list", "methods", "nothing-has-this"], monkeypatch) == 0
    assert capsys.readouterr().out == "no methods with 'nothing-has-this' in their lines\n"


def test_runs_are_listed_the_latest_first_with_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["list", "runs"], monkeypatch) == 0
    assert capsys.readouterr().out.startswith("no runs: begin one with ")
    keys = {"questions": 2, "eval_every": 0, "threads": 1, "hooks": []}
    comas.train(out="runs/done", steps=1, test_questions=2, **keys)
    comas.train(out="runs/other", steps=0, test_questions=0, method="ttrl", **keys)
    shutil.copytree(tmp_path / "runs" / "done", tmp_path / "runs" / "deep")
    (tmp_path / "runs" / "deep" / "eval" / "after.json").write_text("[" * 100_000)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.toml").write_text("steps = ")
    of_later = tmp_path / "runs" / "other" / "config.toml"
    of_later.write_text(of_later.read_text().replace("[agents.a0]\n", "[agents.a0]\nlater = 1\n"))
    held = files.lock(tmp_path / "runs" / "other", "run")
    records = {record["run"]: record for record in listed("runs", monkeypatch, capsys)}
    held.release()
    assert len(records) == 4
    done = records["runs/done"]
    assert (done["method"], done["base"], done["steps"]) == ("comas", "tiny", "1 of 1")
    assert " -> " in done["accuracy"]
    assert "(gain " in done["accuracy"]
    assert done["state"] == "done"
    assert (records["runs/other"]["method"], records["runs/other"]["state"]) == ("ttrl", "running")
    assert "damaged" in records["runs/broken"]["state"]
    assert records["runs/deep"]["accuracy"].endswith(" -> ?")
    assert [r["run"] for r in listed("runs ttrl", monkeypatch, capsys)] == ["runs/other"]

    def refused(*_: object) -> None:
        raise PermissionError("runs/done/.lock")

    monkeypatch.setattr(files, "lock", refused)
    (tmp_path / "runs" / "other" / files.LOCK).unlink()
    (tmp_path / "runs" / "done" / "metrics.jsonl").unlink()
    records = {record["run"]: record for record in listed("runs", monkeypatch, capsys)}
    assert records["runs/other"]["state"] == "done", "nobody has ever worked on it"
    assert not (tmp_path / "runs" / "other" / files.LOCK).exists()
    assert "metrics.jsonl" in records["runs/done"]["state"]


def test_a_kind_that_there_is_not_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "models"], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'runs', 'methods', 'tasks', 'setups', 'keys'" in line


def test_the_first_sentence_ends_at_its_full_stop() -> None:
    assert (
        first_sentence("Dr. Zero\n(arXiv 1.2): asks. More.\n\nElse.")
        == "Dr. Zero (arXiv 1.2): asks."
    )
    assert first_sentence("One line") == "One line"
