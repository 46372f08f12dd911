"""comas: language models that teach each other.

`train` a team and `resume` it, `evaluate` and `compare` runs and models, `load` a trained team,
`export` it for others, make an untrained one with `team_of`; in scripts and in notebooks.
"""

import sys as _sys
from pathlib import Path as _Path

_command = _Path(_sys.argv[0]).stem == "comas" or _sys.orig_argv[1:3] == ["-m", "comas"]
"""Whether this process is the command, for which what is imported here takes most of a second."""
try:
    from comas.export.team import export
    from comas.hooks import Hook
    from comas.program import VERSION as __version__
    from comas.team.build import Team, load, team_of
    from comas.training.result import Result
    from comas.types import Method, Question, Setup, Task, UserMistake
    from comas.verbs import Comparison, Evaluation, compare, evaluate, resume, train

    if _command:
        import comas.cli.main  # noqa: F401
except KeyboardInterrupt:
    if not _command:
        raise
    print("stopped", file=_sys.stderr)
    raise SystemExit(130) from None

__all__ = [
    "Comparison",
    "Evaluation",
    "Hook",
    "Method",
    "Question",
    "Result",
    "Setup",
    "Task",
    "Team",
    "UserMistake",
    "__version__",
    "compare",
    "evaluate",
    "export",
    "load",
    "resume",
    "team_of",
    "train",
]
