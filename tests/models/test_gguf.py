"""A GGUF file as a base: dequantised, with the tokenizer and the chat template that it holds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from comas.evaluation.systems import team_of
from comas.export.team import export
from comas.models import gguf as gguf_files
from comas.models import kept
from comas.models.loading import load_models
from comas.models.sources import source_of
from comas.testing.tiny import _tiny_tokenizer, tiny_model
from comas.types import UserMistake
from tests.support.runs import run_of

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")


def written(
    path: Path,
    folder: Path,
    architecture: str = "llama",
    template: str | None = "own",
    kind: Any = None,
    merges: Sequence[str] = ("a b", "c d"),
) -> Path:
    """The model of a Hugging Face folder as a GGUF file of float32, or with its matrices in
    another `kind` of numbers.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in special else 1 for word in words])
    writer.add_token_merges(list(merges))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    for name, numbers in tensors(model):
        if kind is None or numbers.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(numbers))
        else:
            coarse = gguf.quants.quantize(np.ascontiguousarray(numbers), kind)
            writer.add_tensor(name, coarse, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tensors(model: Any) -> list[tuple[str, np.ndarray]]:
    """Weights by their names in a file; queries and keys in llama.cpp's order of angles."""
    found = [
        ("token_embd.weight", model.model.embed_tokens.weight),
        ("output_norm.weight", model.model.norm.weight),
        ("output.weight", model.lm_head.weight),
    ]
    for i, block in enumerate(model.model.layers):
        for ours, theirs in NAMES.items():
            weight = block.get_submodule(ours).weight
            heads = {
                "attn_q": model.config.num_attention_heads,
                "attn_k": model.config.num_key_value_heads,
            }
            if theirs in heads:
                halves = weight.view(heads[theirs], 2, -1, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
            found.append((f"blk.{i}.{theirs}.weight", weight))
    return [(name, weight.detach().numpy()) for name, weight in found]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are kept, for one test."""
    place = tmp_path / "cache"
    monkeypatch.setattr(gguf_files, "cache", lambda _: place)
    monkeypatch.setattr(kept, "cache", lambda kind: place / kind)
    gguf_files.config_folder.cache_clear()
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tokenizer that joins two pairs of letters: the format wants some."""
    tokenizer = _tiny_tokenizer()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    size = len(state["model"]["vocab"])
    state["model"]["vocab"] |= {"ab": size, "cd": size + 1}
    state["model"]["merges"] = [["a", "b"], ["c", "d"]]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model", tokenizer=tokenizer)


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return written(folder.parent / "tiny.gguf", folder)


def test_the_file_is_the_model_that_it_was_written_from(folder: Path, file: Path) -> None:
    one, other = (load_models({"p": str(place)})[0]["p"] for place in (folder, file))
    ids = torch.arange(12)[None]
    torch.testing.assert_close(one(input_ids=ids).logits, other(input_ids=ids).logits)
    assert source_of(str(file)).kind == "gguf"
    assert source_of(str(file)).origin == {str(file)}
    assert gguf_files.parameters(str(file)) == one.num_parameters()


def test_its_tokenizer_and_template_come_from_the_file(folder: Path, file: Path) -> None:
    _, own, ends = load_models({"p": str(folder)})
    _, found, found_ends = load_models({"p": str(file)})
    said = [{"role": "user", "content": "3 + 4"}]
    assert found.chat_template == own.chat_template
    assert found_ends == ends
    assert found.apply_chat_template(said, tokenize=False) == own.apply_chat_template(
        said, tokenize=False
    )
    assert found("3 + 4 = 7").input_ids == own("3 + 4 = 7").input_ids


@pytest.mark.parametrize("learner", ["adapters", "full"])
def test_a_team_trains_from_it_and_is_exported_as_folders(
    learner: str, file: Path, tmp_path: Path
) -> None:
    keys = {"hosts__home__learner": learner, "lr": 1e-3, "steps": 1, "agents": 2}
    run = run_of(tmp_path / "run", file, test_questions=0, eval_every=0, **keys)
    done = export(run.path, tmp_path / "team")
    for policy in done.policies:
        model: Any = AutoModelForCausalLM.from_pretrained(policy["model"])
        assert not hasattr(model.config, "quantization_config")
    assert list((tmp_path / "team" / "a0" / "model").glob("*.safetensors"))
    team_of(tmp_path / "team" / "team.toml", lr=1e-3).close()


def test_what_cannot_be_talked_to_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(UserMistake) as said:
            load_models({"p": str(path)})
        return str(said.value)

    assert "no such file" in refused(tmp_path / "gone.gguf")
    (tmp_path / "other.gguf").write_bytes(b"no such thing, and long enough to be read as one")
    assert "is not a GGUF file" in refused(tmp_path / "other.gguf")
    whole = written(tmp_path / "whole.gguf", folder).read_bytes()
    for size in (10, 1000, len(whole) // 2, len(whole) - 5):
        cut = tmp_path / f"cut-{size}.gguf"
        cut.write_bytes(whole[:size])
        assert f"is a GGUF file that is cut or damaged, of {size:,} bytes" in refused(cut)
    mute = written(tmp_path / "mute.gguf", folder, template=None)
    assert "has no chat template: choose a file of an instruction-tuned model" in refused(mute)
    strange = written(tmp_path / "strange.gguf", folder, architecture="mamba9")
    assert "has architecture 'mamba9', which transformers does not read" in refused(strange)
    for package in ("gguf", "accelerate"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, package, None)
            gguf_files._facts_of.cache_clear()
            assert 'pip install "comas[gguf]"' in refused(mute)


def all_files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*.*")}


def test_merges_of_a_token_that_is_not_there_are_one_line(folder: Path, tmp_path: Path) -> None:
    broken = written(tmp_path / "broken.gguf", folder, merges=("a b", "x nowhere"))
    with pytest.raises(UserMistake, match=r"broken\.gguf'.*tokenizer") as caught:
        gguf_files.config_folder(str(broken))
    assert "\n" not in str(caught.value)


def test_what_a_killed_process_left_is_removed(file: Path, cache: Path) -> None:
    place = gguf_files.copy_folder(str(file)).parent
    for name, age in (("unfinished-old", 2 * gguf_files.ABANDONED), ("unfinished-now", 0.0)):
        (place / name).mkdir(parents=True)
        os.utime(place / name, (time.time() - age, time.time() - age))
    load_models({"p": str(file)})
    assert [left.name for left in place.glob("unfinished-*")] == ["unfinished-now"]


def test_a_copy_is_kept_and_serves_the_same_model(file: Path, cache: Path) -> None:
    assert not gguf_files.has_copy(str(file))
    described = gguf_files.config_folder(str(file))
    first, tokenizer, ends = load_models({"p": str(file)})
    assert gguf_files.has_copy(str(file))
    made = all_files(cache)
    assert not [name for name in made if "unfinished" in name]
    second, again, same_ends = load_models({"p": str(file)})
    assert all_files(cache) == made
    numbers = dict(second["p"].named_parameters())
    for name, number in first["p"].named_parameters():
        assert torch.equal(number, numbers[name])
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template
    assert same_ends == ends
    assert second["p"].config.name_or_path == again.name_or_path == str(file)
    assert gguf_files.parameters(str(file)) == first["p"].num_parameters()
    gguf_files.config_folder.cache_clear()
    read = [
        json.loads((Path(place) / "config.json").read_text())
        for place in (described, gguf_files.config_folder(str(file)))
    ]
    only_one = {"quantization_config", "architectures", "dtype"}
    plain = [{k: v for k, v in config.items() if k not in only_one} for config in read]
    assert plain[0] == plain[1]


@pytest.mark.parametrize(
    ("kind", "kept", "rounded"),
    [(None, "float32", False), ("F16", "float32", False), ("Q8_0", "bfloat16", True)],
)
def test_a_copy_and_its_file_give_the_same_weights(
    kind: str | None, kept: str, rounded: bool, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    type_ = None if kind is None else gguf.GGMLQuantizationType[kind]
    file = written(tmp_path / "some.gguf", folder, kind=type_)
    copied = load_models({"p": str(file)})[0]["p"]
    config = json.loads((gguf_files.copy_folder(str(file)) / "config.json").read_text())
    assert config["dtype"] == kept
    monkeypatch.setattr(gguf_files, "LARGEST_COPIED", 10)
    direct = load_models({"p": str(file)})[0]["p"]
    numbers = dict(direct.named_parameters())
    for name, number in copied.named_parameters():
        assert number.dtype == torch.float32
        assert torch.equal(number, numbers[name])
    rounds = [torch.equal(n, n.bfloat16().float()) for n in numbers.values() if n.dim() > 1]
    assert all(rounds) is rounded


def test_another_file_of_the_same_name_has_another_copy(
    file: Path, folder: Path, tmp_path: Path, cache: Path
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(file.read_bytes())
    load_models({"p": str(own)})
    written(
        own, tiny_model(tmp_path / "other", tokenizer=AutoTokenizer.from_pretrained(folder), seed=9)
    )
    assert not gguf_files.has_copy(str(own))
    load_models({"p": str(own)})
    assert len(list(cache.iterdir())) == 2


def test_a_copy_that_was_not_finished_is_none(file: Path, cache: Path) -> None:
    load_models({"p": str(file)})
    (gguf_files.copy_folder(str(file)) / "manifest.json").unlink()
    assert not gguf_files.has_copy(str(file))
    load_models({"p": str(file)})  # read from the file, and kept anew
    assert gguf_files.has_copy(str(file))
    assert len(list(cache.iterdir())) == 1


def test_where_no_copy_can_be_kept_the_file_is_read_each_time(
    file: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("no folder")
    load_models({"p": str(file)})
    assert "it is read anew each time" in caplog.text
    assert cache.read_text() == "no folder"


def spoilt(copy: Path, how: str) -> None:
    """Damage a copy."""
    manifest = copy / "manifest.json"
    weights = copy / "model.safetensors"
    if how == "flipped":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif how == "gone":
        weights.unlink()
    else:
        manifest.write_text(how)


@pytest.mark.parametrize("how", ["", "{}", '{"files": {}}', "[1]", "flipped", "gone"])
def test_a_damaged_copy_is_made_anew(how: str, file: Path, cache: Path) -> None:
    load_models({"p": str(file)})
    copy = gguf_files.copy_folder(str(file))
    spoilt(copy, how)
    gguf_files._is_whole.cache_clear()  # as in another process
    assert gguf_files.parameters(str(file)) > 0
    load_models({"p": str(file)})
    gguf_files._is_whole.cache_clear()
    assert gguf_files.has_copy(str(file))


@pytest.mark.parametrize("error", [OSError("full"), SafetensorError("I/O error: No space left")])
def test_a_copy_that_cannot_be_written_is_a_warning(
    error: Exception, file: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        def save_pretrained(self, _: Path) -> None:
            raise error

    gguf_files.keep_copy(str(file), Full(), Full())
    assert "no copy of" in caplog.text
    assert not gguf_files.has_copy(str(file))


def test_a_copy_that_cannot_be_read_is_none(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_models({"p": str(file)})
    gguf_files._is_whole.cache_clear()
    read = Path.read_text

    def refused(path: Path, *args: Any, **keys: Any) -> str:
        if path.name == "manifest.json":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *args, **keys)

    monkeypatch.setattr(Path, "read_text", refused)
    assert not gguf_files.has_copy(str(file))
    assert gguf_files.arguments_of(str(file))[1], "the file itself is read"
