"""An engine put together: vLLM started on the weights of a host, and what is proved of it.

Leaves out: what each part does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from comas.engines.vllm import start
from comas.engines.vllm.adapters import Adapters, pairs_of
from comas.engines.vllm.engine import VLLMEngine
from comas.engines.vllm.folders import Folders
from comas.engines.vllm.library import Vllm
from comas.engines.vllm.proof import Probe
from comas.engines.vllm.whole import Whole, is_tied
from comas.seams import AdaptedModel, Adapter, EnginePlan, Weights, WholeModel
from comas.types import UserMistake


def build(plan: EnginePlan, models: Mapping[str, Weights]) -> VLLMEngine:
    """An engine for these policies; UserMistake where vLLM cannot serve them."""
    shared = {id(w.shared): w.shared for w in models.values() if isinstance(w, Adapter)}
    whole = [w.model for w in models.values() if isinstance(w, WholeModel)]
    if whole and len(models) == 1:
        return _of_one_model(plan, next(iter(models)), whole[0])
    if whole or len(shared) != 1:
        host = f"hosts.{plan.host}"
        raise UserMistake(
            f"{host}.engine = 'vllm' serves adapters on one base, or one whole model, and"
            f" {len(models)} policies have {len(whole) + len(shared)} models: set"
            f" {host}.learner=adapters, give each policy a host of its own, or set {host}.engine=hf"
        )
    return _of_adapters(plan, list(models), next(iter(shared.values())))


def _of_adapters(plan: EnginePlan, policies: Sequence[str], shared: AdaptedModel) -> VLLMEngine:
    host = f"hosts.{plan.host}"
    model: Any = shared.model
    ranks = [shared.specs[policy].rank for policy in policies]
    modules = [module for policy in policies for module in pairs_of(shared, policy)]
    arguments = start.adapter_arguments(ranks, modules, host)
    with ExitStack() as undone:
        folders = Folders()
        undone.callback(folders.close)
        folder = start.folder_of(model) or folders.keep(model)
        vllm = start.start(model, folder, plan, arguments)
        undone.callback(vllm.close)
        with start.in_one_line(host):
            probe = _probe(vllm, model, plan)
            weights = Adapters(
                vllm, folders, shared, policies, probe, host, prove_every=plan.prove_every
            )
        undone.pop_all()
    return _engine(plan, policies, vllm, weights, model)


def _of_one_model(plan: EnginePlan, policy: str, model: Any) -> VLLMEngine:
    host = f"hosts.{plan.host}"
    if plan.learns and model.device.type == "cpu" and is_tied(model):
        raise UserMistake(
            f"{host}.engine = 'vllm' cannot take new weights on a CPU of a base whose head is its"
            f" embedding: it would keep the old head; set {host}.learner=adapters, or"
            f" {host}.engine=hf"
        )
    with ExitStack() as undone:
        folders = Folders()
        undone.callback(folders.close)
        folder = start.folder_of(model) or folders.keep(model)
        vllm = start.start(model, folder, plan, {})
        undone.callback(vllm.close)
        with start.in_one_line(host):
            weights = Whole(vllm, policy, model, _probe(vllm, model, plan))
        undone.pop_all()
    folders.close()  # it is read once
    return _engine(plan, [policy], vllm, weights, model)


def _probe(vllm: Vllm, model: Any, plan: EnginePlan) -> Probe:
    vocabulary = len(model.get_input_embeddings().weight)
    return Probe(vllm, vocabulary, plan.context, start.served_dtype(model))


def _engine(
    plan: EnginePlan, policies: Sequence[str], vllm: Vllm, weights: Adapters | Whole, model: Any
) -> VLLMEngine:
    device = model.device.type
    return VLLMEngine(
        plan,
        policies,
        vllm,
        weights,
        deterministic=start.deterministic(device, start.served_dtype(model)),
        sleeps=device == "cuda" and plan.learns,
    )
