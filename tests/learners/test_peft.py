"""Adapters as the world writes and reads them: ours in peft, peft's in ours, and runs that start
from either.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import comas
from comas.learners.lora import peft_folder
from comas.learners.lora.peft_folder import load_population, save_merged
from comas.learners.lora.population import Population
from comas.seams import AdapterSpec
from comas.storage.run import Run
from comas.testing import tiny_model
from comas.types import UserMistake
from tests.support.adapters import SPECS, fill
from tests.support.command import run
from tests.support.families import family_model
from tests.support.runs import run_of

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning:transformers", "ignore::UserWarning:peft"
)
pytestmark = [pytestmark, pytest.mark.usefixtures("one_thread")]

IDS = torch.arange(20, 32)[None]


def logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=IDS).logits.log_softmax(-1).numpy()


def ours(made: Population, policy: str) -> np.ndarray:
    with made.routed([made.policies.index(policy)]):
        return logits(made.model)


def plain(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base).eval()


def by_peft(base: Path, folder: Path, **options: Any) -> Path:
    """An adapter as peft writes it, with weights that are not zero."""
    torch.manual_seed(3)
    made = peft.get_peft_model(
        plain(base), peft.LoraConfig(**{"r": 4, "task_type": "CAUSAL_LM", **options})
    )
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3)
    made.save_pretrained(folder)
    return folder


def read_by_peft(base: Path, folder: Path) -> np.ndarray:
    return logits(peft.PeftModel.from_pretrained(plain(base), folder).eval())


def loaded(base: Path, **folders: Path) -> Population:
    sources = {p: str(f) for p, f in folders.items()}
    return load_population(sources, str(base), "cpu", torch.float32, False, {}, 0)[0]


def test_peft_reads_ours_one_by_one_and_together(tiny: Path, tmp_path: Path) -> None:
    made = Population(plain(tiny), SPECS)
    for i, p in enumerate(SPECS):
        fill(made, p, 0.3, i)
        peft_folder.save(made, p, tmp_path / p, str(tiny))
        assert np.abs(ours(made, p) - logits(plain(tiny))).max() > 0.1
        np.testing.assert_allclose(read_by_peft(tiny, tmp_path / p), ours(made, p), atol=2e-5)
    together = peft.PeftModel.from_pretrained(plain(tiny), tmp_path / "a", adapter_name="a").eval()
    for p in "bcd":
        together.load_adapter(tmp_path / p, adapter_name=p)
    for p in SPECS:
        together.set_adapter(p)
        np.testing.assert_allclose(logits(together), ours(made, p), atol=2e-5)
    again = loaded(tiny, **{p: tmp_path / p for p in SPECS})
    assert torch.equal(again.flat_PN, made.flat_PN)
    assert {p: (s.rank, s.alpha) for p, s in again.specs.items()} == {
        p: (s.rank, s.alpha) for p, s in SPECS.items()
    }
    assert again.targets == made.targets


PLAIN = [
    ("llama", {}),
    ("llama", {"lora_alpha": 5, "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.5}),
    ("qwen2.5", {"use_rslora": True, "lora_alpha": 3, "target_modules": "all-linear"}),
    ("qwen3", {"target_modules": r".*\.1\..*(gate|up)_proj", "r": 7}),
    ("gemma3", {"rank_pattern": {"q_proj": 6}, "target_modules": ["q_proj"], "lora_alpha": 12}),
    (
        "phi3",
        {
            "target_modules": ["qkv_proj", "gate_up_proj"],
            "alpha_pattern": {"qkv_proj": 3, "mlp.gate_up_proj": 3},
        },
    ),
    (
        "llama",
        {
            "rank_pattern": {r".*\.self_attn\..*": 2, "mlp.up_proj": 2},
            "alpha_pattern": {"^model.layers.*": 9},
            "target_modules": ["q_proj", "up_proj"],
        },
    ),
    (
        "llama",
        {"layers_to_transform": [1], "target_modules": ["k_proj"], "init_lora_weights": "gaussian"},
    ),
    ("gpt2", {"target_modules": "all-linear"}),
    ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "r": 5}),
    ("opt", {"target_modules": "all-linear", "lora_alpha": 5}),
    ("opt", {"target_modules": ["fc1", "v_proj"]}),
]
OTHERWISE: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"tie_word_embeddings": True},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
}
"""Config of those that `family_model` does not make."""


def base_of(folder: Path, family: str) -> Path:
    changes = {"initializer_range": 0.3, "init_std": 0.3}
    return (
        tiny_model(folder, 0, family, **OTHERWISE[family], **changes)
        if family in OTHERWISE
        else family_model(folder, family)
    )


@pytest.mark.parametrize(("family", "options"), PLAIN)
def test_what_peft_wrote_says_the_same_here(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    base = base_of(tmp_path / "base", family)
    folder = by_peft(base, tmp_path / "adapter", **options)
    made = loaded(base, a=folder, b=base)
    wanted = read_by_peft(base, folder)
    np.testing.assert_allclose(ours(made, "a"), wanted, atol=5e-5)
    np.testing.assert_array_equal(ours(made, "b"), logits(plain(base)))
    assert np.abs(wanted - logits(plain(base))).max() > 1e-2
    peft_folder.save(made, "a", tmp_path / "back", str(base))
    np.testing.assert_allclose(read_by_peft(base, tmp_path / "back"), wanted, atol=5e-5)
    merged = peft.PeftModel.from_pretrained(plain(base), folder).merge_and_unload().state_dict()
    for name, weight in made.merged("a").items():
        torch.testing.assert_close(weight, merged[name], atol=1e-5, rtol=1e-5)
    whole = plain(base)
    whole.load_state_dict(made.merged("a"), strict=False)
    np.testing.assert_allclose(logits(whole), wanted, atol=5e-5)
    assert save_merged(made, "a", tmp_path / "whole") < 1e-4
    np.testing.assert_allclose(logits(plain(tmp_path / "whole")), wanted, atol=5e-5)


@pytest.mark.parametrize("said", [True, False])
def test_how_weights_lie_is_told_to_peft_and_no_matter_to_us(said: bool, tmp_path: Path) -> None:
    """peft writes true for GPT-2 and asks the layer itself when it reads."""
    base = base_of(tmp_path / "base", "gpt2")
    made = Population(
        plain(base), {"a": AdapterSpec(4), "b": AdapterSpec(2, 8.0, ("mlp.c_proj", "c_attn"))}
    )
    for i, p in enumerate("ab"):
        fill(made, p, 0.3, i)
        peft_folder.save(made, p, tmp_path / p, str(base))
        file = tmp_path / p / "adapter_config.json"
        config = json.loads(file.read_text())
        assert config["fan_in_fan_out"] is True
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "fan_in_fan_out")
            np.testing.assert_allclose(read_by_peft(base, tmp_path / p), ours(made, p), atol=5e-5)
        file.write_text(json.dumps({**config, "fan_in_fan_out": said}))
    again = loaded(base, **{p: tmp_path / p for p in "ab"})
    assert torch.equal(again.flat_PN, made.flat_PN)
    assert np.abs(ours(again, "a") - ours(again, "b")).max() > 1e-2


OTHER = [
    ({"use_dora": True}, "use_dora is True"),
    ({"bias": "lora_only"}, "bias is 'lora_only'"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
    ({"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens.* is no LoRA of a linear layer"),
    ({"target_modules": ["lm_head"]}, "lm_head.* is no LoRA of a linear layer"),
    ({"trainable_token_indices": [5]}, "trainable_token_indices"),
    ({"init_lora_weights": "pissa"}, "'pissa', which also changes"),
    ({"init_lora_weights": "olora"}, "'olora', which also changes"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    (
        {"rank_pattern": {"q_proj": 2}, "target_modules": ["q_proj", "v_proj"]},
        r"ranks \[2, 4\] in one adapter",
    ),
    (
        {"alpha_pattern": {"q_proj": 2}, "target_modules": ["q_proj", "v_proj"]},
        r"alphas \[2, 8\] in one adapter",
    ),
]


@pytest.mark.parametrize(("options", "said"), OTHER, ids=lambda o: str(o)[:40])
def test_what_is_not_plain_lora_is_refused(
    options: dict[str, Any], said: str, tiny: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = by_peft(tiny, tmp_path / "x", **{"target_modules": ["q_proj"], **options})
    with pytest.raises(UserMistake, match=said) as caught:
        loaded(tiny, a=folder)
    assert ("merge_and_unload" in str(caught.value)) == ("also changes" not in said)


def test_pickled_tensors_of_an_adapter_are_refused_with_a_way_on(
    tiny: Path, tmp_path: Path
) -> None:
    folder = by_peft(tiny, tmp_path / "x")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UserMistake, match=r"adapter_model\.bin.*merge_and_unload"):
        loaded(tiny, a=folder)


def test_other_adapters_and_damaged_folders_are_refused(tiny: Path, tmp_path: Path) -> None:
    made = peft.get_peft_model(plain(tiny), peft.IA3Config(task_type="CAUSAL_LM"))
    made.save_pretrained(tmp_path / "ia3")
    with pytest.raises(UserMistake, match="peft_type is 'IA3'"):
        loaded(tiny, a=tmp_path / "ia3")
    described = tmp_path / "ia3" / "adapter_config.json"
    for kind, remedy in (("VERA", "merge_and_unload"), ("PREFIX_TUNING", "take its base alone")):
        described.write_text(json.dumps({"peft_type": kind}))
        with pytest.raises(UserMistake, match=rf"peft_type is '{kind}'.*{remedy}"):
            loaded(tiny, a=tmp_path / "ia3")
    folder = by_peft(tiny, tmp_path / "x")
    tensors = folder / "adapter_model.safetensors"
    config = folder / "adapter_config.json"
    kept = tensors.read_bytes()
    for name, data, said in (
        (tensors, kept[:1000], "has no adapter_model.safetensors that can be read"),
        (tensors, None, "has no"),
        (config, b"[1]", "it is no object"),
        (config, b"{", "cannot be read"),
        (config, b"[" * 100_000, "nested too deeply"),
        (config, b'{"lora_alpha": "two"}', "lora_alpha is 'two', wanted is a finite number"),
        (config, b'{"lora_alpha": NaN}', "lora_alpha is nan"),
        (config, b'{"alpha_pattern": ["x"]}', "wanted is a table"),
        (config, b'{"alpha_pattern": {"(": 3}}', "no plain pattern"),
        (config, b'{"alpha_pattern": {"(([a-z0-9._])+)+X": 3}}', "no plain pattern"),
        (config, b'{"alpha_pattern": {".*.*.*.*X": 3}}', "no plain pattern"),
    ):
        whole = name.read_bytes()
        name.unlink() if data is None else name.write_bytes(data)
        with pytest.raises(UserMistake, match=said):
            loaded(tiny, a=folder)
        name.write_bytes(whole)
    half = {
        k: v
        for k, v in load_file(tensors).items()
        if not k.endswith("0.self_attn.q_proj.lora_B.weight")
    }
    save_file(half, tensors)
    with pytest.raises(UserMistake, match=r"layers\.0\.self_attn\.q_proj\.lora_B"):
        loaded(tiny, a=folder)


def test_an_adapter_may_begin_with_a_byte_order_mark_and_has_to_be_finite(
    tiny: Path, tmp_path: Path
) -> None:
    folder = by_peft(tiny, tmp_path / "x")
    config = folder / "adapter_config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    loaded(tiny, a=folder)
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor * torch.nan for name, tensor in load_file(file).items()}, file)
    with pytest.raises(UserMistake, match=r"not finite, in"):
        loaded(tiny, a=folder)


def test_an_adapter_for_another_base_is_refused(tiny: Path, tmp_path: Path) -> None:
    made = Population(plain(tiny), {"a": AdapterSpec(4)})
    peft_folder.save(made, "a", tmp_path / "a", "hub/name")
    with pytest.raises(UserMistake, match=r"'hub/name', .*weights differ"):
        loaded(tiny_model(tmp_path / "sister", seed=1), a=tmp_path / "a")
    with pytest.raises(UserMistake, match=r"\(4, 32\), and \(4, 48\)"):
        loaded(tiny_model(tmp_path / "wide", hidden_size=48), a=by_peft(tiny, tmp_path / "p"))
    with pytest.raises(UserMistake, match=r"shallow.*'model\.layers\.1"):
        loaded(tiny_model(tmp_path / "shallow", num_hidden_layers=1), a=tmp_path / "a")
    with pytest.raises(
        UserMistake,
        match=r"'model\.layers\.0\.mlp\.gate_proj'.*gate_up_proj",
    ):
        loaded(family_model(tmp_path / "phi", "phi3"), a=tmp_path / "a")


# --- runs


@pytest.fixture(scope="module")
def first(tiny: Path, paid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that trained adapters of several ranks."""
    agents = {"a0": {"rank": 2}, "a1": {"rank": 3, "targets": ["q_proj"]}, "a2": {}}
    return run_of(
        tmp_path_factory.mktemp("runs") / "first", tiny, agents=agents, hosts__home__rank=5, **paid
    )


def weights(run: Run, policy: str, step: int = 3) -> dict[str, torch.Tensor]:
    return load_file(
        run.path / "checkpoints" / f"step-{step}" / policy / "adapter_model.safetensors"
    )


def test_a_run_writes_adapters_that_peft_reads(first: Run, tiny: Path) -> None:
    folder = first.path / "checkpoints" / "step-3"
    ranks = {
        p: json.loads((folder / p / "adapter_config.json").read_text())["r"]
        for p in ("a0", "a1", "a2")
    }
    assert ranks == {"a0": 2, "a1": 3, "a2": 5}
    team = comas.load(first.path)
    made = population_of(team)
    for p in ranks:
        np.testing.assert_allclose(read_by_peft(tiny, folder / p), ours(made, p), atol=2e-5)
        assert np.abs(ours(made, p) - logits(plain(tiny))).max() > 1e-4
    team.close()


def population_of(team: Any) -> Population:
    """The population that the host `home` samples from."""
    return next(iter(team.hosts["home"].engine.models.values())).shared


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_bases_of_other_shapes_play_learn_and_are_read_by_peft(
    family: str, paid: dict[str, Any], tmp_path: Path
) -> None:
    base = base_of(tmp_path / "base", family)
    made = run_of(tmp_path / "run", base, agents=3, **paid)
    steps = [metrics["policies"] for metrics in made.metrics()]
    for policy in ("home/a0", "home/a1", "home/a2"):
        assert all(p[policy]["updates"] >= 1 and p[policy]["gap_max"] < 1e-4 for p in steps)
        assert any(p[policy]["grad_norm"] > 0 for p in steps)  # some step's pay may be all alike
    team = comas.load(made.path)
    there = population_of(team)
    for p in ("a0", "a1", "a2"):
        np.testing.assert_allclose(
            read_by_peft(base, made.path / "checkpoints" / "step-3" / p), ours(there, p), atol=5e-5
        )
        assert np.abs(ours(there, p) - logits(plain(base))).max() > 1e-4
    team.close()


def test_a_run_may_start_from_adapters(
    first: Run, tiny: Path, paid: dict[str, Any], tmp_path: Path
) -> None:
    """From one of peft for one agent, from one for all, from a run, and from a run
    that started so.
    """
    folder = by_peft(tiny, tmp_path / "peft", r=3, lora_alpha=4, target_modules=["q_proj"])
    start = load_file(folder / "adapter_model.safetensors")
    still = {**paid, "steps": 0}
    mixed = run_of(
        tmp_path / "mixed", tiny, agents__a0__base=str(folder), agents__a1__host="home", **still
    )
    assert all(torch.equal(weights(mixed, "a0", 0)[k], v) for k, v in start.items())
    assert not any(v.any() for k, v in weights(mixed, "a1", 0).items() if "lora_B" in k)
    shared = run_of(tmp_path / "shared", folder, **still)
    assert all(
        torch.equal(weights(shared, p, 0)[k], v) for p in ("a0", "a3") for k, v in start.items()
    )
    begun = run_of(
        tmp_path / "begun",
        Path(f"{first.path}@best"),
        agents={p: {} for p in ("a0", "a1", "a2")},
        **paid,
    )
    best = weights(first, "a1", first.best())
    assert [k for k, v in weights(begun, "a1").items() if not torch.equal(best[k], v)]
    assert next(begun.metrics())["policies"]["home/a1"]["gap_max"] < 1e-4
    third = run_of(
        tmp_path / "third",
        begun.path,
        agents={"x": {"policy": "a1"}, "y": {"policy": "a1"}},
        **still,
    )
    assert all(torch.equal(weights(third, "a1", 0)[k], v) for k, v in weights(begun, "a1").items())
    for told in (mixed, shared, begun, third):
        comas.load(told.path).close()


def test_adapters_on_what_a_run_trained_whole_are_loaded_onto_that(
    tiny: Path, paid: dict[str, Any], tmp_path: Path
) -> None:
    whole = run_of(tmp_path / "whole", tiny, hosts__home__learner="full", agents={"a": {}}, **paid)
    files = {f.name for f in (whole.path / "checkpoints" / "step-3" / "a").iterdir()}
    assert {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"} <= files
    upon = run_of(
        tmp_path / "upon", whole.path, hosts__home__learner="adapters", agents={"a": {}}, **paid
    )
    team = comas.load(upon.path)
    made = population_of(team)
    np.testing.assert_array_equal(
        logits(made.model), logits(plain(whole.path / "checkpoints" / "step-3" / "a"))
    )
    assert np.abs(logits(made.model) - logits(plain(tiny))).max() > 1e-4
    team.close()


def test_evaluation_uses_the_adapters(
    first: Run,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["eval", str(first.path), "--limit", "2", "--json"], monkeypatch) == 0
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [c["n"] for c in cells] == [2]
    teams = [comas.load(first.path), comas.load(first.path, step=2)]
    asked = [
        [t.text for s in range(4) for t in team.discuss("8 3 5 1 -> 16", seed=s).turns]
        for team in teams
    ]
    assert asked[0] != asked[1]
    for team in teams:
        team.close()
