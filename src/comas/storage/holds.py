"""Which checkpoints of a run others still need: a note in the run's folder for each of them.

Leaves out: who needs them (`storage.run.hold`), removing the others (`storage.run`).
"""

from __future__ import annotations

import hashlib
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holds:
    """The notes, each with the folder that needs the checkpoint (its holder)."""

    folder: Path

    def add(self, step: int, holder: Path) -> bool:
        """Have the checkpoint of a step kept while the run trains on, as long as the folder
        `holder` exists and does not `remove` its note; return whether that could be noted (the
        run's folder may be somebody else's).
        """
        note = self._note(step, holder)
        try:
            note.parent.mkdir(exist_ok=True)
            note.write_text(str(holder.resolve()), encoding="utf-8")
        except OSError:
            return False
        return True

    def remove(self, step: int, holder: Path) -> None:
        """Let the next commit remove the checkpoint."""
        with suppress(OSError):  # what remains costs disk space, nothing else
            self._note(step, holder).unlink(missing_ok=True)

    def steps(self) -> set[int]:
        """Find the steps whose checkpoints are still needed; one is whose note or holder cannot be
        looked at, since these may be another user's.
        """
        steps: set[int] = set()
        for note in self.folder.glob("step-*.*"):
            name = re.fullmatch(r"step-(\d+)\.[0-9a-f]{12}", note.name)
            try:
                holder = Path(note.read_text(encoding="utf-8", errors="replace"))
                is_held = holder.is_absolute() and stat.S_ISDIR(holder.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError, ValueError):  # gone by now, or no path
                continue
            except OSError:
                is_held = True
            if name and is_held:
                steps.add(int(name[1]))
        return steps

    def _note(self, step: int, holder: Path) -> Path:
        place = str(holder.resolve()).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(place).hexdigest()[:12]
        return self.folder / f"step-{step}.{digest}"
