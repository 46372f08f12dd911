"""The page: its markup, style and script put together from the files in `page/`, for the server,
and as one file with its documents inside, which needs no network and opens from a mail.

Leaves out: the documents that it shows (`documents`).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from comas.storage import files
from comas.types import UserMistake
from comas.view.documents import EvaluationDocuments, RunDocuments, encoded

FOLDER = Path(__file__).with_name("page")
SCRIPTS = ("elements", "source", "charts", "figures", "board", "lists", "measured", "app")
"""Files of the script, in the order in which they are read."""
FORBIDDING = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src 'none';"
    " connect-src {connect}; style-src {style}; script-src {script}"
)
"""Content security policy: nothing is loaded from anywhere but here."""


@cache
def style() -> str:
    """The style sheet."""
    return (FOLDER / "style.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """The script."""
    texts = [(FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['"use strict";', *texts])


def policy(connect: str) -> str:
    """The content security policy: this style and this script and no others are obeyed."""
    return FORBIDDING.format(connect=connect, style=_hash_of(style()), script=_hash_of(script()))


def _hash_of(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def html(data: str, connect: str) -> str:
    """The page; `data` is markup that holds the documents, or nothing where they are fetched."""
    markup = (FOLDER / "page.html").read_text(encoding="utf-8")
    parts = {"POLICY": policy(connect), "STYLE": style(), "DATA": data, "SCRIPT": script()}
    for name, text in parts.items():
        markup = markup.replace(f"<!--{name}-->", text, 1)
    return markup


# --- one file

MOST = 4_500_000
"""Bytes of compressed and encoded documents that an unasked page holds: mails take some ten."""
DIGITS = 4
"""Digits of numbers: nobody reads more, and digits cannot be compressed."""


def export(
    file: Path,
    folders: Sequence[RunDocuments | EvaluationDocuments],
    steps: Sequence[int] | None = None,
    only: str | None = None,
) -> list[int]:
    """Write the page; returns the steps, from 0, whose discussions are in it.

    `steps`: these steps' discussions; None: of as many steps, evenly spread, as fit into `MOST`.
    `only`: of these, only steps with a discussion of this kind, and only such discussions.
    """
    blocks: list[str] = []
    included: set[int] = set()
    for number, folder in enumerate(folders):
        if isinstance(folder, EvaluationDocuments):
            bundles = {"head": ["run"]}
            for log in range(folder.logs()):
                bundles[f"games/{log}"] = [f"games/{log}", f"games/{log}/all"]
            for bundle, names in bundles.items():
                blocks.append(_block(number, bundle, {name: folder.read(name) for name in names}))
            continue
        names = ["run", "steps/0", *(f"eval/{name}" for name in folder.read("run")["measured"])]
        head = _block(number, "head", {name: folder.read(name) for name in names})
        room = MOST // len(folders) - len(head)
        of_steps = _step_blocks(folder, number, steps, only, room)
        included |= of_steps.keys()
        blocks += [head, *of_steps.values()]
    files.replace(file, html("\n".join(blocks), "'none'"))
    return sorted(included)


def _step_blocks(
    folder: RunDocuments,
    number: int,
    steps: Sequence[int] | None,
    only: str | None,
    room: int,
) -> dict[int, str]:
    """Number of a step -> its discussions as markup; the first and the last step, and then those in
    the midst of the widest gaps, as long as they fit.
    """
    blocks: dict[int, str] = {}
    for step in spread(range(folder.steps())) if steps is None else steps:
        rows = folder.read(f"step/{step}")
        everything = folder.read(f"step/{step}/all")
        if only is not None:
            everything = [everything[row["number"]] for row in rows if only in row["kinds"]]
            rows = [row for row in rows if only in row["kinds"]]
            rows = [{**row, "number": index} for index, row in enumerate(rows)]
        if not rows:
            continue
        documents = {f"step/{step}": rows, f"step/{step}/all": everything}
        block = _block(number, f"step/{step}", documents)
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


def _block(number: int, bundle: str, documents: Mapping[str, Any]) -> str:
    """Markup that holds documents of a folder, which are read together: compressed, in letters that
    mean nothing to a browser.
    """
    numbered = {f"{number}/{name}": document for name, document in documents.items()}
    packed = gzip.compress(encoded(numbered, DIGITS).encode(), 9, mtime=0)
    text = base64.b64encode(packed).decode()
    return f'<script type="text/plain" data-bundle="{number}/{bundle}">{text}</script>'


def steps_named(text: str, count: int) -> list[int]:
    """`1,5-9` -> those steps from 0, of `count`."""
    steps: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserMistake(f"--steps {text}: numbers of steps are wanted, such as 1,5-9")
        if dash and int(last) < int(first):
            raise UserMistake(f"--steps {text}: {part.strip()} ends before it begins")
        steps += range(int(first) - 1, int(last if dash else first))
    if beyond := [number + 1 for number in steps if not 0 <= number < count]:
        raise UserMistake(f"--steps {text}: step {beyond[0]}: there are steps 1 to {count}")
    return sorted(set(steps))
