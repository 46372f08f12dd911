"""How long a run would take: a guess from a few tokens that its real models sample and learn from,
in seconds of this machine.

What a step asks for is counted by playing its game with a host that repeats one of those replies.
Leaves out: hosts behind an API, whose time is somebody else's; that replies get longer or shorter
as a team learns; saving.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np

from comas.config.options import split_options
from comas.config.policies import PolicyPlan, Resolved
from comas.config.rehearsal import MOST, rehearse, stand_ins
from comas.config.schema import Config
from comas.config.weights import weights_at
from comas.forecast.stopwatch import PIECES, SLOW, Stopwatch
from comas.game.agent import Member
from comas.game.memory import at_start
from comas.game.play import Scene, play_all
from comas.game.prompts import words
from comas.machine import use_threads
from comas.seams import Request
from comas.setups import single
from comas.sync import run_sync
from comas.team.build import local_host, members_of
from comas.team.equal_policies import measurable, measured_for
from comas.testing import Scripted
from comas.types import HostFailure, Method, Question, Reply, Row, Task, Turn

ROWS = 32
"""Questions that are asked, and replies that are listened to for how long they are: always as many,
whatever the time.
"""
LISTENED = 256
"""Tokens after which they are cut, if their room does not end before."""
TIMED_ROWS = 64
"""Rows of the larger batch whose tokens are timed, where so many are decoded at once."""
PIECE = 16
"""Tokens per row that are timed at once."""
QUICK = 1.0
"""Seconds below which a step of learning is too short to be timed: the next one has four times as
many tokens.
"""
LEARNT = (128, 512, 2048, 8192)
"""Tokens that are learnt from: first to be ready, then until it takes long enough."""
GAMES = 4
"""Discussions that are played to count what a step asks for."""


@dataclass(frozen=True)
class Pace:
    """How fast a host is, and how long its replies are."""

    step: float
    """Seconds of one token of a batch, whatever its size, and ..."""
    row: float
    """... per row of it."""
    prompt: float
    """Seconds per prompt token."""
    learning: float
    """Seconds per token of a row that is learnt from; 0 where nobody learns."""
    reply: float
    """Tokens of a reply, on the average, if it is not cut earlier."""
    rows: int
    """Rows decoded at once."""
    text: str
    """One of the replies."""
    cut: bool = False
    """Whether the replies that were listened to were cut for want of time, so that their length is
    less certain.
    """

    def sampling(self, tokens: float, prompts: float, rows: float) -> float:
        """Seconds for so many generated tokens and prompt tokens, in batches of as many rows as
        there are.
        """
        batch = max(1.0, min(rows, self.rows))
        return tokens * (self.step / batch + self.row) + prompts * self.prompt


@dataclass
class Work:
    """Tokens that a host is asked for."""

    replies: float = 0.0
    generated: float = 0.0
    prompts: float = 0.0
    learnt: float = 0.0
    """Of the rows that its policies learn from, prompts included."""


@dataclass(frozen=True)
class Hours:
    """Seconds of a run by what they go into."""

    parts: Mapping[str, float]
    steps: int
    """Fewer than the config's where its `tokens` end the run before."""
    reply: float
    """Mean tokens of a reply that were assumed."""
    cut: tuple[str, ...] = ()
    """Hosts whose replies were not listened to as long as they should have been: they are slow."""

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(self.parts.values())

    def shares(self) -> dict[str, float]:
        """Part -> its share of all."""
        return {name: seconds / max(1e-9, self.total) for name, seconds in self.parts.items()}


def hours(resolved: Resolved) -> Hours | None:
    """A guess of a run's time; None where it has no host with weights.

    Loads its models, one host after the other.
    """
    config = resolved.config
    task = resolved.task
    use_threads(config.threads)
    options = config.task_options
    asked = task.load("train", path=config.data, limit=ROWS, seed=config.seed, **options)
    paces: dict[str, Pace] = {}
    work: dict[str, Work] = {}
    single_prompts: dict[str, float] = {}
    for name, host in config.hosts.items():
        weights = weights_at(resolved.at(name))
        if not host.on_this_machine or not weights.places:
            continue
        made = local_host(resolved, name, weights, True)
        try:
            paces[name] = pace(made, resolved, asked)
            work[name] = work_of_step(made, resolved, asked, paces[name])
            lengths = [len(prompt) for prompt in _prompts(made, task, asked)]
            single_prompts[name] = float(np.mean(lengths))
        finally:
            made.close()
    if not paces:
        return None
    return _added(resolved, paces, work, single_prompts)


def _added(
    resolved: Resolved,
    paces: Mapping[str, Pace],
    work: Mapping[str, Work],
    prompts: Mapping[str, float],
) -> Hours:
    """The parts of a run: its steps, and its measurements."""
    config, _, task, _ = resolved
    step_tokens = sum(w.generated for w in work.values())
    steps = config.steps
    if config.tokens:
        steps = min(steps, int(-(-config.tokens // max(1.0, step_tokens))))

    def measured(questions: int, agents: Mapping[str, int]) -> float:
        seconds = 0.0
        for name, count in agents.items():
            replies = questions * count
            length = min(paces[name].reply, _room(config, task, "solution"))
            seconds += paces[name].sampling(replies * length, replies * prompts[name], replies)
        return seconds

    measured_by = [member.host.name for member in _measured(resolved, paces)]
    everyone = {name: measured_by.count(name) for name in paces}
    rounds = steps // config.eval_every if config.eval_every else 0
    sampling = {n: paces[n].sampling(w.generated, w.prompts, w.replies) for n, w in work.items()}
    parts = {
        "measuring before": measured(config.test_questions or 0, _different(resolved, paces)),
        "playing": steps * sum(sampling.values()),
        "learning": steps * sum(paces[n].learning * w.learnt for n, w in work.items()),
        "validation": measured(config.eval_questions, everyone) * rounds,
        "measuring after": measured(config.test_questions or 0, everyone),
    }
    cut = tuple(name for name, found in paces.items() if found.cut)
    return Hours(parts, steps, max(p.reply for p in paces.values()), cut)


def _different(resolved: Resolved, names: Mapping[str, Any]) -> dict[str, int]:
    """Host -> agents that are measured before training: equal ones once."""
    members = _measured(resolved, names)
    sources = {
        f"{name}/{policy}": place
        for name in names
        for policy, place in weights_at(resolved.at(name)).places.items()
    }
    chosen = set(measured_for(resolved, sources, members).values())
    return {name: sum(m.host.name == name and m.name in chosen for m in members) for name in names}


def _measured(resolved: Resolved, names: Mapping[str, Any]) -> list[Member]:
    """The agents whose accuracy is measured, at the hosts of these names."""
    hosts: Any = {name: SimpleNamespace(name=name) for name in resolved.config.hosts}
    return measurable([m for m in members_of(resolved.config, hosts) if m.host.name in names])


def _room(config: Config, task: Task, role: str) -> int:
    return {**task.max_tokens, **config.room}.get(role, config.max_tokens)


def _prompts(host: Any, task: Task, asked: Sequence[Question]) -> list[np.ndarray]:
    """Token ids of what an agent is asked alone."""
    texts = [words(single.WORDING, task, "solution", question=q.prompt, history="") for q in asked]
    return [host.chat.encode([{"role": "user", "content": text}]) for text in texts]


def pace(host: Any, resolved: Resolved, asked: Sequence[Question]) -> Pace:
    """Time a few prompts, tokens of two sizes of batch, and a learning step; the host's policies
    are changed by it.

    What is counted (tokens of a reply) follows from the seed alone, unless the replies take longer
    than `PATIENCE`.
    """
    config, method, task, policies = resolved
    room = min(_room(config, task, "solution"), host.context // 2)
    watch = Stopwatch(host, _prompts(host, task, asked), config.seed)
    most = config.hosts[host.name].max_rows or ROWS
    few = max(2, len(watch.policies))
    many = max(few, min(most, TIMED_ROWS))

    # also what is made at the first call, untimed
    wanted = min(room, LISTENED)
    listened, replies, requests = watch.listen(ROWS, wanted)
    cut = listened < wanted
    filling, prompt_tokens = watch.prefill(many)
    length = min(listened, PIECE)
    short = watch.per_token(few, length)
    long = watch.per_token(many, length) if many > few else short
    row = max(0.0, (long - short) / max(1, many - few))
    ended = sum(reply.finished for reply in replies)
    generated = sum(len(reply.token_ids) for reply in replies)
    # of replies that may be cut anywhere
    mean = min(float(room), generated / ended) if ended else float(room)
    text, *_ = host.chat.decode(replies[0].token_ids, replies[0].finished, False)
    answered = list(zip(requests, replies, strict=True))
    return Pace(
        step=max(0.0, long - row * many),
        row=row,
        prompt=filling / prompt_tokens,
        learning=_learning(host, policies, method, answered),
        reply=mean,
        rows=most,
        text=text,
        cut=cut,
    )


def _learning(
    host: Any, policies: Sequence[PolicyPlan], method: Method, said: Sequence[tuple[Request, Any]]
) -> float:
    """Seconds per token of a learning step whose rows take more than one pass."""
    learners = {plan.name for plan in policies if plan.learns and plan.host == host.name}
    said = [(request, done) for request, done in said if request.policy in learners]
    learner: Any = host.learner
    if learner is None or not said:
        return 0.0
    usual = learner.recipe

    def step(rows: dict[str, list[Row]], tokens: int) -> float:
        per_pass = min(usual.tokens_per_pass, max(64, tokens // 2))
        learner.recipe = replace(usual, tokens_per_pass=per_pass, gap_limit=float("inf"))
        began = time.monotonic()
        learner.step(rows, method)
        return time.monotonic() - began

    for tokens in LEARNT:
        rows = _rows(said, method, tokens)
        learnt = sum(len(row.token_ids_T) for part in rows.values() for row in part)
        seconds = step(rows, learnt)
        if tokens == LEARNT[0] and seconds <= SLOW:
            continue  # what is made at the first step is not timed
        if seconds > QUICK or tokens == LEARNT[-1] or tokens >= 2 * usual.tokens_per_pass:
            pieces = PIECES - 1 if seconds <= SLOW else 0
            timed = [seconds, *(step(rows, learnt) for _ in range(pieces))]
            return min(timed) / learnt
    raise AssertionError("the last size ends it")


def _rows(said: Sequence[tuple[Request, Any]], method: Method, most: int) -> dict[str, list[Row]]:
    """Rows of `most` tokens in all or a little more, with rewards of both kinds; replies count
    several times if need be.
    """
    rows: dict[str, list[Row]] = {}
    count = 0
    for i, (request, done) in enumerate(cycle(said)):
        if count >= most:
            break
        ids = np.concatenate([request.prompt_ids, done.token_ids])
        start = len(request.prompt_ids)
        mask = np.arange(len(ids)) >= start
        logprobs = np.concatenate([np.zeros(start, np.float32), done.logprobs])
        row = Row(
            f"t{i}",
            role=method.paid[0] if method.paid else "solution",
            temperature=1.0,
            token_ids_T=ids,
            mask_T=mask,
            logprobs_T=np.zeros(len(ids), np.float32),
            sampled_logprobs_T=logprobs,
        )
        row.reward = float(i % 2)
        row.group = "g"
        rows.setdefault(request.policy, []).append(row)
        count += len(ids)
    return rows


def work_of_step(host: Any, resolved: Resolved, asked: Sequence[Question], found: Pace) -> Work:
    """What one step asks a host for: a few of its discussions with a host that repeats a reply, and
    as many times that; as many replies as in a rehearsal at least.
    """

    config, method, task, _ = resolved

    said = itertools.count(1)

    def say(policy: str, role: str, prompt: str, seed: int) -> Reply:
        number = next(said)
        if number > GAMES * MOST:
            raise HostFailure(f"a discussion cannot be timed: it takes more than {MOST} replies")
        # none like another, as in a rehearsal
        return Reply(f"{found.text} {number}", True, 0, 0, 1, -1.0, 0.0)

    hosts: Any = {name: Scripted(say, name) for name in config.hosts}
    options = split_options(config.options, method.play)
    members = members_of(config, hosts)
    rehearsal = rehearse(resolved)
    longest = rehearsal.stand_in if rehearsal is not None else 0
    games = list(asked[:GAMES])
    turns: list[Turn] = []
    for question in games:
        # one for each discussion: its verdicts change
        played = stand_ins(task)[longest]
        scene = Scene(method, played, members, config.seed, options, max_tokens=config.room)
        if method.start is not None:
            scene = at_start(scene, split_options(config.options, method.start))
        (episode,) = run_sync(play_all(scene, [question], "timing"))
        if episode.error is not None:
            raise HostFailure(episode.error)
        turns += episode.turns
    discussions = (config.questions or 0) * (config.samples or 1)
    times = discussions / len(games)
    if rehearsal is not None and turns:
        times *= max(1.0, rehearsal.replies * len(games) / len(turns))
    work = Work()
    for turn in turns:
        if not turn.policy.startswith(f"{host.name}/"):
            continue
        reply = min(found.reply, _room(config, task, turn.role))
        prompt = len(host.chat.encode([{"role": "user", "content": turn.prompt}]))
        work.replies += times
        work.generated += times * reply
        work.prompts += times * prompt
        paid = turn.role in method.paid or not method.paid
        if paid and not config.agents[turn.agent].frozen:
            work.learnt += times * (prompt + reply)
    return work
