"""Roles of a stranger's method, from its game to the page; and methods as 0.1 wrote them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comas.config.plugins import import_file, load_plugin, plugin_names
from comas.game.play import play_all
from comas.methods import ttrl
from comas.monitors import probes, rejections
from comas.monitors.monitor import Seen
from comas.objective.credit import grpo, reinforce_pp
from comas.objective.losses import clipped
from comas.storage.records import episode_of, episode_record
from comas.tasks import pick
from comas.testing.scripted import discuss, scripted_context
from comas.training.metrics import METRICS, summarise, variety
from comas.training.record import StepRecord, note_truth
from comas.types import COMMON_KINDS, Memory, Method, Role, Setup
from comas.view import discussion

QUESTIONS = [pick.make_question((1, 2, 4, n), 7, "three") for n in range(5, 25)]
RIGHT = "1 + 2 = 3 + 4 = 7"
ROLES = {
    "draft": Role("answer", reward="its grade"),
    "grade": Role("judge", reward="nothing but form"),
    "chat": Role(),
}


async def play(question: Any, agents: Any, rng: Any, task: Any) -> str:
    """A draft, a grade of it, and a word beside the point."""
    draft = await agents[0].ask("draft", question.prompt)
    draft.info["answer"] = task.extract(question, draft.text)
    grade = await agents[1].ask("grade", f"grade {draft.text}", about=draft)
    grade.info["verdict"] = grade.text
    await agents[2].ask("chat", "hello")
    return draft.text


def settle(episodes: Any, task: Any) -> None:
    """Pay drafts by their grades."""
    for episode in episodes:
        _, draft, grade = episode.turns  # in the order of their ids
        draft.reward = float(grade.info["verdict"] == "right")
        grade.reward = 0.0


METHOD = Method(play, settle, reinforce_pp, clipped, roles=ROLES)


def script(policy: str, role: str, prompt: str, seed: int) -> str:
    said = {"draft": RIGHT if seed % 2 else "2 + 5 = 7", "grade": "right", "chat": "hello"}
    return said[role]


def test_metrics_and_monitors_go_by_the_kinds_of_a_strangers_roles() -> None:
    episodes = discuss(METHOD, pick.task, script, QUESTIONS)
    kinds = {turn.role: turn.kind for episode in episodes for turn in episode.turns}
    assert kinds == {"draft": "answer", "grade": "judge", "chat": "other"}
    record = StepRecord(episodes, {}, pick.task)
    metrics = summarise(record, METRICS)
    assert metrics["judges"]["grade"]["accepts_wrong"] == 1.0
    assert metrics["pay"]["n"] == len(QUESTIONS)
    assert [row["role"] for row in metrics["acceptance"]] == ["grade"] * len(metrics["acceptance"])
    assert metrics["acceptance"]
    (reading,) = rejections.watch().read(Seen(0, episodes, {}, [])).values()
    assert reading.values == [0.0] * len(QUESTIONS)
    twice = discuss(METHOD, pick.task, script, QUESTIONS, samples=2)
    varied = variety(StepRecord(twice, {}, pick.task))
    assert varied is not None
    assert (varied["questions"], varied["answers"]) == (len(QUESTIONS), 2.0)
    assert 1.0 < varied["distinct"] < 2.0, "some answers by chance, others not"


def test_probes_plant_work_for_a_strangers_judges() -> None:
    context, _ = scripted_context(METHOD, pick.task, script)
    monitor = probes.watch()

    async def first_step() -> None:
        await monitor.begin(context, await play_all(context, QUESTIONS, 0))
        await monitor.ask(context, 1, len(QUESTIONS))

    asyncio.run(first_step())
    plants = [plant for of_kind in monitor.memory["plants"].values() for plant in of_kind]
    assert plants
    assert all("draft" in str(plant) for plant in plants)


def test_the_page_knows_a_strangers_judges_and_the_records_of_before() -> None:
    episodes = discuss(METHOD, pick.task, script, QUESTIONS[:1])
    note_truth(StepRecord(episodes, {}, pick.task))
    record = episode_record(episodes[0])
    assert [turn["judges"] for turn in discussion.shown(record)["turns"]] == [False, False, True]
    of_before = {**record, "turns": [dict(turn) for turn in record["turns"]]}
    for turn, role in zip(of_before["turns"], ("propose", "solution", "scoring"), strict=True):
        del turn["kind"]
        turn["role"] = role
    assert [turn["judges"] for turn in discussion.shown(of_before)["turns"]] == [False, False, True]
    assert [turn.kind for turn in episode_of(of_before).turns] == ["other", "answer", "judge"]


OLD = """
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Method

async def play(question, agents, rng, task, *, state):
    return (await agents[0].ask("draft", question.prompt)).text

def settle(episodes, task): ...
def start(questions, task): return {"n": 0}
def update(state, episodes, task): return {"n": state["n"] + 1}

method = Method(
    play, settle, loss=clipped, advantage=grpo, paid=("draft", "evaluation"), roles=("hint",),
    pays={"draft": "its grade"}, start=start, update=update,
)
"""


def test_a_method_of_0_1_is_read_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    method = load_plugin("method", str(tmp_path / "old.py"))
    module = import_file(str(tmp_path / "old.py"), "method old.py")
    assert method.rewarded == ("evaluation", "draft")
    assert method.rewards == {"draft": "its grade"}
    assert (method.roles["evaluation"].kind, method.roles["hint"].kind) == ("judge", "other")
    assert method.credit is grpo
    assert module.method.memory == Memory(module.start, None, module.update)
    assert method.remembers


def test_former_words_change_a_method_of_today() -> None:
    changed = replace(ttrl.method, pays={"solution": "luck"}, advantage=reinforce_pp)  # type: ignore[call-arg]
    assert changed.rewards == {"solution": "luck"}
    assert changed.credit is reinforce_pp
    assert replace(METHOD, paid=("grade",)).rewarded == ("grade",)  # type: ignore[call-arg]
    assert replace(METHOD, paid=("grade",)).roles["draft"] == Role("answer")  # type: ignore[call-arg]
    setup = Setup(play, roles=("draft", "scoring"))  # type: ignore[arg-type]
    assert setup.roles == {"draft": Role("other"), "scoring": Role("judge")}


def test_a_method_without_roles_is_rewarded_for_solutions() -> None:
    method = Method(play, settle, grpo, clipped)
    assert method.rewarded == ("solution",)
    assert {name: role.kind for name, role in method.roles.items()} == COMMON_KINDS


@pytest.mark.parametrize("name", plugin_names("method"))
def test_shipped_methods_say_what_they_reward(name: str) -> None:
    method = load_plugin("method", name)
    assert set(method.rewards) == set(method.rewarded)
    assert set(method.kl) <= set(method.rewarded)
