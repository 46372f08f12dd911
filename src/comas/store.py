"""A run is a folder: write, commit, read.

`config.toml`, `metrics.jsonl` (an object per step), `episodes/<step>.jsonl` (an object per discussion),
`checkpoints/step-N/`, `eval/*.json`, and `commit.json`: the marker, moved last. What lies beyond the marker is dropped
and played again. Leaves out: what the numbers mean.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from comas.types import Episode, UserMistake

KEEP = 2
"""Checkpoints that are kept besides the best."""


class Run:
    """The folder of one run, open for writing or reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, config: Mapping[str, Any], out: str | None) -> Run:
        """A fresh folder with its config; without `out`, `runs/<time>-<method>`."""
        if out is None:
            stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config['method']).stem}"
            path = next(p for i in range(1000) if not (p := stem.with_name(stem.name + (f"-{i}" if i else ""))).exists())
        else:
            path = Path(out)
            if (path / "config.toml").exists():
                raise UserMistake(f"out={out}: there is a run already; continue it with `comas resume {out}` or choose another")
        try:
            (path / "episodes").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
            (path / "eval").mkdir(exist_ok=True)
        except OSError as error:
            raise UserMistake(f"out={path}: {error.strerror}") from error
        run = cls(path)
        run._replace("config.toml", tomli_w.dumps(without_none(config)))
        (path / "metrics.jsonl").touch()
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run."""
        if not (Path(path) / "config.toml").is_file():
            raise UserMistake(f"{path} is not a run: it has no config.toml")
        return cls(Path(path))

    def config(self) -> dict[str, Any]:
        """The resolved config, as it was saved."""
        return tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))

    def write_step(self, step: int, metrics: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """Append a step's metrics, and its discussions as a file of their own."""
        lines = "".join(_line(episode_record(e)) for e in episodes)
        (self.path / "episodes" / f"{step:06d}.jsonl").write_text(lines, encoding="utf-8")
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as log:
            log.write(_line({"step": step, **metrics}))

    def write_eval(self, name: str, record: Mapping[str, Any]) -> None:
        """One measurement with its answers."""
        self._replace(f"eval/{name}.json", json.dumps(record, ensure_ascii=False))

    def read_eval(self, name: str) -> dict[str, Any] | None:
        """That measurement, or None."""
        path = self.path / "eval" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def checkpoint(self, step: int) -> Path:
        """An empty folder for the checkpoint after `step` steps."""
        path = self.path / "checkpoints" / f"step-{step}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, step: int, best: int | None = None) -> None:
        """Move the marker: everything up to `step` steps is on disk. Older checkpoints but the best are deleted."""
        for file in sorted((self.path / "checkpoints" / f"step-{step}").rglob("*")):
            if file.is_file():
                _sync(file)
        _sync(self.path / "metrics.jsonl")
        size = (self.path / "metrics.jsonl").stat().st_size
        self._replace("commit.json", json.dumps({"step": step, "metrics_bytes": size, "best": best}))
        kept = {f"step-{s}" for s in sorted(self.steps_kept())[-KEEP:]} | {f"step-{best}"}
        for folder in (self.path / "checkpoints").iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder)

    def steps_kept(self) -> list[int]:
        """Steps that have a checkpoint."""
        return [int(p.name.removeprefix("step-")) for p in (self.path / "checkpoints").glob("step-*")]

    def marker(self) -> dict[str, Any]:
        """The last commit: `step`, `metrics_bytes`, `best`."""
        path = self.path / "commit.json"
        if not path.exists():
            raise UserMistake(f"{self.path} was stopped before its first checkpoint: start it again with `comas train`")
        return json.loads(path.read_text(encoding="utf-8"))

    def rewind(self) -> int:
        """Drop what lies beyond the marker; returns the step to go on from."""
        marker = self.marker()
        with (self.path / "metrics.jsonl").open("r+b") as log:
            log.truncate(marker["metrics_bytes"])
        for file in (self.path / "episodes").glob("*.jsonl"):
            if int(file.stem) >= marker["step"]:
                file.unlink()
        for step in self.steps_kept():
            if step > marker["step"]:
                shutil.rmtree(self.path / "checkpoints" / f"step-{step}")
        return marker["step"]

    def metrics(self) -> Iterator[dict[str, Any]]:
        """An object per step."""
        with (self.path / "metrics.jsonl").open(encoding="utf-8") as log:
            yield from map(json.loads, log)

    def episodes(self, step: int) -> Iterator[dict[str, Any]]:
        """The recorded discussions of a step."""
        with (self.path / "episodes" / f"{step:06d}.jsonl").open(encoding="utf-8") as log:
            yield from map(json.loads, log)

    def _replace(self, name: str, text: str) -> None:
        """Write a file so that a reader sees the old or the new one, never a half."""
        path = self.path / name
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text, encoding="utf-8")
        _sync(fresh)
        fresh.replace(path)
        _sync(path.parent)


def episode_record(episode: Episode) -> dict[str, Any]:
    """An episode as JSON: `id question turns answer error`."""
    record = dataclasses.asdict(dataclasses.replace(episode, question=None))  # type: ignore[arg-type]
    record["question"] = {f.name: getattr(episode.question, f.name) for f in dataclasses.fields(episode.question)}
    return record


def _line(record: Any) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes only what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def without_none(value: Any) -> Any:
    """TOML has no null: a key that is None is left out."""
    if isinstance(value, Mapping):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list | tuple) else value
