"""Where the context ends: rows that have ended, and padding, stay within it; what does not fit is
refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comas
from comas.engines.stacked import StackedEngine
from comas.learners.lora.population import Population
from comas.seams import AdapterSpec, Request
from comas.storage.run import Run
from comas.types import Sampling
from tests.support.engines import engine_of, is_stacked
from tests.support.memory import model_of
from tests.support.models import llama
from tests.support.sampling import same

CONTEXT = 64
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "max_position_embeddings": CONTEXT,
}
OPT = {
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "init_std": 0.3,
    "max_position_embeddings": CONTEXT,
}
NEO = {
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 8,
    "max_position_embeddings": CONTEXT,
}
WINDOWS = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": CONTEXT,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
MODELS = {
    "stack": partial(llama, max_position_embeddings=CONTEXT),
    "llama": partial(llama, max_position_embeddings=CONTEXT),
    "gpt2": partial(model_of, "gpt2", **GPT2),
    "opt": partial(model_of, "opt", **OPT),
    "gpt_neo": partial(model_of, "gpt_neo", **NEO),
    "gemma3": partial(model_of, "gemma3_text", **WINDOWS),
    "dynamic": partial(llama, max_position_embeddings=CONTEXT, rope_parameters=DYNAMIC),
    "mpt": partial(model_of, "mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=CONTEXT),
}


def mixed() -> list[Request]:
    """One prompt that nearly fills the context, and short ones that go on for long after its reply
    has ended.
    """
    rng = np.random.default_rng(0)
    lengths = [CONTEXT - 8, *(5 + i % 4 for i in range(5))]
    return [
        Request(
            "p",
            rng.integers(4, 50, n),
            Sampling(max_tokens=8 if i == 0 else CONTEXT - n - i % 3),
            i,
        )
        for i, n in enumerate(lengths)
    ]


WAYS = [
    *((kind, "plain") for kind in MODELS),
    *((kind, "population") for kind in ("gpt2", "opt")),
]


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_long_prompts_with_short_replies_stand_beside_short_prompts_with_long_ones(
    kind: str, way: str
) -> None:
    # it masks with the least double and then takes the softmax in single precision
    single = kind == "mpt"
    model = MODELS[kind]() if single else MODELS[kind]().double()

    def engine(weights: Any) -> Any:
        name = "hf" if kind == "llama" else "auto"
        made = engine_of(weights, [], 0, CONTEXT, engine=name)
        assert (is_stacked(made)) == (kind == "stack")
        return made

    weights: Any = Population(model, {"p": AdapterSpec(2)}) if way == "population" else {"p": model}
    said = engine(weights).generate(mixed())
    assert [len(g.token_ids) for g in said] == [r.sampling.max_tokens for r in mixed()]
    plain = engine({"p": model})
    alone = [plain.generate([r])[0] for r in mixed()]
    if not single:
        same(alone, said)
    for a, b in zip(alone, said, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4


@pytest.mark.parametrize("stacked", [True, False])
def test_a_reply_that_would_not_fit_is_refused(stacked: bool) -> None:
    model = llama(max_position_embeddings=CONTEXT)
    engine = engine_of({"p": model}, [3], 0, CONTEXT, engine="stacked" if stacked else "hf")
    request = Request("p", np.arange(4, 44), Sampling(max_tokens=CONTEXT - 39), 0)
    with pytest.raises(ValueError, match=r"65 tokens, .* 64"):
        engine.generate([request])
    assert engine.generate([Request("p", np.arange(4, 44), Sampling(max_tokens=CONTEXT - 40), 0)])


def test_a_run_whose_rooms_differ_from_role_to_role_lives_in_a_small_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that only evaluates has short replies to long prompts, in one grid with the others'
    long replies to short ones.
    """
    context = 80
    widest: list[int] = []
    real = StackedEngine.generate

    def generate(self: StackedEngine, requests: Any, *rest: Any) -> Any:
        widest.append(
            max(len(r.prompt_ids) for r in requests) + max(r.sampling.max_tokens for r in requests)
        )
        return real(self, requests, *rest)

    monkeypatch.setattr(StackedEngine, "generate", generate)
    comas.train(
        out=str(tmp_path / "run"),
        threads=1,
        questions=4,
        test_questions=0,
        eval_every=0,
        steps=1,
        hosts__home__context=context,
        room={"solution": 10},
        agents={"a0": {}, "a1": {}, "a2": {}, "judge": {"roles": ["evaluation"]}},
        options={"rounds": 8, "kappa": 8, "references": 2, "evaluations": 2},
    )
    assert max(widest) > context
    (metrics,) = Run.open(tmp_path / "run").metrics()
    assert all(policy["gap_max"] < 1e-3 for policy in metrics["policies"].values())
