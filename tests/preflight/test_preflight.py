"""Figures of judges against closed forms; whole preflights of scripted teams and of the shipped
models; what cannot be asked is one clear line.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import comas
from comas.cli.preflight import training_with
from comas.display import Display, amount
from comas.evaluation import preflight as measured
from comas.evaluation.preflight import (
    ANSWERS_FIRST,
    Advice,
    Judged,
    Judgement,
    Preflight,
    _truth,
    advice,
    examined,
    information,
    judged,
    play,
    preflight,
    run_preflight,
)
from comas.game.play import GameContext, play_all
from comas.hooks import Hook, Progress
from comas.stats import Interval
from comas.tasks import pick
from comas.testing import scripted_team
from comas.types import Question, Reply, Turn, UserMistake
from tests.support import runs
from tests.support.command import run
from tests.support.endpoint import answers, said

OFFERS = [(1, 2, 4, 6), (2, 3, 4, 8), (1, 2, 4, 9), (1, 3, 4, 7)]
RIGHTS = {
    "1 2 4 6 -> 7": "1 + 2 = 3 + 4 = 7",
    "2 3 4 8 -> 9": "2 + 3 = 5 + 4 = 9",
    "1 2 4 9 -> 7": "1 + 2 = 3 + 4 = 7",
    "1 3 4 7 -> 8": "1 + 3 = 4 + 4 = 8",
}
QUESTIONS = [
    pick.make_question(offer, int(key.split()[-1]), "three")
    for offer, key in zip(OFFERS, RIGHTS, strict=True)
]
COMAS = f"comas {ANSWERS_FIRST}"
WRONG = "4 + 6 = 10 + 1 = 11"


def verdicts(*pairs: tuple[float | None, float | None]) -> list[Judgement]:
    """Of work with the majority's answer, and with the rarest, one pair a question."""
    return [
        Judgement(place, f"{place}{side}", side, value)
        for place, values in enumerate(pairs)
        for side, value in zip((True, False), values, strict=True)
    ]


def test_judges_that_part_the_two_and_judges_that_do_not() -> None:
    perfect = judged("text", verdicts(*[(1.0, 0.0)] * 4))
    assert perfect.j is not None
    assert perfect.prefers is not None
    assert (perfect.j.mean, perfect.prefers.mean, perfect.information) == (1.0, 1.0, 1.0)
    lenient = judged("text", verdicts(*[(1.0, 1.0)] * 4))
    assert lenient.j is not None
    assert lenient.prefers is not None
    assert (lenient.j.mean, lenient.prefers.mean, lenient.information) == (0.0, 0.5, 0.0)
    some = judged("text", verdicts((1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)))
    assert some.j is not None
    assert some.j.mean == 0.0
    assert (some.accepts_majority, some.accepts_rarest) == (0.5, 0.5)


def test_beliefs_are_cut_at_their_median_so_that_their_level_says_nothing() -> None:
    low = judged("p_true", verdicts((0.02, 0.01), (0.04, 0.01), (0.03, 0.02)))
    high = judged("p_true", verdicts((0.92, 0.91), (0.94, 0.91), (0.93, 0.92)))
    assert low.j is not None
    assert high.j is not None
    assert low.j.mean == high.j.mean == pytest.approx(2 / 3)
    assert low.prefers == high.prefers


def test_a_belief_at_the_median_counts_as_half() -> None:
    pairs = [(1.0, 1.0 if place % 4 else low) for place in range(20) for low in (0.1,)]
    found = judged("p_true", verdicts(*pairs))
    assert found.accepts_majority == 0.5
    assert found.accepts_rarest == pytest.approx(0.5 * 15 / 20)


def test_a_majority_is_right_where_any_of_its_works_is_known_to_be() -> None:
    works = [
        Turn(f"t{place}", "a", "h/a", "solution", "", says, True, 0, info={"answer": says})
        for place, says in enumerate("5557")
    ]
    known = {"t1": True, "t2": True, "t3": False}  # the verifier broke down over t0
    found = _truth([works], known, pick.task)
    assert found["majority"] == 1.0
    assert math.isnan(_truth([works], {"t3": False}, pick.task)["majority"])


def test_what_cannot_be_read_is_counted_and_compares_nothing() -> None:
    found = judged("text", verdicts((None, 1.0), (1.0, 0.0), (1.0, None)))
    assert found.unreadable == pytest.approx(1 / 3)
    assert found.n == 1
    assert found.j is None
    nothing = judged("text", [])
    assert nothing.n == 0
    assert math.isnan(nothing.accepts_majority)


def test_information_is_the_squared_correlation_of_verdict_and_side() -> None:
    # t = .9, f = .3: J = .6, m = .6
    assert information(0.6, 0.6) == pytest.approx(0.25 * 0.36 / 0.24)
    assert information(0.6, 1.0) == 0.0


def test_labels_say_how_far_judges_tell_right_from_wrong() -> None:
    said = verdicts((0.9, 0.1), (0.2, 0.8))
    right = {"0True": True, "0False": False, "1True": False, "1False": True}
    found = judged("p_true", said, right)
    assert found.against_truth == 1.0
    assert found.prefers is not None
    assert found.prefers.mean == 0.5


# --- whole preflights of scripted teams


def scripted(
    solution: Any, beliefs: Any = None, *, labels: bool = True, questions: Any = QUESTIONS
) -> Preflight:
    """What a scripted team comes to; the scoring is unreadable, the criticism says nothing."""

    def script(policy: str, role: str, prompt: str, seed: int) -> Any:
        if role in ("solution", "blind"):
            return solution(prompt, seed)
        return "perhaps" if role == "scoring" else "hm"

    members, _ = scripted_team(script, 3, beliefs=beliefs)
    task = pick.task
    resolved = runs.planned({"method": "ttrl"})
    config = resolved.config
    team: Any = SimpleNamespace(task=task, config=config, bases=lambda: ["script"])
    context = GameContext(replace(resolved.method, play=play), task, members, 1, {"answers": 6})
    episodes = asyncio.run(play_all(context, questions, "preflight"))
    return examined(team, questions, episodes, 6, labels, 2.0)


def mostly_right(prompt: str, seed: int) -> str:
    """Right in three of four."""
    puzzle = prompt.removeprefix("solve ").strip()
    return RIGHTS[puzzle] if seed % 4 else WRONG


def knowing(policy: str, role: str, prompt: str, choices: Sequence[str]) -> list[float]:
    """A judge that believes in work which is right, last of the choices the best."""
    puzzle = prompt.removeprefix("score ").split(" #")[0]
    numbers = prompt.partition("# ")[2].split(" says")[0].split()
    total = sum(int(number) for number in numbers[:3] if number.isdecimal())
    is_right = str(total) == puzzle.split()[-1]
    best = 0.8 if is_right else 0.1
    others = [(1.0 - best) / (len(choices) - 1)] * (len(choices) - 1)
    return [*others, best]


def by_mode(found: Preflight) -> dict[str, Judged]:
    return {one.mode: one for one in found.judges}


def test_a_team_whose_beliefs_know_what_it_cannot_say() -> None:
    found = scripted(mostly_right, knowing)
    assert found.readable == 1.0
    assert found.truth is not None
    assert found.truth["single"] > 0.5
    judges = by_mode(found)
    assert judges["text"].unreadable == 1.0
    assert judges["p_true"].against_truth == 1.0
    assert judges["p_true beside own answer"].against_truth == 1.0
    assert judges["p_true beside own answer"].n == judges["p_true"].n > 0
    said = {one.method: one for one in found.methods}
    assert said["comas score=text evaluate=false"].verdict == "not known"  # of so few verdicts
    assert "verdicts cannot be read" in said["comas score=text evaluate=false"].why
    json.dumps(found.record())


def test_figures_without_labels_are_the_same_whatever_the_labels() -> None:
    poisoned = [replace(question, answer="1 + 1") for question in QUESTIONS]
    first = scripted(mostly_right, knowing, labels=False)
    second = scripted(mostly_right, knowing, labels=False, questions=poisoned)
    assert first == second
    assert first.truth is None
    assert all(one.against_truth is None for one in first.judges)


def test_a_base_that_says_nothing_readable_is_told_so_first() -> None:
    found = scripted(lambda prompt, seed: "I do not know")
    (only,) = found.methods
    assert only.verdict == "will not"
    assert "can be read" in only.why
    assert found.example == "I do not know"


def test_a_team_that_always_says_the_same_has_nothing_to_vote_on() -> None:
    found = scripted(lambda prompt, seed: WRONG)
    said = {one.method: one.verdict for one in found.methods}
    assert said["ttrl"] == said["comas_votes"] == "will not"
    assert said["comas score=p_true evaluate=false"] == "not known"
    assert found.dissent == 0.0
    assert any("intervals" in note for note in found.notes)


def test_advice_follows_intervals() -> None:
    found = scripted(mostly_right, knowing, labels=False)

    def believed(low: float, high: float) -> Advice:
        prefers = Interval((low + high) / 2, low, high, 40)
        judges = [
            replace(one, prefers=prefers, j=Interval(0.2, 0.1, 0.3, 40), n=40)
            for one in found.judges
        ]
        advices = advice(replace(found, judges=judges))
        return next(a for a in advices if a.method == "comas score=p_true evaluate=false")

    assert believed(0.6, 0.9).verdict == "can learn"
    assert "preset=p_true" in believed(0.6, 0.9).why
    assert believed(0.4, 0.7).verdict == "not known"
    assert "blind" not in believed(0.4, 0.7).why
    assert believed(0.1, 0.3).verdict == "will not"


# --- the shipped models, and the command


def test_the_seed_team_is_the_same_each_time() -> None:
    first = preflight("tiny", questions=6, answers=4)
    again = preflight("tiny", questions=6, answers=4)
    facts = [replace(one, seconds=0.0, step_minutes=0.0).record() for one in (first, again)]
    assert json.dumps(facts[0]) == json.dumps(facts[1])
    assert comas.preflight is preflight


def test_the_command_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preflight", "tiny", "--questions", "3", "--answers", "3", "--json"]
    assert run(words, monkeypatch) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"questions", "readable", "dissent", "judges", "truth", "methods"} <= set(found)
    assert found["questions"] == 3
    assert "next to nothing" in found["notes"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere-at-all"], "nowhere-at-all"),
        (["tiny", "task=nothing"], "nothing"),
        (["tiny", "stepz=3"], "stepz"),
        (["tiny", "--questions", "0"], "questions"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["preflight", *words], monkeypatch) == 2
    said = capsys.readouterr().err
    assert says in said.splitlines()[-1]
    assert "Traceback" not in said


def test_the_command_prints_tables_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["preflight", "tiny", "--questions", "4", "--answers", "3"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "questions with dissent" in said
    assert "p_true after criticism" in said
    assert "rlvr: " in said


@pytest.mark.parametrize(
    ("verdicts", "base", "keys", "trains"),
    [
        ({COMAS: "can learn"}, "org/m", ["task=sums"], "task=sums method=comas agents=2 lr=1e-4"),
        ({COMAS: "can learn"}, "org/m", ["agents=4", "lr=1e-5"], "agents=4 lr=1e-5 method=comas"),
        (
            {COMAS: "can learn", "ttrl": "may learn"},
            "tiny",
            [],
            "method=comas agents=2 preset=p_true",
        ),
        ({COMAS: "not known", "ttrl": "may learn"}, "tiny", [], "method=ttrl agents=1"),
        ({COMAS: "will not", "ttrl": "will not", "rlvr": "can learn"}, "org/m", [], None),
        (
            {COMAS: "can learn"},
            "tiny",
            ["agents.judge.frozen=true"],
            "agents.judge.frozen=true method=comas preset=p_true",
        ),
        ({COMAS: "can learn"}, "tiny", ["method=ttrl"], None),
        ({COMAS: "can learn"}, "tiny", ["method=comas", "preset=stable"], None),
        ({COMAS: "can learn"}, "tiny", ["method=comas"], "method=comas agents=2 preset=p_true"),
        ({"ttrl": "may learn"}, "tiny", ["preset=p_true"], None),
    ],
)
def test_what_is_advised_ends_as_a_command(
    verdicts: dict[str, Any], base: str, keys: list[str], trains: str | None
) -> None:
    methods = [Advice(method, verdict, "") for method, verdict in verdicts.items()]
    found = training_with(methods, [base], keys)
    assert found == (trains and f"train base={base} {trains}")
    assert training_with(methods, [base, base], keys) is None


def test_files_and_exports_are_no_bases(tmp_path: Path) -> None:
    (tmp_path / "team.toml").write_text("")
    for team in (tmp_path, tmp_path / "team.toml"):
        assert training_with([Advice(COMAS, "can learn", "")], [str(team)], []) is None


def test_ctrl_c_leaves_the_figures_of_the_questions_that_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    async def stopped_in_the_third_part(context: Any, questions: Any, *more: Any) -> Any:
        asked.append(len(questions))
        if len(asked) == 4:  # a trial, the first ones, a part
            raise asyncio.CancelledError
        return await play_all(context, questions, *more)

    monkeypatch.setattr(measured, "PART", 0.0)
    monkeypatch.setattr(measured, "play_all", stopped_in_the_third_part)
    found = preflight("tiny", questions=60, answers=2, max_tokens=24)
    assert asked == [1, 4, 16, 16]
    assert (found.interrupted, found.questions) == (True, 20)


@pytest.mark.parametrize("minutes", [math.inf, math.nan, 0.0, -1.0])
def test_minutes_are_a_number_above_nothing(minutes: float) -> None:
    with pytest.raises(UserMistake, match="minutes="):
        preflight("tiny", minutes=minutes)


def test_ctrl_c_is_told_in_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("comas.cli.preflight.run_preflight", interrupted)
    assert run(["preflight", "tiny"], monkeypatch) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_server_that_tells_no_tokens_costs_nothing_but_the_minutes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All has been answered, and paid for, when they are worked out."""
    found = scripted(lambda prompt, seed: Reply(WRONG, True, 0, 0, 0, 0.0, 0.0))
    assert found.tokens == 0
    assert found.record()["step_minutes"] is None
    monkeypatch.setattr("comas.cli.preflight.run_preflight", lambda *_: found)
    assert run(["preflight", "tiny"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert re.search(r"eight times +not known", said)


def test_how_far_it_is_is_told_while_it_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal a live line; it was silent for minutes."""
    heard: list[Progress] = []

    class Listening(Hook):
        def working(self, progress: Progress) -> None:
            heard.append(progress)

    found = run_preflight(["tiny"], {"threads": 1}, 4, 2, False, Listening())
    assert found.questions == 4
    assert [heard[0].stage, heard[1].stage] == ["loading", "asking"]
    assert amount(heard[1]) == "0 of at most 68 replies"
    display = Display(Console(file=StringIO(), width=200, force_terminal=True))
    display.working(heard[1])
    assert display.bars.tasks[0].description == "asking"
    assert run(["preflight", "tiny", "--questions=4", "--answers=2"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "loading the models" in said
    assert "note: asking 4 questions of pick, 2 times each" in said


def test_a_run_whose_name_looks_like_a_key_is_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it is for `comas eval`; the shipped model was asked instead, without a word."""
    given: list[tuple[Any, ...]] = []

    def stopped(*words: Any, **named: Any) -> Preflight:
        given.append((*words, *named.values()))
        raise UserMistake("heard")

    comas.train(out=str(tmp_path / "lr=1e-5"), steps=0, test_questions=0, hooks=[])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("comas.cli.preflight.run_preflight", stopped)
    assert run(["preflight", "lr=1e-5", "seed=4"], monkeypatch) == 2
    assert given[0][:2] == (["lr=1e-5"], {"seed": 4})
    monkeypatch.setattr("comas.evaluation.systems.found_at", stopped)
    assert run(["play", "lr=1e-5", "seed=4"], monkeypatch) == 2
    assert given[1] == ("lr=1e-5", {"seed": 4})


@pytest.mark.parametrize("count", [{"answers": 2.5}, {"questions": 3.0}, {"answers": True}])
def test_counts_are_whole_numbers(count: dict[str, Any]) -> None:
    with pytest.raises(UserMistake, match="is no whole number"):
        preflight("tiny", **count)


def test_a_server_that_cannot_weigh_is_refused_before_answers_are_bought(serve: Any) -> None:
    server = serve(answers(said("Yes")))
    with pytest.raises(UserMistake, match="top_logprobs"):
        preflight("big-model", hosts__home__api=server.url, task="sums", questions=4, answers=2)
    # a verdict of each judge, of which the first may end the other, and no answer
    assert len(server.worked) in (1, 2)


def test_a_folder_whose_name_looks_like_a_key_is_a_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def heard(*words: Any) -> Preflight:
        given.append(words)
        raise UserMistake("heard")

    given: list[tuple[Any, ...]] = []
    (tmp_path / "lr=1e-5").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("comas.cli.preflight.run_preflight", heard)
    assert run(["preflight", "./lr=1e-5", "seed=4"], monkeypatch) == 2
    assert given[0][:2] == (["./lr=1e-5"], {"seed": 4})


def test_a_team_without_questions_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comas.evaluation.preflight.loaded", lambda *_, **__: list[Question]())
    with pytest.raises(UserMistake, match="no training question"):
        preflight("tiny")
