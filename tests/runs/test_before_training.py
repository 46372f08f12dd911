"""Before training: equal policies are measured once, and a dry run measures memory and time and says
what is not as usual.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import comas
from comas import memory
from comas.config.schema import checked, read
from comas.evaluation import systems
from comas.evaluation.accuracy import accuracy, copied, paired_gain
from comas.hooks import Hook
from comas.machine import DeviceMemory
from comas.stats import roughly
from comas.sync import run_sync
from comas.team.build import measured_for, members_of
from comas.training import dry_run, measuring, start
from comas.training import dry_run as pace
from comas.types import Episode, Question, Turn
from tests.support import runs
from tests.support.command import run
from tests.support.runs import run_of


def agents_of(answers: list[dict[str, Any]], agent: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in a.items() if k != "agent"} for a in answers if a["agent"] == agent]


# --- equal policies


@pytest.mark.parametrize("learner", ["adapters", "full"])
def test_policies_that_start_from_the_same_weights_are_measured_once(
    learner: str, untaught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        measuring,
        "copied",
        lambda answers, m: (
            asked.append(sorted({a["agent"] for a in answers})) or copied(answers, m)
        ),
    )
    keys = {
        "agents": 3,
        "steps": 1,
        "test_questions": 12,
        "hosts__home__learner": learner,
        "eval_every": 0,
        "lr": 0.05,
    }
    made = run_of(tmp_path / "r", untaught, **keys)
    before = made.read_eval("before")
    after = made.read_eval("after")
    assert before is not None
    assert after is not None
    assert asked == [["a0"]]
    assert before["copies"] == {"a1": "a0", "a2": "a0"}
    assert len(before["answers"]) == len(after["answers"]) == 36
    assert (
        agents_of(before["answers"], "a0")
        == agents_of(before["answers"], "a1")
        == agents_of(before["answers"], "a2")
    )
    assert "copies" not in after
    assert agents_of(after["answers"], "a0") != agents_of(after["answers"], "a1")


def test_copies_make_no_interval_narrower() -> None:
    verdicts = ["right", "wrong", "wrong", "right", "wrong", "failed", "wrong"]
    one = [
        {"question": f"q{i}", "agent": "a0", "verdict": verdict}
        for i, verdict in enumerate(verdicts)
    ]
    many = copied(one, {"a0": "a0", "a1": "a0", "a2": "a0"})
    assert len(many) == 21
    assert accuracy(many) == accuracy(one)
    assert accuracy(one).n == 6  # type: ignore[union-attr]
    later = [
        {
            "question": f"q{i}",
            "agent": f"a{k}",
            "verdict": "right" if (i + k) % 3 else "wrong",
        }
        for i in range(7)
        for k in range(3)
    ]
    gains = [paired_gain(before, later) for before in (one, many)]
    assert gains[0] == gains[1]
    assert gains[0].n == 6  # type: ignore[union-attr]


def test_what_is_not_equal_is_measured_by_itself(untaught: Path) -> None:
    def of(sources: dict[str, str], *keys: str) -> dict[str, str]:
        resolved = runs.planned(["lr=1e-3", "agents=3", *keys])
        hosts = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
        members = members_of(resolved, hosts)  # type: ignore[arg-type]
        return measured_for(resolved, sources, members)

    base = f"hosts.home.base={untaught}"
    same = {f"home/a{i}": str(untaught) for i in range(3)}
    assert of(same, base) == {"a0": "a0", "a1": "a0", "a2": "a0"}
    assert of({**same, "home/a1": "trained"}, base) == {"a0": "a0", "a1": "a1", "a2": "a0"}
    seeds = {f"home/a{i}": "tiny" for i in range(3)}
    assert of(seeds) == {"a0": "a0", "a1": "a0", "a2": "a0"}  # trained whole: equal before that
    assert of(seeds, "hosts.home.learner=adapters") == {"a0": "a0", "a1": "a0", "a2": "a0"}
    persona = "agents={a0={}, a1={system='You doubt.'}, a2={system='You doubt.'}}"
    assert of(same, base, persona) == {"a0": "a0", "a1": "a1", "a2": "a1"}


def test_fewer_questions_are_asked_off_the_shipped_models(untaught: Path) -> None:
    for keys, questions in [
        ([], 512),
        (["hosts.home.learner=adapters"], 512),
        ([f"hosts.home.base={untaught}"], 128),
        ([f"agents.a0.base={untaught}", "agents.a1.base=tiny", "hosts.home.learner=full"], 128),
        ([f"hosts.home.base={untaught}", "test_questions=0"], 0),
        (["test_questions=7"], 7),
    ]:
        assert runs.planned(["lr=1e-3", *keys]).config.test_questions == questions


def test_runs_of_shipped_models_have_the_seed_defaults(tmp_path: Path) -> None:
    keys = {"lr": 1e-3, "agents": 1, "steps": 0, "test_questions": 0}
    trained = run_of(tmp_path / "r", "tiny", **keys)  # type: ignore[arg-type]
    config = runs.planned([f"hosts.home.base={trained.path}", "agents.a0.host=home"]).config
    assert (
        config.test_questions,
        config.hosts["home"].max_rows,
        config.hosts["home"].tokens_per_pass,
    ) == (512, 512, 8192)


# --- a dry run


ROOT = Path(__file__).parents[2]


def keys_of(base: Path) -> list[str]:
    keys = ["lr=1e-3", "steps=10", "agents=2", "hosts.home.device=cpu", "eval_every=0", "threads=1"]
    return [f"hosts.home.base={base}", *keys]


def test_a_dry_run_plays_and_learns_and_then_says_what_it_took(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10 * 10**9, 16 * 10**9))
    assert run(["train", "--dry-run", *keys_of(untaught)], monkeypatch) == 0
    rate, peak, hours, disk, empty, *rest = capsys.readouterr().out.splitlines()
    assert rate == "lr:     0.001 (set by lr)"
    assert re.match(r"memory: \d\.\d GB at the peak, measured with \d+ discussions and ", peak)
    assert peak.endswith("10.0 GB free on the CPU")
    assert re.match(r"time:   about .* per step \(sampling \d+%, learning \d+%, replies of ", hours)
    assert hours.endswith(" for 10 steps, measuring not counted")
    assert disk.startswith("disk:   0.00 GB per checkpoint, at most 4 at once in ")
    assert empty == ""
    assert rest == ["config: --full"]
    assert not list(tmp_path.iterdir())
    assert run(["train", "--dry-run", "--json", *keys_of(untaught)], monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["memory"]["peak"] > 10**8
    assert min(told["seconds"].values()) > 0
    assert told["config"]["steps"] == 10


@pytest.mark.parametrize(("method", "rewarded"), [("comas", False), ("judge_rows_learnt.py", True)])
def test_a_dry_run_learns_of_weighings_only_where_they_are_rewarded(
    method: str, rewarded: bool, untaught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "studies" / method
    keys = [
        f"method={path if path.exists() else method}",
        "options.format_check=false",
        "questions=4",
    ]
    learnt: set[str] = set()

    async def noted(team: Any, pace_: Any, turns: list[Turn]) -> tuple[int, float]:
        learnt.update(turn.role for turn in turns)
        return 1, 0.1

    monkeypatch.setattr(dry_run, "_learnt", noted)
    assert run(["train", "--dry-run", *keys_of(untaught), *keys], monkeypatch) == 0
    assert "solution" in learnt
    assert ("scoring" in learnt) is rewarded


PARTLY = """
from dataclasses import replace

from comas.methods import ttrl
from comas.types import HostFailure


async def play(question, agents, rng, task, *, votes: int = 8):
    answer = await ttrl.method.play(question, agents, rng, task, votes=votes)
    if answer != "rehearsed 1":
        raise HostFailure("there is no room for a second turn")
    return answer


method = replace(ttrl.method, play=play)
"""


def test_a_dry_run_of_which_no_discussion_ends_is_refused_as_training_would(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("partly.py").write_text(PARTLY)
    assert run(["train", "--dry-run", "method=./partly.py", *keys_of(untaught)], monkeypatch) == 2
    told = capsys.readouterr().err
    assert "every discussion failed; the first: there is no room for a second turn" in told


def test_a_dry_run_of_what_cannot_fit_loads_nothing(
    untaught: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda _: DeviceMemory(10**6, 10**9))
    monkeypatch.setattr(dry_run, "build_team", lambda *_: pytest.fail("loaded"))
    assert run(["train", "--dry-run", *keys_of(untaught)], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines()[-1].startswith("error: the run does not fit into memory: weights, ")


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "train"])
def test_questions_that_cannot_be_read_are_told_before_a_model_is_looked_at(
    dry: list[str],
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "bounds_of_new", lambda *_: pytest.fail("estimated"))
    keys = ["task=gsm8k", "data=nowhere", *keys_of(untaught)]
    assert run(["train", *dry, *keys], monkeypatch) == 2
    mistake = (
        "task gsm8k cannot read nowhere (No such file or directory): set data=FILE or COMAS_DATA,"
        " or unset both (for `resume`, put the file back there: a run keeps its questions)"
    )
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {mistake}"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--dry-run"],
        ["train", "task=gsm8k", "data=nowhere"],
        ["eval", "tiny", "--tasks", "pick", "--limit", "2"],
        ["eval", "tiny", "--tasks", "gsm8k", "--data", "nowhere"],
    ],
)
def test_a_place_that_cannot_be_had_is_told_before_questions_and_models(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    for module in (memory, dry_run, systems):
        for loading in {"bounds_of_new", "bounds", "build_team"} & {*vars(module)}:
            monkeypatch.setattr(module, loading, lambda *_, **__: pytest.fail("loaded"))
    assert run([*words, "kind=ray"], monkeypatch) == 2
    mistake = capsys.readouterr().err.splitlines()[-1]
    assert mistake.startswith("error: hosts.home.kind=ray needs a package")
    assert 'pip install "comas[ray]"' in mistake
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_tiny_model_that_cannot_read_the_questions_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    hook = Hook()
    hook.note = notes.append  # type: ignore[method-assign]
    keys: dict[str, Any] = {
        "test_questions": 0,
        "eval_every": 0,
        "steps": 0,
        "threads": 1,
        "hooks": [hook],
    }
    room = dict.fromkeys(["solution", "evaluation", "scoring"], 64)
    comas.train(task="jsonl", data=str(file), out=str(tmp_path / "r"), room=room, **keys)
    (told,) = [note for note in notes if "puzzles" in note]
    assert told.startswith("tiny knows the 88 words of its own puzzles and cannot read ")
    assert told.endswith("take a pretrained model, such as base=smollm2")
    notes.clear()
    comas.train(out=str(tmp_path / "s"), **keys)
    assert not any("puzzles" in note for note in notes)


@pytest.mark.parametrize("kl", [{"scoring": 0.3}, {"solution": 0.0, "evaluation": 0.2}, {}])
def test_a_run_that_goes_on_has_the_kl_that_it_was_begun_with(kl: dict[str, float]) -> None:
    """A table of before stood for all roles."""
    recorded = runs.planned(["preset=stable"]).config.model_dump()
    resumed = start.as_recorded(checked({**recorded, "kl": kl}))
    assert resumed.config.kl == resumed.method.kl == kl
    as_today = start.as_recorded(checked(recorded))
    assert as_today.config.kl == as_today.method.kl == recorded["kl"]


@pytest.mark.parametrize(
    ("pairs", "missing"),
    [
        (["method=r_zero", "agents.solver.temperature=0.7"], "challenger"),
        (["method=rlccf", "agents=3"], "a3"),
        (["method=r_zero"], None),
        (["method=r_zero", "agents.x.lr=1e-4"], None),  # a team of one's own
        (["agents.a1.temperature=0.7"], None),  # a method without one
    ],
)
def test_agents_that_a_method_brings_and_a_config_loses_are_told(
    pairs: list[str], missing: str | None
) -> None:
    notes: list[str] = []
    start.prepare(read(None, pairs), notes.append)
    hints = [note for note in notes if "brings the agents" in note]
    assert len(hints) == (missing is not None)
    assert all(f": {missing} will not be there" in hint for hint in hints)


def test_a_dry_run_with_a_base_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--dry-run", "base=./nowhere", "lr=1e-3"], monkeypatch) == 2
    assert capsys.readouterr().err == "error: base './nowhere': no such folder\n"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0.4 seconds"),
        (75, "75 seconds"),
        (89, "89 seconds"),
        (90, "1.5 minutes"),
        (700, "12 minutes"),
        (5300, "88 minutes"),
        (5400, "1.5 hours"),
        (86400, "24 hours"),
    ],
)
def test_a_guess_is_told_with_two_digits(seconds: float, said: str) -> None:
    assert roughly(seconds) == said


def test_a_pace_tells_prompts_and_replies_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second per discussion, and a hundredth per token of its reply, which is cut."""
    now = [0.0]
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def play(number: int, tokens: int) -> list[Episode]:
        sizes.append((number, tokens))
        now[0] += number * (1.0 + 0.01 * tokens)
        facts = {"tokens": tokens, "finished": False, "version": 0}
        turn = Turn("t", "a0", "home/a0", "solution", "?", "!", **facts)
        return [Episode(f"e{i}", Question(id="q", prompt="?"), [turn]) for i in range(number)]

    found = run_sync(pace.pace_of(play, 100, lambda _: 200))
    assert sizes == [(1, 8), (1, 32), (4, 8), (4, 32), (16, 8), (16, 32)]
    assert found.seconds == pytest.approx(1.0 + 0.01 * 200)
    assert found.reply == 200


def test_weighings_and_other_roles_say_nothing_of_how_long_a_reply_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A judge's word and weighing end at once; solutions are cut, as none of them has ended."""
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def play(number: int, tokens: int) -> list[Episode]:
        now[0] += number * (1.0 + 0.01 * tokens)
        facts: dict[str, Any] = {"about": None, "version": 0}
        turns = [
            Turn("s", "a", "h/a", "solution", "?", "!", tokens=tokens, finished=False, **facts),
            Turn("e", "b", "h/b", "evaluation", "?", "!", tokens=4, finished=True, **facts),
            Turn("j", "b", "h/b", "scoring", "?", "!", tokens=1, finished=True, **facts),
        ]
        turns[2].info["weights"] = [0.0, 0.0]
        return [Episode(f"e{i}", Question(id="q", prompt="?"), turns) for i in range(number)]

    found = run_sync(pace.pace_of(play, 1, lambda _: 200))
    assert found.lengths == {"solution": 200, "evaluation": 4}
    assert (found.tokens, found.reply) == (205, 102)
    assert found.seconds == pytest.approx(1.0 + 0.01 * 200)


# --- answers that are cut


@pytest.mark.parametrize(("room", "told"), [(1, True), (64, False)])
def test_a_room_that_cuts_most_answers_is_told_with_the_accuracy(
    room: int, told: bool, untaught: Path, tmp_path: Path
) -> None:
    notes: list[str] = []

    class Heard(Hook):
        def note(self, text: str) -> None:
            notes.append(text)

    run_of(tmp_path / "r", untaught, steps=1, room__solution=room, hooks=[Heard()])
    cut = [note for note in notes if note.startswith("before: ")]
    assert bool(cut) == told
    if told:
        assert "4 replies of 4 answers were cut" in cut[0]
        assert "raise room.solution" in cut[0]
