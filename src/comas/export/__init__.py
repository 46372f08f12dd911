"""Writing a trained team for others.

This folder has the name of the function `comas.export`, and is called in its place where it was
imported first.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Export(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from comas.export.team import export

        return export(*arguments, **keywords)


sys.modules[__name__].__class__ = _Export
