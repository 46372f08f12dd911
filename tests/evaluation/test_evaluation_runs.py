"""Evaluations as folders: everything is asked once, whatever stops them; runs, base models, tasks,
setups; the commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file

import comas
from comas.config.plan import plan
from comas.config.schema import read, settings_of
from comas.evaluation import games
from comas.evaluation.questions import of_weights
from comas.evaluation.runner import EvaluationRun
from comas.evaluation.setups import chosen_setup
from comas.evaluation.spec import EvaluationPlan
from comas.evaluation.systems import load, system_team
from comas.hooks import Hook
from comas.hosts.local import LocalHost
from comas.models.sources import run_at, source_of
from comas.storage.run import Run
from comas.sync import run_sync
from comas.types import Ask, HostFailure, UserMistake
from tests.support.command import run
from tests.support.runs import Killed, run_of


class Count(Hook):
    """What was asked."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.games = 0
        self.done = 0

    def planned(self, folder: Path, games: int, done: int) -> None:
        self.games = games
        self.done = done

    def game(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)


def evaluated(evaluation: EvaluationRun) -> tuple[dict[str, Any], Count]:
    watch = Count()
    return run_sync(evaluation.go(watch)), watch


@pytest.fixture(scope="module")
def trained(untaught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with a best checkpoint."""
    return run_of(
        tmp_path_factory.mktemp("runs") / "r",
        untaught,
        steps=2,
        agents=2,
        test_questions=0,
        eval_every=1,
        eval_questions=4,
        checkpoint_every=1,
    ).path


SMALL = {"limit": 6, "setups": ("single", "vote:votes=3", "debate", "autogen", "game")}


@pytest.fixture(scope="module")
def evaluation(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole evaluation."""
    folder = tmp_path_factory.mktemp("evals") / "e"
    evaluated(EvaluationRun.create(EvaluationPlan([str(trained), "tiny"], **SMALL), str(folder)))
    return folder


def texts(folder: Path) -> dict[str, list[str]]:
    found = {}
    for path in (folder / "answers").glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        found |= {
            f"{path.name} {r['id']}": [t["text"] for t in r["turns"]] for r in records if "id" in r
        }
    return found


def test_every_system_in_every_setup(evaluation: Path, trained: Path) -> None:
    found = json.loads((evaluation / "report.json").read_text())
    assert [(c["system"], c["setup"], c["team"], c["n"]) for c in found["cells"]] == [
        (str(trained), "single", "2 agents, each alone", 6),
        *[(str(trained), s, "team of 2", 6) for s in SMALL["setups"][1:]],
        ("tiny", "single", "1 agent", 6),
        *[("tiny", s, "4 copies of one model", 6) for s in SMALL["setups"][1:]],
    ]
    assert all(c["complete"] == 1 and c["failed"] == 0 and c["tokens"] > 0 for c in found["cells"])
    assert len(found["systems"]) == 5
    assert len(found["setups"]) == 8
    costs = {
        (c["system"], c["setup"]): {(r["agent"], r["role"], r["round"]) for r in c["cost"]}
        for c in found["cells"]
    }
    assert costs["tiny", "vote:votes=3"] == {(f"a{i}", "solution", 0) for i in range(3)}
    assert costs["tiny", "debate"] == {
        (f"a{i}", r, n) for i in range(4) for r, n in (("solution", 0), ("revision", 1))
    }
    assert {role for _, role, _ in costs["tiny", "game"]} == {"solution", "evaluation", "scoring"}


def test_a_finished_evaluation_asks_nothing_and_says_the_same(evaluation: Path) -> None:
    before = json.loads((evaluation / "report.json").read_text())
    after, watch = evaluated(EvaluationRun.open(evaluation))
    assert watch.records == []
    assert watch.done == watch.games == 2 * 6 + 6 + 8 * 6
    assert after == before


def test_what_was_lost_is_asked_again_and_nothing_else(evaluation: Path, tmp_path: Path) -> None:
    copy = tmp_path / "e"
    subprocess.run(["cp", "-r", str(evaluation), str(copy)], check=True)
    (log,) = (copy / "answers").glob("tiny.pick.debate.*.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][: len(lines[3]) // 2])  # torn while it was written
    (other,) = (copy / "answers").glob("tiny.pick.single.*.jsonl")
    other.unlink()
    found, watch = evaluated(EvaluationRun.open(copy))
    assert len(watch.records) == 3 + 6
    assert texts(copy) == texts(evaluation)  # the same seeds: the same words
    assert all(c["complete"] == 1 for c in found["cells"])


def test_each_game_is_in_its_log_before_anybody_hears_of_it(
    trained: Path, evaluation: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "e"

    class Killing(Hook):
        heard = 0

        def game(self, record: Mapping[str, Any]) -> None:
            self.heard += 1
            assert any(name.endswith(f" {record['id']}") for name in texts(folder))
            if self.heard == 20:
                raise Killed

    created = EvaluationRun.create(EvaluationPlan([str(trained), "tiny"], **SMALL), str(folder))
    with pytest.raises(BaseExceptionGroup) as ended:
        run_sync(created.go(Killing()))
    assert ended.group_contains(Killed)
    kept = texts(folder)
    assert 20 <= len(kept) < len(texts(evaluation))
    _, watch = evaluated(EvaluationRun.open(folder))
    assert texts(folder) == texts(evaluation)
    assert len(watch.records) == len(texts(evaluation)) - len(kept)


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ([{"device": "cpu"}, {"model": "far"}], "cpu"),
        ([{"device": "cuda:0"}, {"model": "far"}], "elsewhere"),
        ([], "elsewhere"),
    ],
)
def test_one_host_on_a_cpu_bounds_the_games_of_a_team(facts: list[Any], where: str) -> None:
    hosts: Any = {str(n): SimpleNamespace(facts=lambda of=of: of) for n, of in enumerate(facts)}
    assert games.at_once(hosts) == games.AT_ONCE[where]


@pytest.mark.parametrize(("device", "most"), [("cpu", 4), ("cuda:0", 12)])
def test_on_a_cpu_few_games_are_on_their_way_at_once(
    device: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what ends an evaluation of single answers costs those, not all of them."""
    real = LocalHost.ask
    waiting: set[str] = set()
    counts: list[int] = []

    async def counting(self: LocalHost, ask: Ask) -> Any:
        waiting.add(ask.turn)
        counts.append(len(waiting))
        try:
            return await real(self, ask)
        finally:
            waiting.remove(ask.turn)

    monkeypatch.setattr(LocalHost, "ask", counting)
    monkeypatch.setattr(LocalHost, "facts", lambda self: {"device": device})
    monkeypatch.setitem(games.AT_ONCE, "cpu", 4)
    run_sync(
        EvaluationRun.create(EvaluationPlan(["tiny"], limit=12), str(tmp_path / "e")).go(Hook())
    )
    assert len(counts) == 12
    assert max(counts) == most


@pytest.mark.slow
def test_a_kill_loses_what_was_in_flight_only(
    trained: Path, evaluation: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "comas",
        "eval",
        str(trained),
        "tiny",
        "--limit",
        "6",
        "--out",
        str(folder),
        "--setups",
        ",".join(SMALL["setups"]),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while (
        not list(folder.glob("answers/*debate*.jsonl"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = texts(folder)
    assert len(kept) >= 2 * 6
    _, watch = evaluated(EvaluationRun.open(folder))
    assert texts(folder) == texts(evaluation)
    assert len(watch.records) == len(texts(evaluation)) - len(kept)


def test_what_machines_failed_is_recorded_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalHost.ask

    async def failing(self: LocalHost, ask: Ask) -> Any:
        if "seed" not in os.environ and hash_of(ask.turn) % 3 == 0:
            raise HostFailure("the machine is on fire")
        return await real(self, ask)

    folder = tmp_path / "e"
    with monkeypatch.context() as patch:
        patch.setattr(LocalHost, "ask", failing)
        found, _ = evaluated(EvaluationRun.create(EvaluationPlan(["tiny"], limit=12), str(folder)))
    (cell,) = found["cells"]
    assert 0 < cell["failed"] == cell["machine_failed"] < 12
    assert cell["wrong"] + cell["right"] + cell["failed"] == 12
    assert "on fire" in found["notes"][0]
    after, watch = evaluated(EvaluationRun.open(folder))
    assert len(watch.records) == cell["failed"]
    assert after["cells"][0]["failed"] == 0
    assert after["notes"] == []


def hash_of(turn: str) -> int:
    return sum(map(ord, turn.split("/")[2]))


def test_answers_whose_checker_broke_are_checked_again_not_asked_again(tmp_path: Path) -> None:
    (tmp_path / "frail.py").write_text(
        "from dataclasses import replace\nfrom pathlib import Path\nfrom comas.tasks import"
        f" pick\nmended = Path({str(tmp_path / 'mended')!r})\ndef verify(question, text):\n   "
        " return pick.verify(question, text) if mended.exists() else 'failed'\ntask ="
        " replace(pick.task, name='frail', verify=verify)\n"
    )
    folder = tmp_path / "e"
    found, _ = evaluated(
        EvaluationRun.create(
            EvaluationPlan(["tiny"], tasks=[str(tmp_path / "frail.py")], limit=5), str(folder)
        )
    )
    assert (
        found["cells"][0]["failed"],
        found["cells"][0]["machine_failed"],
        found["cells"][0]["accuracy"],
    ) == (5, 0, None)
    said = texts(folder)
    (tmp_path / "mended").touch()
    after, watch = evaluated(EvaluationRun.open(folder))
    assert len(watch.records) == 5
    assert after["cells"][0]["failed"] == 0
    assert texts(folder) == said


def test_answers_that_wait_for_their_checker_are_not_asked_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "from dataclasses import replace\nfrom pathlib import Path\nfrom comas.tasks import pick\n"
        f"from comas.types import UserMistake\nmended = Path({str(tmp_path / 'mended')!r})\n"
        "def verify(question, text):\n    if text and not mended.exists():\n        raise"
        " UserMistake('the checker is gone')\n    return pick.verify(question, text)\n"
        "task = replace(pick.task, name='slow', verify=verify, quick=False)\n"
    )
    folder = tmp_path / "e"
    plan = EvaluationPlan(["tiny"], tasks=[str(tmp_path / "slow.py")], limit=5)
    with pytest.raises(UserMistake, match="the checker is gone"):
        evaluated(EvaluationRun.create(plan, str(folder)))
    said = texts(folder)
    assert said
    (tmp_path / "mended").touch()
    after, _ = evaluated(EvaluationRun.open(folder))
    assert (after["cells"][0]["failed"], after["cells"][0]["n"]) == (0, 5)
    answered = texts(folder)
    assert {game: answered[game] for game in said} == said
    assert len(answered) == 5


FRAGILE = """
from dataclasses import replace
from comas.tasks import pick
seen = []
def verify(question, text):
    {fault}
    return pick.verify(question, text)
task = replace(pick.task, name='fragile', verify=verify)
"""


def test_a_checker_that_raises_fails_its_answers_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(
        FRAGILE.format(fault="seen.append(text) or (text and len(seen) % 2 and {}['x'])")
    )
    folder = tmp_path / "e"
    found, watch = evaluated(
        EvaluationRun.create(EvaluationPlan(["tiny"], tasks=[str(path)], limit=6), str(folder))
    )
    failed = [record for record in watch.records if "raised" in record]
    assert len(watch.records) == 6
    assert 0 < len(failed) < 6
    assert {record["raised"] for record in failed} == {
        "verify failed in fragile.py line 6: KeyError: 'x'"
    }
    assert "fragile.py" in failed[0]["traceback"]
    assert found["cells"][0]["failed"] == len(failed)
    (note,) = [note for note in found["notes"] if "broke down" in note]
    assert (
        f"{len(failed)} times it broke down, first: verify failed in fragile.py line 6:"
        " KeyError: 'x'" in note
    )


def test_a_checker_that_raises_at_once_is_one_line(tmp_path: Path) -> None:
    """It is asked about nothing before anything is loaded."""
    path = tmp_path / "fragile.py"
    unlabelled = (
        "load = lambda *a, **k: [replace(q, answer=None) for q in pick.load(*a, **k)]\ntask ="
        " replace(task, load=load)\n"
    )
    path.write_text(FRAGILE.format(fault="{}['x']") + unlabelled)
    with pytest.raises(UserMistake, match=r"fragile\.py line 6: KeyError: 'x'"):
        evaluated(
            EvaluationRun.create(
                EvaluationPlan(["tiny"], tasks=[str(path)], limit=3), str(tmp_path / "e")
            )
        )
    # and in training, which measures as well
    with pytest.raises(UserMistake, match=r"fragile\.py line 6"):
        comas.train(
            task=str(path),
            steps=1,
            test_questions=2,
            questions=2,
            agents=1,
            out=str(tmp_path / "r"),
            hooks=[],
        )


FILES = {
    "setup": ("mine.py", "from comas.setups.single import setup\n"),
    "task": (
        "task.py",
        (
            "from dataclasses import replace\nfrom comas.tasks import pick\ntask ="
            " replace(pick.task, name='mine')\n"
        ),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_an_evaluation_are_found_from_anywhere_and_may_not_change(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    there = tmp_path / "there"
    here.mkdir()
    there.mkdir()
    name, text = FILES[kind]
    (here / name).write_text(text)
    monkeypatch.chdir(here)
    plan = EvaluationPlan(["tiny"], limit=2)
    plan = (
        replace(plan, setups=[f"./{name}"])
        if kind == "setup"
        else replace(plan, tasks=[f"./{name}"])
    )
    found, _ = evaluated(EvaluationRun.create(plan, str(tmp_path / "e")))
    assert found["cells"][0][kind] in (f"./{name}", "mine")  # as it was named, wherever it lies
    monkeypatch.chdir(there)
    (there / name).write_text("another one\n")
    again, watch = evaluated(EvaluationRun.open(tmp_path / "e"))
    assert (again["cells"][0]["accuracy"], watch.records) == (found["cells"][0]["accuracy"], [])
    (here / name).write_text(text + "# changed\n")
    with pytest.raises(
        UserMistake,
        match=rf"contents of \./{name}",
    ):
        evaluated(EvaluationRun.open(tmp_path / "e"))
    (here / name).unlink()
    with pytest.raises(UserMistake, match=f"{kind} '{here / name}': no such file"):
        evaluated(EvaluationRun.open(tmp_path / "e"))


TOOL = """
from comas.types import Tool

def make():
    return Tool(name="mine", does="answers", argument="words", run=str.upper)
"""


def test_tools_of_an_evaluation_are_found_from_anywhere_and_may_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    there = tmp_path / "there"
    texts = here / "texts"
    texts.mkdir(parents=True)
    there.mkdir()
    (texts / "a.txt").write_text("A cat is a feline.")
    (here / "mine.py").write_text(TOOL)
    monkeypatch.chdir(here)
    pairs = ['tools=["./mine.py", "search"]', "tool_options.search.folder=texts"]
    plan = EvaluationPlan(["tiny"], setups=["tools"], limit=1, settings=settings_of(pairs))
    found, _ = evaluated(EvaluationRun.create(plan, str(tmp_path / "e")))
    monkeypatch.chdir(there)
    again, watch = evaluated(EvaluationRun.open(tmp_path / "e"))
    assert (again["cells"][0]["accuracy"], watch.records) == (found["cells"][0]["accuracy"], [])
    (here / "mine.py").write_text(TOOL + "# changed\n")
    with pytest.raises(UserMistake, match=r"contents of .*mine\.py"):
        evaluated(EvaluationRun.open(tmp_path / "e"))


def test_a_checker_that_raises_while_a_step_is_paid_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(FRAGILE.format(fault="{}['x']"))
    said = r"task fragile: .*fragile\.py line 6: KeyError: 'x'"
    with pytest.raises(UserMistake, match=said):
        comas.train(
            task=str(path),
            method="rlvr",
            steps=2,
            test_questions=0,
            eval_every=0,
            questions=8,
            agents=1,
            out=str(tmp_path / "r"),
            hooks=[],
        )


def test_several_runs_are_one_system(trained: Path, untaught: Path, tmp_path: Path) -> None:
    other = run_of(
        tmp_path / "other", untaught, steps=1, agents=2, seed=1, test_questions=0, eval_every=0
    ).path
    found, _ = evaluated(
        EvaluationRun.create(
            EvaluationPlan([f"{trained},{other}", "tiny"], limit=6), str(tmp_path / "e")
        )
    )
    assert [(c["runs"], c["n"], c["right"] + c["wrong"]) for c in found["cells"]] == [
        (2, 6, 24),
        (1, 6, 6),
    ]
    assert found["systems"][0]["test"] == "t over runs and questions"
    assert ") of one base model" in found["notes"][0]


def test_steps_of_a_run_have_names(trained: Path) -> None:
    run_, step = run_at(f"{trained}@best") or (None, None)
    assert run_ is not None
    assert step == run_.best()
    assert (run_at(f"{trained}@1") or (0, 0))[1] == 1
    assert (run_at(str(trained)) or (0, 0))[1] is None
    assert run_at("tiny") is None
    assert run_at("someone/model@main") is None
    with pytest.raises(UserMistake, match="`best` or a number"):
        run_at(f"{trained}@last")
    with pytest.raises(UserMistake, match="no checkpoint of step 9"):
        load(f"{trained}@9")
    with pytest.raises(UserMistake, match="validation"):
        Run(trained.parent).best()


def weights(team: Any, policy: str) -> Any:
    return next(iter(team.hosts["home"].engine.models[policy].model.state_dict().values())).clone()


def test_training_goes_on_from_the_weights_of_a_run(tmp_path: Path) -> None:
    keys = {"steps": 1, "agents": 2, "questions": 8, "test_questions": 0, "eval_every": 0}
    trained = run_of(tmp_path / "first", "tiny", **keys).path
    for name in (str(trained), f"{trained}@1"):
        assert source_of(name).origin == {"tiny"}
    second = run_of(tmp_path / "second", f"{trained}@1", **keys).path
    assert source_of(str(second)).origin == {"tiny"}
    for policy in ("a0", "a1"):
        started = load(f"{second}@0")
        given = load(f"{trained}@1")
        assert bool((weights(started, policy) == weights(given, policy)).all())
        assert bool((weights(load(second), policy) != weights(given, policy)).any())
    config = plan(read(second / "config.toml")).config
    assert config.hosts["home"].base == f"{trained}@1"
    with pytest.raises(UserMistake, match=r"policy 'a2': .*a0, a1"):
        comas.train(
            hosts__home__base=str(trained), agents=3, lr=1e-4, steps=1, out=str(tmp_path / "third")
        )


def test_copies_of_a_model() -> None:
    team = system_team("tiny", ["agents=3"])
    assert [(m.name, m.policy) for m in team.members] == [("a0", "a0"), ("a1", "a0"), ("a2", "a0")]
    assert team.bases() == ["tiny"]
    assert len(team.hosts["home"].engine.models) == 1
    with pytest.raises(UserMistake, match="agents=0"):
        system_team("tiny", ["agents=0"])


def test_training_on_does_not_change_what_is_evaluated(trained: Path, tmp_path: Path) -> None:
    evaluation = EvaluationRun.create(
        EvaluationPlan([str(trained), "tiny"], limit=4), str(tmp_path / "e")
    )
    assert evaluation.plan.places == {str(trained): f"{trained}@2", "tiny": "tiny"}


def test_weights_are_read_for_their_digest_whatever_a_manifest_beside_them_says(
    trained: Path, tmp_path: Path
) -> None:
    run, _ = run_at(str(trained)) or (None, None)
    assert run is not None
    copy = tmp_path / "copy"
    shutil.copytree(run.intact(None), copy)
    weights = copy / "a0" / "adapter_model.safetensors"
    before = of_weights({"home/a0": str(copy / "a0")})
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert of_weights({"home/a0": str(copy / "a0")}) != before


@pytest.mark.parametrize("line", ["{}", "[1]", "\xff", "[" * 100_000, '{"id": "x", "verdict": 7}'])
def test_a_damaged_log_is_one_line(evaluation: Path, tmp_path: Path, line: str) -> None:
    copy = tmp_path / "e"
    subprocess.run(["cp", "-r", str(evaluation), str(copy)], check=True)
    log = next((copy / "answers").glob("*.jsonl"))
    with log.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(UserMistake, match=r"jsonl line \d+ is damaged"):
        evaluated(EvaluationRun.open(copy))
    (copy / "evaluation.json").write_text('{"systems": "tiny"}')
    with pytest.raises(UserMistake, match=r"evaluation\.json .*systems"):
        EvaluationRun.open(copy)


def test_setups_twice_are_one_and_labels_do_not_reach_evaluated_games(tmp_path: Path) -> None:
    from comas.cli.evaluate import _plan

    assert _plan(["tiny"], "pick,pick", "single,vote,single", None, 0, None).setups == [
        "single",
        "vote",
    ]
    (tmp_path / "cheat.py").write_text(
        "from dataclasses import replace\nfrom comas.methods.rlvr import method as rlvr\n"
        "async def play(question, agents, rng, task):\n    return task.verify(question, '')\n"
        "method = replace(rlvr, play=play, presets={})\n"
    )
    assert not chosen_setup(
        str(tmp_path / "cheat.py"), system_team("tiny", ["agents=1"])
    ).method.supervised


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("votes", "did you mean vote"),
        ("vote:vote=3", "did you mean votes"),
        ("vote:votes=0", "greater than or equal to 1"),
        ("vote:votes=many", "valid integer"),
        ("./none.py", "no such file"),
    ],
)
def test_setups_with_mistakes(text: str, said: str) -> None:
    with pytest.raises(UserMistake, match=said):
        chosen_setup(text, system_team("tiny", ["agents=1"]))


def test_setups_and_methods_by_name_and_file(tmp_path: Path) -> None:
    team = system_team("tiny", ["agents=2"])
    assert chosen_setup("vote:votes=3", team).options == {"votes": 3}
    assert chosen_setup("comas:rounds=2", team).options["rounds"] == 2
    assert chosen_setup("game", team).method == team.method
    (tmp_path / "mine.py").write_text(
        "from comas.setups.vote import play\nfrom comas.types import Setup\nsetup = Setup(play)\n"
    )
    assert chosen_setup(f"{tmp_path}/mine.py:votes=2", team).options == {"votes": 2}


def test_names_of_files_of_answers_are_no_longer_than_names_may_be(tmp_path: Path) -> None:
    evaluation = EvaluationRun(tmp_path, EvaluationPlan(["tiny"]))
    names = [
        evaluation.log("r" * 255 + end, "pick", "/mine/" * 60 + "mine.py").path.name for end in "ab"
    ]
    assert names[0] != names[1]
    assert all(len(name.encode()) <= 255 for name in names)
    known = evaluation.log("r" * 200, "pick", "single").path.name
    assert known.startswith("r" * 200 + ".pick.single."), "as it was"


def test_the_commands(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["eval", "tiny", "tiny-b", "--limit", "16", "--json"], monkeypatch) == 0
    (cell,) = json.loads(capsys.readouterr().out)["systems"]
    assert (cell["n"], cell["verdict"]) == (16, "none shown")
    assert {"task", "setup", "low", "high", "p", "difference"} <= cell.keys()
    assert (
        run(
            ["eval", str(trained), "tiny", "--setups", "single,vote", "--limit", "6", "--out", "e"],
            monkeypatch,
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "against the first system (sign flips, McNemar, corrected for 2 comparisons)" in said
    assert max(map(len, said.splitlines())) <= 80
    assert not [line for line in said.splitlines() if line != line.rstrip()]
    assert "all of it: e/report.json" in said
    assert "held-out answers, temperature 0.7\n" in said
    assert run(["resume", "e", "--json"], monkeypatch) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4
    Path("e/report.json").rename("report.json")
    assert run(["report", "e"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "e has not ended yet: comas resume e\n" in said
    Path("strict.py").write_text(
        "from dataclasses import replace\n"
        "from comas.tasks import pick\n"
        "task = replace(pick.task, verify=lambda question, text: 'wrong')\n"
    )
    for arguments, mistake in [
        (["eval", "tiny", "--out", "e"], "comas resume e"),
        (["eval", "tiny", "tiny"], "named twice"),
        (["eval"], "Missing"),
        (["eval", "agents=2"], "at least one"),
        (["compare", "tiny", "tiny-b"], "comas compare is comas eval A B now"),
        (["eval", "tiny", "--setups", ","], "names none"),
        (["eval", "tiny", "--tasks", "math5000"], "did you mean math500"),
        (["eval", "tiny", "--tasks", "pick,./strict.py", "--limit", "2"], "another one is called"),
        (["eval", "nowhere/at/all"], "nowhere/at/all"),
        (["eval", "seed,seed"], "stands twice"),
        (["eval", "evals/none"], "no such run"),
        (["eval", "seed,"], "beside one of its commas"),
        (["eval", "tiny", "--out", str(trained)], "there is a run already"),
        (["eval", "tiny", "test_questions=x"], "a number of questions"),
        (["eval", "tiny", "seed=3"], "--seed"),
        (["train", "out=e"], "there is an evaluation already"),
    ]:
        assert run(arguments, monkeypatch) == 2, arguments
        assert mistake in capsys.readouterr().err, arguments
    # of the first command alone, none of mistakes
    assert len(list(Path("evals").iterdir())) == 1


@pytest.mark.parametrize("learner", ["full", "adapters"])
def test_a_run_of_one_policy_is_a_base_for_several_agents(learner: str, tmp_path: Path) -> None:
    keys = {"steps": 1, "questions": 8, "test_questions": 0, "eval_every": 0, "learner": learner}
    trained = run_of(tmp_path / "first", "tiny", agents=1, **keys).path
    second = run_of(tmp_path / "second", str(trained), agents=2, **keys).path
    name = "model.safetensors" if learner == "full" else "adapter_model.safetensors"
    given = load_file(trained / "checkpoints" / "step-1" / "a0" / name)
    for policy in ("a0", "a1"):
        started = load_file(second / "checkpoints" / "step-0" / policy / name)
        assert all(bool((started[key] == given[key]).all()) for key in given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny-games", "--tasks", "kuhn", "--setups", "duel:against=bst"], "against='bst'"),
        (["tiny-games", "--tasks", "kuhn,bargain", "--setups", "duel:against=fair"], "'fair'"),
        (["tiny", "--setups", "single,relay"], "a relay is of two agents"),
    ],
)
def test_what_a_setup_would_refuse_is_told_before_anything_is_asked(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = str(tmp_path / "e")
    assert run(["eval", *arguments, "--limit", "2", "--out", out], monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "e").exists()
