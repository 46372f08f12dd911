"""The page in a browser, Debian's chromium without a screen: hostile texts stay texts, addresses
and keys lead where they ought to, and a run that goes on is followed.

`make test-web`; skipped where there is no browser, or no playwright to steer it with.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comas.storage.run import Run
from comas.view.documents import EvaluationDocuments, RunDocuments, Several
from comas.view.page import export
from comas.view.server import ViewServer
from tests.support.viewed import CONFIG, HOSTILE, discussion, evaluation, metrics, viewed_run

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")

READY = "#main[data-ready]"
LAST = 3 + len(HOSTILE)
"""Discussions of the run's last step."""


def first_panel(page: Any, run: Run, tmp_path: Path) -> str:
    """The title of the first chart of a run's page."""
    file = tmp_path / "run.html"
    export(file, [RunDocuments(str(run.path))])
    page.goto(file.as_uri())
    page.wait_for_selector(READY)
    return page.locator(".charts figcaption strong").first.inner_text()


@pytest.mark.parametrize(("flat", "first"), [(1.0, True), (0.25, False)])
def test_groups_without_a_difference_stand_first_where_they_explain_the_run(
    flat: float, first: bool, page: Any, tmp_path: Path
) -> None:
    run = viewed_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["signal"] = {"solution": {"groups": 8, "flat": 8 * flat}}
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (first_panel(page, run, tmp_path) == "Groups without a difference") == first


LEADING = [
    "Accuracy on questions that are not trained on",
    "Rewards",
    "Judges against labels",
    "Generated tokens by role",
    "KL",
]
"""What stands first and is never folded; of a run without the record of groups."""
HARDLY = "of what hardly moves"


def panels(within: Any) -> list[str]:
    """Titles of the panels there that are seen."""
    titles = within.locator("figcaption strong")
    return [title.inner_text() for title in titles.all() if title.is_visible()]


def test_what_matters_stands_before_what_hardly_moves_which_is_folded(
    run: Run, served: str, page: Any
) -> None:
    look(page, served, "/")
    assert panels(page.locator(".charts").first) == LEADING
    folded = page.locator("details.folded", has_text=HARDLY)
    assert folded.locator("summary").first.inner_text() == (
        f"5 pictures {HARDLY}: Replies that cannot be read, Replies cut at the token limit, Length of"
        " replies, Generated tokens by agent, Time of a step"
    )
    assert panels(folded) == []
    folded.locator("summary").first.click()
    assert len(panels(folded)) == 5
    # it stays unfolded while the run goes on; what moves by then is folded no more
    longer = {**metrics(3), "seconds": 15.0}
    run.write_step(longer, [discussion(3, 0, right=True, score=3)])
    page.get_by_text("4 of 9 steps").wait_for(timeout=10_000)
    assert panels(page.locator(".charts").first) == [*LEADING, "Time of a step"]
    assert len(panels(folded)) == 4


def test_policies_that_did_not_move_are_named(file: str, page: Any) -> None:
    look(page, file, "/")
    assert "home/a0 moved in 0 of 3 steps" in page.inner_text("main")


def test_monitors_without_evidence_are_folded(served: str, page: Any) -> None:
    look(page, served, "/")
    folded = page.locator("details.folded", has_text="without evidence of a change")
    assert folded.locator("figure").count() == 1
    assert "Evidence of probes" in panels(page)


def test_axes_fit_and_are_titled(file: str, page: Any) -> None:
    look(page, file, "/")
    picture = page.locator("figure", has_text="Accuracy on questions").locator("svg")
    assert picture.locator(".axis").all_text_contents() == ["share right", "step"]
    heights = picture.locator("text[text-anchor=end]:not(.axis)").all_text_contents()
    assert heights[0] == "0.2"
    assert float(heights[-1]) < 0.9


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test where its script fails, or where anything asks for the network."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console", lambda message: faults.append(message.text) if message.type == "error" else 0
    )
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    outside: list[str] = []
    page.on("request", lambda request: outside.append(request.url))
    page.faults = faults
    yield page
    foreign = [url for url in outside if not url.startswith(("file:", "http://127.0.0.1:"))]
    context.close()
    assert faults == []
    assert foreign == []


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return viewed_run(tmp_path / "r")


@pytest.fixture
def served(run: Run, tmp_path: Path) -> Iterator[str]:
    """The address of a server of a run and an evaluation."""
    folders = [RunDocuments(str(run.path)), EvaluationDocuments(str(evaluation(tmp_path / "e")))]
    with ViewServer(Several(folders)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture
def file(run: Run, tmp_path: Path) -> str:
    """The address of the same as one file."""
    folders = [RunDocuments(str(run.path)), EvaluationDocuments(str(evaluation(tmp_path / "f")))]
    export(tmp_path / "x.html", folders)
    return (tmp_path / "x.html").as_uri()


def look(page: Any, url: str, place: str) -> None:
    """Go to a place of the page, and wait until it is shown."""
    page.goto(f"{url}#{place}")
    page.wait_for_selector(f'#main[data-ready="#{place}"]', timeout=20_000)


PLACES = (
    *("/", "/0/truth/1/3", "/0/step/3", "/0/eval/before", "/0/eval/after", "/find/any/", "/1"),
    *("/question/q3", "/find/misjudged/x", "/1/games/0"),
    *(f"/0/step/3/{place}" for place in range(3, LAST)),
    *(f"/1/games/0/{place}" for place in range(len(HOSTILE))),
)
ALIEN = """() => {
  const ours = new Set(['HTML','HEAD','META','TITLE','STYLE','BODY','A','HEADER','NAV','P','MAIN',
    'SCRIPT','H1','H2','H3','H4','UL','OL','LI','DL','DT','DD','DETAILS','SUMMARY','PRE','SECTION',
    'FIGURE','FIGCAPTION','STRONG','SPAN','DIV','ARTICLE','B','CODE','BUTTON','LABEL','SELECT',
    'OPTION','INPUT','TABLE','CAPTION','THEAD','TBODY','TR','TH','TD',
    'svg','g','line','path','polyline','circle','text','title']);
  const found = [];
  for (const node of document.querySelectorAll('*')) {
    if (!ours.has(node.tagName)) found.push(node.tagName);
    for (const { name, value } of node.attributes) {
      if (name.startsWith('on')) found.push(`${node.tagName} ${name}`);
      if ((name === 'href' || name === 'src') && !value.startsWith('#')) found.push(value);
      if (name === 'srcdoc') found.push(name);
    }
  }
  if (document.scripts.length !== 1 + document.querySelectorAll('script[data-bundle]').length)
    found.push('scripts');
  return found;
}"""


@pytest.mark.parametrize("form", ["served", "file"])
def test_hostile_texts_stay_texts(form: str, request: pytest.FixtureRequest, page: Any) -> None:
    url = request.getfixturevalue(form)
    for place in PLACES:
        look(page, url, place)
        for closed in page.query_selector_all("details:not([open])"):
            closed.evaluate("node => { node.open = true; }")
        assert page.evaluate(ALIEN) == [], place
        assert page.evaluate("window.taken") is None, place
        assert page.title().endswith("comas view"), place


def test_characters_that_steer_are_shown_as_codes(file: str, page: Any) -> None:
    look(page, file, f"/0/step/3/{3 + 10}")
    assert "right\\u202egnorw\\u202c left\\u2066x" in page.inner_text(".turn >> nth=0")
    look(page, file, f"/0/step/3/{3 + 11}")
    assert "escape\\u001b[31m" in page.inner_text(".turn >> nth=0")


@pytest.mark.parametrize("form", ["served", "file"])
def test_evidence_is_drawn_with_the_line_of_an_alarm(
    form: str, request: pytest.FixtureRequest, page: Any
) -> None:
    look(page, request.getfixturevalue(form), "/")
    figure = page.locator("figure", has_text="Evidence of probes")
    assert figure.locator("polyline").count() == 3
    assert "an alarm from 2.50 (316 to 1) on" in figure.inner_text()
    assert figure.locator(".legend li").all_inner_texts() == ["strangers", "cut", "proven"]
    heights = figure.locator("svg .level").evaluate(
        "node => [node.y1, node.y2].map(y => y.baseVal.value)"
    )
    last = figure.locator("polyline").first.evaluate(
        "node => node.points[node.points.length - 1].y"
    )
    assert heights[0] == heights[1] < last
    titles = figure.locator(".series title").all_text_contents()
    assert titles == ["strangers", "cut", "proven"]
    chart = figure.locator("svg")
    chart.focus()
    page.keyboard.press("End")
    assert "step 3: strangers 2, cut 2.10, proven 2.20" in figure.inner_text()


def test_where_nobody_watched_there_is_no_evidence(tmp_path: Path, page: Any) -> None:
    run = Run.create(CONFIG, str(tmp_path / "unwatched"))
    run.write_step({**metrics(0), "monitors": {}}, [discussion(0, 0, right=True, score=3)])
    export(tmp_path / "x.html", [RunDocuments(str(run.path))])
    look(page, (tmp_path / "x.html").as_uri(), "/")
    assert page.locator("figure", has_text="Rewards").count() > 0
    assert page.locator("figure", has_text="Evidence of").count() == 0
    assert page.get_by_text("What monitors see").count() == 0


def test_a_megabyte_is_shown_on_demand(file: str, page: Any) -> None:
    look(page, file, f"/0/step/3/{3 + 13}")
    turn = page.locator(".turn").first
    assert len(turn.inner_text()) < 5_000
    turn.get_by_text("show all 1,000,000 characters").click()
    assert len(turn.inner_text()) > 1_000_000


def test_a_newcomer_goes_from_a_curve_to_a_discussion(served: str, page: Any) -> None:
    look(page, served, "/")
    chart = page.locator("figure", has_text="Judges against labels").locator("svg")
    chart.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "step 2: scoring: accepts right 0.90" in page.inner_text(
        "figure:has-text('Judges') .readout"
    )
    page.keyboard.press("Enter")
    page.wait_for_selector('#main[data-ready="#/0/step/2"]')
    page.select_option("select", "rewarded-but-wrong")
    page.get_by_text("1 of 3 discussions, with work that was rewarded").wait_for()
    page.click(".rows a")
    page.wait_for_selector('#main[data-ready="#/0/step/2/1"]')
    assert page.locator(".arrows g").count() == 2
    page.locator(".arrows g").nth(1).focus()
    told = page.inner_text(".told")
    assert "a2 as scoring: score 3" in told
    assert "solution of a0 has reward +1.00" in told
    assert "wrong" in page.inner_text(".turn >> nth=0")


def test_keys_turn_pages(served: str, page: Any) -> None:
    look(page, served, "/0/step/1/0")
    page.keyboard.press("j")
    page.wait_for_selector('#main[data-ready="#/0/step/1/1"]')
    page.keyboard.press("u")
    page.wait_for_selector('#main[data-ready="#/0/step/1"]')
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('#main[data-ready="#/0/step/2"]')
    page.keyboard.press("u")
    page.wait_for_selector('#main[data-ready="#/"]')
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.inner_text("h1") != "Not here"
    page.keyboard.press("/")
    page.wait_for_selector('#main[data-ready="#/find/any/"]')


def test_a_click_on_a_curve_opens_the_run_that_it_belongs_to(
    run: Run, tmp_path: Path, page: Any
) -> None:
    """The second run's rewards lie at the foot of the picture, the first one's at its head."""
    other = viewed_run(tmp_path / "other")
    lines = (other.path / "metrics.jsonl").read_text().replace('"solution": 0.5', '"solution": 0.1')
    (other.path / "metrics.jsonl").write_text(lines)
    export(tmp_path / "x.html", [RunDocuments(str(run.path)), RunDocuments(str(other.path))])
    look(page, (tmp_path / "x.html").as_uri(), "/")
    picture = (
        page.locator("figure", has_text="mean over rewarded turns, by role").locator("svg").first
    )
    box = picture.bounding_box()
    for height, number in ((0.1, 0), (0.7, 1)):
        picture.click(position={"x": 0.5 * box["width"], "y": height * box["height"]})
        page.wait_for_selector(f'#main[data-ready^="#/{number}/step/"]')
        page.go_back()
        page.wait_for_selector("figure")


def test_one_question_at_two_steps_side_by_side(served: str, page: Any) -> None:
    look(page, served, "/question/q1")
    page.get_by_text("discussions of it: 3 found", exact=True).wait_for()
    for place in (0, 2):
        page.get_by_role("button", name="show beside").nth(place).click()
    page.wait_for_selector(".beside > div:nth-child(2) .board")
    assert page.locator(".beside .board").count() == 2


def test_a_run_that_goes_on_is_followed(run: Run, served: str, page: Any) -> None:
    look(page, served, "/")
    assert "3 of 9 steps" in page.inner_text("main")
    run.write_step(metrics(3), [discussion(3, 0, right=True, score=3)])
    page.get_by_text("4 of 9 steps").wait_for(timeout=10_000)


def test_what_a_file_does_not_hold_is_said(run: Run, tmp_path: Path, page: Any) -> None:
    export(tmp_path / "x.html", [RunDocuments(str(run.path))], [0])
    look(page, (tmp_path / "x.html").as_uri(), "/0/step/2")
    assert "not in this file" in page.inner_text("main")
    look(page, (tmp_path / "x.html").as_uri(), "/0/step/77")
    assert "there is no step 77" in page.inner_text("main")


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_wider_than_the_screen(file: str, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for place in ("/", "/0/truth/1/3", "/0/step/3", "/0/step/3/4", "/0/eval/after", "/1"):
        look(page, file, place)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place


def test_everything_that_can_be_used_has_a_name(file: str, page: Any) -> None:
    for place in ("/", "/0/step/3", "/0/step/3/0", "/find/any/", "/0/truth/1/3"):
        look(page, file, place)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('a, button, input, select, [tabindex="0"], svg[role]')]
            .filter((node) => !(node.textContent.trim() || node.getAttribute('aria-label')
              || node.labels && node.labels.length)).map((node) => node.outerHTML.slice(0, 80))"""
        )
        assert nameless == [], place
