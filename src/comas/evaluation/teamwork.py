"""What teams make of their members, per cell in which a team plays: coordination, revisions,
experts, relays.

Figures without data are absent, never 0. Leaves out: how each is computed
(`evaluation.coordination`, `evaluation.critique`, `evaluation.experts`, `evaluation.relay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comas.evaluation import coordination, critique, experts, relay
from comas.evaluation.as_json import interval_record
from comas.evaluation.beside import beside, is_team
from comas.evaluation.report import Cell, label
from comas.stats import Interval


def teamwork(cells: Sequence[Cell], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A record, as JSON, for each team's cell that has a figure; `others` are the systems that
    its label has to be told from.
    """
    records: list[dict[str, Any]] = []
    for cell in cells:
        if not cell.records or not is_team(cell):
            continue
        compared = beside(cell, cells)
        revised = critique.figures(cell)
        found: dict[str, Interval] = {}
        if compared is not None:
            found |= coordination.figures(cell, compared)
            found |= experts.figures(compared)
            found |= relay.figures(cell, cells)
        found |= revised
        if not found:
            continue
        record: dict[str, Any] = {
            **cell.key._asdict(),
            "label": label(cell.system, others),
            "figures": {name: interval_record(interval) for name, interval in found.items()},
        }
        if revised:
            record["revisions"] = critique.counts(cell)
        records.append(record)
    return records
