"""One game of an evaluation: played, judged, written down.

Leaves out: which games there are (`evaluation.runner`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from comas.evaluation.accuracy import judged
from comas.game.play import Scene, first, play_one
from comas.hooks import Hook
from comas.hosts.endpoint.ledger import BudgetSpent
from comas.storage.game_log import Log
from comas.types import Episode, Task


async def play_game(
    scene: Scene,
    episode: Episode,
    who: str,
    room: asyncio.Semaphore,
    gate: ThreadPoolExecutor,
    log: Log,
    hook: Hook,
    spent: list[BaseException],
) -> None:
    """One game.

    Where a budget ends it, `spent` is told, so that games whose requests are open end in order.
    """
    async with room:
        if spent:
            return
        try:
            await play_one(scene, episode)
        except* BudgetSpent as found:
            episode.error = str(first(found))
            spent.append(first(found))
    if spent and episode.error:
        return
    if _cut_off(episode):
        episode.answer = None
    await judge_game(
        episode,
        who,
        [dataclasses.asdict(t) for t in episode.turns],
        scene.task,
        gate,
        log,
        hook,
    )


def _cut_off(episode: Episode) -> bool:
    """Whether the answer is a reply that ended for want of room: no answer in any setup.

    A setup may also return a text that is nobody's reply, cleaned or merged or read out of one:
    that is an answer.
    """
    replies = [turn for turn in episode.turns if turn.text == episode.answer]
    return bool(replies) and not any(turn.finished for turn in replies)


async def judge_game(
    episode: Episode,
    who: str,
    turns: Sequence[Any],
    task: Task,
    gate: ThreadPoolExecutor,
    log: Log,
    hook: Hook,
) -> None:
    """Ask the verifier, in a thread: it may wait for a process of its own."""
    verdict = "failed" if episode.error else "wrong"
    raised = {}
    if episode.answer is not None and not episode.error:
        judging = asyncio.get_running_loop().run_in_executor(
            gate, judged, task, episode.question, episode.answer
        )
        verdict, raised = await judging
    record = {
        "id": episode.id,
        "question": episode.question.id,
        "agent": who,
        "verdict": verdict,
        "error": episode.error,
        "answer": episode.answer,
        "turns": list(turns),
        **raised,
    }
    log.add(record)
    hook.game(record)
