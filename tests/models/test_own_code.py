"""Models that bring Python code along: it runs where the config says so, and nobody is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from comas.learners.precision import bfloat16_speed
from comas.memory import size_of
from comas.models.loading import load_models
from comas.testing import tiny_model
from comas.types import UserMistake
from tests.support.apart import ApartForCausalLM
from tests.support.command import run

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({ran!r}).write_text("")
class OwnConfig(LlamaConfig):
    model_type = "unheard-of"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
TRUSTED = "hosts.<name>.trust_remote_code=true"


def changed(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


@pytest.fixture(name="own")
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose config and class are its own; where it is asked whether they may run, somebody
    says yes.
    """
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = tiny_model(tmp_path / "own")
    (folder / "own.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    changed(folder / "config.json", model_type="unheard-of", auto_map=classes)
    return folder


def has_run(folder: Path) -> bool:
    return (folder.parent / "ran").exists()


@pytest.mark.parametrize("command", ["eval", "train", "play"])
def test_no_command_runs_the_code_of_a_model_that_is_not_trusted(
    command: str, own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "eval": [str(own), "--tasks", "sums", "--out", str(own.parent / "e")],
        "train": [f"hosts.home.base={own}", "lr=1e-4", "steps=1", f"out={own.parent / 'r'}"],
        "play": [f"hosts.home.base={own}", "lr=1e-4"],
    }[command]
    assert run([command, *arguments], monkeypatch) == 2
    assert TRUSTED in capsys.readouterr().err
    assert not has_run(own)


def test_sizes_are_read_without_the_code_of_a_model_that_is_not_trusted(own: Path) -> None:
    with pytest.raises(ValueError, match="custom code"):
        size_of(str(own), str(own))
    assert bfloat16_speed(str(own)) == 1.0
    assert not has_run(own)


def test_a_tokenizer_of_its_own_is_refused_as_well(tmp_path: Path, own: Path) -> None:
    folder = tiny_model(tmp_path / "plain")
    shutil.copy(own / "own.py", folder)
    classes = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
    changed(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=classes)
    with pytest.raises(UserMistake, match=r"tokenizer.*hosts\.<name>\.trust_remote_code=true"):
        load_models({"p": str(folder)})
    assert not has_run(own)
    load_models({"p": str(folder)}, trust_remote_code=True)
    assert has_run(own)


def test_code_of_a_trusted_model_runs_unasked(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("builtins.input", lambda *a: asked.append(a) or "n")
    assert size_of(str(own), str(own), trust_remote_code=True).layers > 0
    assert bfloat16_speed(str(own), trust_remote_code=True) > 0
    models, _, _ = load_models({"p": str(own)}, trust_remote_code=True)
    assert type(models["p"]).__name__ == "OwnModel"
    assert has_run(own)
    assert not asked


def test_a_family_that_transformers_has_is_loaded_without_the_code_beside_it(own: Path) -> None:
    changed(own / "config.json", model_type="llama")
    models, _, _ = load_models({"p": str(own)})
    assert type(models["p"]).__name__ == "LlamaForCausalLM"
    assert not has_run(own)


def test_a_class_of_its_own_for_a_known_config_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "apart")
    shutil.copy(Path(__file__).parents[1] / "support" / "apart.py", folder / "modeling_apart.py")
    config = AutoConfig.from_pretrained(folder)
    ApartForCausalLM(config).save_pretrained(folder)
    changed(
        folder / "config.json",
        model_type="apart",
        auto_map={"AutoModelForCausalLM": "modeling_apart.ApartForCausalLM"},
    )
    with pytest.raises(UserMistake, match="causal language model"):
        load_models({"p": str(folder)})
