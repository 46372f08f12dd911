"""The page as one file with its documents inside: it needs no network and opens from a mail.

Leaves out: the documents (`documents`).
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from comas.storage import files
from comas.view.documents import EvaluationDocuments, RunDocuments, encoded
from comas.view.page import html

MOST = 4_500_000
"""Bytes of compressed and encoded documents that an unasked page holds: mails take some ten."""
DIGITS = 4
"""Of numbers: nobody reads more, and digits cannot be compressed."""

Bundle = tuple[str, dict[str, Any]]
"""What is read together, a step's discussions for instance: its name, and the documents by name."""


def export(
    file: Path,
    folders: Sequence[RunDocuments | EvaluationDocuments],
    steps: Sequence[int] | None = None,
    only: str | None = None,
) -> list[int]:
    """Write the page; returns the steps, from 0, whose discussions are in it.

    `steps`: these steps' discussions; None: of as many steps, evenly spread, as `MOST` has room
    for. `only`: of these, only steps with a discussion of this kind, and only such discussions.
    """
    bundles: list[str] = []
    included: set[int] = set()
    for number, folder in enumerate(folders):
        head = _block(_numbered(number, _head(folder)))
        bundles.append(head)
        if isinstance(folder, EvaluationDocuments):
            bundles += [_block(_numbered(number, one)) for one in _games(folder)]
            continue
        room = MOST // len(folders) - len(head)
        blocks = _step_blocks(folder, number, steps, only, room)
        included |= blocks.keys()
        bundles += blocks.values()
    files.replace(file, html("\n".join(bundles), "'none'"))
    return sorted(included)


def _head(folder: RunDocuments | EvaluationDocuments) -> Bundle:
    """What is read at once."""
    names = ["run"]
    if isinstance(folder, RunDocuments):
        names += ["steps/0", *(f"eval/{name}" for name in folder.read("run")["measured"])]
    return "head", {name: folder.read(name) for name in names}


def _games(folder: EvaluationDocuments) -> Iterator[Bundle]:
    for log in range(folder.logs()):
        names = (f"games/{log}", f"games/{log}/all")
        yield f"games/{log}", {name: folder.read(name) for name in names}


def _step_blocks(
    folder: RunDocuments,
    number: int,
    steps: Sequence[int] | None,
    only: str | None,
    room: int,
) -> dict[int, str]:
    """Number of a step -> its discussions as markup; the first and the last step, and then those in
    the midst of the widest gaps, as long as there is room.
    """
    blocks: dict[int, str] = {}
    for step in spread(range(folder.steps())) if steps is None else steps:
        if not folder.has_discussions(step) or (only and only not in folder.kinds(step)):
            continue
        block = _block(_numbered(number, _step(folder, step, only)))
        room -= len(block)
        if room < 0 and steps is None:
            break
        blocks[step] = block
    return blocks


def spread(steps: Sequence[int]) -> Iterator[int]:
    """All steps: the ends first, then halves of what lies between, then halves of these."""
    if not steps:
        return
    yield steps[0]
    if len(steps) > 1:
        yield steps[-1]
    gaps = [(0, len(steps) - 1)]
    while gaps:
        following: list[tuple[int, int]] = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                yield steps[middle]
                following += [(low, middle), (middle, high)]
        gaps = following


def _step(folder: RunDocuments, step: int, only: str | None) -> Bundle:
    rows = folder.read(f"step/{step}")
    everything = folder.read(f"step/{step}/all")
    if only is not None:
        kept = [row["number"] for row in rows if only in row["kinds"]]
        everything = [everything[k] for k in kept]
        rows = [{**rows[k], "number": place} for place, k in enumerate(kept)]
    documents = {f"step/{step}": rows, f"step/{step}/all": everything}
    if folder.rule is not None:
        documents[f"settled/{step}"] = folder.read(f"settled/{step}")
    return f"step/{step}", documents


def _numbered(number: int, bundle: Bundle) -> Bundle:
    """With the folder's number before each name."""
    name, documents = bundle
    return f"{number}/{name}", {f"{number}/{key}": documents[key] for key in documents}


def _block(bundle: Bundle) -> str:
    """Markup that holds a bundle: compressed, in letters that mean nothing to a browser."""
    name, documents = bundle
    packed = gzip.compress(encoded(documents, DIGITS).encode(), 9, mtime=0)
    text = base64.b64encode(packed).decode()
    return f'<script type="text/plain" data-bundle="{name}">{text}</script>'


def steps_named(text: str, count: int) -> list[int]:
    """`1,5-9` -> those steps from 0, of `count`; ValueError with what is wrong."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError("numbers of steps are wanted, such as 1,5-9")
        numbers: Iterable[int] = range(int(first), int(last if dash else first) + 1)
        found += [number - 1 for number in numbers]
    beyond = [number + 1 for number in found if not 0 <= number < count]
    if beyond:
        raise ValueError(f"step {beyond[0]}: there are steps 1 to {count}")
    return sorted(set(found))
