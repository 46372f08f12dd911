"""Before training: equal policies are measured once, and a dry run says memory, disk, time and what
is not as usual.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from comas.config.resolve import resolve
from comas.config.schema import read
from comas.engines.batcher import Batcher
from comas.evaluation.accuracy import Answer, accuracy, copied, paired_gain
from comas.forecast import fitting, memory, overview, stopwatch
from comas.forecast import hours as timing
from comas.forecast.disk import Disk
from comas.forecast.fit import Fit
from comas.forecast.hours import Pace, Work
from comas.machine import Memory
from comas.seams import Generation, Request
from comas.team.equal_policies import measured_for
from comas.training import measuring
from comas.types import Meter, Question
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
        lambda answers, m: asked.append(sorted({a.agent for a in answers})) or copied(answers, m),
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
    one = [Answer(f"q{i}", "a0", "x", verdict, 1, 0.0) for i, verdict in enumerate(verdicts)]
    many = copied(one, {"a0": "a0", "a1": "a0", "a2": "a0"})
    assert len(many) == 21
    assert accuracy(many) == accuracy(one)
    assert accuracy(one).n == 6  # type: ignore[union-attr]
    later = [
        Answer(f"q{i}", f"a{k}", "x", "right" if (i + k) % 3 else "wrong", 1, 0.0)
        for i in range(7)
        for k in range(3)
    ]
    gains = [
        paired_gain([asdict(a) for a in before], [asdict(a) for a in later])
        for before in (one, many)
    ]
    assert gains[0] == gains[1]
    assert gains[0].n == 6  # type: ignore[union-attr]


def test_what_is_not_equal_is_measured_by_itself(untaught: Path) -> None:
    def of(sources: dict[str, str], *keys: str) -> dict[str, str]:
        resolved = resolve(read(None, ["lr=1e-3", "agents=3", *keys]))
        hosts = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
        members = timing.members_of(resolved.config, hosts)  # type: ignore[arg-type]
        return measured_for(resolved, sources, members)

    base = f"hosts.home.base={untaught}"
    same = {f"home/a{i}": str(untaught) for i in range(3)}
    assert of(same, base) == {"a0": "a0", "a1": "a0", "a2": "a0"}
    assert of({**same, "home/a1": "trained"}, base) == {"a0": "a0", "a1": "a1", "a2": "a0"}
    seeds = {f"home/a{i}": "seed" for i in range(3)}
    assert of(seeds) == {"a0": "a0", "a1": "a1", "a2": "a2"}  # trained whole, as ever
    assert of(seeds, "hosts.home.learner=adapters") == {"a0": "a0", "a1": "a0", "a2": "a0"}
    persona = "agents={a0={}, a1={system='You doubt.'}, a2={system='You doubt.'}}"
    assert of(same, base, persona) == {"a0": "a0", "a1": "a1", "a2": "a1"}


def test_fewer_questions_are_asked_off_the_seed_models(untaught: Path) -> None:
    for keys, questions in [
        ([], 512),
        (["hosts.home.learner=adapters"], 512),
        ([f"hosts.home.base={untaught}"], 128),
        ([f"agents.a0.base={untaught}", "agents.a1.base=seed", "hosts.home.learner=full"], 128),
        ([f"hosts.home.base={untaught}", "test_questions=0"], 0),
        (["test_questions=7"], 7),
    ]:
        assert resolve(read(None, ["lr=1e-3", *keys]))[0].test_questions == questions


def test_runs_of_seed_models_have_the_seed_defaults(tmp_path: Path) -> None:
    keys = {"lr": 1e-3, "agents": 1, "steps": 0, "test_questions": 0}
    trained = run_of(tmp_path / "r", "seed", **keys)  # type: ignore[arg-type]
    config = resolve(read(None, [f"hosts.home.base={trained.path}", "agents.a0.host=home"]))[0]
    assert (
        config.test_questions,
        config.hosts["home"].max_rows,
        config.hosts["home"].tokens_per_pass,
    ) == (512, 512, 8192)


# --- a dry run


def test_a_dry_run_begins_with_memory_disk_and_time_and_then_says_what_differs(
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(10 * 10**9, 16 * 10**9))
    keys = [
        f"hosts.home.base={untaught}",
        "lr=1e-3",
        "steps=10",
        "agents=2",
        "hosts.home.device=cpu",
        "eval_every=0",
        "threads=1",
    ]
    assert run(["train", "--dry-run", *keys], monkeypatch) == 0
    memory, disk, hours, empty, *rest = capsys.readouterr().out.splitlines()
    assert memory.startswith("memory: about 0.")
    assert memory.endswith("10.0 GB free on the CPU")
    assert disk.startswith("disk:   about 0.0")
    assert f"in {tmp_path / 'runs'}, " in disk
    assert hours.startswith("time:   about ")
    assert "10 steps, replies of" in hours
    assert all(
        f"{part} " in hours
        for part in ("measuring before", "playing", "learning", "measuring after")
    )
    assert "validation" not in hours
    assert empty == ""
    said = [line.strip() for line in rest]
    assert {
        "steps = 10",
        f'hosts.home.base = "{untaught}"',
        'hosts.home.learner = "adapters"',
        "agents: a0, a1",
    } <= set(said)
    assert not [
        line
        for line in said
        if line.startswith(("method", "seed", "questions", "options", "hosts.home.engine"))
    ]
    assert not list(tmp_path.iterdir())
    assert run(["train", "--dry-run", "--json", *keys], monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["memory"]["cpu"]["free"] == 10 * 10**9
    assert 0 < told["memory"]["cpu"]["peak"] < 10**9
    assert told["refused"] is None
    assert told["seconds"]["total"] == pytest.approx(
        sum(told["seconds"]["parts"].values()), abs=0.5
    )
    assert {"config", "estimate", "disk"} <= told.keys()


def test_a_dry_run_of_what_cannot_fit_loads_nothing_and_says_what_would(
    untaught: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fitting, "memory_of", lambda _: Memory(10**6, 10**9))
    monkeypatch.setattr(timing, "local_host", lambda *_: pytest.fail("loaded"))
    keys = [f"hosts.home.base={untaught}", "lr=1e-3", "hosts.home.device=cpu"]
    assert run(["train", "--dry-run", *keys], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[0].endswith("0.0 GB free on the CPU: does not fit")
    assert "time:   not known: its models are not loaded, since they do not fit" in out
    assert err.startswith("error: the run does not fit into memory: about 0.")


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "train"])
def test_questions_that_cannot_be_read_are_told_before_a_model_is_looked_at(
    dry: list[str],
    untaught: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "local_host", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(
        sys.modules["comas.training.start"], "assemble", lambda *_, **__: pytest.fail("loaded")
    )
    monkeypatch.setattr(fitting, "fitted", lambda *_: pytest.fail("estimated"))
    keys = [
        "task=gsm8k",
        "data=nowhere",
        f"hosts.home.base={untaught}",
        "lr=1e-3",
        "hosts.home.device=cpu",
    ]
    assert run(["train", *dry, *keys], monkeypatch) == 2
    out, err = capsys.readouterr()
    mistake = (
        "task gsm8k cannot read nowhere (No such file or directory): set data=FILE or COMAS_DATA,"
        " or unset both"
    )
    assert err.splitlines()[-1] == f"error: {mistake}"
    assert not dry or f"time:   not known: {mistake}" in out


def test_a_dry_run_with_a_base_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--dry-run", "base=./nowhere", "lr=1e-3"], monkeypatch) == 2
    out, err = capsys.readouterr()
    assert "disk:   not known before the base is loaded; " in out
    assert err == "error: base './nowhere': no such folder\n"
    assert run(["train", "--dry-run", "--json", "base=./nowhere", "lr=1e-3"], monkeypatch) == 2
    assert json.loads(capsys.readouterr().out)["refused"] == "base './nowhere': no such folder"


def test_the_default_differs_in_nothing_from_itself() -> None:
    assert list(overview.differences(resolve(read(None))[0])) == []
    mine = resolve(
        read(None, {"agents": {"a0": {}, "a1": {"lr": 1e-4}, "a2": {}}, "room": {"solution": 9}})
    )[0]
    assert list(overview.differences(mine)) == [
        "room.solution = 9",
        "agents.a1.lr = 0.0001",
        "agents: a0, a1, a2",
    ]
    assert list(overview.differences(resolve(read(None, {"betas": [0.8, 0.95]}))[0])) == [
        "betas = [0.8, 0.95]"
    ]


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
    assert overview.spoken(seconds) == said


# --- disk


def transcripts(*keys: str) -> int:
    """Bytes of one step of ten discussions, without checkpoints."""
    resolved = resolve(read(None, ["steps=1", "questions=10", *keys]))
    needs = memory.estimate(resolved)
    checkpoints = 4 * 3 * 4 * int(needs["parameters of all policies"])
    return int(needs["bytes on disk"]) - checkpoints


def test_replies_take_as_much_disk_as_they_have_room() -> None:
    room = "room={solution=32,evaluation=16,scoring=8}"
    # of 10 discussions: 3 turns, their 56 tokens, and 32 twice in each prompt or all in each
    quoted = min(3 * 2 * 32, 3 * 56)
    assert transcripts(room) == 10 * (3 * 650 + 4 * (56 + quoted))
    # nobody is shown another's solution
    votes = ("method=ttrl", "options.votes=4", "samples=1")
    for length in (32, 48):
        assert transcripts(*votes, f"room.solution={length}") == 10 * 4 * (650 + 4 * length)


def test_the_tokens_of_a_run_bound_what_its_replies_take() -> None:
    votes = ("method=ttrl", "options.votes=4", "samples=1", "room.solution=48", "steps=9")
    step = 10 * 4 * 48
    assert transcripts(*votes, "tokens=1000") == 9 * 10 * 4 * 650 + 4 * (1000 + step)


# --- time


def test_the_parts_of_a_run_add_up_from_its_pace_and_its_work() -> None:
    """A second per batch and step, ten per row of it; every tenth prompt token a second; a reply
    has 20 tokens.
    """
    resolved = resolve(
        read(
            None,
            [
                "steps=6",
                "eval_every=2",
                "eval_questions=10",
                "test_questions=30",
                "agents=2",
                "hosts.home.learner=adapters",
                "room.solution=15",
            ],
        )
    )
    pace = Pace(step=1.0, row=0.01, prompt=0.1, learning=0.5, reply=20.0, rows=16, text="")
    work = Work(replies=8, generated=100, prompts=50, learnt=40)
    found = timing._added(resolved, {"home": pace}, {"home": work}, {"home": 7.0})

    def measured(replies: int) -> float:
        return replies * 15 * (1.0 / 16 + 0.01) + replies * 7 * 0.1

    assert found.parts == pytest.approx(
        {
            "measuring before": measured(30),
            "playing": 6 * (100 * (1.0 / 8 + 0.01) + 50 * 0.1),
            "learning": 6 * 40 * 0.5,
            "validation": 3 * measured(20),
            "measuring after": measured(60),
        }
    )
    assert sum(found.shares().values()) == pytest.approx(1)
    less = timing._added(
        resolved.with_config(resolved.config.model_copy(update={"tokens": 250})),
        {"home": pace},
        {"home": work},
        {"home": 7.0},
    )
    assert (less.steps, less.parts["learning"]) == (3, 3 * 40 * 0.5)


def test_the_work_of_a_step_is_that_of_its_game() -> None:
    resolved = resolve(
        read(None, ["questions=10", "options.rounds=2", "agents=3", "room={solution=9,scoring=2}"])
    )
    host: Any = SimpleNamespace(
        name="home", chat=SimpleNamespace(encode=lambda messages: np.zeros(5))
    )
    pace = Pace(0, 0, 0, 0, 6.0, 1, "reply")
    work = timing.work_of_step(
        host, resolved, [Question(id=f"q{i}", prompt="what?") for i in range(9)], pace
    )
    assert work.replies == 10 * 2 * 3  # solution, evaluation and scoring in each of two rounds
    assert work.generated == 10 * 2 * (6 + 6 + 2)
    assert work.prompts == 10 * 2 * 3 * 5
    assert work.learnt == work.prompts + work.generated
    resolved.config.agents["a0"].frozen = True
    less = timing.work_of_step(
        host, resolved, [Question(id=f"q{i}", prompt="what?") for i in range(9)], pace
    )
    assert less.generated == work.generated
    assert less.learnt < work.learnt


class Counting:
    """A host of which the time is asked: it has no weights, and every prompt five tokens."""

    name = "home"
    chat = SimpleNamespace(encode=lambda messages: np.zeros(5))


def replies_asked(*keys: str) -> float:
    """Replies that a step of one question asks for, as the forecast of its time counts them."""
    resolved = resolve(read(None, [*keys, "questions=1"]))
    asked = [Question(id=f"q{i}", prompt="what?") for i in range(4)]
    host: Any = Counting()
    return timing.work_of_step(host, resolved, asked, Pace(0, 0, 0, 0, 6.0, 1, "reply")).replies


def test_a_game_that_remembers_is_timed_as_before_its_first_step() -> None:
    # two judge the chosen solution, two the agreed one; nothing is planted yet
    assert replies_asked("method=comas_planted", "options.votes=3") == 3 + 2 + 2


def test_a_game_that_may_end_early_is_timed_as_it_is_rehearsed() -> None:
    assert replies_asked("method=spell") == 1 + 1 + 8 * (1 + 3)
    # its own play is shorter, since everybody says the same there
    assert replies_asked("method=agent0_vl", "samples=1") == 60


def test_a_real_model_is_timed(untaught: Path) -> None:
    given = resolve(
        read(None, [f"hosts.home.base={untaught}", "lr=1e-3", "agents=2", "steps=3", "threads=1"])
    )
    found = timing.hours(given)
    assert found is not None
    assert all(math.isfinite(s) and s >= 0 for s in found.parts.values())
    assert found.parts["learning"] > 0 < found.parts["playing"]
    assert 0 < found.reply <= 64


class Machine:
    """A host on a machine that takes a second per prompt, and per token of a batch two and a tenth
    per row; others slow it down.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slowed: Callable[[int], float]) -> None:
        self.now = 0.0
        self.calls = 0
        self.slowed = slowed
        self.name = "home"
        self.versions = {"a0": 0}
        self.context = 512
        self.learner = None
        self.engine = self
        self.meter = Meter()
        self.batcher = Batcher(self.generate)
        self.chat = SimpleNamespace(
            encode=lambda messages: np.zeros(5), decode=lambda ids, finished, _: ("text", "")
        )
        monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def sample(self, request: Request) -> Generation:
        return await self.batcher(request)

    def generate(self, requests: Sequence[Request], wanted: Callable[[], bool]) -> list[Generation]:
        """Reply i ends by itself after 20 + i tokens; where that takes too long, nobody waits."""
        self.calls += 1
        began = self.now
        factor = self.slowed(self.calls)
        self.now += factor * len(requests)
        lengths = [min(20 + i, request.sampling.max_tokens) for i, request in enumerate(requests)]
        for done in range(1, max(lengths)):
            if self.now - began > stopwatch.PATIENCE:
                self.meter.tokens += done * len(requests)
                raise TimeoutError
            self.now += factor * (2 + 0.1 * len(requests))
        return [
            Generation(np.zeros(n, int), np.zeros(n, np.float32), 20 + i == n, 1.0)
            for i, n in enumerate(lengths)
        ]

    def pace(self) -> Pace:
        resolved = resolve(read(None, ["agents=1", "hosts.home.max_rows=12"]))
        try:
            return timing.pace(self, resolved, [Question(id="q", prompt="what?")])  # type: ignore[arg-type]
        finally:
            self.batcher.close()


@pytest.mark.parametrize(
    "slowed",
    [
        lambda _: 0.01,
        lambda call: 0.1 if call % 3 == 0 else 0.01,
        lambda call: 0.1 if call % 2 == 0 else 0.01,
    ],
)
def test_others_on_the_machine_change_no_guess(
    slowed: Callable[[int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever slows some of the pieces down: what is counted follows from the seed, and the
    fastest piece is timed.
    """
    found = Machine(monkeypatch, slowed).pace()
    assert found.reply == np.mean([20 + i for i in range(timing.ROWS)])
    assert not found.cut
    assert (found.step, found.row, found.prompt) == pytest.approx((0.02, 0.001, 0.01 / 5))


def test_a_machine_that_is_too_slow_to_listen_to_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Machine(monkeypatch, lambda _: 1.0).pace()
    assert found.cut
    config = resolve(read(None, ["agents=1"]))[0]
    hours = timing.Hours({"playing": 7200.0}, 3, 20.0, ("home",))
    made = overview.Plan(config, {}, Fit([], {}), Disk(None, 0, Path()), hours, "", "")
    said = overview.lines(made)[-1]
    assert (
        "(a guess: 3 steps, replies of 20 tokens; those of home were cut after 60 seconds): playing"
        " 100%" in said
    )


def test_two_guesses_count_the_same_tokens(untaught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the clock of one of them runs twenty times as fast."""
    given = resolve(
        read(None, [f"hosts.home.base={untaught}", "lr=1e-3", "agents=2", "steps=3", "threads=1"])
    )
    one = timing.hours(given)
    real = timing.time.monotonic
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: 20 * real()))
    other = timing.hours(given)
    assert one is not None
    assert other is not None
    assert (one.reply, one.steps) == (other.reply, other.steps)
