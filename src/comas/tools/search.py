"""Search in a folder of texts by BM25 (the package `bm25s`): the best passages come back.

A passage is a paragraph of a `.txt` or `.md` file below the folder, or a line of a `.jsonl` file
with `text`. The index is made once and kept beside the texts, in `.comas-search`, so that a large
one is only read; it is made anew where a file has changed. Without a folder the `handbook` in this
package is searched: units, formulas, constants, chemical elements. Leaves out: embeddings, the
network.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from comas.types import Count, Tool, ToolFailure, UserMistake

HANDBOOK = Path(__file__).parent / "handbook"
"""What is searched where no folder is named; small enough to be indexed by each process."""
INDEX = ".comas-search"
PASSAGES = "passages.json"
UNFINISHED = "new-"
KINDS = (".txt", ".md", ".jsonl")
LONGEST = 2000
"""Characters of a passage; a longer paragraph is several."""
BETWEEN = "\n\n"
"""Between the passages that come back."""
WORD = r"(?u)\b\w+\b"
"""What counts as a word: single digits and letters too."""


class Index:
    """The passages of a folder; read, or made, when it is first asked."""

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
        found, scores = ranking.retrieve(query, k=most, show_progress=False)
        pairs = zip(found[0], scores[0], strict=True)
        return [passages[int(place)] for place, score in pairs if score > 0]

    def some(self, seed: str) -> str:
        """A passage that `seed` draws."""
        with self.making:
            passages = self._ranked[1]
        return random.Random(seed).choice(passages)

    def files(self) -> list[Path]:
        """Those with texts, in the order of their names."""
        below = self.folder.rglob("*")
        return sorted(path for path in below if path.suffix in KINDS and path.is_file())

    @cached_property
    def _ranked(self) -> tuple[Any, list[str]]:
        import bm25s

        files = self.files()
        digest = _digest(self.folder, files)
        kept = self.folder / INDEX / digest[:16]
        passages_file = kept / PASSAGES
        try:
            passages = json.loads(passages_file.read_text(encoding="utf-8"))
            return bm25s.BM25.load(kept, mmap=True, show_progress=False), passages
        # what another process takes away meanwhile, or another user keeps to himself, is made again
        except OSError:
            pass
        except (ValueError, EOFError):  # so is what is damaged
            shutil.rmtree(kept, ignore_errors=True)
        passages = [passage for file in files for passage in _passages(file)]
        tokens = _tokens(passages)
        if not any(tokens):
            raise _no_text(self.folder)
        ranking = bm25s.BM25()
        ranking.index(tokens, show_progress=False)
        if self.folder != HANDBOOK:  # nothing is written into an installed package
            _keep(ranking, passages, kept, _rights(self.folder, files))
        return ranking, passages


def _no_text(folder: Path) -> UserMistake:
    return UserMistake(
        f"tool_options.search.folder = {str(folder)!r}: no text in it; put"
        f" {', '.join(KINDS)} files there"
    )


def _rights(folder: Path, files: list[Path]) -> int:
    """The rights that all of the texts have, and the folders below `folder` that they lie in; of
    their owner at least to read and write. An index holds what they say.
    """
    rights = 0o666
    below = {place for file in files for place in file.parents if folder in place.parents}
    for path in (*files, *below):
        rights &= path.stat().st_mode
    return rights | 0o600


def _keep(ranking: Any, passages: list[str], kept: Path, rights: int) -> None:
    """Put an index beside its texts, whole or not at all, in a folder of its own: another process
    may have the one before it mapped into its memory. A folder that cannot be written to is indexed
    anew by the next process.
    """
    made: Path | None = None
    try:
        kept.parent.mkdir(exist_ok=True)
        made = kept.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
        made.mkdir(mode=0o700)
        ranking.save(made, show_progress=False)
        (made / PASSAGES).write_text(json.dumps(passages), encoding="utf-8")
        for file in made.iterdir():
            file.chmod(rights)
        made.chmod(rights | (rights & 0o444) >> 2)  # whoever may read may enter
        made.replace(kept)
    except OSError:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        return
    with suppress(OSError):
        for older in kept.parent.iterdir():
            # what others have mapped stays theirs until they end
            if older != kept and older.is_dir() and not older.name.startswith(UNFINISHED):
                shutil.rmtree(older, ignore_errors=True)


def _tokens(texts: list[str]) -> list[list[str]]:
    return [re.findall(WORD, text.lower()) for text in texts]


def _digest(folder: Path, files: list[Path]) -> str:
    """Of the names, sizes and times of files."""
    facts: list[tuple[str, int, int]] = []
    for file in files:
        known = file.stat()
        name = str(file.relative_to(folder))
        facts.append((name, known.st_size, known.st_mtime_ns))
    written = json.dumps(facts).encode()
    return hashlib.sha256(written).hexdigest()


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
        found = index.best(words, passages)
        if not found:
            raise ToolFailure(f"nothing was found for {words!r}")
        return BETWEEN.join(found)

    return Tool(
        name="search",
        does="searches texts for words, and gives back the passages that fit best",
        argument="words",
        run=run,
        some=index.some,
        seconds=600.0,  # the first call of a process may make the index
        longest=passages * len(BETWEEN) + passages * LONGEST,
    )
