"""Accuracy before, during and after training: every agent that can change answers by itself.

Leaves out: what the answers are worth (`evaluation.accuracy`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from comas.evaluation.accuracy import Answer, accuracy, answer_all, by_agent, by_question, copied
from comas.evaluation.setups import asking_of, by_themselves
from comas.hooks import Hook, Pulse, Stage
from comas.stats import Interval
from comas.storage.run import Run
from comas.team.build import Team, measurable, measured_for
from comas.types import Question, Turn


class Evaluator:
    """Asks the agents of one team held-out questions."""

    def __init__(self, team: Team, hook: Hook, pulse: Pulse) -> None:
        self.team = team
        self.hook = hook
        self.pulse = pulse
        answering = measurable([member for member in team.members if member.host.learns])
        changing = {member.address for member in team.members if not member.frozen}
        # frozen ones would answer as before; alone they show what learning judges judge
        self.members = [member for member in answering if member.address in changing] or answering

    async def recorded(
        self, run: Run, name: Stage, step: int, questions: Sequence[Question]
    ) -> None:
        """Measure and write it down, unless it has been done: an interrupted run that had ended
        does not do it again.
        """
        if not questions:
            return
        record = run.read_eval(name, self.hook.note)
        if record is None or record["step"] != step:
            record = await self._record(name, step, questions)
            run.write_eval(name, record)
        interval = Interval(**record["accuracy"]) if record["accuracy"] else None
        self.hook.measured(name, step, interval)

    async def _record(
        self, name: Stage, step: int, questions: Sequence[Question]
    ) -> dict[str, Any]:
        """Before training, one of the agents of equal weights is asked for all of them."""
        team = self.team
        measured_in_place = measured_for(team.plan, team.sources, self.members) if step == 0 else {}
        copies = {
            agent: instead for agent, instead in measured_in_place.items() if agent != instead
        }
        answers = await self.answers(questions, name, step, copies.keys())
        answers = copied(answers, measured_in_place) if copies else answers
        interval = accuracy(answers)
        record: dict[str, Any] = {
            "step": step,
            "accuracy": interval._asdict() if interval else None,
            "answers": answers,
        }
        return {**record, "copies": copies} if copies else record

    async def validated(
        self, questions: Sequence[Question], step: int
    ) -> tuple[dict[str, Any], list[float]]:
        """Accuracy on the validation split after so many steps, as metrics; and per question the
        share of answers that are right.
        """
        answers = await self.answers(questions, "validation", step)
        interval = accuracy(answers)
        self.hook.measured("validation", step, interval)
        figures = {
            "validation": interval._asdict() if interval else None,
            "validation_by_agent": by_agent(answers),
        }
        return figures, list(by_question(answers).values())

    async def answers(
        self, questions: Sequence[Question], stage: Stage, step: int, without: Collection[str] = ()
    ) -> list[Answer]:
        """The answer of each agent to each question."""
        config = self.team.config
        members = [member for member in self.members if member.name not in without]
        self.pulse.turn_to(stage, step, len(members) * len(questions))
        cut: list[Turn] = []

        def on_turn(turn: Turn) -> None:
            if not turn.finished:
                cut.append(turn)
            self.pulse.count_turn(turn)

        setup = by_themselves(self.team.task, self.team.method)
        context = asking_of(config).context(self.team.task, setup, members, config.seed)
        occasion = f"{stage}{step}" if stage == "validation" else stage
        answers = await answer_all(replace(context, on_turn=on_turn), questions, occasion)
        raised = [answer["raised"] for answer in answers if "raised" in answer]
        if raised:
            self.hook.note(
                f"{stage}: {len(raised)} of {len(answers)} answers do not count, since the task's"
                f" verifier failed on them; the first: {raised[0]}"
            )
        if len(cut) > len(answers) / 2:
            self.hook.note(
                f"{stage}: {len(cut)} replies of {len(answers)} answers were cut at the token"
                f" limit, and a cut answer counts as wrong: raise room.{cut[0].role}"
            )
        return answers
