"""A team that cannot learn says so in its first step: which role, why, an example, and the key that
would help.

From the record of a step alone, without labels. The signs are replies that cannot be read, replies
that are cut for want of tokens, rewards that nobody can learn from, policies that did not move, and
policies that nobody asks or rewards. What follows from another sign is not reported beside it.
Leaves out: collapse in the course of a run, whose signs are statistical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from comas.config.schema import Config
from comas.game.dialogue import called, failing
from comas.game.judgements import unreadable
from comas.game.play import room_of
from comas.game.weighing import is_weighing
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
IN_TURN = 12
"""Steps after which a role or policy without any reward is reported where the method remembers:
such methods reward their roles in turn, for a few steps each.
"""
FEW = 8
"""Discussions per policy, and replies of a policy, below which nobody may have asked or rewarded it
by chance.
"""
ALL_EQUAL = (
    "all rewards that are compared are equal; what helps is judges that tell good work from bad,"
    " more questions a step, or questions that are neither too easy nor too hard"
)
NO_LOSS = (
    "its rewards differ, and its gradient is 0: look at the method's credit and loss"
    " (comas.testing.check_method)"
)
SHOWN = 80
"""Characters of the reply that is shown as an example."""


@dataclass
class LearningSignal:
    """Signs of all steps of a run; those that this process has reported."""

    config: Config
    method: Method
    task: Task
    learning: Sequence[str] = ()
    """Policies (`host/policy`) that are to learn."""
    _told: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])
    """Kind and roles of each."""
    _still: dict[str, int] = field(default_factory=dict[str, int])
    """Policy -> steps in a row in which it had no gradient."""
    _steps: int = 0
    _discussions: int = 0
    _asked: Counter[str] = field(default_factory=Counter[str])
    """Policy -> replies that it may be trained on, were they rewarded."""
    _rewarded: Counter[str] = field(default_factory=Counter[str])
    """Policy, or role -> how many of its replies were rewarded."""

    def signs(
        self,
        step: int,
        episodes: Sequence[Episode],
        policies: Mapping[str, Mapping[str, float]] | None = None,
    ) -> list[Alarm]:
        """All that is wrong with a step, whether or not it was so before; `policies` are the
        statistics of its updates.
        """
        played = [episode for episode in episodes if episode.error is None]
        turns = [turn for episode in played for turn in episode.turns]
        by_role = grouped((turn.role, turn) for turn in turns)
        self._count(len(episodes), turns, policies or {})
        alarms: list[Alarm] = [*self._of_unasked(step)] if played else []
        of_replies = [
            alarm for role in by_role for alarm in self._of_replies(step, role, by_role[role])
        ]
        alarms += of_replies
        for tool, share, text in failing(called(turns)):
            alarms.append(Alarm(step, f"calls of {tool}", (), share, text))
        if not of_replies:
            of_rewards = list(self._of_rewards(step, by_role))
            alarms += of_rewards
            if all(alarm.kind != "flat" for alarm in of_rewards):
                alarms += self._of_policies(step, turns, policies or {})
            if not of_rewards:
                alarms += self._of_unrewarded(step)
        return alarms

    def recall(self, metrics: Mapping[str, Any]) -> None:
        """Count a step that another process took, from its metrics."""
        self._steps += 1
        planned = (self.config.questions or 1) * (self.config.samples or 1)
        self._discussions += metrics.get("counts", {}).get("discussions", planned)
        for row in metrics.get("replies", ()):
            name = row["agent"]
            agent = self.config.agents.get(name)
            if agent is not None and not agent.frozen:
                policy = f"{agent.host}/{agent.policy_name(name)}"
                self._asked[policy] += row["turns"]
                self._rewarded[policy] += row["paid"]
            self._rewarded[row["role"]] += row["paid"]
        self._count_still(metrics["policies"])

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
            if self.method.remembers and (self._steps < IN_TURN or self._rewarded[role]):
                continue
            if all(self._learns_nothing_on_purpose(turn) for turn in turns):
                continue
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
        for policy in policies:
            if not self._still[policy]:
                continue
            rewarded = [turn for turn in turns if turn.policy == policy and is_compared(turn)]
            cause = groups_of_one(rewarded, turns)
            if cause is None and self._still[policy] >= STILL:
                groups = signal_in(rewarded).values()
                equal = all(group["flat"] == group["groups"] for group in groups)
                cause = f"in its last {STILL} steps {ALL_EQUAL if equal else NO_LOSS}"
            if cause is not None:
                text = f"{policy} learns nothing of its {len(rewarded)} rewarded replies: {cause}"
                yield Alarm(step, "still", (policy,), 1.0, text)

    def _of_unrewarded(self, step: int) -> Iterator[Alarm]:
        """Policies that are to learn, and none of whose replies was rewarded so far."""
        for policy in self.learning:
            replies = self._asked[policy]
            late = self._steps >= (IN_TURN if self.method.remembers else STILL)
            if late and replies >= FEW and not self._rewarded[policy]:
                text = (
                    f"{policy} learns nothing: none of its {replies} replies in {self._steps} steps"
                    f" was rewarded; give its agents roles that {self.config.method} rewards"
                    f" ({', '.join(self.method.rewarded) or 'it names none'}), or set"
                    f" {self._frozen(policy)}"
                )
                yield Alarm(step, "still", (policy,), 1.0, text)

    def _learns_nothing_on_purpose(self, turn: Turn) -> bool:
        """Whether a turn needs no reward: its agent is frozen, or nothing was generated."""
        return turn.agent in self._frozen_agents or is_weighing(turn)

    @cached_property
    def _frozen_agents(self) -> set[str]:
        return {name for name, agent in self.config.agents.items() if agent.frozen}

    def _count(
        self,
        discussions: int,
        turns: Sequence[Turn],
        policies: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Count a step into what is known of all steps so far."""
        self._count_still(policies)
        self._steps += 1
        self._discussions += discussions
        for turn in turns:
            if turn.agent not in self._frozen_agents:
                self._asked[turn.policy] += 1
                self._rewarded[turn.policy] += turn.reward is not None
            self._rewarded[turn.role] += turn.reward is not None

    def _count_still(self, policies: Mapping[str, Mapping[str, float]]) -> None:
        """Count the steps in a row in which a policy had no gradient."""
        for policy, statistics in policies.items():
            is_still = statistics.get("grad_norm") == 0 and not statistics.get("skipped")
            self._still[policy] = self._still.get(policy, 0) + 1 if is_still else 0

    def _of_unasked(self, step: int) -> Iterator[Alarm]:
        """A game that asks nobody; policies that are to learn, and that nobody has asked so far."""
        if not self._asked and not self._rewarded:
            text = (
                f"nobody was asked anything in {self._discussions} discussions: let play of method"
                f" {self.config.method} ask its agents (agent.ask), or nothing can be learnt"
            )
            yield Alarm(step, "still", (), 1.0, text)
            return
        if self._steps < STILL or self._discussions < FEW * len(self.learning):
            return
        for policy in self.learning:
            if not self._asked[policy]:
                text = (
                    f"{policy} learns nothing: nobody asked it in {self._discussions} discussions"
                    f" of {self._steps} steps; let its agents take more roles"
                    f" (agents.<name>.roles), or set {self._frozen(policy)}"
                )
                yield Alarm(step, "still", (policy,), 1.0, text)

    def _frozen(self, policy: str) -> str:
        """The keys that freeze all agents of a policy."""
        name = policy.partition("/")[2]
        agents = [each for each, a in self.config.agents.items() if a.policy_name(each) == name]
        return " ".join(f"agents.{agent}.frozen=true" for agent in agents)

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
