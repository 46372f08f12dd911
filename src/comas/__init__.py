"""comas: language models that teach each other.

`train` a team, `load` a trained one, make an untrained one with `team_of`; in scripts and in notebooks.
"""

from comas.team import Team, load, team_of
from comas.train import Result, Watch, train
from comas.types import Method, Question, Task, UserMistake

__all__ = ["Method", "Question", "Result", "Task", "Team", "UserMistake", "Watch", "load", "team_of", "train"]
__version__ = "0.1.0"
