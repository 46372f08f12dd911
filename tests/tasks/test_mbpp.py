"""MBPP's splits: those of the hub, and the parts of its test split."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from comas.tasks import mbpp
from comas.testing import check_task
from comas.types import UserMistake

needs_data = pytest.mark.skipif(
    "COMAS_DATA" not in os.environ, reason="COMAS_DATA names no folder with samples"
)


def row(number: int) -> dict[str, object]:
    return {
        "text": f"Write a function that adds {number}.",
        "test_list": [f"assert plus(1) == {number + 1}"],
        "test_setup_code": "",
    }


def write(folder: Path, split: str, numbers: range) -> None:
    lines = [json.dumps(row(number)) for number in numbers]
    (folder / f"mbpp_{split}.jsonl").write_text("\n".join(lines))


def ids(folder: Path | None, split: str, parts: bool) -> set[str]:
    path = str(folder) if folder else None
    return {question.id for question in mbpp.load(split, path=path, parts=parts)}


def test_each_split_has_a_file(tmp_path: Path) -> None:
    for place, split in enumerate(mbpp.SPLITS):
        write(tmp_path, split, range(100 * place, 100 * place + 5))
    assert len(set.union(*[ids(tmp_path, split, parts=False) for split in mbpp.SPLITS])) == 15
    check_task(mbpp.task, list(mbpp.SPLITS), path=str(tmp_path))


def test_parts_of_the_test_split_are_disjoint_and_all_of_it(tmp_path: Path) -> None:
    write(tmp_path, "test", range(200))
    parts = {split: ids(tmp_path, split, parts=True) for split in mbpp.SPLITS}
    assert sum(map(len, parts.values())) == 200
    assert set.union(*parts.values()) == ids(tmp_path, "test", parts=False)
    for split, share in mbpp.SHARES.items():
        assert len(parts[split]) / 200 == pytest.approx(share, abs=0.1)
    write(tmp_path, "test", range(400))  # whatever is added, nothing moves
    for split, before in parts.items():
        assert before <= ids(tmp_path, split, parts=True)


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    for parts in (False, True):
        with pytest.raises(UserMistake, match=r"task mbpp .*'warm': one of train"):
            mbpp.load("warm", path=str(tmp_path), parts=parts)


@needs_data
def test_the_parts_of_the_real_test_split() -> None:
    parts = {split: ids(None, split, parts=True) for split in mbpp.SPLITS}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 252,
        "validation": 39,
        "test": 209,
    }
    whole = mbpp.load("test")
    assert len(whole) == 500
    assert set.union(*parts.values()) == {question.id for question in whole}
