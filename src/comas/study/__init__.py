"""Studies: settings x seeds from a file, claims that are fixed before the runs, a report.

This folder has the name of the function `comas.study`, and is called in its place where it was
imported first.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Study(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from comas.study.verb import study

        return study(*arguments, **keywords)


sys.modules[__name__].__class__ = _Study
