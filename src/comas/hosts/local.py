"""The kind of host that has weights in this process: its table, and how it is built: models are
loaded, a learner and an engine are built on them.

Leaves out: the keys of the table (`hosts.local_table`), the host itself (`hosts.local_host`), what
a base name means (`models.sources`), configs (`team.build`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from comas.engines.chat import Chat
from comas.hosts.local_host import LocalHost, in_memory
from comas.hosts.local_table import MAX_ROWS
from comas.hosts.local_table import Table as Table
from comas.hosts.plan import HostPlan
from comas.machine import in_turn, own_thread, return_large_blocks
from comas.models.loading import context_of, load_models, place_of
from comas.seams import Adapter, EngineModule, EnginePlan, Learner, WholeModel
from comas.types import Meter, Method

LOG = logging.getLogger("comas")


def build(plan: HostPlan[Table]) -> LocalHost:
    """Build the host that a plan describes; it learns where the plan names a method.

    With `plan.under`, policies are adapters on that one model: those found in the folders that
    `plan.policies` names, elsewhere new ones of `plan.shapes`. Otherwise each has a model of its
    own: what learns is loaded in float32, and copied where the table's dtype is another; what only
    samples is loaded in that dtype, once.
    """
    remedy = "have fewer agents, set {host}.learner=adapters, or take a smaller base"
    with in_memory(plan.name, "loading", remedy):
        return _build(plan)


def _build(plan: HostPlan[Table]) -> LocalHost:
    from comas.engines import auto
    from comas.learners.lora.learner import AdapterLearner
    from comas.learners.lora.loading import load_population
    from comas.learners.whole import FullLearner

    table = plan.table
    method = plan.method
    trusted = table.trust_remote_code
    place, kind = place_of(table.device, table.dtype)
    if place.type == "cpu":
        return_large_blocks()  # memory is kept compact from then on
    meter = Meter()
    learner: Learner | None = None
    with in_turn(place.type):
        if plan.under is not None:
            population, tokenizer, ends = load_population(
                plan.policies, plan.under, place, kind, trusted, plan.shapes or {}, plan.seed
            )
            models = [population.model]
            weights = dict.fromkeys(population.policies, Adapter(population))
            pad_id = _padding(tokenizer, ends, models)
            if method is not None:
                origin = str(population.model.config.name_or_path)
                learner = AdapterLearner(
                    population, plan.recipe, method, pad_id, origin, meter=meter
                )
                # new adapters differ in their random half
                for earlier, lag in plan.lags.items():
                    learner.copy(lag.policy, earlier)
        else:
            stored = kind if method is None else None
            loaded, tokenizer, ends = load_models(plan.policies, place, stored, trusted)
            models = list(loaded.values())
            weights = {policy: WholeModel(model) for policy, model in loaded.items()}
            pad_id = _padding(tokenizer, ends, models)
            if method is not None:
                learner = FullLearner(loaded, plan.recipe, method, pad_id, kind, meter=meter)
    context = min(context_of(model, table.context, plan.name) for model in models)
    worker = own_thread(f"host-{plan.name}", place.type)
    engine_plan = EnginePlan(
        end_ids=ends,
        pad_id=pad_id,
        context=context,
        max_rows=table.max_rows or MAX_ROWS,
        prove_every=table.prove_every,
        learns=learner is not None,
        host=plan.name,
        meter=meter,
        worker=worker,
    )
    module = plan.engine or auto
    try:
        engine = module.build(engine_plan, weights if learner is None else learner.weights())
    except BaseException:
        worker.shutdown()
        raise
    chat = Chat(tokenizer, ends, table.thinking, _embeddings(models))
    if token := chat.unheard_end():
        LOG.warning(
            "hosts.%s: the chat template of %r ends replies with %s, which is not an end token of"
            " the model, so that replies may go on to the end of their room: name it in"
            " eos_token_id of generation_config.json",
            plan.name,
            chat.tokenizer.name_or_path,
            token,
        )
    return LocalHost(
        plan.name,
        list(plan.policies),
        chat,
        engine,
        learner,
        context,
        str(place),
        str(kind).removeprefix("torch."),
        lags=plan.lags,
        meter=meter,
        worker=worker,
    )


def make_local_host(
    name: str,
    bases: Mapping[str, str],
    *,
    method: Method | None = None,
    recipe: Any = None,
    engine: EngineModule | None = None,
    under: str | None = None,
    shapes: Mapping[str, Any] | None = None,
    **keys: Any,
) -> LocalHost:
    """Build a host without a config: policies with these bases; with `method` and `recipe` also a
    learner. `keys` are those of its table, such as `device`; the rest is as in `HostPlan`.
    """
    plan = HostPlan(
        name=name,
        table=Table(**keys),
        policies=bases,
        method=method,
        recipe=recipe,
        engine=engine,
        under=under,
        shapes=shapes,
    )
    return build(plan)


def _embeddings(models: list[Any]) -> int:
    """Number of ids that every model can read."""
    return min(len(model.get_input_embeddings().weight) for model in models)


def _padding(tokenizer: Any, ends: list[int], models: list[Any]) -> int:
    """Id of the padding; 0 where it was added to the tokenizer and not to the model: what padding
    says is read by nobody.
    """
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    return pad_id if pad_id < _embeddings(models) else 0
