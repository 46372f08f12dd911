"""Go back to the last good checkpoint of a run: what lies beyond it is dropped and played again.

A damaged checkpoint is passed over for the one before it. Leaves out: writing (`storage.run`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from comas.storage import files
from comas.storage.alarms import drop_alarms
from comas.storage.run import Run
from comas.types import UserMistake


def rewind(run: Run) -> tuple[int, list[str]]:
    """Drop what lies beyond the last good checkpoint; return the step to go on from, and what had
    to be passed over.
    """
    notes: list[str] = []
    try:
        marker = run.marker()
    except UserMistake as error:  # the checkpoints say as much
        notes.append(str(error))
        marker = {"step": max(run.steps_kept(), default=-1)}
    if marker is None:
        run.drop(after=0, metrics_bytes=0, everything=True)
        drop_alarms(run.path, after=0)
        return 0, []
    good = _newest_whole(run, marker["step"], notes)
    if marker["step"] == good["step"]:
        # an earlier rewind may have found it lost
        good["best"] = marker.get("best", good["best"])
    best = good["best"]
    if best is not None and (loss := _loss(run, best)) is not None:
        good["best"] = None
        notes.append(f"the best checkpoint, of step {best}, is {loss}, and none is the best now")
    if good != marker:
        files.replace(run.path / "commit.json", json.dumps(good))
    start = good["step"]
    run.drop(after=start, metrics_bytes=good["metrics_bytes"])
    drop_alarms(run.path, after=start)
    return start, [f"{note}: going on from step {start}" for note in notes]


def _newest_whole(run: Run, last: int, notes: list[str]) -> dict[str, Any]:
    """Return the marker of the newest whole checkpoint up to step `last`; note the others."""
    for step in sorted(run.steps_kept(), reverse=True):
        if step > last:
            continue
        folder = run.checkpoint_of(step)
        manifest = files.facts(folder) or {}
        damage = files.damage(folder) or _log_damage(run, manifest)
        if damage is None:
            return {key: value for key, value in manifest.items() if key != "files"}
        notes.append(f"checkpoint of step {step} is damaged ({damage})")
    raise UserMistake(
        f"{run.path} has no whole checkpoint: {'; '.join(notes) or 'none is left'}; start a new run"
    )


def _log_damage(run: Run, marker: Mapping[str, Any]) -> str | None:
    """Say what is wrong with the part of the log that a checkpoint stands on."""
    size = marker["metrics_bytes"]
    with (run.path / "metrics.jsonl").open("rb") as log:
        head = log.read(size)
    steps = head.count(b"\n")
    if len(head) < size or steps != marker["step"]:
        return f"metrics.jsonl has {steps} steps in {len(head)} of {size} bytes"
    return None


def _loss(run: Run, step: int) -> str | None:
    """Say what is wrong with a checkpoint's policies; None where nothing is."""
    folder = run.checkpoint_of(step)
    if not folder.is_dir():
        return "gone"
    damage = files.damage(folder, without="optimizer.safetensors")
    return f"damaged: {damage}" if damage else None
