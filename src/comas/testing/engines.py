"""The contract of an engine, for those who write one: `check_engine`.

Runs on tiny random Llamas that it makes itself. Leaves out: how fast an engine is, how much memory
it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from comas.seams import (
    Adapter,
    Engine,
    EnginePlan,
    Generation,
    Request,
    StaleWeights,
    Weighing,
    Weights,
    WholeModel,
)
from comas.types import Meter, Sampling

Build = Callable[[EnginePlan, Mapping[str, Weights]], Engine]
VOCABULARY = 40
END = 3
NEAR = 1e-3
"""Nats by which the log-prob of a token may differ from that of a plain forward pass."""
WEIGHED = 1e-4
"""Nats by which the log-prob of a given continuation may differ."""
TIE = 1e-4
"""Margin below which a draw may differ between batches in float32."""
TOKENS = 16
"""Tokens of a reply, at most."""


async def check_engine(build: Build, kind: Literal["whole", "adapters"] = "whole") -> None:
    """The contract of an engine: texts that follow from request and seed alone, log-probs of the
    weights that were published last, of what it samples and of continuations that it is given, two
    policies kept apart, end tokens, lengths, cancelled requests, `close`.

    `build(plan, models)` is what the engine's file defines. With `kind` "adapters" the policies are
    two adapters on one base, otherwise two whole models; in float64.
    """
    models = _adapters() if kind == "adapters" else {p: _model(i) for i, p in enumerate("ab")}
    engine = build(_plan(), models)
    try:
        await _check_texts(engine, models)
        await _check_weights(engine, models)
        await _check_beside(engine)
        await _check_cancelled(engine)
        await _check_published(engine, models)
        await _check_unknown(engine, models)
    finally:
        engine.close()
    await _check_end_ids(build, models)


def _plan(end_ids: Sequence[int] = (END,)) -> EnginePlan:
    return EnginePlan(end_ids=end_ids, pad_id=0, context=64, max_rows=8, meter=Meter())


def _model(seed: int) -> WholeModel:
    """A random Llama whose distributions are peaked enough for texts to differ."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32 numbers: the smallest that every engine's kernels take
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=END,
    )
    return WholeModel(LlamaForCausalLM(config).double().eval())


def _adapters() -> dict[str, Weights]:
    """Two different adapters on one base."""
    from comas.learners.lora.population import Population
    from comas.seams import AdapterSpec

    base: Any = _model(0).model
    population = Population(base, {policy: AdapterSpec(4, 8.0) for policy in "ab"})
    _shake(Adapter(population), 1)
    return dict.fromkeys("ab", Adapter(population))


def _shake(weights: Weights, seed: int) -> None:
    """Change weights in place, as a learner does."""
    import torch

    shared: Any = weights.shared if isinstance(weights, Adapter) else None
    model: Any = weights.model if isinstance(weights, WholeModel) else None
    tensors = [shared.flat_PN] if shared is not None else list(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors:
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def _requests(count: int = 12, policies: str = "ab", temperature: float = 1.0) -> list[Request]:
    """Prompts of different lengths, limits of different sizes."""
    rng = np.random.default_rng(0)
    requests = []
    for i in range(count):
        prompt_ids = rng.integers(4, VOCABULARY, 2 + i % 7)
        sampling = Sampling(temperature=temperature, max_tokens=TOKENS - i % 5)
        requests.append(Request(policies[i % len(policies)], prompt_ids, sampling, 70 + i))
    return requests


async def _sample(engine: Engine, requests: Sequence[Request]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.sample, requests)))


async def _check_texts(engine: Engine, models: Mapping[str, Weights]) -> None:
    for temperature in (1.0, 0.7, 0.0):
        requests = _requests(temperature=temperature)
        together = await _sample(engine, requests)
        for request, generation in zip(requests, together, strict=True):
            _check_generation(request, generation)
            _check_logprobs(models, request, generation)
        if engine.facts.deterministic:
            alone = [await engine.sample(request) for request in requests]
            backwards = await _sample(engine, requests[::-1])
            for a, b, c in zip(together, alone, backwards[::-1], strict=True):
                assert _same(a, b), "a text depends on what else is sampled at the time"
                assert _same(a, c), "a text depends on the order of requests"
    requests = _requests(count=24)
    generations = await _sample(engine, requests)
    assert any(g.finished for g in generations), "no reply ended at an end token"
    assert not all(g.finished for g in generations), "no reply was cut at its length"
    seeded = [replace(requests[0], seed=seed) for seed in range(8)]
    texts = {tuple(g.token_ids.tolist()) for g in await _sample(engine, seeded)}
    assert len(texts) > 1, "eight seeds gave one text: the seed is not used"


def _check_generation(request: Request, generation: Generation) -> None:
    ids = generation.token_ids
    limit = request.sampling.max_tokens
    assert 0 < len(ids) <= limit, f"{len(ids)} tokens of at most {limit}"
    assert len(generation.logprobs) == len(ids), "as many log-probs as tokens are wanted"
    assert END not in ids[:-1], "a reply went on behind its end token"
    assert generation.finished == (ids[-1] == END), "`finished`: whether an end token was drawn"
    assert generation.finished or len(ids) == limit, "a reply was cut before its length"
    assert generation.margin >= 0, f"a margin of {generation.margin}"


def _check_logprobs(
    models: Mapping[str, Weights], request: Request, generation: Generation
) -> None:
    """Log-probs must be those of a plain forward pass of the policy's own weights."""
    wanted_T = _forward_logprobs(models, request, generation.token_ids)
    apart = float(np.abs(wanted_T - generation.logprobs).max())
    assert apart < NEAR, (
        f"log-probs of policy {request.policy} differ by {apart:.2g} nats from those of the weights"
        " that were published last: stale weights, another policy's, or another temperature"
    )


def _forward_logprobs(
    models: Mapping[str, Weights], request: Request, token_ids: np.ndarray
) -> np.ndarray:
    """Log-probs (T,) of these tokens behind the prompt, of softmax(logits / temperature)."""
    import torch

    weights = models[request.policy]
    ids = torch.from_numpy(np.concatenate([request.prompt_ids, token_ids]))[None]
    with torch.no_grad():
        if isinstance(weights, Adapter):
            number = list(weights.shared.policies).index(request.policy)
            with weights.shared.routed([number]):
                logits_TV = weights.shared.model(input_ids=ids, use_cache=False).logits[0]
        else:
            logits_TV = weights.model(input_ids=ids, use_cache=False).logits[0]
    temperature = request.sampling.temperature or 1.0
    behind = logits_TV[len(request.prompt_ids) - 1 : -1] / temperature
    chosen = torch.from_numpy(token_ids)[:, None]
    return behind.log_softmax(-1).gather(1, chosen)[:, 0].numpy()


async def _check_weights(engine: Engine, models: Mapping[str, Weights]) -> None:
    """Choices of one and of several tokens, some with the same beginning, alone and side by side:
    log-probs of a plain forward pass at temperature 1. An engine that only samples has no `weigh`.
    """
    if not hasattr(engine, "weigh"):
        return
    rng = np.random.default_rng(1)
    weighings: list[Weighing] = []
    for i in range(11):
        prompt_ids = rng.integers(4, VOCABULARY, 2 + 3 * (i % 5))
        spelt = [[5], [6], [7]] if i % 2 else [[5, 8, 9], [5, 8, 10], [11]]
        choices = [np.array(ids) for ids in spelt]
        weighings.append(Weighing("ab"[i % 3 % 2], prompt_ids, choices))
    together = await asyncio.gather(*map(engine.weigh, weighings))
    for weighing, weights in zip(weighings, together, strict=True):
        request = Request(weighing.policy, weighing.prompt_ids, Sampling(), 0)
        for choice, logprobs in zip(weighing.choices, weights, strict=True):
            wanted_T = _forward_logprobs(models, request, choice)
            apart = float(np.abs(wanted_T - logprobs).max())
            assert apart < WEIGHED, (
                f"log-probs of a choice of policy {weighing.policy} differ by {apart:.2g} nats from"
                " those of a plain forward pass"
            )
        alone = await engine.weigh(weighing)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(alone, weights, strict=True))
        assert apart < WEIGHED, f"what else is weighed at the time moves log-probs by {apart:.2g}"


async def _check_beside(engine: Engine) -> None:
    """Weighing while others are sampled changes neither; both work on the same weights."""
    if not hasattr(engine, "weigh"):
        return
    requests = _requests()
    choices = [np.array([5]), np.array([6, 7])]
    weighings = [Weighing(r.policy, r.prompt_ids, choices) for r in requests]
    sampled = await _sample(engine, requests)
    weighed = await asyncio.gather(*map(engine.weigh, weighings))
    pair = await asyncio.gather(
        _sample(engine, requests), asyncio.gather(*map(engine.weigh, weighings))
    )
    if engine.facts.deterministic:
        assert all(map(_same, sampled, pair[0])), "weighing changed what is sampled beside it"
    for one, other in zip(weighed, pair[1], strict=True):
        apart = max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
        assert apart < WEIGHED, f"sampling moves what is weighed beside it by {apart:.2g}"


def _same(one: Generation, other: Generation) -> bool:
    near_tie = min(one.margin, other.margin) < TIE
    return near_tie or one.token_ids.tolist() == other.token_ids.tolist()


async def _check_cancelled(engine: Engine) -> None:
    """Requests that nobody waits for any more must not hold up or change the others."""
    requests = _requests()
    expected = await _sample(engine, requests)
    repeats = engine.facts.deterministic
    tasks = [asyncio.ensure_future(engine.sample(request)) for request in requests]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    rest = await asyncio.gather(*tasks[1::2])
    if repeats:
        same = all(map(_same, expected[1::2], rest))
        assert same, "cancelled requests changed the text of others"
    everybody = [asyncio.ensure_future(engine.sample(request)) for request in requests]
    await asyncio.sleep(0)
    for task in everybody:
        task.cancel()
    await asyncio.gather(*everybody, return_exceptions=True)
    again = await _sample(engine, requests)
    if repeats:
        assert all(map(_same, expected, again)), "cancelled callers changed what is sampled later"


async def _check_published(engine: Engine, models: Mapping[str, Weights]) -> None:
    """Check that what is sampled after `publish` is of the weights that were published, and only of
    that policy.
    """
    before = await _sample(engine, _requests())
    current = dict(models)
    _shake(current["a"], 2)
    engine.publish("a", current["a"], 1)
    if isinstance(current["b"], Adapter):  # both lie in one tensor
        engine.publish("b", current["b"], 1)
    await _check_serves(engine, current)
    after = await _sample(engine, _requests(policies="a"))
    texts = [tuple(g.token_ids.tolist()) for g in after]
    assert texts != [tuple(g.token_ids.tolist()) for g in before], "publish changed no text"
    if not isinstance(current["b"], Adapter):
        current["b"] = _model(9)
        engine.publish("b", current["b"], 2)
        await _check_serves(engine, current)


async def _check_serves(engine: Engine, models: Mapping[str, Weights]) -> None:
    requests = _requests()
    for request, generation in zip(requests, await _sample(engine, requests), strict=True):
        _check_logprobs(models, request, generation)
    await _check_weights(engine, models)


async def _check_unknown(engine: Engine, models: Mapping[str, Weights]) -> None:
    try:
        engine.publish("nobody", models["a"], 1)
    except StaleWeights:
        pass
    else:
        raise AssertionError("weights of a policy that the engine does not have were published")
    stranger = Request("nobody", np.array([5, 6]), Sampling(max_tokens=2), 1)
    try:
        await engine.sample(stranger)
    except KeyError:
        return
    raise AssertionError("a policy that the engine does not have was sampled from")


async def _check_end_ids(build: Build, models: Mapping[str, Weights]) -> None:
    """Every end token ends a reply, and a new engine works after another was closed."""
    engine = build(_plan(end_ids=range(VOCABULARY)), models)
    try:
        generations = await _sample(engine, _requests(4))
    finally:
        engine.close()
    lengths = [len(g.token_ids) for g in generations]
    assert lengths == [1] * 4, f"replies of {lengths} tokens where each token is an end token"
