"""Bases whose parts do not fit each other: one line, or as much as can be had of them."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from comas.engines.chat import Chat
from comas.engines.stacked import can_stack
from comas.hosts.local import make_local_host
from comas.models.loading import load_models
from comas.models.sources import place_of_model
from comas.seams import Request
from comas.testing import tiny_model
from comas.types import Sampling, UserMistake
from tests.support.engines import engine_of
from tests.support.models import llama
from tests.support.sampling import same

HI = [{"role": "user", "content": "hi"}]
ALIKE = [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    {"rms_norm_eps": 0.5},
    {"num_attention_heads": 2, "num_key_value_heads": 2},
    {"hidden_act": "gelu"},
]
"""Changes of a config that leave the shapes of all weights as they are."""


@pytest.mark.parametrize("change", ALIKE)
def test_llamas_of_one_shape_that_count_differently_are_no_stack(change: dict[str, Any]) -> None:
    models = {"p": llama(0).double(), "q": llama(1, **change).double()}
    sizes = [[p.shape for p in m.parameters()] for m in models.values()]
    assert sizes[0] == sizes[1]
    assert can_stack([models["p"]])
    assert not can_stack(list(models.values()))
    requests = [
        Request(p, np.arange(5, 12), Sampling(max_tokens=9), i) for i, p in enumerate("pqpq")
    ]
    said = engine_of(models, [3], 0, 128).generate(requests)
    same(
        [engine_of({r.policy: models[r.policy]}, [3], 0, 128).generate([r])[0] for r in requests],
        said,
    )


def test_a_host_has_room_for_what_the_smallest_of_its_models_has_room_for(tmp_path: Path) -> None:
    small = {
        "n_positions": 64,
        "max_position_embeddings": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    }
    bases = {
        "large": str(tiny_model(tmp_path / "large", max_position_embeddings=256)),
        "small": str(tiny_model(tmp_path / "small", family="gpt2", **small)),
    }
    host = make_local_host("home", bases, device="cpu")
    host.close()
    assert host.context == 64


def with_token(folder: Path, template: str | None = None, **added: Any) -> Path:
    """A model whose tokenizer has one token more than the model has embeddings."""
    tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(added)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return folder


def test_padding_that_was_added_to_the_tokenizer_only_is_never_read(tmp_path: Path) -> None:
    host = make_local_host(
        "home", {"p": str(with_token(tmp_path, pad_token="<new pad>"))}, device="cpu"
    )
    host.close()
    model = host.engine.models["p"].model
    pad_id = host.engine.pad_id
    assert host.chat.tokenizer.pad_token_id == len(model.get_input_embeddings().weight) > pad_id
    engine = engine_of({"p": model}, [3], pad_id, 128, engine="hf")
    asked = [Request("p", np.arange(5, 5 + n), Sampling(max_tokens=3), n) for n in (1, 30)]
    for a, b in zip(engine.generate(asked), [engine.generate([r])[0] for r in asked], strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() or min(a.margin, b.margin) < 1e-4


def test_a_template_with_tokens_that_the_model_cannot_read_is_one_line(tmp_path: Path) -> None:
    folder = with_token(
        tmp_path,
        "{% for m in messages %}<|new|>{{ m.content }}{% endfor %}",
        additional_special_tokens=["<|new|>"],
    )
    host = make_local_host("home", {"p": str(folder)}, device="cpu")
    host.close()
    with pytest.raises(
        UserMistake,
        match=r"'<\|new\|>', token 260, .* 260 embeddings",
    ):
        host.chat.encode(HI)


BROKEN = {
    "{{ messages[0].content + 1 }}": "refuses messages of user: can only concatenate",
    "{{ messages[0].content }}{{ 1 / 0 }}": "refuses messages of user: division by zero",
    "{{ messages[0].content }}{{ foo.bar }}": "refuses messages of user: 'foo' is undefined",
}


@pytest.mark.parametrize("template", BROKEN)
def test_whatever_a_template_raises_is_one_line(template: str, tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = template
    with pytest.raises(UserMistake, match=BROKEN[template]):
        Chat(tokenizer).encode(HI)


def test_several_templates_need_a_default(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = {"rag": "{{ messages[0].content }}", "tools": "x"}
    with pytest.raises(UserMistake, match=r"\(rag, tools\)"):
        Chat(tokenizer)
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tools": "x"}
    assert len(Chat(tokenizer).encode(HI)) == 2


def test_a_prompt_of_no_tokens_is_refused(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(UserMistake, match="a prompt of no tokens"):
        Chat(tokenizer).encode([{"role": "user", "content": ""}])


WRONG = [
    (
        "config.json",
        {"num_attention_heads": 3},
        "causal language model: .*not a multiple",
    ),
    ("config.json", {"hidden_size": 64}, "its weights have other shapes than its config.json says"),
    (
        "generation_config.json",
        {"eos_token_id": "3"},
        "eos_token_id in its generation_config.json is '3', no token",
    ),
    (
        "generation_config.json",
        {"eos_token_id": [3, 260]},
        "eos_token_id in its .* is 260, no token of its vocabulary of 260",
    ),
    (
        "generation_config.json",
        {"eos_token_id": -1},
        "eos_token_id in its generation_config.json is -1, no token",
    ),
]


@pytest.mark.parametrize(("file", "change", "told"), WRONG)
def test_a_config_that_contradicts_itself_is_one_line(
    file: str, change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tiny_model(tmp_path) / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserMistake, match=told):
        load_models({"p": str(tmp_path)})


def test_an_end_token_that_the_tokenizer_has_and_the_model_has_not(tmp_path: Path) -> None:
    """The model's own is one that it can say; without it there is none."""
    folder = with_token(tmp_path, eos_token="<new end>")
    assert load_models({"p": str(folder)})[2] == [3]
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    with pytest.raises(
        UserMistake,
        match=r"260, .* vocabulary of 260: set eos_token_id",
    ):
        load_models({"p": str(folder)})


ODD_CONFIGS = {
    '"rope_scaling": {"rope_type": "spiral", "factor": 2.0}': "cannot be loaded as a causal",
    '"hidden_act": "gulp"': "cannot be loaded as a causal",
    '"dtype": "float33"': "no tokenizer that can be loaded: module 'torch'",
    '"layer_types": ["odd", "odd"]': "cannot be loaded as a causal",
    '"pad_token_id": 99999': "cannot be loaded as a causal",
    '"attn_implementation": "flash_attention_2"': "cannot be loaded as a causal",
    '"quantization_config": {"quant_method": "gptq", "bits": 4}': r"is quantised \(gptq\)",
    '"quantization_config": {"quant_method": "fp8"}': r"is quantised \(fp8\)",
    '"quantization_config": {"load_in_4bit": true}': r"is quantised \(no method named\)",
}
"""What is added to a config.json, and what is said of it."""


@pytest.mark.parametrize("added", ODD_CONFIGS)
def test_configs_that_transformers_gives_up_on_are_one_line(added: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "odd")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **json.loads(f"{{{added}}}")}))
    with pytest.raises(UserMistake, match=ODD_CONFIGS[added]):
        load_models({"p": str(folder)})


@pytest.mark.parametrize("text", ["version https://git-lfs.github.com/spec/v1\n", "<html></html>"])
def test_files_that_are_no_weights_are_one_line(text: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "odd")
    (folder / "model.safetensors").write_text(text)
    with pytest.raises(UserMistake, match="causal language model"):
        load_models({"p": str(folder)})


def test_weights_of_pickles_alone_are_told_with_how_to_convert_them(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "odd")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserMistake, match=r"pytorch_model\.bin.*convert"):
        load_models({"p": str(folder)})


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model."])
def test_weights_under_a_prefix_are_told_with_it(prefix: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path / "odd")
    file = folder / "model.safetensors"
    weights = {prefix + name: weight for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(UserMistake, match=f"begin with '{prefix}'"):
        load_models({"p": str(folder)})


HEAD = "score.weight"
LEFT_OUT: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"num_hidden_layers": 1}, (), r"9 of its weights .*\(model\.layers\.1\."),
    ({}, (HEAD,), r"1 of its weights .*\(score\.weight"),
    (
        {},
        tuple(f"model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB"),
        r"2 of its weights .*q_proj\.lora_A",
    ),
]
"""Changes of a config, further weights, and what is noted."""


@pytest.mark.parametrize(("change", "further", "told"), LEFT_OUT)
def test_weights_that_a_config_names_no_place_for_are_told(
    change: dict[str, Any],
    further: tuple[str, ...],
    told: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path / "odd", num_hidden_layers=2)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    weights = load_file(folder / "model.safetensors")
    weights |= {name: torch.ones(2, 2) for name in further}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    load_models({"p": str(folder)})
    assert [record for record in caplog.messages if re.search(told, record)]


def test_weights_that_transformers_expects_and_ignores_are_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path / "old")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    load_models({"p": str(folder)})
    assert not [record for record in caplog.records if record.name == "comas"]


def test_models_are_loaded_one_at_a_time(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = AutoModelForCausalLM.from_pretrained
    at_once: list[int] = []
    most: list[int] = []

    def counted(*args: Any, **keys: Any) -> Any:
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.05)
        try:
            return load(*args, **keys)
        finally:
            at_once.pop()

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", counted)
    threads = [threading.Thread(target=load_models, args=({"p": str(tiny)},)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_sealed_weights_have_the_rights_that_the_umask_leaves(
    umask: int, mode: int, tmp_path: Path
) -> None:
    from comas.storage import files

    folder = tmp_path / "sealed"
    (folder / "a0").mkdir(parents=True)
    weights = folder / "a0" / "model.safetensors"
    weights.write_text("weights")
    weights.chmod(0o600)
    before = os.umask(umask)
    try:
        files.seal(folder, {})
    finally:
        os.umask(before)
    assert weights.stat().st_mode & 0o777 == mode
    assert (folder / "a0").stat().st_mode & 0o777 == mode | (mode & 0o444) >> 2


def test_policies_of_one_host_share_a_tokenizer() -> None:
    seed, repair = place_of_model("tiny"), place_of_model("tiny-repair")
    load_models({"a": seed, "b": seed})
    with pytest.raises(UserMistake, match=r"policy b .*tokenizer .*tiny'"):
        load_models({"a": seed, "b": repair})
