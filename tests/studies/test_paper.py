"""The studies that are shipped: checked, estimated without network, and the short one run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from comas.config.plugins import load_plugin
from comas.studies.verb import Study
from comas.tasks import pick
from comas.testing import check_method, golden_script
from tests.support.command import run

STUDIES = Path(__file__).parents[2] / "studies"
PAPER = STUDIES / "paper.toml"
SHORT = STUDIES / "paper-short.toml"
LARGE = STUDIES / "paper-3b.toml"
OFFERS = [(1, 2, 4, 6), (5, 2, 4, 8), (9, 1, 2, 4)]
QUESTIONS = [pick.make_question(offer, 11 if 5 in offer else 7, "three") for offer in OFFERS]


def test_the_method_without_scoring_is_a_method() -> None:
    method = load_plugin("method", str(STUDIES / "no_scoring.py"))
    check_method(method, pick.task, QUESTIONS, golden_script, samples=2)


def test_the_paper_has_its_methods_ablations_and_claims() -> None:
    study = Study.read(PAPER)
    names = [setting.name for setting in study.settings]
    methods = ["comas", "untrained", "published", "ttrl", "maporl", "srlm", "verifier"]
    teams = ["team agents=1", "team agents=2", "team agents=8"]
    assert set(names) >= {*methods, *teams, "no evaluation", "no scoring", "mixed"}
    assert len(study.cells) == 5 * len(names)
    ways = {measure.setup for measure in study.described.measures.values()}
    assert {"single", "vote:votes=8", "debate", "autogen"} <= ways
    assert len(study.described.claims) >= 15


def test_the_short_form_is_the_same_with_less() -> None:
    short = Study.read(SHORT)
    whole = Study.read(PAPER)
    assert [s.name for s in short.settings] == [s.name for s in whole.settings]
    assert short.described.claims == whole.described.claims
    assert 10 * (short.described.tokens or 0) < (whole.described.tokens or 0)


@pytest.mark.slow
def test_the_short_form_runs_from_nothing_to_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "comas", "study", str(SHORT), "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout.splitlines()[-1])
    assert {row["status"] for row in record["rows"]} == {"done"}
    assert len(record["claims"]) == len(Study.read(PAPER).described.claims)
    assert {claim["verdict"] for claim in record["claims"]} <= {
        *("holds", "not shown", "contradicted")
    }
    assert (tmp_path / "studies" / "paper-short" / "report.md").is_file()


def test_the_large_form_is_checked_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every setting resolves; where the base is not on this machine, one line says so."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read when imported
    monkeypatch.chdir(tmp_path)
    study = Study.read(LARGE)
    assert {setting.plan.config.task for setting in study.settings} == {"gsm8k"}
    assert len(study.described.claims) >= 14
    code = run(["study", str(LARGE), "--dry-run"], monkeypatch)
    written = capsys.readouterr()
    assert "study:  " in written.out
    assert "left:   " in written.out
    assert code in (0, 2)
    errors = [line for line in written.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code == 2)
    assert not any(tmp_path.iterdir())


def keys_of(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


def test_the_copy_of_a_file_that_extends_another_has_both(tmp_path: Path) -> None:
    keys = {**keys_of(SHORT), "out": str(tmp_path / "out")}
    for file in (PAPER, STUDIES / "no_scoring.py"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "short.toml").write_text(tomli_w.dumps(keys))
    ledger = Study.read(tmp_path / "short.toml").declare()
    assert re.fullmatch(r"[0-9a-f]{64}", ledger.digest)
    assert (tmp_path / "out" / "paper.toml").read_text() == PAPER.read_text()
    (tmp_path / "paper.toml").write_text(PAPER.read_text() + "\n")
    assert Study.read(tmp_path / "short.toml").declare().digest != ledger.digest


def test_the_file_of_the_page_is_sound(tmp_path: Path) -> None:
    page = (STUDIES.parent / "docs" / "study.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "ttrl.toml").write_text(block)
    study = Study.read(tmp_path / "ttrl.toml")
    names = [setting.name for setting in study.settings]
    assert names == ["labels", "votes", "untrained", "rate lr=0.0001", "rate lr=0.001"]
