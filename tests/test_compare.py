"""Is one system better than another: tests against closed forms and by simulation, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from comas.evaluate import Answer, compare
from comas.stats import mcnemar, paired_bootstrap
from tests.test_config_cli import run
from tests.test_runs import run_of


def test_mcnemar_against_the_binomial_by_hand() -> None:
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert mcnemar(0, 20) == pytest.approx(2 / 2**20)


def test_the_bootstrap_against_the_normal_limit() -> None:
    differences = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 400, p=[0.2, 0.5, 0.3])
    interval, p = paired_bootstrap(list(differences))
    error = differences.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(differences.mean())
    limits = tuple(differences.mean() + error * np.array([-1.96, 1.96]))
    assert (interval.low, interval.high) == pytest.approx(limits, abs=0.2 * error)
    assert p == pytest.approx(2 * stats.norm.sf(abs(differences.mean()) / error), abs=0.02)
    assert paired_bootstrap(list(differences)) == (interval, p)
    assert paired_bootstrap([0.0] * 9)[1] == 1.0
    assert paired_bootstrap([1.0] * 9)[1] == pytest.approx(2 / 10_000)
    with pytest.raises(ValueError, match="takes two or more"):
        paired_bootstrap([1.0])


def test_false_alarms_and_coverage_by_simulation() -> None:
    rng, alarms, covered, trials = np.random.default_rng(1), 0, 0, 400
    for trial in range(trials):
        differences = rng.choice([-0.5, 0.0, 0.5], 80, p=[0.25, 0.5, 0.25])
        interval, p = paired_bootstrap(list(differences), seed=trial, draws=599)
        alarms += p < 0.05
        covered += interval.low <= 0 <= interval.high
    error = 3 * (0.05 * 0.95 / trials) ** 0.5
    assert abs(alarms / trials - 0.05) < error + 0.01  # the percentile interval is a little narrow at 80 questions
    assert abs(covered / trials - 0.95) < error + 0.01


def answers(agents: list[str], right: list[str]) -> list[Answer]:
    """`right` per question: r, w or f, one letter per agent."""
    names = {"r": "right", "w": "wrong", "f": "failed"}
    return [Answer(f"q{i}", a, "", names[v], 1, 0.0) for i, word in enumerate(right) for a, v in zip(agents, word, strict=True)]


def test_single_answers_are_compared_by_mcnemar_and_failures_are_left_out() -> None:
    first, second = answers(["a"], list("wwwwwwwwwrf")), answers(["b"], list("rrrrrrrrrrr"))
    found = compare(first, second)
    assert found is not None
    assert (found.interval.n, found.test, found.verdict) == (10, "McNemar, exact", "better")
    assert found.p == pytest.approx(2 / 2**9)
    swapped = compare(second, first)
    assert swapped is not None
    assert (swapped.verdict, swapped.interval.mean) == ("worse", -found.interval.mean)
    assert compare(first, answers(["b"], list("fffffffffrr"))) is None


def test_teams_are_compared_by_their_share_of_right_answers() -> None:
    first, second = answers(["a", "b"], ["rw", "ww", "rr"] * 8), answers(["c", "d", "e"], ["rrw", "wwf", "rrr"] * 8)
    found = compare(first, second)
    assert found is not None
    assert found.test == "paired bootstrap"
    assert found.interval.mean == pytest.approx((2 / 3 - 1 / 2) / 3)


@pytest.fixture(scope="module")
def trained(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "r", untaught, steps=1, test_questions=4, eval_every=0).path


def test_the_command(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["compare", "seed", "seed", "test_questions=16", "--json"], monkeypatch) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert (cell["difference"], cell["p"], cell["verdict"], cell["n"]) == (0.0, 1.0, "none shown", 16)
    assert {"task", "setup", "low", "high"} <= cell.keys()
    assert run(["compare", str(trained), "seed", "test_questions=48"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"seed minus {trained}: +0." in said
    assert said.endswith("better\n")  # than a model that was never taught
    assert run(["compare", str(trained), "seed", "task_options.form=two", "test_questions=1"], monkeypatch) == 2
    assert "fewer than two questions" in capsys.readouterr().err
    assert run(["compare", "seed"], monkeypatch) == 2
    assert capsys.readouterr().err.startswith("error: ")
