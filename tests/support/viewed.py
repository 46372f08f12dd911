"""A run's folder with discussions to look at, and texts as hostile models write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comas.storage.run import Run
from comas.tasks import pick
from comas.types import COMMON_KINDS, Episode, Question, Turn

HOSTILE = [
    "<script>document.title = 'taken'; window.taken = 1</script>",
    '<img src=x onerror="window.taken = 1">',
    "</script><script>window.taken = 1</script>",
    "<!--DATA--><!--SCRIPT--></textarea></title></style><svg onload='window.taken = 1'>",
    "javascript:window.taken=1",
    '" onmouseover="window.taken = 1" x="',
    "' autofocus onfocus='window.taken = 1'",
    "<iframe srcdoc='<script>parent.taken = 1</script>'></iframe>",
    "<a href='data:text/html,x'>click</a><form action=//example.org><input name=q></form>",
    "{{constructor.constructor('window.taken = 1')()}} ${window.taken = 1} <%= 1 %>",
    "right\u202egnorw\u202c left\u2066x\u2069 \u200b\u200e\ufeff",
    "bell\x07 escape\x1b[31m\x1b]0;title\x07 nul\x00 delete\x7f \x9b31m",
    "lone surrogate \ud800 and line\u2028separator\u2029",
    "a" * 1_000_000,
    "\n" * 5000 + "deep",
    "Z\u0351\u036b\u0343" * 300,
]
"""Markup, scripts, characters that steer a reader, and sizes."""

CONFIG: dict[str, Any] = {
    "method": "comas",
    "task": "pick",
    "steps": 9,
    "seed": 3,
    "agents": {name: {"host": "home"} for name in ("a0", "a1", "a2")},
    "options": {},
    "hosts": {"home": {}},
}
Q = pick.make_question((1, 2, 4, 5), 7, "three")


def turn(name: str, agent: str, text: str, about: str | None, **more: Any) -> Turn:
    """A turn whose role is its name without the number."""
    role = name.split(".")[-1].rstrip("0123456789")
    info = more.pop("info", {})
    return Turn(
        name,
        agent,
        f"home/{agent}",
        role,
        f"prompt: {text[:50]}",
        text,
        True,
        1,
        about,
        info=info,
        **more,
        kind=COMMON_KINDS.get(role, "other"),
    )


def discussion(
    step: int, place: int, *, right: bool, score: int | None, text: str = "1 + 2 = 3 + 4 = 7"
) -> Episode:
    """A solution, a criticism of it and a score, paid as CoMAS pays them."""
    question = Question(**{**vars(Q), "id": f"q{place}", "prompt": f"{Q.prompt} {text[:300]}"})
    beginning = f"{step}/q{place}/0"
    work = f"{beginning}/solution0"
    criticism = f"{work}.evaluation0"
    share = 0.0 if score is None else (score - 1) / 2
    accepts = None if score is None else score > 1
    facts = {"readable": True, "right": right, "advantage": 0.5, "kl": 0.01}
    turns = [
        turn(work, "a0", text, None, info=facts, reward=share, tokens=9),
        turn(criticism, "a1", f"it is {text}", work, reward=1 - share, tokens=3),
        turn(
            f"{criticism}.scoring0",
            "a2",
            text,
            criticism,
            info={"score": score, "accepts": accepts},
            reward=0.0,
            thoughts=text,
        ),
    ]
    return Episode(beginning, question, turns, text)


def metrics(step: int) -> dict[str, Any]:
    """A step's line, with figures that JavaScript cannot read as they are."""
    return {
        "step": step,
        "tokens": 100 * (step + 1),
        "seconds": 1.5,
        "rewards": {"solution": 0.5, "evaluation": 0.5, "scoring": 0.0},
        "kl": {"solution": 0.01, "evaluation": float("nan"), "scoring": 0.0},
        "lengths": {"solution": 9.0},
        "cost": [{"agent": "a0", "role": "solution", "round": 0, "turns": 3, "tokens": 27}],
        "replies": [
            {"agent": "a0", "role": "solution", "turns": 3, "paid": 3, "cut": 0, "unreadable": 0}
        ],
        "judges": {"scoring": {"n": 3, "accepts_right": 0.9, "accepts_wrong": 0.1 + step / 20}},
        "acceptance": [
            {
                "role": "scoring",
                "judge": "a2",
                "author": "a0",
                "n": 3,
                "accepted": 2,
                "right": 2,
                "accepted_right": 2,
                "wrong": 1,
                "accepted_wrong": 0,
            }
        ],
        "validation": {"mean": 0.5, "low": float("-inf"), "high": float("inf"), "n": 1},
        "monitors": {
            "probes": {
                name: {"evidence": 0.1 * place + step, "needed": 2.5, "values": "0.0*3"}
                for place, name in enumerate(("strangers", "cut", "proven"))
            },
            HOSTILE[1]: {HOSTILE[0]: {"evidence": -0.2}},
        },
        "policies": {"home/a0": {"grad_norm": 0.0}},
        "notes": [HOSTILE[0]] if step == 1 else [],
    }


def viewed_run(folder: Path, steps: int = 3) -> Run:
    """A run of a few steps: in each a right, a wrong but paid and an unreadable discussion, and in
    the last one of each hostile text.
    """
    run = Run.create(CONFIG, str(folder))
    for step in range(steps):
        episodes = [
            discussion(step, 0, right=True, score=3),
            discussion(step, 1, right=False, score=3),
            discussion(step, 2, right=True, score=None),
        ]
        if step == steps - 1:
            hostile = enumerate(HOSTILE, 3)
            episodes += [discussion(step, k, right=True, score=3, text=t) for k, t in hostile]
        run.write_step(metrics(step), episodes)
    answers = [
        {"question": f"q{k}", "agent": "a0", "text": text, "verdict": "wrong", "tokens": 1}
        for k, text in enumerate(HOSTILE)
    ]
    for stage in ("before", "after"):
        accuracy = {"mean": 0.25, "low": 0.1, "high": 0.4, "n": 16}
        run.write_eval(stage, {"step": 0, "accuracy": accuracy, "answers": answers})
    return run


def evaluation(folder: Path) -> Path:
    """An evaluation's folder with a game of each hostile text."""
    (folder / "answers").mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps({"systems": ["tiny"]}))
    games = []
    for place, text in enumerate(HOSTILE):
        one = discussion(0, place, right=True, score=3, text=text)
        turns = [{**vars(t), "reward": None} for t in one.turns]
        games.append(
            {
                "id": one.id,
                "question": f"q{place}",
                "agent": "team",
                "verdict": "wrong",
                "error": None,
                "answer": text,
                "turns": turns,
            }
        )
    lines = [json.dumps(game) + "\n" for game in games]
    sitting = json.dumps({"sitting": {"seconds": 1.0}}) + "\n"
    log = folder / "answers" / "seed.pick.single.0123abcd.jsonl"
    log.write_text("".join([lines[0], sitting, *lines, sitting]))  # the first was played again
    cell = {
        "label": HOSTILE[1],
        "task": "pick",
        "setup": "single",
        "accuracy": 0.5,
        "low": 0.4,
        "high": 0.6,
        "right": 8,
        "judged": 16,
        "n": 16,
        "tokens": 99,
    }
    side = {"label": "tiny", "setup": "single"}
    pair = {
        "task": "pick",
        "first": side,
        "second": side,
        "difference": 0.1,
        "low": -0.1,
        "high": 0.3,
        "p": 0.5,
        "test": "McNemar, exact",
        "verdict": "none shown",
    }
    report = {
        "cells": [cell],
        "systems": [pair],
        "setups": [],
        "notes": [HOSTILE[2]],
    }
    (folder / "report.json").write_text(json.dumps(report))
    return folder
