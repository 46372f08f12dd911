"""A study file is checked before anything runs; grids are multiplied out; mistakes are one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import comas.setups.vote
import comas.tasks.pick
from comas.studies.file import StudyFile, described, flat, nested, over, pinned, read_file, slug
from comas.studies.verb import Study
from comas.types import UserMistake
from tests.support import runs

HEAD = "seeds = [1, 2]\nsteps = 2\n"
TWO = "[settings.a]\n[settings.b]\nlr = 1e-3\n"
CLAIM = '[[claims]]\nsays = "x"\nleft = "a"\nright = "b"\n'
MISTAKES = {
    "": "seeds is missing",
    "seeds = []\nsteps = 1\n[settings.a]": "seeds = []",
    "seeds = [1, 1]\nsteps = 1\n[settings.a]": "seeds: 1 stands twice",
    "seeds = [-1]\nsteps = 1\n[settings.a]": "seeds.0 = -1",
    "seeds = [1]\n[settings.a]": "no budget: set tokens",
    HEAD: "settings is missing",
    "sedes = [1]\n" + HEAD + TWO: "unknown key sedes: did you mean seeds?",
    HEAD + "[settings.a]\nlrr = 1": "setting a: unknown key lrr: did you mean lr?",
    HEAD + "[config]\nquestion = 1\n[settings.a]": "config: unknown key question: did you mean",
    HEAD + "[settings.a]\nsteps = 3": "settings.a: steps is set for all settings alike, by steps",
    HEAD + "[config]\nseed = 3\n[settings.a]": "config: seed is set for all settings alike, by",
    HEAD + "[settings.a]\ntrain = 1": "settings.a: train = 1: true or false",
    HEAD + "[settings.a]\nbase = 'nope'": "setting a: base 'nope': no such folder",
    HEAD + "[settings.a]\nmethod = 'comass'": "setting a: method 'comass': did you mean comas?",
    HEAD + "[settings.a]\n[settings.b]\nlr = 5e-4": "settings a and b are alike",
    HEAD + "[settings.a.grid]": "settings.a.grid is empty",
    HEAD + "[settings.a.grid]\nlr = []": "lr has no values, so that the grid is empty",
    HEAD + "[settings.a.grid]\nlr = 1e-3": "lr = 0.001: a list of values is wanted",
    HEAD + "[settings.a]\ngrid = 3": "settings.a.grid is empty",
    HEAD + "[settings.lr]\nlr=1e-3\n[settings.LR]\nlr=2e-3": "would have one folder, lr: rename",
    HEAD + "[settings.'a b']\n[settings.a-b]\nlr=1e-3": "would have one folder, a-b: rename one",
    HEAD + TWO + CLAIM.replace('"b"', '"c"'): "claim 1 (x): right: there is no 'c'",
    HEAD
    + TWO
    + CLAIM.replace('"a"', '"aa"'): "claim 1 (x): left: there is no 'aa': did you mean a?",
    HEAD + TWO + CLAIM + 'measure = "acuracy"': "did you mean accuracy?",
    HEAD + TWO + CLAIM + 'measure = "gain.a7"': "did you mean gain.a3?",
    HEAD + TWO + CLAIM + 'direction = "up"': "claims.0.direction = 'up'",
    HEAD + TWO + CLAIM + 'mesure = "gain"': "unknown key claims.0.mesure: did you mean measure?",
    HEAD + TWO + CLAIM.replace('says = "x"\n', ""): "claim 1: says is missing",
    HEAD + TWO + CLAIM.replace('"b"', '"a"'): "a is compared with itself",
    HEAD + TWO + CLAIM.replace('"b"', "true"): "claims.0.right",
    HEAD + TWO + CLAIM + "margin = true": "claims.0.margin = True",
    HEAD + TWO + CLAIM + CLAIM: "claim 1 says the same: remove one",
    HEAD + TWO + CLAIM.replace('"b"', "1") + 'right_measure = "gain"': "right is a number",
    HEAD + TWO + "[measures.gain]\nsetup = 'single'": "every run has a measure gain",
    HEAD
    + TWO
    + "[measures.'m n']\nsetup='single'\n[measures.m-n]\nsetup='vote'": "would have one folder",
    HEAD + TWO + "[measures.m]": "measures.m: set either setup",
    HEAD + TWO + "[measures.m]\nsetup = 'single'\nlast = 2": "measures.m: last goes with metric",
    HEAD + TWO + "[measures.m]\nmetric = 'pay.x'\ngames = 2": "measures.m: games goes with setup",
    HEAD
    + TWO
    + "[measures.m]\nmetric = 'pay.x'\nfirst = 1\nlast = 2": "set first or last, not both",
    HEAD + TWO + "[measures.m]\nmetric = 'pai.x'": "there is no 'pai': did you mean pay?",
    HEAD + TWO + "[measures.m]\nmetric = 'kl..x'": "nothing stands beside one of its dots",
    HEAD + TWO + "[measures.m]\nmetric = 'pay.'": "nothing stands beside one of its dots",
    HEAD + TWO + "[measures.m]\nsetup = 'vot'": "did you mean vote?",
    HEAD + TWO + "[measures.m]\nsetup = 'vote:vots=3'": "did you mean votes?",
    HEAD + TWO + "[measures.m]\nsetup = 'single'\ntask = 'pik'": "did you mean pick?",
    HEAD + TWO + "[measures.m]\nsetup = 'single'\nsettings = ['c']": "settings: there is no 'c'",
    HEAD
    + TWO
    + "[measures.m]\nsetup = 'single'\nsettings = ['a']\n"
    + CLAIM
    + 'measure = "m"': "m is not taken of b",
    HEAD
    + "[settings.a]\n[settings.b]\ntrain = false\n[measures.m]\nmetric = 'pay.x'\n"
    + CLAIM
    + 'measure = "m"': "m is not taken of b",
    HEAD
    + TWO.replace("[settings.b]", "[settings.b]\ntest_questions = 0")
    + CLAIM: "b has no accuracy",
    HEAD + "config.eval_every = 0\n" + TWO + CLAIM + 'measure = "best"': "a has no best",
    "out = 'a=b'\n" + HEAD + TWO: "a folder without = is wanted",
    "extends = 'x/y.toml'\n" + HEAD: "the name of a file beside it is wanted",
    "extends = 'nope.toml'\n" + HEAD: "No such file",
    "x": "is not TOML",
    "steps = " + "9" * 5000: "is not TOML",
    "steps = " + "[" * 5000: "is not TOML",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[-40:])
def test_a_mistake_is_one_line_that_names_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(UserMistake) as raised:
        Study.read(file)
    message = str(raised.value)
    assert MISTAKES[text] in message
    assert "\n" not in message
    assert str(tmp_path) in message
    assert list(tmp_path.iterdir()) == [file]


SHIPPED = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_studies_can_be_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and options that are gone, or take other values now, made sixteen of them refuse."""
    monkeypatch.chdir(tmp_path)  # where results would lie
    assert Study.read(file).cells


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="No such file"):
        read_file(tmp_path / "none.toml")


def study(**keys: object) -> StudyFile:
    return StudyFile.model_validate({"seeds": [1], "steps": 1, **keys})


def test_a_grid_is_a_product_with_names() -> None:
    axes = {"lr": [1e-3, 2e-3], "kl": {"solution": [0, 0.1]}, "agents": [1]}
    table = {"grid": {**axes, "method": ["ttrl"]}, "questions": 4}
    found = described(study(settings={"g": table}, config={"questions": 9, "epochs": 2}))
    assert [name for name, _, _ in found] == [
        f"g lr={lr} kl.solution={kl} agents=1 method=ttrl"
        for lr in (0.001, 0.002)
        for kl in (0, 0.1)
    ]
    assert found[-1][1] == {
        **{"questions": 4, "epochs": 2, "lr": 2e-3, "kl": {"solution": 0.1}},
        **{"agents": 1, "method": "ttrl"},
    }


def test_own_keys_take_the_place_of_common_tables_and_values() -> None:
    common = {"kl": {"solution": 0.1, "scoring": 0.5}, "agents": 4, "lr": 1.0}
    assert over(common, {"kl": {}}) == {"agents": 4, "lr": 1.0, "kl": {}}
    own = {"agents": {"a0": {"base": "tiny"}}, "kl": {"solution": 0}}
    assert over(common, own) == {
        "kl": {"solution": 0, "scoring": 0.5},
        "lr": 1.0,
        "agents": own["agents"],
    }


def test_tables_and_dotted_keys_are_the_same() -> None:
    keys = {"a.b.c": 1, "a.d": {}, "e": [1]}
    assert nested(keys) == {"a": {"b": {"c": 1}, "d": {}}, "e": [1]}
    assert flat(nested(keys)) == keys
    assert nested({"a": {"b.c": 1}}) == {"a": {"b": {"c": 1}}}
    assert slug("kl lr=1e-3/β, x@y") == "kl-lr-1e-3-β-x-y"
    long = [slug("β" * 300 + end) for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name.encode()) <= 255 for name in long)
    assert slug("a" * 255) == "a" * 255, "as it was"


def test_a_file_may_extend_another_beside_it(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(HEAD + "[config]\nlr = 1e-3\nepochs = 1\n" + TWO + CLAIM)
    (tmp_path / "short.toml").write_text('extends = "long.toml"\nseeds = [7]\nconfig.epochs = 2\n')
    found = read_file(tmp_path / "short.toml")
    assert found.seeds == [7]
    assert found.steps == 2
    assert found.config == {"lr": 1e-3, "epochs": 2}
    assert list(found.settings) == ["a", "b"]
    assert len(found.claims) == 1


def test_places_are_those_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = Path(__file__).parents[2] / "studies"
    (tmp_path / "mine.py").write_text((studies / "no_scoring.py").read_text())
    (tmp_path / "s.toml").write_text(HEAD + "[settings.a]\nmethod = './mine.py'\n")
    monkeypatch.chdir(studies)
    (setting,) = Study.read(tmp_path / "s.toml").settings
    assert setting.keys["method"] == str(tmp_path / "mine.py")
    assert setting.keys["threads"] == 1  # tiny models


def test_what_a_method_of_ones_own_says_is_part_of_a_setting(tmp_path: Path) -> None:
    source = (Path(__file__).parents[2] / "studies" / "no_scoring.py").read_text()
    file = tmp_path / "s.toml"
    file.write_text(HEAD + "[settings.a]\nmethod = './mine.py'\n")
    (tmp_path / "mine.py").write_text(source)
    before = Study.read(file).settings[0].essence
    (tmp_path / "mine.py").write_text(source + "\n")
    after = Study.read(file).settings[0].essence
    assert {key for key in before if before[key] != after[key]} == {"method"}


@pytest.mark.parametrize("key", ["metrics", "monitors", "tools", "track", "data", "hosts"])
def test_what_files_of_a_setting_say_is_part_of_it_wherever_they_lie(
    key: str, tmp_path: Path
) -> None:
    config = runs.planned({}).config.model_dump(mode="json")
    found: list[object] = []
    for folder, text in (("one", "x = 1"), ("two", "x = 1"), ("three", "x = 2")):
        (tmp_path / folder).mkdir()
        own = tmp_path / folder / "own.py"
        own.write_text(text)
        named = {"data": str(own), "hosts": {"h": {**config["hosts"]["home"], "engine": str(own)}}}
        found.append(pinned({**config, key: named.get(key, [str(own)])})[key])
    assert found[0] == found[1] != found[2]


MINE = """
[settings.a]
[measures.m]
setup = "./mine.py:votes=3"
task = "own.py"
data = "rows.jsonl"
games = 2
"""


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A study whose measure names three files beside it."""
    source = Path(comas.setups.vote.__file__).read_text()
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "own.py").write_text(Path(comas.tasks.pick.__file__).read_text())
    (tmp_path / "rows.jsonl").write_text("{}\n")
    file = tmp_path / "s.toml"
    file.write_text(HEAD + MINE)
    return file


def test_files_of_measures_are_those_beside_the_study(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    measure = Study.read(measured).described.measures["m"]
    assert measure.setup == f"{tmp_path / 'mine.py'}:votes=3"
    assert measure.task == str(tmp_path / "own.py")
    assert measure.data == str(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(UserMistake, match=r"measures\.m: data = 'rows\.jsonl': there is no such"):
        Study.read(measured)


def declared(file: Path) -> dict[str, Any]:
    return Study.read(file).declaration()["measures"]["m"]


@pytest.mark.parametrize(
    ("name", "key"), [("mine.py", "setup"), ("own.py", "task"), ("rows.jsonl", "data")]
)
def test_what_files_of_measures_say_is_part_of_what_is_declared(
    name: str, key: str, measured: Path, tmp_path: Path
) -> None:
    before = declared(measured)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path, moved)
    assert declared(moved / "s.toml") == before, "wherever they lie"
    file = tmp_path / name
    file.write_text(file.read_text() + "\n")
    after = declared(measured)
    assert {each for each in before if before[each] != after[each]} == {key}


def test_a_folder_of_data_is_declared_by_what_is_in_it(measured: Path, tmp_path: Path) -> None:
    measured.write_text(measured.read_text().replace("rows.jsonl", "rows"))
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.jsonl").write_text("1")
    before = declared(measured)
    (folder / "b.jsonl").write_text("1")
    assert declared(measured)["data"] != before["data"]
