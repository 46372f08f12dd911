"""A study file as data: settings, seeds, budget, measures, and claims that are fixed before the
runs.

Leaves out: what settings mean (`studies.settings`), whether claims name what there is
(`studies.checks`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comas.config.mistakes import explain, nearest
from comas.types import UserMistake

OWN = ("accuracy", "before", "gain", "lowest", "best", "steps", "tokens", "seconds")
"""Measures that every run has: held-out accuracy after and before training, their difference, that
of the lowest agent, the best on the validation split, and what the run took.
"""
GAMES = 200
"""Questions of an evaluation."""
LAST = 20
"""Steps whose metrics are averaged."""
Seed = Annotated[int, Field(ge=0)]
Steps = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Measure(_Table):
    """`[measures.<name>]`: an evaluation of the trained team (`setup`), or the mean of a figure
    over steps (`metric`).
    """

    says: str = ""
    """What it is, for the report."""
    setup: str | None = None
    """As `comas eval --setups` takes it: `vote:votes=8`."""
    task: str | None = None
    """Of the evaluation; None is that of the run."""
    data: str | None = None
    games: int = Field(GAMES, ge=2)
    """Questions of the evaluation."""
    metric: str | None = None
    """Dotted path into a line of metrics.jsonl: `pay.precision`."""
    first: Steps | None = None
    last: Steps | None = None
    """Steps whose figures are averaged, from the start or from the end."""
    settings: list[str] | None = None
    """Those that it is taken of; None is all."""


class Claim(_Table):
    """`[[claims]]`: left minus right, paired by seed, is more than `margin` above (below) 0."""

    says: str = Field(min_length=1)
    left: str
    """A setting."""
    right: str | float
    """A setting, or a number."""
    measure: str = "accuracy"
    right_measure: str | None = None
    """Of the right side, where it is another one: `before`, say."""
    direction: Literal["above", "below"] = "above"
    margin: float = 0.0
    """Negative where a difference of that size the other way is allowed."""

    @property
    def measures(self) -> tuple[str, str]:
        """Of the left and of the right side."""
        return self.measure, self.right_measure or self.measure

    @property
    def sides(self) -> list[tuple[str, str]]:
        """The settings that it is about, each with its measure."""
        left_measure, right_measure = self.measures
        left = (self.left, left_measure)
        return [left, (self.right, right_measure)] if isinstance(self.right, str) else [left]


class StudyFile(_Table):
    """All of it; `extends` names a file beside it whose tables it takes, with its own over them."""

    says: str = ""
    """The title of the report."""
    out: str | None = None
    """The folder; None is studies/<name of the file>."""
    seeds: list[Seed] = Field(min_length=1)
    tokens: int | None = Field(None, ge=1)
    """Generated tokens of every run; the step in which they are reached is its last."""
    steps: Steps | None = None
    """Of every run; of both budgets the one that ends first counts."""
    config: dict[str, Any] = {}
    """Keys of every setting."""
    settings: dict[str, dict[str, Any]] = Field(min_length=1)
    measures: dict[str, Measure] = {}
    claims: list[Claim] = []


TABLES: dict[str, type[BaseModel]] = {"measures": Measure, "claims": Claim}
"""Those that hold tables of one kind."""


def read_file(path: Path) -> StudyFile:
    """Read and check a study file by itself; a mistake is one line that names the file and the
    key.
    """
    data = _read_tables(path)
    if (named := data.pop("extends", None)) is not None:
        data = _extended(path, named, data)
    try:
        study = StudyFile.model_validate(data)
    except ValidationError as error:
        raise UserMistake(f"{path}: {_explained(error)}") from error
    try:
        _check_seeds(study)
        _check_budget(study)
        for name, measure in study.measures.items():
            _check_measure(name, measure)
    except UserMistake as error:
        raise UserMistake(f"{path}: {error}") from error
    return study


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserMistake(f"study {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"study {path} is not TOML: {error}") from error


def extended_file(path: Path) -> Path | None:
    """The file that a study file extends."""
    named = _read_tables(path).get("extends")
    return path.parent / named if isinstance(named, str) else None


def _extended(path: Path, named: Any, data: dict[str, Any]) -> dict[str, Any]:
    """The tables of the file that this one extends, with its own over them."""
    if not isinstance(named, str) or Path(named).name != named:
        raise UserMistake(f"{path}: extends = {named!r}: the name of a file beside it is wanted")
    below = _read_tables(path.parent / named)
    if "extends" in below:
        raise UserMistake(f"{path}: extends = {named!r}: that file extends another one itself")
    return _over(below, data)


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Own keys over those of another file; tables are merged, lists are not."""
    merged = dict(below)
    for key, value in own.items():
        known = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            tables = cast("tuple[dict[str, Any], dict[str, Any]]", (known, value))
            merged[key] = _over(*tables)
        else:
            merged[key] = value
    return merged


def _explained(error: ValidationError) -> str:
    """The first mistake in words; what is missing is named, not the table that it is missing in."""
    first = error.errors()[0]
    if first["type"] == "missing":
        *table, key = map(str, first["loc"])
        return f"{_place(table)}{key} is missing"
    return explain(error, _keys_beside)


def _place(table: Sequence[str]) -> str:
    """Name a table; claims are counted from 1, as people do."""
    if not table:
        return ""
    if table[0] == "claims":
        return f"claim {int(table[1]) + 1}: "
    return f"{'.'.join(table)}: "


def _keys_beside(path: Sequence[str | int]) -> Iterable[str]:
    """The known keys of the table that a key stands in."""
    return TABLES.get(str(path[0]), StudyFile).model_fields


def _check_seeds(study: StudyFile) -> None:
    for seed in study.seeds:
        if study.seeds.count(seed) > 1:
            raise UserMistake(f"seeds: {seed} stands twice: runs of one seed are the same run")


def _check_budget(study: StudyFile) -> None:
    if study.tokens is None and study.steps is None:
        raise UserMistake(
            "no budget: set tokens (generated by each run) or steps, for all settings"
        )


def _check_measure(name: str, measure: Measure) -> None:
    place = f"measures.{name}"
    if name in OWN:
        raise UserMistake(f"{place}: every run has a measure {name}: choose another name")
    if (measure.setup is None) == (measure.metric is None):
        raise UserMistake(f"{place}: set either setup (an evaluation) or metric (of the steps)")
    given = measure.model_fields_set
    of_other = ("task", "data", "games") if measure.setup is None else ("first", "last")
    for key in of_other:
        if key in given:
            other = "setup" if measure.setup is None else "metric"
            raise UserMistake(f"{place}: {key} goes with {other}, which is not set")
    if measure.first is not None and measure.last is not None:
        raise UserMistake(f"{place}: set first or last, not both")


def check_named(what: str, name: str, known: Iterable[str]) -> None:
    """An error with the nearest name where there is none of this name."""
    names = list(known)
    if name not in names:
        raise UserMistake(f"{what}: there is no {name!r}: {nearest(name, names)}")
