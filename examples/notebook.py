"""comas from Python, as in a notebook (each `# %%` is a cell): train, look at the rewards, ask the
team.
"""

# %% train: keys as on the command line, `__` for the dot
import json

import comas

result = comas.train(steps=10, questions=32, test_questions=64, eval_every=0)
print(
    f"{result.accuracy['before']} -> {result.accuracy['after']} after {result.tokens} tokens:"
    f" {result.run}"
)

# %% rewards per role and step, from the run folder
for line in (result.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
    step = json.loads(line)
    print(step["step"], {role: round(reward, 2) for role, reward in step["rewards"].items()})

# %% the trained team discusses a question that it has not seen; the same seed gives the same
# discussion
team = comas.load(result.run)
(question,) = team.task.load("test", limit=1)
episode = team.discuss(question, seed=0)
team.method.settle([episode], team.task)
for turn in episode.turns:
    print(f"{turn.agent} {turn.role}: {turn.text!r}  reward {turn.reward}")
print("answer:", episode.answer, "->", team.task.verify(question, episode.answer or ""))
team.close()
