"""Adapters of two policies on a model that vLLM has kernels for, and what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from comas.engines.vllm import VLLMEngine
from comas.learners.lora.population import Population
from comas.seams import AdapterSpec, EnginePlan, Request
from comas.types import Sampling

ROOM = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
"""Heads of a size that vLLM has kernels for, and room for more than a block of its prefix cache."""
PLAN = EnginePlan(end_ids=[3], pad_id=0, context=256, max_rows=8)
SPECS = {"a": AdapterSpec(4, 8.0), "b": AdapterSpec(6, 6.0, ("q_proj", "up_proj"))}


def shake(tensors: Sequence[torch.Tensor], seed: int, size: float = 0.1) -> None:
    """Change weights in place, as a learner does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors:
            tensor += size * torch.randn(tensor.shape, generator=generator)


def own(population: Population, policy: str) -> list[torch.Tensor]:
    """What this policy's adapter is, in place: other ranks and targets have more room."""
    return list(population.tensors(policy).values())


def requests(policies: str, count: int = 6) -> list[Request]:
    rng = np.random.default_rng(1)
    sampling = Sampling(temperature=1.0, max_tokens=12)
    return [
        Request(policies[i % len(policies)], rng.integers(4, 50, 5 + i), sampling, 90 + i)
        for i in range(count)
    ]


def gap(engine: VLLMEngine, population: Population, policy: str) -> float:
    """Largest distance between the log-probs of replies and the population's own."""
    asked = requests(policy)
    worst = 0.0
    number = population.policies.index(policy)
    for request, done in zip(asked, engine.generate(asked), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *done.token_ids]])
        with torch.no_grad(), population.routed([number]):
            logits = population.model(input_ids=ids, use_cache=False).logits[0]
        wanted = logits[len(request.prompt_ids) - 1 : -1].log_softmax(-1)
        chosen = wanted.gather(1, torch.from_numpy(done.token_ids)[:, None])[:, 0].numpy()
        worst = max(worst, float(np.abs(chosen - done.logprobs).max()))
    return worst
