"""Studies that are run, stopped, changed and gone on with; in this process, in seconds."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import comas
from comas import memory
from comas.cli import study as shown
from comas.display import bars_of
from comas.machine import DeviceMemory
from comas.storage.run import Run
from comas.studies import cells, verb
from comas.studies.cells import Ended, Watch, jobs_for, rows_of
from comas.studies.report import _mixed_versions
from comas.studies.verb import Study
from comas.sync import run_sync
from comas.training.result import result_of
from comas.types import UserMistake
from tests.support.command import run
from tests.support.studies import SMALL, InProcess, small

FILES = ("report.md", "pictures/accuracy.svg")


def go(file: Path, place: InProcess) -> list[Ended]:
    """Run what is left of a study, and write its report."""
    study = Study.read(file)
    place.stopped = False
    watch = Kept()
    with study.alone():
        declared = study.declare()
        try:
            study.run(1, watch, place.run)
        finally:
            study.report(declared)
    return watch.cells


class Kept(Watch):
    """Keeps what became of cells."""

    def __init__(self) -> None:
        self.cells: list[Ended] = []

    def ended(self, ended: Ended) -> None:
        self.cells.append(ended)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures, which take as long as the cells."""
    monkeypatch.setattr("comas.studies.report.can_draw", lambda: False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that has run undisturbed."""
    file = small(tmp_path_factory.mktemp("done"))
    place = InProcess()
    go(file, place)
    assert len(place.commands) == 8
    return file.with_suffix("")


def test_a_study_without_test_questions_has_no_tables_of_accuracy(tmp_path: Path) -> None:
    text = SMALL.replace("test_questions = 8", "test_questions = 0").replace(
        "eval_every = 1", "eval_every = 0"
    )
    text = (
        text[: text.index("[settings.untrained]")]
        + "[measures.precision]\nmetric = 'pay.precision'\n"
    )
    file = small(tmp_path, text=text)
    go(file, InProcess())
    report = (file.with_suffix("") / "report.md").read_text()
    assert "Cells: 2 done" in report
    assert "ccuracy" not in report
    assert "## Measures" in report


def test_the_report_has_everything_in_it(done: Path) -> None:
    report = (done / "report.md").read_text()
    assert "Cells: 4 done, 0 failed, 0 missing." in report
    assert "| 1 | labels teach | labels - untrained | accuracy | above 0 |" in report
    assert report.count("](pictures/") == len(list((done / "pictures").glob("*.svg"))) == 2
    assert report.count("\n|---|") == 4
    rows = list(csv.DictReader((done / "rows.csv").read_text().splitlines()))
    assert [(row["setting"], row["seed"]) for row in rows] == [
        *(("labels", "1"), ("labels", "2")),
        *(("untrained", "1"), ("untrained", "2")),
    ]
    assert all(float(row["vote"]) >= 0 for row in rows)
    record = json.loads((done / "study.json").read_text())
    assert {row["status"] for row in record["rows"]} == {"done"}
    assert (done / "small.toml").read_text() == (done.parent / "small.toml").read_text()


def copied(done: Path, folder: Path) -> Study:
    """The study that has run, elsewhere."""
    shutil.copytree(done, folder / "small")
    return Study.read(small(folder))


def test_what_failed_once_and_is_done_since_is_done(done: Path, tmp_path: Path) -> None:
    study = copied(done, tmp_path)
    study.cells[0].fail("vote", "3 of 9 games failed")
    assert {row.status for row in rows_of(study.described, study.cells)} == {"done"}


def test_a_damaged_run_is_one_failed_cell(done: Path, tmp_path: Path) -> None:
    study = copied(done, tmp_path)
    damaged, untrained, *_ = [cell for cell in study.cells if cell.setting.trained]
    (damaged.run / "config.toml").unlink()
    shutil.rmtree(untrained.folder)
    run_sync(cells.forecast(study.cells, InProcess().run))
    failed = [row for row in rows_of(study.described, study.cells) if row.status == "failed"]
    assert [row.reason.partition(":")[0] for row in failed] == ["damaged"]


@pytest.mark.usefixtures("undrawn")
def test_a_claim_may_be_about_one_agent(done: Path, tmp_path: Path) -> None:
    two = SMALL.partition("[measures.vote]")[0]
    claim = '[[claims]]\nsays = "one"\nleft = "labels"\nright = 0\nmeasure = "gain.a1"\n'
    file = small(tmp_path, text=two + claim)
    go(file, InProcess())
    run = tmp_path / "small" / "cells" / "labels" / "1" / "run"
    shares = []
    for occasion in ("before", "after"):
        answers = json.loads((run / "eval" / f"{occasion}.json").read_text())["answers"]
        right = [a["verdict"] == "right" for a in answers if a["agent"] == "a1"]
        shares.append(sum(right) / len(right))
    rows = list(csv.DictReader((tmp_path / "small" / "rows.csv").read_text().splitlines()))
    found = {(row["setting"], row["seed"]): row["gain.a1"] for row in rows}
    assert float(found["labels", "1"]) == shares[1] - shares[0]
    assert "| setting | gain.a1 |" in (tmp_path / "small" / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_the_report_says_what_draws(tmp_path: Path) -> None:
    study = Study.read(small(tmp_path))
    with study.alone():
        study.report(study.declare())
    report = (tmp_path / "small" / "report.md").read_text()
    assert 'pip install "comas[plot]"' in report
    assert "](pictures/" not in report


def test_the_same_seed_has_the_same_questions_in_all_settings(done: Path) -> None:
    asked = {
        setting: [
            [a["question"] for a in _eval(done / "cells" / setting / seed)["answers"]]
            for seed in ("1", "2")
        ]
        for setting in ("labels", "untrained")
    }
    assert asked["labels"] == asked["untrained"]
    assert asked["labels"][0] != asked["labels"][1]


def _eval(cell: Path) -> Any:
    return json.loads((cell / "run" / "eval" / "after.json").read_text())


def test_a_study_that_was_stopped_gives_the_same_report(done: Path, tmp_path: Path) -> None:
    file = small(tmp_path)
    dies_at = (1, 4, 8)
    place = InProcess(dies_at)
    for _ in dies_at:
        with pytest.raises(KeyboardInterrupt):
            go(file, place)
        assert place.stopped
    go(file, place)
    for name in FILES:
        text = (tmp_path / "small" / name).read_text()
        assert _without_digest(text) == _without_digest((done / name).read_text())


def _without_digest(text: str) -> str:
    """The study files name different folders."""
    at = text.find("SHA-256")
    return text[:at] + text[at + 200 :] if at >= 0 else text


@pytest.mark.usefixtures("undrawn")
def test_a_failed_cell_is_shown_and_tried_again(tmp_path: Path) -> None:
    file = small(tmp_path)
    out = tmp_path / "small"
    ended = go(file, InProcess(breaks=["train " + str(out / "cells" / "labels" / "2")]))
    failures = [each.failure for each in ended if each.failure]
    assert failures == ["train: no such luck | <today>"]
    report = (out / "report.md").read_text()
    assert r"| labels | 2 | failed | train: no such luck \| \<today\> |" in report
    assert "missing: labels, seed 2: failed" in report
    record = json.loads((out / "study.json").read_text())
    assert [claim["verdict"] for claim in record["claims"]] == ["missing", "missing"]
    assert [claim["p"] for claim in record["claims"]] == [1.0, 1.0]
    again = InProcess()
    go(file, again)
    assert len(again.commands) == 2
    assert "Cells: 4 done" in (out / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_run_is_never_done_anew(tmp_path: Path) -> None:
    file = small(tmp_path)
    cell = tmp_path / "small" / "cells" / "labels" / "1"
    with pytest.raises(KeyboardInterrupt):
        go(file, InProcess(dies_at=[2]))
    (cell / "trained.json").unlink()
    (cell / "run" / "config.toml").write_text("{")
    place = InProcess()
    ended = go(file, place)
    assert place.commands[0] == ("resume", str(cell / "run"))
    (failure,) = [each.failure for each in ended if each.failure]
    assert "is damaged" in failure
    assert (cell / "run" / "config.toml").read_text() == "{"


def test_a_file_that_was_damaged_afterwards_is_a_missing_value(done: Path, tmp_path: Path) -> None:
    study = Study.read(done.parent / "small.toml")
    after = done / "cells" / "labels" / "1" / "run" / "eval" / "after.json"
    written = after.read_text()
    try:
        after.write_text("{")
        report = study.report(study.declare())
        assert report.verdicts[0].verdict == "missing: labels, seed 1: no accuracy"
    finally:
        after.write_text(written)
        study.report(study.declare())


def with_failures(done: Path, failed: int) -> Any:
    """The report of one evaluation, and how it was before, as if a machine had failed games."""
    path = done / "cells" / "labels" / "1" / "evals" / "vote" / "report.json"
    written = path.read_text()
    report = json.loads(written)
    report["cells"][0]["machine_failed"] = failed
    report["cells"][0]["failures"] = [{"error": "network\ndown"}]
    path.write_text(json.dumps(report))
    return path, written


@pytest.mark.parametrize("failed", [1, 4])
def test_an_evaluation_whose_games_failed_is_no_value_and_is_gone_on_with(
    failed: int, done: Path
) -> None:
    """It was done for ever, with a value of the games that were left."""
    study = Study.read(done.parent / "small.toml")
    assert study.left() == []
    path, written = with_failures(done, failed)
    try:
        (cell,) = study.left()
        (stage,) = cell.stages()
        assert stage.arguments == ("resume", str(cell.evaluation("vote")))
        row = next(row for row in rows_of(study.described, study.cells) if row.status != "done")
        assert row.reason == f"{failed} of 4 games failed; the first: network down"
        assert "vote" not in row.values
        place = InProcess(idle=True)
        watch = Kept()
        run_sync(cells.run_cells([cell], 1, place.run, watch))
        assert watch.cells[0].failure == f"vote: {row.reason}"
        assert rows_of(study.described, [cell])[0].status == "failed"
        path.write_text("{")
        assert study.left() == [cell]
    finally:
        path.write_text(written)
        (cell.folder / "failed.json").unlink(missing_ok=True)


@pytest.mark.parametrize("figure", ["pay.precison", "pay.precision.x", "validation.means"])
def test_a_figure_that_no_step_has_is_not_done(figure: str, done: Path) -> None:
    file = done.parent / "small.toml"
    written = file.read_text()
    declared = done / "declared.json"
    before = declared.read_text()
    try:
        file.write_text(written.replace("pay.precision", figure))
        study = Study.read(file)
        rows = rows_of(study.described, study.cells)
        assert [row.status for row in rows] == ["missing", "missing", "done", "done"]
        assert rows[0].reason.startswith(f"precision is not measured: no step has {figure}: ")
        if figure == "pay.precison":
            assert "precision, recall" in rows[0].reason
        declared.write_text(before.replace("pay.precision", figure))
        file.write_text(written)
        (added,) = Study.read(file).declare(write=False).additions  # it may be mended
        assert added == "measure precision: changed (metric) after 4 cells had run"
    finally:
        file.write_text(written)
        declared.write_text(before)


def test_a_figure_that_other_cells_have_is_not_misspelt(done: Path) -> None:
    """As what a role costs, in a study of methods with and without it."""
    study = Study.read(done.parent / "small.toml")
    metrics = done / "cells" / "labels" / "2" / "run" / "metrics.jsonl"
    written = metrics.read_text()
    try:
        metrics.write_text(written.replace('"pay"', '"paid"'))
        rows = rows_of(study.described, study.cells)
        assert {row.status for row in rows} == {"done"}
        assert ["precision" in row.values for row in rows[:2]] == [True, False]
    finally:
        metrics.write_text(written)


def test_a_dry_run_refuses_what_the_run_would_refuse(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that nothing was left to run."""
    file = done.parent / "small.toml"
    written = file.read_text()
    try:
        file.write_text(written.replace("eval_every = 1", "eval_every = 2"))
        assert run(["study", str(file), "--dry-run"], monkeypatch) == 2
        assert "setting labels is another (eval_every)" in capsys.readouterr().err
    finally:
        file.write_text(written)


CHANGES = {
    'left = "labels"\nright = 0': ('left = "labels"\nright = 0.1', "the claims are others"),
    'method = "rlvr"': ('method = "rlvr"\nlr = 1e-3', "setting labels is another (lr)"),
    "steps = 2": ("steps = 3", "the budget is another"),
    "seeds = [1, 2]": ("seeds = [1]", "seed 2 is gone"),
    "games = 4": ("games = 5", "measure vote is another (games)"),
    "train = false": ("lr = 1e-3", "setting untrained is another"),
}


@pytest.mark.parametrize("old", CHANGES)
def test_what_was_declared_cannot_change_after_cells_have_run(old: str, done: Path) -> None:
    new, message = CHANGES[old]
    file = done.parent / "small.toml"
    written = file.read_text()
    assert written.count(old) == 1
    try:
        file.write_text(written.replace(old, new))
        with pytest.raises(UserMistake) as raised:
            Study.read(file).declare()
        assert message in str(raised.value)
        assert "and 4 cells have run" in str(raised.value)
    finally:
        file.write_text(written)


@pytest.mark.usefixtures("undrawn")
def test_what_has_no_step_and_no_value_may_change_and_is_noted(tmp_path: Path) -> None:
    """A setting that always failed held those that had run."""
    file = small(tmp_path)
    go(file, InProcess(breaks=["cells/labels"]))
    text = file.read_text().replace('method = "rlvr"', 'method = "rlvr"\nlr = 1e-3')
    text = text.replace("labels teach", "labels teach more").replace("pay.precision", "pay.recall")
    file.write_text(text)
    study = Study.read(file)
    cells = [cell for cell in study.cells if cell.setting.name == "labels"]
    assert not any(cell.has_steps() for cell in cells)
    assert [added.partition(" after ")[0] for added in study.declare().additions] == [
        "claims: reworded",
        "setting labels: changed (lr)",
        "measure precision: changed (metric)",
    ]
    assert not any(cell.folder.exists() for cell in cells)


def test_cells_of_several_versions_are_told_apart(done: Path) -> None:
    study = Study.read(done.parent / "small.toml")
    facts = done / "cells" / "labels" / "2" / "run" / "processes.json"
    written = facts.read_text()
    try:
        rows = rows_of(study.described, study.cells)
        assert _mixed_versions(rows) == ""
        record = json.loads(written)
        record["processes"].append({**record["processes"][0], "comas": "9.9", "commit": "abc"})
        facts.write_text(json.dumps(record))
        text = _mixed_versions(rows_of(study.described, study.cells))
        assert "then 9.9 abc: labels 2" in text
    finally:
        facts.write_text(written)


@pytest.mark.usefixtures("undrawn")
def test_settings_and_seeds_may_be_added_and_are_noted(tmp_path: Path) -> None:
    file = small(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        go(file, InProcess(dies_at=[2]))
    text = file.read_text().replace("seeds = [1, 2]", "seeds = [1, 2, 3]  # one more")
    file.write_text(text.replace("[measures.vote]", "[settings.fast]\nlr = 1e-3\n[measures.vote]"))
    study = Study.read(file)
    expected = [
        "setting fast: added after 1 cell had run",
        "seed 3: added after 1 cell had run",
    ]
    assert study.declare().additions == expected
    assert study.declare().additions == expected  # once
    report = study.report(study.declare())
    assert "seed 3: added after 1 cell had run" in (tmp_path / "small" / "report.md").read_text()
    assert report.count("missing") == 9


def test_before_any_cell_has_run_everything_may_change(tmp_path: Path) -> None:
    file = small(tmp_path)
    Study.read(file).declare()
    file.write_text(file.read_text().replace("steps = 2", "steps = 3").replace("[1, 2]", "[4]"))
    assert Study.read(file).declare().additions == []


def test_two_processes_do_not_share_a_study(tmp_path: Path) -> None:
    study = Study.read(small(tmp_path))
    with study.alone(), pytest.raises(UserMistake, match="another process"), study.alone():
        pass
    with study.alone():
        pass  # it is free again


def test_as_many_jobs_as_cores_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "usable_cpus", lambda: 8)
    assert jobs_for(with_threads(1, cells=100)) == 8
    assert jobs_for(with_threads(3, cells=100)) == 2
    assert jobs_for(with_threads(1, cells=3)) == 3
    assert jobs_for(with_threads(16, cells=100)) == 1
    assert jobs_for(with_threads(None, cells=100)) == 1


def with_threads(threads: int | None, cells: int) -> list[Any]:
    config = SimpleNamespace(threads=threads)
    setting = SimpleNamespace(plan=SimpleNamespace(config=config))
    return [SimpleNamespace(setting=setting)] * cells


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """The command without processes."""
    place = InProcess(breaks=["labels/2"])
    monkeypatch.setattr(verb, "here", place.run)
    return place


@pytest.mark.usefixtures("undrawn")
def test_the_command_says_what_it_costs_and_what_became_of_it(
    quick: InProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = small(tmp_path)
    assert run(["study", str(file), "--dry-run"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "study:  2 settings x 2 seeds, 2 claims, in " in said
    assert "left:   4 cells, 4 evaluations" in said
    assert not (tmp_path / "small").exists()
    assert run(["study", str(file), "--jobs", "1"], monkeypatch) == 1
    said = capsys.readouterr().out
    # two runs of two steps of 3 seconds
    assert "time:   about 12 seconds of steps, 1 at once, as long as a dry run of labels" in said
    assert "[3/4] labels, seed 2: FAILED: train: no such luck" in said
    assert "cells: 3 done, 1 failed, 0 missing" in said
    assert run(["study", str(file), "--report", "--json"], monkeypatch) == 1
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"setting", "seed", "run", "accuracy"} <= record["rows"][0].keys()
    keys = {"left", "right", "difference", "low", "high", "p", "verdict"}
    assert keys <= record["claims"][0].keys()
    assert len(quick.commands) == 7


@pytest.mark.usefixtures("undrawn", "quick")
def test_runs_that_may_not_fit_side_by_side_are_told_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10**9, 10**9))
    monkeypatch.setattr(memory.MemoryPlan, "taken", lambda *_: 4 * 10**8)
    file = small(tmp_path)
    assert run(["study", str(file), "--dry-run", "--jobs", "2"], monkeypatch) == 0
    assert "at once may not fit" not in capsys.readouterr().err
    # of four cells no more than four run at once
    assert run(["study", str(file), "--dry-run", "--jobs", "1000"], monkeypatch) == 0
    said = capsys.readouterr().err
    assert said.count("4 runs at once may not fit into memory") == 1
    assert "--jobs 2 is safe" in said
    crowding = iter([(2, "the first"), (1, "the larger one")])
    monkeypatch.setattr(memory.MemoryPlan, "crowding", lambda *_: [next(crowding)])
    notes: list[str] = []
    Study.read(file).check_left(4, notes.append)
    assert notes == ["the larger one"]


def test_what_is_left_is_forecast_by_the_runs_that_are_done(done: Path) -> None:
    study = Study.read(done.parent / "small.toml")
    assert study.forecast() is None
    first, second = (cell for cell in study.cells if cell.setting.trained)
    told = (second.folder / "trained.json").rename(second.folder / "kept.json")
    try:
        found = study.forecast(InProcess(idle=True).run)
        assert found is not None
        seconds = result_of(Run.open(first.run)).step_seconds
        assert found.measured == "the run that is done"
        assert found.seconds(study.cells, 1) == pytest.approx(seconds)
        assert found.seconds(study.cells, 2) == pytest.approx(seconds / 2)
    finally:
        told.rename(second.folder / "trained.json")


def test_a_dry_run_that_fails_forecasts_nothing(tmp_path: Path) -> None:
    assert Study.read(small(tmp_path)).forecast(InProcess(idle=True).run) is None


@pytest.mark.parametrize("tokens", [None, 1_000])
def test_a_budget_of_tokens_ends_the_steps_that_are_forecast(
    tokens: int | None, tmp_path: Path
) -> None:
    text = SMALL if tokens is None else SMALL.replace("steps = 2", f"tokens = {tokens}")
    found = Study.read(small(tmp_path, text=text)).forecast(InProcess().run)
    assert found is not None
    # 3 seconds a step; three steps of 400 tokens reach 1,000
    assert found.cell_steps == (2 if tokens is None else 3)
    assert found.cell_seconds == 3.0 * found.cell_steps


@pytest.mark.usefixtures("undrawn", "quick")
@pytest.mark.parametrize(("every", "told"), [(1, False), (20, True), (0, False)])
def test_a_curve_of_few_points_is_told_before_anything_runs(
    every: int,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = SMALL.replace("steps = 2", "steps = 9").replace(
        "eval_every = 1", f"eval_every = {every}"
    )
    assert run(["study", str(small(tmp_path, text=text)), "--dry-run"], monkeypatch) == 0
    said = capsys.readouterr().err
    assert ("about 9 steps, and eval_every is 20: validations between" in said) == told


@pytest.mark.parametrize("terminal", [False, True])
def test_cells_that_run_show_their_latest_line(
    terminal: bool, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "EVERY", 0.0)
    cell, other, *_ = Study.read(done.parent / "small.toml").cells
    written = cell.log.read_text() if cell.log.exists() else ""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal, _environ={})
    with bars_of(console) as bars:
        watch = shown._Bars(console, 4, 2, bars) if terminal else shown._Lines(console, 4, 2)
        try:
            cell.log.write_text(
                "loading\nstep 1/2, playing: 3 of 4 replies\n\nnext: comas view run\n"
            )
            watch.running([cell])
            watch.ended(Ended(other, 90.0, ""))
            watch.running([cell])
            bars.refresh()
        finally:
            cell.log.write_text(written)
    said = out.getvalue()
    assert "step 1/2, playing: 3 of 4 replies" in said
    assert "[1/4]" in said
    assert "about 2:15 left" in said  # three cells of 90 seconds, two at once


@pytest.mark.usefixtures("undrawn")
def test_a_study_in_python(quick: InProcess, tmp_path: Path) -> None:
    file = small(tmp_path)
    report = comas.study(file, report=True)
    assert report.count("missing") == 4
    assert not quick.commands
    report = comas.study(file, jobs=1)
    assert "cells 3 done, 1 failed, 0 missing" in repr(report)
    assert "labels teach: missing: labels, seed 2: failed" in repr(report)


@pytest.mark.usefixtures("undrawn")
def test_a_stop_of_the_command_is_130_and_says_how_to_go_on(
    quick: InProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quick, "_dies_at", [2])
    file = small(tmp_path)
    assert run(["study", str(file), "--jobs", "1"], monkeypatch) == 130
    assert f"stopped; go on with: comas study {file}" in capsys.readouterr().err
    assert "0 failed, 4 missing" in (tmp_path / "small" / "report.md").read_text()


def test_a_mistake_of_the_command_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small(tmp_path, text=SMALL.replace("steps = 2", "stepps = 2"))
    assert run(["study", str(file)], monkeypatch) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sys.argv[0] == "comas"
