"""The page itself: its markup, style and script, put together from the files in `page/`.

Leaves out: the documents that it shows.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("page")
SCRIPTS = ("elements", "source", "charts", "figures", "board", "lists", "measured", "app")
"""Files of the script, in the order in which they are read."""
FORBIDDING = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src 'none';"
    " connect-src {connect}; style-src {style}; script-src {script}"
)
"""Of a content security policy: nothing is loaded from anywhere but here."""


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
