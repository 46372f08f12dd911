"""Every recipe can be read, has a page, and fits into the memory that its page speaks of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from comas import memory
from comas.config.plan import plan
from comas.config.schema import checked, read
from comas.machine import DeviceMemory
from comas.models.sources import installed_at
from comas.testing import tiny_model
from tests.support.command import run

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(file.stem for file in RECIPES.glob("*.toml"))
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-3B-Instruct": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "smollm2": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-360M-Instruct": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}
"""Bases of recipes by their published config.json: nothing is downloaded."""
CARDS = {
    "qwen-0.5b-gsm8k": 8.0,
    "qwen-3b-four-agents-vllm": 80.0,
    "mixed-team": 12.0,
    "api-judge": 8.0,
}
"""GB of the smallest card that each recipe is for."""
LAPTOP = 4.0
"""GB that the recipe of a laptop takes at most."""


def at_shapes(name: str, folder: Path) -> dict[str, Any]:
    """A recipe's keys, with folders of shapes for bases that only a hub has."""
    keys = tomllib.loads((RECIPES / f"{name}.toml").read_text())
    for host in keys["hosts"].values():
        shape = SHAPES.get(host.get("base"))
        if shape is not None:
            place = folder / host["base"].replace("/", "--")
            AutoConfig.for_model(**shape).save_pretrained(place)
            host["base"] = str(place)
            host["dtype"] = "bfloat16" if name in CARDS else "float32"
    return keys


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_has_a_page_that_says_what_was_measured(name: str) -> None:
    page = (RECIPES / f"{name}.md").read_text()
    assert f"recipes/{name}.toml" in page
    assert "**Measured:**" in page
    assert "**Not measured:**" in page
    assert f"({name}.md)" in (RECIPES / "README.md").read_text()


@pytest.mark.parametrize(("name", "gigabytes"), sorted({**CARDS, "smollm2-sums": LAPTOP}.items()))
def test_a_recipe_fits_its_card(
    name: str, gigabytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = DeviceMemory(int(gigabytes * 1e9), int(gigabytes * 1e9))
    monkeypatch.setattr(memory, "memory_of", lambda _: card)
    monkeypatch.setattr(memory, "SHARES", {"cpu": memory.SHARES["gpu"]})
    planned = plan(read(None, at_shapes(name, tmp_path)))
    found = memory.memory_plan(planned)
    found.check()
    assert all(host.kept for host in found.hosts), [host.unknown for host in found.hosts]
    for name, chosen in memory.with_bounds(planned, found).config.hosts.items():
        if chosen.here:
            assert chosen.max_rows >= 16, name
            assert chosen.tokens_per_pass >= 1024, name


def test_every_recipe_is_planned(tmp_path: Path) -> None:
    for name in {*NAMES} - {"two-families"}:  # whose packaged model is an extra
        plan(read(None, at_shapes(name, tmp_path)))
    keys = tomllib.loads((RECIPES / "two-families.toml").read_text())
    keys["hosts"]["smol"]["base"] = keys["hosts"]["qwen"]["base"]
    plan(checked({**keys, "lr": 1e-4}))


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_recipe_can_be_dry_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read when imported
    out = f"out={tmp_path / 'run'}"
    code = run(["train", str(RECIPES / f"{name}.toml"), out, "--dry-run"], monkeypatch)
    written = capsys.readouterr()
    assert code == 2
    *notes, error = written.err.splitlines()
    assert all(line.startswith("note: ") for line in notes)
    # what is not on this machine, and nothing else
    assert re.search(r"is not installed: pip install|hub cannot be reached|is not set", error), (
        error
    )


def test_the_recipe_of_a_packaged_model_can_be_dry_run_on_another_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = f"hosts.home.base={tiny_model(tmp_path / 'tiny')}"
    file = str(RECIPES / "smollm2-sums.toml")
    words = ["train", file, base, "hosts.home.rank=2", f"out={tmp_path / 'run'}", "--dry-run"]
    assert run(words, monkeypatch) == 0
    assert "time: " in capsys.readouterr().out


@pytest.mark.real
@pytest.mark.skipif(installed_at("smollm2") is None, reason="the model is not installed")
def test_the_recipe_of_a_packaged_model_can_be_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(RECIPES / "smollm2-sums.toml")
    assert run(["train", file, f"out={tmp_path / 'run'}", "--dry-run"], monkeypatch) == 0
    assert "time:   about" in capsys.readouterr().out


def test_the_recipe_of_a_packaged_model_resolves() -> None:
    config = plan(read(RECIPES / "smollm2-sums.toml")).config
    assert config.hosts["home"].base == "smollm2"
    assert config.lr == 3e-4
