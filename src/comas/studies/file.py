"""A study file as data: settings, seeds, budget, measures, and claims that are fixed before the
runs; grids are multiplied out.

Leaves out: what settings mean, and whether measures and claims name what there is
(`studies.settings`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comas.config.mistakes import explain, nearest
from comas.types import UserMistake

HELD_OUT = ("accuracy", "before", "gain", "lowest")
"""Measures on `test_questions`: accuracy after and before training, their difference, and the
accuracy of the lowest agent.
"""
OWN = (*HELD_OUT, "best", "steps", "tokens", "seconds")
"""Measures that every run has: besides, the best accuracy on the validation split, and what the run
took.
"""
OF_AGENTS = ("accuracy", "before", "gain")
"""Those that claims may name of one agent as well: `gain.a0`. Without a name each is the mean over
all agents that answer, frozen ones included.
"""
LAST = 20
"""Steps whose metrics are averaged."""
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
    games: int = Field(200, ge=2)
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
    def sides(self) -> list[tuple[str, str]]:
        """The settings that it is about, each with its measure."""
        left = (self.left, self.measure)
        if not isinstance(self.right, str):
            return [left]
        return [left, (self.right, self.right_measure or self.measure)]


class StudyFile(_Table):
    """All of it; `extends` names a file beside it whose tables it takes, with its own over them."""

    says: str = ""
    """The title of the report."""
    out: str | None = None
    """The folder; None is studies/<name of the file>."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    tokens: int | None = Field(None, ge=1)
    """Generated tokens of every run; the step in which they are reached is its last."""
    steps: Steps | None = None
    """Of every run; of both budgets the one that ends first counts."""
    config: dict[str, Any] = {}
    """Keys of every setting."""
    settings: dict[str, dict[str, Any]] = Field(min_length=1)
    measures: dict[str, Measure] = {}
    claims: list[Claim] = []

    @property
    def claimed_of_agents(self) -> list[str]:
        """The measures of one agent that claims name, once each: `gain.a0`."""
        named = dict.fromkeys(measure for claim in self.claims for _, measure in claim.sides)
        return [measure for measure in named if measure not in (*OWN, *self.measures)]


def read_file(path: Path) -> StudyFile:
    """Read and check a study file by itself; a mistake is one line that names the file and the
    key.
    """
    data = _read_tables(path)
    if (named := data.pop("extends", None)) is not None:
        if not isinstance(named, str) or Path(named).name != named:
            raise UserMistake(
                f"{path}: extends = {named!r}: the name of a file beside it is wanted"
            )
        below = _read_tables(path.parent / named)
        if "extends" in below:
            raise UserMistake(f"{path}: extends = {named!r}: that file extends another one itself")
        data = _over(below, data)
    try:
        study = StudyFile.model_validate(data)
        _check(study)
    except ValidationError as error:
        raise UserMistake(f"{path}: {_explained(error)}") from error
    except UserMistake as error:
        raise UserMistake(f"{path}: {error}") from error
    return study


def parts_of(path: Path) -> list[Path]:
    """The study file, and behind it the one that it extends."""
    extended = _read_tables(path).get("extends")
    return [path] if extended is None else [path, path.parent / extended]


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserMistake(f"study {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"study {path} is not TOML: {error}") from error


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Own keys over those of another file; tables are merged, lists are not."""
    tables = {
        key: _over(below[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {**below, **own, **tables}


def _explained(error: ValidationError) -> str:
    """The first mistake in words; what is missing is named, not the table that it is missing in."""
    first = error.errors()[0]
    if first["type"] != "missing":
        tables = {"measures": Measure, "claims": Claim}
        return explain(error, lambda key: tables.get(str(key[0]), StudyFile).model_fields)
    *table, key = first["loc"]
    claim = f"claim {int(table[1]) + 1}: " if table else ""  # counted from 1, as people do
    return f"{claim}{key} is missing"


def _check(study: StudyFile) -> None:
    for seed in study.seeds:
        if study.seeds.count(seed) > 1:
            raise UserMistake(f"seeds: {seed} stands twice: runs of one seed are the same run")
    if study.tokens is None and study.steps is None:
        raise UserMistake(
            "no budget: set tokens (generated by each run) or steps, for all settings"
        )
    for name, measure in study.measures.items():
        place = f"measures.{name}"
        if name in OWN:
            raise UserMistake(f"{place}: every run has a measure {name}: choose another name")
        if (measure.setup is None) == (measure.metric is None):
            raise UserMistake(f"{place}: set either setup (an evaluation) or metric (of the steps)")
        of_setup = measure.setup is not None
        for key in ("first", "last") if of_setup else ("task", "data", "games"):
            if key in measure.model_fields_set:
                other = "metric" if of_setup else "setup"
                raise UserMistake(f"{place}: {key} goes with {other}, which is not set")
        if measure.first is not None and measure.last is not None:
            raise UserMistake(f"{place}: set first or last, not both")


def check_named(what: str, name: str, known: Iterable[str]) -> None:
    """An error with the nearest name where there is none of this name."""
    names = list(known)
    if name not in names:
        raise UserMistake(f"{what}: there is no {name!r}: {nearest(name, names)}")


# --- settings: their keys over those of `[config]`, and grids

LONGEST = 255
"""Bytes of a file's name."""
Keys = dict[str, Any]
"""Dotted keys of a config with their values; a table without keys is a value."""
OURS = {
    "seed": "seeds",
    "out": "out, the study's own",
    "tokens": "tokens, the budget of all settings",
    "steps": "steps, the budget of all settings",
}
"""Keys of a run that a study sets -> what sets them."""


class Described(NamedTuple):
    """A setting as the file has it."""

    name: str
    keys: Keys
    """With those of `[config]`."""
    trained: bool


def described(study: StudyFile) -> list[Described]:
    """All settings in the order of the file, grids multiplied out."""
    common = flat(study.config)
    _check_ours("config", common)
    found = [
        setting
        for name, table in study.settings.items()
        for setting in _settings_of(name, dict(table), common)
    ]
    names: dict[str, str] = {}
    for setting in found:
        folder = slug(setting.name)
        if folder in names:
            raise UserMistake(
                f"settings: {names[folder]!r} and {setting.name!r} would have one folder,"
                f" {folder}: rename one"
            )
        names[folder] = setting.name
    return found


def _settings_of(name: str, table: Keys, common: Keys) -> Iterator[Described]:
    place = f"settings.{name}"
    trained = table.pop("train", True)
    if not isinstance(trained, bool):
        raise UserMistake(f"{place}: train = {trained!r}: true or false")
    is_grid = "grid" in table
    grid = table.pop("grid", None)
    own = merged(common, flat(table))
    _check_ours(place, flat(table))
    if not is_grid:
        yield Described(name, own, trained)
        return
    axes = flat(grid) if isinstance(grid, Mapping) else {}
    if not axes:
        raise UserMistake(f"{place}.grid is empty: give it keys with lists of values")
    _check_ours(f"{place}.grid", axes)
    for key, values in axes.items():
        if not isinstance(values, list):
            raise UserMistake(f"{place}.grid: {key} = {values!r}: a list of values is wanted")
        if not values:
            raise UserMistake(f"{place}.grid: {key} has no values, so that the grid is empty")
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        spelt = {
            key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for key, value in point.items()
        }
        named = " ".join([name, *(f"{key}={text}" for key, text in spelt.items())])
        yield Described(named, merged(own, flat(point)), trained)


def _check_ours(place: str, keys: Keys) -> None:
    for key in keys:
        if key in OURS:
            raise UserMistake(f"{place}: {key} is set for all settings alike, by {OURS[key]}")


def flat(table: Mapping[str, Any], above: str = "") -> Keys:
    """Tables within tables as dotted keys."""
    found: Keys = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def nested(keys: Keys) -> dict[str, Any]:
    """Dotted keys as tables within tables."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        table = found
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserMistake(f"{key}: {part} is {table!r}, not a table")
        table[last] = value
    return found


def merged(common: Keys, own: Keys) -> Keys:
    """Own keys over common ones: a value takes the place of a table, and a table that of a
    value.
    """

    def is_replaced(key: str) -> bool:
        return any(f"{key}.".startswith(f"{o}.") or o.startswith(f"{key}.") for o in own)

    return {**{key: value for key, value in common.items() if not is_replaced(key)}, **own}


def slug(name: str) -> str:
    """The name of a setting's folder: without what has a meaning on the command line, and no longer
    than names may be.
    """
    plain = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "setting"
    if len(plain.encode()) <= LONGEST:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain.encode()[: LONGEST - 9].decode(errors='ignore')}-{digest}"
