"""Dialogues in runs: what is learnt are the replies alone, and sampler and learner agree on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import comas
from comas.storage.run import Run
from tests.support.families import family_model

METHOD = '''
import numpy as np

from comas.methods import comas
from comas.objective.credit import given
from comas.objective.losses import clipped
from comas.types import Method

TURNS = 6


async def play(question, agents, rng, task):
    """A dialogue of six replies, whatever they say: a random model calls no tool."""
    said, about = [], None
    for place in range(TURNS):
        turn = await agents[0].ask("solution", question.prompt, about=about, exchanges=said)
        said += [
            {"role": "assistant", "content": turn.text},
            {"role": "user", "content": f"the tool says {place}"},
        ]
        about = turn
    return turn.text


def settle(episodes, task):
    for turn in (t for e in episodes for t in e.turns):
        turn.reward = sum(map(ord, turn.text + turn.thoughts)) % 5 / 4 - 0.5


def advantage(rows, kl):
    assert len(rows) % TURNS == 0
    for row in rows:
        starts = np.flatnonzero(np.diff(row.mask_T.astype(int)))
        assert len(starts) == 1, "one reply, behind everything that was prompt"
        assert row.mask_T[-1]
        assert not row.sampled_logprobs_T[~row.mask_T].any()
        assert row.mask_T.sum() <= 9
    lengths = sorted({len(row.token_ids_T) for row in rows})
    assert len(lengths) > 1, "later replies have longer prompts"
    return given(rows, kl)


method = Method(play, settle, advantage, clipped)
'''


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_log_probs_agree_in_the_sixth_reply_as_in_the_first(family: str, tmp_path: Path) -> None:
    base = family_model(tmp_path / "base", family)
    (tmp_path / "six.py").write_text(METHOD)
    comas.train(
        method=str(tmp_path / "six.py"),
        task="pick",
        steps=2,
        questions=4,
        agents=1,
        lr=1e-4,
        test_questions=0,
        eval_every=0,
        threads=1,
        monitors=[],
        max_tokens=9,
        room={"solution": 9},
        hosts__home__base=str(base),
        out=str(tmp_path / "run"),
    )
    for metrics in Run.open(tmp_path / "run").metrics():
        assert metrics["counts"]["failed"] == 0
        (policy,) = metrics["policies"].values()
        assert policy["updates"] == 1
        assert policy["gap_max"] < 1e-4


def test_a_run_with_tools_is_the_same_whatever_is_sampled_at_once(tmp_path: Path) -> None:
    keys = {
        "method": "ssp",
        "steps": 2,
        "questions": 6,
        "test_questions": 16,
        "eval_every": 0,
        "threads": 1,
        "seed": 7,
    }
    comas.train(out=str(tmp_path / "wide"), **keys)
    comas.train(out=str(tmp_path / "narrow"), hosts__home__max_rows=5, **keys)
    wide, narrow = Run.open(tmp_path / "wide"), Run.open(tmp_path / "narrow")

    def texts(run: Run) -> list[list[tuple[str, str]]]:
        played = [episode for step in range(2) for episode in run.episodes(step)]
        return [[(turn["id"], turn["text"]) for turn in game["turns"]] for game in played]

    assert texts(wide) == texts(narrow)
    calls = [row for metrics in wide.metrics() for row in metrics["tools"]]
    assert {row["role"] for row in calls} == {"propose", "solution"}
    assert all(row["tool"] == "search" and row["calls"] > 0 for row in calls)
