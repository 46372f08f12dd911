"""A study file: settings, seeds, budget, measures, and claims that are fixed before the runs. Grids
are multiplied out, settings resolved as `comas train` would, and it is checked before anything runs
whether measures and claims name what there is.

Files that settings and measures name are found beside the study file, and what is in them is part
of what is declared. Leaves out: what is left to run (`studies.cells`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from comas.config.checks import check_training
from comas.config.mistakes import explain, nearest
from comas.config.plan import Plan, plan
from comas.config.plugins import load_plugin, names_file, with_tools
from comas.config.schema import anchor, beside, put, read
from comas.evaluation.setups import check_playable, check_roles_taken, chosen_setup
from comas.evaluation.setups import parts_of as setup_parts
from comas.storage import files
from comas.storage.records import flat
from comas.team.build import team_without_models
from comas.training.metrics import METRICS
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
"""Measures that claims may name of one agent as well: `gain.a0`. Without a name each is the mean
over the agents that answer and learn.
"""
LAST = 20
"""Steps whose metrics are averaged."""
Steps = Annotated[int, Field(ge=1)]


class _StudyTable(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Measure(_StudyTable):
    """`[measures.<name>]`: an evaluation of the trained team (`setup`), or the mean of a figure
    over steps (`metric`).
    """

    says: str = ""
    """Description of the measure, for the report."""
    setup: str | None = None
    """As `comas eval --setups` takes it: `vote:votes=8`."""
    task: str | None = None
    """Task of the evaluation; None is that of the run."""
    data: str | None = None
    games: int = Field(200, ge=2)
    """Questions of the evaluation."""
    metric: str | None = None
    """Dotted path into a line of metrics.jsonl: `pay.precision`."""
    first: Steps | None = None
    last: Steps | None = None
    """Steps whose figures are averaged, from the start or from the end."""
    settings: list[str] | None = None
    """Settings that it is taken of; None is all."""


class Claim(_StudyTable):
    """`[[claims]]`: left minus right, paired by seed, is more than `margin` above (below) 0."""

    says: str = Field(min_length=1)
    left: str
    """A setting."""
    right: str | Annotated[float, Strict()]
    """A setting, or a number."""
    measure: str = "accuracy"
    right_measure: str | None = None
    """Measure of the right side, where it is another one: `before`, say."""
    direction: Literal["above", "below"] = "above"
    margin: Annotated[float, Strict()] = 0.0
    """Negative where a difference of that size the other way is allowed."""

    @property
    def sides(self) -> list[tuple[str, str]]:
        """The settings that it is about, each with its measure."""
        left = (self.left, self.measure)
        if not isinstance(self.right, str):
            return [left]
        return [left, (self.right, self.right_measure or self.measure)]


class StudyFile(_StudyTable):
    """All of it; `extends` names a file beside it whose tables it takes, with its own over them."""

    says: str = ""
    """The title of the report."""
    out: str | None = None
    """The folder; None is studies/<name of the file>."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    tokens: int | None = Field(None, ge=1)
    """Generated tokens of every run; the step in which they are reached is its last."""
    steps: Steps | None = None
    """Steps of every run; of both budgets the one that ends first counts."""
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
    if (extended := data.pop("extends", None)) is not None:
        if not isinstance(extended, str) or Path(extended).name != extended:
            raise UserMistake(
                f"{path}: extends = {extended!r}: the name of a file beside it is wanted"
            )
        below = _read_tables(path.parent / extended)
        if "extends" in below:
            raise UserMistake(
                f"{path}: extends = {extended!r}: that file extends another one itself"
            )
        data = over(below, data)
    with naming(str(path)):
        try:
            study = StudyFile.model_validate(data)
        except ValidationError as error:
            raise UserMistake(_explained(error)) from error
        _check(study)
    return study


@contextmanager
def naming(where: str) -> Generator[None]:
    """Say of a mistake that is found in here where it is."""
    try:
        yield
    except UserMistake as error:
        raise UserMistake(f"{where}: {error}") from error


def parts_of(path: Path) -> list[Path]:
    """The study file, and behind it the one that it extends."""
    extended = _read_tables(path).get("extends")
    return [path] if extended is None else [path, path.parent / extended]


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return files.read_toml(path)
    except OSError as error:
        raise UserMistake(f"study {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserMistake(f"study {path} is not TOML: {error}") from error


def over(below: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Own keys over those of another table; tables are merged, lists are not, and a table without
    keys is a value.
    """
    merged = {**below, **own}
    for key, value in own.items():
        before = below.get(key)
        if isinstance(value, dict) and value and isinstance(before, dict):
            merged[key] = over(before, value)
    return merged


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
        measure_key = f"measures.{name}"
        if name in OWN:
            raise UserMistake(f"{measure_key}: every run has a measure {name}: choose another name")
        if (measure.setup is None) == (measure.metric is None):
            raise UserMistake(
                f"{measure_key}: set either setup (an evaluation) or metric (of the steps)"
            )
        of_setup = measure.setup is not None
        for key in ("first", "last") if of_setup else ("task", "data", "games"):
            if key in measure.model_fields_set:
                other = "metric" if of_setup else "setup"
                raise UserMistake(f"{measure_key}: {key} goes with {other}, which is not set")
        if measure.first is not None and measure.last is not None:
            raise UserMistake(f"{measure_key}: set first or last, not both")


# --- settings

MANY_STEPS = 10_000
"""Steps, at most, of runs that tokens end."""
LONGEST = 255
"""Bytes of a file's name."""
Keys = dict[str, Any]
"""Keys of a config with their values, tables within tables."""
OURS = {
    "seed": "seeds",
    "out": "out, the study's own",
    "tokens": "tokens, the budget of all settings",
    "steps": "steps, the budget of all settings",
}
"""Keys of a run that a study sets -> what sets them."""


@dataclass(frozen=True)
class Setting:
    """One way to train, or not to."""

    name: str
    trained: bool
    keys: Keys
    """Keys of a config, without seed and out."""
    plan: Plan
    """With the first seed."""

    @cached_property
    def essence(self) -> dict[str, Any]:
        """Description of the setting, whatever the seed: plain values."""
        config = self.plan.config.model_dump(mode="json", exclude={"seed", "out"})
        return {"trained": self.trained, **pinned(config)}


def settings_of(study: StudyFile, folder: Path) -> list[Setting]:
    """All settings, resolved, with places that are relative to `folder`; a mistake names setting
    and key.
    """
    with naming("config"):
        read(None, nested(study.config))
    settings: list[Setting] = []
    for name, keys, trained in described(study):
        with naming(f"setting {name}"):
            setting = _setting(study, folder, name, keys, trained)
        for other in settings:  # a difference between them would be noise
            if other.essence == setting.essence:
                raise UserMistake(
                    f"settings {other.name} and {setting.name} are alike, once presets and"
                    " defaults are written out: remove one"
                )
        settings.append(setting)
    return settings


def _setting(study: StudyFile, folder: Path, name: str, keys: Keys, trained: bool) -> Setting:
    keys = {**copy.deepcopy(keys), "steps": (study.steps or MANY_STEPS) if trained else 0}
    if trained and study.tokens is not None:
        keys["tokens"] = study.tokens
    if not trained:
        keys = {key: value for key, value in keys.items() if key not in ("schedule", "warmup")}
    elif study.steps is None and keys.get("schedule", "constant") != "constant":
        raise UserMistake(
            f"schedule = {keys['schedule']!r}: rates fall over the steps of a run, and the study"
            " has none: set steps beside tokens"
        )
    anchor(keys, folder)
    planned = plan(read(None, {**keys, "seed": study.seeds[0]}))
    check_training(planned)
    # tiny models are trained side by side, on one thread each
    if keys.get("threads") is None and all(policy.source.tiny for policy in planned.policies):
        keys["threads"] = 1
        planned = replace(planned, config=planned.config.model_copy(update={"threads": 1}))
    return Setting(name, trained, keys, planned)


def described(study: StudyFile) -> list[tuple[str, Keys, bool]]:
    """Name, keys with those of `[config]`, and whether it is trained, of all settings in the order
    of the file, grids multiplied out.
    """
    common = nested(study.config)
    _check_ours("config", common)
    descriptions = [
        setting
        for name, table in study.settings.items()
        for setting in _settings_of(name, dict(table), common)
    ]
    names: dict[str, str] = {}
    for name, _, _ in descriptions:
        folder = slug(name).casefold()
        if folder in names:
            raise UserMistake(
                f"settings: {names[folder]!r} and {name!r} would have one folder,"
                f" {folder}: rename one"
            )
        names[folder] = name
    return descriptions


def _settings_of(name: str, table: Keys, common: Keys) -> Iterator[tuple[str, Keys, bool]]:
    key_of = f"settings.{name}"
    trained = table.pop("train", True)
    if not isinstance(trained, bool):
        raise UserMistake(f"{key_of}: train = {trained!r}: true or false")
    grid = table.pop("grid", None)
    own_keys = nested(table)
    _check_ours(key_of, own_keys)
    own_keys = over(common, own_keys)
    if grid is None:
        yield name, own_keys, trained
        return
    axes = flat(grid) if isinstance(grid, Mapping) else {}
    if not axes:
        raise UserMistake(f"{key_of}.grid is empty: give it keys with lists of values")
    _check_ours(f"{key_of}.grid", axes)
    for key, values in axes.items():
        if not isinstance(values, list):
            raise UserMistake(f"{key_of}.grid: {key} = {values!r}: a list of values is wanted")
        if not values:
            raise UserMistake(f"{key_of}.grid: {key} has no values, so that the grid is empty")
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        spelt = {
            key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for key, value in point.items()
        }
        full_name = " ".join([name, *(f"{key}={text}" for key, text in spelt.items())])
        yield full_name, over(own_keys, nested(point)), trained


def _check_ours(where: str, keys: Keys) -> None:
    for key in keys:
        if key in OURS:
            raise UserMistake(f"{where}: {key} is set for all settings alike, by {OURS[key]}")


def nested(table: Mapping[str, Any]) -> Keys:
    """Dotted keys, in tables too, as tables within tables."""
    tables: Keys = {}
    for key, value in flat(table).items():
        put(tables, key, value)
    return tables


def slug(name: str) -> str:
    """The name of a setting's folder: without what has a meaning on the command line, and no longer
    than names may be.
    """
    plain = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "setting"
    if len(plain.encode()) <= LONGEST:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain.encode()[: LONGEST - 9].decode(errors='ignore')}-{digest}"


# --- measures and claims

WRITTEN = (
    *("step", "step_tokens", "policies", "tokens", "monitor_tokens"),
    *("seconds", "spent", "peak_bytes"),
    *("validation", "validation_by_agent"),
)
"""Keys of a line of metrics.jsonl besides the metrics of a step."""


def check_named(what: str, name: str, available: Iterable[str]) -> None:
    """An error with the nearest name where there is none of this name."""
    names = list(available)
    if name not in names:
        raise UserMistake(f"{what}: there is no {name!r}: {nearest(name, names)}")


def check_measures(study: StudyFile, settings: Sequence[Setting]) -> None:
    """An error for a measure that a setting cannot have."""
    names = [setting.name for setting in settings]
    folders: dict[str, str] = {}
    for name, measure in study.measures.items():
        other = folders.setdefault(slug(name).casefold(), name)
        if other != name:
            raise UserMistake(f"measures {other!r} and {name!r} would have one folder")
        key = f"measures.{name}"
        for setting_name in measure.settings or ():
            check_named(f"{key}: settings", setting_name, names)
        for setting in taken_of(measure, settings):
            with naming(f"{key}: setting {setting.name}"):
                _check_taken(measure, setting)


def taken_of(measure: Measure, settings: Sequence[Setting]) -> list[Setting]:
    """The settings that a measure is taken of; those without steps have no metrics."""
    if measure.settings is not None:
        return [setting for setting in settings if setting.name in measure.settings]
    return [setting for setting in settings if setting.trained or measure.metric is None]


def _check_taken(measure: Measure, setting: Setting) -> None:
    planned = setting.plan
    if measure.metric is not None:
        if not setting.trained:
            raise UserMistake(f"metric = {measure.metric!r}: it is not trained, and has no steps")
        if "" in measure.metric.split("."):
            raise UserMistake(f"metric = {measure.metric!r}: nothing stands beside one of its dots")
        names = [*WRITTEN, *METRICS]
        check_named(f"metric = {measure.metric!r}", measure.metric.partition(".")[0], names)
        return
    if measure.task is not None:
        config = planned.config
        task = with_tools(load_plugin("task", measure.task), config.tools, config.tool_options)
        planned = replace(planned, task=task)
    team = team_without_models(planned)  # without weights, which may not be on this machine
    chosen = chosen_setup(str(measure.setup), team)
    check_playable(chosen, team.task)
    check_roles_taken(chosen, team.members)


def check_claims(study: StudyFile, settings: Sequence[Setting]) -> None:
    """An error for a claim about a setting or a measure that there is not."""
    checked_claims: list[dict[str, Any]] = []
    for number, claim in enumerate(study.claims, 1):
        facts = claim.model_dump(exclude={"says"})
        with naming(f"claim {number} ({claim.says})"):
            _check_claim(claim, study, {setting.name: setting for setting in settings})
            if facts in checked_claims:
                raise UserMistake(
                    f"claim {checked_claims.index(facts) + 1} says the same: remove one"
                )
        checked_claims.append(facts)


def _check_claim(claim: Claim, study: StudyFile, settings: Mapping[str, Setting]) -> None:
    check_named("left", claim.left, settings)
    if isinstance(claim.right, str):
        check_named("right", claim.right, settings)
    elif claim.right_measure is not None:
        raise UserMistake("right is a number, and has no right_measure")
    if len(set(claim.sides)) < len(claim.sides):
        raise UserMistake(f"{claim.left} is compared with itself")
    for name, measure in claim.sides:
        setting = settings[name]
        of_agents = [f"{own}.{agent}" for own in OF_AGENTS for agent in setting.plan.config.agents]
        check_named("measure", measure, [*OWN, *study.measures, *of_agents])
        if measure in study.measures:
            if setting not in taken_of(study.measures[measure], list(settings.values())):
                raise UserMistake(f"{measure} is not taken of {name}: see measures.{measure}")
            continue
        config = setting.plan.config
        if measure in (*HELD_OUT, *of_agents) and not config.test_questions:
            raise UserMistake(f"{name} has no {measure}: its test_questions is 0")
        too_late = study.steps is not None and config.eval_every > study.steps
        if measure == "best" and (not setting.trained or not config.eval_every or too_late):
            raise UserMistake(f"{name} has no best: nothing is measured on the way (eval_every)")


# --- files that are named


def locate(study: StudyFile, folder: Path) -> None:
    """Have the files that the measures of a study name by a path from its folder found from
    anywhere; an error for data that are not there.
    """

    def place_of(plugin: str) -> str:
        return beside(plugin, folder) if names_file(plugin) else plugin

    for name, measure in study.measures.items():
        if measure.setup is not None:
            measure.setup = with_plugin(measure.setup, place_of)
        if measure.task is not None:
            measure.task = place_of(measure.task)
        if measure.data is not None:
            data_path = beside(measure.data, folder)
            if not Path(data_path).exists():
                raise UserMistake(
                    f"measures.{name}: data = {measure.data!r}: there is no such file or folder,"
                    " beside the study file or from here"
                )
            measure.data = data_path


def with_plugin(setup: str, rename: Callable[[str], str]) -> str:
    """A setup with its name or file written in another way, and its options."""
    plugin, *options = setup_parts(setup)
    return ":".join((rename(plugin), *options))


def pinned(value: Any, key: str = "") -> Any:
    """Return a plain value, with the name and digest of each file of the user's own in the place of
    its path, wherever that lies.
    """
    if isinstance(value, Mapping):
        return {name: pinned(below, name) for name, below in value.items()}
    if isinstance(value, list):
        return [pinned(each) for each in value]
    if not isinstance(value, str):
        return value
    if key == "setup":
        return with_plugin(value, pinned)
    if names_file(value) or (key == "data" and Path(value).exists()):
        return digested(Path(value))
    return value


def digested(path: Path) -> str:
    """The name of a file or of a folder, and the SHA-256 of what is in it."""
    if not path.is_dir():
        return f"{path.name} {files.digest(path)}"
    hasher = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        relative = file.relative_to(path).as_posix()
        hasher.update(f"{relative} {files.digest(file)}\n".encode())
    return f"{path.name} {hasher.hexdigest()}"
