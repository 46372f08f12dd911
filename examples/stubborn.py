"""A kind of host: it always says the same, and never learns."""

from pydantic import Field

from comas.hosts.keys import HostTable
from comas.types import Fit, Learned, Reply, UserMistake


class Table(HostTable):
    """Its keys in a config, beside those of all hosts."""

    score: int = Field(1, ge=1, le=3)


class Stubborn:
    """A judge that is never content, or always."""

    learns = False
    meter = None

    def __init__(self, name, score):
        self.name = name
        self.score = score

    async def ask(self, ask):
        if ask.keep:
            raise UserMistake(f"agents at host {self.name} cannot learn: set frozen=true")
        text = {
            "solution": "1 + 2 = 3 + 3 = 6",
            "evaluation": "wrong",
            "scoring": f"<score> {self.score} </score>",
        }[ask.role]
        return Reply(
            text, finished=True, version=0, prompt_tokens=1, tokens=1, logprob=0.0, seconds=0.0
        )

    async def tell(self, ask, text):
        raise UserMistake(f"agents at host {self.name} cannot learn: set frozen=true")

    async def fits(self, policy, messages, sampling):
        return Fit(True)

    async def learn(self, rewards, lr_scale):
        return Learned({}, {})

    async def save(self, path): ...

    async def load(self, path): ...

    def clock(self):
        return {}

    def facts(self):
        return {}

    def account(self):
        return {}

    def close(self): ...


def build(plan):
    """Make the host of a plan; `plan.table` is its table in the config."""
    return Stubborn(plan.name, plan.table.score)
