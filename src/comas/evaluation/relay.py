"""What a pair gains where the stronger member leads: relay gain, after "The Collaboration Gap"
(arXiv 2511.02687).

S(the stronger one took the first k turns) - S(together), on the same questions. The stronger member
of a question is the expert, chosen on the other half of the questions (`evaluation.experts`); who
led was drawn, so that questions in which it did are a fair half. Leaves out: how a relay is played
(`setups.relay`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from comas.evaluation.beside import Beside, Numbers, beside
from comas.evaluation.experts import chosen
from comas.evaluation.report import Cell
from comas.stats import Interval, gain_interval, ratio_interval

_LEAD = re.compile(r":lead=[1-9]\d*")


def together_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The cell in which the pair of a relay (`relay:lead=2`) speaks alternately (`relay`, or
    `relay:lead=0`) and all else is alike; None where there is none, or this is no relay.
    """
    if cell.setup.partition(":")[0] != "relay" or not _LEAD.search(cell.setup):
        return None
    setups = {_LEAD.sub("", cell.setup), _LEAD.sub(":lead=0", cell.setup)}
    keys = [cell.key._replace(setup=setup) for setup in setups]
    return next((other for other in cells if other.key in keys), None)


def figures(cell: Cell, cells: Sequence[Cell]) -> dict[str, Interval]:
    """`relay gain` of a relay's cell, where single answers and the pair together are beside it."""
    both = together_of(cell, cells)
    led = beside(cell, cells)
    together = None if both is None else beside(both, cells)
    if led is None or together is None or len(_members(led)) != 2:
        return {}
    common = sorted({*led.questions} & {*together.questions})
    if len(common) < 2:
        return {}
    found = gain(led.of(common), together.of(common))
    return {} if found is None else {"relay gain": found}


def gain(led: Beside, together: Beside) -> Interval | None:
    """The share of right answers where the expert led, minus that of the pair together on these
    questions; None where it led in none.
    """
    leads: Numbers = []
    for games, names in zip(led.team, chosen(led, max), strict=True):
        leaders = [game["turns"][0]["agent"] for game in games]
        leads.append([float(one == name) for one, name in zip(leaders, names, strict=True)])
    if not any(any(run) for run in leads):
        return None
    gaps: Numbers = []
    for rows in zip(leads, led.right(), together.right(), strict=True):
        gaps.append([lead * (a - b) for lead, a, b in zip(*rows, strict=True)])
    found = ratio_interval(gaps, leads)
    used = max(1, round(fmean(sum(run) for run in leads)))
    if found.low == found.high:
        return gain_interval([found.mean] * used)
    low = max(-1.0, found.low)
    high = min(1.0, found.high)
    return Interval(found.mean, low, high, used)


def _members(compared: Beside) -> set[str]:
    """The different models that answer alone."""
    return {record["agent"] for each in compared.alone[0] for record in each}
