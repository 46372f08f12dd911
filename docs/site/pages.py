"""Stage the pages of the documentation site: `python docs/site/pages.py FOLDER`.

Pages of docs/ and of the repository's root are copied, their links rewritten to where pages are on
the site. A page per method is put together from the docstring of its file, the rows of
docs/methods.md, docs/results-family.md and docs/default-runs.md about it, its settings, its
learning curve and its source, so that nothing is written twice. Examples become pages, and public
modules pages of the reference, which mkdocstrings fills. `llms.txt` lists all pages with a line
about each, `llms-full.txt` holds them in one file. Leaves out: building, which is Zensical's.
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib
import inspect
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"
PICTURES = DOCS / "pictures"
METHODS = ROOT / "src" / "comas" / "methods"
AT_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the root that keep their names; the README is the front page."""

REFERENCE = {
    "comas": (
        "comas.train",
        "comas.resume",
        "comas.evaluate",
        "comas.compare",
        "comas.preflight",
        "comas.load",
        "comas.team_of",
        "comas.export.team.export",  # mkdocstrings takes `comas.export` for the package
        "comas.study",
        "comas.Result",
        "comas.Evaluation",
        "comas.Comparison",
        "comas.Team",
        "comas.Hook",
        "comas.Method",
        "comas.Task",
        "comas.Setup",
        "comas.Question",
        "comas.UserMistake",
    ),
    "Words of games": ("comas.types",),
    "Prompts and votes": ("comas.game.prompts", "comas.game.votes"),
    "Credit": ("comas.objective.credit", "comas.objective.preference"),
    "Losses": ("comas.objective.losses",),
    "Testing": ("comas.testing",),
    "Statistics": ("comas.stats",),
    "A run's folder": ("comas.storage.run",),
}
"""Pages of the reference, and the public modules (or single names) on each: what a caller of
`comas.train` and an author of a method or task writes. docs/extending.md shows the rest.
"""

FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")
SENTENCE = re.compile(r"(?<=[\w)`\]]{3}[.!?])\s+(?=[A-Z`*])")
"""Between two sentences; `Dr. Zero` is none."""
INTERVAL = re.compile(r"(\[[-+]?[\d.]+,) ([-+]?[\d.]+\])")
PAPER = re.compile(r"arXiv (\d{4}\.\d{5})")


class BrokenPage(Exception):
    """A page cannot be staged; the message names the page and what it lacks."""


class Table(NamedTuple):
    """A table of a page."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def stage(folder: Path) -> None:
    """Write `pages/` and `zensical.toml` into `folder`, replacing those that it has."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    places = places_of_files()
    for source, place in places.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source == DOCS / "methods.md":
            target.write_text(with_names_linked(with_links(source, places)), encoding="utf-8")
        elif source.suffix == ".md":
            target.write_text(with_links(source, places), encoding="utf-8")
        elif source.suffix == ".py":
            target.write_text(example_page(source), encoding="utf-8")
        elif source.suffix == ".ipynb":
            target.write_text(notebook_page(source, target.parent), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    for name in method_names():
        write(pages / "methods" / f"{name}.md", method_page(name))
    for title, modules in REFERENCE.items():
        write(pages / reference_place(title), reference_page(title, modules))
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(SITE / name, pages / name)
    config = tomllib.loads((SITE / "zensical.toml").read_text(encoding="utf-8"))
    fill_navigation(config["project"]["nav"], places)
    config["project"]["plugins"]["mkdocstrings"]["handlers"]["python"]["paths"] = [f"{ROOT}/src"]
    write(folder / "zensical.toml", tomli_w.dumps(config))
    listed = list(in_navigation(config["project"]["nav"]))
    name, description = (config["project"][key] for key in ("site_name", "site_description"))
    write(pages / "llms.txt", index_for_models(f"# {name}\n\n> {description}", listed, pages))
    write(pages / "llms-full.txt", all_pages(listed, pages))


def write(path: Path, text: str) -> None:
    """Write a page, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def places_of_files() -> dict[Path, str]:
    """File of the repository -> its path on the site, for all that is copied or made a page."""
    places = {ROOT / "README.md": "index.md"}
    places |= {ROOT / name: name for name in AT_ROOT}
    places |= {page: page.name for page in sorted(DOCS.glob("*.md"))}
    places |= {file: file.name for file in sorted(DOCS.glob("*.csv"))}
    pictures = sorted(PICTURES.rglob("*.svg"))
    places |= {picture: picture.relative_to(DOCS).as_posix() for picture in pictures}
    recipes = sorted((ROOT / "recipes").iterdir())
    places |= {recipe: f"recipes/{recipe.name}" for recipe in recipes}
    examples = sorted((ROOT / "examples").glob("*.*"))
    return places | {example: f"examples/{example.stem}.md" for example in examples}


def with_links(source: Path, places: Mapping[Path, str]) -> str:
    """The text of a page whose relative links lead to places on the site; code stays as it is."""
    here = Path(places[source]).parent

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if target not in places:
            raise BrokenPage(f"{source.relative_to(ROOT)} links to {link[1]}: no page of the site")
        return Path(os.path.relpath(places[target], here)).as_posix()

    parts = FENCE.split(source.read_text(encoding="utf-8"))
    return "".join(
        part if part.startswith("```") else unbroken(LINK.sub(moved, part)) for part in parts
    )


def unbroken(text: str) -> str:
    """The text with intervals that stay on one line, also in narrow columns."""
    return INTERVAL.sub("\\1\N{NO-BREAK SPACE}\\2", text)


def with_names_linked(text: str) -> str:
    """docs/methods.md with the methods in its tables linked to their pages.

    The tables of credits and losses, further down, have names of their own.
    """
    methods, heading, rest = text.partition("\n## Credits")
    names = "|".join(method_names())
    linked = re.sub(rf"(?<=[|,] )`({names})`(?=[ ,])", r"[`\1`](methods/\1.md)", methods)
    return linked + heading + rest


def fill_navigation(navigation: list[dict[str, Any]], places: Mapping[Path, str]) -> None:
    """Add the pages of methods, notebooks, examples and the reference to their sections."""
    sections = {name: pages for entry in navigation for name, pages in entry.items()}
    sections["Methods"] += [{name: f"methods/{name}.md"} for name in method_names()]
    within = {name: pages for entry in sections["Extend"] for name, pages in entry.items()}
    examples = {path: place for path, place in places.items() if path.parent.name == "examples"}
    for path, place in examples.items():
        if path.suffix == ".ipynb":
            sections["Start"].append({f"Notebook: {notebook_title(path)}": place})
        else:
            within["Examples"].append({path.name: place})
    within["Reference"] += [{title: reference_place(title)} for title in REFERENCE]


# --- the site for language models


class Listed(NamedTuple):
    """A page in the navigation."""

    section: str
    title: str
    place: str


def in_navigation(navigation: Sequence[Mapping[str, Any]], section: str = "") -> Iterator[Listed]:
    """The pages of a navigation, in its order, each with its topmost section."""
    for entry in navigation:
        for title, within in entry.items():
            if isinstance(within, str):
                yield Listed(section, title, within)
            else:
                yield from in_navigation(within, section or title)


def index_for_models(heading: str, listed: Sequence[Listed], pages: Path) -> str:
    """`llms.txt` (https://llmstxt.org): a link and one line for each page, by section.

    Links lead to the HTML of the site, relative to its root.
    """
    parts = [f"{heading}\n\nAll pages in one file: [llms-full.txt](llms-full.txt)"]
    section = ""
    for page in listed:
        if page.section != section:
            section = page.section
            parts.append(f"\n## {section}\n")
        place = re.sub(r"\bREADME\.md$", "index.md", page.place).removesuffix(".md") + ".html"
        about = first_sentence((pages / page.place).read_text(encoding="utf-8"))
        link = f"- [{page.title}]({place})"
        parts.append(f"{link}: {about}" if about else link)
    return "\n".join(parts) + "\n"


def first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, without links; "" if it has no prose."""
    prose = FENCE.sub("", text)
    for paragraph in re.split(r"\n\s*\n", prose):
        words = " ".join(paragraph.split())
        if words and not re.match(r"#|\||:::|!\[|<!--|- |\d+\. ", words):
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", words).replace("**", "")
            return SENTENCE.split(plain, maxsplit=1)[0].rstrip(":")
    return ""


def all_pages(listed: Sequence[Listed], pages: Path) -> str:
    """`llms-full.txt`: the Markdown of all pages, each after a line with its place.

    Leaves out: pages of the reference, whose names are filled in when the site is built.
    """
    parts = [
        f"<!-- {page.place} -->\n\n{(pages / page.place).read_text(encoding='utf-8').strip()}"
        for page in listed
        if not page.place.startswith("reference/")
    ]
    return "\n\n".join(parts) + "\n"


# --- methods


def method_names() -> list[str]:
    """Names of the shipped methods, in the order of docs/methods.md."""
    (family,) = tables(DOCS / "methods.md", "reward")
    listed = [row[0].strip("`") for row in family.rows]
    shipped = {path.stem for path in METHODS.glob("[a-z]*.py")}
    if set(listed) != shipped:
        differing = ", ".join(sorted(set(listed) ^ shipped))
        raise BrokenPage(f"docs/methods.md and {METHODS.relative_to(ROOT)} differ: {differing}")
    return listed


def method_page(name: str) -> str:
    """The page of a method."""
    module = importlib.import_module(f"comas.methods.{name}")
    summary, _, account = inspect.getdoc(module).partition("\n\n")
    sections = [
        f"# {name}",
        PAPER.sub(paper_link, summary),
        PAPER.sub(paper_link, account),
        f"```sh\ncomas train method={name}\n```",
        *payment(name),
        *learning(module.method),
        *results(name),
        *default_run(name),
        *settings(name),
        "## Source",
        f"`src/comas/methods/{name}.py`, whole; a copy of it is a method of your own "
        f"([Extending](../extending.md#a-method)).",
        f"```python\n{inspect.getsource(module).rstrip()}\n```",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def paper_link(paper: re.Match[str]) -> str:
    """A link to the paper that a docstring names by its number."""
    return f"[arXiv {paper[1]}](https://arxiv.org/abs/{paper[1]})"


def payment(name: str) -> Iterator[str]:
    """What is rewarded, and what the method needs: its row of docs/methods.md."""
    (family,) = tables(DOCS / "methods.md", "reward")
    (row,) = rows_about(name, family)
    cells = dict(zip(family.header, row, strict=True))
    yield "## Reward"
    yield "v, s and p are explained on [All methods](../methods.md#the-family)."
    parts = [
        part.split(": ", 1) if ": " in part else ["", part] for part in cells["reward"].split("; ")
    ]
    yield markdown(Table(("of", "reward"), parts))
    yield f"Needs of the task: {cells['needs'] or 'nothing'}. Team: {cells['team, tiny model']}."


def learning(method: Any) -> Iterator[str]:
    """Credit and loss of a method, with their formulas in docs/methods.md."""
    yield "## Credit and loss"
    rows = []
    for function, header in ((method.credit, "credit"), (method.loss, "loss")):
        name = function.__name__
        known = [row for table in tables(DOCS / "methods.md", header) for row in table.rows]
        formula = [row[1] for row in known if row[0] == f"`{name}`"]
        place = f"[{function.__module__}](../{reference_of(function.__module__)})"
        rows.append([header, f"`{name}`", formula[0] if formula else "of its own, below", place])
    yield markdown(Table(("", "function", "formula", "module"), rows))


def results(name: str) -> Iterator[str]:
    """The learning curve, what was measured and the claims of the paper."""
    picture = f"pictures/methods/{name}.svg"
    systems, claims = tables(DOCS / "results-family.md", "method")
    measured = rows_about(name, systems)
    if not measured:
        return
    yield "## On the small world"
    if (DOCS / picture).exists():
        yield f"![share right on unseen puzzles over generated tokens](../{picture})"
        yield (
            "Five seeds, thin, and their mean, thick: held-out puzzles at both ends, those of the "
            "validation split between them."
        )
    yield (
        "Means over five seeds, 95 % intervals over seeds. How this was measured, and what "
        "follows: [Results](../results-methods.md#the-family-on-the-same-world)."
    )
    yield markdown(Table(systems.header, measured))
    if of_method := rows_about(name, claims):
        yield "Claims, their thresholds fixed before the runs:"
        yield markdown(Table(claims.header[1:], [row[1:] for row in of_method]))


def default_run(name: str) -> Iterator[str]:
    """What `comas train method=NAME` comes to and takes, for methods that have no row above."""
    (runs,) = tables(DOCS / "default-runs.md", "method")
    measured = rows_about(name, runs)
    if not measured:
        return
    yield "## One run"
    yield f"![share right on unseen questions](../pictures/default/{name}.svg)"
    yield (
        "The command above, seed 0, over generated tokens: test questions at both ends, those of "
        "the validation split between them; intervals over questions. What the method achieves "
        "over several seeds, and what it does not: [Results](../results.md)."
    )
    yield markdown(Table(runs.header[1:], [row[1:] for row in measured]))


def settings(name: str) -> Iterator[str]:
    """What the method and its presets change of the default: blocks of docs/method-settings.md."""
    page = (DOCS / "method-settings.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    own = [block for block in blocks if tomllib.loads(block).get("method") == name]
    yield "## Settings"
    if own:
        yield (
            "What it changes of the [default](../config.md#the-keys-that-suffice), and what presets"
            " change of that:"
            if len(own) > 1
            else "What it changes of the [default](../config.md#the-keys-that-suffice):"
        )
    else:
        yield "It is the [default](../config.md#the-keys-that-suffice)."
    for block in own:
        yield f"```toml\n{block}```"


def tables(page: Path, heading: str) -> list[Table]:
    """Tables of a page that have a column whose heading begins with `heading`, in their order."""
    found = []
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *rows = [cells(line) for line in block.splitlines()]
        if any(name.startswith(heading) for name in header):
            found.append(Table(header, rows))
    if not found:
        raise BrokenPage(f"{page.relative_to(ROOT)} has no table with a column {heading!r}")
    return found


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_about(name: str, table: Table) -> list[Sequence[str]]:
    """Rows whose first cell begins with the method's name."""
    return [row for row in table.rows if row[0].split()[0].strip("`") == name]


def markdown(table: Table) -> str:
    """A table as lines of a page."""
    rule = ["---"] * len(table.header)
    rows = (table.header, rule, *table.rows)
    return unbroken("\n".join(f"| {' | '.join(row)} |" for row in rows))


# --- examples and reference


def example_page(path: Path) -> str:
    """A page that shows a file of Python."""
    return f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"


def notebook_title(path: Path) -> str:
    """The heading of a notebook's first cell."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    return "".join(first["source"]).splitlines()[0].removeprefix("# ")


def notebook_page(path: Path, folder: Path) -> str:
    """A page that shows a notebook with its outputs; pictures are written into `folder`."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {})
            text = "".join(output.get("text", shown.get("text/plain", "")))
            if "image/png" in shown:
                picture = folder / f"{path.stem}-{number}.png"
                picture.write_bytes(base64.b64decode("".join(shown["image/png"])))
                parts.append(f"![what the cell above draws]({picture.name})")
            elif text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def reference_place(title: str) -> str:
    """Where a page of the reference is on the site."""
    return f"reference/{re.sub('[^a-z]+', '-', title.lower())}.md"


def reference_of(module: str) -> str:
    """Place and anchor of a module in the reference, or of its method's page."""
    for title, modules in REFERENCE.items():
        if module in modules:
            return f"{reference_place(title)}#{module}"
    return f"methods/{module.rpartition('.')[2]}.md#source"


def reference_page(title: str, modules: Sequence[str]) -> str:
    """A page that mkdocstrings fills with the public names of these modules."""
    parts = [f"# {title}"]
    for module in modules:
        parts.append(f"::: {module}")
        parts += [f"::: {module}.{name}" for name in passed_on(module)]
    return "\n\n".join(parts) + "\n"


def passed_on(module: str) -> list[str]:
    """Names that a package imports as themselves, which mkdocstrings takes for private."""
    place = ROOT / "src" / module.replace(".", "/") / "__init__.py"
    if not place.exists():
        return []
    imports = ast.walk(ast.parse(place.read_text(encoding="utf-8")))
    names = [name for node in imports if isinstance(node, ast.ImportFrom) for name in node.names]
    return [name.name for name in names if name.asname == name.name]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    stage(parser.parse_args().folder)
