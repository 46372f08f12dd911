"""Demonstrations that teach judges their format and nothing else, made by a model from its own
samples.  python examples/judges.py smollm2 sums judges.jsonl

A pretrained model that was never told how to end with `<score>3</score>` cannot play CoMAS: nobody
can read its scores. Here it answers each question `SAMPLES` times. Of two of its answers one is the
work, the other what the judge finds itself; the verdict is whether they agree. So the replies have
the format of a judge that works out the answer, and are as often wrong as the model is: no label is
read. As many verdicts say right as wrong, or a judge would learn to say wrong always.
"""

import itertools
import json
import random
import sys
from pathlib import Path

import comas
from comas.config.plugins import load_plugin
from comas.game.play import play_all
from comas.game.prompts import defuse, words
from comas.methods.comas import WORDING
from comas.sync import run_sync

SAMPLES = 6
QUESTIONS = 64
ROWS = 384


def judgements(task, question, work, found):
    """What a critic and a scorer say of `work`, given what another sample `found`."""
    proposed = task.extract(question, work.text)
    agrees = task.same(proposed, found)
    verdict = "right" if agrees else "wrong"
    facts = {"question": defuse(question.prompt)}
    facts["work"] = defuse(task.shown(question, work.text))
    criticism = f"I get {found}. The proposed answer {proposed} is {verdict}."
    score = f"<score>{3 if agrees else 1}</score>"
    scored = words(WORDING, task, "scoring", evaluation=defuse(criticism), **facts)
    rows = [
        {"role": "evaluation", "prompt": words(WORDING, task, "evaluation", **facts)},
        {"role": "scoring", "prompt": scored},
    ]
    return agrees, [
        row | {"reply": reply} for row, reply in zip(rows, (criticism, score), strict=True)
    ]


def demonstrations(team, questions, rng):
    """Rows of both verdicts, as many of one as of the other."""
    task = team.task
    pairs = {True: [], False: []}
    for episode in run_sync(play_all(team.context(keep=False), questions, "judges")):
        read = [(turn, task.extract(episode.question, turn.text)) for turn in episode.turns]
        said = [(turn, answer) for turn, answer in read if turn.finished and answer is not None]
        for (work, _), (_, found) in itertools.permutations(said, 2):
            agrees, rows = judgements(task, episode.question, work, found)
            pairs[agrees].append(rows)
    count = min(ROWS // 4, *map(len, pairs.values()))
    chosen = [rows for kind in pairs.values() for rows in rng.sample(kind, count)]
    rng.shuffle(chosen)
    return [row for rows in chosen for row in rows]


def main(base, task, file, *pairs):
    questions = load_plugin("task", task).load("train", limit=QUESTIONS)
    keys = dict(pair.split("=", 1) for pair in pairs)
    team = comas.team_of(
        **{"task": task, "method": "ttrl", "options.votes": SAMPLES, "agents": 1},
        **{"hosts.home.base": base, "lr": 1e-5, **keys},
    )
    rows = demonstrations(team, questions, random.Random(0))
    team.close()
    lines = [json.dumps(row) + "\n" for row in rows]
    Path(file).write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} demonstrations of evaluation and scoring in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
