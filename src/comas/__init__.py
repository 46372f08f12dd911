"""comas: language models that teach each other.

`train` a team and `resume` it, `evaluate` and `compare` runs and models, `load` a trained team,
`export` it for others, make an untrained one with `team_of`, run a whole `study`; in scripts and in
notebooks.

Names are imported when they are first used: the command can be stopped quietly while its libraries
load, and `import comas` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comas.evaluation.preflight import preflight
    from comas.evaluation.systems import load, team_of
    from comas.export.team import export
    from comas.hooks import Hook
    from comas.program import VERSION as __version__
    from comas.studies.verb import study
    from comas.team.build import Team
    from comas.training.result import Result
    from comas.types import Method, Question, Setup, Task, UserMistake
    from comas.verbs import Comparison, Evaluation, compare, evaluate, resume, train

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
    "preflight",
    "resume",
    "study",
    "team_of",
    "train",
]

_MODULES = {
    "comas.export.team": ("export",),
    "comas.hooks": ("Hook",),
    "comas.evaluation.systems": ("load", "team_of"),
    "comas.evaluation.preflight": ("preflight",),
    "comas.studies.verb": ("study",),
    "comas.team.build": ("Team",),
    "comas.training.result": ("Result",),
    "comas.types": ("Method", "Question", "Setup", "Task", "UserMistake"),
    "comas.verbs": ("Comparison", "Evaluation", "compare", "evaluate", "resume", "train"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("comas.program").VERSION
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'comas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
