"""Search in a folder of texts by BM25 (the package `bm25s`): the best passages come back.

A passage is a paragraph of a `.txt` or `.md` file below the folder, or a line of a `.jsonl` file
with `text`. Each process makes its index at the first call. Without a folder the `handbook` in this
package is searched: units, formulas, constants, chemical elements. Leaves out: embeddings, the
network.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from comas.types import Count, Tool, ToolFailure, UserMistake

HANDBOOK = Path(__file__).parent / "handbook"
"""Folder that is searched where none is named."""
KINDS = (".txt", ".md", ".jsonl")
LONGEST = 2000
"""Characters of a passage; a longer paragraph is several."""
BETWEEN = "\n\n"
"""Between the passages that come back."""
WORD = r"(?u)\b\w+\b"
"""Pattern of a word: single digits and letters too."""


class Index:
    """The passages of a folder; made when it is first asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.making = threading.Lock()

    def best(self, words: str, count: int) -> list[str]:
        """The passages that fit best, best first; none that has no word of the query."""
        with self.making:
            ranking, passages = self._ranked
        query = _tokens([words])
        if not query[0]:
            return []
        most = min(count, len(passages))
        indices, scores = ranking.retrieve(query, k=most, show_progress=False)
        pairs = zip(indices[0], scores[0], strict=True)
        return [passages[int(index)] for index, score in pairs if score > 0]

    def some(self, seed: str) -> str:
        """A passage that `seed` draws."""
        with self.making:
            passages = self._ranked[1]
        return random.Random(seed).choice(passages)

    def files(self) -> list[Path]:
        """List the files with texts, in the order of their names."""
        below = self.folder.rglob("*")
        return sorted(path for path in below if path.suffix in KINDS and path.is_file())

    @cached_property
    def _ranked(self) -> tuple[Any, list[str]]:
        import bm25s

        passages = [passage for file in self.files() for passage in _passages(file)]
        tokens = _tokens(passages)
        if not any(tokens):
            raise _no_text(self.folder)
        ranking = bm25s.BM25()
        ranking.index(tokens, show_progress=False)
        return ranking, passages


def _no_text(folder: Path) -> UserMistake:
    return UserMistake(
        f"tool_options.search.folder = {str(folder)!r}: no text in it; put"
        f" {', '.join(KINDS)} files there"
    )


def _tokens(texts: list[str]) -> list[list[str]]:
    return [re.findall(WORD, text.lower()) for text in texts]


def _passages(file: Path) -> Iterator[str]:
    """The passages of a file, in their order."""
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    if file.suffix == ".jsonl":
        for at, line in enumerate(text.split("\n"), 1):  # texts may hold other ends of lines
            if line.strip():
                yield from _divided(_text_of(line, file, at))
        return
    for paragraph in re.split(r"\n\s*\n", text):
        yield from _divided(paragraph.strip())


def _text_of(line: str, file: Path, at: int) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserMistake(f"{file} line {at} is no JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserMistake(f'{file} line {at} has no "text"')
    title = row.get("title")
    return f"{title}\n{row['text']}" if isinstance(title, str) else row["text"]


def _divided(paragraph: str) -> Iterator[str]:
    for start in range(0, len(paragraph), LONGEST):
        yield paragraph[start : start + LONGEST]


def make(*, folder: str = "", passages: Count = 3) -> Tool:
    """Search in `folder`, or in the handbook; `passages` come back at most."""
    try:
        import bm25s  # noqa: F401 - an error now, not in the first call
    except ImportError as error:
        raise UserMistake(
            'tools = "search" needs a package that is not installed: pip install "comas[search]"'
        ) from error
    texts = Path(folder) if folder else HANDBOOK
    if not texts.is_dir():
        raise UserMistake(f"tool_options.search.folder = {folder!r}: no such folder")
    index = Index(texts)
    if not index.files():
        raise _no_text(index.folder)

    def run(words: str) -> str:
        passages_found = index.best(words, passages)
        if not passages_found:
            raise ToolFailure(f"nothing was found for {words!r}")
        return BETWEEN.join(passages_found)

    return Tool(
        name="search",
        does="searches texts for words, and gives back the passages that fit best",
        argument="words",
        run=run,
        some=index.some,
        seconds=600.0,  # the first call of a process may make the index
        longest=passages * len(BETWEEN) + passages * LONGEST,
    )
