"""Digests of what a run is made of: others under the same names are news when it goes on.

Leaves out: how they are computed (`evaluation.fingerprints`).
"""

from __future__ import annotations

from collections.abc import Mapping

from comas.evaluation import fingerprints
from comas.questions.checked import RunQuestions

LENGTH = 16
"""Digits that are kept."""


def digests_of(asked: RunQuestions, sources: Mapping[str, str]) -> dict[str, str]:
    """Of the questions of each split, and of the bases (`host/policy` -> folder or hub name)."""
    splits = {"training": asked.train, "validation": asked.validation, "held-out": asked.test}
    digests: dict[str, str] = {}
    for name, questions in splits.items():
        digest = fingerprints.of_questions(questions)
        beginning = digest[:LENGTH]
        digests[f"SHA-256 of {name} questions"] = beginning
    of_bases = fingerprints.of_weights(sources)
    digests["SHA-256 of bases"] = of_bases[:LENGTH]
    return digests
