"""What a study had declared when its first cells ran, and what was added since.

A copy of the file lies in its folder, and `declared.json` is what it says, in plain values. Claims
are fixed before the runs: what is changed or removed afterwards is an error; settings, seeds and
measures that are added are noted as such. Leaves out: the report of it (`studies.report`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comas.storage import files
from comas.studies.file import StudyFile, extended_file
from comas.studies.named_files import declared_measure
from comas.studies.settings import Setting
from comas.types import UserMistake

DECLARED = "declared.json"


def declaration(study: StudyFile, settings: Sequence[Setting]) -> dict[str, Any]:
    """What the results depend on, and what is claimed, as plain values."""
    measures = {name: declared_measure(table) for name, table in study.measures.items()}
    return {
        "budget": {"tokens": study.tokens, "steps": study.steps},
        "settings": {setting.name: setting.essence for setting in settings},
        "seeds": list(study.seeds),
        "measures": measures,
        "claims": [claim.model_dump() for claim in study.claims],
    }


class Ledger:
    """The declaration in a study's folder."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._file = file
        self._copy = folder / file.name
        self._declared = folder / DECLARED
        self.additions: list[str] = []
        """In words, in the order in which they were made."""
        self.digest = ""
        """SHA-256 of the study file, and of the one that it extends behind it."""

    def declare(self, declared: Mapping[str, Any], cells_run: int) -> None:
        """Write down what is declared; an error where cells have run under something else."""
        plain = json.loads(json.dumps(declared))
        known = files.read_object(self._declared)
        if known is not None and cells_run:
            self.additions = [*known["additions"], *self._added(known, plain, cells_run)]
        self.digest = self._digest()
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        record = {**plain, "additions": self.additions, "sha256": self.digest}
        if record != known:
            self._copy_files()
            files.replace(self._declared, files.as_json(record, indent=1))

    def _digest(self) -> str:
        extended = extended_file(self._file)
        parts = [self._file, *([extended] if extended is not None else [])]
        return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()

    def _copy_files(self) -> None:
        files.replace(self._copy, self._file.read_text(encoding="utf-8-sig"))
        if (extended := extended_file(self._file)) is not None:
            text = extended.read_text(encoding="utf-8-sig")
            files.replace(self._copy.with_name(extended.name), text)

    def _added(self, known: Mapping[str, Any], plain: Mapping[str, Any], cells: int) -> list[str]:
        """What is new; an error for anything that is no longer what it was."""
        if known["budget"] != plain["budget"]:
            raise self._changed("the budget is another", cells)
        if known["claims"] != plain["claims"]:
            raise self._changed("the claims are others", cells)
        after = f"added after {_counted(cells)} had run"
        added: list[str] = []
        for key, what in (("settings", "setting"), ("measures", "measure")):
            for name, facts in known[key].items():
                if name not in plain[key]:
                    raise self._changed(f"{what} {name} is gone", cells)
                if plain[key][name] != facts:
                    keys = _differing(facts, plain[key][name])
                    raise self._changed(f"{what} {name} is another ({keys})", cells)
            added += [f"{what} {name}: {after}" for name in plain[key] if name not in known[key]]
        if gone := [seed for seed in known["seeds"] if seed not in plain["seeds"]]:
            raise self._changed(f"seed {gone[0]} is gone", cells)
        new_seeds = [seed for seed in plain["seeds"] if seed not in known["seeds"]]
        return added + [f"seed {seed}: {after}" for seed in new_seeds]

    def _changed(self, what: str, cells: int) -> UserMistake:
        have_run = "1 cell has run" if cells == 1 else f"{cells} cells have run"
        return UserMistake(
            f"{self._file}: {what}, and {have_run}: what is claimed is fixed before the runs; bring"
            f" back what {self._copy} says, or set another out"
        )


def _counted(cells: int) -> str:
    return "1 cell" if cells == 1 else f"{cells} cells"


def _differing(known: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """The first key whose value differs."""
    keys = [key for key in {**known, **plain} if known.get(key) != plain.get(key)]
    return ", ".join(keys[:3])
