"""Two agents work on one answer, together or one after the other.

After "The Collaboration Gap" (arXiv 2511.02687). The turns are those of `autogen`: an answer, a
check of it, the answer again, until somebody declares the end or there are `turns`. With `lead = 0`
the two speak alternately; else one takes the first `lead` turns, and the other one those behind
them. Who begins is drawn per question, unless `leader` names an agent. Leaves out: teams of more
than two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.setups.autogen import WORDING as WORDING
from comas.setups.autogen import talk
from comas.types import Count, Question, Role, Setup, Task, UserMistake, Whole


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    turns: Count = 6,
    lead: Whole = 0,
    leader: str | None = None,
) -> str | None:
    """Answer with the last answer; None where it was cut."""
    if lead > turns:
        raise UserMistake(
            f"setup relay: lead={lead} turns of one agent are more than turns={turns}: lower it"
        )
    first, second = _pair(agents, rng, leader)
    in_first_part = [at < lead if lead else at % 2 == 0 for at in range(turns)]
    speakers = [first if is_first else second for is_first in in_first_part]
    answer = await talk(question, speakers, task)
    return answer.text if answer.finished else None


def _pair(agents: Sequence[Agent], rng: random.Random, leader: str | None) -> tuple[Agent, Agent]:
    """Who begins, and the other one."""
    names = [agent.name for agent in agents]
    if len(agents) != 2:
        raise UserMistake(
            f"setup relay: a relay is of two agents, and this team has {len(agents)}"
            f" ({', '.join(names)}): take a team of two, such as agents=2"
        )
    if leader is not None and leader not in names:
        raise UserMistake(f"setup relay: leader={leader!r} is none of {', '.join(names)}")
    first_index = rng.randrange(2) if leader is None else names.index(leader)
    return agents[first_index], agents[1 - first_index]


setup = Setup(play, roles={"solution": Role("answer"), "revision": Role("answer"), "proxy": Role()})
