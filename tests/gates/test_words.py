"""Words that are gone: one thing has one name, in code and on pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GONE = {
    r"\b[Ss]eed models?\b": "tiny models",
    r"\bbase ?= ?\"?seed\b": "base=tiny",
    r"\bseed-(b|c|critic|facts|games|gate|hole|pose|repair|two|vote)\b": "tiny-...",
    r"\bseed_models\b|\bis_seed\b": "shipped_models, is_shipped",
    r"[\"'`=]believed\b": "p_true",
    r"\b[Bb]elieved scores?\b|\bsaid scores?\b": "P(True), written scores",
    r"\bscore ?= ?\"?said\b": "score=text",
    r"\boptions\.blind\b|\bblind ?= ?(true|false)\b|\"blind\": (True|False)": "answer_first",
    r"\b[Aa] coin\b|\bthe coin\b": "random rewards",
    r"\bPayoff\b|\bobjective\.pay\b": "TurnReward, objective.rewards",
    r"\bhosts\.table\b": "hosts.keys",
    r"\b(is|are|was|were|be|been|not|nobody) paid\b": "is rewarded, has reward, is billed",
    r"\bno pay\b|\b[Pp]ays (for|the|a|right|judges|each)\b": "reward, rewards",
    r"\bunpaid\b|\bpaid-but-wrong\b": "unrewarded, rewarded-but-wrong",
    r"\bfor want of room\b|\b(has|have) room\b": "at the token limit, fits",
    r"\b[Aa]t (a|one|the) table\b": "in a team",
    r"\bScene\b|\bscripted_scene\b": "GameContext, scripted_context",
    r"\bMember\(|\bWay\(": "TeamMember, ChosenSetup",
    r"\bevaluation\.ways\b|\bplan\.ways\b": "evaluation.setups, plan.setups_per_system",
    r"info\[\"said\"\]": 'info["verdict"]',
}
"""Pattern of what was called otherwise -> what it is called now."""
MAY = {
    "src/comas/config/mistakes.py": "reads what 0.1 wrote",
    "src/comas/models/sources.py": "reads what 0.1 wrote",
    "src/comas/config/own_tasks.py": "reads what 0.1 wrote",
    "src/comas/answers/units.py": "a quarter is one",
    "src/comas/game/judgements.py": "reads what methods of 0.1 note",
}
PAGES = [
    path
    for folder, ends in (("src", "*.py"), ("docs", "*.md"), ("examples", "*"), ("studies", "*"))
    for path in sorted((ROOT / folder).rglob(ends))
    if path.is_file() and path.suffix in (".py", ".md", ".toml", ".ipynb")
]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("pattern", GONE)
def test_nothing_is_called_as_it_was(pattern: str) -> None:
    found: list[str] = []
    for path in PAGES:
        name = path.relative_to(ROOT).as_posix()
        if name in MAY:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{name}:{number}: {m[0]}" for m in re.finditer(pattern, line)]
    assert not found, f"it is {GONE[pattern]}: {found[:10]}"


@pytest.mark.parametrize(
    "line",
    [
        "four seed models",
        "comas train base=seed",
        'base = "seed"',
        "`seed-pose` proposes",
        '"believed": x',
        "preset=believed",
        "options.score=said",
        "options.blind=true",
        "than by a coin",
        "from comas.objective.pay import mean",
        "a solution is paid 1",
        "the score pays the solver",
        "replies that are unpaid",
        "--only paid-but-wrong",
        "cut for want of room",
        "it learns at a table with a larger one",
        "Scene(method, task, members, 0)",
        'Member("a", host, "p")',
        "from comas.evaluation.ways import players",
        'turn.info["said"] == "right"',
    ],
)
def test_the_patterns_find_what_they_are_for(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in GONE)


@pytest.mark.parametrize(
    "line",
    [
        "the seed of a run",
        "seed=3",
        "it believed so",
        "random seeds",
        "what was said",
        "blind spot",
        '"counts": {"paid": 3}',
        'metric = "pay.precision"',
        'Method(paid=("solution",))',
        "room.solution=64",
    ],
)
def test_the_patterns_leave_other_words(line: str) -> None:
    assert not any(re.search(pattern, line) for pattern in GONE)
