"""The kind of host that has weights in this process: its table, and how it is built, from a plan or
from bases: models are loaded, a learner and an engine are built on them.

Leaves out: the keys of the table (`hosts.local_table`), the host itself (`hosts.local_host`), what
a base name means (`models.sources`), configs (`team.build`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from comas.engines.chat import Chat
from comas.engines.module import EngineModule
from comas.hosts.local_host import LocalHost, in_memory
from comas.hosts.local_table import MAX_ROWS
from comas.hosts.local_table import Table as Table
from comas.hosts.plan import HostPlan, Lag
from comas.machine import in_turn, own_thread, return_large_blocks
from comas.models.loading import context_of, load_models, place_of
from comas.seams import Adapter, Engine, EnginePlan, Learner, WholeModel
from comas.types import Meter, Method

LOG = logging.getLogger("comas")


def build(plan: HostPlan[Table]) -> LocalHost:
    """Build the host that a plan describes; it learns where the plan names a method."""
    table = plan.table
    remedy = "have fewer agents, set {host}.learner=adapters, or take a smaller base"
    with in_memory(plan.name, "loading", remedy):
        return make_local_host(
            plan.name,
            plan.policies,
            method=plan.method,
            recipe=plan.recipe,
            engine=plan.engine,
            device=table.device,
            dtype=table.dtype,
            context=table.context,
            thinking=table.thinking,
            max_rows=table.max_rows or MAX_ROWS,
            prove_every=table.prove_every,
            trust_remote_code=table.trust_remote_code,
            under=plan.under,
            shapes=plan.shapes,
            lags=plan.lags,
            seed=plan.seed,
        )


def make_local_host(
    name: str,
    bases: Mapping[str, str],
    *,
    method: Method | None = None,
    recipe: Any = None,
    engine: EngineModule | None = None,
    device: str = "auto",
    dtype: str = "auto",
    context: int | None = None,
    thinking: bool | None = None,
    max_rows: int = 512,
    prove_every: int = 4,
    trust_remote_code: bool = False,
    under: str | None = None,
    shapes: Mapping[str, Any] | None = None,
    lags: Mapping[str, Lag] | None = None,
    seed: int = 0,
) -> LocalHost:
    """A host with torch inside: policies with these bases; with `method` and `recipe` also a
    learner.

    With `under`, policies are adapters on that one model: those found in the folders of `bases`,
    elsewhere new ones of `shapes` (policy -> Spec). Otherwise each has a model of its own: what
    learns is loaded in float32, and copied where `dtype` is another; what only samples is loaded in
    `dtype`, once. `engine` is a module with `build`; None is `engines.auto`.
    """
    from comas.engines import auto
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.lora.loading import load_population
    from comas.learners.whole import FullLearner

    place, kind = place_of(device, dtype)
    if place.type == "cpu":
        return_large_blocks()  # memory is kept compact from then on
    learns = method is not None
    meter = Meter()
    learner: Learner | None = None
    with in_turn(place.type):
        if under is not None:
            population, tokenizer, ends = load_population(
                bases, under, place, kind, trust_remote_code, shapes or {}, seed
            )
            models = [population.model]
            weights = dict.fromkeys(population.policies, Adapter(population))
            pad_id = _padding(tokenizer, ends, models)
            if learns:
                origin = str(population.model.config.name_or_path)
                learner = AdapterLearner(population, recipe, method, pad_id, origin, meter=meter)
                # new adapters differ in their random half
                for earlier, lag in (lags or {}).items():
                    learner.copy(lag.policy, earlier)
        else:
            stored = None if learns else kind
            loaded, tokenizer, ends = load_models(bases, place, stored, trust_remote_code)
            models = list(loaded.values())
            weights = {policy: WholeModel(model) for policy, model in loaded.items()}
            pad_id = _padding(tokenizer, ends, models)
            if learns:
                learner = FullLearner(loaded, recipe, method, pad_id, kind, meter=meter)
    room = min(context_of(model, context, name) for model in models)
    worker = own_thread(f"host-{name}", place.type)
    plan = EnginePlan(
        end_ids=ends,
        pad_id=pad_id,
        context=room,
        max_rows=max_rows,
        prove_every=prove_every,
        learns=learns,
        host=name,
        meter=meter,
        worker=worker,
    )
    if learner:
        weights = learner.weights()
    module = engine or auto
    try:
        built: Engine = module.build(plan, weights)
    except BaseException:
        worker.shutdown()
        raise
    chat = Chat(tokenizer, ends, thinking, _embeddings(models))
    _check_ends(chat, name)
    return LocalHost(
        name,
        list(bases),
        chat,
        built,
        learner,
        room,
        str(place),
        str(kind).removeprefix("torch."),
        lags=lags,
        meter=meter,
        worker=worker,
        another=partial(module.build, replace(plan, learns=False)),
    )


def _check_ends(chat: Chat, name: str) -> None:
    """A warning where the model will say that its reply has ended, and nobody listens."""
    if token := chat.unheard_end():
        LOG.warning(
            "hosts.%s: the chat template of %r ends replies with %s, which is not an end token of"
            " the model, so that replies may go on to the end of their room: name it in"
            " eos_token_id of generation_config.json",
            name,
            chat.tokenizer.name_or_path,
            token,
        )


def _embeddings(models: list[Any]) -> int:
    """Number of ids that every model can read."""
    return min(len(model.get_input_embeddings().weight) for model in models)


def _padding(tokenizer: Any, ends: list[int], models: list[Any]) -> int:
    """Id of the padding; 0 where it was added to the tokenizer and not to the model: what padding
    says is read by nobody.
    """
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    return pad_id if pad_id < _embeddings(models) else 0
