"""The config tables of hosts: what all kinds share, and the keys of hosts with weights and of hosts
behind an API.

Apart from what hosts are made of, so that a config is read without that. A kind of somebody's own
declares its table beside its `build`, as a class `Table` that derives from `HostTable`. Leaves out:
reading them (`config.schema`), building hosts (`hosts.local`, `hosts.api`).
"""

from __future__ import annotations

import json
import os
import re
from enum import Enum
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Key(Enum):
    """Further fact about a key; it stands in the annotation of its field."""

    CHANGES = "may be changed when a run or an evaluation goes on: no text depends on it"
    BOUNDS = "may be changed so as well: what is computed changes by rounding only"
    TRAINING = "says nothing of an evaluation"
    OF_API = "says nothing without `api`"
    OF_WEIGHTS = "says nothing with `api`"
    OF_ADAPTERS = "says nothing where whole models are trained, or none"
    OWN_FILE = "names a file of the user's own where it ends in .py"
    OF_RAY = 'says nothing without `kind = "ray"`'


def keys_that(table: type[BaseModel], *facts: Key) -> tuple[str, ...]:
    """The keys of a table of which one of these is true, in their order."""
    fields = table.model_fields.items()
    return tuple(name for name, field in fields if any(fact in field.metadata for fact in facts))


def _as_text(value: Any) -> Any:
    """A path or a name as text; `~` is expanded, since shells leave it in `key=~/x`."""
    if not isinstance(value, str | os.PathLike):
        return value
    text = str(os.fspath(cast("os.PathLike[str]", value)))
    if not text.strip():
        raise ValueError(
            "it is empty: name a folder, a file or what is meant, or leave the key out"
        )
    if "\0" in text:
        raise ValueError("no file or folder can have a NUL character in its name: leave it out")
    return os.path.expanduser(text)


Place = Annotated[str, BeforeValidator(_as_text)]
"""Path of a file or folder, or a name that stands for one."""


class HostTable(BaseModel):
    """Keys of `[hosts.<name>]` that every kind has."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    base: Place = "tiny"
    """Base of its policies: a shipped tiny model, a folder, or a hub name; with `api` the model's
    name there.
    """


def none_as_text(value: Any) -> Any:
    """`none` as a value: for what is to be left out again when something goes on."""
    return None if value == "none" else value


TOKENS_PER_PASS = 8192
"""Tokens in a pass of tiny models, and the most that other bases get by default."""
MAX_ROWS = 512
"""Rows that tiny models decode at once, and the most that others do by default."""


def _device_name(device: str) -> str:
    """A name that torch could know; whether there is such a device is asked where it is used."""
    if re.fullmatch(r"[a-z]+(:\d+)?", device) is None:
        raise ValueError("wanted is auto, cpu, mps, cuda or cuda:<number>, such as cuda:1")
    return device


class LocalTable(HostTable):
    """Keys of a host with weights: what is trained, how it is sampled, what bounds its memory."""

    learner: Literal["full", "adapters"] | None = None
    """Part of a policy that is trained: all of it, or an adapter on a base that the host's policies
    share; None is full for tiny models (and runs that trained them so), otherwise adapters.
    """
    rank: Annotated[int | None, Key.OF_ADAPTERS] = Field(None, ge=1)
    """Rank of adapters, which count twice; None is 16, or that of an adapter that is the base."""
    targets: Annotated[list[str] | None, Key.OF_ADAPTERS] = Field(None, min_length=1)
    """Names of linear layers (or ends of names) that adapters change; None is all but the head."""
    engine: Annotated[Place, Key.OF_WEIGHTS, Key.OWN_FILE] = "auto"
    """Engine that samples: `hf`, `stacked`, `vllm`, or a file with `build(plan, models)`; auto is
    vllm where it is installed and there is one model of 50 million parameters or more on the first
    GPU, stacked for small plain Llamas of one shape on a CPU, otherwise hf.
    """
    device: Annotated[str, AfterValidator(_device_name), Key.OF_WEIGHTS] = "auto"
    """`cpu`, `cuda`, `cuda:1` ..., `mps` (an Apple GPU); auto takes a GPU where there is one."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Key.OF_WEIGHTS] = "auto"
    """Precision of sampling and of the learner's passes; auto is bfloat16 on a GPU, float32 on a
    CPU. A new run of a large model on a CPU takes bfloat16 where that is clearly faster, and keeps
    it.

    Trained weights are float32 always.
    """
    context: Annotated[int | None, Key.OF_WEIGHTS] = Field(None, ge=16)
    """Tokens that prompt and reply share; None is as many as the base can read."""
    thinking: Annotated[bool | None, Key.OF_WEIGHTS] = None
    """Whether models that can think before they answer do so; None is what their template says."""
    max_rows: Annotated[int | None, Key.BOUNDS] = Field(None, ge=1)
    """Rows decoded at once; None is MAX_ROWS for tiny models, otherwise what fits (`memory`)."""
    tokens_per_pass: Annotated[int | None, Key.BOUNDS] = Field(None, ge=64)
    """Padded tokens in one forward and backward pass: bounds memory, changes nothing else. None is
    TOKENS_PER_PASS for tiny models, otherwise what fits (`memory`), on a CPU no more than needed to
    be quick.
    """
    checkpointing: Annotated[bool | None, Key.BOUNDS] = None
    """Recompute activations in the backward pass: slower, smaller. None is false for tiny models,
    otherwise only where passes do not fit without (`memory`).
    """
    lr: float | None = Field(None, gt=0)
    """Overrides the shared one."""
    trust_remote_code: Annotated[bool, Key.OF_WEIGHTS] = False


def _whole_or_share(gpus: float | None) -> float | None:
    """Refuse a number of GPUs that no actor can have."""
    if gpus is not None and gpus > 1 and gpus != int(gpus):
        raise ValueError("wanted is a whole number, or a share of one GPU, such as 0.5")
    return gpus


class RayTable(LocalTable):
    """Resources that the actor of a host elsewhere asks its Ray cluster for."""

    cpus: Annotated[int | None, BeforeValidator(none_as_text), Key.CHANGES, Key.OF_RAY] = Field(
        None, ge=1, le=4096
    )
    """CPUs, and threads of torch there; None is the run's number of threads, or its share of the
    CPUs here.
    """
    gpus: Annotated[
        float | None,
        BeforeValidator(none_as_text),
        AfterValidator(_whole_or_share),
        Key.CHANGES,
        Key.OF_RAY,
    ] = Field(None, ge=0)
    """GPUs, or a share of one; None is 1 where `device` is cuda, or auto and the cluster has GPUs,
    otherwise 0.
    """


Price = Annotated[float, Field(ge=0)]


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable."""
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
OURS = ("model", "messages", "temperature", "max_tokens", "max_completion_tokens", "seed", "top_p")
"""Keys that the JSON of a request has anyway."""
CONNECTION = ("host", "content-length", "content-type", "transfer-encoding", "connection")
"""Headers, in small letters, that a request has anyway."""


def _not_ours(body: dict[str, Any] | None) -> dict[str, Any] | None:
    """Refuse parameters of requests that have keys of their own."""
    for name in body or {}:
        if name in (*OURS, "logprobs", "top_logprobs", "n"):
            raise ValueError(f"{name} is sent, or has a key of its own: leave it out here")
    try:
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"JSON cannot hold it ({error})") from error
    return body


def _not_of_the_connection(headers: dict[str, str] | None) -> dict[str, str] | None:
    """Refuse headers that say how a request is sent, which whoever sends it knows."""
    for name in headers or {}:
        if name.lower() in CONNECTION:
            raise ValueError(f"{name} is sent as the connection needs it: leave it out here")
    return headers


class ApiTable(HostTable):
    """Where it is reached, how it is asked, and what it may cost."""

    api: str | None = Field(None, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")
    """Base URL of an OpenAI-compatible endpoint: no weights here, and its agents are frozen."""
    key_env: Annotated[Variable | None, Key.CHANGES, Key.OF_API] = None
    """Name of the environment variable that holds the key; never the key."""
    header_env: Annotated[
        dict[HeaderName, Variable] | None,
        AfterValidator(_not_of_the_connection),
        Key.CHANGES,
        Key.OF_API,
    ] = None
    """Headers of each request -> names of the environment variables that hold their values."""
    body: Annotated[dict[str, Any] | None, AfterValidator(_not_ours), Key.OF_API] = None
    """Further keys in the JSON of each request, such as `enable_thinking = false`."""
    concurrency: Annotated[int, Key.CHANGES, Key.OF_API] = Field(16, ge=1)
    """Requests at once."""
    timeout: Annotated[float, Key.CHANGES, Key.OF_API] = Field(120.0, gt=0)
    """Seconds for one request."""
    retries: Annotated[int, Key.CHANGES, Key.OF_API] = Field(5, ge=0)
    logprobs: Annotated[bool, Key.OF_API] = False
    """Whether the endpoint is asked for them."""
    price: Annotated[tuple[Price, Price] | None, Key.CHANGES, Key.OF_API] = None
    """Price of a million prompt tokens, and of a million generated ones."""
    budget_tokens: Annotated[int | None, BeforeValidator(none_as_text), Key.CHANGES, Key.OF_API] = (
        Field(None, ge=1)
    )
    """Prompt and generated tokens, over all processes of a run; when they are spent the run stops,
    and at most `concurrency` requests that are open by then are billed besides.

    `none` is no budget.
    """
    budget_money: Annotated[
        float | None, BeforeValidator(none_as_text), Key.CHANGES, Key.OF_API
    ] = Field(None, gt=0)
    """Budget like `budget_tokens`, in the unit of `price`."""
