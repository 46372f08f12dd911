"""Whether a policy knows the words of its task only, as the shipped models do.

Leaves out: which words (`seed.course`).
"""

from __future__ import annotations

import json
from pathlib import Path

from comas.models.sources import Source

FEW = 1000
"""Entries of a vocabulary below which it is one of whole words, as the shipped models have."""


def knows_few_words(source: Source) -> bool:
    """Whether a policy from there knows the words of its task only: shipped models, what descends
    from them, and a folder with a vocabulary of that size (such as an exported policy).
    """
    if source.kind == "folder":
        try:
            described = json.loads((Path(source.where) / "config.json").read_text("utf-8"))
            return int(described["vocab_size"]) < FEW
        except (OSError, ValueError, KeyError, TypeError):
            return False
    return source.kind != "api" and source.seeded
