"""A team that cannot learn says so in its first step: which role, why, an example, and the key that
would help.

From the record of a step alone, without labels. The signs are replies that cannot be read, replies
that are cut for want of tokens, rewards that nobody can learn from, and policies that did not move.
The last two are not reported beside the others, from which they follow. Leaves out: collapse in the
course of a run, whose signs are statistical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comas.config.schema import Config
from comas.game.dialogue import called, failing
from comas.game.judgements import unreadable
from comas.game.play import room_of
from comas.hooks import Alarm
from comas.training.metrics import grouped, signal_in
from comas.types import Episode, Method, Role, Task, Turn

MANY = 0.5
"""Share of a role's replies from which a sign is reported."""
COMPARED = 32
"""Rewards that were compared with another one, below which equal ones say nothing: where nine of
ten answers are right, so many are all equal by chance in about one step of thirty.
"""
STILL = 3
"""Steps in a row without any gradient after which a policy is reported, whatever the cause: in
small steps all rewards are equal by chance now and then.
"""
SHOWN = 80
"""Characters of the reply that is shown as an example."""


@dataclass
class LearningSignal:
    """Signs that this process has reported."""

    config: Config
    method: Method
    task: Task
    _told: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    """Kind and roles of each."""
    _still: dict[str, int] = field(default_factory=dict[str, int])
    """Policy -> steps in a row in which it had no gradient."""

    def signs(
        self,
        step: int,
        episodes: Sequence[Episode],
        policies: Mapping[str, Mapping[str, float]] | None = None,
    ) -> list[Alarm]:
        """All that is wrong with a step, whether or not it was so before; `policies` are the
        statistics of its updates.
        """
        turns = [turn for episode in episodes if episode.error is None for turn in episode.turns]
        by_role = grouped((turn.role, turn) for turn in turns)
        alarms: list[Alarm] = []
        for role, replies in by_role.items():
            alarms += self._of_replies(step, role, replies)
        lost = bool(alarms)
        for tool, share, text in failing(called(turns)):
            alarms.append(Alarm(step, f"calls of {tool}", (), share, text))
        if not lost:
            flat = list(self._of_rewards(step, by_role))
            alarms += flat or self._of_policies(step, turns, policies or {})
        return alarms

    def news(self, signs: Sequence[Alarm]) -> list[Alarm]:
        """Return those signs that this process has not reported yet."""
        new = [sign for sign in signs if (sign.kind, sign.roles) not in self._told]
        self._told |= {(sign.kind, sign.roles) for sign in new}
        return new

    def _of_replies(self, step: int, role: str, turns: Sequence[Turn]) -> Iterator[Alarm]:
        """Replies of a role that nobody can read, or that were cut."""
        kind = "unreadable"
        failed = [turn for turn in turns if unreadable(turn.info)]
        if len(failed) < MANY * len(turns):
            kind = "cut"
            failed = [turn for turn in turns if not turn.finished]
        if len(failed) < MANY * len(turns):
            return
        what = "cannot be read" if kind == "unreadable" else "are cut"
        cut = [turn for turn in failed if not turn.finished]
        remedy = self._better_format(role)
        if len(cut) >= MANY * len(failed):
            room = room_of(self.task, self.config.room).get(role, self.config.max_tokens)
            is_own = role != "blind" or role in {**self.task.max_tokens, **self.config.room}
            remedy = f"raise room.{role if is_own else 'solution'} (now {room} tokens)"
            if all(turn.thoughts for turn in cut):
                host = cut[0].policy.split("/")[0]
                remedy += f", or set hosts.{host}.thinking=false"
        text = (
            f"{len(failed)} of {len(turns)} replies as {role} {what}, such as"
            f" {_example(failed[0])}; {remedy}"
        )
        yield Alarm(step, kind, (role,), len(failed) / len(turns), text)

    def _of_rewards(self, step: int, by_role: Mapping[str, Sequence[Turn]]) -> Iterator[Alarm]:
        """Roles that are never rewarded, and otherwise a step in which no two rewards can be told
        apart.
        """
        for role, turns in by_role.items():
            if role in self.method.rewarded and not any(turn.reward is not None for turn in turns):
                text = (
                    f"none of {len(turns)} replies as {role} is rewarded, so that role learns"
                    " nothing"
                )
                yield Alarm(step, "unrewarded", (role,), 1.0, text)
        replies = [turn for turns in by_role.values() for turn in turns]
        with_reward = [turn for turn in replies if is_compared(turn)]
        groups = signal_in(with_reward)
        # the first of a group is compared with no other
        compared = len(with_reward) - sum(group["groups"] for group in groups.values())
        if compared >= COMPARED and all(
            group["flat"] == group["groups"] for group in groups.values()
        ):
            text = (
                "nobody can learn from these rewards: in every group all are equal; what helps is"
                " judges that tell good work from bad, questions that are neither too easy nor too"
                " hard, or a higher temperature"
            )
            yield Alarm(step, "flat", (), 1.0, text)

    def _of_policies(
        self, step: int, turns: Sequence[Turn], policies: Mapping[str, Mapping[str, float]]
    ) -> Iterator[Alarm]:
        """Policies whose gradient was exactly 0, with the cause."""
        for policy, statistics in policies.items():
            if statistics.get("grad_norm") != 0 or statistics.get("skipped"):
                self._still[policy] = 0
                continue
            self._still[policy] = self._still.get(policy, 0) + 1
            rewarded = [turn for turn in turns if turn.policy == policy and is_compared(turn)]
            cause = groups_of_one(rewarded, turns)
            if cause is None and self._still[policy] >= STILL:
                cause = (
                    f"in its last {STILL} steps all rewards that are compared are equal; what helps"
                    " is judges that tell good work from bad, more questions a step, or questions"
                    " that are neither too easy nor too hard"
                )
            if cause is not None:
                text = f"{policy} learns nothing of its {len(rewarded)} rewarded replies: {cause}"
                yield Alarm(step, "still", (policy,), 1.0, text)

    def _better_format(self, role: str) -> str:
        kind = self.method.roles.get(role, Role()).kind
        scored = kind in ("judge", "rater") and "score" in self.config.options
        instead = "set options.score=p_true, which reads no reply; or " if scored else ""
        return (
            f"{instead}give the agents that take {role} a base that keeps to the format"
            f" (agents.<name>.base and roles), or the task a wording for {role} that shows it; or"
            f" teach the format first: method=sft with demonstrations of {role} (docs/methods.md)"
        )


def is_compared(turn: Turn) -> bool:
    """Whether a turn was rewarded; words that were given are learnt as they are."""
    return turn.reward is not None and "told" not in turn.info


def groups_of_one(rewarded: Sequence[Turn], turns: Sequence[Turn]) -> str | None:
    """Why none of a policy's rewarded turns is compared with another one, and the remedy; None
    where some are, or where it names no groups.
    """
    sizes = Counter(turn.group for turn in rewarded)
    if not sizes or None in sizes or max(sizes.values()) > 1:
        return None
    roles = " and ".join(sorted({turn.role for turn in rewarded}))
    remedy = "set samples=4, give several turns one `group`, or take the credit reinforce_pp"
    others = Counter(turn.group for turn in turns if is_compared(turn))
    if any(others[group] > 1 for group in sizes):
        return (
            f"each group of {roles} has one reply of this policy, and replies of other policies are"
            f" not compared with it, since each policy is credited alone; {remedy}"
        )
    return f"each group of {roles} has one reply, so that there is nothing to compare; {remedy}"


def _example(turn: Turn) -> str:
    """The end of a reply, on one line: that is where answers and scores are looked for."""
    text = " ".join(turn.text.split())
    if not text:
        return "an empty one"
    return repr(text if len(text) <= SHOWN else f"... {text[-SHOWN:]}")
