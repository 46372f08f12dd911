"""The site: every page is in its navigation, links lead somewhere, nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
METHODS = sorted(p.stem for p in (ROOT / "src/comas/methods").glob("[a-z]*.py"))
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*"
    r"(?:src|href|srcset|data)=[\"']?\s*(?:https?:)?//[^>]*>"
)
"""Elements that a browser loads from another address, without being asked."""
FETCHED_BY_STYLES = re.compile(r"(?:url\(|@import\s)[\"']?(?:https?:)?//")
WIDGETS = re.compile(r"class=\"(?:mermaid|glightbox|pyodide)|data-md-component=\"source\"")
"""Marks of what the theme's script would fetch a library or a number for."""


@pytest.fixture(scope="module")
def pages() -> dict[str, Any]:
    """The names of docs/site/pages.py."""
    return runpy.run_path(str(ROOT / "docs" / "site" / "pages.py"))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    config = ["--config-file", str(folder / "zensical.toml")]
    return subprocess.run([*command, *config], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pages: dict[str, Any]) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    pages["stage"](folder)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not LOADED.findall(html), page.name
        assert not WIDGETS.search(html), page.name
    for style in site.rglob("*.css"):
        assert not FETCHED_BY_STYLES.search(style.read_text(encoding="utf-8")), style.name


@pytest.mark.parametrize(
    "element",
    [
        '<script src="https://unpkg.com/x"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        "<img src=http://example.org/pixel.gif>",
    ],
)
def test_the_gate_sees_what_is_loaded_from_elsewhere(element: str) -> None:
    assert LOADED.search(element)


@pytest.mark.slow
def test_links_within_the_site_lead_to_files(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its addresses begin at the root of a server
            continue
        html = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:src|href)=\"(?!https?:|#|data:|mailto:)([^\"#?]+)", html):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    config = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r"\"([\w-]+\.md)\"", json.dumps(tomllib.loads(config))))
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - listed
    assert not missing, f"add {missing} to `nav` in docs/site/zensical.toml"


def test_the_navigation_has_at_most_eight_entries() -> None:
    config = tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8"))
    assert len(config["project"]["nav"]) <= 8


@pytest.mark.slow
def test_language_models_find_every_page(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w/.-]+)\)", listed)
    assert all((site / link).exists() for link in links)
    assert {"index.html", "tutorial.html", "methods/comas.html", "examples/my_model.html"} <= set(
        links
    )
    for page in (ROOT / "docs").glob("*.md"):
        assert page.read_text(encoding="utf-8").splitlines()[0] in whole, page.name


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_its_reward_its_settings_and_its_source(
    name: str, pages: dict[str, Any]
) -> None:
    page = pages["method_page"](name)
    for section in ("Reward", "Credit and loss", "Settings", "Source"):
        assert f"\n## {section}\n" in page
    source = (ROOT / "src/comas/methods" / f"{name}.py").read_text(encoding="utf-8")
    assert source.rstrip() in page
    for folder in ("methods", "default"):
        picture = ROOT / "docs" / "pictures" / folder / f"{name}.svg"
        assert picture.exists() == (f"pictures/{folder}/{name}.svg" in page)


@pytest.mark.slow
def test_the_reference_has_the_public_names(site: Path) -> None:
    import comas
    from comas import testing

    front = (site / "reference" / "comas.html").read_text(encoding="utf-8")
    for name in set(comas.__all__) - {"__version__"}:
        assert re.search(rf'id="comas\.([\w.]+\.)?{name}"', front), name
    page = (site / "reference" / "testing.html").read_text(encoding="utf-8")
    for name in ("check_method", "check_task", "check_host", "check_engine", "replay"):
        assert hasattr(testing, name)
        assert f'id="comas.testing.{name}"' in page, name


@pytest.mark.slow
def test_the_search_finds_words_of_all_sections(site: Path) -> None:
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    places = {item["location"].partition("#")[0] for item in items}
    assert {"index.html", "tutorial.html", "methods/mae.html", "reference/testing.html"} <= places
    assert (site / "search.js").read_text(encoding="utf-8").startswith("var __index")


@pytest.mark.parametrize("target", ["there.md", "index.md#nowhere"])
def test_a_broken_link_or_anchor_fails_the_build(target: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Here\n\n[a link]({target})\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\ndocs_dir = "pages"\n')
    assert build(tmp_path).returncode != 0


def test_a_link_out_of_the_site_is_said(pages: dict[str, Any]) -> None:
    page = ROOT / "docs" / "methods.md"
    with pytest.raises(pages["BrokenPage"], match=r"methods\.md links to method-settings\.md"):
        pages["with_links"](page, {page: "methods.md"})


def test_links_are_rewritten_and_code_is_not(pages: dict[str, Any]) -> None:
    text = pages["with_links"](ROOT / "README.md", pages["places_of_files"]())
    assert "](methods.md)" in text
    assert "](docs/" not in text
    code = re.findall(r"^```.*?^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    assert all(block in text for block in code)


PICTURES = [
    picture
    for folder in ("methods", "default")
    for picture in sorted((ROOT / "docs" / "pictures" / folder).glob("*.svg"))
]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.stem)
def test_curves_of_methods_are_small(picture: Path) -> None:
    assert picture.stem in METHODS
    assert picture.stat().st_size < 20_000
