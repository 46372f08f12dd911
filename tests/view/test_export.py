"""The page as one file: what it holds, what it leaves out, and that nothing in it is markup."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from comas.types import UserMistake
from comas.view import page as exporting
from comas.view.documents import EvaluationDocuments, RunDocuments
from comas.view.page import export, spread, steps_named
from tests.support.viewed import evaluation, viewed_run


def bundles(file: Path) -> dict[str, dict[str, Any]]:
    """Name -> documents of a page."""
    text = file.read_text(encoding="utf-8")
    found = re.findall(r'data-bundle="([^"]*)">([^<]*)</script>', text)
    return {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in found}


@pytest.fixture
def documents(tmp_path: Path) -> RunDocuments:
    return RunDocuments(str(viewed_run(tmp_path / "r").path))


def test_a_file_holds_what_the_server_would_say(documents: RunDocuments, tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    assert export(file, [documents]) == [0, 1, 2]
    found = bundles(file)
    assert found["0/head"]["0/run"]["steps"] == 3
    assert found["0/head"]["0/eval/before"]["accuracy"]["mean"] == 0.25
    assert len(found["0/step/2"]["0/step/2/all"]) == len(documents.read("step/2"))
    markup = re.sub(r'<script type="text/plain".*?</script>', "", file.read_text(), flags=re.DOTALL)
    assert "http" not in markup.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "connect-src 'none'" in markup


def test_steps_and_kinds_are_chosen(documents: RunDocuments, tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    assert export(file, [documents], [1], "rewarded-but-wrong") == [1]
    rows = bundles(file)["0/step/1"]["0/step/1"]
    assert [(row["number"], row["id"]) for row in rows] == [(0, "q1")]
    assert export(file, [documents], None, "failed") == []


def test_without_a_wish_as_much_is_held_as_has_room(
    documents: RunDocuments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MOST", 9_000)
    included = export(tmp_path / "x.html", [documents])
    assert included == [0]
    assert export(tmp_path / "x.html", [documents], [0, 1, 2]) == [0, 1, 2]


def test_an_evaluation_is_held_whole(tmp_path: Path) -> None:
    export(tmp_path / "x.html", [EvaluationDocuments(str(evaluation(tmp_path / "e")))])
    assert list(bundles(tmp_path / "x.html")) == ["0/head", "0/games/0"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 64])
def test_steps_are_spread(count: int) -> None:
    order = list(spread(range(count)))
    assert sorted(order) == list(range(count))
    assert order[:2] == [0, count - 1][: min(count, 2)]


def test_steps_by_name() -> None:
    assert steps_named("3,1-2, 2", 5) == [0, 1, 2]
    for text, problem in {
        "x": "numbers",
        "1-": "numbers",
        "": "numbers",
        "6": "there are steps 1 to 5",
        "0": "there are steps",
    }.items():
        with pytest.raises(UserMistake, match=problem):
            steps_named(text, 5)
