"""Bases whose rows depend on their company are refused when they are loaded, or given the context
in which they do not.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MptConfig

from comas.engines.hf import trial
from comas.engines.hf.trial import try_rows
from comas.hosts.local import make_local_host
from comas.memory import size_of
from comas.models.loading import load_models
from comas.models.sources import apart_up_to, positions_of
from comas.seams import Request
from comas.testing import tiny_model
from comas.types import Sampling, UserMistake
from tests.support.engines import engine_of
from tests.support.families import family_model
from tests.support.memory import model_of
from tests.support.models import llama
from tests.support.sampling import same

DECODER = {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "init_std": 0.3,
    "is_decoder": True,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
}
ENCODER = {"is_decoder": True, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MISPLACED = {
    "bart": partial(model_of, "bart", **DECODER),
    "trocr": partial(model_of, "trocr", **DECODER),
    "roberta": partial(model_of, "roberta", **ENCODER),
    # it counts columns, and these change when rows are moved
    "roformer": partial(model_of, "roformer", **ENCODER),
}
UNCACHED = {
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "minimax": {"num_local_experts": 4},
}
FIT = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "mixtral": {"num_local_experts": 4},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
KINDS = [torch.float32, torch.bfloat16]
FIRST = 32
"""Tokens that the LongRoPE of these tests was first trained with."""


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_tried", set())


def long_rope() -> Any:
    table = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 4.0, 8.0, 16.0],
        "original_max_position_embeddings": FIRST,
    }
    return model_of("phi3", rope_parameters=table, original_max_position_embeddings=FIRST)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("family", MISPLACED)
def test_positions_that_padding_moves_are_refused(family: str, dtype: torch.dtype) -> None:
    with pytest.raises(
        UserMistake,
        match=r"base 'mine' \(\w+\) .*alone \(by \d+% .*take another",
    ):
        try_rows(MISPLACED[family]().to(dtype), 64, "mine")


@pytest.mark.parametrize("family", UNCACHED)
def test_families_without_such_a_cache_are_one_line(family: str) -> None:
    with pytest.raises(UserMistake, match=r"base 'mine' \(\w+\) .*\(\w+: .*take another") as told:
        try_rows(model_of(family, **UNCACHED[family]), 64, "mine")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("family", FIT)
def test_families_that_allow_for_padding_pass(family: str, dtype: torch.dtype) -> None:
    try_rows(model_of(family, **FIT[family]).to(dtype), 64, "mine")


@pytest.mark.parametrize("context", [1, 2, 3, 9, 64])
def test_any_context_can_be_tried(context: int) -> None:
    try_rows(llama(), context, "mine")


def test_a_shape_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    for _ in range(2):
        try_rows(model, 64, "mine")
    assert len(passes) == 3
    try_rows(llama(num_hidden_layers=3), 64, "mine")
    assert len(trial._tried) == 2


def test_a_large_model_is_tried_in_one_process_and_not_by_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passes = []

    def passed(**shape: int) -> int:
        trial._tried.clear()  # as in another process
        model = llama(**shape)
        model.register_forward_pre_hook(lambda *_: passes.append(1))
        passes.clear()
        try_rows(model, 64, "mine", tmp_path / "notes")
        return len(passes)

    assert [passed(), passed()] == [3, 3]
    monkeypatch.setattr(trial, "LARGE", 1)
    assert [passed(), passed()] == [3, 0]
    assert passed(num_hidden_layers=3) == 3
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert passed() == 3


def test_what_is_refused_is_not_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "LARGE", 1)
    for _ in range(2):
        with pytest.raises(UserMistake, match="says something else"):
            try_rows(MISPLACED["bart"](), 64, "mine", tmp_path / "notes")
    assert not list(tmp_path.rglob("*"))


def test_a_failure_for_want_of_memory_is_not_the_familys() -> None:
    model = llama()

    def full(*_: Any) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        )

    model.register_forward_pre_hook(full)
    with pytest.raises(RuntimeError, match="allocate"):
        try_rows(model, 64, "mine")


def test_weights_that_are_broken_are_somebody_elses_business() -> None:
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(torch.nan)
    try_rows(model, 64, "mine")


def test_a_base_is_tried_when_it_is_loaded(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "bart", family="bart", **DECODER)
    with pytest.raises(UserMistake, match=r"base '.*bart' \(BartForCausalLM\)"):
        load_models({"a": str(folder)})


# --- long rows that turn others


def test_with_long_rope_rows_are_their_own_up_to_the_first_context_only() -> None:
    model = long_rope()
    assert positions_of(model.config) == 128
    assert apart_up_to(model.config) == FIRST
    try_rows(model, FIRST, "mine")
    with pytest.raises(UserMistake, match="says something else"):
        try_rows(model, FIRST + 1, "mine")
    rng = np.random.default_rng(0)
    lengths = [FIRST - 6, 5, 9, 4, 7]
    requests = [
        Request("p", rng.integers(4, 50, n), Sampling(max_tokens=6 if i == 0 else FIRST - n), i)
        for i, n in enumerate(lengths)
    ]
    model = model.double()
    said = engine_of({"p": model}, [], 0, FIRST).generate(requests)
    same([engine_of({"p": model}, [], 0, FIRST).generate([r])[0] for r in requests], said)


@pytest.mark.parametrize(("asked", "told"), [(None, True), (64, True), (FIRST, False), (16, False)])
def test_the_context_of_such_a_host_ends_there_and_says_so(
    asked: int | None, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.0] * 4,
        "long_factor": [9.0] * 4,
    }
    folder = family_model(
        tmp_path,
        "phi4",
        max_position_embeddings=128,
        original_max_position_embeddings=FIRST,
        rope_parameters=table,
    )
    with caplog.at_level(logging.WARNING, "comas"):
        host = make_local_host("near", {"p": str(folder)}, device="cpu", context=asked)
    host.close()
    assert host.context == min(asked or FIRST, FIRST)
    said = [r.getMessage() for r in caplog.records if r.name == "comas"]
    assert len(said) == told
    assert all(f"hosts.near.context is {FIRST}, not {asked or 128}: base" in line for line in said)
    # the estimate of memory counts rows of that length
    assert size_of(str(folder), str(folder)).positions == FIRST


def test_other_bases_have_all_their_positions() -> None:
    scaled = {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": FIRST,
    }
    for model in (
        llama(),
        llama(rope_parameters=scaled),
        *(model_of(f, **FIT[f]) for f in ("gpt2", "gemma3_text")),
    ):
        assert apart_up_to(model.config) is None
        assert positions_of(model.config) == 128
    assert positions_of(MptConfig(max_seq_len=77)) == 77
