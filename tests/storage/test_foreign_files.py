"""What others put into a run's folder, what a run owes to others' folders, and facts that are no
JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comas
from comas.config.schema import settings_of
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.spec import EvaluationPlan
from comas.hooks import Hook
from comas.storage.records import line
from comas.storage.rewind import rewind
from comas.storage.run import Run, hold, release, steps_held
from comas.team.build import run_sync
from comas.training.start import resume_async
from comas.types import Episode, UserMistake
from tests.support import runs
from tests.support.run_folders import CONFIG, Q, checkpoint, step
from tests.support.runs import run_of

FOREIGN = (".DS_Store", "step-5-backup", "step-", "step-05", "notes.txt")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(CONFIG, str(tmp_path / "r"))


def strew(run: Run) -> list[Path]:
    """Put other people's files and folders beside a run's own."""
    checkpoints = run.path / "checkpoints"
    episodes = run.path / "episodes"
    files = [checkpoints / name for name in FOREIGN]
    files += [episodes / name for name in (".DS_Store", "copy.jsonl", "000001 copy.jsonl")]
    for file in files:
        file.write_text("mine")
    for folder in (
        checkpoints / ".ipynb_checkpoints",
        checkpoints / "step-1-copy",
        episodes / ".ipynb_checkpoints",
    ):
        folder.mkdir()
        files.append(folder / "x")
        files[-1].write_text("mine")
    return files


def test_foreign_files_stop_neither_a_commit_nor_a_rewind_and_stay(run: Run) -> None:
    files = strew(run)
    assert rewind(run) == (0, [])  # before the first commit all that is ours goes
    for number in range(4):
        step(run, number)
        checkpoint(run, number + 1)
    step(run, 4)
    assert rewind(run) == (4, [])
    assert sorted(run.steps_kept()) == [3, 4]
    assert all(file.read_text() == "mine" for file in files)
    assert Run.open(run.path).intact().name == "step-4"


def test_a_folder_with_something_in_it_is_no_place_for_a_run(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    with pytest.raises(UserMistake, match=r"thesis.tex"):
        Run.create(CONFIG, str(taken))
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    Run.create(CONFIG, str(tmp_path / "empty")).unlock()


@pytest.mark.parametrize("out", ["", "  "])
def test_an_empty_name_is_no_folder(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserMistake, match="out is empty"):
        Run.create(CONFIG, out)
    assert not list(tmp_path.iterdir())


def validated(run: Run, means: list[float], best: list[int]) -> None:
    """Steps with an accuracy on the validation split, each with a checkpoint."""
    for number, mean in enumerate(means):
        run.write_step({"step": number, "tokens": 0, "validation": {"mean": mean}}, [])
        checkpoint(run, number + 1, best[number])


def test_a_lost_best_checkpoint_is_told_and_none_is_the_best(run: Run) -> None:
    validated(run, [0.9, 0.5, 0.6, 0.95], [1, 1, 1, 4])
    assert sorted(run.steps_kept()) == [3, 4]  # the older best was removed when a better one came
    (run.path / "checkpoints" / "step-4" / "a0" / "weights").write_text("flipped")
    start, notes = rewind(run)
    assert start == 3
    assert "going on from step 3" in notes[0]
    assert notes[1].startswith("the best checkpoint, of step 1, is gone, and none is the best now")
    with pytest.raises(UserMistake, match="knows no best checkpoint"):
        run.best()
    assert rewind(run) == (3, [])


def test_a_damaged_best_checkpoint_beside_a_good_last_one(run: Run) -> None:
    validated(run, [0.9, 0.5, 0.6], [1, 1, 1])
    (run.path / "checkpoints" / "step-1" / "a0" / "weights").write_text("flipped")
    start, notes = rewind(run)
    assert start == 3
    assert "of step 1, is damaged" in notes[0]


def test_a_checkpoint_is_kept_while_somebody_holds_it(run: Run, tmp_path: Path) -> None:
    holder = tmp_path / "evaluation"
    holder.mkdir()
    step(run, 0)
    checkpoint(run, 1)
    assert not list(hold([(run, 1)], holder))
    for number in range(1, 5):
        step(run, number)
        checkpoint(run, number + 1)
    assert sorted(run.steps_kept()) == [1, 4, 5]
    holder.rmdir()  # nobody is left who needs it
    step(run, 5)
    checkpoint(run, 6)
    assert sorted(run.steps_kept()) == [5, 6]


def test_a_released_checkpoint_goes_with_the_next_commit(run: Run, tmp_path: Path) -> None:
    for holder in (tmp_path / "a", tmp_path / "b"):
        holder.mkdir()
        step(run, 0)
    checkpoint(run, 1)
    assert not list(hold([(run, 1)], tmp_path / "a"))
    assert not list(hold([(run, 1)], tmp_path / "b"))
    release([(run, 1)], tmp_path / "a")
    assert steps_held(run) == {1}
    release([(run, 1)], tmp_path / "b")
    release([(run, 1)], tmp_path / "b")
    assert steps_held(run) == set()


@dataclass
class Fact:
    value: Any


def test_facts_that_are_no_json_are_written_all_the_same(run: Run) -> None:
    facts = {
        "number": np.int64(3),
        "share": np.float32(0.5),
        "row": np.arange(2),
        "letters": {"b", "a"},
        "fact": Fact(np.bool_(True)),
        "place": Path("x"),
        "raw": b"\x01",
        "kind": int,
    }
    episode = Episode("0/q/0", Q)
    episode.question = type(Q)(id="q", prompt="p", meta={"set": {3, 1}, ("a", 1): 2})
    run.write_step({"step": 0, "tokens": 0, "info": facts}, [episode])
    (metrics,) = run.metrics()
    written = metrics["info"]
    assert {k: written[k] for k in ("number", "share", "row", "letters", "fact")} == {
        "number": 3,
        "share": 0.5,
        "row": [0, 1],
        "letters": ["a", "b"],
        "fact": {"value": True},
    }
    assert (written["place"], written["raw"], written["kind"]) == ("x", "01", "<class 'int'>")
    (recorded,) = run.episodes(0)
    assert recorded["question"]["meta"] == {"set": [1, 3], "('a', 1)": 2}


def test_a_fact_that_holds_itself_ends_somewhere() -> None:
    fact: dict[str, Any] = {}
    fact["fact"] = fact
    assert len(line(fact)) < 2000


def trained_on(run: Run, steps: int) -> None:
    """Train on to so many steps."""
    run_sync(resume_async(run.path, Hook(), changes=settings_of([f"steps={steps}"])))


@pytest.fixture(scope="module")
def first(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(
        tmp_path_factory.mktemp("runs") / "first",
        untaught,
        steps=1,
        agents=1,
        test_questions=0,
        eval_every=0,
        checkpoint_every=1,
        hosts__home__learner="full",
    )


def test_a_run_keeps_the_reference_that_it_began_with(
    first: Run, untaught: Path, tmp_path: Path
) -> None:
    """Its base is a run that goes on training: same weights before and after, and
    they are there.
    """
    config = runs.planned({"hosts.home.base": str(first.path), "lr": 1e-3, "agents": 1}).config
    assert config.hosts["home"].base == f"{first.path.resolve()}@1"
    second = run_of(
        tmp_path / "second",
        first.path,
        steps=1,
        agents=1,
        test_questions=0,
        eval_every=0,
        hosts__home__learner="full",
    )
    assert Run.open(second.path).config()["hosts"]["home"]["base"] == f"{first.path.resolve()}@1"
    trained_on(first, steps=4)
    assert sorted(first.steps_kept()) == [1, 3, 4]  # not only the last two
    notes: list[str] = []
    watch = Hook()
    watch.note = notes.append  # type: ignore[method-assign]
    run_sync(resume_async(second.path, watch, changes=settings_of(["steps=2"])))
    assert not [note for note in notes if "SHA-256" in note]


def test_other_questions_and_other_weights_under_the_same_name_are_told(
    untaught: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"question": f"{split} {n}", "answer": str(n)}) for n in range(6)]
        (data / f"{split}.jsonl").write_text("\n".join(lines))
    base = tmp_path / "base"
    base.mkdir()
    for file in untaught.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    run = run_of(
        tmp_path / "r",
        base,
        steps=1,
        agents=1,
        questions=3,
        task="jsonl",
        data=str(data),
        test_questions=3,
        eval_every=0,
        room__solution=8,
        room__evaluation=8,
        room__scoring=8,
    )
    more = json.dumps({"question": "a new one", "answer": "1"})
    (data / "train.jsonl").write_text((data / "train.jsonl").read_text() + "\n" + more)
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings, indent=8))
    notes: list[str] = []
    watch = Hook()
    watch.note = notes.append  # type: ignore[method-assign]
    run_sync(resume_async(run.path, watch, changes=settings_of(["steps=2"])))
    assert [note for note in notes if "SHA-256 of training questions was" in note]
    assert [note for note in notes if "SHA-256 of bases was" in note]
    assert not [note for note in notes if "SHA-256 of held-out questions" in note]


def test_an_evaluation_ends_although_its_run_trains_on(untaught: Path, tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "r",
        untaught,
        steps=1,
        agents=1,
        test_questions=0,
        eval_every=0,
        checkpoint_every=1,
        hosts__home__learner="full",
    )
    evaluation = EvaluationRun.create(EvaluationPlan([str(run.path)], limit=2), str(tmp_path / "e"))
    (tmp_path / "e" / "answers" / "copy.jsonl").write_text("somebody's\n")
    trained_on(run, steps=4)
    assert 1 in run.steps_kept()
    found = run_sync(evaluation.go(Hook()))
    assert found["cells"][0]["complete"] == 1
    assert steps_held(run) == set()  # nothing is left to ask: the next commit may remove it
    checker = tmp_path / "frail.py"
    checker.write_text(
        "from dataclasses import replace\nfrom comas.tasks import pick\n"
        "task = replace(pick.task, name='frail', verify=lambda *_: 'failed')\n"
    )
    undecided = EvaluationPlan([f"{run.path}@4"], tasks=[str(checker)], limit=2)
    run_sync(EvaluationRun.create(undecided, str(tmp_path / "f")).go(Hook()))
    assert steps_held(run) == {4}  # until its checker is mended


def test_a_folder_that_cannot_be_written_cannot_be_held_and_that_is_told(
    run: Run, tmp_path: Path
) -> None:
    (run.path / "held").write_text("a file in the way")
    (note,) = hold([(run, 1)], tmp_path)
    assert "cannot be written" in note
    assert steps_held(run) == set()


def test_compare_as_one_system_takes_different_runs(untaught: Path, tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "r",
        untaught,
        steps=2,
        agents=1,
        test_questions=0,
        eval_every=0,
        checkpoint_every=1,
    )
    with pytest.raises(UserMistake, match="two checkpoints"):
        EvaluationRun.create(EvaluationPlan([f"{run.path}@1,{run.path}@2"]), str(tmp_path / "e"))
    assert EvaluationRun.create(
        EvaluationPlan([f"{run.path}@1", f"{run.path}@2"]), str(tmp_path / "e")
    ).plan.systems


def test_digests_of_bases_and_questions_stand_beside_what_a_process_runs_on(
    untaught: Path, tmp_path: Path
) -> None:
    result = comas.train(
        out=str(tmp_path / "r"),
        hosts__home__base=str(untaught),
        lr=1e-3,
        steps=0,
        agents=1,
        test_questions=0,
        eval_every=0,
    )
    facts = json.loads((result.run / "processes.json").read_text())["processes"][0]
    assert {"SHA-256 of bases", "SHA-256 of training questions"} <= facts.keys()


def test_what_is_changed_is_written_as_it_was_understood(first: Run) -> None:
    steps = len(list(first.metrics()))
    run_sync(resume_async(first.path, Hook(), changes=settings_of([f'steps="{steps + 1}"'])))
    assert first.config()["steps"] == steps + 1
    with pytest.raises(UserMistake, match=f"{steps + 1} steps already"):
        comas.resume(first.path, steps=1, hooks=[])


def test_notes_of_holders_that_nobody_can_read_hold_nothing(run: Run) -> None:
    (run.path / "held").mkdir()
    (run.path / "held" / "step-1.0123456789ab").write_bytes(b"\xff\xfe")
    (run.path / "held" / "step-2.0123456789ab").write_text("")
    assert steps_held(run) == set()


@pytest.mark.parametrize("method", ["read_text", "stat"])
def test_what_is_another_users_is_held(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note, or its holder, that may not be looked at ended the training at every commit."""
    run = Run(tmp_path)
    assert not list(hold([(run, 2)], tmp_path))
    real = getattr(Path, method)

    def refused(path: Path, *args: Any, **keywords: Any) -> Any:
        theirs = path == tmp_path if method == "stat" else path.parent.name == "held"
        if theirs:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **keywords)

    monkeypatch.setattr(Path, method, refused)
    assert steps_held(run) == {2}


@pytest.mark.parametrize("gone", ["note", "holder"])
def test_what_has_gone_meanwhile_is_not_held(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    holder = tmp_path / "evaluation"
    holder.mkdir()
    assert not list(hold([(run, 2)], holder))
    real = Path.read_text

    def removed(path: Path, *args: Any, **keywords: Any) -> str:
        text = real(path, *args, **keywords)
        path.unlink()
        return real(path, *args, **keywords) if gone == "note" else text

    if gone == "holder":
        holder.rmdir()
    monkeypatch.setattr(Path, "read_text", removed)
    assert steps_held(run) == set()


def test_evaluations_from_python_ask_once_and_refuse_keys_of_training(tmp_path: Path) -> None:
    found = comas.evaluate(
        "tiny", setups="single,single", tasks="pick,pick", limit=3, out=tmp_path / "e", agents=1
    )
    (cell,) = found.cells
    assert (cell["n"], cell["runs"]) == (3, 1)
    assert "tiny pick single: " in repr(found)
    for odd in ({"steps": 3}, {"temperature": 0.1}, {"limit": -5}, {"setups": []}):
        with pytest.raises(UserMistake, match=next(iter(odd))):
            comas.evaluate("tiny", **odd)
    short = comas.evaluate("tiny", limit=2, out=tmp_path / "f", agents=1, room={"solution": 2})
    assert short.cells[0]["right"] == 0
    (same,) = comas.compare("tiny", "tiny-b", limit=4, out=tmp_path / "g", agents=1)
    assert same.verdict in ("better", "worse", "none shown")
